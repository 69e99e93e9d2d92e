//! Translates 64-bit code to host code, a block at a time.
//!
//! A block ends where control goes elsewhere, before an instruction that the interpreter must execute, and at the end
//! of its page. It goes on after conditional branches forward, which may [join](joins) it again further on, after those
//! to its own beginning, and after calls. An instruction that crosses into another page is a block of its own, which is
//! only reached by the jump table, since that page may become another one. As in other code
//! ([`crate::code::block`]), each instruction is one *site*: where its host code begins, the guest's state is exactly
//! that before the instruction, and nothing of that state changes before the last host instruction of a site that can
//! fault.

mod branches;
mod joins;

use iced_x86::{Code, Decoder, FlowControl, Instruction, Register, UsedRegister};
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{self, CodeMode, CodeSize, Op};

use crate::code::block::ChangingSource;
use crate::code::changing::{self, Contents};
use crate::code::emitter::{Branch, Mark};
use crate::code::parts::{Onward, Parts};
use crate::long::block_store::Slots;
use crate::long::changing::Element;
use crate::long::context::{at, reason};
use crate::long::copy::{self, Needs};
use crate::long::facts::{Facts, Place};
use crate::long::far_sites::FarSites;
use crate::long::low::Addresses;
use crate::long::numeric::Operand;
use crate::long::strings::{self, Walk};
use crate::long::system;
use crate::long::tables::is_plain;
use crate::long::writer::Writer;
use crate::map::Set;
use crate::numeric;
use branches::Later;
use joins::Forward;

/// Upper bound of the instructions in a block.
const MAX_INSTRUCTIONS: u16 = 64;

/// The host code of one instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// The host address where it begins.
    pub(crate) host: u32,
    /// The instruction's address, less that of the block.
    pub(crate) offset: u16,
    /// Number of the block's instructions that precede it.
    pub(crate) before: u16,
    /// Number of instructions that have been subtracted from the budget, but not executed yet, when it is executed. It
    /// is one of them.
    pub(crate) ahead: u16,
    /// The guest's RSP less R8 at its beginning.
    pub(crate) stack_offset: i16,
    pub(crate) operand: Operand,
}

/// Why translated code is left at some place in it.
#[derive(Debug)]
pub(crate) enum Exit {
    /// A branch to `rip` in the same page is not linked yet.
    Link { branch: Branch, rip: u64 },
    /// The debugger has a breakpoint at `rip`.
    Breakpoint { rip: u64 },
    /// The interpreter must execute the instruction at `rip`, which may use the numeric registers if `is_numeric`.
    /// If it is repeated and may write to itself, since its page keeps changing, `element` is what it writes.
    Step { rip: u64, op: Box<Op>, is_numeric: bool, element: Option<Element> },
    /// The jump table has no code for the address in R10, to which the instruction at the host address `site`
    /// branches. So many bytes were already taken from the guest's stack. RCX has been restored.
    Missed { site: u32, popped: i64 },
}

/// A translated block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The linear address of its first instruction.
    pub(crate) linear: u64,
    /// The place of its first instruction in guest memory.
    pub(crate) place: usize,
    /// The privilege of its code.
    pub(crate) is_user: bool,
    /// The place of the page into which it crosses, if it does.
    pub(crate) crosses_to: Option<usize>,
    /// The host address of its code.
    pub(crate) entry: u32,
    /// The host address where its instructions are subtracted from the budget, behind what it
    /// [checks before its loop](crate::long::facts).
    pub(crate) begin: u32,
    /// The host address to which branches are linked: the same, or code that goes there by the jump table.
    pub(crate) link: u32,
    /// The number of bytes of guest code that it is made from.
    pub(crate) bytes: u16,
    /// These bytes, if its page [keeps changing](crate::long::changing).
    pub(crate) contents: Option<Contents>,
    /// How many instructions it has. Its entry checks that the budget is sufficient for them.
    pub(crate) instructions: u16,
    /// The sites of its instructions, in order.
    pub(crate) sites: Vec<Site>,
    /// Those of its string instructions, in order.
    pub(crate) walks: Vec<Walk>,
}

