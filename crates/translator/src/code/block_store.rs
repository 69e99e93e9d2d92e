//! All translated blocks, and how they are found.

use std::cell::Cell;

use ring3_core::memory::PAGE_SHIFT;
use ring3_x86::engine::HostCode;

use crate::code::block::{Block, Operand, Second, Site};
use crate::map::{Map, Set};
use crate::mode::ModeNumber;

/// The key of a block: the linear address and the place of its first instruction, and its mode.
type Key = (u32, usize, ModeNumber);

/// The fields of a block that jump tables need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JumpTarget {
    number: u32,
    /// These fields are as in [`Block`].
    pub(crate) linear: u32,
    pub(crate) eip: u32,
    pub(crate) mode: ModeNumber,
    pub(crate) is_user: bool,
    /// Linear address and page of guest memory of the code in another page that it is made from.
    second: Option<(u32, u32)>,
    pub(crate) entry: u32,
    pub(crate) checked_entry: u32,
    pub(crate) slot: Option<u32>,
}

impl JumpTarget {
    /// Returns linear address and place of the code in another page that the block is made from, if there is
    /// any.
    pub(crate) fn second(&self) -> Option<(u32, usize)> {
        let place = |linear, page| (page as usize) << PAGE_SHIFT | (linear & 0xfff) as usize;
        self.second.map(|(linear, page)| (linear, place(linear, page)))
    }
}

/// All translated blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockStore {
    /// The blocks in the order of their code, which is the order in which they were made. Dropped blocks
    /// stay, since an instruction of one may be executing.
    all: Vec<Block>,
    /// For each 256 bytes of host code, from the first block on: the number of blocks that begin before them.
    before: Vec<u32>,
    by_start: Map<Key, usize>,
    /// Indices of the blocks by page of guest memory. A block that is made from two pages is in the lists of
    /// both, and may have been dropped with the other page.
    by_page: Map<u32, Vec<usize>>,
    /// The blocks that were ever looked up, by page of guest memory. Most blocks never are, since branches of
    /// the same page are linked with them. Dropped blocks are removed. When code is first fetched from a page
    /// in an address space, the whole list of this page is used, so it contains everything needed then.
    targets: Map<u32, Vec<JumpTarget>>,
    /// The indices of those blocks.
    looked_up: Set<usize>,
    /// The last host address that was asked for, with the indices of the block and of the site that contain it.
    /// Mostly one instruction leaves its block again and again.
    last: Cell<Option<(u32, usize, Option<usize>)>>,
}

impl BlockStore {
    /// Returns the block of the instruction at `linear`, whose place is `place`, in `mode`.
    pub(crate) fn find(&self, linear: u32, place: usize, mode: ModeNumber) -> Option<&Block> {
        self.number(linear, place, mode).map(|number| &self.all[number])
    }

    /// Returns the index of the block of the instruction at `linear`, whose place is `place`, in `mode`.
    pub(crate) fn number(&self, linear: u32, place: usize, mode: ModeNumber) -> Option<usize> {
        self.by_start.get(&(linear, place, mode)).copied()
    }

    /// Returns the block with index `number`.
    pub(crate) fn get(&self, number: usize) -> &Block {
        &self.all[number]
    }

    /// Notes that the block with index `number` was looked up.
    pub(crate) fn note_look_up(&mut self, number: usize) -> JumpTarget {
        let block = &self.all[number];
        let target = JumpTarget {
            number: number as u32,
            linear: block.linear,
            eip: block.eip,
            mode: block.mode,
            is_user: block.is_user,
            entry: block.entry,
            checked_entry: block.checked_entry,
            slot: block.slot,
            second: block.second.map(|second| (second.linear, page_of(second.place))),
        };
        if self.looked_up.insert(number) {
            for page in pages(block) {
                self.targets.entry(page).or_default().push(target);
            }
        }
        target
    }

    /// Makes direct branches to the block with index `number` go by `slot`.
    pub(crate) fn set_slot(&mut self, number: usize, slot: Option<u32>) {
        let block = &mut self.all[number];
        if block.slot == slot {
            return;
        }
        block.slot = slot;
        for page in pages(block) {
            let targets = self.targets.get_mut(&page).into_iter().flatten();
            for target in targets.filter(|target| target.number == number as u32) {
                target.slot = slot;
            }
        }
    }

    /// Adds the block whose code was just added to the code cache. Returns its index.
    pub(crate) fn add(&mut self, block: Block) -> usize {
        let index = self.all.len();
        self.by_start.insert((block.linear, block.place, block.mode), index);
        for page in pages(&block) {
            self.by_page.entry(page).or_default().push(index);
        }
        self.all.push(block);
        let chunk = self.chunk(self.all[index].checked_entry).unwrap_or_default();
        let known = self.before.len();
        self.before.resize(known.max(chunk + 1), index as u32);
        index
    }

