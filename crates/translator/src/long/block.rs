//! Translates 64-bit code to host code, a block at a time.
//!
//! A block ends at each branch, before an instruction that the interpreter must execute, and at the end of its
//! page. An instruction that crosses into another page is a block of its own, which is only reached by the jump
//! table, since that page may become another one. As in other code ([`crate::code::block`]), each instruction is one *site*: where its host code begins,
//! the guest's state is exactly that before the instruction, and nothing of that state changes before the last
//! host instruction of a site that can fault.

use iced_x86::{Code, Decoder, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register};
use ring3_x86::access::is_canonical;
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{self, CodeMode, CodeSize, Op};

use crate::code::block::ChangingSource;
use crate::code::block::branches::condition;
use crate::code::changing::{self, Contents};
use crate::code::emitter::Branch;
use crate::long::block_store::Slots;
use crate::long::changing::Element;
use crate::long::context::{at, reason};
use crate::long::copy::{self, Needs};
use crate::long::facts::{Address, Facts};
use crate::long::far_sites::FarSites;
use crate::long::low::Addresses;
use crate::long::numeric::Operand;
use crate::long::strings::{self, Walk};
use crate::long::system;
use crate::long::writer::Writer;
use crate::map::Set;
use crate::numeric;

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
    /// branches. RCX has been restored.
    Missed { site: u32 },
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
    /// How many instructions it has. Its entry subtracts them from the budget.
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
    exits: Vec<Exit>,
    /// Which numeric registers are the guest's.
    has: Needs,
    /// What was checked before the block.
    at_head: &'a [Address],
    /// The host addresses where the block is entered, and where its instructions are counted.
    host: u32,
    begin: u32,
    /// What is known where the block leads to itself, if it does.
    at_end: Option<Facts>,
    /// Whether the block ends with a branch other than a call, which may lead to the block itself.
    may_loop: bool,
    /// The offsets, from the block's first byte, of the ends of immediate operands that are read from memory.
    variable: Vec<usize>,
    factory: InstructionInfoFactory,
}

