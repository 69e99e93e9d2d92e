//! The machine as a debugger sees it: its registers and memory, which it may change, and runs that stop at
//! breakpoints and watchpoints or after one instruction.
//!
//! Nothing of this is part of the machine's state. A debugger that only looks does not change what a
//! deterministic run computes: its stops lie between two instructions and take no virtual time.

use std::fmt;
use std::mem;

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::debugger::Hit;
pub use ring3_x86::debugger::{Watched, Watchpoint};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;
use ring3_x86::softfloat::F80;
use thiserror::Error;

use crate::control::Ended;
use crate::door::Door;
use crate::inspect::MemoryRange;
use crate::machine::Vm;

/// The registers of the processor. Those that the guest sees in other ways, such as the hidden parts of
/// segment registers, cannot be changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registers {
    /// Whether the model has long mode, without which there are neither the upper halves of registers nor the
    /// registers from 8 on.
    pub has_long_mode: bool,
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15.
    pub general: [u64; 16],
    /// RIP.
    pub ip: u64,
    /// EFLAGS.
    pub eflags: u32,
    /// The selectors in ES, CS, SS, DS, FS and GS.
    pub selectors: [u16; 6],
    /// The bases of FS and GS, and the one that SWAPGS puts in the place of the latter.
    pub bases: [u64; 3],
    /// CR0, CR2, CR3 and CR4.
    pub control: [u64; 4],
    /// IA32_EFER.
    pub efer: u64,
    /// ST0 to ST7.
    pub st: [[u8; 10]; 8],
    /// The x87 environment as FNSTENV stores it in protected mode: control, status and tag words, and the
    /// pointers (SDM vol. 1, figure 8-9).
    pub environment: [u32; 7],
    /// XMM0 to XMM15.
    pub xmm: [u128; 16],
    /// MXCSR.
    pub mxcsr: u32,
}

impl Registers {
    /// Returns whether long mode is active (IA32_EFER.LMA, SDM vol. 3, 2.2.1).
    pub fn is_in_long_mode(&self) -> bool {
        self.efer & 1 << 10 != 0
    }

    fn of(cpu: &Cpu) -> Registers {
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7];
        let all = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let [fs, gs] = [sreg::FS, sreg::GS].map(|register| cpu.segment(register).base);
        Registers {
            has_long_mode: cpu.model.has_long_mode(),
            general: all.map(|number| cpu.gpr(number)),
            ip: cpu.ip,
            eflags: cpu.eflags().bits() | 2,
            selectors: [sreg::ES, sreg::CS, sreg::SS, sreg::DS, sreg::FS, sreg::GS]
                .map(|register| cpu.segment(register).selector),
            bases: [fs, gs, cpu.msrs.long.kernel_gs_base],
            control: [cpu.cr0().bits().into(), cpu.cr2, cpu.cr3(), cpu.cr4().bits().into()],
            efer: cpu.efer(),
            st: numbers.map(|number| cpu.fpu.content(number).to_bytes()),
            environment: cpu.fpu.environment(true),
            xmm: all.map(|number| cpu.sse.xmm(number)),
            mxcsr: cpu.sse.mxcsr(),
        }
    }

    /// Sets the registers of `cpu`.
    fn set(&self, cpu: &mut Cpu) -> Result<(), DebugError> {
        let now = Registers::of(cpu);
        if self.selectors != now.selectors
            || self.bases != now.bases
            || self.control != now.control
            || self.efer != now.efer
            || self.has_long_mode != now.has_long_mode
            || !now.has_long_mode && self.general.iter().any(|value| value >> 32 != 0)
            || !cpu.is_in_64_bit_mode() && self.ip >> 32 != 0
            || cpu.has_answers()
        {
            return Err(DebugError::Register);
        }
        for (number, value) in (0..).zip(self.general) {
            cpu.set_gpr(number, value);
        }
        cpu.ip = self.ip;
        if self.eflags != now.eflags {
            let changeable = Eflags::STATUS | Eflags::DF | Eflags::IF | Eflags::TF | Eflags::AC;
            let flags = Eflags::from_bits_truncate(self.eflags) & changeable;
            cpu.set_eflags((cpu.eflags() - changeable) | flags);
        }
        if self.st != now.st || self.environment != now.environment {
            cpu.fpu.set_environment(self.environment, true);
            for (number, bytes) in (0..).zip(self.st) {
                cpu.fpu.set_st(number, F80::from_bytes(bytes));
            }
            // The tags say which of them are empty.
            cpu.fpu.set_tag_word(self.environment[2] as u16);
        }
        for (number, value) in (0..).zip(self.xmm) {
            cpu.sse.set_xmm(number, value);
        }
        cpu.sse.set_mxcsr(self.mxcsr);
        Ok(())
    }
}

