//! The map of memory for a kernel that is started without firmware.

use ring3_core::memory::{Memory, RamLayout};

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

/// Where the data area of a BIOS has the segment of the EBDA, and the size of low RAM in KiB.
const EBDA_SEGMENT: usize = 0x40e;
const BASE_MEMORY_SIZE: usize = 0x413;

/// Tells a kernel where low RAM ends, as the data area of a BIOS does. Multiboot kernels may look there although the
/// boot information says it, too: Xen does, for the place of the code with which it enters real mode.
pub(crate) fn tell_end_of_low_ram(memory: &mut Memory) {
    memory.store(EBDA_SEGMENT, ((LOW_RAM_END >> 4) as u16).to_le_bytes());
    memory.store(BASE_MEMORY_SIZE, ((LOW_RAM_END >> 10) as u16).to_le_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_area_of_a_bios_agrees_with_the_map() {
        let mut memory = Memory::new(1 << 20).unwrap();
        tell_end_of_low_ram(&mut memory);
        let word = |address| u64::from(u16::from_le_bytes(memory.load(address)));
        assert_eq!((word(0x40e) << 4, word(0x413) << 10), (LOW_RAM_END, LOW_RAM_END));
    }
}
