//! All translated blocks of 64-bit code, and how they are found.

use ring3_core::memory::PAGE_SHIFT;
use ring3_x86::engine::HostCode;

use crate::long::block::{Block, Site};
use crate::long::jump_table::SLOTS;
use crate::long::strings::Walk;
use crate::map::{Map, Set};

/// The key of a block: the linear address and the place of its first instruction, and whether it is user code.
type Key = (u64, usize, bool);

/// Upper bound of the blocks for one address that are kept.
const MOST_VERSIONS: usize = 8;

/// All translated blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockStore {
    /// The blocks in the order of their code, which is the order in which they were made. Dropped blocks
    /// stay, since an instruction of one may be executing.
    all: Vec<Block>,
    by_start: Map<Key, usize>,
    /// Indices of the blocks by page of guest memory.
    by_page: Map<u32, Vec<usize>>,
    /// The indices of the latest blocks that were made for an address from different bytes, in a page that keeps
    /// changing.
    versions: Map<Key, Vec<usize>>,
}

impl BlockStore {
    /// Returns the block of the instruction at `linear`, whose place is `place`.
    pub(crate) fn find(&self, linear: u64, place: usize, is_user: bool) -> Option<&Block> {
        self.number_of(linear, place, is_user).map(|number| self.get(number))
    }

    /// Returns the number of that block.
    pub(crate) fn number_of(&self, linear: u64, place: usize, is_user: bool) -> Option<usize> {
        self.by_start.get(&(linear, place, is_user)).copied()
    }

    /// Returns the block with this number.
    pub(crate) fn get(&self, number: usize) -> &Block {
        &self.all[number]
    }

    /// Makes the block for `linear` the one that was made from the bytes `now`, if there is one. Returns its number.
    pub(crate) fn use_version(
        &mut self,
        linear: u64,
        place: usize,
        is_user: bool,
        now: &[u8],
    ) -> Option<usize> {
        let key = (linear, place, is_user);
        let is_same = |number: &usize| {
            self.all[*number].contents.as_ref().is_some_and(|contents| contents.are(now))
        };
        let number = self.versions.get(&key)?.iter().copied().find(is_same)?;
        self.by_start.insert(key, number);
        Some(number)
    }

    /// Adds the block whose code was just added to the code cache, and returns it.
    pub(crate) fn add(&mut self, block: Block) -> &Block {
        let number = self.all.len();
        let key = (block.linear, block.place, block.is_user);
        self.by_start.insert(key, number);
        if block.contents.is_some() {
            let versions = self.versions.entry(key).or_default();
            if versions.len() == MOST_VERSIONS {
                versions.remove(0);
            }
            versions.push(number);
        }
        for place in [Some(block.place), block.crosses_to].into_iter().flatten() {
            self.by_page.entry((place >> PAGE_SHIFT) as u32).or_default().push(number);
        }
        self.all.push(block);
        &self.all[number]
    }

    /// Drops the blocks of a page of guest memory. Returns the address of each, and whether it was user code.
    pub(crate) fn drop_page(&mut self, page: u32) -> Vec<(u64, bool)> {
        let numbers = self.by_page.remove(&page).unwrap_or_default();
        let mut dropped = Vec::with_capacity(numbers.len());
        for number in numbers {
            let block = &self.all[number];
            let key = (block.linear, block.place, block.is_user);
            if self.by_start.get(&key) == Some(&number) {
                self.by_start.remove(&key);
            }
            self.versions.remove(&key);
            dropped.push((block.linear, block.is_user));
        }
        dropped
    }

    /// Returns the pages of guest memory whose blocks contain an instruction at one of the addresses `linears`, or end
    /// there.
    pub(crate) fn pages_with(&self, linears: &[u64]) -> Set<u32> {
        let has_any = |block: &&Block| {
            let len = block.bytes.into();
            linears.iter().any(|linear| linear.wrapping_sub(block.linear) <= len)
        };
        self.all.iter().filter(has_any).map(|block| (block.place >> PAGE_SHIFT) as u32).collect()
    }

    /// Returns the block that contains the host address `host`, and the site there unless the block has not
    /// begun.
    pub(crate) fn at(&self, host: u32) -> Option<(&Block, Option<Site>)> {
        let after = self.all.partition_point(|block| block.entry <= host);
        let block = &self.all[after.checked_sub(1)?];
        let after = block.sites.partition_point(|site| site.host <= host);
        Some((block, after.checked_sub(1).map(|number| block.sites[number])))
    }

    /// Returns the code of all blocks, the last of which ends at the host address `end`.
    pub(crate) fn host_code(&self, end: u32) -> impl Iterator<Item = HostCode> {
        let ends = self.all.iter().skip(1).map(|block| block.entry).chain([end]);
        self.all.iter().zip(ends).map(|(block, end)| HostCode {
            start: block.entry.into(),
            len: end - block.entry,
            linear: block.linear,
            is_user: block.is_user,
        })
    }

    /// Returns the string instruction whose host code contains `host`.
    pub(crate) fn walk_at(&self, host: u32) -> Option<Walk> {
        let (block, _) = self.at(host)?;
        block.walks.iter().find(|walk| walk.contains(host)).copied()
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = BlockStore::default();
    }

    /// Returns the number of blocks that were made since everything was dropped.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }
}

/// The numbers of the slots for direct branches to other pages, by their targets: those in code of the
/// supervisor, and of users.
#[derive(Debug, Default)]
pub(crate) struct Slots([Map<u64, u32>; 2]);

impl Slots {
    /// Returns the slot for branches to `target`, if there is one.
    pub(crate) fn find(&self, target: u64, is_user: bool) -> Option<u32> {
        self.0[usize::from(is_user)].get(&target).copied()
    }

    /// Returns the slot for branches to `target`, or a new one. Returns None if all slots are in use.
    pub(crate) fn find_or_add(&mut self, target: u64, is_user: bool) -> Option<u32> {
        let slots = &mut self.0[usize::from(is_user)];
        let next = slots.len();
        if next == SLOTS[usize::from(is_user)] {
            return slots.get(&target).copied();
        }
        Some(*slots.entry(target).or_insert(next as u32))
    }

    /// Forgets all slots.
    pub(crate) fn clear(&mut self) {
        *self = Slots::default();
    }
}