/// The guest code that a block is made from.
pub(crate) struct Source<'a> {
    /// The bytes from the first instruction to the end of the page, or of the instruction that crosses into
    /// another page with what follows there.
    pub(crate) bytes: &'a [u8],
    pub(crate) linear: u64,
    pub(crate) place: usize,
    /// The place of that page.
    pub(crate) crosses_to: Option<usize>,
    pub(crate) is_user: bool,
    /// The processor that the guest sees; it decides which instructions exist.
    pub(crate) model: Model,
    /// The addresses of instructions that are left to the interpreter.
    pub(crate) barred: &'a Set<u64>,
    /// The linear addresses at which the debugger has breakpoints, in order.
    pub(crate) breakpoints: &'a [u64],
    pub(crate) far: &'a FarSites,
    /// Whether a loop may check addresses before its head.
    pub(crate) checks_before_loop: bool,
    /// The index of the first exit of the block.
    pub(crate) first_exit: usize,
    /// Where the code is, if its page keeps changing.
    pub(crate) changing: Option<ChangingSource<'a>>,
}

/// A block that is being made.
struct Builder<'a, F> {
    writer: Writer,
    source: &'a Source<'a>,
    slots: &'a mut Slots,
    /// Returns where branches to a block in the same page are linked, if there is one.
    entry_of: F,
    sites: Vec<Site>,
    walks: Vec<Walk>,
    /// Branches to addresses whose code is written at the end.
    later: Vec<(Branch, Later)>,
    parts: Parts,
    /// Branches forward, in the order of their code.
    forward: Vec<Forward>,
    /// Whether the next instruction is one to which a call returns.
    is_landing: bool,
    /// Whether the next instruction is only reached by branches.
    is_skipped: bool,
    exits: Vec<Exit>,
    /// Which numeric registers are the guest's.
    has: Needs,
    /// What was checked before the block.
    at_head: &'a [Place],
    /// The host addresses where the block is entered, and where its instructions are counted.
    host: u32,
    begin: u32,
    /// What is known wherever the block leads to itself, if it does.
    at_end: Option<Facts>,
    /// The offsets, from the block's first byte, of the ends of immediate operands that are read from memory.
    variable: Vec<usize>,
}

/// How a block continues after an instruction.
enum Step {
    /// With the next instruction.
    Next,
    /// Not at all: the block ends.
    End,
}

/// The state of a block before an instruction, by which the instruction can be left to the interpreter after all.
struct Start {
    mark: Mark,
    stack_offset: i16,
    sites: usize,
    later: usize,
    forward: usize,
    parts: (usize, bool),
}

/// Translates the block at `source` into host code for address `host`. Returns the block, its code, and its
/// exits. Returns None if its first instruction crosses into another page.
pub(crate) fn translate<F: Fn(u64) -> Option<u32>>(
    source: &Source,
    host: u32,
    addresses: Addresses,
    slots: &mut Slots,
    entry_of: F,
) -> Option<(Block, Vec<u8>, Vec<Exit>)> {
    let mut at_head = Vec::new();
    let mut is_first = true;
    loop {
        let builder = Builder {
            writer: Writer::new(host, addresses, source.is_user),
            source,
            slots,
            entry_of: &entry_of,
            sites: Vec::new(),
            walks: Vec::new(),
            later: Vec::new(),
            parts: Parts::default(),
            forward: Vec::new(),
            is_landing: false,
            is_skipped: false,
            exits: Vec::new(),
            has: Needs::default(),
            at_head: &at_head,
            host,
            begin: host,
            at_end: None,
            variable: Vec::new(),
        };
        let (made, at_end) = builder.make()?;
        let Some(at_end) = at_end.filter(|_| source.checks_before_loop) else { return Some(made) };
        // What is checked before the loop depends on what is known at its end, and the other way round.
        let wanted =
            if is_first { at_end.wanted().to_vec() } else { at_end.still_at_head(&at_head) };
        if wanted.len() == at_head.len() {
            return Some(made);
        }
        (at_head, is_first) = (wanted, false);
    }
}

