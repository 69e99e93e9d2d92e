//! Why translated code was left, and how execution continues.

use std::io;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::Exit;

use super::faults::Point;
use super::{INTERPRETED_BESIDE_DATA, INTERPRETED_ITERATIONS, MOST_ITERATIONS, Translator};
use crate::code::block::Block;
use crate::context::{info, reason};
use crate::numeric::{self, Numeric};

/// How execution continues after translated code was left.
pub(super) enum Next {
    /// The interpreter executes one instruction, which is not known.
    Step {
        /// Whether it may use numeric registers.
        is_numeric: bool,
    },
    /// The interpreter executes a known instruction.
    Op {
        /// Its index in [`Translator::ops`].
        number: usize,
        /// Whether it may use numeric registers.
        is_numeric: bool,
        /// Whether it loads CS.
        transfers: bool,
        /// The number of the segment register that it loads, if it does nothing else.
        loads: Option<u8>,
    },
    /// The interpreter executes at most this many instructions.
    Interpret(u64),
    /// The interpreter executes some instructions of user code, up to the next page fault if that comes soon.
    ToPageFault,
    /// POPF or IRET in flat code is complete, but that the engine is to set TF.
    TrapFlag,
    /// Translated code continues.
    Again(Middle),
    /// The interpreter executes an instruction, after which translated code may continue at once.
    Quiet {
        /// Its index in [`Translator::ops`].
        number: usize,
        /// Whether the interpreter has had to execute it again and again.
        is_barred: bool,
    },
    /// An instruction reads a device register whose value is not known. If the value can be found, translated
    /// code continues at the instruction.
    DeviceRead {
        /// The site of the instruction.
        point: Point,
        /// The index of the instruction in [`Translator::ops`].
        number: usize,
    },
    /// The engine returns.
    Exit(Exit),
    /// The instruction that was left to the interpreter is complete.
    Done,
}

/// How a block is entered: in the middle, or, by default, at its beginning.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Middle {
    /// Number of instructions that were subtracted from the budget already.
    pub(super) counted: u16,
    /// The guest's ESP less R15D.
    pub(super) stack_offset: i32,
}

