//! Moves the guest's state between the processor ([`Cpu`]) and the context of translated code. The numeric registers
//! move [only when they are needed](crate::long::numeric).

use std::{mem, ptr};

use ring3_x86::cpu::Cpu;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;

use super::{Long, system};
use crate::budget::Budget;
use crate::context::{HOST_FLAGS, STATUS_AND_DIRECTION};

impl Long {
    /// Copies the guest's state, but for the numeric registers, to the context.
    pub(super) fn load(&mut self, cpu: &Cpu) {
        let context = self.low.context();
        for (number, register) in (0..).zip(&mut context.gpr) {
            *register = cpu.gpr(number);
        }
        context.rip = cpu.ip;
        let flags = cpu.pushed_flags();
        context.flags = u64::from(flags & STATUS_AND_DIRECTION | HOST_FLAGS);
        context.interrupt_flag = flags & Eflags::IF.bits();
        context.interrupt_pin = cpu.interrupt_pin.into();
        context.other_flags = u64::from(flags & !system::IN_PLACE.bits());
        context.other_base = cpu.msrs.long.kernel_gs_base;
        context.cpu = ptr::from_ref(cpu).addr() as u64;
        for (number, selector) in (0..).zip(&mut context.selectors) {
            *selector = cpu.segment(number).selector.into();
        }
        context.bases = [cpu.segment(sreg::FS).base, cpu.segment(sreg::GS).base];
    }

    /// Copies that state back to the processor.
    pub(super) fn store(&mut self, cpu: &mut Cpu) {
        let context = self.low.context();
        for (number, register) in (0..).zip(context.gpr) {
            cpu.set_gpr(number, register);
        }
        cpu.ip = context.rip;
        cpu.set_status_and_direction(Eflags::from_bits_truncate(context.flags as u32));
        cpu.set_interrupt_flag(context.interrupt_flag != 0);
        if context.other_base != cpu.msrs.long.kernel_gs_base {
            cpu.set_gs_bases(context.bases[1], context.other_base);
        }
        if self.sti.take() == Some(cpu.instructions) {
            cpu.hold_interrupts();
        }
    }

    /// Notes the last STI since translated code was entered to execute `allowed` instructions.
    pub(super) fn note_sti(&mut self, cpu: &Cpu, budget: &Budget, allowed: u64) {
        let after = mem::take(&mut self.low.context().after_sti);
        if after != 0 {
            let executed = allowed as i64 - budget.remaining(after);
            self.sti = Some(cpu.instructions.wrapping_add_signed(executed));
        }
    }
}
