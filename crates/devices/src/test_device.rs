//! A device for programs that test processors and machines from inside: QEMU's `pc-testdev`, which kvm-unit-tests use.
//!
//! | where | what |
//! | --- | --- |
//! | ports E0h to E3h, and E8h to EBh | four bytes of a register, which keep what is written |
//! | ports E4h to E7h | writing the address of a page there has the host forget how it maps the page, which a guest never sees |
//! | port 2000h + n, n from 0 to 23 | a byte that is not 0 drives interrupt line n high, 0 low |
//! | addresses FF000000h to FF00FFFFh | memory that is a device's |
//!
//! ```
//! use ring3_core::device::TestBench;
//! use ring3_devices::test_device::TestDevice;
//!
//! let (mut bench, mut device) = (TestBench::default(), TestDevice::default());
//! bench.write(&mut device, 0x200e, 1);
//! assert!(bench.irq.is_high(14));
//! ```

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::lines::IrqLines;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bytewise;

const VERSION: u32 = 1;

/// The register, and where it is seen once more.
const REGISTER: u16 = 0xe0;
const REGISTER_AGAIN: u16 = 0xe8;
/// The first of the ports for interrupt lines.
const LINES: u16 = 0x2000;
/// Where the memory is.
const MEMORY: u64 = 0xff00_0000;
const MEMORY_LEN: usize = 0x1_0000;
const REGION: u8 = 0;
/// Which of those that share an interrupt line this device is.
const DRIVER: u8 = 7;

/// The device, `test_device`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestDevice {
    register: [u8; 4],
    memory: ByteBuf,
}

impl Default for TestDevice {
    fn default() -> TestDevice {
        TestDevice { register: [0; 4], memory: ByteBuf::from(vec![0; MEMORY_LEN]) }
    }
}

impl TestDevice {
    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 2] {
        [PortRange::new(REGISTER, 12), PortRange::new(LINES, IrqLines::ALL.into())]
    }

    /// The byte of the register at `port`.
    fn register(&mut self, port: u16) -> Option<&mut u8> {
        let is_there = (REGISTER..REGISTER + 4).contains(&port)
            || (REGISTER_AGAIN..REGISTER_AGAIN + 4).contains(&port);
        is_there.then(|| &mut self.register[usize::from(port & 3)])
    }

    /// The byte of the memory at `offset`.
    fn byte(&mut self, offset: u64) -> Option<&mut u8> {
        self.memory.get_mut(usize::try_from(offset).ok()?)
    }
}

impl Device for TestDevice {
    fn id(&self) -> DeviceId {
        DeviceId::TEST_DEVICE
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        *self = TestDevice::default();
        context.claim_memory(REGION, MEMORY, MEMORY_LEN as u64);
    }

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |port| self.register(port).map_or(0xff, |byte| *byte))
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, value| {
            if let Some(byte) = self.register(port) {
                *byte = value;
            } else if let Ok(line) = u8::try_from(port.wrapping_sub(LINES)) {
                context.irq.set_shared(line, DRIVER, value != 0);
            }
        });
    }

    fn read_memory(&mut self, _: &mut Context<'_>, _: u8, offset: u64, width: Width) -> u32 {
        (0..width.bytes()).fold(0, |value, index| {
            let byte = self.byte(offset.saturating_add(index.into())).map_or(0xff, |byte| *byte);
            value | u32::from(byte) << (8 * index)
        })
    }

    fn write_memory(&mut self, _: &mut Context<'_>, _: u8, offset: u64, width: Width, value: u32) {
        for index in 0..width.bytes() {
            if let Some(byte) = self.byte(offset.saturating_add(index.into())) {
                *byte = (value >> (8 * index)) as u8;
            }
        }
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: TestDevice = saved.load(self.name(), VERSION)?;
        if state.memory.len() != MEMORY_LEN {
            return Err(saved.damaged("its memory has another length"));
        }
        *self = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{blows, hammer, memory_blows};
    use ring3_core::device::TestBench;

    #[test]
    fn the_register_keeps_writes_of_any_width() {
        let (mut bench, mut device) = (TestBench::default(), TestDevice::default());
        device.write_port(&mut bench.context(), 0xe0, Width::Dword, 0x1234_5678);
        device.write_port(&mut bench.context(), 0xe2, Width::Byte, 0xab);
        let read = |device: &mut TestDevice, bench: &mut TestBench, port, width| {
            device.read_port(&mut bench.context(), port, width)
        };
        assert_eq!(read(&mut device, &mut bench, 0xe0, Width::Dword), 0x12ab_5678);
        assert_eq!(read(&mut device, &mut bench, 0xe8, Width::Dword), 0x12ab_5678);
        assert_eq!(read(&mut device, &mut bench, 0xea, Width::Word), 0x12ab);
        device.write_port(&mut bench.context(), 0xe4, Width::Dword, 0x1000);
        assert_eq!(read(&mut device, &mut bench, 0xe0, Width::Word), 0x5678);
    }

    #[test]
    fn interrupt_lines_go_up_and_down() {
        let (mut bench, mut device) = (TestBench::default(), TestDevice::default());
        for line in 0..24 {
            bench.write(&mut device, 0x2000 + u16::from(line), 0x80);
            bench.write(&mut device, 0x2000 + u16::from(line), 0);
            let changes: Vec<_> = bench.irq.drain_changes().collect();
            assert_eq!(changes, [(line, true), (line, false)]);
        }
        bench.write(&mut device, 0x2018, 1);
        assert!(!bench.irq.has_changes());
    }

    #[test]
    fn the_memory_is_where_it_is_claimed() {
        let (mut bench, mut device) = (TestBench::default(), TestDevice::default());
        device.reset(&mut bench.context());
        assert_eq!(bench.claims.len(), 1);
        device.write_memory(&mut bench.context(), 0, 0xffff, Width::Dword, 0x11);
        device.write_memory(&mut bench.context(), 0, 1, Width::Word, 0x3322);
        let read = |at, width, bench: &mut TestBench| {
            device.read_memory(&mut bench.context(), 0, at, width)
        };
        let mut read = read;
        assert_eq!(read(0xffff, Width::Word, &mut bench), 0xff11);
        assert_eq!(read(0, Width::Dword, &mut bench), 0x0033_2200);
    }

    proptest! {
        #[test]
        fn any_accesses_leave_a_state_that_can_be_saved(
            blows in blows(&[0xe0, 0xe2, 0xe4, 0xe8, 0xeb, 0x2000, 0x2017]),
            memory in memory_blows(&[0, 1, 0xfffd, 0xffff]),
        ) {
            let all = blows.into_iter().chain(memory).collect();
            hammer(&mut TestDevice::default(), &mut TestDevice::default(), all);
        }
    }
}
