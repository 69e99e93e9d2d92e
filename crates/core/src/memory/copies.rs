//! Copies of all memory at several moments, which share the pages that did not change between.

use std::sync::Arc;

use super::{Memory, PAGE_SIZE};
use crate::state::{RestoreError, SavedState};

const PAGE: usize = PAGE_SIZE as usize;
/// Bytes in a line, the smallest part of a page that [`Memory::put_back`] writes.
const LINE: usize = 64;
/// Number of pages in a group. Copies also share their lists of pages by groups.
const GROUP: usize = 512;

/// Consecutive pages. One of zeros is None.
type Group = Vec<Option<Arc<[u8; PAGE]>>>;

const ZEROS: &[u8; PAGE] = &[0; PAGE];

/// The contents of RAM and of all areas at one moment, and the map of them.
#[derive(Debug, Clone)]
pub struct MemoryCopy {
    groups: Vec<Arc<Group>>,
    map: SavedState,
}

impl MemoryCopy {
    /// Returns the bytes of contents that go when this copy is dropped, since no other one shares them.
    pub fn bytes_alone(&self) -> u64 {
        let groups = self.groups.iter().filter(|group| Arc::strong_count(group) == 1);
        let pages = groups.flat_map(|group| group.iter().flatten());
        pages.filter(|page| Arc::strong_count(page) == 1).count() as u64 * PAGE_SIZE
    }

    /// Returns the bytes of contents that `other` does not share.
    pub fn bytes_beside(&self, other: &MemoryCopy) -> u64 {
        let mut pages = 0;
        for (number, group) in self.groups.iter().enumerate() {
            let beside = other.groups.get(number);
            if beside.is_some_and(|beside| Arc::ptr_eq(group, beside)) {
                continue;
            }
            let beside = |index: usize| beside?.get(index)?.as_ref();
            let is_own = |(index, page): (usize, &Option<Arc<[u8; PAGE]>>)| {
                let page = page.as_ref()?;
                let shares = beside(index).is_some_and(|other| Arc::ptr_eq(page, other));
                (!shares).then_some(())
            };
            pages += group.iter().enumerate().filter_map(is_own).count() as u64;
        }
        pages * PAGE_SIZE
    }

    /// Returns the bytes of contents, with those that other copies share.
    pub fn bytes(&self) -> u64 {
        self.pages().count() as u64 * PAGE_SIZE
    }

    /// Returns the pages that are not all zero, each with the place of its first byte.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8; PAGE])> {
        let all = self.groups.iter().flat_map(|group| group.iter());
        let places = (0..).step_by(PAGE);
        places.zip(all).filter_map(|(place, page)| Some((place, &**page.as_ref()?)))
    }
}

/// Returns the bytes of a page.
fn bytes_of(page: Option<&Arc<[u8; PAGE]>>) -> &[u8; PAGE] {
    page.map_or(ZEROS, |page| page)
}

impl Memory {
    /// Copies everything. Pages that are as in `before` are shared with it, so that the new copy takes the
    /// memory of those that differ.
    pub fn copy(&self, before: Option<&MemoryCopy>) -> MemoryCopy {
        // Pages that are known to be zero are not looked at, which the host would have to provide for that.
        let mut full = self.full_pages();
        let count = full.len() / PAGE;
        let groups = (0..count).step_by(GROUP).enumerate().map(|(number, first)| {
            let pages = first..count.min(first + GROUP);
            let pages: Vec<_> = pages.map(|page| full.at(page * PAGE)).collect();
            copy_group(&pages, before.and_then(|copy| copy.groups.get(number)))
        });
        MemoryCopy { groups: groups.collect(), map: self.save_map() }
    }

    /// Makes the contents and the map those of `copy`, which was made of this memory. Only what differs is
    /// written, as by a device, so that engines drop the code that changes, and no other.
    pub fn put_back(&mut self, copy: &MemoryCopy) -> Result<(), RestoreError> {
        self.restore_map(&copy.map)?;
        let pages = copy.groups.iter().flat_map(|group| group.iter());
        for (place, page) in (0..self.bytes.len()).step_by(PAGE).zip(pages) {
            let kept = bytes_of(page.as_ref());
            if self.bytes[place..place + PAGE] == kept[..] {
                continue;
            }
            if self.is_plain(place) {
                self.bytes[place..place + PAGE].copy_from_slice(kept);
                continue;
            }
            for (offset, line) in (0..PAGE).step_by(LINE).zip(kept.chunks(LINE)) {
                let place = place + offset;
                if self.bytes[place..place + LINE] != *line {
                    self.write_place(place, line);
                }
            }
        }
        Ok(())
    }
}

