//! The 82093AA I/O APIC: from interrupt lines to messages for local APICs.
//!
//! From Intel's data sheet of May 1996 (290566-001); section numbers in this file are its own. The board passes
//! on whether an input is asserted, not its voltage, so that the polarity of an
//! entry is kept and has no effect: operating systems that are told nothing of polarities, or
//! guess them, get their interrupts. Messages arrive at once: the delivery status is always idle, and
//! there is no arbitration.
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_devices::io_apic::IoApic;
//! use ring3_devices::local_apic::Message;
//!
//! let (mut apic, mut bench) = (IoApic::default(), TestBench::default());
//! for (register, value) in [(0x15, 0), (0x14, 0x41)] { // input 2: vector 41h for APIC 0, by edges
//!     apic.write_memory(&mut bench.context(), 0, 0x00, Width::Dword, register);
//!     apic.write_memory(&mut bench.context(), 0, 0x10, Width::Dword, value);
//! }
//! let mut sent = Vec::new();
//! apic.set_input(2, true, &mut |message| { sent.push(message); true });
//! assert_eq!(sent, [Message::fixed(0x41, 0)]);
//! ```

use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::local_apic::{Delivery, Message};

/// Where the registers are (3.0, with the reset value of the APICBASE register of the PIIX3).
pub const ADDRESS: u64 = 0xfec0_0000;
/// How many guest-physical addresses they take.
pub const SIZE: u64 = 0x1000;
/// Number of inputs.
pub const INPUTS: u8 = 24;
/// The input at which boards have the INTR output of the 8259A (MP specification 1.4, 3.6.2.2).
pub const INPUT_INTR: u8 = 0;
/// The input at which boards have IRQ 0, since the 8259A takes that of its own number.
pub const INPUT_IRQ0: u8 = 2;

const VERSION: u32 = 1;

/// Offset of IOREGSEL (3.1.1).
const SELECT: u64 = 0x00;
/// Offset of IOWIN (3.1.2).
const WINDOW: u64 = 0x10;

// What IOREGSEL selects (3.2).
const IOAPICID: u8 = 0x00;
const IOAPICVER: u8 = 0x01;
const IOAPICARB: u8 = 0x02;
const IOREDTBL: u8 = 0x10;

/// Version 11h, and the number of the last entry (3.2.2).
const VERSION_REGISTER: u32 = (INPUTS as u32 - 1) << 16 | 0x11;

// Redirection entries (3.2.4).
const LOGICAL: u64 = 1 << 11;
const REMOTE_IRR: u64 = 1 << 14;
const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;
/// Vector, delivery mode, destination mode, polarity, trigger mode, mask and destination: the
/// bits that can be written.
const WRITABLE: u64 = 0xff00_0000_0001_afff;

/// To whom messages go: true when somebody has accepted one.
pub type Send<'a> = &'a mut dyn FnMut(Message) -> bool;

/// The I/O APIC, device `io_apic`; its one memory region are its registers.
///
/// It is no device of a bus: the board drives its inputs by [`IoApic::set_input`], tells it of ended
/// interrupts by [`IoApic::end_of_interrupt`], and calls [`IoApic::look_at_levels`] after each
/// access to it or to a local APIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApic {
    /// IOREGSEL.
    select: u8,
    /// Bits 27 to 24 of IOAPICID.
    id: u8,
    /// A bit for each input that is asserted.
    asserted: u32,
    entries: [u64; INPUTS as usize],
}

impl Default for IoApic {
    /// The state after power-on: all inputs are masked.
    fn default() -> IoApic {
        IoApic { select: 0, id: 0, asserted: 0, entries: [MASKED; INPUTS as usize] }
    }
}

impl IoApic {
    /// Input `input` (0 to 23; others are ignored) is asserted, or not any more. An edge at a masked
    /// input is lost (3.2.4, bit 16).
    pub fn set_input(&mut self, input: u8, asserted: bool, send: Send<'_>) {
        let Some(entry) = self.entries.get(usize::from(input)) else { return };
        let edge = asserted && self.asserted >> input & 1 == 0;
        self.asserted = self.asserted & !(1 << input) | u32::from(asserted) << input;
        if edge
            && entry & MASKED == 0
            && !is_level(*entry)
            && let Some(message) = message(*entry)
        {
            send(message);
        }
        self.look_at_levels(send);
    }

