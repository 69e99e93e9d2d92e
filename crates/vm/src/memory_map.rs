//! The map of memory for a kernel that is started without firmware.

use crate::acpi::{BIOS_AREA, BIOS_AREA_END};

/// The end of low RAM; the KiB above it belongs to firmware (the EBDA).
pub(crate) const LOW_RAM_END: u64 = 0x9_fc00;

/// Types of ranges (ACPI 6.5, 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryType {
    Ram = 1,
    Reserved = 2,
}

/// A range of guest-physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) kind: MemoryType,
}

/// Returns the map of a machine with `ram` bytes: RAM, except for the part that firmware keeps below 1 MiB.
pub(crate) fn memory_map(ram: u64) -> [Range; 4] {
    let range = |start, end, kind| Range { start, len: end - start, kind };
    [
        range(0, LOW_RAM_END, MemoryType::Ram),
        range(LOW_RAM_END, 0xa_0000, MemoryType::Reserved),
        range(BIOS_AREA, BIOS_AREA_END, MemoryType::Reserved),
        range(BIOS_AREA_END, ram, MemoryType::Ram),
    ]
}
