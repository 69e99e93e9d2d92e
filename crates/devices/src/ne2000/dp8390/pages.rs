//! The registers as software sees them: pages of sixteen (10.2).

use super::Dp8390;
use crate::ne2000::buffer::Buffer;
use crate::ne2000::registers::{command, interrupt};

/// Bits of registers that do not exist and read as ones (10.3).
const NOT_IN_RECEIVE_CONFIGURATION: u8 = 0xc0;
const NOT_IN_TRANSMIT_CONFIGURATION: u8 = 0xe0;
const NOT_IN_DATA_CONFIGURATION: u8 = 0x80;

fn set_low(register: &mut u16, value: u8) {
    *register = *register & 0xff00 | u16::from(value);
}

fn set_high(register: &mut u16, value: u8) {
    *register = *register & 0x00ff | u16::from(value) << 8;
}

impl Dp8390 {
    /// Which page is selected.
    pub(in crate::ne2000) fn page(&self) -> u8 {
        self.command >> command::PAGE_SHIFT
    }

    /// The command register.
    pub(in crate::ne2000) fn command(&self) -> u8 {
        self.command
    }

    /// Software reads register `register` (1 to 15) of the selected page.
    pub(in crate::ne2000) fn read(&mut self, register: u16) -> u8 {
        match (self.page(), register) {
            (0, 0x1) | (2, 0x7) => self.local_address as u8,
            (0, 0x2) | (2, 0x6) => (self.local_address >> 8) as u8,
            (0, 0x3) => self.boundary,
            (0, 0x4) => self.transmit_status,
            // There are no collisions.
            (0, 0x5) => 0,
            (0, 0x6) => self.read_fifo(),
            (0, 0x7) => {
                let is_reset = self.is_stopped || self.is_overflown;
                self.interrupt_status | if is_reset { interrupt::RESET } else { 0 }
            }
            (0, 0x8) => self.remote_address as u8,
            (0, 0x9) => (self.remote_address >> 8) as u8,
            (0, 0xc) => self.receive_status,
            (0, 0xd..=0xf) => std::mem::take(&mut self.counters[usize::from(register - 0xd)]),
            (1, 0x1..=0x6) => self.physical[usize::from(register - 1)],
            (1, 0x7) => self.current,
            (1, 0x8..=0xf) => self.multicast[usize::from(register - 8)],
            (2, 0x1) => self.page_start,
            (2, 0x2) => self.page_stop,
            (2, 0x3) => self.next_pointers[0],
            (2, 0x4) => self.transmit_page,
            (2, 0x5) => self.next_pointers[1],
            (2, 0xc) => self.receive_configuration | NOT_IN_RECEIVE_CONFIGURATION,
            (2, 0xd) => self.transmit_configuration | NOT_IN_TRANSMIT_CONFIGURATION,
            (2, 0xe) => self.data_configuration | NOT_IN_DATA_CONFIGURATION,
            (2, 0xf) => self.interrupt_mask | interrupt::RESET,
            _ => 0xff,
        }
    }

    /// Software writes register `register` (1 to 15) of the selected page.
    pub(in crate::ne2000) fn write(&mut self, register: u16, value: u8) {
        match (self.page(), register) {
            (0, 0x1) => self.page_start = value,
            (0, 0x2) => self.page_stop = value,
            (0, 0x3) => self.set_boundary(value),
            (0, 0x4) => self.transmit_page = value,
            (0, 0x5) => set_low(&mut self.transmit_count, value),
            (0, 0x6) => set_high(&mut self.transmit_count, value),
            (0, 0x7) => self.clear_interrupts(value),
            (0, 0x8) => set_low(&mut self.remote_address, value),
            (0, 0x9) => set_high(&mut self.remote_address, value),
            (0, 0xa) => set_low(&mut self.remote_count, value),
            (0, 0xb) => set_high(&mut self.remote_count, value),
            (0, 0xc) => self.receive_configuration = value & !NOT_IN_RECEIVE_CONFIGURATION,
            (0, 0xd) => self.transmit_configuration = value & !NOT_IN_TRANSMIT_CONFIGURATION,
            (0, 0xe) => self.data_configuration = value & !NOT_IN_DATA_CONFIGURATION,
            (0, 0xf) => self.interrupt_mask = value & !interrupt::RESET,
            (1, 0x1..=0x6) => self.physical[usize::from(register - 1)] = value,
            (1, 0x7) => {
                self.current = value;
                self.is_full = false;
                self.note_empty();
            }
            (1, 0x8..=0xf) => self.multicast[usize::from(register - 8)] = value,
            (2, 0x1 | 0x7) => set_low(&mut self.local_address, value),
            (2, 0x2 | 0x6) => set_high(&mut self.local_address, value),
            (2, 0x3) => self.next_pointers[0] = value,
            (2, 0x5) => self.next_pointers[1] = value,
            _ => {}
        }
    }

    /// Software writes the command register (10.3).
    pub(in crate::ne2000) fn write_command(&mut self, buffer: &Buffer, value: u8) {
        // A transmission that has begun goes on.
        self.command = value | self.command & command::TRANSMIT;
        if value & command::STOP != 0 {
            self.is_stopped = true;
        } else if value & command::START != 0 {
            self.is_stopped = false;
        }
        if self.is_stopped {
            self.command &= !command::TRANSMIT;
        }
        self.begin_remote(buffer);
    }
}