    /// A local APIC tells of the end of level-triggered interrupt `vector`: inputs that request it may
    /// do so again (3.2.4, bit 14).
    pub fn end_of_interrupt(&mut self, vector: u8, send: Send<'_>) {
        for entry in &mut self.entries {
            if *entry as u8 == vector {
                *entry &= !REMOTE_IRR;
            }
        }
        self.look_at_levels(send);
    }

    /// Sends the interrupts of level-triggered inputs that are asserted, each once until its end.
    pub fn look_at_levels(&mut self, send: Send<'_>) {
        let mut asserted = self.asserted;
        while asserted != 0 {
            let input = asserted.trailing_zeros() as usize;
            asserted &= asserted - 1;
            let Some(entry) = self.entries.get_mut(input) else { return };
            let waits = *entry & (MASKED | REMOTE_IRR) == 0 && is_level(*entry);
            if waits && message(*entry).is_some_and(&mut *send) {
                *entry |= REMOTE_IRR;
            }
        }
    }

    /// The register at `offset`, if there is one: to read it does nothing.
    pub fn peek(&self, offset: u64) -> Option<u32> {
        match offset {
            SELECT => Some(self.select.into()),
            WINDOW => Some(self.read_register()),
            _ => None,
        }
    }

    fn read_register(&self) -> u32 {
        match self.select {
            IOAPICID | IOAPICARB => u32::from(self.id) << 24,
            IOAPICVER => VERSION_REGISTER,
            _ => self
                .entry(self.select)
                .map_or(0, |(input, shift)| (self.entries[input] >> shift) as u32),
        }
    }

    fn write_register(&mut self, value: u32) {
        if self.select == IOAPICID {
            self.id = (value >> 24 & 0xf) as u8;
        } else if let Some((input, shift)) = self.entry(self.select) {
            let entry = &mut self.entries[input];
            let writable = WRITABLE & 0xffff_ffff << shift;
            *entry = *entry & !writable | u64::from(value) << shift & writable;
            if !is_level(*entry) {
                *entry &= !REMOTE_IRR;
            }
        }
    }

    /// The redirection entry of register `register`, and by how many bits that is shifted in it.
    fn entry(&self, register: u8) -> Option<(usize, u32)> {
        let index = usize::from(register.checked_sub(IOREDTBL)?);
        (index / 2 < self.entries.len()).then_some((index / 2, index as u32 % 2 * 32))
    }

    fn is_valid(&self) -> bool {
        let possible = |entry: &u64| {
            entry & !(WRITABLE | REMOTE_IRR) == 0 && (entry & REMOTE_IRR == 0 || is_level(*entry))
        };
        self.id <= 0xf && self.asserted >> INPUTS == 0 && self.entries.iter().all(possible)
    }
}

fn delivery(entry: u64) -> Option<Delivery> {
    // 6 is reserved here (3.2.4, bits 10:8).
    Delivery::from_register(entry as u32).filter(|delivery| *delivery != Delivery::StartUp)
}

/// The other delivery modes are by edges, whatever the entry says (3.2.4, bits 10:8).
fn is_level(entry: u64) -> bool {
    let has_vector = matches!(delivery(entry), Some(Delivery::Fixed | Delivery::LowestPriority));
    has_vector && entry & LEVEL != 0
}

fn message(entry: u64) -> Option<Message> {
    Some(Message {
        destination: (entry >> 56) as u8,
        logical: entry & LOGICAL != 0,
        delivery: delivery(entry)?,
        vector: entry as u8,
        level: is_level(entry),
    })
}

impl Device for IoApic {
    fn id(&self) -> DeviceId {
        DeviceId::IO_APIC
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        *self = IoApic::default();
    }

    fn read_memory(&mut self, _: &mut Context<'_>, _region: u8, offset: u64, width: Width) -> u32 {
        let value = match offset & !3 {
            SELECT => self.select.into(),
            WINDOW => self.read_register(),
            _ => 0,
        };
        value >> (8 * (offset & 3)) & width.mask()
    }

    /// IOREGSEL can be written as a byte too, IOWIN only whole (3.1.2).
    fn write_memory(
        &mut self,
        _: &mut Context<'_>,
        _region: u8,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        match offset {
            SELECT => self.select = value as u8,
            WINDOW if width == Width::Dword => self.write_register(value),
            _ => {}
        }
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError> {
        let saved: IoApic = state.load(self.name(), VERSION)?;
        if !saved.is_valid() {
            return Err(state.damaged("no I/O APIC can be in this state"));
        }
        *self = saved;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
