//! Translates guest code to host code, a block at a time.
//!
//! A block ends where control goes elsewhere, before an instruction that the interpreter must execute, and at
//! the end of its page. Branches forward may leave it before its end, or [join](joins) it further on. It
//! continues after calls, and contains a short loop several times; after a longer one it continues. Each instruction is one *site*: where its host code begins, the
//! guest's state is exactly that before the instruction. Nothing of that state changes before the last host
//! instruction of a site that can fault, so an instruction that faults can always be executed again.

pub(crate) mod branches;
mod counts;
mod divisions;
mod exceptions;
mod far;
mod far_flat;
#[cfg(test)]
pub(crate) mod golden;
mod joins;
mod links;
mod numeric_errors;
mod quiet;
mod segmented_branches;
mod site;
mod source;
mod transfers;
mod virtual_8086;
mod walk;

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use ring3_x86::cpu::reg;
use ring3_x86::decode::{self, Op};

use crate::access::{self, DeviceAccess};
use crate::code::branch_slots::BranchSlots;
use crate::code::changing::{self, Contents};
use crate::code::copy::{self, address, plain_address};
use crate::code::counters::Counted;
use crate::code::emitter::{Branch, Emitter};
use crate::code::flags;
use crate::code::frames;
use crate::code::parts::Parts;
use crate::code::segments;
use crate::code::strings;
use crate::context::{at, info};
use crate::mode::{Loading, Mode, ModeNumber, Segmented};
use crate::numeric::{self, Checked};
use crate::segmented;
use crate::system::{self, System};
use joins::Forward;
use links::Later;
pub(crate) use site::{Operand, Site};
pub(crate) use source::{ChangingSource, Second, Source, crosses};
use walk::End;
pub(crate) use walk::MAX_INSTRUCTIONS;

/// Clears the offset in a page of the guest.
const PAGE_MASK: u32 = !0xfff;

/// A translated block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The linear address of its first instruction.
    pub(crate) linear: u32,
    /// The address of its first instruction in CS; in flat code it is the linear address.
    pub(crate) eip: u32,
    /// The place of its first instruction in guest memory.
    pub(crate) place: usize,
    /// The mode of its code.
    pub(crate) mode: ModeNumber,
    /// Whether it is user code.
    pub(crate) is_user: bool,
    /// The host address of its code, for branches that need no check of the address or of the bytes.
    pub(crate) entry: u32,
    /// The host address at which direct branches from the same page enter it. For a block that is made from
    /// two pages it is code that goes by the jump table, which is up to date with both pages.
    pub(crate) linked_entry: u32,
    /// The host address at which indirect branches enter it, with their target in R8D.
    pub(crate) checked_entry: u32,
    /// The slot for direct branches to it, if there is one.
    pub(crate) slot: Option<u32>,
    /// The number of bytes of guest code that it is made from.
    pub(crate) bytes: u16,
    /// The guest code in another page that it is made from.
    pub(crate) second: Option<Second>,
    /// The bytes that it was made from, if its page keeps changing: it compares them with memory whenever it
    /// is entered.
    pub(crate) contents: Option<Contents>,
    /// How many instructions it has. Its entry checks that the budget is sufficient for them.
    pub(crate) instructions: u16,
    /// The sites of its instructions, in order.
    pub(crate) sites: Vec<Site>,
    /// The forms of its instructions, and its counters, if instructions are counted.
    pub(crate) counted: Option<Box<Counted>>,
}

