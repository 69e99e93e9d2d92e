//! A window: 4 GiB of the host's addresses that stand for the guest's linear addresses.
//!
//! Linux takes several microseconds to map a page in the middle of an empty range, and as many to unmap it,
//! since it splits and joins its records of the addresses around it. Changing the protection of a page takes
//! a third of that. So small pages that accesses must no longer reach are *hidden*: they stay mapped, but
//! every access to them faults. The page that is mapped there next is often the same one; any other replaces
//! it alone.

use std::io;

use crate::map::Map;
use crate::memory::host_memory::{GuestFile, PAGE, Range};

/// Bytes that a guest can address.
const SIZE: usize = 1 << 32;
/// Bytes on both sides of the window at which nothing is mapped, for BT with a bit far away and for operands
/// that go beyond the end.
const GUARD: usize = 1 << 30;

/// Upper bound of the hidden pages of a window. More pages are unmapped.
const MOST_HIDDEN: usize = 512;

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    range: Range,
    /// Offset in the range of linear address 0.
    zero: usize,
    /// Places of hidden pages, by linear address.
    hidden: Map<u32, usize>,
}

impl Window {
    /// Returns a window in which nothing is mapped.
    pub(crate) fn new() -> io::Result<Window> {
        // String instructions need it to begin at a multiple of 4 GiB.
        let range = Range::reserve(SIZE + 2 * GUARD + SIZE)?;
        let first = range.address() + GUARD;
        let zero = first.next_multiple_of(SIZE) - range.address();
        Ok(Window { range, zero, hidden: Map::default() })
    }

    /// Returns the host address of linear address 0.
    pub(crate) fn base(&self) -> u64 {
        (self.range.address() + self.zero) as u64
    }

    /// Returns the linear address for the host address `address`, if that is in the window.
    pub(crate) fn linear(&self, address: u64) -> Option<u32> {
        u32::try_from(address.wrapping_sub(self.base())).ok()
    }

    /// Maps `len` bytes of `file`, from offset `from` on, at `linear`.
    pub(crate) fn map(
        &mut self,
        linear: u32,
        len: usize,
        file: &GuestFile,
        from: usize,
        writable: bool,
    ) -> io::Result<()> {
        if self.hides(linear, len, from) {
            self.protect(linear, len, writable)?;
        } else {
            let offset = self.zero + linear as usize;
            self.range.map_file(offset, len, protection(writable), file.with(from, len)?, from)?;
        }
        self.forget_hidden(linear, len);
        Ok(())
    }

    /// Returns whether the `len` bytes at `linear` are hidden, and are those from place `from` on.
    fn hides(&self, linear: u32, len: usize, from: usize) -> bool {
        (0..len).step_by(PAGE).all(|offset| {
            let page = linear.wrapping_add(offset as u32);
            self.hidden.get(&page) == Some(&(from + offset))
        })
    }

    /// Notes that no page in the `len` bytes at `linear` is hidden.
    fn forget_hidden(&mut self, linear: u32, len: usize) {
        if len / PAGE < self.hidden.len() {
            for offset in (0..len).step_by(PAGE) {
                self.hidden.remove(&(linear + offset as u32));
            }
        } else {
            self.hidden.retain(|page, _| page.wrapping_sub(linear) as usize >= len);
        }
    }

    /// Changes `len` mapped bytes at `linear` to be writable, or only readable.
    pub(crate) fn protect(&self, linear: u32, len: usize, writable: bool) -> io::Result<()> {
        self.range.protect(self.zero + linear as usize, len, protection(writable))
    }

    /// Hides small pages, each given by its address and its place. They are in order of their addresses, and
    /// nothing else is mapped between them.
    pub(crate) fn hide(&mut self, pages: &[(u32, usize)]) -> io::Result<()> {
        let (Some((first, _)), Some((last, _))) = (pages.first(), pages.last()) else {
            return Ok(());
        };
        let len = (last - first) as usize + PAGE;
        if self.hidden.len() + pages.len() > MOST_HIDDEN {
            return self.unmap(*first, len);
        }
        self.range.protect(self.zero + *first as usize, len, libc::PROT_NONE)?;
        self.hidden.extend(pages.iter().copied());
        Ok(())
    }

    /// Returns the number of hidden pages.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden.len()
    }

    /// Unmaps `len` bytes at `linear`, so that accesses to them fault.
    pub(crate) fn unmap(&mut self, linear: u32, len: usize) -> io::Result<()> {
        self.range.unmap(self.zero + linear as usize, len)?;
        self.forget_hidden(linear, len);
        Ok(())
    }

    /// Unmaps everything, so that all accesses fault.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.hidden.clear();
        self.range.unmap(self.zero, SIZE)
    }
}

fn protection(writable: bool) -> libc::c_int {
    if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ }
}
