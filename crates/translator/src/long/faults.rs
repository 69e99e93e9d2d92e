//! What a signal in translated code leads to: a unit is owned, memory is mapped, a site is made anew as a
//! [far one](crate::long::far_sites), or the interpreter executes the instruction.

use std::io;

use iced_x86::{Instruction, InstructionInfoFactory, Register};
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::decode::{self, CodeSize};
use tracing::debug;

use super::{Lent, Long, MAX_MAPPINGS, Next, Outcome, Resumed, WRITE_FAULT, go_on, leave};
use crate::long::far_sites::Reach;
use crate::long::strings::Walk;
use crate::memory::space::Fill;
use crate::memory::units::{Owning, unit_of};

/// If all mappings are dropped again within so many instructions, since there were too many, they may be dropped again
/// and again.
const SOON: u64 = 1 << 26;
/// For how many instructions an instruction that needs ever new mappings is left to the interpreter then.
const CROWDED: u64 = 1 << 28;

/// Whether there are too many mappings again and again, as with a program that accesses more pages at random than can
/// be mapped.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Crowd {
    /// The count of instructions when all mappings were dropped last.
    dropped: Option<u64>,
    /// The count until which they may be too many again.
    until: u64,
}

impl Crowd {
    /// Notes that all mappings are dropped after so many `instructions`, since there are too many.
    fn note(&mut self, instructions: u64) {
        if self.dropped.is_some_and(|before| instructions.saturating_sub(before) < SOON) {
            self.until = instructions.saturating_add(CROWDED);
        }
        self.dropped = Some(instructions);
    }

    fn is_there(&self, instructions: u64) -> bool {
        instructions < self.until
    }
}

/// Who owns a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The space that runs, in these groups; or that of users while the supervisor runs, which are far then.
    Space(Reach),
    Nobody,
}

impl Long {
    /// Handles the signal for which translated code was left, when `executed` instructions had been subtracted
    /// from the budget.
    pub(super) fn signalled(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
        executed: u64,
        deadline: u64,
    ) -> io::Result<Outcome> {
        self.counters.signals += 1;
        let fault = self.low.context().fault;
        let (rest, has_begun) = self.return_to_site(cpu, fault.rip as u32, executed);
        let walk = self.blocks.walk_at(fault.rip as u32);
        let is_page_fault = fault.signal == libc::SIGSEGV as u64 && fault.code != 0;
        if is_page_fault && lent.budget.is_used_up_at(fault.address) {
            return Ok(self.resume(cpu, walk.as_ref(), rest, deadline));
        }
        let returns = &mut self.spaces.find(cpu, memory)?.returns;
        if is_page_fault && returns.is_full_at(fault.address) {
            returns.clear();
            return Ok(go_on(rest, cpu, deadline));
        }
        if !has_begun && cpu.instructions >= deadline {
            // What is checked before a loop comes before its budget.
            return Ok(leave(Next::Interpret(0)));
        }
        let is_user = cpu.is_user();
        let rip = self.low.context().rip;
        let found =
            if is_page_fault { self.find_linear(cpu, memory, fault.address)? } else { None };
        let is_mapping = found.is_some() && !self.crowd.is_there(cpu.instructions);
        let is_barred = if is_mapping {
            self.barred.note_mapping(rip, cpu.instructions)
        } else {
            self.barred.note_signal(rip, cpu.instructions)
        };
        if is_barred {
            self.drop_block_of(cpu, memory, rip);
            return Ok(leave(Next::Step));
        }
        if is_page_fault && let Some((unit, checked)) = self.low.unit_at(fault.address, is_user) {
            return Ok(match self.own(cpu, memory, unit)? {
                Owner::Space(reach) if reach == checked => {
                    self.resume(cpu, walk.as_ref(), rest, deadline)
                }
                // It may be another instruction that needs the unit, or none.
                _ if !has_begun => {
                    self.plain_loops.insert(rip);
                    self.drop_block_of(cpu, memory, rip);
                    leave(Next::Step)
                }
                Owner::Space(reach) => self.make_far(cpu, memory, rip, reach),
                Owner::Nobody => self.step_after_signal(cpu, memory, rip),
            });
        }
        let Some((linear, of_user)) = found else {
            if fault.signal == libc::SIGSEGV as u64 && self.own_operands(cpu, memory, rip)? {
                return Ok(self.resume(cpu, walk.as_ref(), rest, deadline));
            }
            return Ok(self.step_after_signal(cpu, memory, rip));
        };
        if self.own(cpu, memory, unit_of(linear))? == Owner::Nobody {
            return Ok(self.step_after_signal(cpu, memory, rip));
        }
        if self.spaces.mappings() + lent.others.0.mappings() > MAX_MAPPINGS {
            debug!("there are too many mappings");
            self.counters.flushes += 1;
            self.spaces.clear();
            self.crowd.note(cpu.instructions);
            return Ok(leave(Next::LookAround));
        }
        if walk.is_some_and(|walk| !self.may_access(cpu, memory, &walk, linear)) {
            return Ok(leave(Next::Step));
        }
        let writes = fault.code & WRITE_FAULT != 0;
        match self.fill(cpu, memory, lent, linear, of_user, writes)? {
            Fill::Done => Ok(self.resume(cpu, walk.as_ref(), rest, deadline)),
            Fill::Faults => {
                self.note_page_fault(cpu, linear, of_user, writes);
                Ok(leave(Next::Step))
            }
            Fill::OfUser => {
                self.spaces.find_for(cpu, memory, of_user)?.leave_to_users(unit_of(linear));
                Ok(self.step_after_signal(cpu, memory, rip))
            }
            Fill::WritesCode(page) => Ok(self.step_to_write(cpu, memory, rip, page)),
            _ => Ok(self.step_after_signal(cpu, memory, rip)),
        }
    }

