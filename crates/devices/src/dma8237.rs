//! The DMA controllers of a PC: two 8237A, and the page registers beside them.
//!
//! From Intel's data sheet "8237A High Performance Programmable DMA Controller" (231466), and the IBM PC/AT Technical
//! Reference for how two of them are wired: channels 0 to 3 move bytes; channel 4 is the cascade through which
//! these reach the bus; channels 5 to 7 move words. A transfer takes no time, so neither priorities nor timing
//! matter. Memory-to-memory transfers, for which a PC has no wires, do nothing.
//!
//! ```
//! use ring3_core::device::TestBench;
//! use ring3_devices::dma8237::Dma8237;
//!
//! let (mut bench, mut dma) = (TestBench::default(), Dma8237::default());
//! bench.write(&mut dma, 0x0c, 0); // the low byte is next
//! bench.write(&mut dma, 0x05, 0xff); // count of channel 2
//! bench.write(&mut dma, 0x05, 0x01);
//! assert_eq!(bench.read(&mut dma, 0x05), 0xff);
//! assert_eq!(bench.read(&mut dma, 0x05), 0x01);
//! ```

use std::ops::Range;

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::dma::{DmaBytes, DmaRequests};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;

const VERSION: u32 = 1;

/// The first port of the controller of channels 0 to 3, whose registers are 1 apart.
const FIRST_BASE: u16 = 0x00;
/// That of channels 4 to 7, whose registers are 2 apart.
const SECOND_BASE: u16 = 0xc0;
const PAGES_BASE: u16 = 0x80;
/// The page register of each channel, as an offset. That of the cascade is for refresh.
const PAGE_OF_CHANNEL: [usize; 8] = [0x7, 0x3, 0x1, 0x2, 0xf, 0xb, 0x9, 0xa];
/// The channel of the second controller that the first one hangs on, of that controller's.
const CASCADE: usize = 0;

// Registers above the addresses and counts ("Register Codes").
const COMMAND_STATUS: u16 = 0x8;
const REQUEST: u16 = 0x9;
const SINGLE_MASK: u16 = 0xa;
const MODE: u16 = 0xb;
const CLEAR_FLIP_FLOP: u16 = 0xc;
/// The temporary register for reads, master clear for writes.
const MASTER_CLEAR: u16 = 0xd;
const CLEAR_MASK: u16 = 0xe;
const ALL_MASK: u16 = 0xf;

const COMMAND_DISABLE: u8 = 1 << 2;

// Mode register.
const MODE_TRANSFER: u8 = 0x0c;
const MODE_WRITE: u8 = 0x04;
const MODE_READ: u8 = 0x08;
const MODE_VERIFY: u8 = 0x00;
const MODE_AUTOINITIALIZE: u8 = 1 << 4;
const MODE_DECREMENT: u8 = 1 << 5;
const MODE_CASCADE: u8 = 0xc0;

/// In the request and single mask registers: set, and not clear, the bit of the channel.
const SET: u8 = 1 << 2;
/// What a channel reads from a bus that no device drives.
const OPEN_BUS: u8 = 0xff;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Channel {
    mode: u8,
    base_address: u16,
    base_count: u16,
    address: u16,
    /// One less than what is to be transferred, in bytes or words.
    count: u16,
}

/// One 8237A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Controller {
    channels: [Channel; 4],
    command: u8,
    /// A bit for each channel that is masked, software requests, or has reached its terminal count.
    mask: u8,
    requests: u8,
    terminal_counts: u8,
    /// The high byte of an address or a count is next.
    flip_flop: bool,
}

impl Default for Controller {
    fn default() -> Controller {
        let (channels, mask) = ([Channel::default(); 4], 0x0f);
        let (command, requests, terminal_counts, flip_flop) = (0, 0, 0, false);
        Controller { channels, command, mask, requests, terminal_counts, flip_flop }
    }
}

impl Controller {
    fn is_possible(&self) -> bool {
        (self.mask | self.requests | self.terminal_counts) & 0xf0 == 0
    }

    fn read(&mut self, register: u16, lines: u8) -> u8 {
        match register {
            0..=7 => {
                let channel = &self.channels[usize::from(register / 2)];
                let value = if register & 1 == 0 { channel.address } else { channel.count };
                let [low, high] = value.to_le_bytes();
                if self.toggle() { high } else { low }
            }
            COMMAND_STATUS => {
                (lines | self.requests) << 4 | std::mem::take(&mut self.terminal_counts)
            }
            // Nothing was ever moved from memory to memory.
            MASTER_CLEAR => 0,
            ALL_MASK => 0xf0 | self.mask,
            _ => OPEN_BUS,
        }
    }

