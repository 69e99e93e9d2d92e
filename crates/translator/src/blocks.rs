//! What is translated, and where it is.

use ring3_core::memory::PAGE_SHIFT;

use crate::block::{Block, Site};
use crate::map::Map;

/// By what a block is found: the linear address and the place of its first instruction, and whether it is user code.
type Key = (u32, usize, bool);

/// All translated blocks.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// In the order of their code, which is that in which they were made. What was dropped stays, as an instruction of it
    /// may be the one that is executed.
    all: Vec<Block>,
    by_start: Map<Key, usize>,
    /// By page of memory.
    by_page: Map<u32, Vec<Key>>,
}

impl Blocks {
    /// The block of the instruction at `linear` that is at `place`.
    pub(crate) fn find(&self, linear: u32, place: usize, is_user: bool) -> Option<&Block> {
        self.by_start.get(&(linear, place, is_user)).map(|index| &self.all[*index])
    }

    /// Adds the block whose code was just added to the cache.
    pub(crate) fn add(&mut self, block: Block, place: usize, is_user: bool) {
        let key = (block.linear, place, is_user);
        self.by_start.insert(key, self.all.len());
        self.by_page.entry((place >> PAGE_SHIFT) as u32).or_default().push(key);
        if let Some(second) = block.second {
            let keys = self.by_page.entry((second >> PAGE_SHIFT) as u32).or_default();
            // It may be there since an earlier block that was dropped with its first page.
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        self.all.push(block);
    }

    /// Drops the blocks of a page of memory. Gives their addresses and those of their entries for indirect branches.
    pub(crate) fn drop_page(&mut self, page: u32) -> Vec<(u32, u32)> {
        let keys = self.by_page.remove(&page).unwrap_or_default();
        let indices = keys.iter().filter_map(|key| self.by_start.remove(key));
        indices.map(|index| (self.all[index].linear, self.all[index].checked_entry)).collect()
    }

    /// The block and the instruction whose host code address `host` is in.
    pub(crate) fn at(&self, host: u32) -> Option<(&Block, Site)> {
        let after = self.all.partition_point(|block| block.checked_entry <= host);
        let block = self.all.get(after.checked_sub(1)?)?;
        let after = block.sites.partition_point(|site| site.host <= host);
        let site = after.checked_sub(1).map(|index| block.sites[index]);
        // Before the first instruction: the block was not begun.
        Some((
            block,
            site.unwrap_or(Site {
                host: block.entry,
                offset: 0,
                before: 0,
                repeats: false,
                is_numeric: false,
            }),
        ))
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Blocks::default();
    }

    /// How many were made.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }
}