    /// Returns the blocks that begin in a page of guest memory, or continue in it, and were ever looked up.
    pub(crate) fn targets(&self, page: u32) -> &[JumpTarget] {
        self.targets.get(&page).map_or(&[], Vec::as_slice)
    }

    /// Drops the blocks of a page of guest memory. Returns those that were ever looked up, or None if the
    /// page has no blocks.
    pub(crate) fn drop_page(&mut self, page: u32) -> Option<Vec<JumpTarget>> {
        for number in self.by_page.remove(&page)? {
            let block = &self.all[number];
            let key = (block.linear, block.place, block.mode);
            if self.by_start.get(&key) == Some(&number) {
                self.by_start.remove(&key);
            }
            for other in pages(block).filter(|other| *other != page) {
                if let Some(targets) = self.targets.get_mut(&other) {
                    targets.retain(|target| target.number != number as u32);
                }
            }
        }
        Some(self.targets.remove(&page).unwrap_or_default())
    }

    /// Returns the pages of guest memory whose blocks contain, or end at, an instruction at one of the
    /// addresses `linears`.
    pub(crate) fn pages_with(&self, linears: &[u32]) -> Set<u32> {
        let mut found = Set::default();
        let has_any =
            |start: u32, len: u32| linears.iter().any(|linear| linear.wrapping_sub(start) <= len);
        for block in &self.all {
            let is_in_second = |second: Second| has_any(second.linear, second.len() as u32);
            if has_any(block.linear, block.bytes.into()) || block.second.is_some_and(is_in_second) {
                found.extend(pages(block));
            }
        }
        found
    }

    /// Returns the block and the site that contain the host address `host`.
    pub(crate) fn at(&self, host: u32) -> Option<(&Block, Site)> {
        let known = self.last.get().filter(|(last, ..)| *last == host);
        let (_, block, site) = known.or_else(|| self.look_for(host))?;
        self.last.set(Some((host, block, site)));
        let block = &self.all[block];
        let site = match site {
            Some(index) => block.sites[index],
            // The address precedes the first site: the block has not begun.
            None => Site {
                host: block.entry,
                offset: 0,
                before: 0,
                ahead: block.sites.first().map_or(0, |first| first.ahead),
                stack_offset: 0,
                repeats: false,
                compares: false,
                counts_by_cx: false,
                modifies: false,
                is_numeric: false,
                operand: Operand::None,
                deferred: None,
                accesses_device: false,
                reads_device: false,
                transfer: None,
            },
        };
        Some((block, site))
    }

    /// Returns `host`, and the indices of the block and of the site that contain this host address.
    fn look_for(&self, host: u32) -> Option<(u32, usize, Option<usize>)> {
        let chunk = self.chunk(host)?;
        let before =
            |chunk: usize| self.before.get(chunk).map_or(self.all.len(), |count| *count as usize);
        let (first, end) = (before(chunk), before(chunk + 1));
        let after =
            first + self.all[first..end].partition_point(|block| block.checked_entry <= host);
        let number = after.checked_sub(1)?;
        let after = self.all[number].sites.partition_point(|site| site.host <= host);
        Some((host, number, after.checked_sub(1)))
    }

    /// Returns the index of the 256 bytes of host code that contain `host`, from the first block on.
    fn chunk(&self, host: u32) -> Option<usize> {
        let start = self.all.first()?.checked_entry;
        Some((host.checked_sub(start)? >> 8) as usize)
    }

    /// Returns all blocks, including dropped ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.all.iter()
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = BlockStore::default();
    }

    /// Returns where the code of each block is, up to address `end` in the last one, also of those that were dropped one
    /// by one.
    pub(crate) fn host_code(&self, end: u32) -> Vec<HostCode> {
        let start = |block: &Block| block.entry.min(block.linked_entry).min(block.checked_entry);
        let ends = self.all.iter().skip(1).map(start).chain([end]);
        let code = |(block, end): (&Block, u32)| HostCode {
            start: start(block).into(),
            len: end.saturating_sub(start(block)),
            linear: block.linear.into(),
            is_user: block.is_user,
        };
        self.all.iter().zip(ends).map(code).collect()
    }

    /// Returns the number of blocks that were made since everything was dropped.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }
}

/// Returns the page of guest memory that contains `place`.
fn page_of(place: usize) -> u32 {
    (place >> PAGE_SHIFT) as u32
}

/// Returns the pages of guest memory that a block is made from.
fn pages(block: &Block) -> impl Iterator<Item = u32> + use<> {
    let first = page_of(block.place);
    let second = block.second.map(|second| page_of(second.place));
    std::iter::once(first).chain(second.filter(|second| *second != first))
}
