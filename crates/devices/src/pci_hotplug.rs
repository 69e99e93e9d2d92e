//! Hot plug of PCI cards, as on QEMU's `pc`: the registers by which the methods of the ACPI tables learn which cards came and which are to go.
//!
//! From QEMU's `docs/specs/acpi_pci_hotplug.rst`, and from the ACPI specification (6.5) for the block of general-purpose events (4.8.4.1), of
//! which number [`EVENT`] is that of this device. What happens to a card:
//!
//! 1. It is inserted into a slot ([`DeviceInput::CardAdded`]): its bit in the first register is set, and the
//!    event is raised. The method of the event reads the register, which clears it, and has the system look at
//!    the slot.
//! 2. A person wants it back ([`DeviceInput::CardWanted`]): the same happens with the second register, and the
//!    system is asked to release it.
//! 3. When the system has done so, its method `_EJ0` writes the bit of the slot to the third register, and the
//!    machine removes the card ([`Output::Eject`]).
//!
//! A card that nobody has released is removed at a reset, since no system uses it then.

use std::ops::RangeInclusive;

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::acpi_pm::SCI_IRQ;
use crate::bytewise;

/// The registers, of four bytes each.
pub const REGISTERS: PortRange = PortRange::new(0xae00, 20);
/// The block of general-purpose events: status, and enable behind it.
pub const EVENT_BLOCK: PortRange = PortRange::new(0xafe0, 4);
/// The number of the event, which is its bit in the block.
pub const EVENT: u8 = 1;
/// The slots with cards that can be put in and taken out; the others are the chipset's and the display's.
pub const SLOTS: RangeInclusive<u8> = 3..=31;

// Offsets of the registers.
const ADDED: u16 = 0x00;
const WANTED: u16 = 0x04;
/// Written, slots that are given up; read, what there is beyond the base set, which is nothing.
const EJECT: u16 = 0x08;
const REMOVABLE: u16 = 0x0c;
/// Which bus the others are about. There is one.
const BUS: u16 = 0x10;

const EVENT_BIT: u16 = 1 << EVENT;
/// This device's number among those that share the line of the SCI.
const SCI_DRIVER: u8 = 0;
const VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// A bit for each slot with a card of which the guest was not told.
    added: u32,
    /// A bit for each slot of which the card is wanted back.
    wanted: u32,
    bus: u32,
    /// The event block.
    status: u16,
    enable: u16,
}

/// The controller.
#[derive(Debug, Clone, Default)]
pub struct PciHotplug(State);

/// The bits of all slots that can have cards.
const fn slot_bits() -> u32 {
    u32::MAX << *SLOTS.start()
}

/// The bit of `slot`, if it is one that can have a card.
fn bit(slot: u8) -> u32 {
    if SLOTS.contains(&slot) { 1 << slot } else { 0 }
}

impl PciHotplug {
    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 2] {
        [REGISTERS, EVENT_BLOCK]
    }

    fn raise(&mut self, context: &mut Context<'_>) {
        self.0.status |= EVENT_BIT;
        self.drive_line(context);
    }

    fn drive_line(&self, context: &mut Context<'_>) {
        let is_pending = self.0.status & self.0.enable != 0;
        context.irq.set_shared(SCI_IRQ, SCI_DRIVER, is_pending);
    }

    fn eject(&mut self, context: &mut Context<'_>, slots: u32) {
        for slot in SLOTS.filter(|slot| slots & bit(*slot) != 0) {
            self.0.added &= !bit(slot);
            self.0.wanted &= !bit(slot);
            context.output(Output::Eject { slot });
        }
    }

    fn read_register(&mut self, offset: u16) -> u32 {
        match offset {
            BUS => self.0.bus,
            _ if self.0.bus != 0 => 0,
            ADDED => std::mem::take(&mut self.0.added),
            WANTED => self.0.wanted,
            REMOVABLE => slot_bits(),
            _ => 0,
        }
    }

    fn event_block(&self) -> [u8; 4] {
        let [status, enable] = [self.0.status, self.0.enable].map(u16::to_le_bytes);
        [status[0], status[1], enable[0], enable[1]]
    }
}

