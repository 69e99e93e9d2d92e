//! Goes through the instructions of a block, one after the other, up to where it ends.

use iced_x86::{Decoder, FlowControl, Instruction, Mnemonic, Register};
use ring3_x86::decode;

use super::{BlockBuilder, Source, branches, divisions, quiet, repeats, transfers};
use crate::code::changing;
use crate::code::emitter::{CONDITIONAL_SIZE, Mark};
use crate::context::{at, info};
use crate::numeric::{self, Checked};
use crate::segmented;

/// Upper bound of the instructions in a block.
pub(crate) const MAX_INSTRUCTIONS: u16 = 64;

/// How a block ends, after its plain instructions.
pub(super) enum End {
    /// With this branch.
    Branch(Instruction),
    /// Before the instruction at this address, which begins another block.
    NextBlock(u32),
    /// With this instruction, which is left to the interpreter: what the interpreter needs to know of it
    /// (bits of [`info`]), and the field of the context with the routine by which translated code is left.
    Interpreter(Instruction, u32, u32),
    /// With this INT n or IRET, and the bits of [`info`] for the case that it is left to the interpreter.
    Transfer(Instruction, u32),
    /// A [division](divisions) that is barred; with the `info` of the context.
    Division(Instruction, u32),
}

/// How a block continues after an instruction.
enum Step {
    /// With the next instruction. This one cannot be translated anew.
    Next,
    /// With the next instruction. This one is a plain instruction, and can be translated anew from this state
    /// on.
    NextAfter(Start),
    /// With the block's first instruction, once more.
    Again,
    /// Not at all: the block ends.
    End(End),
}

/// The state of a block before an instruction, by which the instruction can be left to the interpreter after
/// all, or translated again.
#[derive(Clone, Copy)]
struct Start {
    mark: Mark,
    sites: usize,
    instructions: u16,
    checked: Checked,
    parts: (usize, bool),
    branches: usize,
    is_landing: bool,
    is_join: bool,
    deferred: usize,
    /// Number of the block's counters.
    counters: usize,
}

/// A plain instruction, and the state of the block before it.
type Last = (Start, Instruction);

/// Returns a decoder for the instructions that a block is made from.
fn decoder<'a>(source: &Source<'a>) -> Decoder<'a> {
    let (_, mode) = source.mode;
    decode::decoder(source.bytes, mode.code_size(), source.eip.into(), source.model)
}

/// Returns what the interpreter is told if it executes the instruction after `instruction`, which holds back
/// what comes between the two; 0 if it holds nothing back.
fn holding(instruction: &Instruction) -> u32 {
    match instruction.mnemonic() {
        Mnemonic::Sti => info::AFTER_STI,
        _ if segmented::loads_stack(instruction) => info::AFTER_SS,
        _ => 0,
    }
}

/// Returns whether one more instruction executes after `instruction` before an interrupt.
pub(super) fn holds_interrupts(instruction: &Instruction) -> bool {
    holding(instruction) != 0
}

