//! The map of memory for a kernel that is started without firmware.

use ring3_core::memory::RamLayout;

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

impl Range {
    /// Length in bytes of [`entry`](Self::entry).
    pub(crate) const ENTRY_LEN: usize = 20;

    /// Returns the range as all boot protocols pass it on: as an address range descriptor (ACPI 6.5, table 15.3).
    pub(crate) fn entry(&self) -> [u8; Range::ENTRY_LEN] {
        let mut entry = [0; Range::ENTRY_LEN];
        entry[..8].copy_from_slice(&self.start.to_le_bytes());
        entry[8..16].copy_from_slice(&self.len.to_le_bytes());
        entry[16..].copy_from_slice(&(self.kind as u32).to_le_bytes());
        entry
    }
}

/// Returns the map of a machine with this RAM: RAM, except for the part that firmware keeps below 1 MiB.
pub(crate) fn memory_map(ram: RamLayout) -> Vec<Range> {
    let range = |start, end, kind| Range { start, len: end - start, kind };
    let [low, high] = ram.ranges();
    let mut map = vec![
        range(0, LOW_RAM_END, MemoryType::Ram),
        range(LOW_RAM_END, 0xa_0000, MemoryType::Reserved),
        range(BIOS_AREA, BIOS_AREA_END, MemoryType::Reserved),
        range(BIOS_AREA_END, low.end, MemoryType::Ram),
    ];
    if !high.is_empty() {
        map.push(range(high.start, high.end, MemoryType::Ram));
    }
    map
}
