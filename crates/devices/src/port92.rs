//! System control port A (92h): the quick ways to switch address line 20 and to reset the processor.
//!
//! From the IBM Personal System/2 Hardware Interface Technical Reference, "System Control Port A", as later
//! chipsets have it (Intel 82371AB data sheet, 290562, "Port 92 Register"). Its bit for address line 20 and that of the
//! keyboard controller go through an OR gate: each can hold the line high, and both must be low to mask it. (In QEMU and Bochs
//! the last write to either counts.)

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;

const VERSION: u32 = 1;
const PORT: u16 = 0x92;

/// A change to 1 resets the processor.
const FAST_RESET: u8 = 1 << 0;
/// Address line 20 is held high.
const A20: u8 = 1 << 1;
const BITS: u8 = FAST_RESET | A20;

/// System control port A, device `port92`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port92 {
    value: u8,
}

impl Port92 {
    /// The port at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 1] {
        [PortRange::new(PORT, 1)]
    }
}

impl Device for Port92 {
    fn id(&self) -> DeviceId {
        DeviceId::PORT92
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        *self = Port92::default();
        context.drive_a20(false);
    }

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |port| if port == PORT { self.value } else { 0xff })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, byte| {
            if port == PORT {
                let before = std::mem::replace(&mut self.value, byte & BITS);
                context.drive_a20(byte & A20 != 0);
                if byte & !before & FAST_RESET != 0 {
                    context.output(Output::ProcessorReset);
                }
            }
        });
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: Port92 = saved.load(self.name(), VERSION)?;
        if state.value & !BITS != 0 {
            return Err(saved.damaged("reserved register bits are set"));
        }
        *self = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{blows, hammer};
    use ring3_core::device::TestBench;

    #[test]
    fn a_rising_bit_0_resets_the_processor() {
        let (mut bench, mut port) = (TestBench::default(), Port92::default());
        assert_eq!(bench.read(&mut port, PORT), 0);
        bench.write(&mut port, PORT, 0xfd);
        assert_eq!(bench.outputs, [Output::ProcessorReset]);
        assert_eq!(bench.read(&mut port, PORT), FAST_RESET);
        bench.write(&mut port, PORT, 0x03);
        assert_eq!(bench.outputs.len(), 1);
        assert_eq!(bench.read(&mut port, PORT), 3);
    }

    #[test]
    fn bit_1_drives_address_line_20() {
        let (mut bench, mut port) = (TestBench::default(), Port92::default());
        port.reset(&mut bench.context());
        assert!(!bench.a20.is_high());
        bench.write(&mut port, PORT, A20);
        assert!(bench.a20.is_high());
        bench.write(&mut port, PORT, !(A20 | FAST_RESET));
        assert!(!bench.a20.is_high());
        assert_eq!(bench.read(&mut port, PORT), 0);
    }

    proptest! {
        #[test]
        fn any_accesses_leave_a_state_that_can_be_saved(blows in blows(&[PORT])) {
            hammer(&mut Port92::default(), &mut Port92::default(), blows);
        }
    }
}
