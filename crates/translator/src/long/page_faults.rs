//! Page faults of the guest. When its handler has returned, the instruction that met the fault mostly runs
//! again with the same registers. Then its page is mapped before it runs, so that a page fault costs one
//! signal and not two.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;

use super::{Lent, Long};
use crate::memory::space::Fill;
use crate::memory::units::unit_of;

/// The number of general registers.
const REGISTERS: usize = 16;

/// An instruction that has met a page fault.
#[derive(Debug)]
pub(crate) struct PageFault {
    rip: u64,
    cr3: u64,
    is_user: bool,
    registers: [u64; REGISTERS],
    /// The address of its access, and whether that is in the space of users.
    linear: u64,
    of_user: bool,
    writes: bool,
}

impl Long {
    /// Notes that the instruction at RIP has met a page fault when it accessed `linear`, in the space of
    /// users if `of_user`.
    pub(super) fn note_page_fault(&mut self, cpu: &Cpu, linear: u64, of_user: bool, writes: bool) {
        let context = self.low.context();
        let (rip, registers) = (context.rip, context.gpr);
        let (cr3, is_user) = (cpu.cr3(), cpu.is_user());
        self.page_fault = Some(PageFault { rip, cr3, is_user, registers, linear, of_user, writes });
    }

    /// Maps the page of the last page fault if the instruction that met it is the next one.
    pub(super) fn fill_after_page_fault(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
    ) -> io::Result<()> {
        let is_next = |fault: &mut PageFault| {
            let registers = || (0..).zip(fault.registers);
            fault.rip == cpu.ip
                && fault.cr3 == cpu.cr3()
                && fault.is_user == cpu.is_user()
                && registers().all(|(number, value)| cpu.gpr(number) == value)
        };
        let Some(fault) = self.page_fault.take_if(is_next) else { return Ok(()) };
        let space = self.spaces.find_for(cpu, memory, fault.of_user)?;
        // A page that is not mapped here is mapped when the instruction faults.
        if space.units.owns(unit_of(fault.linear))
            && space.fill(cpu, memory, lent.file, fault.linear, fault.writes)? == Fill::Done
        {
            self.counters.fills += 1;
        }
        Ok(())
    }
}
