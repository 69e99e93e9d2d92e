//! The blocks of guest code in which most instructions are executed, while somebody outside counts
//! instructions. Where a block ends is the engine's business, so the engines have different blocks.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::cpu::Cpu;

/// The most blocks that are told apart; others are not counted.
const MOST: usize = 1 << 20;

/// A block of guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotBlock {
    /// The linear address of its first instruction.
    pub linear: u64,
    /// Whether the privilege level was 3.
    pub is_user: bool,
    /// The number of instructions that were executed in it.
    pub instructions: u64,
}

/// The blocks so far.
#[derive(Debug, Clone, Default)]
pub struct HotBlocks(HashMap<(u64, bool), u64>);

impl HotBlocks {
    /// Adds `instructions` executed instructions of the block at `linear`.
    pub fn add(&mut self, linear: u64, is_user: bool, instructions: u64) {
        let key = (linear, is_user);
        if self.0.len() < MOST || self.0.contains_key(&key) {
            let count = self.0.entry(key).or_default();
            *count = count.saturating_add(instructions);
        }
    }

    /// Adds all blocks of `other`.
    pub fn add_all(&mut self, other: HotBlocks) {
        for ((linear, is_user), instructions) in other.0 {
            self.add(linear, is_user, instructions);
        }
    }

    /// Returns the `most` hottest blocks, the hottest first.
    pub fn hottest(&self, most: usize) -> Vec<HotBlock> {
        let blocks = self.0.iter().map(|((linear, is_user), instructions)| HotBlock {
            linear: *linear,
            is_user: *is_user,
            instructions: *instructions,
        });
        let mut all: Vec<_> = blocks.collect();
        all.sort_by_key(|block| (Reverse(block.instructions), block.linear, block.is_user));
        all.truncate(most);
        all
    }
}

impl Cpu {
    /// Returns the blocks, for an engine that adds to them.
    #[inline]
    pub fn hot_blocks_mut(&mut self) -> Option<&mut HotBlocks> {
        self.counting.blocks.as_deref_mut()
    }

    /// Returns the blocks so far, while they are wanted outside.
    pub fn hot_blocks(&self) -> Option<&HotBlocks> {
        self.counting.blocks.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_comes_first_and_hostile_code_fills_no_memory() {
        let mut blocks = HotBlocks::default();
        for linear in 0..MOST as u64 {
            blocks.add(linear, false, 1);
        }
        blocks.add(u64::MAX, true, 1000);
        blocks.add(5, false, 2);
        assert_eq!(blocks.0.len(), MOST);
        let [first, second] = blocks.hottest(2)[..] else { panic!("there are two") };
        assert_eq!(first, HotBlock { linear: 5, is_user: false, instructions: 3 });
        assert_eq!((second.linear, second.instructions), (0, 1));
    }
}
