//! What is known of one address space, for one privilege: a window into guest memory that is filled as it is used,
//! and a table of where indirect branches go. Both are what a TLB is to a processor: they may be out of date until software
//! invalidates them, and then no longer.

mod fill;
mod invalidation;

use std::io;

use ring3_core::memory::{self, Memory, PAGE_SHIFT, PAGE_SIZE};
use ring3_x86::cpu::Cpu;
use ring3_x86::paging::{self, PageEntries};

pub(crate) use fill::{Access, Fill};

use crate::block::Second;
use crate::blocks::{Blocks, Target};
use crate::context::{BRANCH_SLOTS, index, index_mask, slot_index};
use crate::map::{Map, Set};
use crate::mode::{self, ModeNumber, SEGMENTED_INDEX_MASK};
use crate::returns::Returns;
use crate::targets::Targets;
use crate::window::Window;

/// What a page-directory entry is for, at least: 2 MiB with PAE paging, and else 4 MiB.
const DIRECTORY_STEP: u32 = 2 << 20;
/// Pages that stay mapped after they were invalidated, at most.
const MOST_STALE: usize = 32;
/// From one page to the next one that is hidden by the same call of the host, at most.
const MOST_APART: u32 = 64 << 10;
/// The largest page.
const LARGEST_PAGE: u32 = 4 << 20;

