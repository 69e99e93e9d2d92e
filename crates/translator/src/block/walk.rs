//! The instructions of a block, one after the other, up to where it ends.

use iced_x86::{Decoder, FlowControl, Instruction, Mnemonic, Register};
use ring3_x86::decode;

use super::{Maker, Source, branches, quiet, repeats, transfers};
use crate::changing;
use crate::context::{at, info};
use crate::emitter::{CONDITIONAL_SIZE, Count, Mark};
use crate::numeric::{self, Checked};
use crate::segmented;

/// Instructions in a block at most.
const MAX_INSTRUCTIONS: u16 = 64;

/// What comes after the instructions of a block that go on with the next one.
pub(super) enum End {
    /// This branch.
    Branch(Instruction),
    /// The instruction at this address, in a block of its own.
    NextBlock(u32),
    /// This instruction, which is left to the interpreter, with what that is to know of it ([`info`]), by the routine in this field of the
    /// context.
    Interpreter(Instruction, u32, u32),
    /// This INT n or IRET, with what the interpreter is to know of it where it is left to that.
    Transfer(Instruction, u32),
}

/// What comes after an instruction.
enum Step {
    /// The next one. This was none that may be translated anew.
    Next,
    /// The next one. This was a plain one, and may be translated anew from here on.
    NextAfter(Start),
    /// The block's first one, once more.
    Again,
    /// No other: the block ends.
    End(End),
}

/// How much of a block there was before an instruction, to leave it to the interpreter after all or to translate it again.
#[derive(Clone, Copy)]
struct Start {
    mark: Mark,
    sites: usize,
    instructions: u16,
    checked: Checked,
    part: Option<(Count, u16)>,
    check: Option<(Count, u16)>,
    is_landing: bool,
    left: usize,
}

/// A plain instruction, and what there was before it.
type Last = (Start, Instruction);

/// Decodes the instructions that a block is made from.
fn decoder<'a>(source: &Source<'a>) -> Decoder<'a> {
    let (_, mode) = source.mode;
    decode::decoder(source.bytes, mode.is_32_bit(), source.eip)
}

