//! Instructions that read and load segment registers, and that read control registers: they are in the context.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};

use crate::context::at;
use crate::copy;
use crate::emitter::Emitter;

/// Where the context has the selector of `register`.
pub(crate) fn selector(register: Register) -> MemoryOperand {
    let field = at::SELECTORS + 2 * register.number() as u32;
    MemoryOperand::with_base_displ(Register::R14, field.into())
}

/// Translates an instruction of this file. False, and nothing was written, for all others.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction, is_user: bool) -> bool {
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
                emitter.top_of_stack(-4),
                Register::R8W,
            ));
            emitter.move_stack(-4);
        }
        Code::Mov_r32m16_Sreg if instruction.op0_kind() == OpKind::Register => {
            let to = copy::rename(instruction.op0_register());
            emitter.load_word(to, selector(instruction.op1_register()));
        }
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 if loads(instruction, is_user).is_some() => {
            if instruction.op1_kind() == OpKind::Register {
                let from = copy::rename(instruction.op1_register().full_register32());
                emitter.copy(Register::R8D, from);
                let word = Instruction::with2(Code::Movzx_r32_rm16, Register::R8D, Register::R8W);
                emitter.instruction(word);
            } else {
                let Some(from) = copy::address(emitter, instruction) else { return false };
                emitter.load_word(Register::R8D, from);
            }
            load(emitter, instruction);
        }
        Code::Popd_DS | Code::Popd_ES | Code::Popd_FS | Code::Popd_GS if !is_user => {
            emitter.pop();
            let word = Instruction::with2(Code::Movzx_r32_rm16, Register::R8D, Register::R8W);
            emitter.instruction(word);
            load(emitter, instruction);
        }
        Code::Mov_r32_cr if !is_user && instruction.op1_register() <= Register::CR4 => {
            let number = instruction.op1_register() as u32 - Register::CR0 as u32;
            let field =
                MemoryOperand::with_base_displ(Register::R14, (at::CONTROL + 4 * number).into());
            emitter.load(copy::rename(instruction.op0_register()), field);
        }
        _ => return false,
    }
    true
}

/// Loads the segment register that `instruction` names with the selector in R8D.
fn load(emitter: &mut Emitter, instruction: &Instruction) {
    emitter.load_number(Register::R9D, instruction.op0_register().number() as u32);
    emitter.call(at::LOAD_SEGMENT);
}

/// The number of the segment register that `instruction` loads, where translated code does that.
pub(crate) fn loads(instruction: &Instruction, is_user: bool) -> Option<u8> {
    let is_load = matches!(
        instruction.code(),
        Code::Mov_Sreg_rm16
            | Code::Mov_Sreg_r32m16
            | Code::Popd_DS
            | Code::Popd_ES
            | Code::Popd_FS
            | Code::Popd_GS
    );
    let register = instruction.op0_register();
    let is_data = matches!(register, Register::DS | Register::ES | Register::FS | Register::GS);
    (is_load && is_data && !is_user).then(|| register.number() as u8)
}
