//! The state of a drive's disk that belongs to a saved machine.

use std::error::Error;
use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where the contents of a disk are found that belong to a saved machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeptDisk {
    /// The drive is empty.
    NoMedium,
    /// In the drive's file, which the guest cannot change.
    InFile,
    /// In the drive's file, in a snapshot with this name.
    InSnapshot(String),
    /// In the drive's file, which the guest cannot change, or in a snapshot in it with this name, under the
    /// sectors that the guest has written ([`WrittenSectors`]).
    UnderWrites(Option<String>),
}

/// Takes sectors that the guest has written: the number of the first sector, and the contents of whole
/// sectors from there on.
pub type WrittenSectors<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

/// The reasons why the contents of a disk cannot be kept.
#[derive(Debug, Error)]
pub enum KeepDiskError {
    /// The image has no way to keep them.
    #[error(
        "an image in the format {0} cannot keep the disk of this moment: convert it to qcow2 (ring3 img convert -O qcow2), \
         or attach it with snapshot=on"
    )]
    Format(&'static str),
    /// The disk is one of a server.
    #[error("a server has the disk, and cannot keep the disk of this moment")]
    Served,
    /// The image cannot be changed.
    #[error(transparent)]
    Image(Box<dyn Error + Send + Sync>),
    /// The sectors that the guest has written cannot be read or written elsewhere.
    #[error("cannot copy what the guest has written: {0}")]
    Copy(#[from] io::Error),
}
