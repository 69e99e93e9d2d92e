//! A space of 64-bit code: one address space as one privilege level sees it. It has
//! [units](crate::memory::units) of the host's addresses, in which guest memory is mapped as it is used, and a
//! jump table with the targets of branches. Both are like the TLB of a processor: they may be out of date until
//! software invalidates them, and no longer.

mod comparisons;
mod layout;

use std::collections::BTreeMap;
use std::{io, mem};

use ring3_core::memory::{Memory, PAGE_SHIFT, PAGE_SIZE, Target};
use ring3_x86::cpu::Cpu;
use ring3_x86::paging::{Access, PageEntries, PageMapping};

use crate::long::distances::Distances;
use crate::long::jump_table::JumpTable;
use crate::map::Set;
use crate::memory::host_memory::{GuestFile, PAGE};
use crate::memory::space::{Fill, is_ram, is_writable};
use crate::memory::units::{Owning, first_of, unit_of};
use crate::returns::Returns;
use comparisons::{Comparisons, Now, Rights};

/// Bytes that are mapped together of a page of the guest that has as many or more.
const LARGE: u64 = 2 << 20;
/// Upper bound of the pages that are mapped on each side of a page that is filled.
const NEIGHBOURS: u64 = 16;

/// Memory that is mapped: a page, or [`LARGE`] bytes of a larger one.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    place: usize,
    len: usize,
    writable: bool,
    /// Whether loads of CR3 leave it mapped.
    is_global: bool,
    /// The size of the guest's page that it belongs to.
    size: u32,
    /// Guest-physical address.
    address: u64,
    entries: PageEntries,
}

/// See [`LongSpace::local`].
#[derive(Debug, Default)]
struct Locals {
    mapped: Set<u64>,
    fetched: Set<u64>,
}

/// A page that instructions were fetched from.
#[derive(Debug, Clone, Copy)]
struct Fetched {
    place: usize,
    is_global: bool,
    address: u64,
    entries: PageEntries,
}

/// The host code to which spaces lead where they have none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stubs {
    /// Looks for the code for the target of a direct branch.
    pub(crate) miss: u32,
    /// The landing of an empty stack of returns.
    pub(crate) landing: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LongSpace {
    is_user: bool,
    pub(crate) units: Distances,
    pub(crate) table: JumpTable,
    /// The host's stack while code of this space runs.
    pub(crate) returns: Returns,
    /// Units in which the supervisor has accessed memory of users, and of its own none was mapped then. The
    /// supervisor's space does not own them.
    of_users: Set<i64>,
    /// What is mapped, by linear address.
    mapped: BTreeMap<u64, Mapped>,
    /// Pages that instructions were fetched from, by linear address.
    fetched: BTreeMap<u64, Fetched>,
    /// In the supervisor's space: addresses of what is not global in `mapped` and `fetched`, beside others. Loads of CR3
    /// are frequent, and most of the supervisor's memory is global.
    local: Locals,
    comparisons: Comparisons,
    /// The rights that entries of page tables gave when all was compared with them last.
    rights: Option<Rights>,
    /// The size of the guest's largest page of which something is in `mapped` or `fetched`, or was since the space was
    /// empty.
    largest: u64,
    /// Number of pages in large ones that were protected, each of which splits a mapping of the host.
    protected: usize,
}

impl LongSpace {
    /// Returns an empty space.
    pub(crate) fn new(is_user: bool, stubs: Stubs) -> io::Result<LongSpace> {
        Ok(LongSpace {
            is_user,
            units: Distances::new(is_user),
            of_users: Set::default(),
            table: JumpTable::new(is_user, stubs.miss),
            returns: Returns::new(stubs.landing.into())?,
            mapped: BTreeMap::new(),
            fetched: BTreeMap::new(),
            local: Locals::default(),
            comparisons: Comparisons::default(),
            rights: None,
            largest: PAGE_SIZE,
            protected: 0,
        })
    }

    /// Returns the number whose sum with RSP is 0 while the stack of returns is empty.
    pub(crate) fn no_returns(&self) -> u64 {
        self.returns.empty().wrapping_neg()
    }

    /// Forgets all targets of branches.
    pub(crate) fn forget_targets(&mut self) {
        self.table.clear();
        self.returns.clear();
    }

    /// Returns an upper bound of the number of the host's mappings for this space.
    pub(crate) fn mappings(&self) -> usize {
        self.mapped.len() + 2 * self.protected
    }

