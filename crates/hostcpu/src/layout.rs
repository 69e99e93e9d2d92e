//! The layout of the guest's memory below 4 GiB.

/// Size of a page in bytes.
pub const PAGE_SIZE: u32 = 4096;

/// Selector of the flat 32-bit code segment, CPL 3, of an x86-64 Linux kernel.
pub const CODE_SELECTOR: u16 = 0x23;

/// Selector of the 64-bit code segment, CPL 3, of an x86-64 Linux kernel.
pub const LONG_CODE_SELECTOR: u16 = 0x33;

/// Selector of the flat data segment, DPL 3, of an x86-64 Linux kernel.
pub const DATA_SELECTOR: u16 = 0x2b;

/// The byte that fills the code region around the instruction: HLT, which raises #GP at CPL 3.
pub const FILLER: u8 = 0xf4;

/// A range of linear addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Linear address of the first byte; a multiple of [`PAGE_SIZE`].
    pub start: u32,
    /// Length in bytes; a multiple of [`PAGE_SIZE`].
    pub len: u32,
}

impl Region {
    /// The linear address of the first byte after the region.
    pub const fn end(self) -> u32 {
        self.start + self.len
    }

    /// Whether `address` lies in the region.
    pub const fn contains(self, address: u32) -> bool {
        address.wrapping_sub(self.start) < self.len
    }

    /// `pages` pages from the address `start`.
    const fn pages(start: u32, pages: u32) -> Self {
        Self { start, len: pages * PAGE_SIZE }
    }
}

/// The places of the regions. They are the same on every host and in every run, so a case that was found once
/// can be repeated anywhere.
///
/// Neighbours are chosen for accesses that straddle a boundary: hole to data, data to read-only, read-only to
/// hole, code to hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The whole arena, in which the regions below lie one after the other.
    pub arena: Region,
    /// Not present.
    pub hole_before_code: Region,
    /// Readable and executable. Filled with [`FILLER`], except for the instruction.
    pub code: Region,
    /// Not present.
    pub hole_before_data: Region,
    /// Readable and writable, not executable.
    pub data: Region,
    /// Readable, neither writable nor executable.
    pub read_only: Region,
    /// Not present.
    pub hole_after: Region,
}

impl Layout {
    /// The only layout.
    pub const FIXED: Self = {
        const HOLE: u32 = 4;
        let hole_before_code = Region::pages(0x1000_0000, HOLE);
        let code = Region::pages(hole_before_code.end(), 2);
        let hole_before_data = Region::pages(code.end(), HOLE);
        let data = Region::pages(hole_before_data.end(), 4);
        let read_only = Region::pages(data.end(), 1);
        let hole_after = Region::pages(read_only.end(), HOLE);
        let arena = Region {
            start: hole_before_code.start,
            len: hole_after.end() - hole_before_code.start,
        };
        Self { arena, hole_before_code, code, hole_before_data, data, read_only, hole_after }
    };
}
