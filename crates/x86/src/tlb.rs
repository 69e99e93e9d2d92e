//! The translation lookaside buffer, which makes memory accesses cheap.
//!
//! An entry is found by the low bits of the linear page number. It holds the page's address separately for
//! each kind of access, and only if that access needs no further checks: it is allowed, accessed and dirty
//! bits are set, and the page has a place in memory (for writes: the same one, without decoded code). So one
//! compare answers all questions.

use std::mem;

/// Number of entries for each privilege; a power of two.
const ENTRIES: usize = 1024;
const PAGE_MASK: u64 = !0xfff;
/// An address that no page has.
const NO_PAGE: u64 = u64::MAX;

/// The entry of one page.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The linear address of the page, if data can be read there at once.
    read: u64,
    /// The linear address of the page, if data can be written there at once.
    write: u64,
    /// The linear address of the page, if instructions can be fetched there at once.
    fetch: u64,
    /// The number to add to a linear address in the page to get its place in
    /// [`Memory`](ring3_core::memory::Memory).
    to_place: u64,
}

const EMPTY: Entry = Entry { read: NO_PAGE, write: NO_PAGE, fetch: NO_PAGE, to_place: 0 };

/// The entries of one privilege.
#[derive(Debug, Clone)]
struct Entries {
    pages: Box<[Entry; ENTRIES]>,
    /// A bit for each entry that may not be empty. Usually few entries are used between two flushes.
    used: [u64; ENTRIES / 64],
    /// A bit for each entry whose mapping stays over loads of CR3 (SDM vol. 3, 5.10.2.4).
    global: [u64; ENTRIES / 64],
    /// A bit for each entry that may not be empty and whose page the user may access.
    users: [u64; ENTRIES / 64],
}

impl Default for Entries {
    fn default() -> Self {
        // This is made on the heap, since it is large for the stack.
        let pages = vec![EMPTY; ENTRIES].try_into().expect("so many");
        let none = [0; ENTRIES / 64];
        Entries { pages, used: none, global: none, users: none }
    }
}

impl Entries {
    fn set(&mut self, number: usize, entry: Entry, rights: Rights) {
        self.pages[number] = entry;
        let bit = 1 << (number % 64);
        self.used[number / 64] |= bit;
        for (words, is_set) in [(&mut self.global, rights.global), (&mut self.users, rights.user)] {
            let word = &mut words[number / 64];
            *word = if is_set { *word | bit } else { *word & !bit };
        }
    }

    fn is_users(&self, number: usize) -> bool {
        self.users[number / 64] >> (number % 64) & 1 != 0
    }

    fn flush_user_pages(&mut self) {
        for (pages, users) in self.pages.chunks_exact_mut(64).zip(&mut self.users) {
            for number in bits(mem::take(users)) {
                pages[number] = EMPTY;
            }
        }
    }

    fn flush(&mut self) {
        self.global = [0; ENTRIES / 64];
        self.flush_non_global();
    }

    fn flush_non_global(&mut self) {
        let words = self.used.iter_mut().zip(self.global);
        for (pages, (used, global)) in self.pages.chunks_exact_mut(64).zip(words) {
            for number in bits(*used & !global) {
                pages[number] = EMPTY;
            }
            *used &= global;
        }
        for (users, used) in self.users.iter_mut().zip(self.used) {
            *users &= used;
        }
    }

    /// Calls `change` for the entries that may not be empty.
    fn change_used(&mut self, mut change: impl FnMut(&mut Entry)) {
        for (pages, used) in self.pages.chunks_exact_mut(64).zip(self.used) {
            for number in bits(used) {
                change(&mut pages[number]);
            }
        }
    }
}

/// The privilege for whose accesses entries are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    is_user: bool,
}

impl Space {
    /// Returns the space for accesses of the user, or of the supervisor.
    pub fn of(is_user: bool) -> Space {
        Space { is_user }
    }
}

/// log2 of the size of a large page: 4 MiB. One of 2 MiB counts as half of such a page.
const LARGE_SHIFT: u32 = 22;
/// log2 of the size of a huge page: 1 GiB.
const HUGE_SHIFT: u32 = 30;

