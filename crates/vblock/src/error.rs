//! Errors, whose messages tell the user what to do.

use std::io;
use std::net::SocketAddr;

use ring3_host::listener::NotThisHost;
use ring3_host::socket::SocketError;
use thiserror::Error;

/// The reasons why the server refuses a command.
#[derive(Debug, Error)]
pub enum Error {
    /// The image cannot be opened.
    #[error(transparent)]
    Image(#[from] ring3_block::Error),
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The host can start no more threads.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
    /// The name could not stand in a path, a URI or a property.
    #[error(
        "\"{0}\" is not a valid name: give at most 64 letters and digits, with - _ . between them"
    )]
    Name(String),
    /// There is no such device.
    #[error("there is no device \"{0}\"; add it first (query-devices lists those that exist)")]
    NoDevice(String),
    /// There is already a device with this name.
    #[error("a device \"{0}\" exists already; remove it first, or choose another name")]
    DeviceThere(String),
    /// Clients still have rights to the device.
    #[error("the device \"{device}\" is granted to {clients}; revoke this right first")]
    Granted {
        /// The device.
        device: String,
        /// The names of these clients.
        clients: String,
    },
    /// There is already a provider with this name.
    #[error("there is a provider \"{0}\" already; stop it first, or choose another name")]
    ProviderThere(String),
    /// There is no such provider.
    #[error("there is no provider \"{0}\"")]
    NoProvider(String),
    /// A provider's own name for a device has a dot.
    #[error("\"{0}\" has a dot, which a provider's device may not have in its name")]
    Dot(String),
    /// The provider has no such device.
    #[error("this provider has no device \"{0}\"")]
    NotProvided(String),
    /// The provider may not give rights to this client.
    #[error("this provider may not give a right to \"{0}\"")]
    NotItsClient(String),
    /// The client already has a socket of its own.
    #[error("the client \"{0}\" already has a socket for its devices")]
    LobbyThere(String),
    /// No provider has a connection left for this device.
    #[error(
        "there is no direct way to \"{0}\": its provider must make more connections, or it has none"
    )]
    NoDirectWay(String),
    /// The provider could not be kept from letting the client write.
    #[error(
        "only a client with the right rw has a direct way to \"{0}\", since its provider allows writes"
    )]
    DirectRead(String),
    /// There are too many devices of a provider, or connections of a client.
    #[error("there may be {0}")]
    TooMuch(&'static str),
    /// There is no such client.
    #[error("there is no client \"{0}\"; query-clients lists those that exist")]
    NoClient(String),
    /// The client already has a right to this device.
    #[error("the client \"{client}\" already has a right to \"{device}\"; revoke it first")]
    GrantThere {
        /// The client.
        client: String,
        /// The device.
        device: String,
    },
    /// The client has no right to this device.
    #[error("the client \"{client}\" has no right to \"{device}\"")]
    NoGrant {
        /// The client.
        client: String,
        /// The device.
        device: String,
    },
    /// The device was opened for reading only.
    #[error("the device \"{0}\" is open for reading only; grant r, or add it with read-only off")]
    ReadOnly(String),
    /// A device with this size would be empty, or end within a sector.
    #[error("a device cannot have {0} bytes: give a multiple of 512")]
    Size(u64),
    /// A device keeps its size that is open for reading only, or on another server.
    #[error(
        "the device \"{0}\" keeps its size, since it is open for reading only, or on another server"
    )]
    FixedSize(String),
    /// The device would become smaller.
    #[error(
        "the device \"{device}\" has {before} bytes, and what is behind {size} would be lost: give shrink=on if it is not needed"
    )]
    Shrinks {
        /// The device.
        device: String,
        /// Its size.
        before: u64,
        /// The new size.
        size: u64,
    },
    /// The number of queues is not possible.
    #[error("a device must have 1 to {max} queues, not {0}", max = crate::QUEUES_MAX)]
    Queues(u16),
    /// The client already has an NBD server.
    #[error("the client \"{0}\" already has an NBD server; stop it first")]
    NbdThere(String),
    /// The client has no NBD server.
    #[error("the client \"{0}\" has no NBD server")]
    NoNbd(String),
    /// The address is not one of this host alone, and NBD has no passwords.
    #[error(transparent)]
    NotThisHost(#[from] NotThisHost),
    /// The TCP port cannot be used.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address and port.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
}
