//! What is translated, and where it is.

use ring3_core::memory::PAGE_SHIFT;

use crate::block::{Block, Site};
use crate::map::Map;
use crate::mode::ModeNumber;

/// By what a block is found: the linear address and the place of its first instruction, and its mode.
type Key = (u32, usize, ModeNumber);

/// All translated blocks.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// In the order of their code, which is that in which they were made. What was dropped stays, as an instruction of it
    /// may be the one that is executed.
    all: Vec<Block>,
    /// By the 256 bytes of host code that an address is in, from the first block on: how many blocks begin before them.
    before: Vec<u32>,
    by_start: Map<Key, usize>,
    /// By page of memory. One that is made from two pages is in the lists of both, and may have been dropped with the other.
    by_page: Map<u32, Vec<usize>>,
}

impl Blocks {
    /// The block of the instruction at `linear` that is at `place`.
    pub(crate) fn find(&self, linear: u32, place: usize, mode: ModeNumber) -> Option<&Block> {
        self.number(linear, place, mode).map(|number| &self.all[number])
    }

    /// The number of the same block.
    pub(crate) fn number(&self, linear: u32, place: usize, mode: ModeNumber) -> Option<usize> {
        self.by_start.get(&(linear, place, mode)).copied()
    }

    /// The block of that number.
    pub(crate) fn get(&mut self, number: usize) -> &mut Block {
        &mut self.all[number]
    }

    /// Adds the block whose code was just added to the cache, and gives its number.
    pub(crate) fn add(&mut self, block: Block) -> usize {
        let index = self.all.len();
        self.by_start.insert((block.linear, block.place, block.mode), index);
        for place in std::iter::once(block.place).chain(block.second.map(|second| second.place)) {
            self.by_page.entry((place >> PAGE_SHIFT) as u32).or_default().push(index);
        }
        self.all.push(block);
        let part = self.part(self.all[index].checked_entry).unwrap_or_default();
        let known = self.before.len();
        self.before.resize(known.max(part + 1), index as u32);
        index
    }

    /// The blocks that begin in a page of memory, or go on in it.
    pub(crate) fn in_page(&self, page: u32) -> impl Iterator<Item = &Block> {
        let indices = self.by_page.get(&page).map_or(&[][..], Vec::as_slice);
        indices.iter().map(|index| &self.all[*index])
    }

    /// Drops the blocks of a page of memory, and gives them.
    pub(crate) fn drop_page(&mut self, page: u32) -> impl Iterator<Item = &Block> {
        let indices = self.by_page.remove(&page).unwrap_or_default();
        for index in &indices {
            let block = &self.all[*index];
            let key = (block.linear, block.place, block.mode);
            if self.by_start.get(&key) == Some(index) {
                self.by_start.remove(&key);
            }
        }
        indices.into_iter().map(|index| &self.all[index])
    }

    /// The block and the instruction whose host code address `host` is in.
    pub(crate) fn at(&self, host: u32) -> Option<(&Block, Site)> {
        let part = self.part(host)?;
        let before =
            |part: usize| self.before.get(part).map_or(self.all.len(), |count| *count as usize);
        let (first, end) = (before(part), before(part + 1));
        let after =
            first + self.all[first..end].partition_point(|block| block.checked_entry <= host);
        let block = &self.all[after.checked_sub(1)?];
        let after = block.sites.partition_point(|site| site.host <= host);
        let site = after.checked_sub(1).map(|index| block.sites[index]);
        // Before the first instruction: the block was not begun.
        Some((
            block,
            site.unwrap_or(Site {
                host: block.entry,
                offset: 0,
                before: 0,
                counted: block.sites.first().map_or(0, |first| first.counted),
                stack_offset: 0,
                repeats: false,
                compares: false,
                is_numeric: false,
                loads: None,
            }),
        ))
    }

    /// Which 256 bytes of host code, from the first block on, `host` is in.
    fn part(&self, host: u32) -> Option<usize> {
        let start = self.all.first()?.checked_entry;
        Some((host.checked_sub(start)? >> 8) as usize)
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