    /// Maps the page of `linear` in the space that runs, or in that of users if `of_user`.
    pub(super) fn fill(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        lent: &Lent,
        linear: u64,
        of_user: bool,
        writes: bool,
    ) -> io::Result<Fill> {
        let space = self.spaces.find_for(cpu, memory, of_user)?;
        let mut filled = space.fill(cpu, memory, lent.file, linear, writes)?;
        if let Fill::WritesCode(page) = filled
            && self.changing.has(page)
        {
            // Others have decoded code in this page, which keeps changing.
            memory.forget_code(page);
            let space = self.spaces.find_for(cpu, memory, of_user)?;
            filled = space.fill(cpu, memory, lent.file, linear, writes)?;
        }
        self.counters.fills += u64::from(filled == Fill::Done);
        Ok(filled)
    }

    /// Goes on at the site that `at` leads to, with `walk` if it is a string instruction, as [`go_on`] does.
    fn resume(
        &mut self,
        cpu: &Cpu,
        walk: Option<&Walk>,
        at: (Resumed, u16),
        deadline: u64,
    ) -> Outcome {
        match walk {
            Some(walk) => self.walk_on(cpu, walk, at, deadline),
            None => go_on(at, cpu, deadline),
        }
    }

    /// Returns the linear address for the host address `address` in the space that runs, or in that of users while
    /// the supervisor runs, and whether it is the latter.
    fn find_linear(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        address: u64,
    ) -> io::Result<Option<(u64, bool)>> {
        if let Some(linear) = self.spaces.find(cpu, memory)?.units.linear(address) {
            return Ok(Some((linear, false)));
        }
        let (_, user) = self.spaces.known();
        let user = user.filter(|_| !cpu.is_user());
        let linear = user.and_then(|user| user.units.linear(address));
        Ok(linear.map(|linear| (linear, true)))
    }

    /// Makes `unit` one that the present space owns, or that of users if the supervisor leaves it to them. Returns
    /// the owner.
    fn own(&mut self, cpu: &Cpu, memory: &Memory, unit: i64) -> io::Result<Owner> {
        let of_user = !cpu.is_user() && self.spaces.find(cpu, memory)?.is_of_users(unit);
        let mut owning = Owning::NoRoom;
        for again in [false, true] {
            if again {
                self.spaces.clear_other_users();
            }
            owning = self.spaces.find_for(cpu, memory, of_user)?.own(unit, again);
            if owning != Owning::NoRoom {
                break;
            }
        }
        if !matches!(owning, Owning::Done | Owning::Moved) {
            return Ok(Owner::Nobody);
        }
        let space = self.spaces.find(cpu, memory)?;
        Ok(Owner::Space(if of_user { Reach::All } else { space.units.reach(unit) }))
    }

