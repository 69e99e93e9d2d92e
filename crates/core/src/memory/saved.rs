//! Saves and restores guest-physical memory: RAM, areas, and the map of them.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};

use super::map::{Entry, Map};
use super::{Memory, PAGE_SHIFT, PAGE_SIZE, RamLayout};
use crate::state::{RestoreError, SavedState};

const STATE_NAME: &str = "memory";
const STATE_VERSION: u32 = 1;
/// The name of the map alone.
const MAP_NAME: &str = "map";

/// The saved form, with the bytes borrowed or owned.
#[derive(Serialize, Deserialize)]
struct State<B> {
    /// Size of RAM in bytes.
    ram_size: u64,
    /// Number of pages of the array: RAM and areas.
    pages: u64,
    /// The pages that are not all zero.
    contents: Vec<Part<B>>,
    reads: Vec<Run>,
    writes: Vec<Run>,
}

/// Consecutive pages of the array.
#[derive(Serialize, Deserialize)]
struct Part<B> {
    first_page: u64,
    bytes: B,
}

/// Consecutive guest-physical pages that no device takes: either nothing is behind all of them, or
/// consecutive pages of the array are.
#[derive(Serialize, Deserialize)]
struct Run {
    first_page: u64,
    pages: u64,
    to: To,
}

/// What is behind the first page of a [`Run`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum To {
    Nothing,
    /// This page of the array.
    Page(u64),
}

impl Map {
    fn save(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        self.for_each_run(|pages, entry| {
            let to = match entry {
                _ if pages.is_empty() => return,
                Entry::Device => return,
                Entry::Nothing => To::Nothing,
                Entry::Page(page) => To::Page(page.into()),
            };
            let (first_page, pages) = (pages.start as u64, pages.len() as u64);
            match runs.last_mut() {
                Some(last)
                    if last.first_page + last.pages == first_page
                        && last.to_of(last.pages) == to =>
                {
                    last.pages += pages;
                }
                _ => runs.push(Run { first_page, pages, to }),
            }
        });
        runs
    }

    /// Makes the map that `runs` describe, for an array of `pages` pages that begins with `ram`. Returns None if that is
    /// impossible, the runs are out of order or overlap, or leave the addresses before `end_of_all`.
    fn of_runs(runs: &[Run], pages: u64, ram: RamLayout, end_of_all: u64) -> Option<Map> {
        let mut map = Map::new(ram);
        map.extend(end_of_all);
        let mut done = 0;
        for run in runs {
            let start = usize::try_from(run.first_page).ok()?;
            let end = start.checked_add(usize::try_from(run.pages).ok()?)?;
            if start < done || end > (end_of_all >> PAGE_SHIFT) as usize {
                return None;
            }
            if let To::Page(first) = run.to
                && first.checked_add(run.pages)? > pages
            {
                return None;
            }
            map.remove_ram(done..start);
            // RAM at its own address is there already.
            let is_ram =
                |range: &&Range<usize>| range.contains(&start) && run.is(map.at_power_on(start));
            let ram = map.ram();
            let from = ram.iter().find(is_ram).map_or(start, |range| range.end.min(end));
            for page in from..end {
                let entry = match run.to_of((page - start) as u64) {
                    To::Nothing => Entry::Nothing,
                    To::Page(page) => Entry::Page(page as u32),
                };
                map.put(page, entry);
            }
            done = end;
        }
        map.remove_ram(done..usize::MAX);
        Some(map)
    }

    /// Lets devices have these pages, which may have been RAM at power-on.
    fn remove_ram(&mut self, pages: Range<usize>) {
        for ram in self.ram() {
            let common = ram.start.max(pages.start)..ram.end.min(pages.end);
            common.for_each(|page| self.put(page, Entry::Device));
        }
    }
}

impl Run {
    /// Returns whether `entry` is behind its first page.
    fn is(&self, entry: Entry) -> bool {
        matches!((self.to, entry), (To::Page(to), Entry::Page(page)) if to == u64::from(page))
    }

    /// Returns what is behind page `index` of this run.
    fn to_of(&self, index: u64) -> To {
        match self.to {
            To::Nothing => To::Nothing,
            To::Page(first) => To::Page(first + index),
        }
    }
}

