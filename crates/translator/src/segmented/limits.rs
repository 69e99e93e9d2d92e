//! How the limits of segments are checked without a compare and without changing flags.
//!
//! Each segment has an address to which the offset of an access is added. If the last byte of the access is
//! within the limit, the sum can be read; beyond the limit it cannot, so the host raises a page fault. For a
//! segment that may not be accessed at all, the address is one from which on nothing can be read. The
//! interpreter executes the instruction that faults, and finds out why.

use std::io;

use ring3_x86::segment::Segment;

use crate::budget;
use crate::memory::host_memory::{LARGE_PAGE, PAGE, Range};

/// Number of offsets in a segment of 4 GiB.
const OFFSETS: usize = 1 << 32;

/// Bytes of the largest operand, which is that of a repeated string instruction: as many doublewords as the
/// budget allows, since it is checked before the limit.
const LARGEST_OPERAND: usize = 4 * (budget::LONGEST as usize + PAGE);

/// The addresses to which offsets are added.
#[derive(Debug)]
pub(crate) struct Limits {
    range: Range,
    /// Offset in the range from which on nothing can be read.
    none: usize,
}

impl Limits {
    pub(crate) fn new() -> io::Result<Limits> {
        // Beyond the last offset there must be room for the rest of the largest operand.
        let range = Range::reserve(LARGE_PAGE + 2 * OFFSETS + LARGEST_OPERAND)?;
        let none = range.large_page_from(OFFSETS);
        range.map_zeros(none - OFFSETS, OFFSETS, libc::PROT_READ)?;
        // Segments of real mode need only the last large page. For all others, large pages would take too
        // much memory.
        range.keep_small_pages(none - OFFSETS, OFFSETS - LARGE_PAGE)?;
        range.prefer_large_pages(none - LARGE_PAGE, LARGE_PAGE);
        Ok(Limits { range, none })
    }

    /// Returns the address from which on nothing can be read.
    pub(crate) fn none(&self) -> u64 {
        (self.range.address() + self.none) as u64
    }

    /// Returns the address to which an offset is added if offsets up to `limit` may be accessed.
    pub(crate) fn up_to(&self, limit: u32) -> u64 {
        self.none() - u64::from(limit) - 1
    }

    /// Returns the address to which the offsets of reads in `segment` are added. Accesses to segments that
    /// grow down always fault and are left to the interpreter; such segments are rare.
    pub(crate) fn for_reading(&self, segment: &Segment) -> u64 {
        self.where_allowed(segment, segment.attributes.is_readable())
    }

    /// Returns the address to which the offsets of writes in `segment` are added.
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
