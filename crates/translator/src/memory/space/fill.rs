//! Fills a window after an access has faulted there.

use std::io;

use ring3_core::memory::{Memory, PAGE_SHIFT, PAGE_SIZE, Target};
use ring3_x86::cpu::Cpu;
use ring3_x86::paging::{self, PageMapping};

use super::{DIRECTORY_STEP, LARGEST_PAGE, Mapped, Space};
use crate::memory::host_memory::GuestFile;

/// Upper bound of the pages that are mapped on each side of a page that is filled.
const NEIGHBOURS: u32 = 16;

/// The outcome of filling a window after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// The page is mapped: the access can be tried again.
    Done,
    /// The access raises a page fault in the guest.
    Faults,
    /// The page belongs to a device. The interpreter must execute this access and every later one.
    Interpret,
    /// The access writes to this page of guest memory, which holds code. The interpreter must execute it and
    /// every later one.
    WritesCode(u32),
    /// The access reads a page of zeros that the guest cannot write, so the interpreter executes it this
    /// time. Mostly it is the one page of zeros that the guest's system has, and the first write, which comes
    /// soon, gets a page of its own.
    Zeros,
    /// Supervisor code accesses a page of users. Such a page is mostly not in the window of supervisor code,
    /// since it would have to be dropped whenever CR3 is loaded.
    OfUser,
    /// Supervisor code accesses, in the window of user code, a page that user code may not access in this
    /// way.
    OfSupervisor,
}

/// An access that has faulted in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageAccess {
    pub(crate) linear: u32,
    pub(crate) writes: bool,
    /// Whether pages of users may be mapped for it, besides those of the supervisor.
    pub(crate) to_users: bool,
}

/// Returns whether a page contains only zeros.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(size_of::<u128>()).all(|part| part == [0; size_of::<u128>()])
}

/// Returns whether writes to the page of `mapping` go where its reads go, to `place`.
pub(crate) fn is_ram(memory: &Memory, mapping: &PageMapping, place: usize) -> bool {
    memory.write_target(mapping.address) == Target::Place(place)
}

/// Returns whether the page of `mapping`, which is at `place`, may be mapped for writing.
pub(crate) fn is_writable(memory: &Memory, mapping: &PageMapping, place: usize) -> bool {
    mapping.writable && is_ram(memory, mapping, place) && memory.is_plain(place)
}

impl Fill {
    /// Returns the page that holds code and was written to.
    pub(crate) fn written(self) -> Option<u32> {
        if let Fill::WritesCode(page) = self { Some(page) } else { None }
    }
}

impl Space {
    /// Fills the window after an access has faulted there.
    pub(crate) fn fill(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        file: &GuestFile,
        PageAccess { linear, writes, to_users }: PageAccess,
    ) -> io::Result<Fill> {
        let access = if writes { paging::Access::Write } else { paging::Access::Read };
        // An access in the window of supervisor code is the supervisor's even while user code runs: INT n,
        // which user code executes, pushes to the stack of the supervisor.
        let by_user = self.is_user && cpu.is_user();
        let Some(mut mapping) = cpu.map_page(memory, linear.into(), access, by_user) else {
            return Ok(Fill::Faults);
        };
        if self.is_user && !by_user {
            // With CR0.WP clear the supervisor may write to pages that users may not write to.
            let for_user = cpu.page_in_advance(memory, linear.into(), paging::Access::Read, true);
            match for_user {
                Some((for_user, _)) if for_user.writable || !writes => mapping = for_user,
                _ => return Ok(Fill::OfSupervisor),
            }
        }
        let Target::Place(place) = memory.read_target(mapping.address) else {
            return Ok(Fill::Interpret);
        };
        let is_ram = is_ram(memory, &mapping, place);
        if mapping.user && !to_users {
            return Ok(Fill::OfUser);
        }
        if writes && !is_ram {
            return Ok(Fill::Interpret);
        }
        if writes {
            memory.note_write(place);
        }
        if writes && !memory.is_plain(place) {
            return Ok(Fill::WritesCode((place >> PAGE_SHIFT) as u32));
        }
        let page = linear & !0xfff;
        if self.is_user
            && !writes
            && !mapping.writable
            && self.zeros != Some(page)
            && memory.page_from(place & !0xfff).is_some_and(is_zero)
        {
            self.zeros = Some(page);
            return Ok(Fill::Zeros);
        }
        let Some(entries) = cpu.page_entries(memory, page.into()) else { return Ok(Fill::Faults) };
        self.note_directory(page, &entries);
        let mut mapped = Mapped {
            place,
            len: PAGE_SIZE as usize,
            writable: is_writable(memory, &mapping, place),
            entries,
        };
        let start = linear & !(mapping.size - 1);
        self.has_huge |= mapping.size > LARGEST_PAGE;
        if (2 * PAGE_SIZE as u32..=LARGEST_PAGE).contains(&mapping.size)
            && !memory.is_watching()
            && !cpu.debugger().watches(start.into(), mapping.size.into())
            && !self.has_large(start, mapping.writable)
        {
            let address = mapping.address - u64::from(page - start);
            // Mapping a large page would fetch all of it, so it is not mapped before it is here.
            let place = memory.run_of_places(address, mapping.size.into());
            if let Some(place) = place.filter(|place| file.has(*place, mapping.size as usize)) {
                mapped = Mapped {
                    place,
                    len: mapping.size as usize,
                    writable: mapping.writable,
                    ..mapped
                };
                for part in (start..=start + (mapping.size - 1)).step_by(DIRECTORY_STEP as usize) {
                    self.note_directory(part, &entries);
                }
                self.note_local(start, mapping.global);
                if let Err(error) = self.map_large(memory, file, start, mapped) {
                    // The page must not stay mapped with only some of its parts protected.
                    self.large.remove(&start);
                    self.window.unmap(start, mapped.len)?;
                    return Err(error);
                }
                return Ok(Fill::Done);
            }
        }
        if self.is_in_large(page, &mapped) {
            self.window.map(page, mapped.len, file, place, mapped.writable)?;
            self.stale.remove(&page);
            return Ok(Fill::Done);
        }
        // The page tables no longer say what they said when this large page was mapped.
        if let Some((start, len)) = self.large_at(page) {
            self.window.unmap(start, len)?;
            self.large.remove(&start);
        }
        let pages = self.run(cpu, memory, file, page, mapped, &mapping);
        let (start, place) =
            pages.iter().fold((page, place), |(start, place), (page, mapped, _)| {
                (start.min(*page), place.min(mapped.place))
            });
        let len = pages.len() * PAGE_SIZE as usize;
        if let Err(error) = self.window.map(start, len, file, place, mapped.writable) {
            // The run of pages must not stay mapped in part.
            self.clear()?;
            return Err(error);
        }
        for (page, mapped, is_global) in pages {
            self.stale.remove(&page);
            if mapped.writable {
                self.writable.insert(mapped.place);
            }
            self.note_local(page, is_global);
            self.small.insert(page, mapped);
        }
        Ok(Fill::Done)
    }

