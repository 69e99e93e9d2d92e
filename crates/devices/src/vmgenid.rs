//! The VM generation ID: a number that changes whenever the machine becomes another one, since it continues
//! from a state from which others continue, too. The guest then no longer relies on random numbers and
//! identities of its own making.
//!
//! From Microsoft's "Virtual Machine Generation ID" of 2012: the number lies at a fixed address, which an ACPI
//! device names, and an event says that it has changed. The number may be in memory of a device, as here; the
//! event is one of a second block of general-purpose events (ACPI 6.5, 4.8.4.1), with a status and an enable
//! byte, which belongs to this device alone.
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_core::input::DeviceInput;
//! use ring3_devices::vmgenid::{EVENT_BIT, EVENT_BLOCK, Vmgenid};
//!
//! let (mut device, mut bench) = (Vmgenid::new([1; 16]), TestBench::default());
//! device.input(&mut bench.context(), DeviceInput::Generation([2; 16]));
//! assert_eq!(device.read_memory(&mut bench.context(), 0, 4, Width::Word), 0x0202);
//! assert_eq!(bench.read(&mut device, EVENT_BLOCK.first), EVENT_BIT);
//! ```

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::acpi_pm::SCI_IRQ;
use crate::bytewise;

/// Where the number is. The page belongs to nobody else.
pub const ADDRESS: u64 = 0xfed1_0000;
/// How many guest-physical addresses it takes.
pub const SIZE: u64 = 16;
/// The block of general-purpose events: status, and enable behind it.
pub const EVENT_BLOCK: PortRange = PortRange::new(0xafe4, 2);
/// The number of the block's first event: those before are in the first block.
pub const FIRST_EVENT: u8 = 16;
/// The bit of the event that says that the number has changed: that of the first.
pub const EVENT_BIT: u8 = 1 << 0;

const REGION: u8 = 0;
/// This device's number among those that share the line of the SCI.
const SCI_DRIVER: u8 = 1;
const VERSION: u32 = 1;

/// The device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vmgenid {
    number: [u8; 16],
    /// The event block.
    status: u8,
    enable: u8,
}

impl Vmgenid {
    /// A device with this number.
    pub fn new(number: [u8; 16]) -> Vmgenid {
        Vmgenid { number, status: 0, enable: 0 }
    }

    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 1] {
        [EVENT_BLOCK]
    }

    fn drive_line(&self, context: &mut Context<'_>) {
        context.irq.set_shared(SCI_IRQ, SCI_DRIVER, self.status & self.enable != 0);
    }
}

impl Device for Vmgenid {
    fn id(&self) -> DeviceId {
        DeviceId::VMGENID
    }

    /// The number stays: the machine is the same after a reset.
    fn reset(&mut self, context: &mut Context<'_>) {
        *self = Vmgenid::new(self.number);
        self.drive_line(context);
        context.claim_memory(REGION, ADDRESS, SIZE);
    }

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let block = [self.status, self.enable];
        bytewise::read(port, width, |port| {
            block.get(usize::from(port - EVENT_BLOCK.first)).copied().unwrap_or(0)
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, byte| match port - EVENT_BLOCK.first {
            0 => self.status &= !byte,
            1 => self.enable = byte,
            _ => {}
        });
        self.drive_line(context);
    }

    fn read_memory(&mut self, _: &mut Context<'_>, _: u8, offset: u64, width: Width) -> u32 {
        (0..width.bytes()).fold(0, |value, index| {
            let offset = usize::try_from(offset.saturating_add(index.into())).ok();
            let byte = offset.and_then(|offset| self.number.get(offset)).copied().unwrap_or(0xff);
            value | u32::from(byte) << (8 * index)
        })
    }

    /// Takes [`DeviceInput::Generation`].
    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        if let DeviceInput::Generation(number) = input {
            self.number = number;
            self.status |= EVENT_BIT;
            self.drive_line(context);
        }
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: Vmgenid = saved.load(self.name(), VERSION)?;
        if state.status & !EVENT_BIT != 0 {
            return Err(saved.damaged("there are no such events"));
        }
        *self = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring3_core::device::TestBench;

    use super::*;
    use crate::hammer::{blows, hammer};

    #[test]
    fn a_new_number_is_announced_until_the_system_knows() {
        let (mut device, mut bench) = (Vmgenid::new([1; 16]), TestBench::default());
        let (status, enable) = (EVENT_BLOCK.first, EVENT_BLOCK.first + 1);
        device.input(&mut bench.context(), DeviceInput::Generation([2; 16]));
        assert!(!bench.irq.is_high(SCI_IRQ), "nobody wants to know");
        bench.write(&mut device, enable, EVENT_BIT);
        assert!(bench.irq.is_high(SCI_IRQ));
        bench.write(&mut device, status, EVENT_BIT);
        assert!(!bench.irq.is_high(SCI_IRQ));
        device.input(&mut bench.context(), DeviceInput::Generation([3; 16]));
        assert!(bench.irq.is_high(SCI_IRQ));
        let saved = device.save();
        device.reset(&mut bench.context());
        assert!(!bench.irq.is_high(SCI_IRQ));
        let read = |device: &mut Vmgenid, bench: &mut TestBench, offset| {
            device.read_memory(&mut bench.context(), REGION, offset, Width::Dword)
        };
        assert_eq!(read(&mut device, &mut bench, 12), 0x0303_0303);
        assert_eq!(read(&mut device, &mut bench, 14), 0xffff_0303);
        let mut other = Vmgenid::new([0; 16]);
        other.restore(&saved).unwrap();
        assert_eq!(bench.read(&mut other, status), EVENT_BIT);
    }

    proptest! {
        #[test]
        fn no_treatment_upsets_it(blows in blows(&[0xafe4, 0xafe5])) {
            hammer(&mut Vmgenid::new([0; 16]), &mut Vmgenid::new([0; 16]), blows);
        }
    }
}
