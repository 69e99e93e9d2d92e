//! Signals in translated code: accesses to pages that the window does not have yet, and accesses that only
//! the interpreter can execute.

use std::io;
use std::mem;

use ring3_core::memory::{Memory, PAGE_SHIFT};
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::segment::sreg;

use super::leaving::{Middle, Next, STEP};
use super::{INTERPRETED_ITERATIONS, LEAST_ITERATIONS, Translator};
use crate::budget;
use crate::code::block::Site;
use crate::long;
use crate::memory::space::{Fill, PageAccess};

/// Upper bound of the host's mappings for code that is not 64-bit code.
const MAX_MAPPINGS: usize = 40_000;
/// Bit of the error code of a page fault (SDM vol. 3, figure 5-12).
pub(super) const WRITE_FAULT: u64 = 1 << 1;
/// Instructions of user code that the interpreter executes from one on that reads zeros which cannot be
/// written.
const FROM_ZEROS: usize = 8;
/// Instructions of user code that the interpreter executes in a [`Sweep`].
const IN_SWEEP: usize = 48;
/// Number of pages, each beside the one before, after which a program counts as one that touches page after
/// page.
const SWEEP: u32 = 4;

/// A page fault that the guest's system will repair.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageFault {
    cr3: u64,
    /// The address of the instruction.
    eip: u32,
    /// The linear address that it accessed.
    linear: u32,
    writes: bool,
    /// The registers that its address was computed from: the general registers, and the bases of FS and GS.
    registers: ([u32; 8], [u64; 2]),
}

impl PageFault {
    /// Returns the page fault of the instruction at CS:EIP.
    fn at(cpu: &Cpu, linear: u32, writes: bool) -> PageFault {
        let (cr3, registers) = (cpu.cr3(), address_registers(cpu));
        PageFault { cr3, eip: cpu.ip as u32, linear, writes, registers }
    }
}

/// Whether a program touches one page after the other, each for the first time.
///
/// The largest part of the time for this is the signal for the first access to a page, and mapping the page.
/// Neither is needed while the next page comes soon: then the interpreter executes the instructions between
/// two page faults.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sweep {
    cr3: u64,
    /// The linear address of the last page fault.
    linear: u32,
    writes: bool,
    /// Number of pages before that one that were each beside the one before.
    pages: u32,
}

impl Sweep {
    /// Notes the page of `fault`.
    fn note(&mut self, fault: &PageFault) {
        let PageFault { cr3, linear, writes, .. } = *fault;
        let pages = match (linear >> PAGE_SHIFT).abs_diff(self.linear >> PAGE_SHIFT) {
            _ if cr3 != self.cr3 => 0,
            0 => self.pages,
            1 => self.pages.saturating_add(1),
            _ => 0,
        };
        *self = Sweep { cr3, linear, writes, pages };
    }

    fn goes_on(&self) -> bool {
        self.pages >= SWEEP
    }
}

/// Returns the registers from which the address of a memory operand can be computed, where all segments but
/// FS and GS are flat.
fn address_registers(cpu: &Cpu) -> ([u32; 8], [u64; 2]) {
    let general = std::array::from_fn(|register| cpu.gpr(register as u8) as u32);
    (general, [sreg::FS, sreg::GS].map(|register| cpu.segment(register).base))
}

/// The point at which translated code was left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) site: Site,
    /// Number of instructions in its block from the site on.
    pub(super) rest_of_block: u16,
}

impl Point {
    /// Continues at the site, in the middle of the block, whose entry is not passed again.
    pub(super) fn go_on(&self, cpu: &Cpu, deadline: u64) -> Next {
        let allowed = deadline - cpu.instructions;
        if u64::from(self.rest_of_block) > allowed {
            Next::Interpret(allowed)
        } else {
            Next::Again(Middle { counted: self.site.ahead, stack_offset: self.site.stack_offset })
        }
    }
}

