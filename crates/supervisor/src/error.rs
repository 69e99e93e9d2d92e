//! The reasons why the supervisor, or a command to it, fails.

use std::io;
use std::path::PathBuf;

use ring3_host::socket::SocketError;
use thiserror::Error;

use crate::definition::{BadDefinition, Name};

/// See the module.
#[derive(Debug, Error)]
pub enum Error {
    /// The file with definitions cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file with definitions makes no sense.
    #[error("{path}: {reason}")]
    Configuration {
        /// The file.
        path: PathBuf,
        /// The reason, with the place in the file.
        reason: String,
    },
    /// A definition makes no sense.
    #[error(transparent)]
    Definition(#[from] BadDefinition),
    /// The directory for sockets cannot be used.
    #[error("cannot use the directory {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The directory belongs to somebody else, or others can write to it.
    #[error("the directory {0} must belong to you, and nobody else may have rights to it")]
    Strangers(PathBuf),
    /// The control socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another socket was handed over than the supervisor's.
    #[error(
        "the socket for activation must be a stream at {wanted}, and the only one; write ListenStream={wanted}"
    )]
    Activation {
        /// The path at which it should be.
        wanted: PathBuf,
    },
    /// The host gives the supervisor no means to work.
    #[error("cannot work on this host: {0}")]
    Host(#[source] io::Error),
    /// No supervisor answers.
    #[error("no supervisor answers at {socket}: {source}; start one with \"ring3 supervisor\"")]
    Absent {
        /// Its socket.
        socket: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The connection with the supervisor has ended.
    #[error("the supervisor has ended")]
    Ended,
    /// The supervisor refuses a command.
    #[error("{0}")]
    Refused(String),
}

/// The reasons why a command is refused.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The message is no command.
    #[error("the message is not a command: {0}")]
    Message(#[from] serde_json::Error),
    /// There is no such part.
    #[error("there is no machine and no server \"{0}\"")]
    Unknown(Name),
    /// A part has the name already.
    #[error(
        "there is a machine or a server \"{0}\" already; remove it first, or choose another name"
    )]
    Exists(Name),
    /// The part is not a machine.
    #[error("\"{0}\" is not a machine")]
    NoMachine(Name),
    /// The part does not run.
    #[error("\"{0}\" does not run")]
    Ended(Name),
    /// The part runs.
    #[error("\"{0}\" runs; stop it first")]
    Runs(Name),
    /// Other parts need this one.
    #[error("\"{name}\" is needed by \"{by}\"; remove that one first")]
    Needed {
        /// The part.
        name: Name,
        /// One that needs it.
        by: Name,
    },
    /// The machine has no right to the disk.
    #[error("\"{machine}\" has no right to {server}:{device}")]
    NoRight {
        /// The machine.
        machine: Name,
        /// The server.
        server: Name,
        /// The device.
        device: Name,
    },
    /// The machine has a card on the network.
    #[error("\"{machine}\" has a card on \"{switch}\" already")]
    HasCard {
        /// The machine.
        machine: Name,
        /// The switch.
        switch: Name,
    },
    /// The machine has no card on the network.
    #[error("\"{machine}\" has no card on \"{switch}\"")]
    NoCard {
        /// The machine.
        machine: Name,
        /// The switch.
        switch: Name,
    },
    /// A guest wants a machine that it may not launch.
    #[error("\"{guest}\" may not launch \"{template}\"")]
    NotLaunched {
        /// The guest's machine.
        guest: Name,
        /// The machine that it has named.
        template: Name,
    },
    /// A guest wants more machines than it may have.
    #[error("\"{guest}\" may have {limit} machines at a time; remove one first")]
    TooMany {
        /// The guest's machine.
        guest: Name,
        /// The number of machines.
        limit: u32,
    },
    /// A disk of a provider is not there.
    #[error(
        "the server \"{server}\" has no disk \"{device}\" at present: its provider must bring it first"
    )]
    Away {
        /// The server.
        server: Name,
        /// The device.
        device: Name,
    },
    /// A guest wants to give a disk that it may not bring.
    #[error("\"{0}\" brings no disks: its definition has no key \"provides\"")]
    BringsNothing(Name),
    /// A machine has got too many disks.
    #[error("\"{machine}\" has {limit} disks of this guest; take one back first")]
    TooManyDisks {
        /// The machine.
        machine: Name,
        /// The number of disks.
        limit: usize,
    },
    /// The part has ended before it was ready.
    #[error("\"{name}\" has ended at once: {reason}")]
    NotStarted {
        /// The part.
        name: Name,
        /// Its last words.
        reason: String,
    },
    /// The machine or server has not done as it was told.
    #[error("\"{name}\": {reason}")]
    Part {
        /// The part.
        name: Name,
        /// Its answer.
        reason: String,
    },
    /// A definition makes no sense.
    #[error(transparent)]
    Definition(#[from] BadDefinition),
    /// A log cannot be read.
    #[error("cannot read the log: {0}")]
    Log(#[source] io::Error),
}