/// The reasons why a debugger is refused something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DebugError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The register cannot be changed.
    #[error("this register cannot be changed")]
    Register,
    /// A page is not mapped.
    #[error("this memory is not mapped")]
    NotMapped,
    /// The run is recorded or repeated, and its recording would not repeat the change.
    #[error("the run is recorded or repeated, and the recording would not repeat this change")]
    Recorded,
}

/// What becomes of interrupts while one instruction is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupts {
    /// They come as always.
    Taken,
    /// They wait until the next instruction, unless this one waits for them. A run that is deterministic,
    /// recorded or repeated takes them all the same, since it would go another way.
    HeldBack,
}

/// How the machine continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// Until a breakpoint or a watchpoint.
    Until {
        /// The linear addresses of instructions before which it stops. The present one does not count.
        breakpoints: Vec<u64>,
        /// Memory after whose accesses it stops.
        watchpoints: Vec<Watchpoint>,
    },
    /// For one instruction; an iteration of a repeated one is one, too.
    Step(Interrupts),
    /// Back to the last instruction with a breakpoint, or to before the last access to watched memory. This is
    /// possible where [`Control::goes_back`](crate::Control::goes_back) says so.
    Back {
        /// As in [`Run::Until`].
        breakpoints: Vec<u64>,
        /// As in [`Run::Until`].
        watchpoints: Vec<Watchpoint>,
    },
    /// Back by one instruction.
    StepBack,
}

/// Why the machine stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The next instruction has a breakpoint.
    Breakpoint,
    /// Watched memory was accessed.
    Watchpoint(Watchpoint),
    /// The instruction is executed.
    Step,
    /// Somebody has paused it.
    Paused,
    /// It is at the beginning of the run, and cannot go back any more.
    Beginning,
    /// It is at the end of the run that is repeated.
    End,
}

/// How the machine goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Back {
    /// By one instruction.
    Step,
    /// To a breakpoint or watchpoint.
    Until,
}

/// A function that is told why the machine stands still. If it is dropped before, the machine has ended, or
/// has continued without the debugger.
pub struct Waiter(Box<dyn FnOnce(Stop) + Send>);

impl Waiter {
    /// Makes a waiter of `tell`, which is called by the machine's thread and must return soon.
    pub fn new(tell: impl FnOnce(Stop) + Send + 'static) -> Waiter {
        Waiter(Box::new(tell))
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").finish_non_exhaustive()
    }
}

/// A debugger's run.
#[derive(Debug, Default)]
pub(crate) struct Debugging {
    waiter: Option<Waiter>,
    /// The count of instructions at which a step ends, and what becomes of interrupts until then.
    step: Option<(u64, Interrupts)>,
    /// How the machine is to go back.
    back: Option<Back>,
    /// Why the machine is about to stand still.
    stop: Option<Stop>,
    /// The count of instructions at which the guest has stopped between the delivery of an interrupt and the
    /// first instruction of its handler.
    after_delivery: Option<u64>,
}

impl Debugging {
    /// Returns the count of instructions at which the guest must stop, if there is one.
    pub(crate) fn end(&self) -> Option<u64> {
        self.step.map(|(end, _)| end)
    }

    /// Returns whether interrupts are held back.
    pub(crate) fn holds_interrupts(&self) -> bool {
        matches!(self.step, Some((_, Interrupts::HeldBack)))
    }

    /// Returns how the machine is to go back, once.
    pub(crate) fn take_back(&mut self) -> Option<Back> {
        self.back.take()
    }

    /// Returns whether the debugger waits for the machine to stand still.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiter.is_some()
    }

    /// Returns whether the machine is about to stand still.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Returns why the machine is about to stand still, if it is.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.stop
    }

    /// Returns whether the guest has stopped, after `instructions` instructions, between the delivery of an
    /// interrupt and its handler.
    pub(crate) fn is_after_delivery(&self, instructions: u64) -> bool {
        self.after_delivery == Some(instructions)
    }

    /// Lets the machine go on, from here or from another place.
    pub(crate) fn forget_stop(&mut self) {
        (self.stop, self.after_delivery) = (None, None);
    }

    /// Lets the machine stay where it has stopped, without telling the debugger.
    pub(crate) fn stay(&mut self) {
        self.stop = None;
    }

    /// Tells the debugger that the machine stands still, if it waits.
    pub(crate) fn tell(&mut self, stop: Stop) {
        self.step = None;
        self.back = None;
        if let Some(Waiter(tell)) = self.waiter.take() {
            tell(stop);
        }
    }
}

impl Vm {
    /// Returns the registers.
    pub fn registers(&self) -> Registers {
        Registers::of(&self.cpu)
    }

    /// Sets the registers.
    pub(crate) fn set_registers(&mut self, registers: &Registers) -> Result<(), DebugError> {
        if self.is_recorded() || self.is_replayed() {
            return Err(DebugError::Recorded);
        }
        registers.set(&mut self.cpu)
    }