impl Translator {
    /// Handles the signal for which translated code was left.
    pub(super) fn signalled(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        allowed: u64,
        deadline: u64,
    ) -> io::Result<Next> {
        self.counters.signals += 1;
        let point = self.return_to_site(cpu, self.context.fault.rip, allowed);
        let Point { site, rest_of_block } = point;
        let address = self.context.fault.address;
        let is_user = cpu.is_user();
        let is_access = self.context.fault.signal == libc::SIGSEGV as u64;
        if is_access && self.budget.is_used_up_at(address) {
            let rest = deadline - cpu.instructions;
            if site.repeats && site.compares {
                // The instruction may end long before its count does.
                return Ok(Next::Interpret(rest.min(INTERPRETED_ITERATIONS)));
            }
            if site.repeats {
                // All of the rest is for its iterations.
                let before_rest = rest.min(budget::LONGEST).saturating_sub(rest_of_block.into());
                if before_rest < LEAST_ITERATIONS {
                    return Ok(Next::Interpret(rest));
                }
                self.put_off_after(&site, before_rest);
                return Ok(point.go_on(cpu, deadline));
            }
            if site.before > 0 {
                // The check after a call, after which the block continues, has failed.
                return Ok(point.go_on(cpu, deadline));
            }
            // The check at the block's entry has failed: no instruction of the block is counted.
            if u64::from(rest_of_block) > rest {
                return Ok(Next::Interpret(rest));
            }
            return Ok(Next::Again(Middle::default()));
        }
        if is_access && self.spaces.current(is_user).returns().is_full_at(address) {
            self.spaces.current(is_user).returns().clear();
            return Ok(point.go_on(cpu, deadline));
        }
        let is_numeric_error = site.is_numeric && self.context.fault.signal == libc::SIGFPE as u64;
        if is_numeric_error && self.note_numeric_error(cpu, memory) {
            return Ok(STEP);
        }
        if self.note_signal(cpu, memory) || !is_access {
            return Ok(STEP);
        }
        let writes = self.access_writes(&site);
        let Some(linear) = self.spaces.current(is_user).window().linear(address) else {
            if let Some(linear) = self.spaces.current(false).window().linear(address)
                && is_user
            {
                // INT n has pushed on the supervisor's stack.
                return self.bring_in(cpu, memory, point, linear, deadline);
            }
            return self.user_faulted(cpu, memory, point, deadline);
        };
        let filled = self.fill(cpu, memory, is_user, linear, writes)?;
        match filled {
            Fill::Done => Ok(point.go_on(cpu, deadline)),
            Fill::Faults => {
                if is_user {
                    self.store(cpu);
                    self.page_fault = Some(PageFault::at(cpu, linear, writes));
                }
                Ok(Next::Step { is_numeric: site.is_numeric })
            }
            Fill::Zeros if is_user => Ok(Next::ToPageFault),
            Fill::Zeros => Ok(Next::Step { is_numeric: site.is_numeric }),
            Fill::Interpret | Fill::WritesCode(_) => {
                self.bar_if_often(cpu, memory, filled.written());
                Ok(Next::Step { is_numeric: site.is_numeric })
            }
            Fill::OfUser => self.users_page_faulted(cpu, memory, point, linear, deadline),
            Fill::OfSupervisor => unreachable!("the window is that of the code"),
        }
    }

    /// Returns whether the access of `site` that has faulted is a write for the guest.
    pub(super) fn access_writes(&self, site: &Site) -> bool {
        self.context.fault.code & WRITE_FAULT != 0 || site.modifies
    }

    /// Fills the window of user code, or that of supervisor code, after an access to `linear` has faulted
    /// there.
    pub(super) fn fill(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        is_user: bool,
        linear: u32,
        writes: bool,
    ) -> io::Result<Fill> {
        self.fill_with(cpu, memory, is_user, PageAccess { linear, writes, to_users: is_user })
    }

    /// Fills the window of user code, or that of supervisor code, after `access` has faulted there.
    pub(super) fn fill_with(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        is_user: bool,
        access: PageAccess,
    ) -> io::Result<Fill> {
        let Some(file) = self.file.clone() else { return Ok(Fill::Faults) };
        let mappings = self.spaces.mappings();
        let of_long = self.long.as_ref().map_or(0, |long| long.mappings());
        if mappings > MAX_MAPPINGS || mappings + of_long > long::MAX_MAPPINGS {
            self.clear_spaces()?;
        }
        let space = self.spaces.current(is_user);
        let mut filled = space.fill(cpu, memory, &file, access)?;
        if let Fill::WritesCode(page) = filled
            && self.changing.has(page)
        {
            // The interpreter has decoded code in this page, which keeps changing.
            memory.forget_code(page);
            filled = space.fill(cpu, memory, &file, access)?;
        }
        self.counters.fills += u64::from(filled == Fill::Done);
        Ok(filled)
    }

    /// Returns the address of the instruction in user code that has met a page fault, if it is about to be
    /// executed again in this address space.
    pub(super) fn page_fault_awaited(&self, cpu: &Cpu) -> Option<u32> {
        let fault = self.page_fault.as_ref().filter(|fault| fault.cr3 == cpu.cr3());
        fault.map(|fault| fault.eip)
    }

