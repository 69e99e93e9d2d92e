//! Filling a window where an access has faulted, and what comes of that.

use std::fs::File;
use std::io;

use ring3_core::memory::{Memory, PAGE_SHIFT, PAGE_SIZE, Target};
use ring3_x86::cpu::Cpu;
use ring3_x86::paging::{self, PageMapping};

use super::{DIRECTORY_STEP, Mapped, Space};

/// Pages that are mapped on each side of one that is filled, at most.
const NEIGHBOURS: u32 = 16;

/// What came of a fault in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// The access can be tried again.
    Done,
    /// It faults.
    Faults,
    /// The interpreter is to do it, and so it will be each time: it is a device's.
    Leave,
    /// The same: it writes to this page of memory, which holds code.
    WritesCode(u32),
    /// The interpreter is to do it this time: it reads zeros that cannot be written. Mostly it is a page that the system has only one of, and the
    /// first write, which comes soon, gets another one.
    Zeros,
    /// Supervisor code accesses a page of the user, which mostly is not in the window of supervisor code, as it would have to be dropped
    /// whenever CR3 is loaded.
    OfUser,
    /// Supervisor code accesses a page in the window of user code that the user may not access so.
    OfSupervisor,
}

/// An access that has faulted in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) linear: u32,
    pub(crate) writes: bool,
    /// Pages of the user are mapped for it, and not only those of the supervisor.
    pub(crate) to_users: bool,
}

/// Nothing but zeros is in a page.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(size_of::<u128>()).all(|part| part == [0; size_of::<u128>()])
}

/// Writes to the page of `mapping` go where it is read, to `place`.
fn is_ram(memory: &Memory, mapping: &PageMapping, place: usize) -> bool {
    memory.write_target(mapping.address) == Target::Place(place)
}

/// The page of `mapping`, which is at `place`, can be written to in a window.
pub(super) fn is_writable(memory: &Memory, mapping: &PageMapping, place: usize) -> bool {
    mapping.writable && is_ram(memory, mapping, place) && memory.is_plain(place)
}

impl Fill {
    /// The page that holds code and was written to.
    pub(crate) fn written(self) -> Option<u32> {
        if let Fill::WritesCode(page) = self { Some(page) } else { None }
    }
}

impl Space {
    /// Fills the window where an access has faulted.
    pub(crate) fn fill(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        file: &File,
        Access { linear, writes, to_users }: Access,
    ) -> io::Result<Fill> {
        let access = if writes { paging::Access::Write } else { paging::Access::Read };
        // The stack of the supervisor is written to by INT n, which user code executes.
        let by_user = self.is_user && cpu.is_user();
        let Some(mut mapping) = cpu.map_page(memory, linear, access, by_user) else {
            return Ok(Fill::Faults);
        };
        if self.is_user && !by_user {
            // Without WP the supervisor may write what the user may not.
            let for_user = cpu.page_in_advance(memory, linear, paging::Access::Read, true);
            match for_user {
                Some((for_user, _)) if for_user.writable || !writes => mapping = for_user,
                _ => return Ok(Fill::OfSupervisor),
            }
        }
        let Target::Place(place) = memory.read_target(mapping.address) else {
            return Ok(Fill::Leave);
        };
        let is_ram = is_ram(memory, &mapping, place);
        if mapping.user && !to_users {
            return Ok(Fill::OfUser);
        }
        if writes && !is_ram {
            return Ok(Fill::Leave);
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
        let Some(entries) = cpu.page_entries(memory, page) else { return Ok(Fill::Faults) };
        self.note_directory(page, &entries);
        let mut mapped = Mapped {
            place,
            len: PAGE_SIZE as usize,
            writable: is_writable(memory, &mapping, place),
            entries,
        };
        let start = linear & !(mapping.size - 1);
        if mapping.size > PAGE_SIZE as u32 && !self.has_large(start, mapping.writable) {
            let address = mapping.address - u64::from(page - start);
            if let Some(place) = memory.run_of_places(address, mapping.size.into()) {
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
                    // Not with some of it protected, and some not.
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
        // Page tables say otherwise than they did when this was mapped.
        if let Some((start, len)) = self.large_at(page) {
            self.window.unmap(start, len)?;
            self.large.remove(&start);
        }
        let pages = self.run(cpu, memory, page, mapped, &mapping);
        let (start, place) =
            pages.iter().fold((page, place), |(start, place), (page, mapped, _)| {
                (start.min(*page), place.min(mapped.place))
            });
        let len = pages.len() * PAGE_SIZE as usize;
        if let Err(error) = self.window.map(start, len, file, place, mapped.writable) {
            // Not with some of it mapped.
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

    /// `page`, which is to be `mapped`, and those on both sides of it that can be mapped by the same call of the host: they
    /// are in a row in memory too, were accessed before, allow the same, and are not mapped yet.
    fn run(
        &self,
        cpu: &Cpu,
        memory: &Memory,
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
                // Of the same page table, whose entry in the directory is noted.
                if linear / DIRECTORY_STEP != page / DIRECTORY_STEP || self.is_mapped(linear) {
                    break;
                }
                let known = cpu.page_in_advance(memory, linear, paging::Access::Read, self.is_user);
                let Some((neighbour, entries)) = known else { break };
                if memory.read_target(neighbour.address) != Target::Place(place)
                    || neighbour.user != mapping.user
                    || is_writable(memory, &neighbour, place) != mapped.writable
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

    /// `mapped`, at `page`, is part of a large page that is mapped.
    fn is_in_large(&self, page: u32, mapped: &Mapped) -> bool {
        self.large.iter().any(|(start, large)| {
            let offset = page.wrapping_sub(*start) as usize;
            offset < large.len && large.place + offset == mapped.place
        })
    }

    /// Maps a large page, but those parts of it that hold code only for reading.
    fn map_large(
        &mut self,
        memory: &Memory,
        file: &File,
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
