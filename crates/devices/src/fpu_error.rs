//! How a PC reports x87 errors by IRQ 13 (SDM vol. 1, D.2.1.2).
//!
//! With CR0.NE clear the processor asserts FERR#, which sets a flip-flop whose output is IRQ 13.
//! A write to port F0h, the coprocessor error register of the chipset (PIIX3 data sheet, 290550), clears
//! it and asserts IGNNE#, so that the handler can execute x87 instructions before it has cleared the error.
//! That IGNNE# goes inactive with FERR# is left to the processor, which knows when.

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;

/// The coprocessor error register.
pub const PORT: u16 = 0xf0;
/// The line of the flip-flop's output.
pub const IRQ: u8 = 13;

const VERSION: u32 = 1;

/// The circuit between FERR#, IGNNE# and IRQ 13. Its flip-flop is the level of that line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FpuError {
    /// IGNNE# has gone active, and the processor has not been told.
    ignne: bool,
}

impl FpuError {
    /// The ports.
    pub fn ports(&self) -> PortRange {
        PortRange::new(PORT, 1)
    }

    /// FERR# goes active.
    pub fn assert_ferr(context: &mut Context<'_>) {
        context.irq.set(IRQ, true);
    }

    /// True if IGNNE# has gone active since the last call.
    pub fn take_ignne(&mut self) -> bool {
        std::mem::take(&mut self.ignne)
    }
}

impl Device for FpuError {
    fn id(&self) -> DeviceId {
        DeviceId::FPU_ERROR
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        *self = FpuError::default();
    }

    /// The register can only be written.
    fn read_port(&mut self, _: &mut Context<'_>, _: u16, width: Width) -> u32 {
        width.mask()
    }

    /// The value does not matter.
    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, _| {
            if port == PORT {
                context.irq.set(IRQ, false);
                self.ignne = true;
            }
        });
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError> {
        *self = state.load(self.name(), VERSION)?;
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
    fn an_error_is_irq_13_until_port_f0_is_written() {
        let (mut device, mut bench) = (FpuError::default(), TestBench::default());
        FpuError::assert_ferr(&mut bench.context());
        assert!(bench.irq.is_high(IRQ));
        assert!(!device.take_ignne());
        assert_eq!(bench.read(&mut device, PORT), 0xff);
        assert!(bench.irq.is_high(IRQ));
        bench.write(&mut device, PORT, 0);
        assert!(!bench.irq.is_high(IRQ));
        assert!(device.take_ignne());
        assert!(!device.take_ignne(), "once");
    }

    proptest! {
        #[test]
        fn any_treatment(blows in blows(&[PORT - 1, PORT, PORT + 1])) {
            hammer(&mut FpuError::default(), &mut FpuError::default(), blows);
        }
    }
}