/// Where a branch leads.
#[derive(Clone, Copy)]
enum Later {
    /// To this address.
    To(u64),
    /// Out, since the jump table has no code for the target of the branch at this site.
    Missed(u32),
    /// By the jump table, since the return at this site, which takes so many bytes from the stack, does not return to
    /// the last call.
    Elsewhere(u32, i64),
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
            exits: Vec::new(),
            has: Needs::default(),
            at_head: &at_head,
            host,
            begin: host,
            at_end: None,
            may_loop: false,
            variable: Vec::new(),
            factory: InstructionInfoFactory::new(),
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
        for address in self.at_head {
            self.writer.check_before_loop(*address);
        }
        self.begin = self.writer.emitter.here();
        self.writer.facts = Facts::at_head(self.at_head);
        let count = self.writer.count();
        let end = self.instructions(&mut decoder)?;
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
        self.writer.emitter.set_count(count, instructions as i16);
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
            self.writer.is_far = self.source.far.contains(&instruction, self.source.is_user);
            let mark = self.writer.emitter.mark();
            let (later, had) = (self.later.len(), self.has);
            let is_ending =
                instruction.flow_control() != FlowControl::Next || system::ends_block(&instruction);
            let is_translated = decode::exists(&instruction, self.source.model)
                && !self.source.barred.contains(&instruction.ip())
                && if is_ending { self.ending(&instruction) } else { self.plain(&instruction) };
            if !is_translated {
                self.writer.emitter.go_back(mark);
                self.later.truncate(later);
                self.has = had;
                self.sites.retain(|site| site.host < self.writer.emitter.here());
                self.leave_to_interpreter(&instruction);
                return Some(instruction.next_ip());
            }
            next = instruction.next_ip();
            if is_ending {
                return Some(next);
            }
            self.follow(&instruction);
            // It may have written to the instructions that follow.
            has_written = self.source.changing.is_some() && changing::writes(&instruction);
        }
    }

    /// Notes what is known after `instruction`.
    fn follow(&mut self, instruction: &Instruction) {
        let is_near = !self.writer.is_far;
        self.writer.facts.follow(instruction, is_near, &mut self.factory);
    }

    /// Returns how many instructions the block may have.
    fn most_instructions(&self) -> usize {
        if self.source.crosses_to.is_some() { 1 } else { MAX_INSTRUCTIONS.into() }
    }

    /// Begins the site of `instruction`.
    fn begin_site(&mut self, instruction: &Instruction) -> u32 {
        let host = self.writer.emitter.here();
        let offset = instruction.ip().wrapping_sub(self.source.linear) as u16;
        let operand = Operand::of(instruction, self.writer.is_far);
        self.sites.push(Site { host, offset, before: self.sites.len() as u16, operand });
        host
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
        let number = self.source.first_exit + self.exits.len();
        self.exits.push(exit);
        self.writer.leave(reason::EXITS + number as u32);
    }

    /// Ends the block with a branch. Returns false if it is left to the interpreter; the caller then throws away
    /// what was written.
    fn ending(&mut self, branch: &Instruction) -> bool {
        let next = branch.next_ip();
        let is_near = branch.op0_kind() == OpKind::NearBranch64;
        if is_near && !is_canonical(branch.near_branch_target()) {
            return false;
        }
        let target = branch.near_branch_target();
        self.may_loop = self.source.changing.is_none()
            && matches!(
                branch.flow_control(),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            );
        let site = self.begin_site(branch);
        match branch.code() {
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => self.go_to(target),
            Code::Call_rel32_64 => self.call(target, next),
            Code::Call_rm64 => {
                if !copy::load_target(&mut self.writer, branch) {
                    return false;
                }
                self.look_up(site);
                self.call_r11(next);
            }
            Code::Jmp_rm64 => {
                if !copy::load_target(&mut self.writer, branch) {
                    return false;
                }
                self.look_up(site);
                self.writer.jump_to_r11();
            }
            Code::Retnq | Code::Retnq_imm16 => {
                let more = if branch.code() == Code::Retnq { 0 } else { branch.immediate16() };
                let bytes = 8 + i64::from(more);
                let top = self.writer.checked(Register::R8, 0, Register::R11);
                self.writer.load(Register::R10, top);
                let differs = self.writer.return_to_landing(bytes);
                self.later.push((differs, Later::Elsewhere(site, bytes)));
            }
            _ if system::ends_block(branch) => {
                if !system::translate(&mut self.writer, branch) {
                    return false;
                }
                self.go_to(next);
            }
            Code::Syscall | Code::Sysretq => {
                return system::translate_call(&mut self.writer, branch);
            }
            code => {
                let taken = match code {
                    Code::Loopne_rel8_64_RCX => self.writer.loop_if(0xe0),
                    Code::Loope_rel8_64_RCX => self.writer.loop_if(0xe1),
                    Code::Loop_rel8_64_RCX => self.writer.loop_if(0xe2),
                    Code::Jrcxz_rel8_64 => self.writer.loop_if(0xe3),
                    _ if branch.is_jcc_short_or_near() && is_near => {
                        self.writer.emitter.jump_if(condition(branch))
                    }
                    _ => return false,
                };
                self.follow(branch);
                self.lead(taken, target);
                self.go_to(next);
            }
        }
        true
    }

    /// Calls `target`, to return to `next`.
    fn call(&mut self, target: u64, next: u64) {
        let slot = if self.is_in_page(target) {
            None
        } else {
            self.slots.find_or_add(target, self.source.is_user)
        };
        // A call of the next instruction only pushes its address, and no RET returns there.
        let is_call = target != next && (slot.is_some() || self.is_in_page(target));
        if is_call {
            self.writer.check_room(Register::R11);
        }
        let below = self.writer.checked(Register::R8, -8, Register::R11);
        self.writer.store_number(below, next, Register::R10);
        self.writer.move_stack(-8);
        if !is_call {
            return self.go_to(target);
        }
        self.writer.push_return(next, Register::R10);
        if let Some(slot) = slot {
            self.writer.call_by_slot(target, slot);
        } else {
            let call = self.writer.emitter.plain_call();
            self.lead(call, target);
        }
        self.go_to(next);
    }

    /// Calls the code at the host address in R11, to return to `next`.
    fn call_r11(&mut self, next: u64) {
        let writer = &mut self.writer;
        let is_far = writer.is_far;
        writer.check_room(Register::R10);
        if is_far {
            writer.store(writer.field(at::CALLEE), Register::R11);
        }
        let below = writer.checked(Register::R8, -8, Register::R10);
        let number = if is_far { Register::R11 } else { Register::R10 };
        writer.store_number(below, next, number);
        writer.move_stack(-8);
        writer.push_return(next, number);
        let call = if is_far {
            Instruction::with1(Code::Call_rm64, writer.field(at::CALLEE))
        } else {
            Instruction::with1(Code::Call_rm64, Register::R11)
        };
        writer.emitter.instruction(call);
        self.go_to(next);
    }

    /// Loads R11 with the code for the target in R10 of the branch at `site`.
    fn look_up(&mut self, site: u32) {
        let missed = self.writer.look_up();
        self.later.push((missed, Later::Missed(site)));
    }

    /// Returns whether `target` is in the page of the block.
    fn is_in_page(&self, target: u64) -> bool {
        target & !0xfff == self.source.linear & !0xfff
    }

    /// Makes `branch` lead to `target`.
    fn lead(&mut self, branch: Branch, target: u64) {
        if self.may_loop && target == self.source.linear && self.source.crosses_to.is_none() {
            let facts = &self.writer.facts;
            let is_known = facts.still_at_head(self.at_head).len() == self.at_head.len();
            let to = if is_known { self.begin } else { self.host };
            self.at_end = Some(facts.clone());
            self.writer.emitter.lead(branch, to);
            return;
        }
        let entry = self.is_in_page(target).then(|| (self.entry_of)(target)).flatten();
        match entry {
            Some(entry) => self.writer.emitter.lead(branch, entry),
            None => self.later.push((branch, Later::To(target))),
        }
    }

    /// Continues at `target`.
    fn go_to(&mut self, target: u64) {
        if self.is_in_page(target) {
            let branch = self.writer.emitter.jump();
            self.lead(branch, target);
        } else {
            self.go_to_other_page(target);
        }
    }

    /// Continues at `target`, in another page.
    fn go_to_other_page(&mut self, target: u64) {
        if let Some(slot) = self.slots.find_or_add(target, self.source.is_user) {
            self.writer.jump_by_slot(target, slot);
        } else {
            self.writer.load_number(Register::R10, target);
            self.writer.leave_to_look_up();
        }
    }

    /// Writes what branches lead to that have no target yet.
    fn finish_later(&mut self) {
        while !self.later.is_empty() {
            for (branch, later) in std::mem::take(&mut self.later) {
                self.finish(branch, later);
            }
        }
    }

    /// Writes what `branch` leads to.
    fn finish(&mut self, branch: Branch, later: Later) {
        self.writer.emitter.land(branch);
        match later {
            Later::Elsewhere(site, bytes) => {
                self.writer.forget_call();
                self.look_up(site);
                self.writer.move_stack(bytes);
                self.writer.jump_to_r11();
            }
            Later::To(rip) if self.is_in_page(rip) => self.leave(Exit::Link { branch, rip }),
            Later::To(rip) => self.go_to_other_page(rip),
            Later::Missed(site) => {
                self.writer.restore_rcx();
                self.writer.note_target();
                self.leave(Exit::Missed { site });
            }
        }
    }
}