impl Device for PciHotplug {
    fn id(&self) -> DeviceId {
        DeviceId::PCI_HOTPLUG
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.eject(context, self.0.wanted);
        self.0 = State::default();
        self.drive_line(context);
    }

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        if EVENT_BLOCK.contains(port) {
            let block = self.event_block();
            return bytewise::read(port, width, |port| {
                block.get(usize::from(port - EVENT_BLOCK.first)).copied().unwrap_or(0)
            });
        }
        // The registers are accessed as a whole.
        if width == Width::Dword { self.read_register(port - REGISTERS.first) } else { 0 }
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        if EVENT_BLOCK.contains(port) {
            let State { status, enable, .. } = &mut self.0;
            bytewise::write(port, width, value, |port, byte| {
                let byte = u16::from(byte);
                match port - EVENT_BLOCK.first {
                    0 => *status &= !byte,
                    1 => *status &= !(byte << 8),
                    2 => *enable = *enable & 0xff00 | byte,
                    3 => *enable = *enable & 0x00ff | byte << 8,
                    _ => {}
                }
            });
            return self.drive_line(context);
        }
        match (port - REGISTERS.first, width) {
            (BUS, Width::Dword) => self.0.bus = value,
            (EJECT, Width::Dword) if self.0.bus == 0 => self.eject(context, value),
            _ => {}
        }
    }

    /// Takes [`DeviceInput::CardAdded`] and [`DeviceInput::CardWanted`].
    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        match input {
            DeviceInput::CardAdded { slot } => self.0.added |= bit(slot),
            DeviceInput::CardWanted { slot } => self.0.wanted |= bit(slot),
            _ => return,
        }
        self.raise(context);
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.0)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if (state.added | state.wanted) & !slot_bits() != 0 || state.status & !EVENT_BIT != 0 {
            return Err(saved.damaged("there are no such slots or events"));
        }
        self.0 = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{blows, hammer};
    use ring3_core::device::TestBench;

    fn read(bench: &mut TestBench, device: &mut PciHotplug, offset: u16) -> u32 {
        device.read_port(&mut bench.context(), REGISTERS.first + offset, Width::Dword)
    }

    fn write(bench: &mut TestBench, device: &mut PciHotplug, offset: u16, value: u32) {
        let port = REGISTERS.first + offset;
        device.write_port(&mut bench.context(), port, Width::Dword, value);
    }

    #[test]
    fn a_new_card_is_announced_once_and_a_removal_is_requested_until_it_is_done() {
        let (mut bench, mut device) = (TestBench::default(), PciHotplug::default());
        let (status, enable) = (EVENT_BLOCK.first, EVENT_BLOCK.first + 2);
        device.input(&mut bench.context(), DeviceInput::CardAdded { slot: 5 });
        assert!(!bench.irq.is_high(SCI_IRQ), "nobody wants to know");
        bench.write(&mut device, enable, 1 << EVENT);
        assert!(bench.irq.is_high(SCI_IRQ));
        assert_eq!(read(&mut bench, &mut device, ADDED), 1 << 5);
        assert_eq!(read(&mut bench, &mut device, ADDED), 0);
        assert_eq!(bench.read(&mut device, status), 1 << EVENT);
        bench.write(&mut device, status, 0xff);
        assert!(!bench.irq.is_high(SCI_IRQ));

        for _ in 0..2 {
            device.input(&mut bench.context(), DeviceInput::CardWanted { slot: 5 });
            assert!(bench.irq.is_high(SCI_IRQ));
            assert_eq!(read(&mut bench, &mut device, WANTED), 1 << 5);
            bench.write(&mut device, status, 1 << EVENT);
        }
        write(&mut bench, &mut device, EJECT, 1 << 5);
        assert_eq!(read(&mut bench, &mut device, WANTED), 0);
        assert_eq!(bench.outputs, [Output::Eject { slot: 5 }]);
    }

    #[test]
    fn the_slots_of_the_chipset_and_other_buses_have_no_cards() {
        let (mut bench, mut device) = (TestBench::default(), PciHotplug::default());
        assert_eq!(read(&mut bench, &mut device, REMOVABLE), 0xffff_fff8);
        device.input(&mut bench.context(), DeviceInput::CardWanted { slot: 1 });
        write(&mut bench, &mut device, EJECT, 0b111);
        write(&mut bench, &mut device, BUS, 1);
        write(&mut bench, &mut device, EJECT, u32::MAX);
        let all = [ADDED, WANTED, EJECT, REMOVABLE, BUS];
        let found = all.map(|offset| read(&mut bench, &mut device, offset));
        assert_eq!((found, bench.outputs.len()), ([0, 0, 0, 0, 1], 0));
    }

    #[test]
    fn a_reset_removes_the_requested_cards() {
        let (mut bench, mut device) = (TestBench::default(), PciHotplug::default());
        device.input(&mut bench.context(), DeviceInput::CardWanted { slot: 31 });
        device.input(&mut bench.context(), DeviceInput::CardAdded { slot: 4 });
        device.reset(&mut bench.context());
        assert_eq!(bench.outputs, [Output::Eject { slot: 31 }]);
        assert_eq!(device.0, State::default());
    }

    #[test]
    fn impossible_states_are_refused() {
        let mut device = PciHotplug::default();
        for state in [
            State { added: 1, ..State::default() },
            State { wanted: 1 << 2, ..State::default() },
            State { status: 1, ..State::default() },
        ] {
            let saved = SavedState::new(DeviceId::PCI_HOTPLUG.name(), VERSION, &state);
            assert!(matches!(device.restore(&saved), Err(RestoreError::Damaged { .. })));
        }
    }

    proptest! {
        #[test]
        fn any_accesses_are_handled_without_a_panic(
            blows in blows(&[0xae00, 0xae01, 0xae04, 0xae08, 0xae0c, 0xae10, 0xae13, 0xafe0, 0xafe2, 0xafe3])
        ) {
            hammer(&mut PciHotplug::default(), &mut PciHotplug::default(), blows);
        }
    }
}