impl Memory {
    /// Saves RAM, areas and the map. Pages of zeros take no space.
    pub fn save(&self) -> SavedState {
        self.save_with(self.save_contents())
    }

    /// Saves as [`Memory::save`] does, but without the contents of RAM and areas, for those who keep
    /// [`Memory::all_contents`] elsewhere. Restored, it is memory of zeros;
    /// [`Memory::change_contents`] fills it.
    pub fn save_without_contents(&self) -> SavedState {
        self.save_with(Vec::new())
    }

    fn save_with(&self, contents: Vec<Part<&Bytes>>) -> SavedState {
        let state = State {
            ram_size: self.size(),
            pages: self.code.len() as u64,
            contents,
            reads: self.reads.save(),
            writes: self.writes.save(),
        };
        SavedState::new(STATE_NAME, STATE_VERSION, &state)
    }

    /// Saves the map alone.
    pub fn save_map(&self) -> SavedState {
        SavedState::new(MAP_NAME, STATE_VERSION, &(self.reads.save(), self.writes.save()))
    }

    /// Restores a map of this memory. On an error it is unchanged.
    pub(super) fn restore_map(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        if self.save_map() == *saved {
            return Ok(());
        }
        let (reads, writes): (Vec<Run>, Vec<Run>) = saved.load(MAP_NAME, STATE_VERSION)?;
        let maps = self.map_of(&reads).zip(self.map_of(&writes));
        let maps = maps.ok_or_else(|| saved.damaged("the map leads where no memory is"))?;
        (self.reads, self.writes) = maps;
        self.layout += 1;
        Ok(())
    }

    /// Restores the map from what [`Memory::save_without_contents`] has returned for memory of the same size,
    /// and leaves the contents as they are. On an error memory is unchanged.
    pub fn restore_layout(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State<ByteBuf> = saved.load(STATE_NAME, STATE_VERSION)?;
        let pages = self.code.len() as u64;
        if (state.ram_size, state.pages) != (self.size(), pages) {
            return Err(saved.damaged("it is of a machine with other memory"));
        }
        let maps = self.map_of(&state.reads).zip(self.map_of(&state.writes));
        let maps = maps.ok_or_else(|| saved.damaged("the map leads where no memory is"))?;
        (self.reads, self.writes) = maps;
        self.layout += 1;
        Ok(())
    }

    /// Makes the map that `runs` describe. None if it is not possible for this memory.
    fn map_of(&self, runs: &[Run]) -> Option<Map> {
        Map::of_runs(runs, self.code.len() as u64, self.ram(), self.end())
    }

    fn save_contents(&self) -> Vec<Part<&Bytes>> {
        let page_len = PAGE_SIZE as usize;
        let mut pages = self.bytes.chunks(page_len).map(is_zero).enumerate().peekable();
        let mut parts = Vec::new();
        while let Some((first, zero)) = pages.next() {
            if zero {
                continue;
            }
            let mut end = first + 1;
            while pages.next_if(|(_, zero)| !zero).is_some() {
                end += 1;
            }
            let bytes = Bytes::new(&self.bytes[first * page_len..end * page_len]);
            parts.push(Part { first_page: first as u64, bytes });
        }
        parts
    }