impl<F: Fn(u64) -> Option<u32>> Builder<'_, F> {
    /// Translates the block. Returns what [`translate`] does, and what is known where the block
    /// leads to itself, if it does.
    #[expect(clippy::type_complexity, reason = "the result of one other function")]
    fn make(mut self) -> Option<((Block, Vec<u8>, Vec<Exit>), Option<Facts>)> {
        let source = self.source;
        let mut decoder =
            decode::decoder(source.bytes, CodeSize::Bits64, source.linear, source.model);
        let to_compare = source.changing.map(|_| self.writer.emitter.jump());
        let same = self.writer.emitter.here();
        for place in self.at_head {
            self.writer.check_before_loop(*place);
        }
        if !self.at_head.is_empty() {
            self.writer.emitter.align();
        }
        self.begin = self.writer.emitter.here();
        self.writer.facts = Facts::at_head(self.at_head);
        self.begin_count();
        self.check_budget();
        let end = self.instructions(&mut decoder)?;
        self.set_counts();
        self.finish_later();
        let bytes = end.wrapping_sub(source.linear) as u16;
        let variable = std::mem::take(&mut self.variable);
        let contents = source.changing.zip(to_compare).map(|(code, to_compare)| {
            let contents = Contents::new(&source.bytes[..bytes.into()], variable);
            self.writer.emitter.land(to_compare);
            self.writer.compare(&contents, code.host, same, source.linear);
            contents
        });
        let mut link = self.host;
        if source.crosses_to.is_some() || source.changing.is_some() {
            let slot = self.slots.find_or_add(source.linear, source.is_user)?;
            link = self.writer.emitter.here();
            self.writer.jump_by_slot(source.linear, slot);
        }
        let instructions = self.sites.len() as u16;
        let Builder { writer, sites, walks, exits, host, begin, at_end, .. } = self;
        let block = Block {
            linear: source.linear,
            place: source.place,
            is_user: source.is_user,
            crosses_to: source.crosses_to,
            entry: host,
            begin,
            link,
            bytes,
            contents,
            instructions,
            sites,
            walks,
        };
        Some(((block, writer.emitter.finish(), exits), at_end))
    }

    /// Translates the instructions. Returns the address after the last one, or None if the first one crosses
    /// into another page.
    fn instructions(&mut self, decoder: &mut Decoder) -> Option<u64> {
        let mut next = self.source.linear;
        let mut has_written = false;
        loop {
            let is_full = self.sites.len() >= self.most_instructions();
            if !decoder.can_decode() || is_full || has_written {
                self.go_to(next);
                return Some(next);
            }
            let instruction = decoder.decode();
            if decode::goes_on(decoder, &instruction) {
                if self.sites.is_empty() {
                    return None;
                }
                self.go_to(next);
                return Some(next);
            }
            if self.source.breakpoints.binary_search(&instruction.ip()).is_ok() {
                if self.sites.is_empty() {
                    self.leave(Exit::Breakpoint { rip: instruction.ip() });
                    return Some(instruction.next_ip());
                }
                self.go_to(next);
                return Some(next);
            }
            self.writer.reach = self.source.far.reach(&instruction, self.source.is_user);
            next = instruction.next_ip();
            if self.needs_stack(&instruction) {
                self.writer.settle_stack();
            }
            let start = self.start();
            match self.step(&instruction) {
                Some(Step::Next) => {}
                Some(Step::End) => return Some(next),
                None => {
                    self.go_back(&start);
                    self.leave_to_interpreter(&instruction);
                    return Some(next);
                }
            }
            // It may have written to the instructions that follow.
            has_written = self.source.changing.is_some() && changing::writes(&instruction);
        }
    }

    /// Translates `instruction`. Returns None if it is left to the interpreter; the caller then throws away what was
    /// written.
    fn step(&mut self, instruction: &Instruction) -> Option<Step> {
        let is_left = !decode::exists(instruction, self.source.model)
            || self.source.barred.contains(&instruction.ip());
        if is_left {
            return None;
        }
        if instruction.flow_control() != FlowControl::Next || system::ends_block(instruction) {
            return self.branch(instruction);
        }
        if !self.plain(instruction) {
            return None;
        }
        self.follow(instruction);
        Some(Step::Next)
    }

    /// Returns the state of the block.
    fn start(&self) -> Start {
        Start {
            mark: self.writer.emitter.mark(),
            stack_offset: self.writer.stack_offset,
            sites: self.sites.len(),
            later: self.later.len(),
            forward: self.forward.len(),
            parts: self.parts.so_far(),
        }
    }

    /// Throws away all that was translated since `start`, after which nothing more is translated but a way out.
    fn go_back(&mut self, start: &Start) {
        self.writer.emitter.go_back(start.mark);
        self.writer.stack_offset = start.stack_offset;
        self.sites.truncate(start.sites);
        self.later.truncate(start.later);
        self.go_back_to_branches(start.forward, start.parts);
    }

    /// Returns whether R8 must be the guest's RSP before `instruction`: where ways join, and where it uses RSP in another
    /// way than PUSH, POP, near CALL and RET do.
    fn needs_stack(&mut self, instruction: &Instruction) -> bool {
        if self.writer.stack_offset == 0 {
            return false;
        }
        let is_free = copy::moves_stack_later(instruction)
            || matches!(instruction.code(), Code::Call_rel32_64 | Code::Retnq | Code::Retnq_imm16)
            || instruction.flow_control() == FlowControl::Next && !self.uses_stack(instruction);
        !is_free || self.leads_to(instruction.ip())
    }

    /// Returns whether `instruction` uses RSP.
    fn uses_stack(&mut self, instruction: &Instruction) -> bool {
        let is_rsp = |register: Register| register.full_register() == Register::RSP;
        if is_plain(instruction) {
            return is_rsp(instruction.op0_register())
                || is_rsp(instruction.op1_register())
                || is_rsp(instruction.memory_base());
        }
        let mut used = self.writer.tables.info(instruction).used_registers().iter();
        used.any(|used: &UsedRegister| is_rsp(used.register()))
    }

    /// Notes what is known after `instruction`.
    fn follow(&mut self, instruction: &Instruction) {
        let Writer { facts, tables, reach, .. } = &mut self.writer;
        facts.follow(instruction, *reach, tables);
    }

    /// Returns how many instructions the block may have.
    fn most_instructions(&self) -> usize {
        if self.source.crosses_to.is_some() { 1 } else { MAX_INSTRUCTIONS.into() }
    }

    /// Begins the site of `instruction`.
    fn begin_site(&mut self, instruction: &Instruction) -> u32 {
        let is_landing = std::mem::take(&mut self.is_landing);
        if is_landing {
            self.writer.emitter.keep(None);
            self.begin_count();
        }
        let host = self.writer.emitter.here();
        if is_landing {
            // The check is inside of the site: the site is no entry of the block, and all instructions before it were
            // counted.
            self.check_budget();
        }
        self.join(instruction.ip());
        let offset = instruction.ip().wrapping_sub(self.source.linear) as u16;
        let before = self.sites.len() as u16;
        let operand = Operand::of(instruction, self.writer.reach);
        let stack_offset = self.writer.stack_offset;
        self.sites.push(Site { host, offset, before, ahead: 0, stack_offset, operand });
        host
    }

    /// Begins a part, and subtracts its instructions from the budget here.
    fn begin_count(&mut self) {
        let count = self.writer.emitter.count_in_r9();
        self.parts.begin(self.sites.len() as u16, Some(count), None);
    }

    /// Checks here that the budget is sufficient for all instructions from the beginning of the last part on, up to the
    /// next check.
    fn check_budget(&mut self) {
        let check = self.writer.emitter.check_budget_in_r9();
        self.parts.note_check(check);
    }

    /// Ends a part, after which comes `onward`.
    fn end_part(&mut self, onward: Onward) {
        self.parts.end(self.sites.len() as u16, onward);
    }

    /// Sets all counts, when the block has ended.
    fn set_counts(&mut self) {
        let joins = |branch: usize| self.forward[branch].joins;
        let (instructions, sites) = (self.sites.len() as u16, &mut self.sites);
        self.parts.set(instructions, &mut self.writer.emitter, joins, |number, ahead| {
            sites[number].ahead = ahead;
        });
    }

    /// Translates an instruction after which the next one follows. Returns false if it is left to the
    /// interpreter; the caller then throws away what was written.
    fn plain(&mut self, instruction: &Instruction) -> bool {
        self.begin_site(instruction);
        if self.reads_its_immediate(instruction) {
            return true;
        }
        if copy::does_nothing(instruction) {
            // Each site has an address of its own.
            self.writer.emitter.bytes(&[0x90]);
            return true;
        }
        if system::translate(&mut self.writer, instruction) {
            return true;
        }
        if instruction.is_string_instruction() {
            // In a page that keeps changing it may write to itself.
            if self.source.changing.is_some() {
                return false;
            }
            let walk = strings::translate(&mut self.writer, instruction);
            let is_translated = walk.is_some();
            self.walks.extend(walk);
            return is_translated;
        }
        let Some(needs) = copy::needs(instruction) else { return false };
        if needs.x87 && !self.has.x87 {
            self.writer.call(at::X87_CHECK);
            self.has.x87 = true;
        }
        if needs.avx && !self.has.avx {
            self.writer.call(at::AVX_CHECK);
            (self.has.avx, self.has.vectors) = (true, true);
        }
        if needs.vectors && !self.has.vectors {
            self.writer.call(at::VECTOR_CHECK);
            self.has.vectors = true;
        }
        copy::translate(&mut self.writer, instruction)
    }

    /// Translates an instruction whose immediate operand keeps changing, which it reads from memory. Returns false for
    /// all others, and then writes nothing.
    fn reads_its_immediate(&mut self, instruction: &Instruction) -> bool {
        let Some(code) = self.source.changing else { return false };
        let offset = instruction.ip().wrapping_sub(self.source.linear) as usize;
        if !changing::has_immediate(instruction)
            || !code.immediates.contains(&(self.source.place + offset))
        {
            return false;
        }
        let end = offset + instruction.len();
        self.variable.push(end);
        self.writer.load_immediate(instruction, code.host + end as u64);
        true
    }

    /// Ends the block with `instruction`, which the interpreter executes.
    fn leave_to_interpreter(&mut self, instruction: &Instruction) {
        let offset = instruction.ip().wrapping_sub(self.source.linear) as usize;
        let bytes = &self.source.bytes[offset..];
        // Ops are decoded at address 0.
        let op = decode::decode(bytes, CodeMode::LONG, self.source.model)
            .expect("it does not cross into another page")
            .at_offset((instruction.ip() & 0xfff) as u16);
        let is_numeric = numeric::is_numeric(instruction);
        let is_changing = self.source.changing.is_some();
        let element = (is_changing && op.stands_alone()).then(|| Element::of(instruction));
        self.leave(Exit::Step { rip: instruction.ip(), op: Box::new(op), is_numeric, element });
    }

    /// Leaves translated code.
    fn leave(&mut self, exit: Exit) {
        self.writer.settle_stack();
        let number = self.exit(exit);
        self.writer.leave(number);
    }

    /// Returns the reason for which translated code is left by `exit`.
    fn exit(&mut self, exit: Exit) -> u32 {
        let number = self.source.first_exit + self.exits.len();
        self.exits.push(exit);
        reason::EXITS + number as u32
    }
}
