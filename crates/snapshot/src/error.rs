//! Why a machine is not saved, or not read.

use std::io;
use std::path::PathBuf;

use ring3_vm::control::KeepError;
use ring3_vm::drives::KeepDiskError;
use thiserror::Error;

use crate::format::VERSION;

/// The reasons why a machine is not saved. Nothing of it remains then.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The file cannot be made.
    #[error(transparent)]
    File(#[from] ring3_block::Error),
    /// The file cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// There is something else of this name.
    #[error("{path} is not a file, so no machine can be saved there: give another name", path = .0.display())]
    NotAFile(PathBuf),
    /// The machine has no moment that could be kept.
    #[error(transparent)]
    Machine(#[from] KeepError),
    /// A disk cannot be kept.
    #[error("{disk}: {source}")]
    Disk {
        /// The file of the disk, or the name of the drive.
        disk: String,
        /// The reason.
        source: KeepDiskError,
    },
}

/// The reasons why the file of a saved machine cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The host cannot read it.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is something else.
    #[error("{path} is not a saved machine of ring3", path = .0.display())]
    Other(PathBuf),
    /// A newer version of this program wrote it.
    #[error(
        "{path} has version {found}, but this program knows versions up to {VERSION}: use the program that saved it",
        path = .path.display()
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It was cut or changed.
    #[error("{path} is damaged, so it cannot be used: {reason}", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A snapshot in the image of a disk cannot be deleted.
    #[error(transparent)]
    Image(#[from] ring3_block::Error),
    /// A snapshot in a disk of a running machine cannot be deleted.
    #[error(transparent)]
    Disk(#[from] KeepDiskError),
}
