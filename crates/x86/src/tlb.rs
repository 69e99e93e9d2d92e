//! The translation lookaside buffer: what makes memory accesses cheap.
//!
//! An entry is found by the low bits of the linear page number. Each kind of access has
//! a tag of its own, which is only there if that access needs nothing but
//! the address: it is allowed, accessed and dirty bits are set, and the page is
//! RAM (for writes: RAM without decoded code). So one compare answers all.

/// Entries; a power of two.
const ENTRIES: usize = 1024;
const INDEX_MASK: u64 = ENTRIES as u64 - 1;
/// Never equal to a page address.
const NO_TAG: u64 = 1;

/// One page.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Linear page address if data may be read at once.
    pub read: u64,
    /// Linear page address if data may be written at once.
    pub write: u64,
    /// Linear page address if instructions may be fetched at once.
    pub fetch: u64,
    /// Guest-physical address of the page.
    pub page: u64,
    /// The mapping stays over loads of CR3 (SDM vol. 3, 5.10.2.4).
    pub global: bool,
}

const EMPTY: Entry = Entry { read: NO_TAG, write: NO_TAG, fetch: NO_TAG, page: 0, global: false };

/// The buffer for one privilege: supervisor or user accesses.
#[derive(Debug, Clone)]
pub struct Tlb {
    entries: Box<[Entry; ENTRIES]>,
}

impl Default for Tlb {
    fn default() -> Self {
        Tlb { entries: Box::new([EMPTY; ENTRIES]) }
    }
}

impl Tlb {
    /// The entry where `linear` would be.
    #[inline(always)]
    pub fn entry(&self, linear: u64) -> &Entry {
        &self.entries[(linear >> 12 & INDEX_MASK) as usize]
    }

    /// The same, to be filled.
    #[inline(always)]
    pub fn entry_mut(&mut self, linear: u64) -> &mut Entry {
        &mut self.entries[(linear >> 12 & INDEX_MASK) as usize]
    }

    /// Drops everything.
    pub fn flush(&mut self) {
        self.entries.fill(EMPTY);
    }

    /// Drops all that is not global.
    pub fn flush_non_global(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| !entry.global) {
            *entry = EMPTY;
        }
    }

    /// Drops the page of `linear`.
    pub fn flush_page(&mut self, linear: u64) {
        *self.entry_mut(linear) = EMPTY;
    }

    /// Sends all writes to the guest-physical page at `page` through the slow path.
    pub fn protect(&mut self, page: u64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.page == page) {
            entry.write = NO_TAG;
        }
    }
}

impl Entry {
    /// An entry for the linear page `linear` (any address in it) at
    /// guest-physical page `page`.
    pub fn new(linear: u64, page: u64, rights: Rights) -> Entry {
        let tag = |allowed| if allowed { linear & !0xfff } else { NO_TAG };
        Entry {
            read: tag(rights.read),
            write: tag(rights.write),
            fetch: tag(rights.fetch),
            page,
            global: rights.global,
        }
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
}
