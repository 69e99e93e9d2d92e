//! Executes system instructions while translated code waits. It goes on with the next instruction if nothing
//! has changed that it depends on.

use std::ptr;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Msrs, reg};
use ring3_x86::engine::Devices;
use ring3_x86::flags::Eflags;

use super::Translator;
use crate::context::{Context, NumericEntry, only_holds, outcome};
use crate::mode;
use crate::numeric::{self, Numeric};
use crate::system::System;

/// Bits of CR0 that only numeric instructions depend on.
const OF_NUMERIC: Cr0 = Cr0::TS.union(Cr0::MP).union(Cr0::EM).union(Cr0::NE);
/// The number of IA32_TIME_STAMP_COUNTER.
const TIME_STAMP_COUNTER: u32 = 0x10;

/// What [`execute_system`] and [`execute_access`](super::execute_access) need of the engine that runs
/// translated code.
pub(crate) struct Running<'a> {
    pub(super) translator: *mut Translator,
    pub(super) cpu: *mut Cpu,
    pub(super) memory: *mut Memory,
    /// Number of instructions that translated code may execute.
    pub(super) allowed: u64,
    /// The count of instructions at which the engine must return.
    pub(super) deadline: *mut u64,
    pub(super) devices: *mut Option<&'a mut dyn Devices>,
}

