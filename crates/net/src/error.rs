//! What can go wrong, in words that say what to do.

use std::io;
use std::path::PathBuf;

use ring3_host::listener::NotThisHost;
use ring3_host::socket::SocketError;
use ring3_hostnet::{FilterError, SlirpError, TapError};
use thiserror::Error;

/// Why there is no network behind a card.
#[derive(Debug, Error)]
pub enum NetError {
    /// A Unix socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// An address that other hosts reach.
    #[error(transparent)]
    NotThisHost(#[from] NotThisHost),
    /// An address at which nobody can listen.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// An address at which nobody listens.
    #[error(
        "cannot connect to {address}: {source}; start the other side first, or add reconnect=1"
    )]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A socket for datagrams.
    #[error("cannot send datagrams from {address}: {source}")]
    Datagrams {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A tap device.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// A program that is to be the network.
    #[error("cannot start {program}: {source}", program = .program.display())]
    Program {
        /// Which one.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has ended at once.
    #[error("the NAT does not work: {0}")]
    Nat(String),
    /// What it is to do.
    #[error(transparent)]
    Slirp(#[from] SlirpError),
    /// Its connection with the machine.
    #[error("the machine cannot be spoken with: {0}")]
    Conversation(#[source] io::Error),
    /// A file for packets.
    #[error("cannot write packets to {path}: {source}", path = .path.display())]
    Capture {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An expression.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The host gives no more threads.
    #[error("cannot start a thread for a network: {0}")]
    Thread(#[source] io::Error),
}
