//! How translated code is stopped after a number of instructions, without a compare and without flags.
//!
//! The budget is an address. A block subtracts its number of instructions and reads there; behind what may be
//! executed there is nothing to read, so the host raises a page fault.

use std::io;

use crate::host_memory::{LARGE_PAGE, Range};

/// Instructions that can be executed at most before translated code is left.
pub(crate) const LONGEST: u64 = 16 << 20;

/// A repeated instruction subtracts up to so much at once.
const LARGEST_COUNT: usize = 1 << 32;
/// What a block subtracts, which it does before it reads.
const SLACK: usize = 1 << 20;

/// What can be read: whole large pages.
const READABLE: usize = (LONGEST as usize + SLACK).next_multiple_of(LARGE_PAGE);

/// The addresses.
#[derive(Debug)]
pub(crate) struct Budget {
    range: Range,
    /// Where nothing is left, in the range.
    zero: usize,
}

impl Budget {
    pub(crate) fn new() -> io::Result<Budget> {
        let unreadable = LARGEST_COUNT + SLACK;
        let range = Range::reserve(unreadable + LARGE_PAGE + READABLE)?;
        let zero = range.large_page_from(unreadable);
        range.map_zeros(zero, READABLE, libc::PROT_READ)?;
        range.prefer_large_pages(zero, READABLE);
        Ok(Budget { range, zero })
    }

    /// Where nothing is left.
    fn zero(&self) -> u64 {
        (self.range.address() + self.zero) as u64
    }

    /// The address for `instructions`, at most [`LONGEST`].
    pub(crate) fn of(&self, instructions: u64) -> u64 {
        self.zero() + instructions.min(LONGEST)
    }

    /// An address that can be read only if `can_be_read`.
    pub(crate) fn end(&self, can_be_read: bool) -> u64 {
        self.zero() - u64::from(!can_be_read)
    }

    /// How many instructions are left at `address`; less than none when a block has just taken more than there were.
    pub(crate) fn left(&self, address: u64) -> i64 {
        address.wrapping_sub(self.zero()) as i64
    }

    /// A fault at `address` means that nothing is left.
    pub(crate) fn is_used_up_at(&self, address: u64) -> bool {
        (self.range.address() as u64..self.zero()).contains(&address)
    }
}
