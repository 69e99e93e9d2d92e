//! The translation lookaside buffer: what makes memory accesses cheap.
//!
//! An entry is found by the low bits of the linear page number. For each kind of access it
//! has a bit that is only set if that access needs nothing but the address: it is
//! allowed, accessed and dirty bits are set, and the page has a place in memory (for writes: the same one,
//! without decoded code). Page number and bits are in one word, so one compare answers all.

use std::mem;

use ring3_core::memory::PAGE_SHIFT;

/// Entries for each privilege; a power of two.
const ENTRIES: usize = 1024;
const INDEX_MASK: u64 = ENTRIES as u64 - 1;
const PAGE_MASK: u64 = !0xfff;

/// One page: from bit 28 on the number of the linear page, in bits 24 to 27 those of [`right`], below
/// the number of the page in [`Memory`](ring3_core::memory::Memory).
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry(u64);

/// How far an entry's linear page address is shifted up.
const TAG_SHIFT: u32 = 28 - PAGE_SHIFT;
const TAG_MASK: u64 = !0 << 28;
const PLACE_MASK: u64 = (1 << 24) - 1;

/// Bits of an entry: what needs no further thought.
mod right {
    pub(super) const READ: u64 = 1 << 24;
    pub(super) const WRITE: u64 = 1 << 25;
    pub(super) const FETCH: u64 = 1 << 26;
    /// The mapping stays over loads of CR3 (SDM vol. 3, 5.10.2.4).
    pub(super) const GLOBAL: u64 = 1 << 27;
}

const EMPTY: Entry = Entry(0);

type Entries = Box<[Entry; ENTRIES]>;

/// The entries of one privilege.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    is_user: bool,
}

impl Space {
    /// For accesses of the user, or of the supervisor.
    pub fn of(is_user: bool) -> Space {
        Space { is_user }
    }
}

/// log2 of the size of a large page: 4 MiB.
const LARGE_SHIFT: u32 = 22;

/// The buffer.
#[derive(Debug, Clone)]
pub struct Tlb {
    /// The entries of the running code's privilege.
    current: Entries,
    /// Those of the other one.
    other: Entries,
    /// Whose `current` are.
    space: Space,
    /// A bit for every 4 MiB of the linear addresses: a large page there may have entries, one
    /// for each 4 KiB of it that were used.
    large: [u64; 16],
}

impl Default for Tlb {
    fn default() -> Self {
        // By way of the heap: on the stack they are large.
        let empty = || -> Entries { vec![EMPTY; ENTRIES].try_into().expect("so many") };
        Tlb { current: empty(), other: empty(), space: Space::of(false), large: [0; 16] }
    }
}

impl Tlb {
    /// From now on the running code has the privilege of `space`.
    pub fn enter(&mut self, space: Space) {
        if self.space != space {
            self.space = space;
            mem::swap(&mut self.current, &mut self.other);
        }
    }

    /// The entry where `linear` would be for the running code.
    #[inline(always)]
    pub fn current(&self, linear: u64) -> Entry {
        self.current[index(linear)]
    }

    /// The entry where `linear` would be in `space`.
    #[inline(always)]
    pub fn entry(&self, space: Space, linear: u64) -> Entry {
        if space == self.space { self.current(linear) } else { self.other[index(linear)] }
    }

    fn entries(&mut self, space: Space) -> &mut Entries {
        if space == self.space { &mut self.current } else { &mut self.other }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.current.iter_mut().chain(self.other.iter_mut())
    }

    /// Fills the entry of the linear page `linear` (any address in it): it is at `place`, the first of a page.
    pub fn fill(&mut self, space: Space, linear: u64, place: usize, rights: Rights) {
        if let Some(entry) = Entry::new(linear, place, rights) {
            self.entries(space)[index(linear)] = entry;
        }
        if rights.large {
            let (word, bit) = large_page(linear);
            self.large[word] |= bit;
        }
    }

    /// Drops everything.
    pub fn flush(&mut self) {
        self.current.fill(EMPTY);
        self.other.fill(EMPTY);
        self.large = [0; 16];
    }