    /// Writes memory as a device does.
    pub(crate) fn poke(&mut self, range: MemoryRange, bytes: &[u8]) -> Result<(), DebugError> {
        if self.is_recorded() || self.is_replayed() {
            return Err(DebugError::Recorded);
        }
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let at = range.address.wrapping_add(done as u64);
            let count = (bytes.len() - done).min(0x1000 - (at & 0xfff) as usize);
            let physical = if range.is_linear { self.physical(at) } else { Some(at) };
            pieces.push((physical.ok_or(DebugError::NotMapped)?, done..done + count));
            done += count;
        }
        let memory: &mut Memory = &mut self.memory;
        for (physical, part) in pieces {
            memory.write(physical, &bytes[part]);
        }
        Ok(())
    }

    /// Lets the machine continue for a debugger, which `waiter` tells of the end.
    pub(crate) fn debug(&mut self, door: &mut Door, run: Run, waiter: Waiter) {
        self.pass_debugger_stop();
        let goes_back = self.goes_back();
        let debugging = &mut self.debugging;
        debugging.waiter = Some(waiter);
        debugging.stop = None;
        debugging.step = None;
        debugging.back = None;
        match run {
            Run::Until { breakpoints, watchpoints } => {
                self.cpu.set_debugger_points(breakpoints, watchpoints);
            }
            Run::Back { .. } | Run::StepBack if !goes_back => {
                return debugging.tell(Stop::Beginning);
            }
            Run::Back { breakpoints, watchpoints } => {
                self.cpu.set_debugger_points(breakpoints, watchpoints);
                self.debugging.back = Some(Back::Until);
            }
            Run::StepBack => debugging.back = Some(Back::Step),
            // The points stay, since an instruction is executed all the same, and setting them takes time.
            Run::Step(interrupts) => {
                let must_take = self.config.deterministic || self.is_logged() || self.is_replayed();
                let interrupts = if must_take { Interrupts::Taken } else { interrupts };
                self.debugging.step = Some((self.cpu.instructions + 1, interrupts));
            }
        }
        door.resume();
    }

    /// Lets the guest continue where it has stopped for the debugger.
    pub(crate) fn pass_debugger_stop(&mut self) {
        self.cpu.take_debugger_hit();
        self.cpu.pass_breakpoint();
    }

    /// Returns whether the debugger waits for accesses to memory.
    pub(crate) fn has_watchpoints(&self) -> bool {
        !self.cpu.debugger().watchpoints().is_empty()
    }

    /// Forgets the debugger.
    pub(crate) fn end_debugging(&mut self) {
        let after_delivery = self.debugging.after_delivery;
        self.debugging = Debugging { after_delivery, ..Debugging::default() };
        self.cpu.take_debugger_hit();
        self.cpu.set_debugger_points(Vec::new(), Vec::new());
    }

    /// Takes the debugger of `old`, in whose place this machine goes on: its breakpoints and watchpoints, and the
    /// run for whose end it waits.
    pub(crate) fn take_debugger_of(&mut self, old: &mut Vm) {
        let points = old.cpu.debugger();
        let (breakpoints, watchpoints) =
            (points.breakpoints().to_vec(), points.watchpoints().to_vec());
        self.cpu.set_debugger_points(breakpoints, watchpoints);
        let Debugging { waiter, step, .. } = mem::take(&mut old.debugging);
        // A step is one instruction of the machine in which it ends.
        let step = step.map(|(_, interrupts)| (self.cpu.instructions + 1, interrupts));
        self.debugging = Debugging { waiter, step, ..Debugging::default() };
    }

    /// Notes that the engine has returned for the debugger.
    pub(crate) fn note_hit(&mut self) {
        let stop = match self.cpu.take_debugger_hit() {
            Some(Hit::Watchpoint(point)) => Stop::Watchpoint(point),
            Some(Hit::Breakpoint) | None => Stop::Breakpoint,
        };
        self.debugging.stop = Some(stop);
        let instructions = self.cpu.instructions;
        self.debugging.after_delivery = self.cpu.has_just_interrupted().then_some(instructions);
    }

    /// Returns whether inputs can be taken now, so that the run can be repeated. A replay takes them before
    /// the interrupts that are due, and another interrupt might come first: they wait where the debugger has
    /// stopped the guest after such an interrupt.
    pub(crate) fn takes_inputs(&self) -> bool {
        self.debugging.after_delivery != Some(self.cpu.instructions)
            || !(self.config.deterministic || self.is_recorded())
    }

    /// Notes the end of a step.
    pub(crate) fn note_step(&mut self) {
        if self.debugging.end().is_some_and(|end| end <= self.cpu.instructions) {
            self.debugging.stop.get_or_insert(Stop::Step);
        }
    }

    /// Pauses if the guest has stopped for the debugger.
    pub(crate) fn stop_for_debugger(&mut self, door: &mut Door) {
        if let Some(stop) = mem::take(&mut self.debugging.stop) {
            door.pause();
            self.debugging.tell(stop);
        }
    }
}
