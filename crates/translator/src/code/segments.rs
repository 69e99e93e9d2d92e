//! Instructions of flat code that read and load segment registers, or read control registers. The context
//! holds both kinds of registers.

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind, Register};

use crate::code::copy;
use crate::code::emitter::Emitter;
use crate::context::at;

/// Returns the field of the context with the selector in `register`.
pub(crate) fn selector(register: Register) -> MemoryOperand {
    let field = at::SELECTORS + 2 * register.number() as u32;
    MemoryOperand::with_base_displ(Register::R14, field.into())
}

/// Translates an instruction of this file. Returns false for all other instructions; the caller then throws
/// away what was written.
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
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 if loads(instruction).is_some() => {
            if !load_selector(emitter, instruction) {
                return false;
            }
            load(emitter, instruction.op0_register(), is_user);
        }
        Code::Popd_DS | Code::Popd_ES | Code::Popd_SS | Code::Popd_FS | Code::Popd_GS => {
            emitter.pop();
            let word = Instruction::with2(Code::Movzx_r32_rm16, Register::R8D, Register::R8W);
            emitter.instruction(word);
            load(emitter, instruction.op0_register(), is_user);
        }
        Code::Les_r32_m1632
        | Code::Lds_r32_m1632
        | Code::Lfs_r32_m1632
        | Code::Lgs_r32_m1632
        | Code::Lss_r32_m1632 => return load_pointer(emitter, instruction, is_user),
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

/// Loads R8D with the selector that `instruction` loads into a segment register. Returns false if it is not a
/// MOV, or if translated code cannot access its operand; the caller then throws away what was written.
pub(crate) fn load_selector(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    if instruction.mnemonic() != Mnemonic::Mov {
        return false;
    }
    if instruction.op1_kind() == OpKind::Register {
        let from = copy::rename(instruction.op1_register().full_register32());
        emitter.copy(Register::R8D, from);
        let word = Instruction::with2(Code::Movzx_r32_rm16, Register::R8D, Register::R8W);
        emitter.instruction(word);
    } else {
        let Some(from) = copy::address(emitter, instruction) else { return false };
        emitter.load_word(Register::R8D, from);
    }
    true
}

/// Loads the segment register `register` with the selector in R8D. Uses R9 and R10.
fn load(emitter: &mut Emitter, register: Register, is_user: bool) {
    emitter.load_number(Register::R9D, register.number() as u32);
    emitter.call(at::LOAD_FLAT[usize::from(is_user)]);
}

/// Translates LDS, LES, LFS, LGS and LSS. The offset from memory is kept in the context until the segment
/// register is loaded.
fn load_pointer(emitter: &mut Emitter, instruction: &Instruction, is_user: bool) -> bool {
    let Some(from) = copy::address(emitter, instruction) else { return false };
    let waits = MemoryOperand::with_base_displ(Register::R14, at::BRANCH_TARGET.into());
    emitter.load(Register::R10D, from);
    emitter.store(waits, Register::R10D);
    let Some(selector) = copy::address_behind(emitter, instruction, 4) else { return false };
    emitter.load_word(Register::R8D, selector);
    load(emitter, pointed_to(instruction.mnemonic()), is_user);
    emitter.load(copy::rename(instruction.op0_register()), waits);
    true
}

/// Returns the segment register that LDS, LES, LFS, LGS or LSS loads.
pub(crate) fn pointed_to(mnemonic: Mnemonic) -> Register {
    match mnemonic {
        Mnemonic::Les => Register::ES,
        Mnemonic::Lds => Register::DS,
        Mnemonic::Lss => Register::SS,
        Mnemonic::Lfs => Register::FS,
        _ => Register::GS,
    }
}

/// Returns the number of the segment register that `instruction` loads, if translated code may load it by a
/// descriptor.
pub(crate) fn loads(instruction: &Instruction) -> Option<u8> {
    use Mnemonic as M;
    let register = match instruction.mnemonic() {
        M::Lds | M::Les | M::Lfs | M::Lgs | M::Lss => pointed_to(instruction.mnemonic()),
        M::Mov | M::Pop if instruction.op0_kind() == OpKind::Register => instruction.op0_register(),
        _ => return None,
    };
    (register.is_segment_register() && register != Register::CS).then(|| register.number() as u8)
}
