//! Page faults of the guest. When its handler has returned, the instruction that met the fault mostly runs
//! again with the same registers. Then its page is mapped before it runs, so that a page fault costs one
//! signal and not two.
//!
//! A program often touches page after page for the first time. The largest part of the time for that is the signal of
//! each page fault, and mapping the page. Neither is needed while the next page fault comes soon: so after a page fault
//! of a program, the interpreter goes on for some instructions ([`Sweep`]), and finds the next page fault without
//! a signal. A page is mapped only when none has come.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine;

use super::{Lent, Long, Next, WRITE_FAULT};
use crate::memory::units::unit_of;
use crate::translator::times::Work;

/// The number of general registers.
const REGISTERS: usize = 16;
/// The least number of instructions, and the most, that the interpreter executes after a page fault. A signal takes as
/// long as the latter.
const SHORTEST: u64 = 32;
const LONGEST: u64 = 1024;

/// An instruction that has met a page fault.
#[derive(Debug)]
pub(crate) struct PageFault {
    rip: u64,
    cr3: u64,
    is_user: bool,
    /// The general registers, without RSP, which a delivery changes.
    registers: [u64; REGISTERS],
    /// The address of its access, and whether that is in the space of users.
    linear: u64,
    of_user: bool,
    writes: bool,
}

impl PageFault {
    /// Returns whether the instruction is the next one, with the same registers.
    fn is_next(&self, cpu: &Cpu) -> bool {
        self.rip == cpu.ip
            && self.cr3 == cpu.cr3()
            && self.is_user == cpu.is_user()
            && self.registers == registers(cpu)
    }
}

/// Returns the general registers as [`PageFault`] has them.
fn registers(cpu: &Cpu) -> [u64; REGISTERS] {
    std::array::from_fn(|number| match number as u8 {
        reg::SP => 0,
        number => cpu.gpr(number),
    })
}

/// How far the interpreter goes on after a page fault of a program: twice as far as from the last one to this one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sweep {
    /// The count of instructions when the last handler had returned.
    resumed: u64,
    /// Instructions that the interpreter executes.
    length: u64,
}

impl Default for Sweep {
    fn default() -> Sweep {
        Sweep { resumed: 0, length: SHORTEST }
    }
}

impl Sweep {
    /// Notes a page fault after so many `instructions`.
    fn note(&mut self, instructions: u64) {
        self.length = match instructions.saturating_sub(self.resumed) {
            distance @ 0..=LONGEST => (2 * distance).clamp(SHORTEST, LONGEST),
            _ => SHORTEST,
        };
    }
}

impl Long {
    /// Notes that the instruction at RIP has met a page fault when it accessed `linear`, in the space of
    /// users if `of_user`.
    pub(super) fn note_page_fault(&mut self, cpu: &Cpu, linear: u64, of_user: bool, writes: bool) {
        let context = self.low.context();
        let (rip, mut registers) = (context.rip, context.gpr);
        registers[usize::from(reg::SP)] = 0;
        let (cr3, is_user) = (cpu.cr3(), cpu.is_user());
        self.page_fault = Some(PageFault { rip, cr3, is_user, registers, linear, of_user, writes });
        if is_user {
            self.sweep.note(cpu.instructions);
        }
    }

    /// Prepares to execute the instruction that has met the last page fault, if it is the next one: in code of the
    /// supervisor, maps its page; in that of users, returns that the interpreter sweeps on from there.
    pub(super) fn after_page_fault(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
    ) -> io::Result<Option<Next>> {
        if !self.page_fault.as_ref().is_some_and(|fault| fault.is_next(cpu)) {
            return Ok(None);
        }
        if cpu.is_user() {
            self.sweep.resumed = cpu.instructions;
            return Ok(Some(Next::Sweep));
        }
        self.fill_after_page_fault(cpu, memory, lent)?;
        Ok(None)
    }

    /// Executes code of users after their last page fault by the interpreter, until the next one or for the length
    /// of a sweep. Maps the page of the last one in the latter case.
    pub(super) fn sweep(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &mut Lent,
        deadline: u64,
    ) -> io::Result<Option<engine::Exit>> {
        self.store_numeric(cpu);
        lent.interpreter.take_page_fault();
        let before = cpu.instructions;
        let began = lent.times.begin(Work::Interpreting);
        let most = self.sweep.length.min(deadline - before);
        let exit = lent.interpreter.run_long_users(cpu, memory, most);
        lent.times.end(Work::Interpreting, began);
        self.counters.swept += cpu.instructions - before;
        if let Some(found) = lent.interpreter.take_page_fault() {
            self.sweep.note(cpu.instructions);
            self.page_fault = Some(PageFault {
                rip: found.ip,
                cr3: cpu.cr3(),
                is_user: true,
                registers: registers(cpu),
                linear: cpu.cr2,
                of_user: false,
                writes: u64::from(found.error_code) & WRITE_FAULT != 0,
            });
        } else if cpu.is_user() && cpu.is_in_64_bit_mode() {
            self.fill_after_page_fault(cpu, memory, lent)?;
        } else {
            self.page_fault = None;
        }
        Ok(exit.filter(|exit| *exit != engine::Exit::Deadline))
    }

    /// Maps the page of the last page fault, whose handler has returned.
    fn fill_after_page_fault(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
    ) -> io::Result<()> {
        let Some(PageFault { linear, of_user, writes, .. }) = self.page_fault.take() else {
            return Ok(());
        };
        let space = self.spaces.find_for(cpu, memory, of_user)?;
        // A page that is not mapped here is mapped when the instruction faults.
        if space.units.owns(unit_of(linear)) {
            self.fill(cpu, memory, lent, linear, of_user, writes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_twice_as_long_as_from_one_page_fault_to_the_next() {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.length, SHORTEST);
        let mut resumed = 1000;
        for (distance, length) in [
            (1, SHORTEST),
            (SHORTEST, 2 * SHORTEST),
            (300, 600),
            (LONGEST, LONGEST),
            (LONGEST + 1, SHORTEST),
            (u64::MAX - 10_000, SHORTEST),
        ] {
            sweep.resumed = resumed;
            sweep.note(resumed + distance);
            assert_eq!(sweep.length, length, "after {distance}");
            resumed += 100;
        }
        // The processor's count may have been set back by a saved machine.
        sweep.note(0);
        assert_eq!(sweep.length, SHORTEST);
    }
}