/// The buffer.
#[derive(Debug, Clone)]
pub struct Tlb {
    /// The entries of the running code's privilege.
    current: Entries,
    /// The entries of the other privilege.
    other: Entries,
    /// The space of `current`.
    space: Space,
    /// A bit for every 4 MiB of the linear addresses, by its number modulo 1024, in which a large page may have
    /// entries: one for each 4 KiB of it that were accessed.
    large: [u64; 16],
    /// Whether different addresses may have the same bit of `large`, since there are some beyond 4 GiB.
    shares_bits: bool,
    /// Whether a huge page may have entries.
    has_huge: bool,
}

impl Default for Tlb {
    fn default() -> Self {
        Tlb {
            current: Entries::default(),
            other: Entries::default(),
            space: Space::of(false),
            large: [0; 16],
            shares_bits: false,
            has_huge: false,
        }
    }
}

impl Tlb {
    /// Switches to the privilege of `space` for the running code.
    pub fn enter(&mut self, space: Space) {
        if self.space != space {
            self.space = space;
            mem::swap(&mut self.current, &mut self.other);
        }
    }

    /// Returns the entry in which `linear` would be for the running code.
    #[inline(always)]
    pub fn current(&self, linear: u64) -> &Entry {
        &self.current.pages[index(linear)]
    }

    /// Returns the entry in which `linear` would be in `space`.
    #[inline(always)]
    pub fn entry(&self, space: Space, linear: u64) -> &Entry {
        if space == self.space { self.current(linear) } else { &self.other.pages[index(linear)] }
    }

    fn entries(&mut self, space: Space) -> &mut Entries {
        if space == self.space { &mut self.current } else { &mut self.other }
    }

    fn change_used(&mut self, mut change: impl FnMut(&mut Entry)) {
        self.current.change_used(&mut change);
        self.other.change_used(&mut change);
    }

    /// Fills the entry of the page that contains the linear address `linear`, and that is at `place`, the
    /// first one of a page.
    pub fn fill(&mut self, space: Space, linear: u64, place: usize, rights: Rights) {
        self.entries(space).set(index(linear), Entry::new(linear, place, rights), rights);
        match rights.page {
            PageSize::Small => {}
            PageSize::Large => {
                let (word, bit) = large_page(linear);
                self.large[word] |= bit;
                self.shares_bits |= linear >> 32 != 0;
            }
            PageSize::Huge => self.has_huge = true,
        }
    }

    /// Returns whether the entry in which `linear` would be for supervisor accesses may belong to a page that
    /// the user may access too.
    pub fn may_be_users(&self, linear: u64) -> bool {
        let is_current = self.space == Space::of(false);
        let entries = if is_current { &self.current } else { &self.other };
        entries.is_users(index(linear))
    }

    /// Drops the supervisor's entries of pages that the user may access too.
    pub fn flush_user_pages(&mut self) {
        self.entries(Space::of(false)).flush_user_pages();
    }

    /// Drops all entries.
    pub fn flush(&mut self) {
        self.current.flush();
        self.other.flush();
        self.large = [0; 16];
        (self.shares_bits, self.has_huge) = (false, false);
    }

    /// Drops all entries of one privilege.
    pub fn flush_space(&mut self, space: Space) {
        self.entries(space).flush();
    }

    /// Drops all entries that are not global.
    pub fn flush_non_global(&mut self) {
        self.current.flush_non_global();
        self.other.flush_non_global();
    }

    /// Drops the page of `linear`, with all its entries if it is a large one (SDM vol. 3, 5.10.4.1). Returns
    /// whether it may have been one.
    pub fn flush_page(&mut self, linear: u64) -> bool {
        let (word, bit) = large_page(linear);
        if self.has_huge {
            self.flush_around(linear, HUGE_SHIFT);
            return true;
        }
        if self.large[word] & bit == 0 {
            self.current.pages[index(linear)] = EMPTY;
            self.other.pages[index(linear)] = EMPTY;
            return false;
        }
        if !self.shares_bits {
            self.large[word] &= !bit;
        }
        self.flush_around(linear, LARGE_SHIFT);
        true
    }

