//! Segmented code: real mode, virtual-8086 mode, 16-bit protected mode, and 32-bit code in segments that have
//! a base or a limit.
//!
//! An access needs some more instructions here than in flat code. The offset goes to R8. A load checks it
//! against the limit ([`Limits`](crate::segmented::limits::Limits)), the base is added to it, and the access
//! goes to the window at the sum. No flags change. All that depends on the segment registers is in the
//! context's [`View`](crate::context::View)s, so a block continues after an instruction that loads a segment
//! register in real mode.

mod frames;
mod instructions;
pub(crate) mod jump_tables;
pub(crate) mod limits;
mod repeats;
mod strings;

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use ring3_x86::decode::has_16_bit_addresses;

pub(crate) use instructions::{loads_stack, translate};

use crate::code::copy::rename;
use crate::code::emitter::{Emitter, displacement_size};
use crate::context::at;
use crate::mode::Segmented;
use crate::numeric;

/// How memory is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// The access may also be a read: every segment that can be written can be read.
    Write,
}

/// Returns the operand for a field of the context.
pub(crate) fn field(offset: u32) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::R14, offset.into())
}

/// Returns the field of the context with the view of segment register `segment`.
fn view(segment: Register) -> u32 {
    at::VIEWS + at::VIEW_SIZE * segment.number() as u32
}

/// Returns the part of the general register `register` that has `size` bytes, 2 or 4.
pub(crate) fn sized(register: Register, size: u32) -> Register {
    if size == 4 {
        return register.full_register32();
    }
    match register.full_register32() {
        Register::R8D => Register::R8W,
        Register::R10D => Register::R10W,
        Register::R15D => Register::R15W,
        other => Register::AX + other.number() as u32,
    }
}

/// `movzx r32, r16`.
fn zero_extend(emitter: &mut Emitter, to: Register, from: Register) {
    emitter.instruction(Instruction::with2(Code::Movzx_r32_rm16, to, from));
}

/// `mov` between registers of the same size, 2 or 4 bytes.
fn copy(emitter: &mut Emitter, to: Register, from: Register) {
    let code = if to.size() == 2 { Code::Mov_r16_rm16 } else { Code::Mov_r32_rm32 };
    emitter.instruction(Instruction::with2(code, to, from));
}

/// `lea r32, [a + b]`.
fn add(emitter: &mut Emitter, to: Register, a: Register, b: Register) {
    let sum = MemoryOperand::with_base_index(a, b);
    emitter.instruction(Instruction::with2(Code::Lea_r32_m, to, sum));
}

/// Returns the operand at the linear address in `register`.
fn in_window(register: Register) -> MemoryOperand {
    MemoryOperand::new(register, Register::None, 1, 0, 0, false, Register::GS)
}

/// Loads R8D with the offset in its segment of the memory operand of `instruction`, plus `more`.
pub(crate) fn load_offset(emitter: &mut Emitter, instruction: &Instruction, more: u32) {
    let is_16_bit = has_16_bit_addresses(instruction);
    let displacement = instruction.memory_displacement32().wrapping_add(more);
    let displacement = if is_16_bit { i32::from(displacement as i16) } else { displacement as i32 };
    let wide = |register: Register| match register {
        Register::None => Register::None,
        register => rename(register.full_register32()),
    };
    let (base, index) = (wide(instruction.memory_base()), wide(instruction.memory_index()));
    if base == Register::None && index == Register::None {
        let mask = if is_16_bit { 0xffff } else { u32::MAX };
        emitter.load_number(Register::R8D, displacement as u32 & mask);
        return;
    }
    let size =
        if base == Register::None { 4 } else { displacement_size(base, displacement.into()) };
    let scale = instruction.memory_index_scale();
    let sum =
        MemoryOperand::new(base, index, scale, displacement.into(), size, false, Register::None);
    emitter.instruction(Instruction::with2(Code::Lea_r32_m, Register::R8D, sum));
    if is_16_bit {
        zero_extend(emitter, Register::R8D, Register::R8W);
    }
}