impl BlockBuilder<'_> {
    /// Translates the instructions up to the end of the block, and returns how it ends.
    pub(super) fn instructions(
        &mut self,
        source: &Source,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) -> End {
        let mut decoder = decoder(source);
        let mut next = source.eip;
        let mut last: Option<Last> = None;
        let mut has_written = false;
        let ending = loop {
            let is_over = !decoder.can_decode()
                || has_written
                || self.instructions >= MAX_INSTRUCTIONS
                || source.crossing.is_some() && !self.sites.is_empty();
            if is_over {
                break End::NextBlock(next);
            }
            let instruction = decoder.decode();
            if !self.sites.is_empty() && decode::goes_on(&decoder, &instruction) {
                break End::NextBlock(next);
            }
            has_written = source.changing.is_some() && changing::writes(&instruction);
            next = instruction.next_ip32();
            last = match self.step(&instruction, last, source, entry_of) {
                Step::Next => None,
                Step::NextAfter(start) => Some((start, instruction)),
                Step::Again => {
                    decoder = self::decoder(source);
                    next = source.eip;
                    None
                }
                // If `last` is STI, the branch is the one instruction that executes before an interrupt, and
                // it is in this block.
                Step::End(branch @ End::Branch(_)) => return branch,
                Step::End(end) => break end,
            };
        };
        self.end_after(last, ending)
    }

    /// Translates `instruction`, which follows `last`.
    fn step(
        &mut self,
        instruction: &Instruction,
        last: Option<Last>,
        source: &Source,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) -> Step {
        // The check at the block's entry does not include the iterations that a repeated instruction takes
        // from the budget. So a repeated instruction comes in the last count.
        let may_go_on = source.crossing.is_none() && !self.sites.iter().any(|site| site.repeats);
        // An instruction that holds interrupts, and the next one, belong together.
        let is_held = last.as_ref().is_some_and(|(_, last)| holds_interrupts(last));
        self.is_join = !is_held && self.leads_to(instruction.ip32());
        if self.is_join {
            self.emitter.settle_stack();
        }
        let last = last.filter(|_| !self.is_join);
        let before = last.as_ref().map(|(_, last)| last);
        if may_go_on && self.accesses_device(instruction, before, source) {
            self.access_device(instruction, source);
            return Step::Next;
        }
        if self.is_interpreted(instruction, source) {
            return Step::End(self.end_before(instruction, source));
        }
        if may_go_on {
            if branches::goes_on_after(instruction, &self.mode) {
                self.align_pair(last, source);
                self.branch_forward(instruction);
                return Step::Next;
            }
            if self.jumps_forward(instruction) {
                return Step::Next;
            }
            if self.comes_again(instruction) {
                self.align_pair(last, source);
                self.go_round(instruction);
                return Step::Again;
            }
            if self.goes_on_after_loop(instruction) {
                self.align_pair(last, source);
                self.branch_back(instruction);
                return Step::Next;
            }
            if self.reads_its_address(instruction, source) {
                return Step::Next;
            }
            if self.goes_on_after_call(instruction, entry_of) {
                self.call_and_go_on(instruction, entry_of);
                return Step::Next;
            }
        }
        if branches::is_ending(instruction, &self.mode) {
            if instruction.is_jcc_short_or_near() {
                self.align_pair(last, source);
            }
            return Step::End(End::Branch(*instruction));
        }
        if may_go_on && self.reads_time(instruction) {
            return Step::Next;
        }
        let start = self.start();
        if may_go_on {
            if self.looks_for_errors(instruction, source) {
                return Step::Next;
            }
            self.go_back(&start);
            if self.is_refused_load(instruction, before, source) {
                if self.load_after_check(instruction, source) {
                    return Step::Next;
                }
                self.go_back(&start);
            }
        }
        if instruction.flow_control() == FlowControl::Next && self.plain(instruction, source) {
            return Step::NextAfter(start);
        }
        self.go_back(&start);
        if may_go_on && self.waits_for_engine(instruction, source) {
            return Step::Next;
        }
        Step::End(self.end_before(instruction, source))
    }

    /// Returns whether the interpreter always executes `instruction`. Where code keeps changing these include
    /// repeated instructions, which may write to themselves.
    fn is_interpreted(&self, instruction: &Instruction, source: &Source) -> bool {
        !decode::exists(instruction, source.model)
            || source.barred.contains(&self.mode.linear(instruction.ip32()))
            || source.has_breakpoint(self.mode.linear(instruction.ip32()))
            || source.changing.is_some() && repeats(instruction)
    }

    /// Translates RDTSC and RDTSCP of flat code. Returns false for all other instructions, and then writes
    /// nothing.
    fn reads_time(&mut self, instruction: &Instruction) -> bool {
        let reads_time = matches!(instruction.mnemonic(), Mnemonic::Rdtsc | Mnemonic::Rdtscp);
        if !reads_time || self.mode.segmented.is_some() {
            return false;
        }
        // The routine counts by the budget, from which nothing may be subtracted yet for the instructions
        // that follow.
        self.begin_site(instruction);
        self.end_count();
        self.emitter.call(at::TIME_STAMP);
        if instruction.mnemonic() == Mnemonic::Rdtscp {
            self.emitter.load_field(Register::RCX, at::TSC_AUX);
        }
        self.begin_count();
        true
    }

    /// Returns the end of a block before `instruction`, which is left to the interpreter unless a routine
    /// executes it.
    fn end_before(&self, instruction: &Instruction, source: &Source) -> End {
        let linear = self.mode.linear(instruction.ip32());
        let is_flat = self.mode.segmented.is_none();
        let is_interpreted = self.is_interpreted(instruction, source);
        let is_transfer = transfers::is_translated(instruction, self.mode.is_user);
        if !is_interpreted && is_flat && is_transfer && !source.for_user.contains(&linear) {
            return End::Transfer(*instruction, info::TRANSFERS);
        }
        if source.has_breakpoint(linear) {
            return End::Interpreter(*instruction, info::BREAKPOINT, at::LEAVE_TO_STEP);
        }
        let is_barred = source.barred.contains(&linear);
        if is_barred && is_flat && divisions::is_translated(instruction) {
            return End::Division(*instruction, info::BARRED);
        }
        let routine = match instruction.mnemonic() {
            Mnemonic::Sysenter if self.mode.is_user => at::SYSENTER,
            Mnemonic::Sysexit if !self.mode.is_user => at::SYSEXIT,
            _ => at::LEAVE_TO_STEP,
        };
        let routine = if is_interpreted || !is_flat { at::LEAVE_TO_STEP } else { routine };
        let info = [
            (numeric::is_numeric(instruction), info::NUMERIC),
            (is_barred, info::BARRED),
            (repeats(instruction), info::REPEATS),
            (quiet::is_quiet(instruction), info::QUIET),
        ];
        let info = info.into_iter().filter(|(is_so, _)| *is_so).map(|(_, bit)| bit).sum();
        End::Interpreter(*instruction, info, routine)
    }

    /// Returns how the block ends after `last`. After STI, and after a load of SS, one more instruction
    /// executes before an interrupt (SDM vol. 2, STI, MOV), so the block must not end between the two. If the
    /// interpreter executes the second one, it is told what came before it; otherwise it executes `last`
    /// instead.
    fn end_after(&mut self, last: Option<Last>, end: End) -> End {
        let Some((start, last)) = last else { return end };
        let after = holding(&last);
        if after == 0 {
            return end;
        }
        match end {
            End::Interpreter(next, info, routine) => End::Interpreter(next, info | after, routine),
            End::Transfer(next, info) => End::Transfer(next, info | after),
            End::Division(next, info) => End::Division(next, info | after),
            End::Branch(_) | End::NextBlock(_) => {
                self.go_back(&start);
                End::Interpreter(last, 0, at::LEAVE_TO_STEP)
            }
        }
    }

    /// Aligns a conditional jump that comes next. If the processor will fuse the `last` instruction with it,
    /// this moves both to where they cross no boundary.
    fn align_pair(&mut self, last: Option<(Start, Instruction)>, source: &Source) {
        let Some((start, instruction)) = last.filter(|(_, last)| branches::fuses(last)) else {
            return;
        };
        let are_adjacent = self.emitter.stack_offset() == 0;
        if are_adjacent && self.emitter.crosses_since(start.mark, CONDITIONAL_SIZE) {
            self.go_back(&start);
            self.emitter.align();
            self.plain(&instruction, source);
        }
    }

    /// Returns the state of the block.
    fn start(&self) -> Start {
        Start {
            mark: self.emitter.mark(),
            sites: self.sites.len(),
            instructions: self.instructions,
            checked: self.checked,
            parts: self.parts.so_far(),
            branches: self.forward.len(),
            is_landing: self.is_landing,
            is_join: self.is_join,
            deferred: self.deferred.len(),
            counters: self.counted.as_ref().map_or(0, |counted| counted.len()),
        }
    }

    /// Throws away all that was translated since `start`.
    fn go_back(&mut self, start: &Start) {
        self.emitter.go_back(start.mark);
        self.sites.truncate(start.sites);
        self.instructions = start.instructions;
        self.checked = start.checked;
        self.parts.go_back(start.parts);
        self.go_back_to_branches(start.branches, start.parts.0);
        self.is_landing = start.is_landing;
        self.is_join = start.is_join;
        self.deferred.truncate(start.deferred);
        if let Some(counted) = &mut self.counted {
            counted.truncate(start.instructions.into(), start.counters);
        }
    }
}