    /// Drops everything of one privilege.
    pub fn flush_space(&mut self, space: Space) {
        self.entries(space).fill(EMPTY);
    }

    /// Drops all that is not global.
    pub fn flush_non_global(&mut self) {
        for entry in self.all().filter(|entry| entry.0 & right::GLOBAL == 0) {
            *entry = EMPTY;
        }
    }

    /// Drops the page of `linear`, with all its entries if it is a large one (SDM vol. 3, 5.10.4.1). True
    /// when it may have been one.
    pub fn flush_page(&mut self, linear: u64) -> bool {
        let (word, bit) = large_page(linear);
        if self.large[word] & bit == 0 {
            self.current[index(linear)] = EMPTY;
            self.other[index(linear)] = EMPTY;
            return false;
        }
        self.large[word] &= !bit;
        for entry in
            self.all().filter(|entry| entry.linear() >> LARGE_SHIFT == linear >> LARGE_SHIFT)
        {
            *entry = EMPTY;
        }
        true
    }

    /// Sends all writes to the page at `place` through the slow path.
    pub fn protect(&mut self, place: usize) {
        for entry in self.all().filter(|entry| entry.place() == place) {
            entry.0 &= !right::WRITE;
        }
    }
}

/// The number of the entry of `linear`.
#[inline(always)]
fn index(linear: u64) -> usize {
    (linear >> 12 & INDEX_MASK) as usize
}

/// Where [`Tlb::large`] has the 4 MiB of `linear`: the word, and the bit in it.
fn large_page(linear: u64) -> (usize, u64) {
    let number = linear >> LARGE_SHIFT & 0x3ff;
    (number as usize / 64, 1 << (number % 64))
}

impl Entry {
    /// None where memory is larger than an entry can tell.
    fn new(linear: u64, place: usize, rights: Rights) -> Option<Entry> {
        let bit = |allowed: bool, bit: u64| if allowed { bit } else { 0 };
        let bits = bit(rights.read, right::READ)
            | bit(rights.write, right::WRITE)
            | bit(rights.fetch, right::FETCH)
            | bit(rights.global, right::GLOBAL);
        let page = place as u64 >> PAGE_SHIFT;
        let tag = linear << TAG_SHIFT & TAG_MASK;
        (page <= PLACE_MASK).then_some(Entry(tag | bits | page))
    }

    /// The place of its page.
    #[inline(always)]
    fn place(self) -> usize {
        ((self.0 & PLACE_MASK) << PAGE_SHIFT) as usize
    }

    /// The linear address of its page.
    fn linear(self) -> u64 {
        (self.0 & TAG_MASK) >> TAG_SHIFT
    }

    /// The place of `linear`, if `size` bytes of data can be read there at once.
    #[inline(always)]
    pub fn for_read(self, linear: u64, size: usize) -> Option<usize> {
        self.address(linear, size, right::READ)
    }

    /// The place of `linear`, if `size` bytes of data can be written there at once.
    #[inline(always)]
    pub fn for_write(self, linear: u64, size: usize) -> Option<usize> {
        self.address(linear, size, right::WRITE)
    }

    /// The place of `linear`, if instructions can be fetched there at once.
    #[inline(always)]
    pub fn for_fetch(self, linear: u64) -> Option<usize> {
        self.address(linear, 1, right::FETCH)
    }

    /// An access that crosses into the next page ends in a page that is not this entry's.
    #[inline(always)]
    fn address(self, linear: u64, size: usize, bit: u64) -> Option<usize> {
        let last = linear + (size as u64 - 1);
        (self.0 & (TAG_MASK | bit) == last << TAG_SHIFT & TAG_MASK | bit)
            .then_some(self.place() | (linear & !PAGE_MASK) as usize)
    }
}

/// What an entry allows without further thought.
#[derive(Debug, Clone, Copy)]
pub struct Rights {
    /// Reading data.
    pub read: bool,
    /// Writing data.
    pub write: bool,
    /// Fetching instructions.
    pub fetch: bool,
    /// Staying over loads of CR3.
    pub global: bool,
    /// The page is part of a 4 MiB page.
    pub large: bool,
}
