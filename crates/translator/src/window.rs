//! A window: 4 GiB of the host's addresses that are the guest's linear addresses.

use std::fs::File;
use std::io;

use crate::host_memory::Range;

/// What a guest can address.
const SIZE: usize = 1 << 32;
/// On both sides of it nothing is mapped: BT with a bit far away, and operands that go on past the end.
const GUARD: usize = 1 << 30;

/// See the module.
#[derive(Debug)]
pub(crate) struct Window {
    range: Range,
    /// Offset in the range where linear address 0 is.
    zero: usize,
}

impl Window {
    /// One in which nothing is mapped.
    pub(crate) fn new() -> io::Result<Window> {
        // Strings need it at a multiple of 4 GiB.
        let range = Range::reserve(SIZE + 2 * GUARD + SIZE)?;
        let first = range.address() + GUARD;
        let zero = first.next_multiple_of(SIZE) - range.address();
        Ok(Window { range, zero })
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
        &self,
        linear: u32,
        len: usize,
        file: &File,
        from: usize,
        writable: bool,
    ) -> io::Result<()> {
        self.range.map_file(self.zero + linear as usize, len, protection(writable), file, from)
    }

    /// Lets `len` bytes that are mapped at `linear` be read only, or written too.
    pub(crate) fn protect(&self, linear: u32, len: usize, writable: bool) -> io::Result<()> {
        self.range.protect(self.zero + linear as usize, len, protection(writable))
    }

    /// Lets accesses to `len` bytes at `linear` fault.
    pub(crate) fn unmap(&self, linear: u32, len: usize) -> io::Result<()> {
        self.range.unmap(self.zero + linear as usize, len)
    }

    /// Lets all accesses fault.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.range.unmap(self.zero, SIZE)
    }
}

fn protection(writable: bool) -> libc::c_int {
    if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ }
}