/// The deadline has come. The next instruction is not even fetched, since that would set accessed bits.
const NOTHING: Next = Next::Interpret(0);
/// The interpreter executes one instruction, of which nothing is known.
pub(super) const STEP: Next = Next::Step { is_numeric: true };
impl Translator {
    /// Finds out why translated code was left, and how execution continues.
    pub(super) fn next(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        allowed: u64,
        deadline: u64,
    ) -> io::Result<Next> {
        let executed = |translator: &Translator| {
            (allowed as i64 - translator.budget.remaining(translator.context.budget)) as u64
        };
        match self.context.reason {
            reason::LINK => {
                self.counters.links += 1;
                cpu.instructions += executed(self);
                if cpu.instructions >= deadline {
                    return Ok(NOTHING);
                }
                let (site, target) = (self.context.info, self.context.eip);
                let before = self.counters.flushes;
                let Some(number) = self.code_for(cpu, memory, target)? else {
                    return Ok(STEP);
                };
                let Block { entry, linked_entry, .. } = *self.blocks.get(number);
                if self.counters.flushes == before {
                    self.cache.link(site, linked_entry);
                }
                self.context.target = entry.into();
                Ok(Next::Again(Middle::default()))
            }
            reason::LOOK_UP => {
                self.counters.look_ups += 1;
                cpu.instructions += executed(self);
                if cpu.instructions >= deadline {
                    return Ok(NOTHING);
                }
                let target = self.context.eip;
                let Some(number) = self.code_for(cpu, memory, target)? else {
                    return Ok(STEP);
                };
                let block = self.blocks.note_look_up(number);
                self.spaces.current(cpu.is_user()).note_target(&block);
                self.context.target = block.entry.into();
                Ok(Next::Again(Middle::default()))
            }
            reason::SIGNAL => self.signalled(cpu, memory, allowed, deadline),
            reason::CALLED => {
                // The code was left at the call, whose return address is noted.
                let point = self.return_to_site(cpu, self.context.fault.rip - 1, allowed);
                if point.site.repeats {
                    let rest = deadline - cpu.instructions;
                    return Ok(Next::Interpret(rest.min(INTERPRETED_ITERATIONS)));
                }
                if let Some(number) = point.site.transfer {
                    let number = number as usize;
                    let (is_numeric, transfers) = (false, true);
                    return Ok(Next::Op { number, is_numeric, transfers, loads: None });
                }
                let Some(number) = point.site.deferred else { return Ok(STEP) };
                let number = number as usize;
                Ok(if point.site.accesses_device {
                    let is_barred = self.barred.contains(&self.linear_of_instruction());
                    Next::Quiet { number, is_barred }
                } else if point.site.reads_device {
                    Next::DeviceRead { point, number }
                } else {
                    let loads = self.ops[number].loads;
                    Next::Op { number, is_numeric: false, transfers: false, loads }
                })
            }
            reason::NUMERIC => Ok(self.numeric_asked(cpu, allowed, deadline)),
            reason::SYSTEM => {
                // The code was left at the call, whose return address is noted.
                self.return_to_site(cpu, self.context.fault.rip - 1, allowed);
                let number = self.context.system_number as usize;
                let len = self.ops[number].len;
                self.context.eip = self.context.eip.wrapping_add(len.into());
                cpu.instructions += 1;
                self.count_completed(cpu, number);
                Ok(Next::Done)
            }
            reason::TRAP_FLAG => {
                // The code was left at the call, whose return address is noted.
                let point = self.return_to_site(cpu, self.context.fault.rip - 1, allowed);
                let Some(number) = point.site.deferred else {
                    unreachable!("POPF can be left to the interpreter");
                };
                let len = self.ops[number as usize].len;
                self.context.eip = self.context.eip.wrapping_add(len.into());
                self.move_stack(4);
                cpu.instructions += 1;
                self.count_completed(cpu, number as usize);
                Ok(Next::TrapFlag)
            }
            reason::RETURNED_TO_TRAP => {
                cpu.instructions += executed(self);
                Ok(Next::TrapFlag)
            }
            reason::ACCESSED => {
                // The code was left at the call, whose return address is noted.
                let point = self.return_to_site(cpu, self.context.fault.rip - 1, allowed);
                let len = point.site.deferred.map_or(0, |number| self.ops[number as usize].len);
                self.context.eip = self.context.eip.wrapping_add(len.into());
                cpu.instructions += 1;
                if let Some(number) = point.site.deferred {
                    self.count_completed(cpu, number as usize);
                }
                let must_return = std::mem::take(&mut self.must_return);
                Ok(if must_return { Next::Exit(Exit::Deadline) } else { Next::Done })
            }
            _ => {
                cpu.instructions += executed(self);
                if self.context.info & info::BREAKPOINT == info::BREAKPOINT {
                    return Ok(Next::Interpret(1));
                }
                if self.context.info & info::REPEATS != 0 {
                    // The interpreter executes all iterations and, if the instruction ends before its count
                    // does, some instructions after it.
                    let iterations =
                        self.context.gpr[usize::from(reg::CX)].clamp(1, MOST_ITERATIONS);
                    return Ok(Next::Interpret(iterations.into()));
                }
                let number = (self.context.info >> info::OP_SHIFT) as usize;
                self.take_back_left(cpu, number);
                let is_barred = self.context.info & info::BARRED != 0;
                if self.context.info & (info::QUIET | info::AFTER_HOLDING) == info::QUIET
                    && cpu.instructions < deadline
                {
                    return Ok(Next::Quiet { number, is_barred });
                }
                if is_barred {
                    let is_needed = self.count_barred(cpu, memory);
                    if is_needed && self.modes.current().1.segmented.is_some() {
                        return Ok(Next::Interpret(INTERPRETED_BESIDE_DATA));
                    }
                }
                Ok(Next::Op {
                    number,
                    is_numeric: self.context.info & info::NUMERIC != 0,
                    transfers: self.context.info & info::TRANSFERS != 0,
                    loads: None,
                })
            }
        }
    }

    /// Provides the image with the numeric registers that a numeric instruction needs.
    fn numeric_asked(&mut self, cpu: &mut Cpu, allowed: u64, deadline: u64) -> Next {
        // The code was left at the call, whose return address is noted.
        let point = self.return_to_site(cpu, self.context.fault.rip - 1, allowed);
        if !Numeric::are_enabled(cpu) {
            return STEP;
        }
        if self.numeric.location() == numeric::Location::Cpu {
            self.numeric.give(cpu, &mut self.context);
        }
        // A far transfer may have led to this code.
        self.numeric.note_selectors(cpu.is_user(), &self.blocks, &mut self.context);
        self.context.numeric_was_live = 1;
        point.go_on(cpu, deadline)
    }
}
