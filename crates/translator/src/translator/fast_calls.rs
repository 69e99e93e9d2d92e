//! SYSENTER and SYSEXIT: most calls of a system begin and end with them, so they are done between leaving translated code
//! and entering it again, with nothing else looked at.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::segment::sreg;

use super::{Left, Middle, Translator};

impl Translator {
    /// Executes SYSENTER, or SYSEXIT at privilege 0, before which all is as translated code has left it. None, and nothing
    /// was done, where more is to be looked at.
    pub(super) fn fast_call(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        deadline: u64,
    ) -> io::Result<Option<Left>> {
        if cpu.instructions >= deadline || cpu.interrupt_pin || !cpu.has_fast_calls() {
            return Ok(None);
        }
        self.store_system(cpu);
        if cpu.is_user() {
            cpu.sysenter();
        } else {
            for register in [reg::CX, reg::DX] {
                cpu.set_gpr(register, self.context.gpr[usize::from(register)].into());
            }
            cpu.sysexit();
        }
        cpu.instructions += 1;
        let context = &mut self.context;
        context.gpr[usize::from(reg::SP)] = cpu.gpr(reg::SP) as u32;
        context.eip = cpu.ip as u32;
        context.set_system_flags(cpu);
        for register in [sreg::CS, sreg::SS] {
            context.selectors[usize::from(register)] = cpu.segment(register).selector;
        }
        // An instruction before it that held interrupts back did so for this one alone.
        context.info = 0;
        let is_flat = self.enter_mode(cpu) && self.modes.current().1.segmented.is_none();
        let goes_on = is_flat && self.enter_space(cpu, memory)?;
        Ok(Some(if goes_on { Left::Again(Middle::default()) } else { Left::Interpret(0) }))
    }
}