    /// Makes the units of all memory that the instruction at `rip` accesses ones that are owned. Returns whether one
    /// was not before.
    fn own_operands(&mut self, cpu: &mut Cpu, memory: &mut Memory, rip: u64) -> io::Result<bool> {
        let mut has_owned = false;
        for linear in self.operands(cpu, memory, rip)? {
            let before = self.generations(cpu, memory)?;
            self.own(cpu, memory, unit_of(linear))?;
            has_owned |= self.generations(cpu, memory)? != before;
        }
        Ok(has_owned)
    }

    /// Returns numbers that change whenever other units are owned by the space that runs, and by that of users.
    fn generations(&mut self, cpu: &Cpu, memory: &Memory) -> io::Result<[u64; 2]> {
        let space = self.spaces.find(cpu, memory)?.units.generation();
        let (_, user) = self.spaces.known();
        Ok([space, user.map_or(0, |user| user.units.generation())])
    }

    /// Returns the instruction at `rip`, unless it crosses into another page.
    fn instruction_at(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
    ) -> io::Result<Option<Instruction>> {
        let Some(place) = self.spaces.find(cpu, memory)?.fetch(cpu, memory, rip) else {
            return Ok(None);
        };
        let Some(bytes) = memory.page_from(place) else { return Ok(None) };
        let instruction = decode::decoder(bytes, CodeSize::Bits64, rip, cpu.model).decode();
        Ok((!instruction.is_invalid()).then_some(instruction))
    }

    /// Returns the linear addresses of the memory that the instruction at `rip` accesses.
    fn operands(&mut self, cpu: &mut Cpu, memory: &mut Memory, rip: u64) -> io::Result<Vec<u64>> {
        let Some(instruction) = self.instruction_at(cpu, memory, rip)? else {
            return Ok(Vec::new());
        };
        let context = self.low.context();
        let mut factory = InstructionInfoFactory::new();
        let accesses = factory.info(&instruction).used_memory();
        let value = |register: Register, _, _| {
            Some(match register {
                Register::FS => context.bases[0],
                Register::GS => context.bases[1],
                register if register.is_segment_register() => 0,
                register if register.is_gpr() => {
                    let value = context.gpr[register.full_register().number()];
                    if register.size() == 4 { value & u64::from(u32::MAX) } else { value }
                }
                _ => 0,
            })
        };
        Ok(accesses.iter().filter_map(|access| access.virtual_address(0, value)).collect())
    }

    /// Makes the site at `rip`, whose access is to a unit of another group than it is taken to go to, one that reaches
    /// it: at once in code of users, and in that of the supervisor if it is often so, since it mostly accesses its own
    /// memory.
    fn make_far(&mut self, cpu: &mut Cpu, memory: &mut Memory, rip: u64, reach: Reach) -> Outcome {
        let is_user = cpu.is_user();
        if (is_user || self.barred.is_often(rip))
            && let Ok(Some(instruction)) = self.instruction_at(cpu, memory, rip)
        {
            self.far.add(&instruction, is_user, reach);
            self.drop_block_of(cpu, memory, rip);
        }
        leave(Next::Step)
    }

    /// Leaves the instruction at `rip` to the interpreter after a signal, and from now on if that is often so.
    fn step_after_signal(&mut self, cpu: &mut Cpu, memory: &mut Memory, rip: u64) -> Outcome {
        if self.barred.note_leaving(rip) {
            self.drop_block_of(cpu, memory, rip);
        }
        leave(Next::Step)
    }

    /// Leaves the instruction at `rip`, which writes to `page`, where code is, to the interpreter, and from now on if
    /// that is often so.
    fn step_to_write(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        rip: u64,
        page: u32,
    ) -> Outcome {
        if self.barred.note_leaving(rip)
            && let Some(code) = self.drop_block_of(cpu, memory, rip)
        {
            self.changing.note_writer(page, rip, code);
        }
        leave(Next::Step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_too_many_when_they_are_dropped_again_soon() {
        let mut crowd = Crowd::default();
        let mut now = 1000;
        for distance in [0, SOON, 2 * SOON] {
            now += distance;
            crowd.note(now);
            assert!(!crowd.is_there(now), "after {distance}");
        }
        now += SOON - 1;
        crowd.note(now);
        assert!(crowd.is_there(now) && crowd.is_there(now + CROWDED - 1));
        assert!(!crowd.is_there(now + CROWDED));
    }
}
