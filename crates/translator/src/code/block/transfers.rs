//! INT n, INT3 and IRET of flat code, and [exceptions] for which translated code enters the handler. Routines
//! check everything that may raise another exception, except the accesses to the stack. These are made here,
//! before anything of the guest's state changes.

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use super::exceptions::{self, ErrorCode, Raised};
use super::virtual_8086::pop_program;
use crate::code::emitter::{Emitter, in_window};
use crate::code::segments::selector;
use crate::context::at;

/// Returns whether `instruction` is one that this file translates.
pub(super) fn is_translated(instruction: &Instruction, is_user: bool) -> bool {
    match instruction.code() {
        Code::Int_imm8 | Code::Int3 => true,
        Code::Iretd => !is_user,
        _ => exceptions::raised(instruction, is_user).is_some(),
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
    if let Some(raised) = exceptions::raised(instruction, is_user) {
        raise(emitter, instruction.ip32(), is_user, &raised, info);
    } else if instruction.code() == Code::Iretd {
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
    load_gate(emitter, vector);
    emitter.leave(at::INTERRUPT[privilege], instruction.ip32(), info);
    enter_handler(emitter, instruction.next_ip32(), is_user, ErrorCode::Absent);
}

/// Translates the delivery of `raised` by the instruction at `eip`. `info` describes the instruction for the
/// case that it is left to the interpreter.
pub(super) fn raise(emitter: &mut Emitter, eip: u32, is_user: bool, raised: &Raised, info: u32) {
    load_gate(emitter, raised.vector);
    emitter.leave(raised.routine, eip, info);
    // A fault pushes RF (SDM vol. 3, 19.3.1.1).
    emitter.add(Register::R9D, Register::R9, Eflags::RF.bits() as i32);
    enter_handler(emitter, eip, is_user, raised.error_code);
}

/// Loads R10D with the offset in the IDT of the gate of `vector`.
fn load_gate(emitter: &mut Emitter, vector: u8) {
    const GATE: u32 = 8;
    emitter.load_number(Register::R10D, u32::from(vector) * GATE);
}

/// Pushes what an interrupt or an exception pushes on the stack at R10D, with EFLAGS in R9D and the return
/// address `eip`, and enters the handler.
fn enter_handler(emitter: &mut Emitter, eip: u32, is_user: bool, error_code: ErrorCode) {
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
    emitter.store_number(element(), eip);
    match error_code {
        ErrorCode::Absent => {}
        ErrorCode::Zero => emitter.store_number(element(), 0),
        ErrorCode::Found => {
            let found = MemoryOperand::with_base_displ(Register::R14, at::ERROR_CODE.into());
            emitter.load(Register::R8D, found);
            emitter.store(element(), Register::R8D);
        }
    }
    if !matches!(error_code, ErrorCode::Absent) {
        // The routine expects the frame without it.
        emitter.add(Register::R10D, Register::R10, -4);
    }
    emitter.jump_through(at::ENTER_HANDLER[usize::from(is_user)]);
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
