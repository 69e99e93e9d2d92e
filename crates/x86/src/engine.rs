//! What an engine is: that which executes guest instructions.

use ring3_core::device::Width;
use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::report::Missing;

/// Why an engine came back. Where an answer is due, the machine gives it with
/// [`Cpu::answer`] and runs the engine again, which repeats the
/// instruction with the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The number of instructions asked for has been executed.
    Deadline,
    /// The guest reads a port; answer with what it reads.
    PortRead {
        /// The port.
        port: u16,
        /// How much of it.
        width: Width,
    },
    /// The guest writes a port; answer with anything when it is done.
    PortWrite {
        /// The port.
        port: u16,
        /// How much of it.
        width: Width,
        /// What it writes.
        value: u32,
    },
    /// The guest reads memory that is a device's; answer with what it reads.
    MmioRead {
        /// Guest-physical address.
        address: u64,
        /// How much.
        width: Width,
    },
    /// The guest writes memory that is a device's; answer with anything when it is done.
    MmioWrite {
        /// Guest-physical address.
        address: u64,
        /// How much.
        width: Width,
        /// What it writes.
        value: u32,
    },
    /// The guest reads the time-stamp counter; answer with its 64 bits.
    TimeStamp,
    /// The guest sets IA32_APIC_BASE; answer with anything when the local APIC has it.
    ApicBase {
        /// Its new value.
        value: u64,
    },
    /// INTR is high and the guest can take an interrupt now; the machine
    /// acknowledges the interrupt controller and calls [`Cpu::inject`].
    InterruptWindow,
    /// The guest waits for an interrupt (HLT).
    Halt,
    /// FERR# is asserted: an x87 instruction has found an exception pending with CR0.NE clear. It starts again
    /// after an interrupt, for which the processor waits as in HLT; the machine's circuits raise it, and let
    /// [`Cpu::ignore_numeric_error`] know of IGNNE#.
    NumericError,
    /// An exception while a double fault was delivered (triple fault).
    Shutdown,
    /// The guest needs something of the processor that does not exist here.
    Missing(Missing),
}

impl Exit {
    /// It asks for an access to a port or to device memory.
    pub fn is_access(&self) -> bool {
        matches!(
            self,
            Exit::PortRead { .. }
                | Exit::PortWrite { .. }
                | Exit::MmioRead { .. }
                | Exit::MmioWrite { .. }
        )
    }
}

/// What does an engine's accesses to devices while it runs, so that it need not come back for each.
pub trait Devices {
    /// Does the access to a port or to device memory for which `exit` asks, and has the instruction be over with it, as the machine does where an
    /// engine comes back. Gives how many instructions may be executed from there on, at least one; none if the engine is to come back with
    /// [`Exit::Deadline`], as the machine is to look around first.
    fn access(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> Option<u64>;

    /// The same for an IN, OUT or MOV that does nothing else, and is neither surrounded by anything nor repeated. It
    /// counts as executed then, and what it read is given too; the engine does the rest of it. Of `cpu` but for the
    /// count of instructions nothing need be up to date, and nothing of its architectural state changes.
    fn transfer(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> (u32, Option<u64>);

    /// The 32 bits of a device's register at guest-physical address `address`, where to read them does nothing else and takes no time, and they stay what they
    /// are until there is an access or the engine comes back. None of all others.
    fn peek(&self, address: u64) -> Option<u32>;
}

/// That which executes guest instructions.
pub trait Engine {
    /// A short name, as the user gives it.
    fn name(&self) -> &'static str;

    /// Runs `cpu` until an exit, but not beyond `instructions` more instructions;
    /// an iteration of a repeated string instruction counts as one, and so does an
    /// instruction that raises an exception.
    fn run(&mut self, cpu: &mut Cpu, memory: &mut Memory, instructions: u64) -> Exit;

    /// The same, where `devices` may be asked for what an access to a port or to device memory needs. An engine may come back for it all the same.
    fn run_with(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        instructions: u64,
        _devices: &mut dyn Devices,
    ) -> Exit {
        self.run(cpu, memory, instructions)
    }

    /// What the engine has counted since it was made: names and numbers.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}
