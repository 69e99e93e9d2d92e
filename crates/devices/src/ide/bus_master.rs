//! The bus-master function of one channel: DMA by a table of physical regions.
//!
//! From the PIIX3's data sheet (290550), "PCI local bus IDE", and Intel's Programming Interface for
//! Bus Master IDE Controller 1.0.

use ring3_core::memory::Memory;
use serde::{Deserialize, Serialize};

// Command register (offset 0).
const COMMAND_START: u8 = 1 << 0;
/// The bus master writes to memory: the drive is read.
const COMMAND_TO_MEMORY: u8 = 1 << 3;

// Status register (offset 2).
const STATUS_ACTIVE: u8 = 1 << 0;
const STATUS_ERROR: u8 = 1 << 1;
const STATUS_INTERRUPT: u8 = 1 << 2;
/// Software notes that drives 0 and 1 can do DMA.
const STATUS_CAPABLE: u8 = 0b11 << 5;

/// Bytes of a physical region descriptor: address, byte count, flags.
const DESCRIPTOR_LEN: u32 = 8;
/// The region is the table's last.
const END_OF_TABLE: u16 = 0x8000;

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the drive to memory.
    ToMemory,
    /// From memory to the drive.
    FromMemory,
}

/// The registers of one channel and where it is in its table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BusMaster {
    command: u8,
    status: u8,
    /// The table's guest-physical address, a multiple of 4.
    table: u32,
    /// The next descriptor.
    next: u32,
    /// Where the present region goes on.
    address: u32,
    /// How many bytes it still has.
    left: u32,
    /// It is the last one.
    last: bool,
}

impl BusMaster {
    /// The byte at `offset` (0 to 7).
    pub(super) fn read(&self, offset: u16) -> u8 {
        match offset {
            0 => self.command,
            2 => self.status,
            4..=7 => self.table.to_le_bytes()[usize::from(offset - 4)],
            _ => 0,
        }
    }

    /// Software writes the byte at `offset`.
    pub(super) fn write(&mut self, offset: u16, value: u8) {
        match offset {
            0 => self.write_command(value),
            2 => {
                let cleared = value & (STATUS_ERROR | STATUS_INTERRUPT);
                self.status = self.status & !cleared & !STATUS_CAPABLE | value & STATUS_CAPABLE;
            }
            4..=7 => {
                let mut bytes = self.table.to_le_bytes();
                bytes[usize::from(offset - 4)] = value;
                self.table = u32::from_le_bytes(bytes) & !3;
            }
            _ => {}
        }
    }

    fn write_command(&mut self, value: u8) {
        let started = value & !self.command & COMMAND_START != 0;
        self.command = value & (COMMAND_START | COMMAND_TO_MEMORY);
        if started {
            self.status |= STATUS_ACTIVE;
            self.next = self.table;
            (self.left, self.last) = (0, false);
        } else if value & COMMAND_START == 0 {
            self.status &= !STATUS_ACTIVE;
        }
    }

    /// The channel's interrupt line has risen.
    pub(super) fn interrupt(&mut self) {
        self.status |= STATUS_INTERRUPT;
    }

    /// True when software has started a transfer this way.
    pub(super) fn is_ready(&self, direction: Direction) -> bool {
        let to_memory = self.command & COMMAND_TO_MEMORY != 0;
        self.status & STATUS_ACTIVE != 0 && to_memory == (direction == Direction::ToMemory)
    }

    /// Moves `data` to or from memory, as far as the table goes; how many bytes that were.
    /// A table that ends before the data does leaves the drive waiting, as the data sheet has it.
    pub(super) fn transfer(
        &mut self,
        memory: &mut Memory,
        direction: Direction,
        data: &mut [u8],
    ) -> usize {
        let mut moved = 0;
        while moved < data.len() && self.is_ready(direction) {
            if self.left == 0 {
                self.next_region(memory);
            }
            let len = (data.len() - moved).min(self.left as usize);
            let bytes = &mut data[moved..moved + len];
            match direction {
                Direction::ToMemory => memory.write(self.address.into(), bytes),
                Direction::FromMemory => memory.read(self.address.into(), bytes),
            }
            moved += len;
            self.left -= len as u32;
            self.address = self.address.wrapping_add(len as u32);
            if self.left == 0 && self.last {
                self.status &= !STATUS_ACTIVE;
            }
        }
        moved
    }