    fn write(&mut self, register: u16, value: u8) {
        let channel = usize::from(value & 3);
        let bit = 1 << channel;
        match register {
            0..=7 => {
                let high = self.toggle();
                let channel = &mut self.channels[usize::from(register / 2)];
                let (base, current) = if register & 1 == 0 {
                    (&mut channel.base_address, &mut channel.address)
                } else {
                    (&mut channel.base_count, &mut channel.count)
                };
                let mut bytes = base.to_le_bytes();
                bytes[usize::from(high)] = value;
                *base = u16::from_le_bytes(bytes);
                *current = *base;
            }
            COMMAND_STATUS => self.command = value,
            REQUEST if value & SET != 0 => self.requests |= bit,
            REQUEST => self.requests &= !bit,
            SINGLE_MASK if value & SET != 0 => self.mask |= bit,
            SINGLE_MASK => self.mask &= !bit,
            MODE => self.channels[channel].mode = value,
            CLEAR_FLIP_FLOP => self.flip_flop = false,
            // The channels keep what they have ("Master Clear").
            MASTER_CLEAR => *self = Controller { channels: self.channels, ..Controller::default() },
            CLEAR_MASK => self.mask = 0,
            _ => self.mask = value & 0x0f,
        }
    }

    /// True when the byte that is now accessed is a high one.
    fn toggle(&mut self) -> bool {
        self.flip_flop = !self.flip_flop;
        !self.flip_flop
    }

    /// A bit for each channel that has something to do, for requests on `lines`. Masks
    /// hold back requests by line alone ("Software Requests").
    fn ready(&self, lines: u8) -> u8 {
        if self.command & COMMAND_DISABLE != 0 {
            return 0;
        }
        let is_cascade = |channel: &u8| self.channels[usize::from(*channel)].mode >= MODE_CASCADE;
        let cascades = (0..4).filter(is_cascade).fold(0, |bits, channel| bits | 1 << channel);
        (lines & !self.mask | self.requests) & !cascades
    }

    /// Channel `channel` has reached its terminal count ("Autoinitialize").
    fn end(&mut self, channel: usize) {
        let bit = 1 << channel;
        self.terminal_counts |= bit;
        self.requests &= !bit;
        let channel = &mut self.channels[channel];
        if channel.mode & MODE_AUTOINITIALIZE != 0 {
            channel.address = channel.base_address;
            channel.count = channel.base_count;
        } else {
            self.mask |= bit;
        }
    }
}

/// The two DMA controllers, device `dma`.
///
/// After a reset the cascade is open, which firmware sets up before all else: a machine that boots
/// without firmware finds it so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dma8237 {
    controllers: [Controller; 2],
    pages: [u8; 16],
}

impl Default for Dma8237 {
    fn default() -> Dma8237 {
        let mut second = Controller::default();
        second.channels[CASCADE].mode = MODE_CASCADE;
        second.mask &= !(1 << CASCADE);
        Dma8237 { controllers: [Controller::default(), second], pages: [0; 16] }
    }
}

impl Dma8237 {
    /// The ports at which the board attaches the device. Of the second controller every register has two.
    pub fn ports(&self) -> [PortRange; 3] {
        [
            PortRange::new(FIRST_BASE, 0x10),
            PortRange::new(PAGES_BASE, 0x10),
            PortRange::new(SECOND_BASE, 0x20),
        ]
    }

    /// The channels that can be served now for `requests`, in the order of their priority.
    pub fn ready(&self, requests: &DmaRequests) -> impl Iterator<Item = u8> + use<> {
        let ready = if self.are_idle(requests) { 0 } else { self.ready_channels(requests.lines()) };
        let channels = if ready == 0 { 0..0 } else { 0..DmaRequests::COUNT };
        channels.filter(move |channel| ready >> channel & 1 != 0)
    }

    /// Nothing asks them for anything, as mostly; so it is asked after each access to a device.
    #[inline]
    pub fn are_idle(&self, requests: &DmaRequests) -> bool {
        requests.are_none() && self.controllers.iter().all(|one| one.requests == 0)
    }

    /// A bit for each channel that can be served now, for requests on `lines`.
    fn ready_channels(&self, lines: u8) -> u8 {
        let [first, second] = &self.controllers;
        let cascade = &second.channels[CASCADE];
        let cascade_open = cascade.mode >= MODE_CASCADE
            && second.mask & 1 << CASCADE == 0
            && second.command & COMMAND_DISABLE == 0;
        let bytes = if cascade_open { first.ready(lines & 0x0f) } else { 0 };
        bytes | second.ready(lines >> 4) << 4
    }

