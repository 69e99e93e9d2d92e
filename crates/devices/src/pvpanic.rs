//! The port by which a guest says that its system has failed: QEMU's `pvpanic` (docs/specs/pvpanic.rst there).
//!
//! A read tells which events the device knows; a write of their bits says what has happened. Drivers find the
//! port by an ACPI device.
//!
//! ```
//! use ring3_core::device::{GuestFailure, Output, TestBench};
//! use ring3_devices::pvpanic::{PORT, Pvpanic};
//!
//! let (mut bench, mut device) = (TestBench::default(), Pvpanic);
//! assert_eq!(bench.read(&mut device, PORT), 0b11);
//! bench.write(&mut device, PORT, 1);
//! assert_eq!(bench.outputs, [Output::Failed(GuestFailure::Panic)]);
//! ```

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, GuestFailure, Output, Width};
use ring3_core::state::{RestoreError, SavedState};

use crate::bytewise;

/// Where the device is.
pub const PORT: u16 = 0x505;
/// The name by which ACPI drivers know it.
pub const ACPI_ID: &str = "QEMU0001";

/// The guest's system has failed and does nothing more.
const PANICKED: u8 = 1 << 0;
/// It has failed, and another kernel, which is loaded already, takes over.
const CRASH_LOADED: u8 = 1 << 1;
const VERSION: u32 = 1;

/// The device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pvpanic;

impl Pvpanic {
    /// The port at which the board attaches the device.
    pub fn ports(self) -> [PortRange; 1] {
        [PortRange::new(PORT, 1)]
    }
}

impl Device for Pvpanic {
    fn id(&self) -> DeviceId {
        DeviceId::PVPANIC
    }

    fn reset(&mut self, _: &mut Context<'_>) {}

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |port| match port {
            PORT => PANICKED | CRASH_LOADED,
            _ => 0xff,
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, events| {
            if port == PORT && events & PANICKED != 0 {
                context.output(Output::Failed(GuestFailure::Panic));
            } else if port == PORT && events & CRASH_LOADED != 0 {
                context.output(Output::Failed(GuestFailure::CrashLoaded));
            }
        });
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &())
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        saved.load(self.name(), VERSION)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{blows, hammer};
    use ring3_core::device::TestBench;

    #[test]
    fn each_event_is_told_once() {
        let said = |value| {
            let (mut bench, mut device) = (TestBench::default(), Pvpanic);
            bench.write(&mut device, PORT, value);
            bench.outputs
        };
        assert_eq!(said(0b01), [Output::Failed(GuestFailure::Panic)]);
        assert_eq!(said(0b10), [Output::Failed(GuestFailure::CrashLoaded)]);
        assert_eq!(said(0b11), [Output::Failed(GuestFailure::Panic)]);
        assert_eq!(said(0b1000_0100), []);
    }

    proptest! {
        #[test]
        fn any_accesses_are_handled_without_a_panic(blows in blows(&[PORT])) {
            hammer(&mut Pvpanic, &mut Pvpanic, blows);
        }
    }
}