    /// Fetches the next descriptor. Each has at least two bytes, so there is always progress.
    fn next_region(&mut self, memory: &Memory) {
        let mut descriptor = [0; DESCRIPTOR_LEN as usize];
        memory.read(self.next.into(), &mut descriptor);
        let [a, b, c, d, low, high, flags_low, flags_high] = descriptor;
        self.next = self.next.wrapping_add(DESCRIPTOR_LEN);
        self.address = u32::from_le_bytes([a, b, c, d]) & !1;
        self.left = match u32::from(u16::from_le_bytes([low, high]) & !1) {
            0 => 0x1_0000,
            count => count,
        };
        self.last = u16::from_le_bytes([flags_low, flags_high]) & END_OF_TABLE != 0;
    }

    /// False for what no treatment can lead to.
    pub(super) fn is_possible(&self) -> bool {
        self.command & !(COMMAND_START | COMMAND_TO_MEMORY) == 0
            && self.status & !(STATUS_ACTIVE | STATUS_ERROR | STATUS_INTERRUPT | STATUS_CAPABLE)
                == 0
            && self.table & 3 == 0
            && self.left <= 0x1_0000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_with(table: &[(u32, u16, u16)]) -> (Memory, BusMaster) {
        let mut memory = Memory::new(1 << 20).unwrap();
        for (index, (address, count, flags)) in table.iter().enumerate() {
            let at = 0x1000 + 8 * index as u64;
            memory.write(at, &address.to_le_bytes());
            memory.write(at + 4, &count.to_le_bytes());
            memory.write(at + 6, &flags.to_le_bytes());
        }
        let mut master = BusMaster::default();
        for (offset, byte) in 0x1000_u32.to_le_bytes().into_iter().enumerate() {
            master.write(4 + offset as u16, byte);
        }
        (memory, master)
    }

    #[test]
    fn regions_are_filled_in_their_order() {
        let (mut memory, mut master) =
            memory_with(&[(0x2000, 6, 0), (0x3000, 4, 0), (0x4000, 0, END_OF_TABLE)]);
        master.write(0, COMMAND_START | COMMAND_TO_MEMORY);
        let mut data: Vec<u8> = (0..16).collect();
        assert_eq!(master.transfer(&mut memory, Direction::ToMemory, &mut data[..8]), 8);
        assert_eq!(master.transfer(&mut memory, Direction::ToMemory, &mut data[8..]), 8);
        let mut read = [0; 6];
        memory.read(0x2000, &mut read);
        assert_eq!(read, [0, 1, 2, 3, 4, 5]);
        memory.read(0x3000, &mut read[..4]);
        assert_eq!(read[..4], [6, 7, 8, 9]);
        memory.read(0x4000, &mut read);
        assert_eq!(read, [10, 11, 12, 13, 14, 15]);
        assert_eq!(master.read(2), STATUS_ACTIVE, "the last region is not used up");
    }

    #[test]
    fn a_table_that_is_too_short_ends_the_transfer() {
        let (mut memory, mut master) = memory_with(&[(0x2000, 6, END_OF_TABLE)]);
        master.write(0, COMMAND_START);
        memory.write(0x2000, b"abcdefgh");
        let mut data = [0; 8];
        assert_eq!(master.transfer(&mut memory, Direction::FromMemory, &mut data), 6);
        assert_eq!(&data, b"abcdef\0\0");
        assert_eq!(master.read(2), 0);
        assert_eq!(master.transfer(&mut memory, Direction::FromMemory, &mut data), 0);
    }

    #[test]
    fn status_bits_are_cleared_by_ones_and_capabilities_are_software_s() {
        let mut master = BusMaster::default();
        master.interrupt();
        master.write(2, STATUS_CAPABLE);
        assert_eq!(master.read(2), STATUS_INTERRUPT | STATUS_CAPABLE);
        master.write(2, STATUS_INTERRUPT);
        assert_eq!(master.read(2), 0);
        master.write(0, COMMAND_START);
        assert_eq!(master.read(2), STATUS_ACTIVE);
        master.write(0, 0);
        assert_eq!(master.read(2), 0);
    }
}