/// Faults unless `size` bytes at the offset in R8 of `segment` may be accessed. Uses R9.
fn check(emitter: &mut Emitter, segment: Register, access: Access, size: u32) {
    let limit = if access == Access::Write { at::WRITE_LIMIT } else { at::READ_LIMIT };
    emitter.load_field(Register::R9, view(segment) + limit);
    touch(emitter, Register::R8, size - 1);
}

/// Faults unless the sum of R9, `offset` and `more` can be read. Uses R9.
pub(crate) fn touch(emitter: &mut Emitter, offset: Register, more: u32) {
    let last = MemoryOperand::with_base_index_scale_displ_size(
        Register::R9,
        offset,
        1,
        more.into(),
        displacement_size(Register::R9, more.into()),
    );
    emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R9D, last));
}

/// Faults if the address in CS in R10, which has `size` bytes, is beyond the limit. Uses R9.
pub(crate) fn check_target(emitter: &mut Emitter, segmented: &Segmented, size: u32) {
    if segmented.limit < if size == 2 { 0xffff } else { u32::MAX } {
        emitter.load_field(Register::R9, at::CODE_LIMIT);
        touch(emitter, Register::R10, 0);
    }
}

/// Loads `to` with the linear address of the offset in R8 of `segment`. Uses R9.
fn add_base(emitter: &mut Emitter, to: Register, segment: Register) {
    emitter.load(Register::R9D, field(view(segment) + at::BASE));
    add(emitter, to, Register::R8, Register::R9);
}

/// Returns the operand of `size` bytes at the offset in R8 of `segment`, and checks that it may be accessed.
/// Its linear address is in R8 afterwards. Uses R9.
pub(crate) fn access(
    emitter: &mut Emitter,
    segment: Register,
    access: Access,
    size: u32,
) -> MemoryOperand {
    check(emitter, segment, access, size);
    add_base(emitter, Register::R8D, segment);
    in_window(Register::R8D)
}

/// Returns how `instruction` accesses its memory operand: `Write` unless it certainly only reads.
fn access_of(instruction: &Instruction) -> Access {
    use Mnemonic as M;
    let only_reads = instruction.op0_kind() != OpKind::Memory
        || matches!(
            instruction.mnemonic(),
            M::Cmp | M::Test | M::Push | M::Mul | M::Imul | M::Div | M::Idiv | M::Jmp | M::Call
        )
        || numeric::reads_first_operand(instruction);
    if only_reads { Access::Read } else { Access::Write }
}

/// Returns the memory operand of `instruction` in the window, with its linear address in R8. Uses R9. Returns
/// None if the operand is of a kind that is not translated.
pub(crate) fn address(emitter: &mut Emitter, instruction: &Instruction) -> Option<MemoryOperand> {
    let size = instruction.memory_size().size() as u32;
    // XLAT adds AL to the offset, and BT with a register may access memory beyond its operand.
    let is_plain = match instruction.mnemonic() {
        Mnemonic::Xlatb => false,
        Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts => {
            instruction.op1_kind() != OpKind::Register
        }
        _ => size > 0,
    };
    if !is_plain {
        return None;
    }
    load_offset(emitter, instruction, 0);
    Some(access(emitter, instruction.memory_segment(), access_of(instruction), size))
}

// The stack -------------------------------------------------------------

/// Sets the top of the stack (ESP, or SP alone) to R8.
fn set_top(emitter: &mut Emitter, segmented: &Segmented) {
    if segmented.has_32_bit_stack {
        emitter.copy(Register::R15D, Register::R8D);
    } else {
        copy(emitter, Register::R15W, Register::R8W);
    }
}

/// Loads R8 with the address in SS that is `displacement` above the top of the stack.
fn load_top(emitter: &mut Emitter, segmented: &Segmented, displacement: i32) {
    emitter.add(Register::R8D, Register::R15, displacement);
    if !segmented.has_32_bit_stack {
        zero_extend(emitter, Register::R8D, Register::R8W);
    }
}

