//! What can go wrong, in words that say what to do.

use std::io;
use std::net::SocketAddr;

use ring3_host::listener::NotThisHost;
use ring3_host::socket::SocketError;
use thiserror::Error;

/// Why the server does not do what it is asked.
#[derive(Debug, Error)]
pub enum Error {
    /// An image.
    #[error(transparent)]
    Image(#[from] ring3_block::Error),
    /// A socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The host gives no more threads.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
    /// A name that would not do in a path, a URI or a property.
    #[error("\"{0}\" is no name: give letters, digits, and - _ . between them, 64 at most")]
    Name(String),
    /// There is no such device.
    #[error("there is no device \"{0}\"; add it first, or see query-devices")]
    NoDevice(String),
    /// There is one already.
    #[error("there is a device \"{0}\" already; remove it first, or choose another name")]
    DeviceThere(String),
    /// Clients have rights to it.
    #[error("the device \"{device}\" is granted to {clients}; revoke that first")]
    Granted {
        /// The device.
        device: String,
        /// Who may use it.
        clients: String,
    },
    /// There is no such client.
    #[error("there is no client \"{0}\"; see query-clients")]
    NoClient(String),
    /// The client has that right already.
    #[error("the client \"{client}\" has a right to \"{device}\" already; revoke it first")]
    GrantThere {
        /// The client.
        client: String,
        /// The device.
        device: String,
    },
    /// The client has no such right.
    #[error("the client \"{client}\" has no right to \"{device}\"")]
    NoGrant {
        /// The client.
        client: String,
        /// The device.
        device: String,
    },
    /// Nobody may write to the device.
    #[error("the device \"{0}\" is open for reading only; grant r, or add it with read-only off")]
    ReadOnly(String),
    /// A number of queues that cannot be.
    #[error("a device has 1 to {max} queues, not {0}", max = crate::QUEUES_MAX)]
    Queues(u16),
    /// The client's NBD server runs already.
    #[error("the client \"{0}\" has an NBD server already; stop it first")]
    NbdThere(String),
    /// The client has no NBD server.
    #[error("the client \"{0}\" has no NBD server")]
    NoNbd(String),
    /// NBD has no passwords.
    #[error(transparent)]
    NotThisHost(#[from] NotThisHost),
    /// A TCP port cannot be had.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}
