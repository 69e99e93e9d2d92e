//! A space: one address space as one privilege level sees it. It has a window into guest memory, which is
//! filled as it is used, and a jump table with the targets of indirect branches. Both are like the TLB of a
//! processor: they may be out of date until software invalidates them, and no longer.

mod fill;
mod invalidation;

use std::io;

use ring3_core::memory::{self, Memory, PAGE_SHIFT, PAGE_SIZE};
use ring3_x86::cpu::Cpu;
use ring3_x86::paging::{self, PageEntries};

pub(crate) use fill::{Fill, PageAccess, is_ram, is_writable};

use crate::code::block::Second;
use crate::code::block_store::{BlockStore, JumpTarget};
use crate::context::{BRANCH_SLOTS, index, index_mask, slot_index};
use crate::map::{Map, Set};
use crate::memory::window::Window;
use crate::mode::{self, ModeNumber, SEGMENTED_INDEX_MASK};
use crate::returns::Returns;
use crate::routines;
use crate::segmented::jump_tables::SegmentedTables;

/// Bytes of linear addresses that a page-directory entry translates: 2 MiB with PAE paging. Without it they
/// are 4 MiB, which count as two such parts.
const DIRECTORY_STEP: u32 = 2 << 20;
/// Upper bound of the pages that stay mapped after they were invalidated.
const MOST_STALE: usize = 32;
/// Upper bound of the distance from one page to the next that the same call of the host hides.
const MOST_APART: u32 = 64 << 10;
/// Bytes in the largest page that is mapped as a whole. Those of 1 GiB in long mode are mapped in parts.
const LARGEST_PAGE: u32 = 4 << 20;

/// A page that is mapped in the window.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    place: usize,
    len: usize,
    writable: bool,
    entries: PageEntries,
}

/// A page that instructions were fetched from.
#[derive(Debug, Clone, Copy)]
struct Fetched {
    place: usize,
    entries: PageEntries,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Space {
    window: Window,
    /// Whether it is a space of user code.
    is_user: bool,
    /// The jump table. The entry at the [`index`] of a linear address is the host address of the translated
    /// code that may be for it. The [slots](crate::code::branch_slots) for direct branches follow, with the
    /// code for their targets.
    table: Vec<u32>,
    segmented: SegmentedTables,
    returns: Returns,
    /// The mode of the code that `returns` lead to.
    mode: ModeNumber,
    /// The entry of the jump table for addresses without code.
    miss: u32,
    /// Mapped pages by linear address: those of 4 KiB, and large ones.
    small: Map<u32, Mapped>,
    large: Map<u32, Mapped>,
    fetched: Map<u32, Fetched>,
    /// The page-directory entries of all these pages, by linear address in units of 2 MiB. None where pages
    /// were mapped by different entries.
    directories: Map<u32, Option<u64>>,
    /// In the space of supervisor code: the addresses of pages that may not be global. Of a kernel's many
    /// pages, few are not.
    local: Set<u32>,
    /// The places of small pages that may be mapped for writing.
    writable: Set<usize>,
    /// Number of pages in large ones that were protected, each of which splits a mapping of the host.
    protected: usize,
    /// Whether there are parts of pages larger than [`LARGEST_PAGE`], of which each is invalidated as a whole.
    has_huge: bool,
    /// The page for which [`Fill::Zeros`] was returned last.
    zeros: Option<u32>,
    /// Places of pages of user code, by linear address, that were invalidated but are still mapped. Most of
    /// them are filled again before the window is used, with a copy of the page, so it would be a waste to
    /// hide them at once.
    stale: Map<u32, usize>,
    /// How often translated code was forgotten.
    forgotten: u64,
}

impl Space {
    pub(crate) fn new(miss: u32, is_user: bool) -> io::Result<Space> {
        let len = index_mask(is_user) + 1 + BRANCH_SLOTS[usize::from(is_user)];
        let table = vec![miss; len as usize];
        Ok(Space {
            window: Window::new()?,
            is_user,
            table,
            segmented: SegmentedTables::new(miss),
            returns: Returns::new(routines::return_by_table as *const () as u64)?,
            mode: 0,
            miss,
            small: Map::default(),
            large: Map::default(),
            fetched: Map::default(),
            directories: Map::default(),
            local: Set::default(),
            writable: Set::default(),
            protected: 0,
            has_huge: false,
            zeros: None,
            stale: Map::default(),
            forgotten: 0,
        })
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Prepares for code of `mode` to run. Returns the address of its jump table, and the bits of an index
    /// there.
    pub(crate) fn enter(&mut self, mode: ModeNumber) -> (u64, u32) {
        if self.mode != mode {
            // The code at an address in one mode is another one, or none, in another mode.
            self.returns.clear();
            self.mode = mode;
        }
        if mode::is_flat(mode) {
            (self.table.as_ptr().addr() as u64, self.index_mask())
        } else {
            (self.segmented.table(mode), SEGMENTED_INDEX_MASK)
        }
    }

    /// Returns the address of the jump table of `mode`, that of segmented code.
    pub(crate) fn segmented_table(&mut self, mode: ModeNumber) -> u64 {
        self.segmented.table(mode)
    }

    /// Returns a number that changes when jump tables of segmented code are dropped.
    pub(crate) fn tables_generation(&self) -> u64 {
        self.segmented.generation()
    }

    /// Returns the host's stack for code of this space.
    pub(crate) fn returns(&mut self) -> &mut Returns {
        &mut self.returns
    }

    fn index_mask(&self) -> u32 {
        index_mask(self.is_user)
    }

    fn index(&self, linear: u32) -> usize {
        index(linear, self.index_mask()) as usize
    }

    /// Returns an upper bound of the number of the host's mappings for this space.
    pub(crate) fn mappings(&self) -> usize {
        let small = self.small.len() + self.stale.len() + self.window.hidden();
        small + self.large.len() + 2 * self.protected
    }

    /// Returns whether there are pages to be [settled](Space::settle) before the window is used.
    pub(crate) fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Makes accesses to all invalidated pages fault.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        if self.stale.is_empty() {
            return Ok(());
        }
        self.hide(self.stale.iter().map(|(page, place)| (*page, *place)).collect())?;
        self.stale.clear();
        Ok(())
    }

