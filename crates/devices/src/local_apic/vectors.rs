//! A register of 256 bits, one for each vector: ISR, TMR and IRR.

use serde::{Deserialize, Serialize};

/// A set of vectors, in the eight 32-bit words that the guest reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VectorSet([u32; 8]);

impl VectorSet {
    /// Word `index` (0 to 7): vectors 32 * `index` and up. 0 past the end.
    pub(super) fn word(&self, index: usize) -> u32 {
        self.0.get(index).copied().unwrap_or_default()
    }

    pub(super) fn contains(&self, vector: u8) -> bool {
        self.word(usize::from(vector / 32)) >> (vector % 32) & 1 != 0
    }

    pub(super) fn set(&mut self, vector: u8, present: bool) {
        let (word, bit) = (&mut self.0[usize::from(vector / 32)], 1 << (vector % 32));
        *word = if present { *word | bit } else { *word & !bit };
    }

    /// The highest vector, which is that of the highest priority.
    pub(super) fn highest(&self) -> Option<u8> {
        let index = self.0.iter().rposition(|word| *word != 0)?;
        Some(index as u8 * 32 + self.0[index].ilog2() as u8)
    }

    /// True when one of the vectors 0 to 15 is in it, which are no interrupts.
    pub(super) fn has_illegal(&self) -> bool {
        self.0[0] & 0xffff != 0
    }
}
