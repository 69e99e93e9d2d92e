//! POPF and IRET that set TF: a debugger lets another program execute one instruction by them. The
//! interpreter executes that instruction and the single-step trap after it (SDM vol. 3, 19.3.1.4), and before
//! them those forms of IRET and POPF that translated code does not execute. Mostly these lead back to the code of
//! the supervisor that set TF, and translated code continues there as after a [quiet](super::quiet) instruction.

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;

use super::Translator;
use super::leaving::Next;
use super::quiet::Surroundings;
use crate::context::{info, reason};

impl Translator {
    /// Returns whether the instruction with index `number`, at which translated code was left, may set TF.
    pub(super) fn may_set_trap_flag(&self, number: usize) -> bool {
        let context = &self.context;
        let is_held = context.reason == reason::STEP && context.info & info::AFTER_HOLDING != 0;
        self.ops[number].loads_flags && !is_held
    }

    /// Executes POPF or IRET, the instruction with index `number`, at which translated code was left.
    /// `transfers` says that it loads CS. If it sets TF, executes the next instruction and the trap as well.
    /// Returns how execution continues.
    pub(super) fn execute_to_trap(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        number: usize,
        transfers: bool,
        deadline: u64,
    ) -> Next {
        self.store(cpu);
        let before = Surroundings::of(cpu);
        let (was_asked, by_user) = (cpu.interrupt_pin, cpu.is_user());
        if let Some(exit) = self.execute_op(cpu, memory, number, false) {
            return Next::Exit(exit);
        }
        if transfers {
            self.note_transfer(cpu, memory, by_user);
        }
        self.step_to_trap(cpu, memory, &before, was_asked, deadline)
    }

    /// Sets TF for a POPF or IRET that translated code has executed but for that, and executes the next
    /// instruction and the trap. Returns how execution continues.
    pub(super) fn set_trap_flag(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        deadline: u64,
    ) -> Next {
        self.store(cpu);
        let (before, was_asked) = (Surroundings::of(cpu), cpu.interrupt_pin);
        cpu.set_trap_flag();
        self.step_to_trap(cpu, memory, &before, was_asked, deadline)
    }

    /// Executes the instruction after one that may have set TF, if it has, and the trap.
    fn step_to_trap(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        before: &Surroundings,
        was_asked: bool,
        deadline: u64,
    ) -> Next {
        if !cpu.begins_single_step() || cpu.instructions >= deadline || memory.has_stale_code() {
            return Next::Done;
        }
        self.numeric.take(cpu, &self.blocks, &mut self.context);
        self.counters.interpreted += 1;
        if let Some(exit) = self.interpreter.execute_single_step(cpu, memory) {
            return Next::Exit(exit);
        }
        self.go_on_in(before, cpu, memory, was_asked, deadline)
    }
}
