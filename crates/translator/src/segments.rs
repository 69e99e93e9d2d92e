//! Instructions that read segment registers: their selectors are in the context.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};

use crate::context::at;
use crate::copy;
use crate::emitter::{Emitter, top_of_stack};

/// Where the context has the selector of `register`.
fn selector(register: Register) -> MemoryOperand {
    let field = at::SELECTORS + 2 * register.number() as u32;
    MemoryOperand::with_base_displ(Register::R14, field.into())
}

/// Translates an instruction of this file. False, and nothing was written, for all others.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Pushd_ES
        | Code::Pushd_CS
        | Code::Pushd_SS
        | Code::Pushd_DS
        | Code::Pushd_FS
        | Code::Pushd_GS => {
            emitter.load_word(Register::R8D, selector(instruction.op0_register()));
            // Only the low word is written (SDM vol. 2, PUSH, on recent processors).
            emitter.instruction(Instruction::with2(
                Code::Mov_rm16_r16,
                top_of_stack(-4),
                Register::R8W,
            ));
            emitter.add(Register::R15D, Register::R15, -4);
        }
        Code::Mov_r32m16_Sreg if instruction.op0_kind() == OpKind::Register => {
            let to = copy::rename(instruction.op0_register());
            emitter.load_word(to, selector(instruction.op1_register()));
        }
        _ => return false,
    }
    true
}