impl Maker<'_> {
    /// Translates the instructions up to where the block ends, and says how it does.
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
                // The next instruction comes before an interrupt.
                Step::End(branch @ End::Branch(_)) => return branch,
                Step::End(end) => break end,
            };
        };
        self.end_after(last, ending)
    }

    /// Translates `instruction`, which comes after `last`.
    fn step(
        &mut self,
        instruction: &Instruction,
        last: Option<Last>,
        source: &Source,
        entry_of: &impl Fn(u32) -> Option<u32>,
    ) -> Step {
        if self.is_left(instruction, source) {
            return Step::End(self.end_before(instruction, source));
        }
        // What a repeated instruction takes from the budget was not asked for at the entry, so it comes in the last part.
        let may_go_on = source.crossing.is_none() && !self.sites.iter().any(|site| site.repeats);
        if may_go_on {
            if branches::goes_on_after(instruction, &self.mode) {
                self.align_pair(last, source);
                self.branch_forward(instruction, entry_of);
                return Step::Next;
            }
            if self.comes_again(instruction) {
                self.align_pair(last, source);
                self.go_round(instruction);
                return Step::Again;
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
        if instruction.flow_control() == FlowControl::Next && self.plain(instruction, source) {
            return Step::NextAfter(start);
        }
        self.go_back(&start);
        if may_go_on && self.waits_for_engine(instruction, source) {
            return Step::Next;
        }
        Step::End(self.end_before(instruction, source))
    }

    /// The interpreter always executes `instruction`. One that is repeated may write to itself where code keeps changing.
    fn is_left(&self, instruction: &Instruction, source: &Source) -> bool {
        !decode::exists(instruction, source.model)
            || source.left.contains(&self.mode.linear(instruction.ip32()))
            || source.changing.is_some() && repeats(instruction)
    }

    /// Translates a conditional branch forward.
    fn branch_forward(&mut self, branch: &Instruction, entry_of: &impl Fn(u32) -> Option<u32>) {
        self.emitter.settle_stack();
        self.begin_site(branch);
        self.end_part();
        let taken = self.emitter.jump_if(branches::condition(branch));
        self.lead(taken, branches::target(branch), entry_of);
        self.begin_part();
    }

    /// Translates RDTSC and RDTSCP of flat code. False, and nothing was written, for all others.
    fn reads_time(&mut self, instruction: &Instruction) -> bool {
        let reads_time = matches!(instruction.mnemonic(), Mnemonic::Rdtsc | Mnemonic::Rdtscp);
        if !reads_time || self.mode.segmented.is_some() {
            return false;
        }
        // Of the budget nothing is taken for what comes after it.
        self.begin_site(instruction);
        self.end_part();
        self.emitter.call(at::TIME_STAMP);
        if instruction.mnemonic() == Mnemonic::Rdtscp {
            self.emitter.load_field(Register::RCX, at::TSC_AUX);
        }
        self.begin_part();
        true
    }

    /// The block ends before `instruction`, which is left to the interpreter unless a routine does it.
    fn end_before(&self, instruction: &Instruction, source: &Source) -> End {
        let linear = self.mode.linear(instruction.ip32());
        let is_flat = self.mode.segmented.is_none();
        let is_left = self.is_left(instruction, source);
        let is_transfer = transfers::is_translated(instruction, self.mode.is_user);
        if !is_left && is_flat && is_transfer && !source.for_user.contains(&linear) {
            return End::Transfer(*instruction, info::TRANSFERS);
        }
        let routine = match instruction.mnemonic() {
            Mnemonic::Sysenter if self.mode.is_user => at::SYSENTER,
            Mnemonic::Sysexit if !self.mode.is_user => at::SYSEXIT,
            _ => at::LEAVE_TO_STEP,
        };
        let routine = if is_left || !is_flat { at::LEAVE_TO_STEP } else { routine };
        let info = [
            (numeric::is_numeric(instruction), info::NUMERIC),
            (source.left.contains(&linear), info::LEFT),
            (repeats(instruction), info::REPEATS),
            (quiet::is_quiet(instruction), info::QUIET),
        ];
        let info = info.into_iter().filter(|(is_so, _)| *is_so).map(|(_, bit)| bit).sum();
        End::Interpreter(*instruction, info, routine)
    }

    /// The block ends so after `last`. After STI, and after a load of SS, one more instruction comes before an interrupt (SDM vol. 2, STI, MOV): the two
    /// stay together.
    fn end_after(&mut self, last: Option<Last>, end: End) -> End {
        let holds_interrupts =
            |(_, last): &Last| last.mnemonic() == Mnemonic::Sti || segmented::loads_stack(last);
        let Some((start, sti)) = last.filter(holds_interrupts) else { return end };
        match end {
            End::Interpreter(next, info, routine) => {
                End::Interpreter(next, info | info::AFTER_STI, routine)
            }
            End::Transfer(next, info) => End::Transfer(next, info | info::AFTER_STI),
            End::Branch(_) | End::NextBlock(_) => {
                self.go_back(&start);
                End::Interpreter(sti, 0, at::LEAVE_TO_STEP)
            }
        }
    }

    /// A conditional jump comes now. If the processor will fuse the `last` instruction with it, the two are moved on to where they cross no boundary.
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

    /// How much of the block there is.
    fn start(&self) -> Start {
        Start {
            mark: self.emitter.mark(),
            sites: self.sites.len(),
            instructions: self.instructions,
            checked: self.checked,
            part: self.part,
            check: self.check,
            is_landing: self.is_landing,
            left: self.left.len(),
        }
    }

    /// Throws away what was made since `start`.
    fn go_back(&mut self, start: &Start) {
        self.emitter.go_back(start.mark);
        self.sites.truncate(start.sites);
        self.instructions = start.instructions;
        self.checked = start.checked;
        self.part = start.part;
        self.check = start.check;
        self.is_landing = start.is_landing;
        self.left.truncate(start.left);
    }
}