/// Translates the block at `source` into host code for address `host`. `entry_of` returns the entry of a
/// block in the same page, if there is one. Returns the block, its code, and the instructions that it may
/// leave to the interpreter.
pub(crate) fn translate(
    source: &Source,
    host: u32,
    branch_slots: &mut BranchSlots,
    entry_of: impl Fn(u32) -> Option<u32>,
) -> (Block, Vec<u8>, Vec<DeferredOp>) {
    let (number, mode) = source.mode;
    let linear = mode.linear(source.eip);
    let slot = branch_slots.find(linear).filter(|_| mode.segmented.is_none());
    let mut builder = BlockBuilder {
        emitter: Emitter::new(host),
        branch_slots,
        eip: source.eip,
        mode,
        sites: Vec::new(),
        later: Vec::new(),
        entry: 0,
        checked: Checked::Nothing,
        is_changing: source.changing.is_some(),
        instructions: 0,
        second: source.crossing,
        variable: Vec::new(),
        parts: Parts::default(),
        forward: Vec::new(),
        is_landing: false,
        is_join: false,
        leaving: Vec::new(),
        round: None,
        deferred: Vec::new(),
        counted: source.counters.map(|first| Box::new(Counted::new(first))),
    };
    let checked_entry = builder.emitter.check_target(source.eip);
    let to_check = source.changing.map(|_| builder.emitter.jump());
    builder.entry = builder.emitter.here();
    builder.begin_count();
    builder.begin_check();
    let mut deferred_bytes = 0;
    // The address after the last byte that belongs to the block.
    let end = match builder.instructions(source, &entry_of) {
        End::Branch(branch) => {
            builder.settle_for_branch(&branch);
            builder.begin_site(&branch);
            if builder.is_far(&branch) {
                let number = builder.defer(&branch, source);
                if let Some(site) = builder.sites.last_mut() {
                    site.transfer = Some(number);
                }
            }
            builder.end_count();
            match mode.segmented {
                None => builder.ending(&branch, &entry_of),
                Some(segmented) => builder.segmented_ending(&branch, &segmented, &entry_of),
            }
            branch.next_ip32()
        }
        End::NextBlock(end) => {
            builder.emitter.settle_stack();
            builder.go_to(end, &entry_of);
            end
        }
        End::Interpreter(instruction, info, routine) => {
            deferred_bytes = instruction.len();
            builder.emitter.settle_stack();
            if routine != at::LEAVE_TO_STEP {
                // The routine may execute the instruction after all.
                builder.begin_site(&instruction);
            }
            let info = info | builder.defer(&instruction, source) << info::OP_SHIFT;
            builder.emitter.leave(routine, instruction.ip32(), info);
            instruction.ip32()
        }
        End::Transfer(instruction, info) => {
            deferred_bytes = instruction.len();
            builder.emitter.settle_stack();
            builder.begin_site(&instruction);
            let info = info | builder.defer(&instruction, source) << info::OP_SHIFT;
            transfers::translate(&mut builder.emitter, &instruction, mode.is_user, info);
            instruction.ip32()
        }
        End::Division(instruction, info) => {
            deferred_bytes = instruction.len();
            builder.emitter.settle_stack();
            builder.begin_site(&instruction);
            let info = info | builder.defer(&instruction, source) << info::OP_SHIFT;
            divisions::translate(&mut builder.emitter, &instruction, mode.is_user, info);
            instruction.ip32()
        }
    };
    builder.set_counts();
    builder.finish_later(&entry_of);
    let bytes = end.wrapping_sub(source.eip) as u16;
    let contents = source.changing.map(|code| {
        let made_from = &source.bytes[..usize::from(bytes) + deferred_bytes];
        let contents = Contents::new(made_from, std::mem::take(&mut builder.variable));
        builder.check_contents(&contents, code.host);
        contents
    });
    if let Some(branch) = to_check {
        builder.emitter.lead(branch, builder.entry);
    }
    let mut linked_entry = builder.entry;
    if builder.second.is_some() {
        linked_entry = builder.emitter.here();
        builder.jump_to_other_page(source.eip);
    }
    let block = Block {
        linear,
        eip: source.eip,
        place: source.place,
        mode: number,
        is_user: mode.is_user,
        entry: builder.entry,
        linked_entry,
        checked_entry,
        slot,
        bytes,
        second: builder.second,
        contents,
        instructions: builder.instructions,
        sites: builder.sites,
        counted: builder.counted,
    };
    (block, builder.emitter.finish(), builder.deferred)
}

/// An instruction that a block leaves, or may leave, to the interpreter.
#[derive(Debug)]
pub(crate) struct DeferredOp {
    pub(crate) op: Op,
    /// The access that the instruction makes, if it can be one to a device.
    pub(crate) access: Option<DeviceAccess>,
    /// Whether it [may be executed](access::reads_register) with the known value of a device register.
    pub(crate) reads_register: bool,
    /// Whether it is POPF or IRET, which may set TF.
    pub(crate) loads_flags: bool,
    /// The kind of the instruction, if it is a system instruction that is executed while translated code
    /// waits.
    pub(crate) system: Option<System>,
    /// The number of the segment register that it loads by a descriptor, if it does.
    pub(crate) loads: Option<u8>,
    /// Bytes of the instruction.
    pub(crate) len: u8,
}

