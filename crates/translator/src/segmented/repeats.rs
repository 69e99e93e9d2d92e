//! MOVS, CMPS, STOS, LODS and SCAS that are repeated, in segmented code: by the host's own, for which RSI and RDI become addresses in the
//! window, as in flat code ([`strings`](crate::strings)).
//!
//! What all iterations access is checked before the first one: that DF is clear, that no offset wraps, and that the last byte is
//! inside of the limit. Where it is not so, the instruction is left to the interpreter. A fault between two iterations finds in the context what makes the
//! guest's registers of the host's ([`Context::strings`](crate::context::Context::strings)).

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::decode::has_16_bit_addresses;
use ring3_x86::flags::Eflags;

use super::{Access, add, copy, field, sized, view, zero_extend};
use crate::context::at;
use crate::emitter::{Branch, Emitter};
use crate::strings::{Form, check_budget, check_end, compares, take_iterations};

/// Translates `instruction`, which the prefix `repeat` repeats. False, and nothing was written, if it is left to the interpreter.
pub(super) fn translate(emitter: &mut Emitter, instruction: &Instruction, repeat: u8) -> bool {
    let Some(form) = Form::of(instruction) else { return false };
    let compares = compares(instruction);
    let repeated = Repeated { size: form.size, is_16_bit: has_16_bit_addresses(instruction) };
    let source = Operand {
        register: Register::ESI,
        segment: instruction.memory_segment(),
        access: Access::Read,
        number: 1,
    };
    let destination = Operand {
        register: Register::EDI,
        segment: Register::ES,
        access: if compares { Access::Read } else { Access::Write },
        number: 2,
    };
    let operands: Vec<Operand> = [(form.source, source), (form.destination, destination)]
        .into_iter()
        .filter_map(|(is_used, operand)| is_used.then_some(operand))
        .collect();

    let skip = repeated.load_count(emitter);
    if compares && !repeated.is_16_bit {
        emitter.call(at::CHECK_COUNT);
    }
    check_budget(emitter, Register::R10);
    check_direction(emitter);
    for operand in &operands {
        repeated.check(emitter, operand);
    }
    // From here on only an iteration faults.
    for operand in &operands {
        repeated.begin(emitter, operand);
    }
    repeated.begin_count(emitter);
    emitter.bytes(&form.bytes(Some(repeat)));
    for operand in &operands {
        repeated.end(emitter, operand);
    }
    if !compares {
        check_end(emitter);
    }
    take_iterations(emitter);
    repeated.end_count(emitter);
    emitter.land(skip);
    true
}

/// Faults if DF is set. R8 and R9 are used.
fn check_direction(emitter: &mut Emitter) {
    emitter.instruction(Ok(Instruction::with(Code::Pushfq)));
    emitter.instruction(Instruction::with1(Code::Pop_r64, Register::R9));
    emitter.load_number(Register::R8D, Eflags::DF.bits());
    emitter.instruction(Instruction::with3(
        Code::VEX_Pext_r32_r32_rm32,
        Register::R9D,
        Register::R9D,
        Register::R8D,
    ));
    emitter.load_field(Register::R8, at::FORWARD);
    let there = MemoryOperand::with_base_index(Register::R8, Register::R9);
    emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R9D, there));
}

/// What an index register points to.
struct Operand {
    /// The index register.
    register: Register,
    segment: Register,
    access: Access,
    /// Its number in [`Context::strings`](crate::context::Context::strings).
    number: u32,
}

impl Operand {
    /// Where the context has what is to be added to its register.
    fn difference(&self) -> MemoryOperand {
        field(at::STRINGS + 4 * self.number)
    }

    /// Where the context has the register while no code is translated, which nobody needs now.
    fn saved(&self) -> MemoryOperand {
        field(4 * self.register.number() as u32)
    }
}

/// Where the context has what is to be added to ECX.
fn count_difference() -> MemoryOperand {
    field(at::STRINGS)
}

/// Stores `register` less `other` in `difference`. R9 is used.
fn store_difference(
    emitter: &mut Emitter,
    difference: MemoryOperand,
    register: Register,
    other: Register,
) {
    emitter.copy(Register::R9D, other);
    // NOT is one less than the negative.
    emitter.instruction(Instruction::with1(Code::Not_rm32, Register::R9D));
    let sum = MemoryOperand::with_base_index_scale_displ_size(
        register.full_register(),
        Register::R9,
        1,
        1,
        1,
    );
    emitter.instruction(Instruction::with2(Code::Lea_r32_m, Register::R9D, sum));
    emitter.store(difference, Register::R9D);
}