    /// Makes accesses to these small pages fault, each given by its address and its place.
    fn hide(&mut self, mut pages: Vec<(u32, usize)>) -> io::Result<()> {
        pages.sort_unstable();
        // One call of the host hides a run of pages if only little lies between them, and nothing that is
        // mapped.
        let mut rest = &pages[..];
        while !rest.is_empty() {
            let is_apart = |pages: &[(u32, usize)]| {
                let (last, next) = (pages[0].0, pages[1].0);
                let mut between = (last..next).step_by(PAGE_SIZE as usize).skip(1);
                next - last > MOST_APART || between.any(|page| self.is_mapped(page))
            };
            let len = rest.windows(2).position(is_apart).map_or(rest.len(), |index| index + 1);
            self.window.hide(&rest[..len])?;
            rest = &rest[len..];
        }
        Ok(())
    }

    /// Returns whether the page of `linear` is mapped, alone or as part of a large one.
    fn is_mapped(&self, linear: u32) -> bool {
        self.small.contains_key(&(linear & !0xfff)) || self.large_at(linear).is_some()
    }

    /// Returns address and length of the large page that is mapped at `linear`.
    fn large_at(&self, linear: u32) -> Option<(u32, usize)> {
        let mut large = self.large.iter().map(|(start, mapped)| (*start, mapped.len));
        large.find(|(start, len)| (linear.wrapping_sub(*start) as usize) < *len)
    }

    /// Returns the host address to which indirect branches to `eip` go. The code there checks that it is for
    /// this address.
    pub(crate) fn target(&self, mode: ModeNumber, eip: u32) -> u32 {
        if mode::is_flat(mode) {
            self.table[self.index(eip)]
        } else {
            self.segmented.target(mode, eip)
        }
    }

    /// Returns the entries of the jump table that belong to `block`, each with the host address it has: that
    /// for indirect branches, and that for direct ones.
    fn targets(&self, block: &JumpTarget) -> [Option<(usize, u32)>; 2] {
        let slot = block.slot.map(|slot| (slot_index(self.is_user, slot) as usize, block.entry));
        [Some((self.index(block.linear), block.checked_entry)), slot]
    }

    /// Makes branches by the jump table go to `block`.
    pub(crate) fn note_target(&mut self, block: &JumpTarget) {
        if !mode::is_flat(block.mode) {
            return self.segmented.note(block);
        }
        for (index, entry) in self.targets(block).into_iter().flatten() {
            self.table[index] = entry;
        }
    }

    /// Empties the host's stack, since code that it returns to is dropped.
    fn forget_returns(&mut self) {
        self.returns.clear();
        self.forgotten += 1;
    }

    /// Returns a number that changes when translated code is forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Forgets blocks that were dropped, of which `targets` are those that the jump table may lead to.
    pub(crate) fn forget_blocks(&mut self, targets: &[JumpTarget]) {
        self.forget_returns();
        let is_user = self.is_user;
        for block in targets.iter().filter(|block| block.is_user == is_user) {
            self.forget_target(block);
        }
    }

