//! Moves the guest's state between the processor ([`Cpu`]) and the context of translated code.

use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Segment, sreg};

use super::Translator;
use crate::context::{HOST_FLAGS, NO_BASE, STATUS_AND_DIRECTION, TimeStamp, View};
use crate::mode::Loading;

impl Translator {
    /// Copies the guest's state to the context.
    pub(super) fn load(&mut self, cpu: &Cpu) {
        self.load_system(cpu);
        self.descriptors.look_at_registers(cpu, &mut self.context);
        let context = &mut self.context;
        for register in reg::AX..=reg::DI {
            context.gpr[usize::from(register)] = cpu.gpr(register) as u32;
        }
        context.eip = cpu.ip as u32;
        context.flags = u64::from(cpu.pushed_flags() & STATUS_AND_DIRECTION | HOST_FLAGS);
        context.set_system_flags(cpu);
        context.set_control(cpu);
        context.interrupt_pin = cpu.interrupt_pin.into();
        for register in sreg::ES..=sreg::GS {
            context.selectors[usize::from(register)] = cpu.segment(register).selector;
        }
        if self.modes.current().1.segmented.is_some() {
            return self.load_views(cpu);
        }
        for (index, register) in [sreg::FS, sreg::GS].into_iter().enumerate() {
            let segment = cpu.segment(register);
            // In compatibility mode the upper half of a base, which 64-bit code may have set, does not count.
            context.bases[index] = segment.base as u32;
            let base = context.bases[index].into();
            (context.base_of[index], context.near_bases[index]) = if segment.is_free() {
                ((&raw const context.bases[index]).addr() as u64, base)
            } else {
                (context.faulting, NO_BASE)
            };
        }
    }

    /// Copies the segments to the context of segmented code.
    fn load_views(&mut self, cpu: &Cpu) {
        for register in sreg::ES..=sreg::GS {
            let view = View::of(cpu.segment(register), &self.limits);
            self.context.views[usize::from(register)] = view;
        }
        self.context.code_limit = self.limits.up_to(cpu.segment(sreg::CS).limit);
    }

    /// Sets the time stamp for translated code that may execute `allowed` instructions.
    pub(super) fn load_time(&mut self, cpu: &Cpu, allowed: u64) {
        let time = TimeStamp::of(cpu, &self.budget, allowed);
        self.context.set_time(time);
        self.context.tsc_aux = cpu.msrs.tsc_aux.into();
    }

    /// Gives the segment registers to the processor that segmented code has loaded without descriptors. Such
    /// loads change only selector and base.
    fn store_views(&mut self, cpu: &mut Cpu) {
        for register in [sreg::ES, sreg::SS, sreg::DS, sreg::FS, sreg::GS] {
            let selector = self.context.selectors[usize::from(register)];
            let base = u64::from(self.context.views[usize::from(register)].base);
            let old = *cpu.segment(register);
            if (old.selector, old.base) != (selector, base) {
                cpu.set_segment(register, Segment::new(selector, base, old.limit, old.attributes));
            }
        }
    }

    /// Gives the segment registers to the processor that translated code has loaded.
    pub(super) fn store_segments(&mut self, cpu: &mut Cpu) {
        if self.context.loaded != [false; 8] {
            self.descriptors.store(cpu, &mut self.context);
        }
        let segmented = self.modes.current().1.segmented;
        if segmented.is_some() {
            self.numeric.note_pointers(&self.blocks, &mut self.context);
        }
        if segmented.is_some_and(|segmented| segmented.loading != Loading::Protected) {
            self.store_views(cpu);
        }
    }

    /// Copies the guest's state back to the processor.
    pub(super) fn store(&mut self, cpu: &mut Cpu) {
        self.store_segments(cpu);
        cpu.set_interrupt_flag(self.context.system_flags & Eflags::IF.bits() != 0);
        self.store_alignment_flag(cpu);
        for register in reg::AX..=reg::DI {
            cpu.set_gpr(register, self.context.gpr[usize::from(register)].into());
        }
        cpu.ip = self.context.eip.into();
        cpu.set_status_and_direction(Eflags::from_bits_truncate(self.context.flags as u32));
    }

    /// Gives AC to the processor. It decides what supervisor code may access.
    pub(super) fn store_alignment_flag(&self, cpu: &mut Cpu) {
        if cpu.has_alignment_flag() != self.context.has_ac() {
            cpu.set_alignment_flag(self.context.has_ac());
        }
    }

    /// Adds `bytes` to ESP in the context, or to R15D as translated code has left it there.
    pub(super) fn move_stack(&mut self, bytes: i32) {
        let stack = &mut self.context.gpr[usize::from(reg::SP)];
        *stack = stack.wrapping_add_signed(bytes);
    }
}
