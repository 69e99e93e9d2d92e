//! PUSHA, POPA and ENTER of segmented code. The elements that PUSHA and POPA access are neighbours on the
//! stack, so their limit is checked once for all of them.

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use super::instructions::mov;
use super::{
    Access, access, add_base, check, copy, load_top, release, set_top, sized, store_below, touch,
};
use crate::code::emitter::Emitter;
use crate::code::frames::ALL;
use crate::context::at;
use crate::mode::Segmented;

/// Translates an instruction of this file. Returns false if it is another one or is left to the interpreter,
/// and then writes nothing.
pub(super) fn translate(
    emitter: &mut Emitter,
    instruction: &Instruction,
    segmented: &Segmented,
) -> bool {
    match instruction.code() {
        Code::Pushaw => push_all(emitter, segmented, 2),
        Code::Pushad => push_all(emitter, segmented, 4),
        Code::Popaw => pop_all(emitter, segmented, 2),
        Code::Popad => pop_all(emitter, segmented, 4),
        Code::Enterw_imm16_imm8 if has_no_others(instruction) => {
            enter(emitter, segmented, instruction.immediate16(), 2);
        }
        Code::Enterd_imm16_imm8 if has_no_others(instruction) => {
            enter(emitter, segmented, instruction.immediate16(), 4);
        }
        _ => return false,
    }
    true
}

/// Returns whether `enter` has nesting level 0, so that it copies no pointers to other frames.
fn has_no_others(enter: &Instruction) -> bool {
    enter.immediate8_2nd() & 31 == 0
}

/// Loads R8 with the linear address of the lowest of eight elements, `bytes` above the top of the stack.
/// Faults if the elements are beyond the limit or wrap. Uses R9.
fn locate(emitter: &mut Emitter, segmented: &Segmented, bytes: i32, size: u32, kind: Access) {
    load_top(emitter, segmented, bytes);
    if !segmented.has_32_bit_stack {
        emitter.load_field(Register::R9, at::WORD_LIMIT);
        touch(emitter, Register::R8, 8 * size - 1);
    }
    check(emitter, Register::SS, kind, 8 * size);
    add_base(emitter, Register::R8D, Register::SS);
}

/// Returns the operand of the element of `size` bytes with this number, from the lowest on. R8 holds the
/// address of the lowest.
fn element(number: usize, size: u32) -> MemoryOperand {
    let displacement = number as i64 * i64::from(size);
    MemoryOperand::new(Register::R8D, Register::None, 1, displacement, 1, false, Register::GS)
}

/// Translates PUSHA and PUSHAD. The registers are stored in the order in which they are pushed, since the
/// interpreter pushes all of them again if a store faults.
fn push_all(emitter: &mut Emitter, segmented: &Segmented, size: u32) {
    let all = 8 * size;
    locate(emitter, segmented, -(all as i32), size, Access::Write);
    for (register, number) in ALL.into_iter().zip((0..ALL.len()).rev()) {
        let value = sized(register, size);
        emitter.instruction(Instruction::with2(mov(value, true), element(number, size), value));
    }
    emitter.add(Register::R8D, Register::R15, -(all as i32));
    set_top(emitter, segmented);
}

/// Translates POPA and POPAD. The lowest and the highest element are read twice. If neither of these reads
/// faults, no read between them does.
fn pop_all(emitter: &mut Emitter, segmented: &Segmented, size: u32) {
    locate(emitter, segmented, 0, size, Access::Read);
    let value = sized(Register::R10D, size);
    for number in [0, ALL.len() - 1] {
        emitter.instruction(Instruction::with2(mov(value, false), value, element(number, size)));
    }
    for (number, register) in ALL.into_iter().rev().enumerate() {
        if register != Register::R15D {
            let to = sized(register, size);
            emitter.instruction(Instruction::with2(mov(to, false), to, element(number, size)));
        }
    }
    release(emitter, segmented, 8 * size);
}

/// Translates ENTER of nesting level 0: pushes EBP, copies the stack pointer to EBP, and subtracts `bytes`
/// from it. The stack must be writable at its new top (SDM vol. 2, ENTER), so the element there is read and
/// written back.
fn enter(emitter: &mut Emitter, segmented: &Segmented, bytes: u16, size: u32) {
    let below = -i32::from(bytes) - size as i32;
    store_below(emitter, segmented, sized(Register::EBP, size), size);
    load_top(emitter, segmented, below);
    let top = access(emitter, Register::SS, Access::Write, size);
    let value = sized(Register::R10D, size);
    emitter.instruction(Instruction::with2(mov(value, false), value, top));
    emitter.instruction(Instruction::with2(mov(value, true), top, value));
    // EBP becomes what ESP would be after the push. With a 16-bit stack, only SP changes.
    emitter.add(Register::R8D, Register::R15, -(size as i32));
    set_top(emitter, segmented);
    copy(emitter, sized(Register::EBP, size), sized(Register::R15D, size));
    emitter.add(Register::R8D, Register::R15, -i32::from(bytes));
    set_top(emitter, segmented);
}
