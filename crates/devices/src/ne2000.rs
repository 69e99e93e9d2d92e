//! Network cards like Novell's NE2000: a DP8390 with memory of its own, by ports alone.
//!
//! The card on the ISA bus ([`Isa`]) and its descendant on PCI, Realtek's RTL8029AS ([`Rtl8029`]), have 32 ports: the 16 registers of the
//! chip (`dp8390`), a data port, by which the host moves packets to and from the card's memory (`buffer`), and a port that resets the card.
//!
//! A system reads and writes the data port by repeated INS and OUTS, so that these are what a card costs: the card does them
//! [at once](ring3_core::device::Device::read_port_string).
//!
//! Reading 1500 bytes by double words takes 2 to 3 µs that way, and 60 to 85 µs one by one.
//!
//! The wire takes no time here, so drivers of slow wires meet a state that they never met: a ring filled
//! between two of their instructions. With the chip exactly as in its data sheet, a tenth of all packets was
//! lost or noticed a quarter of a second late. Therefore a packet waits outside until there is room for it, a
//! boundary that Linux puts before the ring counts as the ring's end, and the interrupt for packets stays
//! while the ring has any.

use ring3_core::device::{Context, Width};
use ring3_core::input::DeviceInput;
use ring3_core::net::{HEADER_LEN, MacAddress, Offloads, PACKET_MAX, Packet};
use serde::{Deserialize, Serialize};

use crate::bytewise;

mod buffer;
mod dp8390;
mod isa;
mod registers;
mod rtl8029;

use buffer::Buffer;
use dp8390::Dp8390;

pub use isa::Isa;
pub use rtl8029::Rtl8029;

/// Ports of a card: a power of two.
pub const PORTS: u16 = 32;

/// The registers of the chip are before it; it is eight ports wide.
const DATA_PORT: u16 = 0x10;
/// All ports from here on reset the card.
const RESET_PORT: u16 = 0x18;

/// The most frames that come of one packet: it has a byte of payload in each.
const FRAMES_MAX: usize = PACKET_MAX;

/// Registers that are not of the DP8390: pages 0 to 3, and register 1 to 15.
trait MoreRegisters {
    /// What is read, where there is one.
    fn read(&self, page: u8, register: u16) -> Option<u8>;

    /// Software writes `value`.
    fn write(&mut self, page: u8, register: u16, value: u8);
}

/// What the card has its cable in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Wire {
    /// The cable leads somewhere.
    is_there: bool,
    /// What is to go out must wait.
    is_congested: bool,
}

/// A card with chip and memory, whatever its bus is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Card<T> {
    chip: Dp8390,
    buffer: Buffer,
    wire: Wire,
    more: T,
}

impl<T: MoreRegisters + Default> Card<T> {
    /// A card with that address and `memory` bytes of memory, before it is reset.
    fn new(address: MacAddress, memory: usize) -> Card<T> {
        let buffer = Buffer::new(address, memory);
        let wire = Wire { is_there: true, is_congested: false };
        Card { chip: Dp8390::default(), buffer, wire, more: T::default() }
    }

    /// Power goes off and on.
    fn power_on(&mut self) {
        self.chip = Dp8390::default();
        self.chip.reset();
        self.buffer.clear();
        self.more = T::default();
    }

    /// The host reads at `offset` (0 to 31) of the ports.
    fn read(&mut self, offset: u16, width: Width) -> u32 {
        if (DATA_PORT..RESET_PORT).contains(&offset) {
            return self.chip.read_data(&self.buffer, width);
        }
        bytewise::read(offset, width, |offset| self.read_byte(offset))
    }

    fn read_byte(&mut self, offset: u16) -> u8 {
        match offset % PORTS {
            0 => self.chip.command(),
            register @ 1..DATA_PORT => {
                let more = self.more.read(self.chip.page(), register);
                more.unwrap_or_else(|| self.chip.read(register))
            }
            DATA_PORT..RESET_PORT => self.chip.read_data(&self.buffer, Width::Byte) as u8,
            _ => {
                self.chip.reset();
                0
            }
        }
    }

    /// The host writes at `offset` of the ports.
    fn write(&mut self, context: &mut Context<'_>, offset: u16, width: Width, value: u32) {
        if (DATA_PORT..RESET_PORT).contains(&offset) {
            return self.chip.write_data(&mut self.buffer, width, value);
        }
        bytewise::write(offset, width, value, |offset, value| {
            self.write_byte(context, offset, value);
        });
        // It may have made room.
        self.chip.receive_waiting(&mut self.buffer);
    }

    fn write_byte(&mut self, context: &mut Context<'_>, offset: u16, value: u8) {
        match offset % PORTS {
            0 => {
                self.chip.write_command(&self.buffer, value);
                self.transmit(context);
            }
            register @ 1..DATA_PORT => {
                self.more.write(self.chip.page(), register, value);
                self.chip.write(register, value);
            }
            DATA_PORT..RESET_PORT => {
                self.chip.write_data(&mut self.buffer, Width::Byte, value.into());
            }
            _ => self.chip.reset(),
        }
    }

    /// Transmits what is to be transmitted, once the wire takes it.
    fn transmit(&mut self, context: &mut Context<'_>) {
        if self.wire.is_congested || !self.chip.is_transmitting() {
            return;
        }
        let frame = self.chip.transmit(&self.buffer, self.wire.is_there);
        let is_frame = |len: usize| (HEADER_LEN..=dp8390::PACKET_MAX).contains(&len);
        if let Some(frame) = frame.filter(|frame| is_frame(frame.len())) {
            context.send_packet(Packet::frame(frame));
        }
    }

    /// The host reads at `offset` again and again.
    fn read_string(&mut self, offset: u16, width: Width, bytes: &mut [u8]) -> usize {
        if (DATA_PORT..RESET_PORT).contains(&offset) {
            self.chip.read_data_string(&self.buffer, width, bytes)
        } else {
            0
        }
    }

    /// The host writes there again and again.
    fn write_string(&mut self, offset: u16, width: Width, bytes: &[u8]) -> usize {
        if (DATA_PORT..RESET_PORT).contains(&offset) {
            self.chip.write_data_string(&mut self.buffer, width, bytes)
        } else {
            0
        }
    }

    /// Something has come from outside.
    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        match input {
            DeviceInput::Packet(packet) if self.wire.is_there => self.take(packet),
            DeviceInput::Link(is_there) => self.wire.is_there = is_there,
            DeviceInput::Congestion(is_congested) => {
                self.wire.is_congested = is_congested;
                self.transmit(context);
            }
            _ => {}
        }
    }

    /// Frames come in that are as on the wire, which is too narrow for larger ones.
    fn take(&mut self, packet: Packet) {
        let mut take = |bytes: &[u8]| {
            if bytes.len() <= dp8390::PACKET_MAX {
                self.chip.take(&mut self.buffer, bytes);
            }
        };
        if packet.checksum.is_none() {
            return take(&packet.bytes);
        }
        packet.without_offloads(Offloads::default(), |frame| take(&frame.bytes));
    }

    /// False for what no treatment of the card `other` can lead to.
    fn is_possible_for(&self, other: &Card<T>) -> bool {
        self.buffer.is_of_same_size(&other.buffer) && self.chip.is_possible()
    }
}

#[cfg(test)]
mod tests;
