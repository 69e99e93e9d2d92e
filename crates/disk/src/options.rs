//! The options of an image.

use ring3_block::{Format, Secret};
use ring3_vm::drives::{Cache, DetectZeroes};

/// The size of a medium's sectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes: hard disks and floppies.
    #[default]
    Disk,
    /// 2048 bytes: CDs and DVDs.
    CdRom,
}

impl BlockSize {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            BlockSize::Disk => ring3_core::disk::SECTOR_SIZE as u64,
            BlockSize::CdRom => 2048,
        }
    }
}

/// The accesses to an image that are allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Reads. Others may read the image at the same time.
    #[default]
    ReadOnly,
    /// Reads and writes. Nobody else may use the image.
    ReadWrite,
}

/// The options of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// The image's format. Without it the first bytes decide.
    pub format: Option<Format>,
    /// The accesses that are allowed.
    pub access: Access,
    /// The size of the medium's sectors.
    pub block: BlockSize,
    /// The treatment of writes before a flush.
    pub cache: Cache,
    /// The treatment of writes of zeros.
    pub detect_zeroes: DetectZeroes,
    /// Whether the image gives up the room of sectors that the guest discards, or fills with zeros and allows
    /// to be discarded. If not, such hints are ignored.
    pub discard: bool,
    /// Whether files that the image names stay closed: its backing file, and files with parts of its data.
    /// Opening an image that needs them fails.
    pub no_external_files: bool,
    /// The password of an encrypted image.
    pub secret: Option<Secret>,
    /// The snapshot in the image that shows the disk, instead of its present state. Only for reading.
    pub shows: Option<String>,
}
