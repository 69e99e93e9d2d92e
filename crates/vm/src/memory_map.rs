//! The map of memory that a kernel gets which is started without firmware.

use crate::acpi::{BIOS_AREA, BIOS_AREA_END};

/// Low RAM ends here; the KiB above it is the firmware's (the EBDA).
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

/// The map of a machine with `ram` bytes: RAM but for what firmware keeps below 1 MiB.
pub(crate) fn memory_map(ram: u64) -> [Range; 4] {
    let range = |start, end, kind| Range { start, len: end - start, kind };
    [
        range(0, LOW_RAM_END, MemoryType::Ram),
        range(LOW_RAM_END, 0xa_0000, MemoryType::Reserved),
        range(BIOS_AREA, BIOS_AREA_END, MemoryType::Reserved),
        range(BIOS_AREA_END, ram, MemoryType::Ram),
    ]
}
