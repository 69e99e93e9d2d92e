//! INT n, INT3 and IRET of flat code. Routines check everything that may raise an exception, except the
//! accesses to the stack. These are made here, before anything of the guest's state changes.

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::exception::vector;

use super::virtual_8086::pop_program;
use crate::code::emitter::{Emitter, in_window};
use crate::code::segments::selector;
use crate::context::at;

/// Returns whether `instruction` is one that this file translates.
pub(super) fn is_translated(instruction: &Instruction, is_user: bool) -> bool {
    match instruction.code() {
        Code::Int_imm8 | Code::Int3 => true,
        Code::Iretd => !is_user,
        _ => false,
    }
}

/// Translates `instruction`, in code of users or of the supervisor. `info` describes it for the case that it
/// is left to the interpreter after all.
pub(super) fn translate(
    emitter: &mut Emitter,
    instruction: &Instruction,
    is_user: bool,
    info: u32,
) {
    if instruction.code() == Code::Iretd {
        interrupt_return(emitter, instruction.ip32(), info);
    } else {
        interrupt(emitter, instruction, is_user, info);
    }
}

/// Translates INT n. The routine that reads the gate comes first.
fn interrupt(emitter: &mut Emitter, instruction: &Instruction, is_user: bool, info: u32) {
    let privilege = usize::from(is_user);
    let is_breakpoint = instruction.code() == Code::Int3;
    let vector = if is_breakpoint { vector::BP } else { instruction.immediate8() };
    // A gate has 8 bytes.
    emitter.load_number(Register::R10D, u32::from(vector) * 8);
    emitter.leave(at::INTERRUPT[privilege], instruction.ip32(), info);
    let mut offset = 0;
    let mut element = || {
        offset -= 4;
        in_window(Register::R10D, offset)
    };
    if is_user {
        emitter.load_word(Register::R8D, selector(Register::SS));
        emitter.store(element(), Register::R8D);
        emitter.store(element(), Register::R15D);
    }
    emitter.store(element(), Register::R9D);
    emitter.load_word(Register::R8D, selector(Register::CS));
    emitter.store(element(), Register::R8D);
    emitter.store_number(element(), instruction.next_ip32());
    emitter.jump_through(at::ENTER_HANDLER[privilege]);
}

/// Translates IRET. More than EIP, CS and EFLAGS is popped only on the way to user code or to virtual-8086
/// mode, so it is read when the routine has found out that it leads there.
fn interrupt_return(emitter: &mut Emitter, eip: u32, info: u32) {
    let [to_any, to_user] = at::INTERRUPT_RETURN;
    emitter.load(Register::R9D, emitter.top_of_stack(0));
    emitter.store(
        MemoryOperand::with_base_displ(Register::R14, at::BRANCH_TARGET.into()),
        Register::R9D,
    );
    emitter.load(Register::R9D, emitter.top_of_stack(4));
    emitter.load(Register::R10D, emitter.top_of_stack(8));
    emitter.leave(to_any, eip, info);
    let to_user_code = emitter.jump_if_zero();
    pop_program(emitter, |emitter, above| {
        emitter.load(Register::R10D, emitter.top_of_stack(above as i32));
    });
    emitter.land(to_user_code);
    emitter.load(Register::R10D, emitter.top_of_stack(12));
    emitter.load(Register::R9D, emitter.top_of_stack(16));
    emitter.leave(to_user, eip, info);
}