    /// Removes `block` from the jump table.
    fn forget_target(&mut self, block: &JumpTarget) {
        if !mode::is_flat(block.mode) {
            return self.segmented.forget(block);
        }
        for (index, entry) in self.targets(block).into_iter().flatten() {
            let known = &mut self.table[index];
            if *known == entry {
                *known = self.miss;
            }
        }
    }

    /// Empties the jump tables.
    pub(crate) fn forget_targets(&mut self) {
        self.forget_returns();
        self.table.fill(self.miss);
        self.segmented.clear();
    }

    /// Forgets everything that depends on the numbers of modes.
    pub(crate) fn forget_modes(&mut self) {
        self.forget_returns();
        self.segmented.forget_modes();
    }

    /// Returns the place of the instruction at `linear`, or None if fetching it faults.
    pub(crate) fn fetch(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        blocks: &BlockStore,
        linear: u32,
    ) -> Option<usize> {
        if let Some(place) = self.fetched(linear) {
            return Some(place);
        }
        let (page, offset) = (linear & !0xfff, (linear & 0xfff) as usize);
        let mapping = cpu.map_page(memory, linear.into(), paging::Access::Fetch, self.is_user)?;
        let memory::Target::Place(place) = memory.read_target(mapping.address) else { return None };
        let entries = cpu.page_entries(memory, page.into())?;
        self.has_huge |= mapping.size > LARGEST_PAGE;
        self.note_directory(page, &entries);
        self.note_local(page, mapping.global);
        self.fetched.insert(page, Fetched { place, entries });
        // Most blocks of the page will be needed soon. Adding them now saves looking up each.
        for block in blocks.targets((place >> PAGE_SHIFT) as u32) {
            let is_here = block.linear & !0xfff == page && block.is_user == self.is_user;
            let is_known = |(linear, place)| self.fetched(linear) == Some(place);
            if is_here && block.second().is_none_or(is_known) {
                self.note_target(block);
            }
        }
        Some(place + offset)
    }

    /// Returns the place of the instruction at `linear`, if its page was fetched from before.
    pub(crate) fn fetched(&self, linear: u32) -> Option<usize> {
        self.fetched.get(&(linear & !0xfff)).map(|known| known.place + (linear & 0xfff) as usize)
    }

    /// Returns whether code was fetched from the page of `second`, and `second` is still at the place that a
    /// block was made from.
    pub(crate) fn has_fetched(&self, second: &Second) -> bool {
        self.fetched(second.linear) == Some(second.place)
    }

    /// Forgets the blocks of `fetched`, a page from which instructions are no longer fetched.
    fn forget_fetched(&mut self, fetched: &Fetched, blocks: &BlockStore) {
        self.forget_blocks(blocks.targets((fetched.place >> PAGE_SHIFT) as u32));
    }

    fn note_local(&mut self, page: u32, is_global: bool) {
        if !self.is_user && !is_global {
            self.local.insert(page);
        }
    }

    fn note_directory(&mut self, linear: u32, entries: &PageEntries) {
        let now = Some(entries.directory);
        let known = self.directories.entry(linear / DIRECTORY_STEP).or_insert(now);
        if *known != now {
            *known = None;
        }
    }

    /// Makes writes to the page at `place`, which holds code, fault.
    pub(crate) fn protect_place(&mut self, place: usize) -> io::Result<()> {
        if self.writable.contains(&place) {
            for (page, mapped) in &mut self.small {
                if mapped.writable && mapped.place == place {
                    mapped.writable = false;
                    self.window.protect(*page, mapped.len, false)?;
                }
            }
            self.writable.remove(&place);
        }
        let parts = self.large.iter().filter_map(|(start, large)| {
            let offset = place.wrapping_sub(large.place);
            (large.writable && offset < large.len).then(|| start + offset as u32)
        });
        for page in parts.collect::<Vec<_>>() {
            self.protect_part(page)?;
        }
        Ok(())
    }

    /// Makes writes fault to pages that the page tables make read-only. The supervisor could write there
    /// while CR0.WP was clear.
    pub(crate) fn protect_read_only(&mut self) -> io::Result<()> {
        for (page, mapped) in self.small.iter_mut().chain(&mut self.large) {
            if mapped.writable && !mapped.entries.are_writable() {
                mapped.writable = false;
                self.window.protect(*page, mapped.len, false)?;
            }
        }
        Ok(())
    }

    /// Makes writes to the page at `page`, which is part of a large one, fault.
    fn protect_part(&mut self, page: u32) -> io::Result<()> {
        self.protected += 1;
        self.window.protect(page, PAGE_SIZE as usize, false)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.stale.clear();
        self.small.clear();
        self.writable.clear();
        self.large.clear();
        self.fetched.clear();
        self.directories.clear();
        self.local.clear();
        self.protected = 0;
        self.has_huge = false;
        self.forget_targets();
        self.window.clear()
    }
}