/// A page of the window.
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
    /// It is one of user code.
    is_user: bool,
    /// By the [`index`] of a linear address: where the translated code is that may be for it. Then
    /// [slots](crate::slots) for direct branches, with the code for their targets.
    table: Vec<u32>,
    segmented: Targets,
    returns: Returns,
    /// The mode of the code that they lead to.
    mode: ModeNumber,
    /// What entries of the table have that know nothing.
    miss: u32,
    /// By linear address: pages of 4 KiB, and large ones.
    small: Map<u32, Mapped>,
    large: Map<u32, Mapped>,
    fetched: Map<u32, Fetched>,
    /// The page-directory entries of all of them, by the number of the 2 MiB that they are for; none where some had
    /// another one.
    directories: Map<u32, Option<u64>>,
    /// In the space of supervisor code: the addresses of those that may not be global. Few of a kernel's many pages are.
    local: Set<u32>,
    /// The places of small pages that may be mapped for writing.
    writable: Set<usize>,
    /// How many pages inside of large ones were protected, each of which splits a mapping.
    protected: usize,
    /// The page that [`Fill::Zeros`] was for last.
    zeros: Option<u32>,
    /// Places of pages of user code that were invalidated and are still mapped, in case they are filled again before the window is used: most are, with a
    /// copy of what was there.
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
            segmented: Targets::new(miss),
            returns: Returns::new()?,
            mode: 0,
            miss,
            small: Map::default(),
            large: Map::default(),
            fetched: Map::default(),
            directories: Map::default(),
            local: Set::default(),
            writable: Set::default(),
            protected: 0,
            zeros: None,
            stale: Map::default(),
            forgotten: 0,
        })
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// The address of the jump table of code of `mode`, which is about to run, and the bits of its index.
    pub(crate) fn enter(&mut self, mode: ModeNumber) -> (u64, u32) {
        if self.mode != mode {
            // What has an address in one mode has another one, or none, in the other.
            self.returns.clear();
            self.mode = mode;
        }
        if mode::is_flat(mode) {
            (self.table.as_ptr().addr() as u64, self.index_mask())
        } else {
            (self.segmented.table(mode), SEGMENTED_INDEX_MASK)
        }
    }

    /// Another number when jump tables of segmented code that were there are no longer.
    pub(crate) fn tables_generation(&self) -> u64 {
        self.segmented.generation()
    }

    /// Where calls return to.
    pub(crate) fn returns(&mut self) -> &mut Returns {
        &mut self.returns
    }

    fn index_mask(&self) -> u32 {
        index_mask(self.is_user)
    }

    fn index(&self, linear: u32) -> usize {
        index(linear, self.index_mask()) as usize
    }

    /// How many mappings of the host there are, at most.
    pub(crate) fn mappings(&self) -> usize {
        let small = self.small.len() + self.stale.len() + self.window.hidden();
        small + self.large.len() + 2 * self.protected
    }

    /// It has pages that are to be [settled](Space::settle) before the window is used.
    pub(crate) fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Lets accesses to what was invalidated fault.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        if self.stale.is_empty() {
            return Ok(());
        }
        self.hide(self.stale.iter().map(|(page, place)| (*page, *place)).collect())?;
        self.stale.clear();
        Ok(())
    }

    /// Lets accesses to small pages fault, of which each has an address and a place.
    fn hide(&mut self, mut pages: Vec<(u32, usize)>) -> io::Result<()> {
        pages.sort_unstable();
        // Pages between which there is little, and nothing that is mapped, are one call of the host.
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

    /// The page of `linear` is mapped, alone or as part of a large one.
    fn is_mapped(&self, linear: u32) -> bool {
        self.small.contains_key(&(linear & !0xfff)) || self.large_at(linear).is_some()
    }

    /// Address and length of the large page that is mapped at `linear`.
    fn large_at(&self, linear: u32) -> Option<(u32, usize)> {
        let mut large = self.large.iter().map(|(start, mapped)| (*start, mapped.len));
        large.find(|(start, len)| (linear.wrapping_sub(*start) as usize) < *len)
    }

    /// Where indirect branches to `eip` go: to code that checks that it is for that address.
    pub(crate) fn target(&self, mode: ModeNumber, eip: u32) -> u32 {
        if mode::is_flat(mode) {
            self.table[self.index(eip)]
        } else {
            self.segmented.target(mode, eip)
        }
    }

    /// Where the table has `block`: for indirect branches, and for direct ones, with what leads there.
    fn targets(&self, block: &Target) -> [Option<(usize, u32)>; 2] {
        let slot = block.slot.map(|slot| (slot_index(self.is_user, slot) as usize, block.entry));
        [Some((self.index(block.linear), block.checked_entry)), slot]
    }

    /// Branches by the table go to `block`.
    pub(crate) fn note_target(&mut self, block: &Target) {
        if !mode::is_flat(block.mode) {
            return self.segmented.note(block);
        }
        for (index, entry) in self.targets(block).into_iter().flatten() {
            self.table[index] = entry;
        }
    }

    /// What returns lead to is forgotten.
    fn forget_returns(&mut self) {
        self.returns.clear();
        self.forgotten += 1;
    }

    /// Another number when translated code was forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Blocks are not to be reached any more; to those among them that are not `targets` the table does not lead.
    pub(crate) fn forget_blocks(&mut self, targets: &[Target]) {
        self.forget_returns();
        let is_user = self.is_user;
        for block in targets.iter().filter(|block| block.is_user == is_user) {
            self.forget_target(block);
        }
    }

    /// Branches by the table no longer go to `block`.
    fn forget_target(&mut self, block: &Target) {
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

    /// Forgets where branches by the table go.
    pub(crate) fn forget_targets(&mut self) {
        self.forget_returns();
        self.table.fill(self.miss);
        self.segmented.clear();
    }

    /// Forgets what belongs to the modes of segmented code.
    pub(crate) fn forget_modes(&mut self) {
        self.forget_returns();
        self.segmented.forget_modes();
    }

    /// The place of the instruction at `linear`; none where fetching it faults.
    pub(crate) fn fetch(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        blocks: &Blocks,
        linear: u32,
    ) -> Option<usize> {
        if let Some(place) = self.fetched(linear) {
            return Some(place);
        }
        let (page, offset) = (linear & !0xfff, (linear & 0xfff) as usize);
        let mapping = cpu.map_page(memory, linear, paging::Access::Fetch, self.is_user)?;
        let memory::Target::Place(place) = memory.read_target(mapping.address) else { return None };
        let entries = cpu.page_entries(memory, page)?;
        self.note_directory(page, &entries);
        self.note_local(page, mapping.global);
        self.fetched.insert(page, Fetched { place, entries });
        // Most of its blocks are wanted soon, and would each be looked up.
        for block in blocks.targets((place >> PAGE_SHIFT) as u32) {
            let is_here = block.linear & !0xfff == page && block.is_user == self.is_user;
            let is_known = |(linear, place)| self.fetched(linear) == Some(place);
            if is_here && block.second().is_none_or(is_known) {
                self.note_target(block);
            }
        }
        Some(place + offset)
    }

    /// Where the instruction at `linear` is, if its page was fetched from before.
    pub(crate) fn fetched(&self, linear: u32) -> Option<usize> {
        self.fetched.get(&(linear & !0xfff)).map(|known| known.place + (linear & 0xfff) as usize)
    }

    /// Code was fetched from the page of `second`, and is what a block was made from.
    pub(crate) fn has_fetched(&self, second: &Second) -> bool {
        self.fetched(second.linear) == Some(second.place)
    }

    /// No instructions are fetched from `fetched` any more.
    fn forget_fetched(&mut self, fetched: &Fetched, blocks: &Blocks) {
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

    /// The page at `place` holds code: writes to it are to fault.
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
            (large.writable && offset < large.len).then_some(start + offset as u32)
        });
        for page in parts.collect::<Vec<_>>() {
            self.protect_part(page)?;
        }
        Ok(())
    }

    /// Lets writes fault to what page tables let nobody write to, but for the supervisor where CR0.WP is clear.
    pub(crate) fn protect_read_only(&mut self) -> io::Result<()> {
        for (page, mapped) in self.small.iter_mut().chain(&mut self.large) {
            if mapped.writable && !mapped.entries.are_writable() {
                mapped.writable = false;
                self.window.protect(*page, mapped.len, false)?;
            }
        }
        Ok(())
    }

    /// Lets writes to the page at `page`, which is part of a large one, fault.
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
        self.forget_targets();
        self.window.clear()
    }
}