/// Copies one group of pages. One of zeros is None.
fn copy_group(pages: &[Option<&[u8]>], before: Option<&Arc<Group>>) -> Arc<Group> {
    let kept = |index: usize| before.and_then(|group| group.get(index)).and_then(Option::as_ref);
    let is_kept = |(index, page): (usize, Option<&[u8]>)| match (page, kept(index)) {
        (Some(page), Some(kept)) => *page == kept[..],
        (page, kept) => page.is_none() && kept.is_none(),
    };
    if let Some(before) = before
        && pages.iter().copied().enumerate().all(is_kept)
    {
        return Arc::clone(before);
    }
    let copied = pages.iter().enumerate().map(|(index, page)| match (*page, kept(index)) {
        (Some(page), Some(kept)) if *page == kept[..] => Some(Arc::clone(kept)),
        (page, _) => page.and_then(<[u8]>::first_chunk).map(|page| Arc::new(*page)),
    });
    Arc::new(copied.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Backing;

    fn memory() -> Memory {
        Memory::new(4 << 20).unwrap()
    }

    #[test]
    fn memory_returns_to_each_of_its_copies() {
        let mut memory = memory();
        let area = memory.add_area(0x3000).unwrap();
        memory.write(0x1fff, &[1, 2]);
        memory.write_area(area, 0x2fff, &[3]);
        let (first, is_first) = (memory.copy(None), memory.save());
        memory.write(0x1fff, &[0, 9]);
        memory.write(0x3f_f000, &[4; 0x1000]);
        memory.write_area(area, 0, &[5]);
        memory.map(0xa_0000, 0x1000, Backing::Area(area, 0), Backing::Nothing).unwrap();
        let (second, is_second) = (memory.copy(Some(&first)), memory.save());
        memory.write(0, &vec![6; 0x5000]);
        for (copy, saved) in [(&first, &is_first), (&second, &is_second), (&first, &is_first)] {
            memory.put_back(copy).unwrap();
            assert_eq!(memory.save(), *saved);
        }
    }

    #[test]
    fn copies_share_the_pages_that_are_equal() {
        let mut memory = memory();
        memory.write(0x1000, &[1; 0x4000]);
        let first = memory.copy(None);
        assert_eq!(first.bytes_alone(), 0x4000);
        memory.write(0x2000, &[2]);
        memory.write(0x8000, &[3]);
        memory.write(0x3000, &[0; 0x1000]);
        let second = memory.copy(Some(&first));
        assert_eq!((first.bytes_alone(), second.bytes_alone()), (0x2000, 0x2000));
        let third = memory.copy(Some(&second));
        assert_eq!((second.bytes_alone(), third.bytes_alone()), (0, 0));
        let beside = [second.bytes_beside(&first), third.bytes_beside(&second)];
        assert_eq!((beside, first.bytes(), second.bytes()), ([0x2000, 0], 0x4000, 0x4000));
        drop((first, second));
        assert_eq!(third.bytes_alone(), 0x4000);
        let pages: Vec<_> = third.pages().map(|(place, page)| (place, page[0])).collect();
        assert_eq!(pages, [(0x1000, 1), (0x2000, 2), (0x4000, 1), (0x8000, 3)]);
    }

    #[test]
    fn only_code_that_changes_is_dropped() {
        let mut memory = memory();
        memory.write(0x1000, &[0x90; 0x3000]);
        let copy = memory.copy(None);
        for place in [0x1000, 0x2000, 0x3000] {
            memory.mark_code(place, 1);
        }
        // The second page changes beside its code.
        memory.take_stale_code();
        memory.write(0x1000, &[0xf4]);
        memory.write(0x2800, &[0xf4]);
        memory.take_stale_code();
        memory.mark_code(0x1000, 1);
        let layout = memory.layout_generation();
        memory.put_back(&copy).unwrap();
        assert_eq!(memory.take_stale_code(), [1]);
        assert_eq!(memory.layout_generation(), layout);
    }
}
