//! Intel's 82540EM: a network card of 1000 Mb/s on PCI, which systems call e1000.
//!
//! By its manual, "PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual" (317453), whose names of registers and fields are cited here.
//! A packet that is to be cut goes out whole, and what comes in is cut before it is delivered: the card has no way to tell of more. What comes waits where there are too few buffers.
//!
//! * `eeprom`, `phy`: the chips beside it;
//! * `transmit`, `receive`: what is in descriptors; `ring`: where they are;
//! * `interrupts`: their causes and delays;
//! * `registers`, `file`: the rest.
//!
//! The driver has the card compute checksums and cut large packets. Both are left to the receiver, as with virtio; before
//! that, the headers get the lengths of an uncut packet, since the driver leaves them out. A received packet
//! is finished and cut before it goes into the ring, and one whose checksum was computed here is
//! reported as right. Interrupts are delayed by the timers that the driver sets, in virtual time.

use std::collections::VecDeque;

use ring3_core::clock::Tag;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::input::DeviceInput;
use ring3_core::net::{MacAddress, PACKET_MAX, Packet};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::pci::rom::{self, RomImage};
use crate::pci::{Function, Identity, command};

mod eeprom;
mod file;
mod interrupts;
mod phy;
mod receive;
mod registers;
mod ring;
mod transmit;

use eeprom::Eeprom;
use file::File;
use interrupts::Interrupts;
use phy::Phy;
use receive::{Delivery, Frame};
use registers::{self as r, cause, ctrl, rctl, statistics, status, tctl};
use ring::Ring;
use transmit::{Report, Transmitter};

/// Base address register 0 has the registers in memory.
const MEMORY_REGION: u8 = 0;
const MEMORY_LEN: u32 = 128 << 10;
/// Register 1 has ports: one for the offset of a register, one for what is there (chapter 13, I/O-mapped access).
const PORTS_REGION: u8 = 1;
const PORTS: u16 = 64;
const IO_ADDRESS: u16 = 0;
const IO_DATA: u16 = 4;

/// INTA#.
const PIN: u8 = 0;

/// The shortest frame without its check sequence (IEEE 802.3, 3.2.7).
const SHORTEST: usize = 60;

const VERSION: u32 = 1;

/// What a reset by software brings back to what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Chip {
    file: File,
    eeprom: Eeprom,
    phy: Phy,
    interrupts: Interrupts,
    transmitter: Transmitter,
    /// What has come and found no buffer.
    waiting: VecDeque<Frame>,
    /// The register behind the ports.
    io_address: u32,
    link_up: bool,
    /// The network takes nothing more now.
    congested: bool,
}

#[derive(Serialize, Deserialize)]
struct State {
    #[serde(with = "serde_bytes")]
    config: Vec<u8>,
    chip: Chip,
}

/// A card.
#[derive(Debug)]
pub struct E1000 {
    id: DeviceId,
    address: MacAddress,
    slot: u8,
    function: Function,
    chip: Chip,
}

impl Chip {
    fn new(address: MacAddress) -> Chip {
        Chip {
            file: File::new(address),
            eeprom: Eeprom::default(),
            phy: Phy::default(),
            interrupts: Interrupts::default(),
            transmitter: Transmitter::default(),
            waiting: VecDeque::new(),
            io_address: 0,
            link_up: true,
            congested: false,
        }
    }

    /// After a reset by software: the cable and the network behind it are what they were.
    fn reset(&mut self, context: &mut Context<'_>, address: MacAddress) {
        Interrupts::stop(context);
        let (link_up, congested) = (self.link_up, self.congested);
        *self = Chip { link_up, congested, ..Chip::new(address) };
    }

    fn ring(&self, [low, high, len, head, tail]: [u32; 5]) -> Ring {
        Ring {
            base: u64::from(self.file.get(high)) << 32 | u64::from(self.file.get(low)),
            len: self.file.get(len),
            head: self.file.get(head),
            tail: self.file.get(tail),
        }
    }

    fn receive_ring(&self) -> Ring {
        self.ring([r::RDBAL, r::RDBAH, r::RDLEN, r::RDH, r::RDT])
    }

    fn transmit_ring(&self) -> Ring {
        self.ring([r::TDBAL, r::TDBAH, r::TDLEN, r::TDH, r::TDT])
    }