    /// Makes `unit` one that is owned, in whatever group of units. If there was no room for it before, it is
    /// asked for `again`.
    pub(crate) fn own(&mut self, unit: i64, again: bool) -> Owning {
        if self.of_users.contains(&unit) {
            return Owning::Refused;
        }
        let mapped = &mut self.mapped;
        self.units.own(unit, again, |dropped| {
            mapped.retain(|linear, _| unit_of(*linear) != dropped);
        })
    }

    /// Leaves `unit`, in which the supervisor has accessed memory of users, to the space of users, unless
    /// anything is mapped there.
    pub(crate) fn leave_to_users(&mut self, unit: i64) {
        if self
            .mapped
            .range(first_of(unit)..)
            .next()
            .is_none_or(|(linear, _)| unit_of(*linear) != unit)
        {
            self.units.disown(unit);
            self.of_users.insert(unit);
        }
    }

    /// Returns whether `unit` was left to the space of users.
    pub(crate) fn is_of_users(&self, unit: i64) -> bool {
        self.of_users.contains(&unit)
    }

    /// Unmaps everything, and gives all units back.
    pub(crate) fn clear_windows(&mut self) {
        self.units.clear();
        self.mapped.clear();
        self.protected = 0;
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.clear_windows();
        self.of_users.clear();
        self.fetched.clear();
        self.largest = PAGE_SIZE;
        self.forget_targets();
    }

    /// Returns the place of the instruction at `linear`, or None if fetching it faults.
    pub(crate) fn fetch(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        linear: u64,
    ) -> Option<usize> {
        let (page, offset) = (linear & !0xfff, (linear & 0xfff) as usize);
        if let Some(known) = self.fetched.get(&page) {
            return Some(known.place + offset);
        }
        let mapping = cpu.map_page(memory, linear, Access::Fetch, self.is_user)?;
        let Target::Place(place) = memory.read_target(mapping.address) else { return None };
        let entries = cpu.page_entries(memory, page)?;
        let (address, is_global) = (mapping.address, mapping.global);
        self.largest = self.largest.max(mapping.size.into());
        self.note_fetched(page, Fetched { place, is_global, address, entries });
        Some(place + offset)
    }

    /// Returns whether fetching the instruction at `linear` changes nothing, not even an accessed bit.
    pub(crate) fn has_fetched(&self, cpu: &Cpu, memory: &Memory, linear: u64) -> bool {
        self.fetched.contains_key(&(linear & !0xfff))
            || cpu.page_in_advance(memory, linear, Access::Fetch, self.is_user).is_some()
    }

    /// Returns the place of the page behind that of `linear`, if fetching instructions there changes nothing.
    pub(crate) fn next_page(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        linear: u64,
    ) -> Option<usize> {
        let next = (linear | 0xfff).wrapping_add(1);
        let is_known = self.has_fetched(cpu, memory, next);
        is_known.then(|| self.fetch(cpu, memory, next)).flatten()
    }

