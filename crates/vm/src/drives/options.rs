//! How an image is used, in QEMU's words (QEMU, "Disk Images" and `-drive`).

use ring3_block::{Format, Secret};

/// What the sectors of a medium are.
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

/// What may be done with an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// It is read, and others may read it at the same time.
    #[default]
    ReadOnly,
    /// It is read and written, and nobody else may use it.
    ReadWrite,
}

/// What becomes of writes before the guest flushes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// They may wait for a flush; if not, each is kept for certain before it is answered.
    pub writeback: bool,
    /// They and reads go past the host's cache (`O_DIRECT`).
    pub direct: bool,
    /// A flush hands them to the host, and does not wait until it has kept them: what there is after a crash of the host is anything.
    pub no_flush: bool,
}

impl Default for Cache {
    /// QEMU's `writeback`.
    fn default() -> Cache {
        Cache { writeback: true, direct: false, no_flush: false }
    }
}

impl Cache {
    /// QEMU's words for it.
    pub const MODES: [(&str, Cache); 5] = [
        ("writeback", Cache { writeback: true, direct: false, no_flush: false }),
        ("none", Cache { writeback: true, direct: true, no_flush: false }),
        ("unsafe", Cache { writeback: true, direct: false, no_flush: true }),
        ("writethrough", Cache { writeback: false, direct: false, no_flush: false }),
        ("directsync", Cache { writeback: false, direct: true, no_flush: false }),
    ];

    /// What `word` is for.
    pub fn of_mode(word: &str) -> Option<Cache> {
        Cache::MODES.iter().find(|(mode, _)| *mode == word).map(|(_, cache)| *cache)
    }
}

/// What becomes of writes that are zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DetectZeroes {
    /// They are written.
    #[default]
    Off,
    /// They are noted as zeros where the format or the host can; a raw image keeps its room.
    On,
    /// They take no room.
    Unmap,
}

impl DetectZeroes {
    /// QEMU's word for it.
    pub fn word(self) -> &'static str {
        match self {
            DetectZeroes::Off => "off",
            DetectZeroes::On => "on",
            DetectZeroes::Unmap => "unmap",
        }
    }

    /// What `word` is for.
    pub fn of_word(word: &str) -> Option<DetectZeroes> {
        let all = [DetectZeroes::Off, DetectZeroes::On, DetectZeroes::Unmap];
        all.into_iter().find(|detects| detects.word() == word)
    }
}

/// How an image is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Its format; what it begins like, if none is given.
    pub format: Option<Format>,
    /// What may be done with it.
    pub access: Access,
    /// What its sectors are.
    pub block: BlockSize,
    /// What becomes of writes.
    pub cache: Cache,
    /// What becomes of writes that are zeros.
    pub detect_zeroes: DetectZeroes,
    /// What the guest does not need any more, or makes zeros of, takes no room where the guest allows it; if not, hints of that are
    /// ignored.
    pub discard: bool,
    /// Nothing is opened that the image names: no backing file, no file with a part of its data.
    pub no_external_files: bool,
    /// The password of an encrypted image.
    pub secret: Option<Secret>,
}