/// A repeated string instruction. In R10 is the number of its iterations.
struct Repeated {
    /// Bytes of an element.
    size: u32,
    /// It has SI, DI and CX.
    is_16_bit: bool,
}

impl Repeated {
    /// Loads R10 with the number of iterations. Jumps, to be told where, if there are none.
    fn load_count(&self, emitter: &mut Emitter) -> Branch {
        if self.is_16_bit {
            let skip = emitter.jump_if_cx_zero();
            zero_extend(emitter, Register::R10D, Register::CX);
            skip
        } else {
            let skip = emitter.loop_if(0xe3); // jecxz
            emitter.copy_64(Register::R10, Register::RCX);
            skip
        }
    }

    /// Loads R8D with the offset in the register of `operand`.
    fn load_offset(&self, emitter: &mut Emitter, operand: &Operand) {
        if self.is_16_bit {
            zero_extend(emitter, Register::R8D, sized(operand.register, 2));
        } else {
            emitter.copy(Register::R8D, operand.register);
        }
    }

    /// Faults unless all iterations may access `operand`, whose offsets do not wrap. R8 and R9 are used.
    fn check(&self, emitter: &mut Emitter, operand: &Operand) {
        let limit = if operand.access == Access::Write { at::WRITES } else { at::READS };
        self.load_offset(emitter, operand);
        self.check_last(emitter, view(operand.segment) + limit);
        if self.is_16_bit {
            self.check_last(emitter, at::WORDS);
        }
    }

    /// Faults unless there is something to read where the last byte's offset is counted from the address in `from`, a field of the context. The
    /// first one's is in R8. R9 is used.
    fn check_last(&self, emitter: &mut Emitter, from: u32) {
        emitter.load_field(Register::R9, from);
        let all = MemoryOperand::with_base_index_scale(Register::R9, Register::R10, self.size);
        emitter.instruction(Instruction::with2(Code::Lea_r64_m, Register::R9, all));
        let last =
            MemoryOperand::with_base_index_scale_displ_size(Register::R9, Register::R8, 1, -1, 1);
        emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R9D, last));
    }

    /// Makes the register of `operand` an address in the window. R8 and R9 are used.
    fn begin(&self, emitter: &mut Emitter, operand: &Operand) {
        self.load_offset(emitter, operand);
        if self.is_16_bit {
            emitter.store(operand.saved(), operand.register);
        }
        emitter.load(Register::R9D, field(view(operand.segment) + at::BASE));
        add(emitter, Register::R8D, Register::R8, Register::R9);
        store_difference(emitter, operand.difference(), operand.register, Register::R8D);
        emitter.load_field(Register::R9, at::WINDOW);
        emitter.add_64(operand.register.full_register(), Register::R8, Register::R9, 0);
    }

    /// Makes the register of `operand` the guest's. R8 and R9 are used.
    fn end(&self, emitter: &mut Emitter, operand: &Operand) {
        let register = operand.register;
        emitter.load(Register::R9D, operand.difference());
        if self.is_16_bit {
            // SI or DI may have become 0.
            add(emitter, Register::R8D, register.full_register(), Register::R9);
            emitter.load(register, operand.saved());
            copy(emitter, sized(register, 2), Register::R8W);
        } else {
            add(emitter, register, register.full_register(), Register::R9);
        }
        emitter.store_number(operand.difference(), 0);
    }

    /// Makes RCX the count. R9 is used.
    fn begin_count(&self, emitter: &mut Emitter) {
        if self.is_16_bit {
            store_difference(emitter, count_difference(), Register::ECX, Register::R10D);
            emitter.copy(Register::ECX, Register::R10D);
        }
    }

    /// Makes ECX the guest's. R9 is used.
    fn end_count(&self, emitter: &mut Emitter) {
        if self.is_16_bit {
            emitter.load(Register::R9D, count_difference());
            add(emitter, Register::ECX, Register::RCX, Register::R9);
            emitter.store_number(count_difference(), 0);
        }
    }
}