    /// Maps the page of `linear`, whose unit is owned, after an access has faulted there.
    pub(crate) fn fill(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        file: &GuestFile,
        linear: u64,
        writes: bool,
    ) -> io::Result<Fill> {
        let access = if writes { Access::Write } else { Access::Read };
        let Some(mapping) = cpu.map_page(memory, linear, access, self.is_user) else {
            return Ok(Fill::Faults);
        };
        let Target::Place(place) = memory.read_target(mapping.address) else {
            return Ok(Fill::Interpret);
        };
        if mapping.user && !self.is_user {
            return Ok(Fill::OfUser);
        }
        if writes && !is_ram(memory, &mapping, place) {
            return Ok(Fill::Interpret);
        }
        if writes {
            memory.note_write(place);
            if !memory.is_plain(place) {
                return Ok(Fill::WritesCode((place >> PAGE_SHIFT) as u32));
            }
        }
        let page = linear & !0xfff;
        let Some(entries) = cpu.page_entries(memory, page) else { return Ok(Fill::Faults) };
        if u64::from(mapping.size) >= LARGE && !memory.is_watching() {
            let start = linear & !(LARGE - 1);
            let address = mapping.address - (page - start);
            let place = memory.run_of_places(address, LARGE);
            if let Some(place) = place.filter(|place| file.has(*place, LARGE as usize)) {
                return self
                    .fill_large(memory, file, start, page, place, address, &mapping, entries);
            }
        }
        self.unmap_large_at(page)?;
        let (mut start, mut end, mut first) = (page, page + PAGE_SIZE, place);
        let writable = is_writable(memory, &mapping, place);
        let new = |place, mapping: &PageMapping, entries| Mapped {
            place,
            len: PAGE,
            writable,
            is_global: mapping.global,
            size: mapping.size,
            address: mapping.address,
            entries,
        };
        // Pages that are compared all the time had better be accessed, too.
        let were_in_vain = self.comparisons.were_in_vain(cpu.instructions);
        let neighbours = if were_in_vain { 0 } else { NEIGHBOURS };
        let mut pages = vec![(page, new(place, &mapping, entries))];
        for forward in [true, false] {
            for _ in 0..neighbours {
                let (next, at) = if forward {
                    (end, first + (end - start) as usize)
                } else {
                    (start.wrapping_sub(PAGE_SIZE), first.wrapping_sub(PAGE))
                };
                // Only pages of the same page table, so of the same unit.
                if next & !(LARGE - 1) != page & !(LARGE - 1) || self.mapped.contains_key(&next) {
                    break;
                }
                let known = cpu.page_in_advance(memory, next, Access::Read, self.is_user);
                let Some((neighbour, entries)) = known else { break };
                if memory.read_target(neighbour.address) != Target::Place(at)
                    || neighbour.user != mapping.user
                    || neighbour.size != mapping.size
                    || is_writable(memory, &neighbour, at) != writable
                    || !file.comes_with(at, place)
                {
                    break;
                }
                pages.push((next, new(at, &neighbour, entries)));
                if forward {
                    end += PAGE_SIZE;
                } else {
                    (start, first) = (next, at);
                }
            }
        }
        if let Err(error) = self.units.map(start, (end - start) as usize, file, first, writable) {
            // The run of pages must not stay mapped in part.
            self.clear_windows();
            return Err(error);
        }
        for (start, new) in pages {
            self.note_mapped(start, new);
        }
        Ok(Fill::Done)
    }

    /// Maps the [`LARGE`] bytes at `start`, of which `page` was accessed, or again only that page, if it was
    /// protected since it held code. They are at `place`, and at the guest-physical address `address`.
    #[allow(clippy::too_many_arguments, reason = "they all belong to one mapping")]
    fn fill_large(
        &mut self,
        memory: &Memory,
        file: &GuestFile,
        start: u64,
        page: u64,
        place: usize,
        address: u64,
        mapping: &PageMapping,
        entries: PageEntries,
    ) -> io::Result<Fill> {
        let offset = (page - start) as usize;
        let writable = is_writable(memory, mapping, place + offset);
        let known = self.mapped.get(&start).filter(|known| known.len > PAGE);
        if known.is_some_and(|known| known.address == address && known.writable == mapping.writable)
        {
            self.units.map(page, PAGE, file, place + offset, writable)?;
            return Ok(Fill::Done);
        }
        let new = Mapped {
            place,
            len: LARGE as usize,
            writable: mapping.writable,
            is_global: mapping.global,
            size: mapping.size,
            address,
            entries,
        };
        let parts: Vec<_> = self.mapped.range(start..start + LARGE).map(|(at, _)| *at).collect();
        for part in parts {
            self.mapped.remove(&part);
        }
        let mut map = || {
            self.units.map(start, new.len, file, place, new.writable)?;
            let must_be_protected = |offset: &usize| {
                let page = PageMapping { address: address + *offset as u64, ..*mapping };
                new.writable && !is_writable(memory, &page, place + offset)
            };
            let mut offsets = (0..new.len).step_by(PAGE).filter(must_be_protected).peekable();
            while let Some(offset) = offsets.next() {
                let mut len = PAGE;
                while offsets.next_if_eq(&(offset + len)).is_some() {
                    len += PAGE;
                }
                self.protected += 1;
                self.units.protect(start + offset as u64, len, false)?;
            }
            Ok(())
        };
        if let Err(error) = map() {
            // It must not stay mapped with only some of its parts protected.
            self.clear_windows();
            return Err(error);
        }
        self.note_mapped(start, new);
        Ok(Fill::Done)
    }