    /// Fills the page of the last page fault without another signal, if the instruction that met it is about
    /// to be executed again. Returns true if the interpreter must execute the instruction.
    pub(super) fn fill_after_page_fault(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
    ) -> io::Result<bool> {
        let is_next = |fault: &mut PageFault| {
            u64::from(fault.eip) == cpu.ip
                && fault.cr3 == cpu.cr3()
                && fault.registers == address_registers(cpu)
        };
        let Some(fault) = self.page_fault.take_if(is_next) else { return Ok(false) };
        self.sweep.note(&fault);
        if self.sweep.goes_on() {
            return Ok(true);
        }
        // A page that is not filled here is filled when the instruction faults.
        Ok(self.fill(cpu, memory, true, fault.linear, fault.writes)? == Fill::Zeros)
    }

    /// Executes, by the interpreter, an instruction that reads zeros which cannot be written, or that follows
    /// a page fault in a [`Sweep`], and some instructions after it. Mostly one of these is the first write to
    /// the page, or touches the next page; it then causes the guest's page fault without a signal.
    pub(super) fn interpret_to_page_fault(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        deadline: u64,
    ) -> Exit {
        self.numeric.take(cpu, &self.blocks, &mut self.context);
        self.counters.steps += 1;
        self.interpreter.take_page_fault();
        let before = cpu.instructions;
        let mut exit = Exit::Deadline;
        let is_in_sweep = self.sweep.goes_on();
        let most = if is_in_sweep { IN_SWEEP } else { FROM_ZEROS };
        let is_here = |cpu: &Cpu| cpu.is_user() && !cpu.is_in_64_bit_mode();
        for _ in 0..most {
            if exit != Exit::Deadline || cpu.instructions >= deadline || !is_here(cpu) {
                break;
            }
            let fault = PageFault::at(cpu, 0, false);
            exit = self.interpreter.run(cpu, memory, 1);
            if let Some(found) = self.interpreter.take_page_fault() {
                let writes = u64::from(found.error_code) & WRITE_FAULT != 0;
                self.page_fault = Some(PageFault { linear: cpu.cr2 as u32, writes, ..fault });
                break;
            }
        }
        if is_in_sweep && self.page_fault.is_none() {
            self.sweep.pages = 0;
            let Sweep { cr3, linear, writes, .. } = self.sweep;
            // The program goes on with this page, which it has just accessed in this way.
            if is_here(cpu)
                && cpu.cr3() == cr3
                && self.fill(cpu, memory, true, linear, writes).is_err()
            {
                self.counters.refusals += 1;
            }
        }
        self.counters.interpreted += cpu.instructions - before;
        exit
    }

    /// Limits the repeated instruction at EIP, that of `site`, to `iterations` iterations, after which it
    /// faults. It must repeat more often than that.
    fn put_off_after(&mut self, site: &Site, iterations: u64) {
        let ecx = &mut self.context.gpr[usize::from(reg::CX)];
        let count = site.count_in(*ecx);
        self.put_off = count - iterations.min(count.into()) as u32;
        *ecx -= self.put_off;
        self.context.after_repeating = self.budget.end(false);
    }

    /// Restores the guest's state to that before the instruction whose host code was left at `rip`.
    pub(super) fn return_to_site(&mut self, cpu: &mut Cpu, rip: u64, allowed: u64) -> Point {
        let Some((block, site)) = self.blocks.at(rip as u32) else {
            unreachable!("translated code is in blocks");
        };
        self.context.eip = block.eip.wrapping_add(site.offset.into());
        self.context.target = site.host.into();
        let rest_of_block = block.instructions - site.before;
        let strings = mem::take(&mut self.context.strings);
        self.move_stack(site.stack_offset);
        let mut remaining = self.budget.remaining(self.context.budget) + i64::from(site.ahead);
        for (register, difference) in [reg::CX, reg::SI, reg::DI].into_iter().zip(strings) {
            let host = &mut self.context.gpr[usize::from(register)];
            *host = host.wrapping_add(difference);
        }
        let count = u64::from(site.count_in(self.context.gpr[usize::from(reg::CX)]));
        let mut iterations = 0;
        if site.repeats && self.context.repeat_count >= count {
            iterations = self.context.repeat_count - count;
            remaining -= iterations as i64;
        }
        if self.counts.is_on()
            && let Some((block, site)) = self.blocks.at(rip as u32)
        {
            Translator::take_back_rest(cpu, block, &site, iterations);
        }
        self.context.gpr[usize::from(reg::CX)] += mem::take(&mut self.put_off);
        self.context.after_repeating = self.budget.end(true);
        cpu.instructions += (allowed as i64 - remaining) as u64;
        Point { site, rest_of_block }
    }
}
