//! Where RAM is: as in QEMU's PC, what does not fit below 3 GiB is above 4 GiB. The addresses between are for devices.

use std::ops::Range;

/// The end of the addresses for devices.
const FOUR_GIB: u64 = 1 << 32;
/// The most RAM below them.
const LOW_RAM_MAX: u64 = 3 << 30;

/// The most RAM of a machine. With more, the last bytes would be beyond 36 address bits.
pub const RAM_MAX: u64 = 32 << 30;

/// Where the RAM of a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RamLayout {
    /// Bytes of RAM.
    size: u64,
}

impl RamLayout {
    /// Returns the layout of `size` bytes.
    pub const fn of(size: u64) -> RamLayout {
        RamLayout { size }
    }

    /// Returns the number of bytes below 4 GiB, which are from address 0 on.
    pub fn low(self) -> u64 {
        self.size.min(LOW_RAM_MAX)
    }

    /// Returns the number of bytes from 4 GiB on.
    pub fn high(self) -> u64 {
        self.size - self.low()
    }

    /// Returns the end of the guest-physical addresses that can be mapped: that of RAM, and at least 4 GiB.
    pub fn end(self) -> u64 {
        FOUR_GIB + self.high()
    }

    /// Returns the guest-physical addresses of RAM. The second range may be empty.
    pub fn ranges(self) -> [Range<u64>; 2] {
        [0..self.low(), FOUR_GIB..self.end()]
    }

    /// Returns the place of RAM at `address`.
    #[inline(always)]
    pub(super) const fn place_of(address: u64) -> u64 {
        if address < FOUR_GIB { address } else { address - (FOUR_GIB - LOW_RAM_MAX) }
    }

    /// Returns whether all addresses from `start` to `end` are of RAM.
    pub(super) fn holds(self, start: u64, end: u64) -> bool {
        self.ranges().iter().any(|range| range.start <= start && end <= range.end)
    }
}
