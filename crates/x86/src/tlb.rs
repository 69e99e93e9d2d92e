//! The translation lookaside buffer: what makes memory accesses cheap.
//!
//! An entry is found by the low bits of the linear page number. For each kind of access it
//! has a bit that is only set if that access needs nothing but the address: it is
//! allowed, accessed and dirty bits are set, and the page has a place in memory (for writes: the same one,
//! without decoded code). Page number and bits are one word, so one compare answers all.

/// Entries; a power of two.
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
    /// The place of the page in [`Memory`](ring3_core::memory::Memory).
    page: u64,
}

const EMPTY: Entry = Entry { tag: 0, page: 0 };

/// log2 of the size of a large page: 4 MiB.
const LARGE_SHIFT: u32 = 22;

/// The buffer for one privilege: supervisor or user accesses.
#[derive(Debug, Clone)]
pub struct Tlb {
    entries: Box<[Entry; ENTRIES]>,
    /// A bit for every 4 MiB of the linear addresses: a large page there may have entries, one
    /// for each 4 KiB of it that were used.
    large: [u64; 16],
}

impl Default for Tlb {
    fn default() -> Self {
        Tlb { entries: Box::new([EMPTY; ENTRIES]), large: [0; 16] }
    }
}

impl Tlb {
    /// The entry where `linear` would be.
    #[inline(always)]
    pub fn entry(&self, linear: u64) -> &Entry {
        &self.entries[(linear >> 12 & INDEX_MASK) as usize]
    }

    /// Fills the entry of the linear page `linear` (any address in it): it is at place `page`.
    pub fn fill(&mut self, linear: u64, page: u64, rights: Rights) {
        *self.entry_mut(linear) = Entry::new(linear, page, rights);
        if rights.large {
            let (word, bit) = large_page(linear);
            self.large[word] |= bit;
        }
    }

    fn entry_mut(&mut self, linear: u64) -> &mut Entry {
        &mut self.entries[(linear >> 12 & INDEX_MASK) as usize]
    }

    /// Drops everything.
    pub fn flush(&mut self) {
        self.entries.fill(EMPTY);
        self.large = [0; 16];
    }

    /// Drops all that is not global.
    pub fn flush_non_global(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.tag & tag::GLOBAL == 0) {
            *entry = EMPTY;
        }
    }

    /// Drops the page of `linear`, with all its entries if it is a large one (SDM vol. 3, 5.10.4.1).
    pub fn flush_page(&mut self, linear: u64) {
        let (word, bit) = large_page(linear);
        if self.large[word] & bit == 0 {
            *self.entry_mut(linear) = EMPTY;
            return;
        }
        self.large[word] &= !bit;
        let of_page = |entry: &&mut Entry| entry.tag >> LARGE_SHIFT == linear >> LARGE_SHIFT;
        for entry in self.entries.iter_mut().filter(of_page) {
            *entry = EMPTY;
        }
    }

    /// Sends all writes to the page at place `page` through the slow path.
    pub fn protect(&mut self, page: u64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.page == page) {
            entry.tag &= !tag::WRITE;
        }
    }
}

/// Where [`Tlb::large`] has the 4 MiB of `linear`: the word, and the bit in it.
fn large_page(linear: u64) -> (usize, u64) {
    let number = linear >> LARGE_SHIFT & 0x3ff;
    (number as usize / 64, 1 << (number % 64))
}

impl Entry {
    fn new(linear: u64, page: u64, rights: Rights) -> Entry {
        let bit = |allowed: bool, bit: u64| if allowed { bit } else { 0 };
        let bits = bit(rights.read, tag::READ)
            | bit(rights.write, tag::WRITE)
            | bit(rights.fetch, tag::FETCH)
            | bit(rights.global, tag::GLOBAL);
        Entry { tag: linear & PAGE_MASK | bits, page }
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
            .then_some((self.page | linear & !PAGE_MASK) as usize)
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
