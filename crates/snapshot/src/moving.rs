//! Moves a machine to another process while it runs.
//!
//! [`depart`] sends a machine, and [`Incoming`] receives one, through a socket of this host or by way of a file
//! ([`Place`]).
//!
//! * `place` names sockets and files, `channel` reads and writes them, and notices when nobody wants to wait any
//!   longer;
//! * `stream` is the form in which everything travels, `pages` that of memory;
//! * `source` is the end from which the machine comes, `target` the one to which it goes;
//! * `handing` closes the disks at one end, so that the other can open them.
//!
//! # Order of events
//!
//! The source sends the configuration and all of memory while the guest runs, and then again and again the pages
//! that were written meanwhile. When these can be sent within the allowed downtime, or do not become fewer any
//! more, the guest stands still. The source closes the disks, which gives up their locks, and sends the rest of
//! memory and the state of processor and devices. The target opens the disks and says that it is ready; only
//! then the source tells it to go on; the target says that it does, and goes on. Whatever fails leaves the machine
//! at the source, which opens its disks again and goes on.
//!
//! # Who has the machine
//!
//! The target takes it when it has read the word to go on, and has written that it does. The source lets it go when it
//! has read that. It is in doubt from its word to this answer, and waits as long as the connection stands. A
//! connection within a host loses nothing that was written to it, so if it ends without the answer, the target has not
//! taken the machine, and the source goes on. That does not hold where something between them passes the bytes on:
//! then the source, which knows this by the names of both ends, has the machine stand still until a person decides. If
//! the source dies before its word, the machine is lost as it is when it does not move: the target cannot know
//! whether the source has it.

mod channel;
mod handing;
mod pages;
mod place;
mod source;
mod stream;
mod target;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use ring3_host::listener::ListenError;
use ring3_vm::VmError;
use ring3_vm::control::{Ended, NotHere};
use thiserror::Error;

use crate::drives::RestoreDriveError;

pub use place::{BadPlace, Place};
pub use source::{Counts, News, Parameters, Progress, Stage, come_back, depart};
pub use stream::VERSION;
pub use target::{Arrived, Arriving, Incoming, announce};

/// The reasons why a machine does not move. It goes on where it was, apart from [`MoveError::InDoubt`] and
/// [`MoveError::NotBack`].
#[derive(Debug, Error)]
pub enum MoveError {
    /// Nobody waits for the machine at the place.
    #[error("cannot connect to {place}: {source}; start the other end first, with --incoming")]
    Connect {
        /// The place.
        place: String,
        /// The reason.
        source: io::Error,
    },
    /// The place is on another host.
    #[error(
        "{0} is not an address of this host alone: machines move within a host, for instance to tcp:127.0.0.1:4444"
    )]
    Elsewhere(String),
    /// It is not possible to wait at the place.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The file cannot be used.
    #[error("cannot use {path}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file cannot be made.
    #[error(transparent)]
    New(#[from] ring3_block::Error),
    /// The connection cannot be used any more.
    #[error("the transfer broke off: {0}")]
    Lost(#[source] io::Error),
    /// The machine is not complete.
    #[error("the transfer ends before the machine is complete")]
    Cut,
    /// Something else comes.
    #[error("what comes is not a machine of ring3")]
    Other,
    /// A newer version of this program sends it.
    #[error(
        "the machine comes in version {0} of the transfer, but this program knows only version {VERSION}: use the same \
         program at both ends"
    )]
    Version(u32),
    /// What has come makes no sense.
    #[error("the transfer is damaged: {0}")]
    Damaged(String),
    /// The machine has another size of memory than it should have.
    #[error(
        "the machine that comes has {found} bytes of memory instead of {expected}: start both with the same --memory"
    )]
    Memory {
        /// The size that it has.
        found: u64,
        /// The size that was asked for.
        expected: u64,
    },
    /// The machine cannot be made.
    #[error("cannot make the machine that comes: {0}")]
    Machine(#[from] VmError),
    /// A disk cannot be opened.
    #[error(transparent)]
    Drive(#[from] RestoreDriveError),
    /// The server of a disk cannot be used.
    #[error(transparent)]
    Server(#[from] ring3_disk::ClientError),
    /// A disk cannot be handed over.
    #[error("{disk} cannot be handed over: {why}")]
    Held {
        /// The disk.
        disk: String,
        /// The reason.
        why: &'static str,
    },
    /// The sectors that the guest has written over an image cannot be sent.
    #[error(transparent)]
    Copy(#[from] ring3_vm::drives::KeepDiskError),
    /// The run is recorded.
    #[error("the run is recorded, logged or repeated, and could not go on elsewhere")]
    Logged,
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// Another machine was loaded on the way.
    #[error("another machine has taken the place of the one that was to move")]
    Replaced,
    /// The drives do not answer.
    #[error(
        "the drives have not finished their work: try it again, or see what is wrong with them"
    )]
    DrivesAreBusy,
    /// A person has cancelled it.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// The other end cannot take the machine.
    #[error("the other end cannot take the machine: {0}")]
    Refused(String),
    /// The other end was told to go on, and then the connection, which is not a direct one, has broken off.
    #[error(
        "the other end was told to go on, but its answer is lost, since the connection goes through another program \
         ({0}): if the machine does not run there, let it go on here with cont; if it does, end it here with quit"
    )]
    InDoubt(#[source] Box<MoveError>),
    /// The machine is not whole here.
    #[error(transparent)]
    NotHere(#[from] NotHere),
    /// A disk cannot be opened again at the source.
    #[error(
        "the machine has not moved ({why}), and stands still, since {disk} cannot be opened again: {source}; when it \
         can be, let the machine go on with cont"
    )]
    NotBack {
        /// The disk.
        disk: String,
        /// Why it has not moved.
        why: String,
        /// Why it does not go on.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