    /// Notes that `mapped` is mapped at `start`.
    fn note_mapped(&mut self, start: u64, mapped: Mapped) {
        if !mapped.is_global && !self.is_user {
            self.local.mapped.insert(start);
        }
        self.largest = self.largest.max(mapped.size.into());
        self.mapped.insert(start, mapped);
    }

    /// Notes that instructions were `fetched` from `page`.
    fn note_fetched(&mut self, page: u64, fetched: Fetched) {
        if !fetched.is_global && !self.is_user {
            self.local.fetched.insert(page);
        }
        self.fetched.insert(page, fetched);
    }

    /// Unmaps the part of a large page that is mapped at `page`, since the page tables say something else
    /// now.
    fn unmap_large_at(&mut self, page: u64) -> io::Result<()> {
        let start = page & !(LARGE - 1);
        if let Some(known) = self.mapped.get(&start).filter(|known| known.len > PAGE) {
            self.units.unmap(start, known.len)?;
            self.mapped.remove(&start);
        }
        Ok(())
    }

    /// Makes writes to the page at `place`, which holds code, fault.
    pub(crate) fn protect_place(&mut self, place: usize) -> io::Result<()> {
        for (linear, mapped) in &mut self.mapped {
            let offset = place.wrapping_sub(mapped.place);
            if !mapped.writable || offset >= mapped.len {
                continue;
            }
            self.units.protect(linear + offset as u64, PAGE, false)?;
            if mapped.len == PAGE {
                mapped.writable = false;
            } else {
                self.protected += 1;
            }
        }
        Ok(())
    }

    /// Drops the page of `linear`, which software has invalidated, if the page tables differ.
    pub(crate) fn invalidate(&mut self, cpu: &Cpu, memory: &Memory, linear: u64) -> io::Result<()> {
        let page = linear & !0xfff;
        // A large page is invalidated as a whole, and may be mapped in parts.
        let (first, last) = (linear & !(self.largest - 1), linear | (self.largest - 1));
        let in_page = |(start, mapped): (&u64, &Mapped)| {
            let size = u64::from(mapped.size);
            (size > PAGE_SIZE && start & !(size - 1) == linear & !(size - 1)).then_some(*start)
        };
        let mut starts: Vec<_> = self.mapped.range(first..=last).filter_map(in_page).collect();
        starts.extend(self.mapped.contains_key(&page).then_some(page));
        for start in starts {
            let Some(mapped) = self.mapped.get(&start).copied() else { continue };
            let now = self.now(cpu, memory, start, &mapped);
            self.change(start, &mapped, now)?;
        }
        let pages = self.fetched.range(first..=last).map(|(page, _)| *page);
        self.check_fetched(cpu, memory, pages.collect());
        Ok(())
    }

    /// Drops what differs from the page tables, after software has invalidated all that is not global, or
    /// everything if `with_global`. If that was done often in vain, all that is dropped without a look.
    pub(crate) fn invalidate_all(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        with_global: bool,
    ) -> io::Result<()> {
        let count = self.count_compared(with_global);
        let is_in_vain = self.comparisons.are_in_vain(count, cpu.instructions);
        let rights = Some(Rights::of(cpu));
        // What entries mean has changed, or all is to be dropped.
        let are_all = is_in_vain || mem::replace(&mut self.rights, rights) != rights;
        let mut now = Now::new(cpu, memory);
        let mut may_differ =
            |start: u64, entries: &PageEntries| are_all || !now.has(start, entries);
        let (starts, pages) = if with_global || self.is_user {
            let mapped = self.mapped.iter().map(|(start, mapped)| (start, &mapped.entries));
            let fetched = self.fetched.iter().map(|(page, fetched)| (page, &fetched.entries));
            let mut differing = |(start, entries): (&u64, &PageEntries)| {
                may_differ(*start, entries).then_some(*start)
            };
            let starts: Vec<_> = mapped.filter_map(&mut differing).collect();
            (starts, fetched.filter_map(differing).collect::<Vec<_>>())
        } else {
            self.differing_locals(may_differ)
        };
        let mut gone = Vec::new();
        for start in starts {
            let Some(mapped) = self.mapped.get(&start).copied() else { continue };
            let now = if is_in_vain { None } else { self.now(cpu, memory, start, &mapped) };
            match now {
                None => gone.push((start, mapped.len)),
                now => self.change(start, &mapped, now)?,
            }
        }
        self.unmap_all(&gone)?;
        if is_in_vain {
            for page in &pages {
                self.fetched.remove(page);
            }
            self.forget_targets();
        } else {
            self.check_fetched(cpu, memory, pages);
        }
        Ok(())
    }