/// A block that is being made.
struct BlockBuilder<'a> {
    emitter: Emitter,
    branch_slots: &'a mut BranchSlots,
    /// The address in CS of the first instruction.
    eip: u32,
    mode: Mode,
    sites: Vec<Site>,
    later: Vec<Later>,
    entry: u32,
    /// The checks of the numeric registers that the block has made so far.
    checked: Checked,
    /// Whether its page keeps changing.
    is_changing: bool,
    /// Number of instructions in `sites`.
    instructions: u16,
    /// The guest code in another page that it is made from.
    second: Option<Second>,
    /// Offsets, from the block's first byte, of the ends of immediate operands that are read from memory.
    variable: Vec<usize>,
    /// The parts so far.
    parts: Parts,
    /// Branches forward, in the order of their code.
    forward: Vec<Forward>,
    /// Whether the next instruction is one to which a call returns.
    is_landing: bool,
    /// Whether branches of the block lead to the next instruction.
    is_join: bool,
    /// Branches out of the loop that the block is: each with its target and the index of its site. The
    /// instructions after the branch, which were subtracted from the budget, are given back when it is taken.
    leaving: Vec<(Branch, u32, usize)>,
    /// The number of instructions in a round of that loop.
    round: Option<u16>,
    /// The instructions that may be left to the interpreter.
    deferred: Vec<DeferredOp>,
    /// The forms of the instructions and the block's counters, if instructions are counted.
    counted: Option<Box<Counted>>,
}

