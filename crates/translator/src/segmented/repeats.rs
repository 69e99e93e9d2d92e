//! MOVS, CMPS, STOS, LODS and SCAS with a repeat prefix, in segmented code. The host's own instructions
//! execute them, with addresses in the window in RSI and RDI as in flat code
//! ([`strings`](crate::code::strings)).
//!
//! All accesses are checked before the first iteration: DF must be clear, no offset may wrap, and the last
//! byte must be within the limit. Otherwise the instruction is left to the interpreter. After a fault between
//! two iterations the context says how to compute the guest's registers from the host's
//! ([`Context::strings`](crate::context::Context::strings)).

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::decode::has_16_bit_addresses;
use ring3_x86::flags::Eflags;

use super::{Access, add, copy, field, sized, view, zero_extend};
use crate::code::emitter::{Branch, Emitter};
use crate::code::strings::{Form, check_budget, check_end, compares, take_iterations};
use crate::context::at;

/// Translates `instruction`, which the prefix `repeat` repeats. Returns false if it is left to the
/// interpreter, and then writes nothing.
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
    // From here on only an iteration can fault.
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

/// Faults if DF is set. Uses R8 and R9.
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
    emitter.load_field(Register::R8, at::FORWARD_CHECK);
    let there = MemoryOperand::with_base_index(Register::R8, Register::R9);
    emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R9D, there));
}

/// A memory operand of a string instruction.
struct Operand {
    /// The index register with its offset.
    register: Register,
    segment: Register,
    access: Access,
    /// The index of its difference in [`Context::strings`](crate::context::Context::strings).
    number: u32,
}

impl Operand {
    /// Returns the field of the context with the number that makes the guest's index register of the host's.
    fn difference(&self) -> MemoryOperand {
        field(at::STRINGS + 4 * self.number)
    }

    /// Returns the field of the context for this register of the guest, which is not in use while translated
    /// code runs.
    fn saved(&self) -> MemoryOperand {
        field(4 * self.register.number() as u32)
    }
}

/// Returns the field of the context with the number that makes the guest's ECX of the host's.
fn count_difference() -> MemoryOperand {
    field(at::STRINGS)
}

/// Stores `register` less `other` in the field `difference`. Uses R9.
fn store_difference(
    emitter: &mut Emitter,
    difference: MemoryOperand,
    register: Register,
    other: Register,
) {
    emitter.copy(Register::R9D, other);
    // NOT gives the negative less 1.
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

/// A repeated string instruction. R10 holds the number of its iterations.
struct Repeated {
    /// Bytes of an element.
    size: u32,
    /// Whether it uses SI, DI and CX.
    is_16_bit: bool,
}

impl Repeated {
    /// Loads R10 with the number of iterations. Returns a branch, whose target is set later, that is taken if
    /// there are none.
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

    /// Loads R8D with the offset in the index register of `operand`.
    fn load_offset(&self, emitter: &mut Emitter, operand: &Operand) {
        if self.is_16_bit {
            zero_extend(emitter, Register::R8D, sized(operand.register, 2));
        } else {
            emitter.copy(Register::R8D, operand.register);
        }
    }

    /// Faults unless all iterations may access `operand` and no offset wraps. Uses R8 and R9.
    fn check(&self, emitter: &mut Emitter, operand: &Operand) {
        let limit = if operand.access == Access::Write { at::WRITE_LIMIT } else { at::READ_LIMIT };
        self.load_offset(emitter, operand);
        self.check_last(emitter, view(operand.segment) + limit);
        if self.is_16_bit {
            self.check_last(emitter, at::WORD_LIMIT);
        }
    }

    /// Faults unless the sum of the address in the field `from` of the context and the offset of the
    /// operand's last byte can be read. R8 holds the offset of its first byte. Uses R9.
    fn check_last(&self, emitter: &mut Emitter, from: u32) {
        emitter.load_field(Register::R9, from);
        let all = MemoryOperand::with_base_index_scale(Register::R9, Register::R10, self.size);
        emitter.instruction(Instruction::with2(Code::Lea_r64_m, Register::R9, all));
        let last =
            MemoryOperand::with_base_index_scale_displ_size(Register::R9, Register::R8, 1, -1, 1);
        emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R9D, last));
    }

    /// Replaces the offset in the index register of `operand` by an address in the window. Uses R8 and R9.
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

    /// Restores the guest's offset in the index register of `operand`. Uses R8 and R9.
    fn end(&self, emitter: &mut Emitter, operand: &Operand) {
        let register = operand.register;
        emitter.load(Register::R9D, operand.difference());
        if self.is_16_bit {
            // SI or DI may have wrapped to 0.
            add(emitter, Register::R8D, register.full_register(), Register::R9);
            emitter.load(register, operand.saved());
            copy(emitter, sized(register, 2), Register::R8W);
        } else {
            add(emitter, register, register.full_register(), Register::R9);
        }
        emitter.store_number(operand.difference(), 0);
    }

    /// Loads RCX with the number of iterations if the guest's count is in CX. Uses R9.
    fn begin_count(&self, emitter: &mut Emitter) {
        if self.is_16_bit {
            store_difference(emitter, count_difference(), Register::ECX, Register::R10D);
            emitter.copy(Register::ECX, Register::R10D);
        }
    }

    /// Restores the guest's ECX after the iterations. Uses R9.
    fn end_count(&self, emitter: &mut Emitter) {
        if self.is_16_bit {
            emitter.load(Register::R9D, count_difference());
            add(emitter, Register::ECX, Register::RCX, Register::R9);
            emitter.store_number(count_difference(), 0);
        }
    }
}
