//! The treatment of writes, in QEMU's words (QEMU, "Disk Images" and `-drive`).

use serde::{Deserialize, Serialize};

/// The treatment of writes before the guest flushes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
