//! How the limits of segments are checked without a compare and without flags.
//!
//! A segment has an address from which on the offset of an access is counted: where the access ends inside of the limit there
//! is something to read, and beyond it there is not, so the host raises a page fault. A segment that may not be accessed at
//! all has an address from which on there is nothing. What faults is left to the interpreter, which knows why.

use std::io;

use ring3_x86::segment::Segment;

use crate::budget;
use crate::host_memory::{LARGE_PAGE, PAGE, Range};

/// Offsets in a segment, and one more.
const OFFSETS: usize = 1 << 32;

/// The bytes of the largest operand, which is that of a repeated string instruction: of up to so many doublewords, as the budget is
/// not enough for more.
const LARGEST_OPERAND: usize = 4 * (budget::LONGEST as usize + PAGE);

/// The addresses.
#[derive(Debug)]
pub(crate) struct Limits {
    range: Range,
    /// From where on nothing can be read, in the range.
    none: usize,
}

impl Limits {
    pub(crate) fn new() -> io::Result<Limits> {
        // Behind the last offset of all comes the rest of the largest operand.
        let range = Range::reserve(LARGE_PAGE + 2 * OFFSETS + LARGEST_OPERAND)?;
        let none = range.large_page_from(OFFSETS);
        range.map_zeros(none - OFFSETS, OFFSETS, libc::PROT_READ)?;
        // Segments of real mode need no more than one; what there is for all others is too much if they take memory.
        range.keep_small_pages(none - OFFSETS, OFFSETS - LARGE_PAGE)?;
        range.prefer_large_pages(none - LARGE_PAGE, LARGE_PAGE);
        Ok(Limits { range, none })
    }

    /// From where on nothing can be read.
    pub(crate) fn none(&self) -> u64 {
        (self.range.address() + self.none) as u64
    }

    /// From where on offsets up to `limit` can be read.
    pub(crate) fn up_to(&self, limit: u32) -> u64 {
        self.none() - u64::from(limit) - 1
    }

    /// For reads in `segment`. That the segments that grow down are left to the interpreter is no loss: they are rare.
    pub(crate) fn for_reading(&self, segment: &Segment) -> u64 {
        self.where_allowed(segment, segment.attributes.is_readable())
    }

    /// For writes in `segment`.
    pub(crate) fn for_writing(&self, segment: &Segment) -> u64 {
        self.where_allowed(segment, segment.attributes.is_writable())
    }

    fn where_allowed(&self, segment: &Segment, is_allowed: bool) -> u64 {
        let attributes = segment.attributes;
        if is_allowed && attributes.present() && !attributes.expands_down() {
            self.up_to(segment.limit)
        } else {
            self.none()
        }
    }
}
