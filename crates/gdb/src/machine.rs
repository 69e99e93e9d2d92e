//! What a debugger needs of a machine.

use ring3_core::input::Input;
use ring3_vm::Control;
use ring3_vm::control::{Ended, Status};
use ring3_vm::debug::{DebugError, Registers, Run, Waiter};
use ring3_vm::inspect::MemoryRange;

/// A machine that can be debugged.
pub trait Machine: Send {
    /// Returns whether it runs, rather than standing still.
    fn is_running(&self) -> bool;

    /// Returns whether it can go back.
    fn goes_back(&self) -> bool;

    /// Makes it stand still between two instructions.
    fn pause(&mut self) -> Result<(), Ended>;

    /// Lets it continue, without the debugger.
    fn resume(&mut self) -> Result<(), Ended>;

    /// Lets it continue as `run` says, and tells `waiter` when it stands still.
    fn debug(&mut self, run: Run, waiter: Waiter) -> Result<(), Ended>;

    /// Removes all breakpoints and watchpoints.
    fn forget_debugger(&mut self) -> Result<(), Ended>;

    /// Ends it.
    fn quit(&mut self);

    /// Returns the registers.
    fn registers(&mut self) -> Result<Registers, Ended>;

    /// Sets the registers.
    fn set_registers(&mut self, registers: Registers) -> Result<(), DebugError>;

    /// Returns the contents of memory, or None if one of the pages is not mapped.
    fn read(&mut self, range: MemoryRange) -> Result<Option<Vec<u8>>, Ended>;

    /// Writes memory, or nothing if one of the pages is not mapped.
    fn write(&mut self, range: MemoryRange, bytes: Vec<u8>) -> Result<(), DebugError>;
}

impl Machine for Control {
    fn is_running(&self) -> bool {
        self.status() == Status::Running
    }

    fn goes_back(&self) -> bool {
        // A machine that has ended goes nowhere.
        Control::goes_back(self).unwrap_or(false)
    }

    fn pause(&mut self) -> Result<(), Ended> {
        Control::pause(self)
    }

    fn resume(&mut self) -> Result<(), Ended> {
        Control::resume(self)
    }

    fn debug(&mut self, run: Run, waiter: Waiter) -> Result<(), Ended> {
        Control::debug(self, run, waiter)
    }

    fn forget_debugger(&mut self) -> Result<(), Ended> {
        self.end_debugging()
    }

    fn quit(&mut self) {
        self.sender().send(Input::Quit);
    }

    fn registers(&mut self) -> Result<Registers, Ended> {
        Control::registers(self)
    }

    fn set_registers(&mut self, registers: Registers) -> Result<(), DebugError> {
        Control::set_registers(self, registers)
    }

    fn read(&mut self, range: MemoryRange) -> Result<Option<Vec<u8>>, Ended> {
        self.read_memory(range)
    }

    fn write(&mut self, range: MemoryRange, bytes: Vec<u8>) -> Result<(), DebugError> {
        self.write_memory(range, bytes)
    }
}
