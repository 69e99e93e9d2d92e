//! String instructions of 64-bit code: MOVS, CMPS, STOS, LODS and SCAS, alone or repeated.
//!
//! They are the host's. While such an instruction runs, RSI and RDI are host addresses: their distances, which are
//! found as at [far sites](crate::long::far_sites), are added before and subtracted after. So a copy between memory of
//! the supervisor and of users has no other form. With 32-bit addresses, or a source in FS or GS, they are left to the
//! interpreter.
//!
//! The first element is in a unit that is owned, or its access faults. From there on elements lie side by side, so
//! with either value of DF a *walk* reaches the next unit, which the same address space owns at the same distance, or
//! faults at the edge of a guard ([`units`](crate::memory::units)). No count leads beyond.
//!
//! Each iteration counts as one instruction. A repeated instruction subtracts those of its count, but for the one that
//! the block has subtracted, from the budget before it begins. Where it ends early, it gives the rest back: CMPS and
//! SCAS when they end, and all when they fault. Then RCX has the rest of the count, and the host's RSI and RDI are
//! turned back.
//!
//! If the deadline comes before the last iteration, all but a few of those before it are executed as a *part*: RCX has
//! fewer, and what is read behind the instruction faults.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::flags::Eflags;
use ring3_x86::paging::Access;

use super::{Long, Next, Outcome, Resumed, go_on, leave};
use crate::budget;
use crate::code::strings::{Form, compares, repeat_prefix, used};
use crate::long::context::{LongContext, at};
use crate::long::writer::{JRCXZ, Writer};

/// log2 of the counts from which on an instruction is executed in parts.
const COUNT_BITS: u64 = 24;
/// Least number of iterations that are worth a part.
const LEAST_PART: u64 = 4096;

const _: () = assert!(1 << COUNT_BITS <= budget::LONGEST, "a part fits the budget");

/// The host code of a string instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// The host addresses where it begins and ends.
    begin: u32,
    end: u32,
    /// The host address from which on its iterations are subtracted from the budget, if it is repeated.
    counted: Option<u32>,
    /// The host address of the string instruction.
    at: u32,
    source: bool,
    destination: bool,
    compares: bool,
    /// Bytes of an element.
    size: u32,
}

impl Walk {
    /// Returns whether its host code contains the address `host`.
    pub(crate) fn contains(&self, host: u32) -> bool {
        (self.begin..self.end).contains(&host)
    }

    /// Returns whether it is repeated, so that its iterations are subtracted from the budget.
    pub(crate) fn is_repeated(&self) -> bool {
        self.counted.is_some()
    }

    /// Returns whether its iterations have been subtracted from the budget at the host address `host` in it.
    fn is_counted_at(&self, host: u32) -> bool {
        self.counted.is_some_and(|counted| host >= counted)
    }
}

/// What is known of an instruction before which RF was set, which is executed with RF clear.
#[derive(Debug)]
pub(super) struct Resumption {
    rip: u64,
    /// The count of instructions, and RCX.
    instructions: u64,
    count: u64,
}

impl Resumption {
    /// Returns that of the next instruction of `cpu`.
    pub(super) fn of(cpu: &Cpu) -> Resumption {
        Resumption { rip: cpu.ip, instructions: cpu.instructions, count: cpu.gpr(reg::CX) }
    }

    /// Returns whether the instruction has not completed, so that RF is set still.
    pub(super) fn lasts(&self, cpu: &Cpu) -> bool {
        self.instructions == cpu.instructions
    }

    /// Notes that a repeated instruction at `rip` has `count` iterations left after so many `instructions`.
    fn note(&mut self, rip: u64, instructions: u64, count: u64) {
        let executed = instructions.wrapping_sub(self.instructions);
        // Nothing but its iterations was executed.
        if rip == self.rip && executed == self.count.wrapping_sub(count) {
            (self.instructions, self.count) = (instructions, count);
        }
    }
}

/// Translates `instruction`, a string instruction. Returns None if it is left to the interpreter; the caller then throws
/// away what was written.
pub(crate) fn translate(writer: &mut Writer, instruction: &Instruction) -> Option<Walk> {
    let form = Form::of(instruction)?;
    let Form { source, destination, .. } = form;
    let has_long_addresses = instruction
        .op_kinds()
        .all(|kind| matches!(kind, OpKind::Register | OpKind::MemorySegRSI | OpKind::MemoryESRDI));
    let has_base = matches!(instruction.memory_segment(), Register::FS | Register::GS);
    if !has_long_addresses || source && has_base {
        return None;
    }
    let begin = writer.emitter.here();
    let repeat = repeat_prefix(instruction);
    // A count of 0 executes no iteration, but counts as one instruction.
    let skip = repeat.map(|_| writer.loop_if(JRCXZ));
    let counted = repeat.map(|_| count_iterations(writer));
    let compares = compares(instruction);
    if counted.is_some() && compares {
        writer.store(writer.field(at::SAVED_RCX), Register::RCX);
    }
    for register in used(source, destination) {
        writer.find_distance(register, distance_of(register));
    }
    for register in used(source, destination) {
        writer.add_registers(register, register, distance_of(register));
    }
    let at = writer.emitter.here();
    writer.emitter.bytes(&form.bytes(repeat));
    for register in used(source, destination) {
        let distance = distance_of(register);
        // NOT gives the negative less 1.
        writer.emitter.instruction(Instruction::with1(Code::Not_rm64, distance));
        writer.add_sum(register, register, distance, 1);
    }
    if let Some(skip) = skip {
        if compares {
            writer.add_registers(Register::R9, Register::R9, Register::RCX);
        } else {
            writer.load(Register::R10, writer.field(at::AFTER_REPEATING));
            let there = MemoryOperand::with_base(Register::R10);
            let read = Instruction::with2(Code::Movzx_r32_rm8, Register::R10D, there);
            writer.emitter.instruction(read);
        }
        writer.emitter.land(skip);
    }
    let end = writer.emitter.here();
    Some(Walk { begin, end, counted, at, source, destination, compares, size: form.size })
}

