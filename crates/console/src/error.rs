//! The reasons why a console fails.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ring3_host::socket::SocketError;
use ring3_supervisor::definition::Name;
use thiserror::Error;

/// See the module.
#[derive(Debug, Error)]
pub enum Error {
    /// The supervisor does not answer, or refuses a command.
    #[error(transparent)]
    Supervisor(#[from] ring3_supervisor::error::Error),
    /// A socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The host gives the server no means to work.
    #[error("cannot work on this host: {0}")]
    Host(#[source] io::Error),
    /// The name that a new server would have is in use.
    #[error(
        "no server of consoles is defined, and \"{0}\" is the name of something else; define one with \"ring3 ctl launch NAME --kind console\""
    )]
    NameTaken(Name),
    /// The page cannot be served at a port.
    #[error("cannot serve the page at {address}: {source}; choose another port, or 0 for any")]
    Port {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// The file with the token cannot be used.
    #[error("cannot use {path} for the token: {source}")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The directory with images cannot be read.
    #[error("cannot read {path}, the directory with images: {source}")]
    Media {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The server of consoles does not answer.
    #[error(
        "the server of consoles \"{name}\" does not answer: {source}; see \"ring3 ctl log {name}\""
    )]
    Absent {
        /// The server.
        name: Name,
        /// The reason.
        source: io::Error,
    },
    /// The connection with the server has ended.
    #[error("the server of consoles has ended")]
    Ended,
    /// The server refuses a command.
    #[error("{0}")]
    Refused(String),
    /// There is no such machine.
    #[error("there is no machine \"{0}\"; \"ring3 ctl query\" lists those that there are")]
    NoMachine(Name),
    /// Text cannot be written.
    #[error("cannot write the list: {0}")]
    Output(#[source] io::Error),
    /// A person cannot see and type here.
    #[error("there is no terminal to show this: {0}")]
    Terminal(#[source] io::Error),
}
