//! CLI, STI, CLAC, STAC, PUSHF and POPF. The guest's status flags and DF are the host's; IF, AC and the other
//! flags are in the context.

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use crate::code::emitter::Emitter;
use crate::context::{STATUS_AND_DIRECTION, at};

/// Loads `register`, which has 64 bits, with EFLAGS as PUSHF pushes it. Uses R9.
pub(crate) fn load(emitter: &mut Emitter, register: Register) {
    emitter.instruction(Ok(Instruction::with(Code::Pushfq)));
    emitter.instruction(Instruction::with1(Code::Pop_r64, register));
    emitter.select_bits(register.full_register32(), STATUS_AND_DIRECTION);
    let system_flags = MemoryOperand::with_base_displ(Register::R14, at::SYSTEM_FLAGS.into());
    emitter.load(Register::R9D, system_flags);
    // The two values have no bits in common.
    emitter.add_64(register, register, Register::R9, 0);
}

/// Translates an instruction of this file. Returns false for all other instructions, and then writes nothing.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction, is_user: bool) -> bool {
    match instruction.code() {
        Code::Pushfd => {
            load(emitter, Register::R8);
            emitter.push(Register::R8D);
        }
        Code::Popfd => {
            emitter.pop();
            emitter.call(if is_user { at::POPF_OF_USER } else { at::POPF });
        }
        Code::Cli if !is_user => {
            emitter.copy_field(at::SYSTEM_FLAGS, at::FLAGS_WITHOUT_IF);
        }
        Code::Sti if !is_user => emitter.call(at::STI),
        Code::Clac if !is_user => emitter.call(at::CLAC),
        Code::Stac if !is_user => emitter.call(at::STAC),
        _ => return false,
    }
    true
}
