//! The translation lookaside buffer: what makes memory accesses cheap.
//!
//! An entry is found by the low bits of the linear page number. For each kind of access it
//! has a bit that is only set if that access needs nothing but the address: it is
//! allowed, accessed and dirty bits are set, and the page has a place in memory (for writes: the same one,
//! without decoded code). Page number and bits are one word, so one compare answers all.

use ring3_core::memory::PAGE_SHIFT;

/// Entries for each privilege; a power of two.
const ENTRIES: usize = 1024;
const INDEX_MASK: u64 = ENTRIES as u64 - 1;
const PAGE_MASK: u64 = !0xfff;

/// Bits of an entry's tag: what needs no further thought.
mod tag {
    pub(super) const READ: u64 = 1 << 0;
    pub(super) const WRITE: u64 = 1 << 1;
    pub(super) const FETCH: u64 = 1 << 2;
    /// The mapping stays over loads of CR3 (SDM vol. 3, 5.10.2.4).
    pub(super) const GLOBAL: u64 = 1 << 3;
}

/// One page.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry {
    /// Linear page address and the bits of [`tag`].
    tag: u64,
    /// The page in [`Memory`](ring3_core::memory::Memory): a place, without the bits in the page.
    page: u32,
}

const EMPTY: Entry = Entry { tag: 0, page: 0 };

/// The entries of one privilege, as an offset in all entries: what the processor keeps ready
/// for the running code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space(usize);

impl Space {
    /// For accesses of the user, or of the supervisor.
    pub fn of(user: bool) -> Space {
        Space(if user { ENTRIES } else { 0 })
    }

    fn range(self) -> std::ops::Range<usize> {
        self.0..self.0 + ENTRIES
    }
}

/// log2 of the size of a large page: 4 MiB.
const LARGE_SHIFT: u32 = 22;

/// The buffer.
#[derive(Debug, Clone)]
pub struct Tlb {
    /// The supervisor's, then the user's.
    entries: Box<[Entry; 2 * ENTRIES]>,
    /// A bit for every 4 MiB of the linear addresses: a large page there may have entries, one
    /// for each 4 KiB of it that were used.
    large: [u64; 16],
}

impl Default for Tlb {
    fn default() -> Self {
        // By way of the heap: on the stack it is large.
        let entries = vec![EMPTY; 2 * ENTRIES].try_into().expect("so many");
        Tlb { entries, large: [0; 16] }
    }
}

impl Tlb {
    /// The entry where `linear` would be.
    #[inline(always)]
    pub fn entry(&self, space: Space, linear: u64) -> &Entry {
        &self.entries[index(space, linear)]
    }

    /// Fills the entry of the linear page `linear` (any address in it): it is at `place`, the first of a page.
    pub fn fill(&mut self, space: Space, linear: u64, place: usize, rights: Rights) {
        self.entries[index(space, linear)] = Entry::new(linear, place, rights);
        if rights.large {
            let (word, bit) = large_page(linear);
            self.large[word] |= bit;
        }
    }

    /// Drops everything.
    pub fn flush(&mut self) {
        self.entries.fill(EMPTY);
        self.large = [0; 16];
    }

    /// Drops everything of one privilege.
    pub fn flush_space(&mut self, space: Space) {
        self.entries[space.range()].fill(EMPTY);
    }

    /// Drops all that is not global.
    pub fn flush_non_global(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.tag & tag::GLOBAL == 0) {
            *entry = EMPTY;
        }
    }

    /// Drops the page of `linear`, with all its entries if it is a large one (SDM vol. 3, 5.10.4.1). True
    /// when it may have been one.
    pub fn flush_page(&mut self, linear: u64) -> bool {
        let (word, bit) = large_page(linear);
        if self.large[word] & bit == 0 {
            for user in [false, true] {
                self.entries[index(Space::of(user), linear)] = EMPTY;
            }
            return false;
        }
        self.large[word] &= !bit;
        let of_page = |entry: &&mut Entry| entry.tag >> LARGE_SHIFT == linear >> LARGE_SHIFT;
        for entry in self.entries.iter_mut().filter(of_page) {
            *entry = EMPTY;
        }
        true
    }

    /// Sends all writes to the page at `place` through the slow path.
    pub fn protect(&mut self, place: usize) {
        for entry in self.entries.iter_mut().filter(|entry| entry.place() == place) {
            entry.tag &= !tag::WRITE;
        }
    }
}

/// The number of the entry of `linear`.
#[inline(always)]
fn index(space: Space, linear: u64) -> usize {
    (space.0 | (linear >> 12 & INDEX_MASK) as usize) & (2 * ENTRIES - 1)
}

/// Where [`Tlb::large`] has the 4 MiB of `linear`: the word, and the bit in it.
fn large_page(linear: u64) -> (usize, u64) {
    let number = linear >> LARGE_SHIFT & 0x3ff;
    (number as usize / 64, 1 << (number % 64))
}

impl Entry {
    fn new(linear: u64, place: usize, rights: Rights) -> Entry {
        let bit = |allowed: bool, bit: u64| if allowed { bit } else { 0 };
        let bits = bit(rights.read, tag::READ)
            | bit(rights.write, tag::WRITE)
            | bit(rights.fetch, tag::FETCH)
            | bit(rights.global, tag::GLOBAL);
        Entry { tag: linear & PAGE_MASK | bits, page: (place >> PAGE_SHIFT) as u32 }
    }

    /// The place of its page.
    #[inline(always)]
    fn place(&self) -> usize {
        (self.page as usize) << PAGE_SHIFT
    }

    /// The place of `linear`, if `size` bytes of data can be read there at once.
    #[inline(always)]
    pub fn for_read(&self, linear: u64, size: usize) -> Option<usize> {
        self.address(linear, size, tag::READ)
    }

    /// The place of `linear`, if `size` bytes of data can be written there at once.
    #[inline(always)]
    pub fn for_write(&self, linear: u64, size: usize) -> Option<usize> {
        self.address(linear, size, tag::WRITE)
    }

    /// The place of `linear`, if instructions can be fetched there at once.
    #[inline(always)]
    pub fn for_fetch(&self, linear: u64) -> Option<usize> {
        self.address(linear, 1, tag::FETCH)
    }

    /// An access that crosses into the next page ends in a page that is not this entry's.
    #[inline(always)]
    fn address(&self, linear: u64, size: usize, bit: u64) -> Option<usize> {
        let last = linear + (size as u64 - 1);
        (self.tag & (PAGE_MASK | bit) == last & PAGE_MASK | bit)
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