    fn read(&mut self, context: &mut Context<'_>, offset: u32) -> u32 {
        match offset {
            r::STATUS => {
                let link = if self.link_up { status::LINK_UP } else { 0 };
                status::FULL_DUPLEX | status::SPEED_1000 | link
            }
            r::EECD => self.eeprom.eecd(),
            r::EERD => self.eeprom.eerd(),
            r::MDIC => self.phy.mdic(),
            r::ICR => self.interrupts.take(context, &self.file),
            r::IMS => self.interrupts.mask(),
            statistics::FIRST..statistics::END => {
                let value = self.file.get(offset);
                self.file.set(offset, 0);
                value
            }
            _ => self.file.get(offset),
        }
    }

    fn write(&mut self, context: &mut Context<'_>, address: MacAddress, offset: u32, value: u32) {
        if let Some(kept) = r::kept(offset, value) {
            self.file.set(offset, kept);
        }
        match offset {
            r::CTRL if value & ctrl::RESET != 0 => self.reset(context, address),
            r::CTRL if value & ctrl::PHY_RESET != 0 => {
                self.file.set(r::CTRL, value & !ctrl::PHY_RESET);
                self.phy = Phy::default();
            }
            r::EECD => self.eeprom.set_eecd(address, value),
            r::EERD => self.eeprom.set_eerd(address, value),
            r::MDIC => {
                self.phy.set_mdic(value, self.link_up);
                if value & phy::INTERRUPT != 0 {
                    self.interrupts.raise(context, &self.file, cause::PHY_ACCESS);
                }
            }
            r::ICR => self.interrupts.clear(context, &self.file, value),
            r::ITR => self.interrupts.set_interval(context, &self.file),
            r::ICS => self.interrupts.raise(context, &self.file, value),
            r::IMS => self.interrupts.enable(context, &self.file, value),
            r::IMC => self.interrupts.disable(context, &self.file, value),
            r::TCTL | r::TDT => self.transmit(context),
            r::RCTL if value & rctl::ENABLE == 0 => self.waiting.clear(),
            r::RCTL | r::RDT => self.deliver(context),
            _ => {}
        }
    }

    /// Sends what is in the ring.
    fn transmit(&mut self, context: &mut Context<'_>) {
        let control = self.file.get(r::TCTL);
        let mut ring = self.transmit_ring();
        if control & tctl::ENABLE == 0 {
            return;
        }
        let vlan_type = self.file.get(r::VET) as u16;
        let mut report = Report::default();
        let before = ring.head;
        // Those that are the card's, and no more: what is sent can come back and be written over them.
        for _ in 0..ring.available() {
            if self.congested {
                break;
            }
            let packet = self.transmitter.take(context.memory, &ring, &mut report, vlan_type);
            ring.advance();
            if let Some(packet) = packet {
                self.send(context, packet);
            }
        }
        self.file.set(r::TDH, ring.head);
        if report.delayed {
            self.interrupts.sent(context, &self.file);
        }
        let mut causes = if report.at_once { cause::SENT } else { 0 };
        if before != ring.head && ring.available() == 0 {
            causes |= cause::QUEUE_EMPTY;
        }
        if causes != 0 {
            self.interrupts.raise(context, &self.file, causes);
        }
    }

    /// A packet goes out, or comes back in.
    fn send(&mut self, context: &mut Context<'_>, mut packet: Packet) {
        if self.file.get(r::TCTL) & tctl::PAD_SHORT != 0 && packet.bytes.len() < SHORTEST {
            packet.bytes.resize(SHORTEST, 0);
        }
        if !packet.is_sound() {
            return;
        }
        let cut = packet.segmentation.is_some();
        self.file.count_sent(packet.destination(), packet.bytes.len(), cut);
        if self.file.get(r::RCTL) & rctl::LOOPBACK == rctl::LOOPBACK {
            // What finds no buffer there is lost, as nobody can hold it back.
            if self.waiting.is_empty() {
                self.receive(context, packet);
            }
        } else if self.link_up {
            context.send_packet(packet);
        }
    }

    /// A packet has come.
    fn receive(&mut self, context: &mut Context<'_>, packet: Packet) {
        Frame::from_packet(packet, &mut self.file, |frame| self.waiting.push_back(frame));
        self.deliver(context);
    }

    /// Gives the driver what has come, as far as it has buffers.
    fn deliver(&mut self, context: &mut Context<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let mut ring = self.receive_ring();
        let before = ring.head;
        while let Some(frame) = self.waiting.pop_front() {
            match frame.deliver(context.memory, &mut ring, &self.file) {
                Delivery::Done => {}
                // With no ring at all it is lost too: nobody would ever take it.
                Delivery::Lost => self.file.count(statistics::MISSED, 1),
                Delivery::Waits => {
                    self.waiting.push_front(frame);
                    break;
                }
            }
        }
        self.file.set(r::RDH, ring.head);
        if before != ring.head {
            self.interrupts.received(context, &self.file);
            if receive::has_few_buffers(&ring, self.file.get(r::RCTL)) {
                self.interrupts.raise(context, &self.file, cause::FEW_BUFFERS);
            }
        }
    }