    /// Restores a saved state of memory with the same RAM and areas. On an error memory is unchanged.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State<ByteBuf> = saved.load(STATE_NAME, STATE_VERSION)?;
        let pages = self.code.len() as u64;
        if (state.ram_size, state.pages) != (self.size(), pages) {
            return Err(saved.damaged("it is of a machine with other memory"));
        }
        for part in &state.contents {
            let fits = part.bytes.len().is_multiple_of(PAGE_SIZE as usize)
                && part.first_page <= pages
                && part.bytes.len() as u64 >> PAGE_SHIFT <= pages - part.first_page;
            if !fits {
                return Err(saved.damaged("it has contents where no memory is"));
            }
        }
        let maps = self.map_of(&state.reads).zip(self.map_of(&state.writes));
        let maps = maps.ok_or_else(|| saved.damaged("the map leads where no memory is"))?;
        self.clear();
        for part in &state.contents {
            let start = (part.first_page << PAGE_SHIFT) as usize;
            self.bytes[start..start + part.bytes.len()].copy_from_slice(&part.bytes);
        }
        (self.reads, self.writes) = maps;
        Ok(())
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Area, Backing};

    const RAM: u64 = 1 << 20;

    fn memory() -> (Memory, Area) {
        let mut memory = Memory::new(RAM).unwrap();
        let area = memory.add_area(0x4000).unwrap();
        (memory, area)
    }

    #[test]
    fn contents_and_map_survive_saving() {
        let (mut memory, area) = memory();
        memory.write(0x1fff, &[1, 2]);
        memory.write(RAM - 1, &[3]);
        memory.write_area(area, 0x3fff, &[4]);
        memory.map(0xa_0000, 0x2_0000, Backing::Device, Backing::Device).unwrap();
        memory.map(0xf_0000, 0x1000, Backing::Ram, Backing::Nothing).unwrap();
        memory.map(0xffff_c000, 0x4000, Backing::Area(area, 0), Backing::Nothing).unwrap();
        memory.map(0x20_0000, 0x1000, Backing::Area(area, 0x3000), Backing::Device).unwrap();
        let saved = memory.save();
        let (mut other, other_area) = self::memory();
        other.write(0x5000, &[9; 0x2000]);
        other.mark_code(0x5000, 1);
        let layout = other.layout_generation();
        other.restore(&saved).unwrap();
        assert_eq!(other.contents(), memory.contents());
        assert_eq!(other.area(other_area), memory.area(area));
        for page in (0..1 << 32_u64).step_by(0x1000) {
            assert_eq!(other.read_target(page), memory.read_target(page), "{page:#x}");
            assert_eq!(other.write_target(page), memory.write_target(page), "{page:#x}");
        }
        assert_eq!(other.save(), saved);
        assert_ne!(other.layout_generation(), layout);
        assert_eq!(other.take_stale_code(), [5]);
    }

    #[test]
    fn contents_can_be_kept_elsewhere() {
        let (mut memory, area) = memory();
        memory.write(0x1fff, &[1, 2]);
        memory.write_area(area, 0x3fff, &[4]);
        let (layout, contents) = (memory.save_without_contents(), memory.all_contents().to_vec());
        let (mut other, _) = self::memory();
        other.write(0x5000, &[9; 0x2000]);
        other.restore(&layout).unwrap();
        assert!(other.all_contents().iter().all(|byte| *byte == 0));
        other.reset_map();
        other.write(0x1000, &[5]);
        other.restore_layout(&layout).unwrap();
        assert_eq!(other.save_without_contents(), layout);
        assert_eq!(other.contents()[0x1000], 5);
        assert!(Memory::new(2 << 20).unwrap().restore_layout(&layout).is_err());
        other.mark_code(0x1000, 1);
        other.change_contents(|bytes| bytes.copy_from_slice(&contents));
        assert_eq!(other.save(), memory.save());
        assert_eq!(other.take_stale_code(), [1]);
    }

    #[test]
    fn an_unsuitable_state_is_refused_and_changes_nothing() {
        let (mut memory, _) = memory();
        memory.write(0, &[7]);
        let before = memory.save();
        let run = |first_page, pages, to| Run { first_page, pages, to };
        let state = |contents, reads| State::<ByteBuf> {
            ram_size: RAM,
            pages: 260,
            contents,
            reads,
            writes: vec![],
        };
        let part = |first_page, len| {
            state(vec![Part { first_page, bytes: ByteBuf::from(vec![1; len]) }], vec![])
        };
        let map = |runs| state(vec![], runs);
        for bad in [
            State { ram_size: RAM + 4096, ..part(0, 4096) },
            State { pages: 261, ..part(0, 4096) },
            part(0, 4095),
            part(260, 4096),
            part(u64::MAX, 4096),
            part(0, 261 * 4096),
            map(vec![run(0, 2, To::Page(259))]),
            map(vec![run(0, 1, To::Page(u64::MAX))]),
            map(vec![run(0, 2, To::Nothing), run(1, 1, To::Nothing)]),
            map(vec![run(0xf_ffff, 2, To::Nothing)]),
            map(vec![run(u64::MAX, 1, To::Nothing)]),
        ] {
            let saved = SavedState::new(STATE_NAME, STATE_VERSION, &bad);
            assert!(matches!(memory.restore(&saved), Err(RestoreError::Damaged { .. })));
            assert_eq!(memory.save(), before);
        }
    }
}