/// Executes the instruction with index [`Context::system_number`], and returns its [`outcome`].
///
/// # Safety
/// Only [`system`](crate::routines::system::system) may call it, for the [`Context`] with which translated
/// code runs. The general registers must be in the processor, and the budget and RSP in `context`.
pub(crate) unsafe extern "sysv64" fn execute_system(context: *mut Context) -> u32 {
    // SAFETY: `running` was set before translated code was entered. The function that entered it waits until
    // translated code is left, and uses none of these objects meanwhile.
    let &Running { translator, cpu, memory, allowed, .. } =
        unsafe { &*ptr::with_exposed_provenance::<Running<'_>>((*context).running as usize) };
    // SAFETY: as above; there are no other references to them.
    unsafe { (*translator).execute_system(&mut *cpu, &mut *memory, allowed) }
}

impl Translator {
    /// Sets the fields of the context by which system instructions find the processor's state.
    pub(super) fn load_system(&mut self, cpu: &Cpu) {
        self.context.answers.forget();
        self.context.cpu = ptr::from_ref(cpu).addr() as u64;
        self.load_debug_registers(cpu);
    }

    fn load_debug_registers(&mut self, cpu: &Cpu) {
        let context = &mut self.context;
        context.debug_registers = if cpu.guards_debug_registers() {
            context.faulting
        } else {
            context.cpu + Cpu::DEBUG_REGISTERS as u64
        };
    }

    /// Executes the system instruction at which translated code waits; see [`execute_system`].
    fn execute_system(&mut self, cpu: &mut Cpu, memory: &mut Memory, allowed: u64) -> u32 {
        if self.has_stayed() {
            self.store_alignment_flag(cpu);
        } else {
            let stack = cpu.gpr(reg::SP);
            self.come_back(cpu);
            cpu.set_gpr(reg::SP, stack);
        }
        if self.context.loaded != [false; 8] || !mode::is_flat(self.modes.current().0) {
            self.store_segments(cpu);
        }
        let number = self.context.system_number as usize;
        let system = self.ops[number].system;
        let count = cpu.instructions;
        if matches!(system, Some(System::Cpuid | System::Rdmsr | System::Wrmsr)) {
            // The instructions before this one: it is counted when it is complete.
            let remaining = self.budget.remaining(self.context.budget);
            cpu.instructions = count.wrapping_add_signed(allowed as i64 - remaining - 1);
        }
        let goes_on = self.execute_and_take_in(cpu, memory, number, system);
        cpu.instructions = count;
        let Some(goes_on) = goes_on else { return outcome::STOPPED };
        let mut outcome = outcome::DONE;
        if system == Some(System::SegmentCheck) {
            outcome |= outcome::SETS_ZERO;
            if cpu.status.zero() {
                outcome |= Eflags::ZF.bits();
            }
        }
        let goes_on = goes_on
            && cpu.begins_to_run_plainly()
            && !cpu.has_invalidations()
            && !memory.has_stale_code()
            && !memory.has_marked_code();
        if !goes_on {
            outcome |= outcome::LEAVES;
        }
        outcome
    }

    /// Executes the instruction with index `number` by the interpreter's handler, and takes over what it
    /// changes. Returns None if it stops. Returns false if translated code depends on a change that was not
    /// taken over, and must be entered anew.
    fn execute_and_take_in(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        number: usize,
        system: Option<System>,
    ) -> Option<bool> {
        let Translator { interpreter, ops, context, .. } = self;
        let op = &ops[number].op;
        let mut execute = |cpu: &mut Cpu, memory: &mut Memory| {
            interpreter.execute_if_plain(cpu, memory, op).then_some(())
        };
        let goes_on = match system? {
            System::Plain | System::SegmentCheck => {
                execute(cpu, memory)?;
                context.control[2] = cpu.cr2 as u32;
                true
            }
            System::Cpuid => {
                let [leaf, sub_leaf] = [reg::AX, reg::CX].map(|register| cpu.get::<u32>(register));
                let before = cpu.long_mode_sought;
                execute(cpu, memory)?;
                // The processor notes each time that software looks for long mode, so such an answer must not
                // be reused. Nor must one that would hide a call of a guest tool.
                if cpu.long_mode_sought == before && !cpu.guest_tools.may_hear(leaf) {
                    let sub_leaf = cpu.model.has_sub_leaf(leaf).then_some(sub_leaf);
                    let registers = [reg::AX, reg::BX, reg::CX, reg::DX];
                    let answer = registers.map(|register| cpu.get(register));
                    context.answers.note_cpuid(leaf, sub_leaf, answer);
                }
                true
            }
            System::Rdmsr => {
                let number = cpu.get::<u32>(reg::CX);
                execute(cpu, memory)?;
                if number != TIME_STAMP_COUNTER {
                    let answer = [reg::AX, reg::DX].map(|register| cpu.get(register));
                    context.answers.note_msr(number, answer);
                }
                true
            }
            System::Wrmsr => {
                let number = cpu.get::<u32>(reg::CX);
                let before = known_msrs(&cpu.msrs);
                execute(cpu, memory)?;
                context.answers.forget();
                let value = [reg::AX, reg::DX].map(|register| cpu.get(register));
                if only_holds(number) && value[1] == 0 {
                    context.answers.note_msr(number, value);
                }
                before == known_msrs(&cpu.msrs)
            }
            System::Tables => {
                execute(cpu, memory)?;
                if !self.descriptors.are_those_of(cpu) {
                    self.descriptors.look_at_registers(cpu, &mut self.context);
                }
                self.descriptors.note_system_registers(cpu, memory, &mut self.context);
                // In real mode INT n reads its vector from the table, which may have moved.
                mode::is_flat(self.modes.current().0)
            }
            System::Control => {
                let (cr0, cr4) = (cpu.cr0(), cpu.cr4());
                execute(cpu, memory)?;
                let changed = cr0 ^ cpu.cr0();
                let goes_on = cr4 == cpu.cr4() && OF_NUMERIC.contains(changed);
                if goes_on && !changed.is_empty() {
                    self.change_numeric(cpu);
                }
                goes_on
            }
            System::Debug if cpu.guards_debug_registers() => return None,
            System::Debug => {
                execute(cpu, memory)?;
                self.load_debug_registers(cpu);
                true
            }
            System::Page => {
                execute(cpu, memory)?;
                self.invalidate_in_place(cpu, memory)
            }
        };
        Some(goes_on)
    }

    /// Takes over a change of the bits of CR0 on which numeric instructions depend. The numeric registers are
    /// not in the host's.
    fn change_numeric(&mut self, cpu: &Cpu) {
        self.context.set_control(cpu);
        let entry = match self.numeric.location() {
            numeric::Location::Image if Numeric::are_enabled(cpu) => NumericEntry::Load,
            _ => NumericEntry::Ask,
        };
        self.context.set_numeric_entry(entry, Numeric::is_sse_enabled(cpu));
    }

    /// Drops what INVLPG has invalidated. Returns false if this may have dropped translated code, or if the
    /// window of user code has changed.
    fn invalidate_in_place(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> bool {
        let is_user = cpu.is_user();
        let before = self.spaces.forgotten();
        self.spaces.current(is_user).returns().set_top(self.context.returns);
        if let Err(error) = self.invalidate(cpu, memory) {
            self.refused(&error);
        }
        self.context.returns = self.spaces.current(is_user).returns().top();
        self.spaces.forgotten() == before && !self.spaces.has_stale_user()
    }
}

/// Returns the model-specific registers whose values translated code contains.
pub(super) fn known_msrs(msrs: &Msrs) -> (u32, u64, u64, u64, u32) {
    let Msrs { sysenter_cs, sysenter_esp, sysenter_eip, time_stamp_offset, tsc_aux, .. } = *msrs;
    (sysenter_cs, sysenter_esp, sysenter_eip, time_stamp_offset, tsc_aux)
}