    /// Returns how many pages are compared after software has invalidated all that is not global, or everything if
    /// `with_global`.
    fn count_compared(&self, with_global: bool) -> usize {
        if with_global || self.is_user {
            self.mapped.len() + self.fetched.len()
        } else {
            self.local.mapped.len() + self.local.fetched.len()
        }
    }

    /// Returns what is not global in the supervisor's `mapped` and `fetched`, in order, and `differs`.
    fn differing_locals(
        &mut self,
        mut differs: impl FnMut(u64, &PageEntries) -> bool,
    ) -> (Vec<u64>, Vec<u64>) {
        let LongSpace { mapped, fetched, local, .. } = self;
        let (mut starts, mut pages) = (Vec::new(), Vec::new());
        local.mapped.retain(|start| {
            let known = mapped.get(start).filter(|mapped| !mapped.is_global);
            starts.extend(known.filter(|known| differs(*start, &known.entries)).map(|_| *start));
            known.is_some()
        });
        local.fetched.retain(|page| {
            let known = fetched.get(page).filter(|fetched| !fetched.is_global);
            pages.extend(known.filter(|known| differs(*page, &known.entries)).map(|_| *page));
            known.is_some()
        });
        starts.sort_unstable();
        pages.sort_unstable();
        (starts, pages)
    }

    /// Unmaps what is `gone`: addresses with their lengths, in order. What lies side by side, or has nothing
    /// mapped between, is unmapped at once, since the host takes microseconds each time.
    fn unmap_all(&mut self, gone: &[(u64, usize)]) -> io::Result<()> {
        let mut rest = gone;
        while let [(first, _), ..] = rest {
            let stays = |after: u64, before: u64| {
                after < before && self.mapped.range(after..before).next().is_some()
            };
            let is_together = |pair: &&[(u64, usize)]| {
                let end = pair[0].0 + pair[0].1 as u64;
                unit_of(pair[1].0) == unit_of(*first) && !stays(end, pair[1].0)
            };
            let count = 1 + rest.windows(2).take_while(is_together).count();
            let (run, others) = rest.split_at(count);
            let (last, len) = run[count - 1];
            self.units.unmap(*first, (last - first) as usize + len)?;
            for (start, _) in run {
                self.mapped.remove(start);
            }
            rest = others;
        }
        Ok(())
    }

    /// Returns what the page tables say of `mapped`, at `start`, now, if it can still be read at the same
    /// place.
    fn now(&self, cpu: &Cpu, memory: &Memory, start: u64, mapped: &Mapped) -> Option<Mapped> {
        let (now, entries) = cpu.page_in_advance(memory, start, Access::Read, self.is_user)?;
        let is_same = (now.address, now.size) == (mapped.address, mapped.size)
            && now.user == self.is_user
            && memory.read_target(now.address) == Target::Place(mapped.place);
        let writable = mapped.writable && now.writable;
        is_same.then_some(Mapped { writable, is_global: now.global, entries, ..*mapped })
    }

    /// Makes `before`, at `start`, what it is `now`.
    fn change(&mut self, start: u64, before: &Mapped, now: Option<Mapped>) -> io::Result<()> {
        let Some(now) = now else {
            self.units.unmap(start, before.len)?;
            self.mapped.remove(&start);
            return Ok(());
        };
        if before.writable && !now.writable {
            self.units.protect(start, before.len, false)?;
        }
        self.note_mapped(start, now);
        Ok(())
    }

    /// Forgets those of `pages` from which instructions are no longer fetched.
    fn check_fetched(&mut self, cpu: &Cpu, memory: &Memory, pages: Vec<u64>) {
        let before = self.fetched.len();
        for page in pages {
            let Some(fetched) = self.fetched.get(&page).copied() else { continue };
            let now = cpu.page_in_advance(memory, page, Access::Fetch, self.is_user);
            match now.filter(|(now, _)| now.address == fetched.address) {
                Some((now, entries)) => {
                    let is_global = now.global;
                    self.note_fetched(page, Fetched { is_global, entries, ..fetched });
                }
                None => {
                    self.fetched.remove(&page);
                }
            }
        }
        if self.fetched.len() != before {
            self.forget_targets();
        }
    }
}
