//! A window: 4 GiB of the host's addresses that are the guest's linear addresses.
//!
//! Linux takes several microseconds to map a page amid nothing, and as many to unmap it, as it splits and joins what it knows of the
//! addresses around it. To change what may be done with a page takes a third of that. So small pages that accesses are no longer to find are *hidden*: they stay
//! mapped, and all accesses fault. What comes there next is often the same page, and else takes its place alone.

use std::fs::File;
use std::io;

use crate::host_memory::{PAGE, Range};
use crate::map::Map;

/// What a guest can address.
const SIZE: usize = 1 << 32;
/// On both sides of it nothing is mapped: BT with a bit far away, and operands that go on past the end.
const GUARD: usize = 1 << 30;

/// Hidden pages of a window at most. More of them are unmapped.
const MOST_HIDDEN: usize = 512;

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    range: Range,
    /// Offset in the range where linear address 0 is.
    zero: usize,
    /// Places of hidden pages, by linear address.
    hidden: Map<u32, usize>,
}

impl Window {
    /// One in which nothing is mapped.
    pub(crate) fn new() -> io::Result<Window> {
        // Strings need it at a multiple of 4 GiB.
        let range = Range::reserve(SIZE + 2 * GUARD + SIZE)?;
        let first = range.address() + GUARD;
        let zero = first.next_multiple_of(SIZE) - range.address();
        Ok(Window { range, zero, hidden: Map::default() })
    }

    /// The address of linear address 0.
    pub(crate) fn base(&self) -> u64 {
        (self.range.address() + self.zero) as u64
    }

    /// The linear address at `address`, if that is in the window.
    pub(crate) fn linear(&self, address: u64) -> Option<u32> {
        u32::try_from(address.wrapping_sub(self.base())).ok()
    }

    /// Maps `len` bytes of `file` from `from` on at `linear`.
    pub(crate) fn map(
        &mut self,
        linear: u32,
        len: usize,
        file: &File,
        from: usize,
        writable: bool,
    ) -> io::Result<()> {
        if self.hides(linear, len, from) {
            self.protect(linear, len, writable)?;
        } else {
            let offset = self.zero + linear as usize;
            self.range.map_file(offset, len, protection(writable), file, from)?;
        }
        self.forget_hidden(linear, len);
        Ok(())
    }

    /// The `len` bytes at `linear` are hidden, and are those from `from` on.
    fn hides(&self, linear: u32, len: usize, from: usize) -> bool {
        (0..len).step_by(PAGE).all(|offset| {
            let page = linear.wrapping_add(offset as u32);
            self.hidden.get(&page) == Some(&(from + offset))
        })
    }

    fn forget_hidden(&mut self, linear: u32, len: usize) {
        if len / PAGE < self.hidden.len() {
            for offset in (0..len).step_by(PAGE) {
                self.hidden.remove(&(linear + offset as u32));
            }
        } else {
            self.hidden.retain(|page, _| page.wrapping_sub(linear) as usize >= len);
        }
    }

    /// Lets `len` bytes that are mapped at `linear` be read only, or written too.
    pub(crate) fn protect(&self, linear: u32, len: usize, writable: bool) -> io::Result<()> {
        self.range.protect(self.zero + linear as usize, len, protection(writable))
    }

    /// Lets accesses to small pages fault, of which each has an address and a place. They are in order, and nothing else is mapped between them.
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

    /// How many pages are hidden.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden.len()
    }

    /// Unmaps what is mapped in `len` bytes at `linear`: accesses fault.
    pub(crate) fn unmap(&mut self, linear: u32, len: usize) -> io::Result<()> {
        self.range.unmap(self.zero + linear as usize, len)?;
        self.forget_hidden(linear, len);
        Ok(())
    }

    /// Lets all accesses fault.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.hidden.clear();
        self.range.unmap(self.zero, SIZE)
    }
}

fn protection(writable: bool) -> libc::c_int {
    if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ }
}
