//! Pages that the guest does without, and that the host gets back.

use std::ops::Range;

use super::{Area, Memory, PAGE_SHIFT, PAGE_SIZE, Target};

/// What [`Memory::release`] has released.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Released {
    /// Number of pages.
    pub pages: u64,
    /// Number of runs of consecutive pages. The host is asked once for each.
    pub runs: u64,
}

impl Memory {
    /// Makes the pages of RAM, and of that which comes and goes, with these guest-physical numbers zero, as if a device had written zeros there, and gives
    /// back to the host what it holds for them. So what the guest finds there afterwards does not depend on
    /// what the host does. Numbers of pages that are no RAM, or only for reads or for writes, are ignored. The
    /// work is bounded by the size of RAM as long as the ranges are ascending and do not overlap.
    pub fn release(&mut self, pages: impl IntoIterator<Item = Range<u64>>) -> Released {
        let mut released = Released::default();
        let mut run = 0..0;
        let end = self.end() >> PAGE_SHIFT;
        for page in pages.into_iter().flat_map(|range| range.start..range.end.min(end)) {
            let Some(place) = self.ram_page(page << PAGE_SHIFT) else { continue };
            if place != run.end {
                self.release_run(&run, &mut released);
                run = place..place;
            }
            run.end = place + PAGE_SIZE as usize;
        }
        self.release_run(&run, &mut released);
        released
    }

    /// Returns the place of the page of RAM at `address`, if both reads and writes go there.
    fn ram_page(&self, address: u64) -> Option<usize> {
        let target = self.read_target(address);
        match target {
            Target::Place(place)
                if self.is_ram_place(place) && self.write_target(address) == target =>
            {
                Some(place)
            }
            _ => None,
        }
    }

    fn is_ram_place(&self, place: usize) -> bool {
        place < self.ram_size || self.later.is_some_and(|area| area.range().contains(&place))
    }

    /// Releases the pages of `area` in the `len` bytes from `offset` on, wherever the area is mapped. Both are multiples of
    /// [`PAGE_SIZE`].
    ///
    /// # Panics
    /// When the area does not have them.
    pub fn release_area(&mut self, area: Area, offset: u64, len: u64) -> Released {
        assert!(offset.checked_add(len).is_some_and(|end| end <= area.size()), "beyond the area");
        let start = area.start() + offset as usize;
        let mut released = Released::default();
        self.release_run(&(start..start + len as usize), &mut released);
        released
    }

    fn release_run(&mut self, run: &Range<usize>, released: &mut Released) {
        if run.is_empty() {
            return;
        }
        for place in run.clone().step_by(PAGE_SIZE as usize) {
            self.note_write(place);
            self.forget_code((place >> PAGE_SHIFT) as u32);
        }
        self.pages.release(&mut self.bytes, run.clone());
        released.pages += (run.len() as u64) >> PAGE_SHIFT;
        released.runs += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Backing;

    fn memory() -> Memory {
        let mut memory = Memory::new(1 << 20).unwrap();
        memory.change_contents(|bytes| bytes.fill(7));
        memory
    }

    #[test]
    fn released_pages_are_zero_and_all_others_stay() {
        let mut memory = memory();
        let released = memory.release([1..3, 3..4, 9..10, 0xff..u64::MAX]);
        assert_eq!(released, Released { pages: 5, runs: 3 });
        for (page, bytes) in memory.contents().chunks(4096).enumerate() {
            let expected = if [1, 2, 3, 9, 0xff].contains(&page) { 0 } else { 7 };
            assert!(bytes.iter().all(|byte| *byte == expected), "page {page}");
        }
    }

    #[test]
    fn only_ram_that_is_read_and_written_is_released() {
        let mut memory = memory();
        let rom = memory.add_area(0x1000).unwrap();
        memory.change_contents(|bytes| bytes.fill(7));
        memory.map(0x2000, 0x1000, Backing::Area(rom, 0), Backing::Area(rom, 0)).unwrap();
        memory.map(0x3000, 0x1000, Backing::Ram, Backing::Nothing).unwrap();
        memory.map(0x4000, 0x1000, Backing::Device, Backing::Device).unwrap();
        memory.map(0x5000, 0x1000, Backing::Area(rom, 0), Backing::Ram).unwrap();
        assert_eq!(memory.release([2..6, 0x100..0x200]), Released::default());
        assert!(memory.all_contents().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn memory_that_comes_and_goes_is_released_where_it_is() {
        const START: u64 = 5 << 30;
        let mut memory = Memory::new(1 << 20).unwrap();
        let area = memory.add_later_ram(START, 4 << 20).unwrap();
        assert_eq!((memory.end(), memory.size()), (START + (4 << 20), 1 << 20));
        assert!(memory.map(START, 5 << 20, Backing::Device, Backing::Device).is_err());
        memory.write(START, &[7]);
        assert_eq!(memory.read_aligned::<1>(START), [0xff], "nothing is there");
        let backing = Backing::Area(area, 2 << 20);
        memory.map(START + (2 << 20), 2 << 20, backing, backing).unwrap();
        assert!(memory.holds(START + (2 << 20), 2 << 20) && !memory.holds(START, 1));
        for page in [0, 1, 5] {
            memory.write(START + (2 << 20) + page * PAGE_SIZE, &[7]);
        }
        let layout = memory.save_without_contents();
        let first = (START + (2 << 20)) >> PAGE_SHIFT;
        assert_eq!(
            memory.release(std::iter::once(first..first + 1)),
            Released { pages: 1, runs: 1 }
        );
        let bytes =
            |memory: &Memory| [0, 1, 5].map(|page| memory.area(area)[(2 << 20) + page * 4096]);
        assert_eq!(bytes(&memory), [0, 7, 7]);
        assert_eq!(memory.release_area(area, 2 << 20, 0x2000), Released { pages: 2, runs: 1 });
        assert_eq!(bytes(&memory), [0, 0, 7]);
        memory.reset_map();
        assert!(!memory.holds(START + (2 << 20), 1));
        memory.restore_layout(&layout).unwrap();
        assert_eq!(memory.save_without_contents(), layout);
        assert_eq!(memory.read_aligned::<1>(START + (2 << 20) + 5 * PAGE_SIZE), [7]);
    }

    #[test]
    fn code_and_watched_pages_are_told_of() {
        let mut memory = memory();
        memory.mark_code(0x5800, 4);
        memory.watch();
        memory.release([4..5, 5..7]);
        assert_eq!(memory.take_stale_code(), [5]);
        assert_eq!(memory.take_written(), Some(vec![4, 5, 6]));
    }
}