    /// Returns `page`, which is to be `mapped`, and the pages on both sides of it that the same call of the
    /// host can map: they follow each other in guest memory too, were accessed before, have the same rights,
    /// and are not mapped yet. What would have to be copied from the file of a saved machine waits until it is
    /// needed.
    fn run(
        &self,
        cpu: &Cpu,
        memory: &Memory,
        file: &GuestFile,
        page: u32,
        mapped: Mapped,
        mapping: &PageMapping,
    ) -> Vec<(u32, Mapped, bool)> {
        let mut pages = vec![(page, mapped, mapping.global)];
        for step in [PAGE_SIZE as usize, (PAGE_SIZE as usize).wrapping_neg()] {
            let (mut linear, mut place) = (page, mapped.place);
            for _ in 0..NEIGHBOURS {
                linear = linear.wrapping_add(step as u32);
                place = place.wrapping_add(step);
                // Only pages of the same page table: its directory entry is noted.
                if linear / DIRECTORY_STEP != page / DIRECTORY_STEP || self.is_mapped(linear) {
                    break;
                }
                let known =
                    cpu.page_in_advance(memory, linear.into(), paging::Access::Read, self.is_user);
                let Some((neighbour, entries)) = known else { break };
                if memory.read_target(neighbour.address) != Target::Place(place)
                    || neighbour.user != mapping.user
                    || is_writable(memory, &neighbour, place) != mapped.writable
                    || !file.comes_with(place, mapped.place)
                {
                    break;
                }
                pages.push((linear, Mapped { place, entries, ..mapped }, neighbour.global));
            }
        }
        pages
    }

    fn has_large(&self, start: u32, writable: bool) -> bool {
        self.large.get(&start).is_some_and(|large| large.writable || !writable)
    }

    /// Returns whether `mapped`, at `page`, is part of a large page that is mapped.
    fn is_in_large(&self, page: u32, mapped: &Mapped) -> bool {
        self.large.iter().any(|(start, large)| {
            let offset = page.wrapping_sub(*start) as usize;
            offset < large.len && large.place + offset == mapped.place
        })
    }

    /// Maps a large page. Its parts that hold code are mapped for reading only.
    fn map_large(
        &mut self,
        memory: &Memory,
        file: &GuestFile,
        start: u32,
        mapped: Mapped,
    ) -> io::Result<()> {
        self.window.map(start, mapped.len, file, mapped.place, mapped.writable)?;
        self.small.retain(|page, _| page.wrapping_sub(start) as usize >= mapped.len);
        self.large.insert(start, mapped);
        for offset in (0..mapped.len).step_by(PAGE_SIZE as usize) {
            if mapped.writable && !memory.is_plain(mapped.place + offset) {
                self.protect_part(start + offset as u32)?;
            }
        }
        Ok(())
    }
}