    /// True if it can have been saved.
    fn is_possible(&self) -> bool {
        self.eeprom.is_possible()
            && self.interrupts.is_possible()
            && self.transmitter.is_possible()
            // One packet has come that was cut.
            && self.waiting.len() <= PACKET_MAX
    }
}

impl E1000 {
    /// The card `id` with that address, which is PCI device number `slot`.
    pub fn new(id: DeviceId, address: MacAddress, slot: u8) -> E1000 {
        E1000 { id, address, slot, function: function(), chip: Chip::new(address) }
    }

    /// The same with a ROM, whichever function that was made for.
    #[must_use]
    pub fn with_rom(self, rom: Option<RomImage>) -> E1000 {
        E1000 { function: self.function.with_rom(rom), ..self }
    }

    fn settle(&self, context: &mut Context<'_>) {
        context.irq.set_pci(self.slot, PIN, self.chip.interrupts.is_asserted());
    }
}

/// The PCI function.
fn function() -> Function {
    // An Ethernet controller.
    let identity = Identity { vendor: 0x8086, device: 0x100e, revision: 2, class: 0x020000 };
    Function::new(identity)
        .command(command::IO | command::MEMORY | command::MASTER)
        .status(0)
        .memory(MEMORY_REGION, MEMORY_LEN)
        .ports(PORTS_REGION, PORTS)
        // PRO/1000 MT Desktop Adapter.
        .subsystem(0x8086, 0x001e)
        .interrupt()
}

impl Device for E1000 {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.function.reset();
        self.chip.reset(context, self.address);
        self.function.claim(context);
        self.settle(context);
    }

    fn read_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
    ) -> u32 {
        if region == rom::REGION {
            return self.function.read_rom(offset, width);
        }
        // Registers are doublewords; of narrower accesses nothing is said.
        let value = self.chip.read(context, offset as u32 & !3);
        self.settle(context);
        value >> (8 * (offset & 3)) & width.mask()
    }

    fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        region: u8,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        if region == MEMORY_REGION && width == Width::Dword && offset.is_multiple_of(4) {
            self.chip.write(context, self.address, offset as u32, value);
            self.settle(context);
        }
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let value = match (self.function.port_offset(PORTS_REGION, port), width) {
            (IO_ADDRESS, Width::Dword) => self.chip.io_address,
            (IO_DATA, Width::Dword) => self.chip.read(context, self.chip.io_address),
            _ => width.mask(),
        };
        self.settle(context);
        value
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        match (self.function.port_offset(PORTS_REGION, port), width) {
            (IO_ADDRESS, Width::Dword) => self.chip.io_address = value & (MEMORY_LEN - 4),
            (IO_DATA, Width::Dword) => {
                self.chip.write(context, self.address, self.chip.io_address, value);
                self.settle(context);
            }
            _ => {}
        }
    }

    fn read_config(&mut self, _: &mut Context<'_>, _function: u8, offset: u8, width: Width) -> u32 {
        self.function.read(offset, width)
    }

    fn write_config(
        &mut self,
        context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        self.function.write(context, offset, width, value);
    }

    fn timer(&mut self, context: &mut Context<'_>, tag: Tag) {
        self.chip.interrupts.timer(context, &self.chip.file, tag);
        self.settle(context);
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        match input {
            DeviceInput::Packet(packet) if self.chip.link_up => {
                self.chip.receive(context, packet);
            }
            DeviceInput::Link(is_up) if self.chip.link_up != is_up => {
                self.chip.link_up = is_up;
                self.chip.interrupts.raise(context, &self.chip.file, cause::LINK_CHANGED);
            }
            DeviceInput::Congestion(is_there) => {
                self.chip.congested = is_there;
                self.chip.transmit(context);
            }
            _ => {}
        }
        self.settle(context);
    }

    fn takes_input(&self) -> bool {
        self.chip.waiting.is_empty()
    }

    fn save(&self) -> SavedState {
        let state = State { config: self.function.save(), chip: self.chip.clone() };
        SavedState::new(self.name(), VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if !state.chip.is_possible() {
            return Err(saved.damaged("its registers cannot be"));
        }
        self.function = self.function.restored(saved, &state.config)?;
        self.chip = state.chip;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