/// Loads R8 with the address in SS that is in `register`.
fn load_stack_offset(emitter: &mut Emitter, segmented: &Segmented, register: Register) {
    if segmented.has_32_bit_stack {
        emitter.copy(Register::R8D, register.full_register32());
    } else {
        zero_extend(emitter, Register::R8D, sized(register, 2));
    }
}

/// Removes `bytes` bytes from the stack. Uses R8.
pub(crate) fn release(emitter: &mut Emitter, segmented: &Segmented, bytes: u32) {
    emitter.add(Register::R8D, Register::R15, bytes as i32);
    set_top(emitter, segmented);
}

/// Stores `from`, which is R10 or a register of the guest and has 2 or 4 bytes, `size` bytes below the top of
/// the stack. This address in SS is in R8 afterwards. Uses R9.
fn store_below(emitter: &mut Emitter, segmented: &Segmented, from: Register, size: u32) {
    load_top(emitter, segmented, -(size as i32));
    let written = from.size() as u32;
    check(emitter, Register::SS, Access::Write, written);
    add_base(emitter, Register::R9D, Register::SS);
    let code = if written == 2 { Code::Mov_rm16_r16 } else { Code::Mov_rm32_r32 };
    emitter.instruction(Instruction::with2(code, in_window(Register::R9D), from));
}

/// Stores `from`, which is R10 or a register of the guest and has 2 or 4 bytes, `displacement` above the top
/// of the stack. Uses R8 and R9.
pub(crate) fn store_above(
    emitter: &mut Emitter,
    segmented: &Segmented,
    from: Register,
    displacement: i32,
) {
    load_top(emitter, segmented, displacement);
    let to = access(emitter, Register::SS, Access::Write, from.size() as u32);
    let code = if from.size() == 2 { Code::Mov_rm16_r16 } else { Code::Mov_rm32_r32 };
    emitter.instruction(Instruction::with2(code, to, from));
}

/// Loads R10D with the `size` bytes, 2 or 4, that are `displacement` above the top of the stack. Uses R8 and
/// R9.
pub(crate) fn load_stack_above(
    emitter: &mut Emitter,
    segmented: &Segmented,
    displacement: i32,
    size: u32,
) {
    load_top(emitter, segmented, displacement);
    let from = access(emitter, Register::SS, Access::Read, size);
    if size == 2 {
        emitter.load_word(Register::R10D, from);
    } else {
        emitter.load(Register::R10D, from);
    }
}

/// Pushes `from`, which is R10 or a register of the guest and has 2 or 4 bytes, as an element of `size`
/// bytes. Uses R8 and R9.
fn push_as(emitter: &mut Emitter, segmented: &Segmented, from: Register, size: u32) {
    store_below(emitter, segmented, from, size);
    set_top(emitter, segmented);
}

/// Pushes `from`, which is R10 or a register of the guest, as an element of its own size, 2 or 4 bytes. Uses
/// R8 and R9.
pub(crate) fn push(emitter: &mut Emitter, segmented: &Segmented, from: Register) {
    push_as(emitter, segmented, from, from.size() as u32);
}

/// Pushes the low `size` bytes of a number. Uses R8 to R10.
pub(crate) fn push_number(emitter: &mut Emitter, segmented: &Segmented, number: u32, size: u32) {
    emitter.load_number(Register::R10D, number);
    push(emitter, segmented, sized(Register::R10D, size));
}

/// Loads R10D with the `size` bytes at the address in SS in `register`. Uses R8 and R9.
fn load_from_stack(emitter: &mut Emitter, segmented: &Segmented, register: Register, size: u32) {
    load_stack_offset(emitter, segmented, register);
    let from = access(emitter, Register::SS, Access::Read, size);
    if size == 2 {
        emitter.load_word(Register::R10D, from);
    } else {
        emitter.load(Register::R10D, from);
    }
}

/// Loads R10D with the `size` bytes on top of the stack, and leaves them there. Uses R8 and R9.
pub(crate) fn peek(emitter: &mut Emitter, segmented: &Segmented, size: u32) {
    load_from_stack(emitter, segmented, Register::R15D, size);
}