    /// Lets `device`, which drives the request line of channel `channel` (0 to 7), move what it can. Where
    /// software requests the transfer, there may be no device; then all is transferred and nothing is said by anyone.
    pub fn serve(
        &mut self,
        context: &mut Context<'_>,
        channel: u8,
        device: Option<&mut (dyn Device + '_)>,
    ) {
        let number = usize::from(channel % DmaRequests::COUNT);
        let page = self.pages[PAGE_OF_CHANNEL[number]];
        let controller = &mut self.controllers[number / 4];
        let span = Span { channel: controller.channels[number % 4], page, is_word: number >= 4 };
        let mut bytes = vec![OPEN_BUS; span.bytes()];
        let moved = match span.channel.mode & MODE_TRANSFER {
            MODE_READ => {
                for (address, range) in span.runs(bytes.len()) {
                    context.memory.read(address, &mut bytes[range]);
                }
                device.map_or(bytes.len(), |device| {
                    device.dma(context, channel, DmaBytes::ToDevice(&bytes))
                })
            }
            MODE_WRITE | MODE_VERIFY => device.map_or(bytes.len(), |device| {
                device.dma(context, channel, DmaBytes::FromDevice(&mut bytes))
            }),
            _ => 0,
        };
        // A device that moves half a word has moved the word.
        let moved = moved.min(bytes.len()).next_multiple_of(span.unit());
        if span.channel.mode & MODE_TRANSFER == MODE_WRITE {
            for (address, range) in span.runs(moved) {
                context.memory.write(address, &bytes[range]);
            }
        }
        let units = (moved / span.unit()) as u16;
        let channel = &mut controller.channels[number % 4];
        channel.address = if channel.mode & MODE_DECREMENT == 0 {
            channel.address.wrapping_add(units)
        } else {
            channel.address.wrapping_sub(units)
        };
        channel.count = channel.count.wrapping_sub(units);
        if moved == bytes.len() {
            controller.end(number % 4);
        }
    }

    fn read(&mut self, port: u16, lines: u8) -> u8 {
        match port {
            PAGES_BASE..0x90 => self.pages[usize::from(port - PAGES_BASE)],
            SECOND_BASE..0xe0 => self.controllers[1].read((port - SECOND_BASE) / 2, lines >> 4),
            _ => self.controllers[0].read(port & 0xf, lines & 0x0f),
        }
    }

    fn write(&mut self, port: u16, value: u8) {
        match port {
            PAGES_BASE..0x90 => self.pages[usize::from(port - PAGES_BASE)] = value,
            SECOND_BASE..0xe0 => self.controllers[1].write((port - SECOND_BASE) / 2, value),
            _ => self.controllers[0].write(port & 0xf, value),
        }
    }
}

/// What a channel is about to transfer.
struct Span {
    channel: Channel,
    page: u8,
    is_word: bool,
}

impl Span {
    /// Bytes that move at a time.
    fn unit(&self) -> usize {
        if self.is_word { 2 } else { 1 }
    }

    /// Bytes until the terminal count.
    fn bytes(&self) -> usize {
        (usize::from(self.channel.count) + 1) * self.unit()
    }

    /// Where the first `bytes` bytes are in memory: runs of ascending addresses. The address counts within a page of
    /// 64 Ki bytes or words, and bit 0 of the page register counts for bytes alone.
    fn runs(&self, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        let (unit, start) = (self.unit(), self.channel.address);
        let units = bytes / unit;
        let decrements = self.channel.mode & MODE_DECREMENT != 0;
        let to_wrap = 0x10000 - usize::from(start);
        let page = if self.is_word { self.page & 0xfe } else { self.page };
        let address = move |at: u16| u64::from(page) << 16 | u64::from(at) << (unit - 1);
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= units {
                return None;
            }
            let (at, run) = if decrements {
                (start.wrapping_sub(done as u16), 1)
            } else if done < to_wrap {
                (start, units.min(to_wrap))
            } else {
                (0, units - done)
            };
            let range = done * unit..(done + run) * unit;
            done += run;
            Some((address(at), range))
        })
    }
}

impl Device for Dma8237 {
    fn id(&self) -> DeviceId {
        DeviceId::DMA
    }

    fn reset(&mut self, _context: &mut Context<'_>) {
        *self = Dma8237::default();
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let lines = context.dma.lines();
        bytewise::read(port, width, |port| self.read(port, lines))
    }

    fn write_port(&mut self, _context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, byte| self.write(port, byte));
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: Dma8237 = saved.load(self.name(), VERSION)?;
        if !state.controllers.iter().all(Controller::is_possible) {
            return Err(saved.damaged("a controller has more than four channels"));
        }
        *self = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
