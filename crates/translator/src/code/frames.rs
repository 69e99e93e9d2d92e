//! PUSHAD and POPAD of flat code.

use iced_x86::{Code, Instruction, Register};

use crate::code::emitter::Emitter;

/// The registers in the order in which PUSHAD pushes them (SDM vol. 2, PUSHA). ESP is in R15D.
pub(crate) const ALL: [Register; 8] = [
    Register::EAX,
    Register::ECX,
    Register::EDX,
    Register::EBX,
    Register::R15D,
    Register::EBP,
    Register::ESI,
    Register::EDI,
];

/// Translates PUSHAD and POPAD. For PUSHAD, R15D must be ESP. Returns false for all other instructions, and
/// then writes nothing.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    match instruction.code() {
        // If one of the stores faults, the interpreter stores all registers again.
        Code::Pushad => {
            for (register, offset) in ALL.into_iter().zip((0..).step_by(4)) {
                emitter.store(emitter.top_of_stack(-4 - offset), register);
            }
            emitter.move_stack(-32);
        }
        // The lowest and the highest element are loaded twice. If neither of these loads faults, no load
        // between them does.
        Code::Popad => {
            for offset in [0, 28] {
                emitter.load(Register::R8D, emitter.top_of_stack(offset));
            }
            for (register, offset) in ALL.into_iter().rev().zip((0..).step_by(4)) {
                if register != Register::R15D {
                    emitter.load(register, emitter.top_of_stack(offset));
                }
            }
            emitter.move_stack(32);
        }
        _ => return false,
    }
    true
}
