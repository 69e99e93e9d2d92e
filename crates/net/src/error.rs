//! Errors, in words that say what to do.

use std::io;
use std::path::PathBuf;

use ring3_host::listener::NotThisHost;
use ring3_host::socket::SocketError;
use ring3_hostnet::{FilterError, SlirpError, TapError};
use thiserror::Error;

/// The reasons why a card has no network.
#[derive(Debug, Error)]
pub enum NetError {
    /// A Unix socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// An address can be reached by other hosts.
    #[error(transparent)]
    NotThisHost(#[from] NotThisHost),
    /// It is not possible to listen at an address.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// Nobody listens at an address.
    #[error(
        "cannot connect to {address}: {source}; start the other side first, or add reconnect=1"
    )]
    Connect {
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// A socket for datagrams cannot be made.
    #[error("cannot send datagrams from {address}: {source}")]
    Datagrams {
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// A tap device cannot be used.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The program that provides the network cannot be started.
    #[error("cannot start {program}: {source}", program = .program.display())]
    Program {
        /// Its path.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The program of the NAT has ended at once.
    #[error("the NAT does not work: {0}")]
    Nat(String),
    /// The options of the NAT cannot be satisfied.
    #[error(transparent)]
    Slirp(#[from] SlirpError),
    /// The connection with the machine has failed.
    #[error("cannot communicate with the machine: {0}")]
    Conversation(#[source] io::Error),
    /// A file for packets cannot be written.
    #[error("cannot write packets to {path}: {source}", path = .path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A filter expression cannot be used.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The host gives no more threads.
    #[error("cannot start a thread for a network: {0}")]
    Thread(#[source] io::Error),
}
