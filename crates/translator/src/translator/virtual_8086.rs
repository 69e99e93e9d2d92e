//! Virtual-8086 mode and its monitor, the supervisor's code that handles its interrupts and exceptions.
//! Translated code goes from one to the other by itself, if the program in virtual-8086 mode has run before.

use ring3_x86::cpu::{Cpu, Cr4};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Segment, sreg};

use super::Translator;
use crate::context::{FarMode, PrivilegeState};
use crate::mode::{Loading, Mode};

impl Translator {
    /// Lets INT n of virtual-8086 mode, its exceptions, and IRET to it stay in translated code, if everything
    /// that the engine checks before it enters the code there would be in order. Otherwise the interpreter
    /// executes them.
    pub(super) fn allow_virtual_8086_mode(&mut self, cpu: &Cpu) {
        self.context.forbid_virtual_8086_mode();
        let Some(is_privileged) = self.far.virtual_8086_privilege() else { return };
        if !self.spaces.is_ready_for_user() || cpu.nmi_is_blocked() {
            return;
        }
        let space = self.spaces.current(true);
        if !self.far.is_program_of(cpu.cr3(), space.tables_generation()) {
            return;
        }
        let (window, returns) = (space.window().base(), space.returns().empty());
        let program = PrivilegeState { window, returns, ..PrivilegeState::default() };
        let Some(number) = self.modes.number(&Mode::MONITOR) else { return };
        let space = self.spaces.current(false);
        let table = space.segmented_table(number);
        let (window, returns) = (space.window().base(), space.returns().empty());
        let monitor = PrivilegeState { window, table, returns, ..PrivilegeState::default() };
        let current = self.modes.current().1.segmented.map(|segmented| segmented.loading);
        let may_replace = current != Some(Loading::Protected);
        if !self.prepare_far_transfers(cpu, &Mode::MONITOR, may_replace) {
            return;
        }
        let iopl = if is_privileged { Eflags::IOPL } else { Eflags::empty() };
        let flags = (Eflags::VM | iopl).bits();
        // With VME, INT n may lead to the program's own handlers, and VIF may stand for IF.
        let has_interrupts = !cpu.cr4().contains(Cr4::VME);
        let has_nested_task = cpu.eflags().contains(Eflags::NT);
        let context = &mut self.context;
        context.allow_virtual_8086_mode([program, monitor], flags, has_interrupts);
        context.allow_far_returns(false, is_privileged);
        context.allow_far_returns(true, !has_nested_task);
    }

    /// Moves the processor to the program in virtual-8086 mode, or to its monitor, where translated code was
    /// left after it had come from the other one.
    pub(super) fn come_back_from_program_or_monitor(&mut self, cpu: &mut Cpu, is_program: bool) {
        let context = &mut *self.context;
        let of_interpreter = Eflags::STATUS | Eflags::DF;
        let system_flags = Eflags::from_bits_truncate(context.system_flags) - of_interpreter;
        let mut flags = cpu.eflags() & of_interpreter | system_flags;
        flags.set(Eflags::VM, is_program);
        cpu.set_eflags(flags);
        let has_gone_far = std::mem::take(&mut context.has_gone_far) != 0;
        if is_program {
            (context.loaded, context.transferred) = Default::default();
            for register in sreg::ES..=sreg::GS {
                let selector = context.selectors[usize::from(register)];
                cpu.set_segment(register, Segment::real(selector, 3));
            }
        } else {
            self.descriptors.store_transferred(cpu, context);
            self.descriptors.store(cpu, context);
            if has_gone_far {
                let selector = context.selectors[usize::from(sreg::CS)];
                cpu.set_segment(sreg::CS, self.far.segment(FarMode::place(selector)));
            }
        }
        self.enter_mode(cpu);
        let (mode, _) = self.modes.current();
        let other = self.spaces.current(!is_program).returns();
        let empty = other.empty();
        other.set_top(empty);
        let space = self.spaces.current(is_program);
        let context = &mut self.context;
        (context.table, context.index_mask) = space.enter(mode);
        context.window = space.window().base();
        space.returns().set_top(context.returns);
    }
}
