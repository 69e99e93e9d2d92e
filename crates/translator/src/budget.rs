//! How translated code is stopped after a number of instructions, without a compare and without changing
//! flags.
//!
//! The budget is an address. A block subtracts its number of instructions from it and reads there. Below the
//! address that stands for 0 nothing can be read, so when the budget is spent the host raises a page fault.

use std::io;

use crate::memory::host_memory::{LARGE_PAGE, Range};

/// Instructions that can be executed at most before translated code is left.
pub(crate) const LONGEST: u64 = 16 << 20;

/// Instructions that a repeated instruction subtracts at once, at most.
const LARGEST_COUNT: usize = 1 << 32;
/// Instructions that a block subtracts before it reads, at most.
const SLACK: usize = 1 << 20;

/// The bytes that can be read: whole large pages.
const READABLE: usize = (LONGEST as usize + SLACK).next_multiple_of(LARGE_PAGE);

/// The range of addresses that stand for numbers of instructions.
#[derive(Debug)]
pub(crate) struct Budget {
    range: Range,
    /// Offset in the range of the address that stands for 0 instructions.
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

    /// Returns the address that stands for 0 instructions.
    fn zero(&self) -> u64 {
        (self.range.address() + self.zero) as u64
    }

    /// Returns the address that stands for `instructions`, or for [`LONGEST`] if that is less.
    pub(crate) fn of(&self, instructions: u64) -> u64 {
        self.zero() + instructions.min(LONGEST)
    }

    /// Returns an address that can be read only if `can_be_read`.
    pub(crate) fn end(&self, can_be_read: bool) -> u64 {
        self.zero() - u64::from(!can_be_read)
    }

    /// Returns the number of instructions that `address` stands for. It is negative when a block has just
    /// subtracted more than there were.
    pub(crate) fn remaining(&self, address: u64) -> i64 {
        address.wrapping_sub(self.zero()) as i64
    }

    /// Returns whether a fault at `address` means that the budget is spent.
    pub(crate) fn is_used_up_at(&self, address: u64) -> bool {
        (self.range.address() as u64..self.zero()).contains(&address)
    }
}