impl BlockBuilder<'_> {
    /// Translates an instruction after which the next one follows. Returns false if it is left to the
    /// interpreter; the caller then throws away what was written.
    fn plain(&mut self, instruction: &Instruction, source: &Source) -> bool {
        if copy::needs_stack_pointer(instruction) {
            self.emitter.settle_stack();
        }
        self.begin_site(instruction);
        if self.loads(instruction).is_some() || instruction.code() == Code::Popfd {
            self.note_deferred(instruction, source);
        }
        let linear = self.mode.linear(instruction.ip32());
        let for_user = !self.mode.is_user && source.for_user.contains(&linear);
        self.reads_its_immediate(instruction, source)
            || self.reads_device(instruction, source)
            || self.body(instruction, for_user)
    }

    /// Translates a system instruction, which the engine executes while translated code waits. Returns false
    /// for all other instructions, and then writes nothing.
    fn waits_for_engine(&mut self, instruction: &Instruction, source: &Source) -> bool {
        let Some(system) = System::of(instruction, &self.mode) else { return false };
        self.emitter.settle_stack();
        // The engine computes the time from the budget, so nothing may be subtracted yet for the instructions
        // that follow.
        self.begin_site(instruction);
        self.end_count();
        let number = self.defer(instruction, source);
        let linear = self.mode.linear(instruction.ip32());
        let is_plain = self.mode.segmented.is_none() && !source.for_user.contains(&linear);
        system::call(&mut self.emitter, instruction, self.mode.is_user, is_plain, number);
        if system == System::Control {
            self.checked = Checked::Nothing;
        }
        self.begin_count();
        true
    }

    /// Returns whether the engine makes the access of `instruction`, which follows `last`, while translated
    /// code waits. The instruction makes one access to a device, and nothing else. If it accesses memory, it
    /// has gone to the interpreter again and again.
    ///
    /// If the engine cannot make the access, it must be told of a STI just before, so that it holds
    /// interrupts.
    fn accesses_device(
        &self,
        instruction: &Instruction,
        last: Option<&Instruction>,
        source: &Source,
    ) -> bool {
        let linear = self.mode.linear(instruction.ip32());
        let is_one = |access: DeviceAccess| access.is_to_port() || source.barred.contains(&linear);
        DeviceAccess::of(instruction, &self.mode).is_some_and(is_one)
            && !source.has_breakpoint(linear)
            && decode::exists(instruction, source.model)
            && !last.is_some_and(walk::holds_interrupts)
    }

    /// Translates such an instruction.
    fn access_device(&mut self, instruction: &Instruction, source: &Source) {
        self.emitter.settle_stack();
        // The engine computes the time from the budget, so nothing may be subtracted yet for the instructions
        // that follow.
        self.begin_site(instruction);
        self.end_count();
        let number = self.defer(instruction, source);
        if let Some(site) = self.sites.last_mut() {
            site.deferred = Some(number);
            site.accesses_device = true;
        }
        let access = DeviceAccess::of(instruction, &self.mode);
        if let Some(access) =
            access.filter(|access| access.reads_byte() && !access.needs_permission())
        {
            if let Some(port) = access.port() {
                self.emitter.load_number(Register::R8D, port.into());
            } else {
                let to_r8 = Instruction::with2(Code::Movzx_r32_rm16, Register::R8D, Register::DX);
                self.emitter.instruction(to_r8);
            }
            self.emitter.load_number(Register::R9D, number);
            self.emitter.call(at::READ_PORT);
            let value = MemoryOperand::with_base_displ(Register::R14, at::DEVICE_VALUE.into());
            let load = Instruction::with2(Code::Mov_r8_rm8, Register::AL, value);
            self.emitter.instruction(load);
        } else {
            self.emitter.load_number(Register::R8D, number);
            self.emitter.call(at::ACCESS_DEVICE);
        }
        if let Some(access) = access.filter(DeviceAccess::may_fault) {
            // The routine skips the jump if the access faults.
            let done = self.emitter.unaligned_jump();
            self.raise_for_access(instruction, access, number);
            self.emitter.land(done);
        }
        self.begin_count();
    }

    /// Raises the exception of `instruction`, whose `access` is refused by the I/O permission bit map or by the
    /// page tables. `number` is its index in the list of instructions that blocks leave to the interpreter.
    fn raise_for_access(&mut self, instruction: &Instruction, access: DeviceAccess, number: u32) {
        let info = info::TRANSFERS | number << info::OP_SHIFT;
        let eip = instruction.ip32();
        match self.mode.segmented {
            None => {
                let raised = if access.is_to_port() {
                    exceptions::refused_port()
                } else {
                    exceptions::page_fault(access.is_user)
                };
                transfers::raise(&mut self.emitter, eip, access.is_user, &raised, info);
            }
            Some(segmented) if segmented.loading != Loading::Protected => {
                self.call_monitor(instruction, &segmented);
            }
            Some(_) => self.emitter.leave(at::LEAVE_TO_CALL, eip, info),
        }
    }

    /// Returns whether `instruction`, which follows `last`, is a load of a segment register, in flat code, that
    /// has raised exceptions again and again.
    fn is_refused_load(
        &self,
        instruction: &Instruction,
        last: Option<&Instruction>,
        source: &Source,
    ) -> bool {
        let linear = self.mode.linear(instruction.ip32());
        self.mode.segmented.is_none()
            && source.refused_loads.contains(&linear)
            // There may be other code by now.
            && segments::loads(instruction).is_some()
            && !source.for_user.contains(&linear)
            && !last.is_some_and(walk::holds_interrupts)
    }

    /// Translates such an instruction. The engine looks whether the load is refused while translated code waits,
    /// and then translated code raises #GP. Returns false if it cannot be translated so. The caller then throws
    /// away what was written.
    fn load_after_check(&mut self, instruction: &Instruction, source: &Source) -> bool {
        self.emitter.settle_stack();
        self.begin_site(instruction);
        self.end_count();
        if !segments::load_selector(&mut self.emitter, instruction) {
            return false;
        }
        let number = self.defer(instruction, source);
        if let Some(site) = self.sites.last_mut() {
            site.deferred = Some(number);
        }
        let selector = MemoryOperand::with_base_displ(Register::R14, at::SELECTOR.into());
        self.emitter.store(selector, Register::R8D);
        self.emitter.load_number(Register::R8D, number);
        self.emitter.call(at::ACCESS_DEVICE);
        // The routine skips the jump if the load is refused.
        let allowed = self.emitter.unaligned_jump();
        let error = exceptions::refused_load(self.mode.is_user);
        let info = info::TRANSFERS | number << info::OP_SHIFT;
        let eip = instruction.ip32();
        transfers::raise(&mut self.emitter, eip, self.mode.is_user, &error, info);
        self.emitter.land(allowed);
        let is_translated = segments::translate(&mut self.emitter, instruction, self.mode.is_user);
        self.begin_count();
        is_translated
    }

    /// Translates an instruction that reads a device register whose value is mostly known. Returns false for
    /// all other instructions, and then writes nothing.
    fn reads_device(&mut self, instruction: &Instruction, source: &Source) -> bool {
        let linear = self.mode.linear(instruction.ip32());
        let is_one = source.device_reads.contains(&linear)
            && access::reads_register(instruction, &self.mode);
        if !is_one {
            return false;
        }
        self.note_deferred(instruction, source);
        if let Some(site) = self.sites.last_mut() {
            site.reads_device = true;
        }
        copy::load_address(&mut self.emitter, instruction);
        self.emitter.call(at::READ_DEVICE);
        let value = MemoryOperand::with_base_displ(Register::R14, at::DEVICE_VALUE.into());
        copy::translate_with(&mut self.emitter, instruction, |_| Some(value))
    }

    /// Translates a call after which the block continues.
    fn call_and_go_on(&mut self, call: &Instruction, entry_of: &impl Fn(u32) -> Option<u32>) {
        self.settle_for_branch(call);
        self.begin_site(call);
        self.end_count();
        self.make_call(call, entry_of);
        // The function may have executed any number of instructions, and the numeric registers may have been
        // saved.
        self.is_landing = true;
        self.checked = Checked::Nothing;
    }

    /// Notes that a routine which `instruction` calls may leave it to the interpreter. The site of
    /// `instruction` must have begun.
    fn note_deferred(&mut self, instruction: &Instruction, source: &Source) {
        let number = self.defer(instruction, source);
        if let Some(site) = self.sites.last_mut() {
            site.deferred = Some(number);
        }
    }

    /// Adds `instruction` to the list of instructions that may be left to the interpreter. Returns its index.
    fn defer(&mut self, instruction: &Instruction, source: &Source) -> u32 {
        let op = decode::to_op(instruction, self.mode.code_mode(), source.model);
        let op = op.at_offset((self.mode.linear(instruction.ip32()) & !PAGE_MASK) as u16);
        let access = DeviceAccess::of(instruction, &self.mode);
        let reads_register = access::reads_register(instruction, &self.mode);
        let system = System::of(instruction, &self.mode);
        let loads_flags = matches!(
            instruction.mnemonic(),
            Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Iret | Mnemonic::Iretd
        );
        let loads = self.loads(instruction);
        let len = instruction.len() as u8;
        let deferred = DeferredOp { op, access, reads_register, loads_flags, system, loads, len };
        self.deferred.push(deferred);
        source.next_op + self.deferred.len() as u32 - 1
    }

    /// Returns the number of the segment register that `instruction` loads, if translated code may load it by
    /// a descriptor in this mode.
    fn loads(&self, instruction: &Instruction) -> Option<u8> {
        let is_protected = |segmented: Segmented| segmented.loading == Loading::Protected;
        segments::loads(instruction).filter(|_| self.mode.segmented.is_none_or(is_protected))
    }

    /// Returns whether `instruction` is a far transfer that is translated, or INT n or IRET of segmented
    /// code.
    fn is_far(&self, instruction: &Instruction) -> bool {
        match &self.mode.segmented {
            None => far_flat::is_translated(instruction),
            Some(segmented) => far::is_translated(instruction, &self.mode, segmented),
        }
    }

    /// Translates an instruction that reads its immediate operand from memory, since the operand keeps
    /// changing. Returns false for all other instructions, and then writes nothing.
    fn reads_its_immediate(&mut self, instruction: &Instruction, source: &Source) -> bool {
        let Some(code) = source.changing else { return false };
        let offset = instruction.ip32().wrapping_sub(self.eip) as usize;
        if !code.immediates.contains(&(source.place + offset))
            || !changing::has_immediate(instruction)
        {
            return false;
        }
        let end = offset + instruction.len();
        self.variable.push(end);
        let register = copy::rename(instruction.op0_register());
        self.emitter.load_from(register, code.host + end as u64 - u64::from(u32::BITS / 8));
        true
    }

    /// Makes the entry of the block compare its contents with memory before its code runs.
    fn check_contents(&mut self, contents: &Contents, host: u64) {
        let begin = std::mem::replace(&mut self.entry, self.emitter.here());
        contents.check(&mut self.emitter, host, begin);
        let changed = self.emitter.jump();
        self.emitter.land(changed);
        self.emitter.leave_to_link(changed, self.eip);
    }

    /// Translates a call of a function that only loads a register with its return address;
    /// position-independent code begins most functions with one. Returns false for all other instructions,
    /// and then writes nothing.
    fn reads_its_address(&mut self, call: &Instruction, source: &Source) -> bool {
        let target = call.near_branch32();
        let is_call = call.code() == Code::Call_rel32_32 && target != call.next_ip32();
        if !is_call || self.is_changing || self.mode.segmented.is_some() {
            return false;
        }
        let Some((place, bytes)) = (source.known_code)(target) else { return false };
        // MOV register, [ESP]; RET. They read what the call has just written, so neither of them faults.
        let &[0x8b, operands, 0x24, 0xc3, ..] = bytes else { return false };
        let register = operands >> 3;
        if operands & 0xc7 != 0x04 || register == reg::SP {
            return false;
        }
        let second = Second { linear: target, place, is_crossed_into: false };
        if self.is_in_page(target) || self.second.is_some_and(|known| known != second) {
            return false;
        }
        self.second = Some(second);
        self.begin_site(call);
        self.instructions += 2;
        self.note_form(Code::Mov_r32_rm32);
        self.note_form(Code::Retnd);
        self.emitter.store_number(self.emitter.top_of_stack(-4), call.next_ip32());
        self.emitter.load_number(Register::EAX + u32::from(register), call.next_ip32());
        true
    }

    /// Translates an instruction after which the next one follows, once its site has begun. Returns false if
    /// it is left to the interpreter.
    fn body(&mut self, instruction: &Instruction, for_user: bool) -> bool {
        if copy::does_nothing(instruction) {
            return true;
        }
        let emitter = &mut self.emitter;
        let segmented = self.mode.segmented.as_ref();
        if numeric::is_numeric(instruction) {
            let is_flat = segmented.is_none();
            let checked = &mut self.checked;
            return numeric::translate(emitter, instruction, checked, is_flat, |emitter| {
                if is_flat {
                    address(emitter, instruction)
                } else {
                    segmented::address(emitter, instruction)
                }
            });
        }
        if let Some(segmented) = segmented {
            return segmented::translate(emitter, instruction, &self.mode, segmented);
        }
        let is_user = self.mode.is_user;
        if instruction.is_string_instruction() {
            return strings::translate(emitter, instruction, for_user);
        }
        if for_user {
            return copy::translate_for_user(emitter, instruction);
        }
        match instruction.code() {
            Code::Push_r32 | Code::Push_rm32 if instruction.op0_kind() == OpKind::Register => {
                emitter.push(copy::rename(instruction.op0_register()));
            }
            Code::Pushd_imm8 | Code::Pushd_imm32 => {
                emitter.push_number(instruction.immediate(0) as u32);
            }
            Code::Push_rm32 => {
                let Some(from) = address(emitter, instruction) else { return false };
                emitter.load(Register::R8D, from);
                emitter.push(Register::R8D);
            }
            Code::Pop_r32 | Code::Pop_rm32 if instruction.op0_kind() == OpKind::Register => {
                let register = copy::rename(instruction.op0_register());
                emitter.load(register, emitter.top_of_stack(0));
                if register != Register::R15D {
                    emitter.move_stack(4);
                }
            }
            Code::Pop_rm32 => {
                // The address is computed with the incremented ESP (SDM vol. 2, POP).
                emitter.pop();
                let Some(to) = plain_address(emitter, instruction) else { return false };
                emitter.store(to, Register::R8D);
            }
            Code::Leaved => {
                let saved =
                    MemoryOperand::new(Register::EBP, Register::None, 1, 0, 0, false, Register::GS);
                emitter.load(Register::R8D, saved);
                emitter.set_stack(Register::RBP, 4);
                emitter.copy(Register::EBP, Register::R8D);
            }
            _ => {
                return flags::translate(emitter, instruction, is_user)
                    || segments::translate(emitter, instruction, is_user)
                    || !is_user && system::translate(emitter, instruction)
                    || frames::translate(emitter, instruction)
                    || copy::translate(emitter, instruction);
            }
        }
        true
    }
}

/// Returns whether `instruction` is a string instruction with a repeat prefix.
fn repeats(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}
