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
    /// Reads; others may read it at the same time.
    #[default]
    ReadOnly,
    /// Reads and writes; nobody else may use it.
    ReadWrite,
}

/// The options of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Its format. Without it the first bytes decide.
    pub format: Option<Format>,
    /// The accesses that are allowed.
    pub access: Access,
    /// The size of its sectors.
    pub block: BlockSize,
    /// The treatment of writes before a flush.
    pub cache: Cache,
    /// The treatment of writes of zeros.
    pub detect_zeroes: DetectZeroes,
    /// Whether sectors that the guest discards, or makes zero and allows to be discarded, free their room. If
    /// not, such hints are ignored.
    pub discard: bool,
    /// Whether no files are opened that the image names: no backing file, and no file with a part of its
    /// data.
    pub no_external_files: bool,
    /// The password of an encrypted image.
    pub secret: Option<Secret>,
}