/// Returns the register for the distance of the address in `register`, RSI or RDI.
fn distance_of(register: Register) -> Register {
    if register == Register::RSI { Register::R10 } else { Register::R11 }
}

/// Subtracts the iterations that RCX counts, but for one, from the budget, and faults if it is spent; asks the engine if
/// there are too many. Returns the host address from which on they are subtracted. Uses R10 and R11.
fn count_iterations(writer: &mut Writer) -> u32 {
    let copy = |to, from| Instruction::with2(Code::Mov_r64_rm64, to, from);
    writer.emitter.instruction(copy(Register::R10, Register::RCX));
    writer.load_number(Register::R11, COUNT_BITS);
    let (rcx, r11) = (Register::RCX, Register::R11);
    writer.emitter.instruction(Instruction::with3(Code::VEX_Shrx_r64_rm64_r64, rcx, rcx, r11));
    let is_small = writer.loop_if(JRCXZ);
    writer.emitter.instruction(copy(Register::RCX, Register::R10));
    writer.call(at::ASK_INTERPRETER);
    writer.emitter.land(is_small);
    writer.emitter.instruction(copy(Register::RCX, Register::R10));
    // NOT gives the negative less 1.
    writer.emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R10));
    writer.add_sum(Register::R9, Register::R9, Register::R10, 2);
    let counted = writer.emitter.here();
    let there = MemoryOperand::with_base(Register::R9);
    writer.emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R11D, there));
    counted
}

impl LongContext {
    /// Turns the registers back by one more iteration, if any was executed since `walk`, which has met a fault, began.
    /// It is executed again for its flags: some processors restore those before the instruction (SDM vol. 2, REP).
    fn repeat_comparison(&mut self, walk: &Walk) {
        let count = &mut self.gpr[usize::from(reg::CX)];
        if *count == self.saved_rcx {
            return;
        }
        *count = count.wrapping_add(1);
        let goes_down = self.flags & u64::from(Eflags::DF.bits()) != 0;
        let back = if goes_down { walk.size.into() } else { u64::from(walk.size).wrapping_neg() };
        for (is_used, register) in [(walk.source, reg::SI), (walk.destination, reg::DI)] {
            if is_used {
                let address = &mut self.gpr[usize::from(register)];
                *address = address.wrapping_add(back);
            }
        }
    }
}

impl Long {
    /// Returns whether the access of `walk` to `linear`, which has faulted, may come first. The host accesses the two
    /// elements of MOVS and CMPS in any order, the guest's processor the one at RSI first: that must have been read
    /// before, or the other one's page would be marked as accessed although the access to the first one faults.
    pub(super) fn may_access(
        &mut self,
        cpu: &Cpu,
        memory: &Memory,
        walk: &Walk,
        linear: u64,
    ) -> bool {
        if !walk.source || !walk.destination {
            return true;
        }
        let first = self.low.context().gpr[usize::from(reg::SI)];
        let pages = [first, first.wrapping_add(u64::from(walk.size) - 1)].map(|at| at & !0xfff);
        let is_known =
            |page| cpu.page_in_advance(memory, page, Access::Read, cpu.is_user()).is_some();
        pages.contains(&(linear & !0xfff)) || pages.into_iter().all(is_known)
    }

    /// Restores the guest's registers after translated code was left at the host address `left_at` in `walk`, and counts
    /// its iterations.
    pub(super) fn turn_back(&mut self, cpu: &mut Cpu, walk: &Walk, left_at: u32) {
        let put_off = std::mem::take(&mut self.put_off);
        let context = self.low.context();
        if left_at == walk.at {
            let distances = context.scratch;
            for (is_used, register, distance) in
                [(walk.source, reg::SI, distances[0]), (walk.destination, reg::DI, distances[1])]
            {
                if is_used {
                    let address = &mut context.gpr[usize::from(register)];
                    *address = address.wrapping_sub(distance);
                }
            }
            if walk.compares && walk.counted.is_some() {
                context.repeat_comparison(walk);
            }
        }
        let count = &mut context.gpr[usize::from(reg::CX)];
        if walk.is_counted_at(left_at) {
            cpu.instructions = cpu.instructions.wrapping_sub(*count).wrapping_add(1);
            *count += put_off;
            if let Some(resumption) = &mut self.resumption {
                resumption.note(context.rip, cpu.instructions, *count);
            }
        }
    }

    /// Goes on with `walk`, whose registers were turned back, at the site that `at` leads to, as [`go_on`] does: with
    /// as many iterations as the deadline allows.
    pub(super) fn walk_on(
        &mut self,
        cpu: &Cpu,
        walk: &Walk,
        (at, rest): (Resumed, u16),
        deadline: u64,
    ) -> Outcome {
        let count = self.low.context().gpr[usize::from(reg::CX)];
        let allowed = (deadline - cpu.instructions).min(budget::LONGEST);
        let most = (allowed + 1).saturating_sub(rest.into()).min((1 << COUNT_BITS) - 1);
        if walk.counted.is_none() || count <= most {
            return go_on((at, rest), cpu, deadline);
        }
        // The end of CMPS and SCAS is not known before.
        if walk.compares || most < LEAST_PART {
            return leave(Next::Step);
        }
        Outcome::Again(Resumed { part: Some(most), ..at })
    }
}
