//! The interface of engines, which execute guest instructions.

use std::io;

use ring3_core::device::Width;
use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::guest_tools::Call;
use crate::report::Missing;

/// Why an engine has returned. If an answer is necessary, the machine gives it with [`Cpu::answer`] and runs
/// the engine again, which repeats the instruction with the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The requested number of instructions has been executed.
    Deadline,
    /// The guest reads a port; the answer is the value read.
    PortRead {
        /// The port.
        port: u16,
        /// The size of the access.
        width: Width,
    },
    /// The guest writes a port; any answer says that the write is done.
    PortWrite {
        /// The port.
        port: u16,
        /// The size of the access.
        width: Width,
        /// The value written.
        value: u32,
    },
    /// The guest reads memory that belongs to a device; the answer is the value read.
    MmioRead {
        /// Guest-physical address.
        address: u64,
        /// The size of the access.
        width: Width,
    },
    /// The guest writes memory that belongs to a device; any answer says that the write is done.
    MmioWrite {
        /// Guest-physical address.
        address: u64,
        /// The size of the access.
        width: Width,
        /// The value written.
        value: u32,
    },
    /// The guest reads the time-stamp counter; the answer is its 64 bits.
    TimeStamp,
    /// The guest sets IA32_APIC_BASE; any answer says that the local APIC has received it.
    ApicBase {
        /// Its new value.
        value: u64,
    },
    /// The guest calls a tool by CPUID; [`Cpu::answer_guest_tool`] gives the answer.
    GuestTool(Call),
    /// INTR is high and the guest can take an interrupt now; the machine
    /// acknowledges the interrupt controller and calls [`Cpu::inject`].
    InterruptWindow,
    /// The guest waits for an interrupt (HLT).
    Halt,
    /// FERR# is asserted: an x87 instruction has found an exception pending with CR0.NE clear. It starts
    /// again after an interrupt, for which the processor waits as in HLT. The machine's circuits raise this
    /// interrupt, and pass IGNNE# on to [`Cpu::ignore_numeric_error`].
    NumericError,
    /// The guest must stop for the debugger; [`Cpu::take_debugger_hit`] says why.
    Debugger,
    /// An exception was raised while a double fault was delivered (triple fault).
    Shutdown,
    /// The guest needs a processor feature that is not implemented.
    Missing(Missing),
}

impl Exit {
    /// Returns whether this asks for an access to a port or to a device's memory.
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

/// Performs accesses to devices for an engine while it runs, and acknowledges interrupts, so that it need not
/// return for each of them.
pub trait Devices {
    /// Performs the access to a port or to a device's memory that `exit` asks for, and completes the
    /// instruction, as the machine does when an engine returns. Returns how many instructions may be executed
    /// from there on, at least one, or None if the machine must first handle events, so that the engine
    /// returns with [`Exit::Deadline`].
    fn access(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> Option<u64>;

    /// Performs the access of an IN, OUT or MOV that does nothing else, has no repeat prefix and runs without
    /// special conditions. Returns the value read and, like [`Devices::access`], how many instructions may be
    /// executed from there on. The instruction then counts as executed, and the engine does the rest of it.
    /// Except for the count of instructions, `cpu` need not be up to date, and its architectural state does
    /// not change.
    fn transfer(&mut self, cpu: &mut Cpu, memory: &mut Memory, exit: &Exit) -> (u32, Option<u64>);

    /// Acknowledges the interrupt that `cpu` [takes](Cpu::takes_interrupt), and [injects](Cpu::inject) it, as the
    /// machine does after [`Exit::InterruptWindow`]. Returns, like [`Devices::access`], how many instructions may
    /// be executed from there on.
    fn acknowledge_interrupt(&mut self, cpu: &mut Cpu) -> Option<u64>;

    /// Returns the 32 bits of a device's register at guest-physical address `address`, if reading it has no
    /// effect and takes no time, and its value stays the same until the next access or until the engine
    /// returns. Returns None for all other addresses.
    fn peek(&self, address: u64) -> Option<u32>;

    /// Returns the byte at `port` under the same conditions, and None for all other ports.
    fn peek_port(&self, port: u16) -> Option<u8>;
}

/// Code that an engine has made for the host's processor from guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostCode {
    /// Its address in this process.
    pub start: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The linear address of the guest code.
    pub linear: u64,
    /// Whether that is code of users.
    pub is_user: bool,
}

/// An engine, which executes guest instructions.
pub trait Engine {
    /// A short name, as the user gives it.
    fn name(&self) -> &'static str;

    /// Runs `cpu` until an exit, but for at most `instructions` more instructions. An iteration of a repeated
    /// string instruction counts as one, and so does an instruction that raises an exception.
    fn run(&mut self, cpu: &mut Cpu, memory: &mut Memory, instructions: u64) -> Exit;

    /// Runs like [`Engine::run`], and may ask `devices` to perform accesses to ports and to devices' memory.
    /// An engine may return for an access all the same.
    fn run_with(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        instructions: u64,
        _devices: &mut dyn Devices,
    ) -> Exit {
        self.run(cpu, memory, instructions)
    }

    /// Adds to the [histogram](Cpu::histogram) of `cpu` what the engine has counted and not yet added.
    fn complete_counts(&mut self, _cpu: &mut Cpu) {}

    /// Returns the names and values of the engine's counters since it was made.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Lets profilers of the host find names for the code that the engine makes.
    fn reveal_code(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the code that the engine has made and not dropped.
    fn host_code(&self) -> Vec<HostCode> {
        Vec::new()
    }

    /// Returns the host time, in nanoseconds, that each kind of the engine's work has taken besides the execution of
    /// guest code. The times are those of samples.
    fn times(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
