//! Two ports that emulators have for those who work on firmware and systems: a console, and an exit.
//!
//! As in QEMU's `isa-debugcon` (a byte written at port 402h is a character of a message, and a read yields E9h, by which
//! firmware finds it) and `isa-debug-exit` (a value v written at its port, usually 501h or F4h, ends the run
//! with status 2v + 1, so that a status of 0 stays the power switch's).

use ring3_core::bus::PortRange;
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::state::{RestoreError, SavedState};

use crate::bytewise;

/// Where firmware looks for the console.
pub const DEBUG_CONSOLE_PORT: u16 = 0x402;
/// What tells firmware that the console is there.
const DEBUG_CONSOLE_ID: u8 = 0xe9;
const VERSION: u32 = 1;

/// The debug console, device `debug_console`.
#[derive(Debug, Clone, Copy, Default)]
pub struct DebugConsole;

impl DebugConsole {
    /// The port at which the board attaches the device.
    pub fn ports(self) -> [PortRange; 1] {
        [PortRange::new(DEBUG_CONSOLE_PORT, 1)]
    }
}

impl Device for DebugConsole {
    fn id(&self) -> DeviceId {
        DeviceId::DEBUG_CONSOLE
    }

    fn reset(&mut self, _: &mut Context<'_>) {}

    fn read_port(&mut self, _: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |_| DEBUG_CONSOLE_ID)
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |_, byte| context.output(Output::DebugConsole(byte)));
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &())
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        saved.load(self.name(), VERSION)
    }
}

/// The exit, device `debug_exit`.
#[derive(Debug, Clone, Copy)]
pub struct DebugExit {
    port: u16,
}

impl DebugExit {
    /// An exit at `port` and the three ports after it.
    pub fn new(port: u16) -> DebugExit {
        DebugExit { port }
    }

    /// The ports at which the board attaches the device.
    pub fn ports(self) -> [PortRange; 1] {
        [PortRange::new(self.port, 4)]
    }
}

impl Device for DebugExit {
    fn id(&self) -> DeviceId {
        DeviceId::DEBUG_EXIT
    }

    fn reset(&mut self, _: &mut Context<'_>) {}

    fn read_port(&mut self, _: &mut Context<'_>, _: u16, _: Width) -> u32 {
        0
    }

    fn write_port(&mut self, context: &mut Context<'_>, _: u16, _: Width, value: u32) {
        // The status of a process has eight bits.
        context.output(Output::Exit((value << 1 | 1) as u8));
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
    fn firmware_finds_the_console_and_writes_to_it() {
        let (mut bench, mut console) = (TestBench::default(), DebugConsole);
        assert_eq!(bench.read(&mut console, DEBUG_CONSOLE_PORT), 0xe9);
        bench.write(&mut console, DEBUG_CONSOLE_PORT, b'S');
        assert_eq!(bench.outputs, [Output::DebugConsole(b'S')]);
    }

    #[test]
    fn the_exit_has_odd_statuses() {
        let (mut bench, mut exit) = (TestBench::default(), DebugExit::new(0xf4));
        exit.write_port(&mut bench.context(), 0xf4, Width::Dword, 0x10);
        assert_eq!(bench.outputs, [Output::Exit(0x21)]);
    }

    proptest! {
        #[test]
        fn any_accesses_are_handled_without_a_panic(blows in blows(&[0x402, 0xf4, 0xf5])) {
            hammer(&mut DebugConsole, &mut DebugConsole, blows.clone());
            hammer(&mut DebugExit::new(0xf4), &mut DebugExit::new(0xf4), blows);
        }
    }
}