    /// Drops all entries with the same address as `linear` from bit `shift` on.
    fn flush_around(&mut self, linear: u64, shift: u32) {
        self.change_used(|entry| {
            if entry.is_around(linear, shift) {
                *entry = EMPTY;
            }
        });
    }

    /// Sends all writes to the page at `place` through the slow path.
    pub fn protect(&mut self, place: usize) {
        self.change_used(|entry| {
            if entry.writes_to(place) {
                entry.write = NO_PAGE;
            }
        });
    }

    /// Takes the right to write from all entries.
    pub fn protect_all(&mut self) {
        self.change_used(|entry| entry.write = NO_PAGE);
    }
}

/// Returns the numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (number < 64).then_some(number)
    })
}

/// Returns the number of the entry of `linear`.
#[inline(always)]
fn index(linear: u64) -> usize {
    (linear >> 12) as usize % ENTRIES
}

/// Returns the word and the bit of the 4 MiB of `linear` in [`Tlb::large`].
fn large_page(linear: u64) -> (usize, u64) {
    let number = linear >> LARGE_SHIFT & 0x3ff;
    (number as usize / 64, 1 << (number % 64))
}

impl Entry {
    fn new(linear: u64, place: usize, rights: Rights) -> Entry {
        let page = linear & PAGE_MASK;
        let if_allowed = |allowed: bool| if allowed { page } else { NO_PAGE };
        Entry {
            read: if_allowed(rights.read),
            write: if_allowed(rights.write),
            fetch: if_allowed(rights.fetch),
            to_place: (place as u64).wrapping_sub(page),
        }
    }

    /// Returns whether it holds a page whose address is the same as `linear` from bit `shift` on.
    fn is_around(&self, linear: u64, shift: u32) -> bool {
        let in_it = |page: u64| page != NO_PAGE && page >> shift == linear >> shift;
        in_it(self.read) || in_it(self.write) || in_it(self.fetch)
    }

    /// Returns whether it lets writes to the page at `place` through at once.
    fn writes_to(&self, place: usize) -> bool {
        self.write != NO_PAGE && self.place(self.write) == place
    }

    /// Returns the place of `linear`, which is in the page.
    #[inline(always)]
    fn place(&self, linear: u64) -> usize {
        linear.wrapping_add(self.to_place) as usize
    }

    /// Returns the place of `linear`, if `size` bytes of data can be read there at once.
    #[inline(always)]
    pub fn for_read(&self, linear: u64, size: usize) -> Option<usize> {
        (self.read == last_page(linear, size)).then_some(self.place(linear))
    }

    /// Returns the place of `linear`, if `size` bytes of data can be written there at once.
    #[inline(always)]
    pub fn for_write(&self, linear: u64, size: usize) -> Option<usize> {
        (self.write == last_page(linear, size)).then_some(self.place(linear))
    }

    /// Returns the place of `linear`, if instructions can be fetched there at once.
    #[inline(always)]
    pub fn for_fetch(&self, linear: u64) -> Option<usize> {
        (self.fetch == last_page(linear, 1)).then_some(self.place(linear))
    }
}

/// Returns the page of the last of `size` bytes at `linear`. If they cross into the next page, this differs
/// from the page in the entry of `linear`.
#[inline(always)]
fn last_page(linear: u64, size: usize) -> u64 {
    linear.wrapping_add(size as u64 - 1) & PAGE_MASK
}

/// The accesses that an entry allows without further checks.
#[derive(Debug, Clone, Copy)]
pub struct Rights {
    /// Reading data.
    pub read: bool,
    /// Writing data.
    pub write: bool,
    /// Fetching instructions.
    pub fetch: bool,
    /// Whether the entry stays over loads of CR3.
    pub global: bool,
    /// Whether the user may access the page.
    pub user: bool,
    /// The size of the page to which it belongs.
    pub page: PageSize,
}

/// The sizes of pages (SDM vol. 3, table 5-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB or 4 MiB.
    Large,
    /// 1 GiB.
    Huge,
}
