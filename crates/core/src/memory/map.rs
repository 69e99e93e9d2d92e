//! The map of guest-physical pages: where accesses to each of them go.

use std::array;
use std::ops::Range;

use super::{Backing, PAGE_SHIFT, PAGE_SIZE, RamLayout, Target};

/// Pages in a part of the map.
const PART: usize = 1024;

/// The entry of a page that belongs to a device.
const DEVICE: u32 = 0;
/// The entry of a page with nothing.
const NOTHING: u32 = 1;
/// The entry of the page of the array with number 0.
const FIRST: u32 = 2;

/// What is behind a guest-physical page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Device,
    Nothing,
    /// The page of the array with this number.
    Page(u32),
}

impl Entry {
    fn of(entry: u32) -> Entry {
        match entry {
            DEVICE => Entry::Device,
            NOTHING => Entry::Nothing,
            page => Entry::Page(page - FIRST),
        }
    }

    fn number(self) -> u32 {
        match self {
            Entry::Device => DEVICE,
            Entry::Nothing => NOTHING,
            Entry::Page(page) => page + FIRST,
        }
    }
}

/// The guest-physical pages that are RAM at power-on.
#[derive(Debug, Clone, Copy)]
struct Ram {
    /// The end of those from page 0 on.
    low_end: usize,
    /// Those above 4 GiB, if there are any.
    high_start: usize,
    high_end: usize,
}

impl Ram {
    fn of(layout: RamLayout) -> Ram {
        let [low, high] = layout.ranges().map(pages);
        Ram { low_end: low.end, high_start: high.start, high_end: high.end }
    }

    /// Returns the entry of `page` at power-on.
    #[inline(always)]
    fn entry(self, page: usize) -> u32 {
        if page < self.low_end {
            page as u32 + FIRST
        } else if (self.high_start..self.high_end).contains(&page) {
            place_of(page) + FIRST
        } else {
            DEVICE
        }
    }
}

/// Returns the pages of these addresses.
fn pages(addresses: Range<u64>) -> Range<usize> {
    (addresses.start >> PAGE_SHIFT) as usize..(addresses.end >> PAGE_SHIFT) as usize
}

/// Returns the page of the array that is RAM at guest-physical page `page`.
#[inline(always)]
fn place_of(page: usize) -> u32 {
    (RamLayout::place_of((page as u64) << PAGE_SHIFT) >> PAGE_SHIFT) as u32
}

/// The map for one direction, in parts of 4 MiB. A part that is None is as at power-on, so that the map of a large
/// machine is neither written nor takes memory for all of its RAM.
pub(super) struct Map {
    parts: Vec<Option<Box<[u32; PART]>>>,
    ram: Ram,
}

impl Map {
    /// Makes the map at power-on: RAM where it belongs, and devices elsewhere.
    pub(super) fn new(layout: RamLayout) -> Map {
        let parts = ((layout.end() >> PAGE_SHIFT) as usize).div_ceil(PART);
        Map { parts: (0..parts).map(|_| None).collect(), ram: Ram::of(layout) }
    }

    /// Lets all pages before `end` be mapped, which are devices' at power-on as far as they could not be before.
    pub(super) fn extend(&mut self, end: u64) {
        let parts = ((end >> PAGE_SHIFT) as usize).div_ceil(PART);
        self.parts.resize(parts.max(self.parts.len()), None);
    }

    /// Makes it as at power-on again.
    pub(super) fn reset(&mut self) {
        self.parts.fill(None);
    }

    /// Returns the pages that are RAM at power-on.
    pub(super) fn ram(&self) -> [Range<usize>; 2] {
        let Ram { low_end, high_start, high_end } = self.ram;
        [0..low_end, high_start..high_end]
    }

    /// Returns what is behind `page` at power-on.
    pub(super) fn at_power_on(&self, page: usize) -> Entry {
        Entry::of(self.ram.entry(page))
    }

    #[inline(always)]
    fn entry(&self, page: usize) -> u32 {
        match self.parts.get(page / PART) {
            Some(None) => self.ram.entry(page),
            Some(Some(part)) => part[page % PART],
            None => DEVICE,
        }
    }

    /// Puts `entry` behind guest-physical page `page`.
    ///
    /// # Panics
    /// When the page is beyond those that can be mapped.
    pub(super) fn put(&mut self, page: usize, entry: Entry) {
        if self.entry(page) == entry.number() {
            return;
        }
        let (first, ram) = (page - page % PART, self.ram);
        let made = || Box::new(array::from_fn(|index| ram.entry(first + index)));
        self.parts[page / PART].get_or_insert_with(made)[page % PART] = entry.number();
    }

    /// Maps guest-physical page `page` to page `index` of `backing`.
    pub(super) fn set(&mut self, page: usize, index: usize, backing: Backing) {
        self.put(
            page,
            match backing {
                Backing::Device => Entry::Device,
                Backing::Nothing => Entry::Nothing,
                Backing::Ram => Entry::Page(place_of(page)),
                Backing::Area(area, offset) => {
                    Entry::Page(area.first_page + (offset >> PAGE_SHIFT) as u32 + index as u32)
                }
            },
        );
    }

    /// Returns where an access at guest-physical address `address` goes.
    #[inline(always)]
    pub(super) fn target(&self, address: u64) -> Target {
        let page = usize::try_from(address >> PAGE_SHIFT).unwrap_or(usize::MAX);
        match Entry::of(self.entry(page)) {
            Entry::Device => Target::Device,
            Entry::Nothing => Target::Nothing,
            Entry::Page(page) => {
                let offset = (address & (PAGE_SIZE - 1)) as usize;
                Target::Place((page as usize) << PAGE_SHIFT | offset)
            }
        }
    }

    /// Passes all of the map to `each`, in order: runs of pages of which either all are like the first, or each is
    /// the page of the array behind the one before it.
    pub(super) fn for_each_run(&self, mut each: impl FnMut(Range<usize>, Entry)) {
        for (number, part) in self.parts.iter().enumerate() {
            let pages = number * PART..(number + 1) * PART;
            if let Some(part) = part {
                pages
                    .zip(part.iter())
                    .for_each(|(page, entry)| each(page..page + 1, Entry::of(*entry)));
            } else {
                // RAM begins at a multiple of a part.
                let range = &self.ram()[usize::from(pages.start >= self.ram.high_start)];
                let ram_end = range.end.clamp(pages.start, pages.end);
                each(pages.start..ram_end, Entry::Page(place_of(pages.start)));
                each(ram_end..pages.end, Entry::Device);
            }
        }
    }
}
