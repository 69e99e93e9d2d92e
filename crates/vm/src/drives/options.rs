//! The options of an image, in QEMU's words (QEMU, "Disk Images" and `-drive`).

use ring3_block::{Format, Secret};

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
    pub(super) fn bytes(self) -> u64 {
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

/// The treatment of writes before the guest flushes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// Whether writes may wait for a flush. If not, each is on stable storage before it is answered.
    pub writeback: bool,
    /// Whether reads and writes bypass the host's cache (`O_DIRECT`).
    pub direct: bool,
    /// Whether a flush hands data to the host without waiting until they are on stable storage. After a crash
    /// of the host the contents are undefined.
    pub no_flush: bool,
}

impl Default for Cache {
    /// Returns QEMU's `writeback`.
    fn default() -> Cache {
        Cache { writeback: true, direct: false, no_flush: false }
    }
}

impl Cache {
    /// QEMU's words for the modes.
    pub const MODES: [(&str, Cache); 5] = [
        ("writeback", Cache { writeback: true, direct: false, no_flush: false }),
        ("none", Cache { writeback: true, direct: true, no_flush: false }),
        ("unsafe", Cache { writeback: true, direct: false, no_flush: true }),
        ("writethrough", Cache { writeback: false, direct: false, no_flush: false }),
        ("directsync", Cache { writeback: false, direct: true, no_flush: false }),
    ];

    /// Returns the mode for which `word` stands.
    pub fn of_mode(word: &str) -> Option<Cache> {
        Cache::MODES.iter().find(|(mode, _)| *mode == word).map(|(_, cache)| *cache)
    }
}

/// The treatment of writes of zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DetectZeroes {
    /// They are written like other data.
    #[default]
    Off,
    /// They are noted as zeros if the format or the host can do so; a raw image keeps its room.
    On,
    /// They free their room.
    Unmap,
}

impl DetectZeroes {
    /// Returns QEMU's word for it.
    pub fn word(self) -> &'static str {
        match self {
            DetectZeroes::Off => "off",
            DetectZeroes::On => "on",
            DetectZeroes::Unmap => "unmap",
        }
    }

    /// Returns the treatment for which `word` stands.
    pub fn of_word(word: &str) -> Option<DetectZeroes> {
        let all = [DetectZeroes::Off, DetectZeroes::On, DetectZeroes::Unmap];
        all.into_iter().find(|detects| detects.word() == word)
    }
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
