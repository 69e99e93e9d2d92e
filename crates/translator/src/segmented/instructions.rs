//! The instructions of segmented code: those that are copied, and those that use the stack, flags and segment
//! registers.

use iced_x86::{Code, EncodingKind, Instruction, Mnemonic, OpKind, Register};

use super::{
    Access, access, address, copy, field, frames, load_from_stack, load_offset, peek, push,
    push_as, push_number, release, set_top, sized, strings, view, zero_extend,
};
use crate::code::copy::{rename, translate_with, with_high_byte};
use crate::code::emitter::Emitter;
use crate::code::flags;
use crate::code::segments::{self, selector};
use crate::context::at;
use crate::mode::{Loading, Mode, Segmented};

/// Translates an instruction after which the next one follows. Returns false if it is left to the
/// interpreter; the caller then throws away what was written.
pub(crate) fn translate(
    emitter: &mut Emitter,
    instruction: &Instruction,
    mode: &Mode,
    segmented: &Segmented,
) -> bool {
    if instruction.is_string_instruction() {
        return strings::translate(emitter, instruction);
    }
    stack(emitter, instruction, segmented)
        || frames::translate(emitter, instruction, segmented)
        || flags(emitter, instruction, mode, segmented)
        || segment_registers(emitter, instruction, mode, segmented)
        || with_high_byte(emitter, instruction, |emitter| address(emitter, instruction))
        || general(emitter, instruction)
}

/// Translates PUSH, POP and LEAVE with general registers, memory and immediate operands.
fn stack(emitter: &mut Emitter, instruction: &Instruction, segmented: &Segmented) -> bool {
    let is_register = instruction.op0_kind() == OpKind::Register;
    let register = rename(instruction.op0_register());
    let size = if instruction.stack_pointer_increment().abs() == 2 { 2 } else { 4 };
    match instruction.code() {
        Code::Push_r16 | Code::Push_r32 | Code::Push_rm16 | Code::Push_rm32 if is_register => {
            push(emitter, segmented, register);
        }
        Code::Push_rm16 | Code::Push_rm32 => {
            let Some(from) = address(emitter, instruction) else { return false };
            let value = sized(Register::R10D, size);
            emitter.instruction(Instruction::with2(mov(value, false), value, from));
            push(emitter, segmented, value);
        }
        Code::Push_imm16 | Code::Pushw_imm8 | Code::Pushd_imm32 | Code::Pushd_imm8 => {
            push_number(emitter, segmented, instruction.immediate(0) as u32, size);
        }
        Code::Pop_r16 | Code::Pop_r32 | Code::Pop_rm16 | Code::Pop_rm32 if is_register => {
            peek(emitter, segmented, size);
            release(emitter, segmented, size);
            copy(emitter, register, sized(Register::R10D, size));
        }
        Code::Pop_rm16 | Code::Pop_rm32 => {
            // The address is computed with the incremented ESP (SDM vol. 2, POP).
            let has_stack_pointer = instruction.memory_base() == Register::ESP;
            if has_stack_pointer && !segmented.has_32_bit_stack {
                return false;
            }
            peek(emitter, segmented, size);
            load_offset(emitter, instruction, if has_stack_pointer { size } else { 0 });
            let to = access(emitter, instruction.memory_segment(), Access::Write, size);
            let value = sized(Register::R10D, size);
            emitter.instruction(Instruction::with2(mov(value, true), to, value));
            release(emitter, segmented, size);
        }
        Code::Leavew | Code::Leaved => {
            let size = if instruction.code() == Code::Leavew { 2 } else { 4 };
            load_from_stack(emitter, segmented, Register::EBP, size);
            emitter.add(Register::R8D, Register::RBP, size as i32);
            set_top(emitter, segmented);
            copy(emitter, sized(Register::EBP, size), sized(Register::R10D, size));
        }
        _ => return false,
    }
    true
}

/// Returns the MOV that stores a register of 2 or 4 bytes to memory, or loads it from there.
pub(super) fn mov(register: Register, to_memory: bool) -> Code {
    match (register.size(), to_memory) {
        (2, false) => Code::Mov_r16_rm16,
        (2, true) => Code::Mov_rm16_r16,
        (_, false) => Code::Mov_r32_rm32,
        (_, true) => Code::Mov_rm32_r32,
    }
}

/// Translates CLI, STI, PUSHF and POPF where IOPL does not decide on them (SDM vol. 2).
fn flags(
    emitter: &mut Emitter,
    instruction: &Instruction,
    mode: &Mode,
    segmented: &Segmented,
) -> bool {
    let changes_interrupt_flag = mode.changes_interrupt_flag();
    if segmented.loading == (Loading::Virtual8086 { is_privileged: false }) {
        return false;
    }
    match instruction.code() {
        Code::Pushfw | Code::Pushfd => {
            flags::load(emitter, Register::R10);
            let size = if instruction.code() == Code::Pushfw { 2 } else { 4 };
            push(emitter, segmented, sized(Register::R10D, size));
        }
        Code::Popfw if changes_interrupt_flag => {
            peek(emitter, segmented, 2);
            emitter.load(Register::R8D, field(at::SYSTEM_FLAGS));
            copy(emitter, Register::R8W, Register::R10W);
            emitter.call(at::SEGMENTED_POPF);
            release(emitter, segmented, 2);
        }
        Code::Popfd if changes_interrupt_flag => {
            peek(emitter, segmented, 4);
            emitter.copy(Register::R8D, Register::R10D);
            emitter.call(at::SEGMENTED_POPF);
            release(emitter, segmented, 4);
        }
        Code::Cli | Code::Sti => {
            return flags::translate(emitter, instruction, !changes_interrupt_flag);
        }
        _ => return false,
    }
    true
}

/// Translates moves from segment registers, loads of segment registers other than CS, and moves from control
/// registers.
fn segment_registers(
    emitter: &mut Emitter,
    instruction: &Instruction,
    mode: &Mode,
    segmented: &Segmented,
) -> bool {
    let register = instruction.op0_register();
    match instruction.code() {
        Code::Pushw_ES
        | Code::Pushw_CS
        | Code::Pushw_SS
        | Code::Pushw_DS
        | Code::Pushw_FS
        | Code::Pushw_GS => {
            emitter.load_word(Register::R10D, selector(register));
            push(emitter, segmented, Register::R10W);
        }
        Code::Pushd_ES
        | Code::Pushd_CS
        | Code::Pushd_SS
        | Code::Pushd_DS
        | Code::Pushd_FS
        | Code::Pushd_GS => {
            emitter.load_word(Register::R10D, selector(register));
            // Only the low word is written (SDM vol. 2, PUSH, on recent processors).
            push_as(emitter, segmented, Register::R10W, 4);
        }
        Code::Mov_rm16_Sreg | Code::Mov_r32m16_Sreg if register != Register::None => {
            emitter.load_word(Register::R10D, selector(instruction.op1_register()));
            copy(emitter, rename(register), sized(Register::R10D, register.size() as u32));
        }
        Code::Mov_rm16_Sreg | Code::Mov_r32m16_Sreg => {
            load_offset(emitter, instruction, 0);
            let to = access(emitter, instruction.memory_segment(), Access::Write, 2);
            emitter.load_word(Register::R10D, selector(instruction.op1_register()));
            emitter.instruction(Instruction::with2(Code::Mov_rm16_r16, to, Register::R10W));
        }
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 if segments::loads(instruction).is_some() => {
            if instruction.op1_kind() == OpKind::Register {
                zero_extend(emitter, Register::R8D, sized(rename(instruction.op1_register()), 2));
            } else {
                load_offset(emitter, instruction, 0);
                let from = access(emitter, instruction.memory_segment(), Access::Read, 2);
                emitter.load_word(Register::R8D, from);
            }
            load_segment(emitter, register, mode, segmented);
        }
        Code::Popw_ES
        | Code::Popw_SS
        | Code::Popw_DS
        | Code::Popw_FS
        | Code::Popw_GS
        | Code::Popd_ES
        | Code::Popd_SS
        | Code::Popd_DS
        | Code::Popd_FS
        | Code::Popd_GS => {
            let size = instruction.stack_pointer_increment() as u32;
            peek(emitter, segmented, size);
            zero_extend(emitter, Register::R8D, Register::R10W);
            // The load may leave the instruction to the interpreter, so ESP must not change before it.
            load_segment(emitter, register, mode, segmented);
            release(emitter, segmented, size);
        }
        Code::Les_r16_m1616
        | Code::Lds_r16_m1616
        | Code::Lfs_r16_m1616
        | Code::Lgs_r16_m1616
        | Code::Lss_r16_m1616
        | Code::Les_r32_m1632
        | Code::Lds_r32_m1632
        | Code::Lfs_r32_m1632
        | Code::Lgs_r32_m1632
        | Code::Lss_r32_m1632 => {
            let to = segments::pointed_to(instruction.mnemonic());
            let size = register.size() as u32;
            let from = instruction.memory_segment();
            load_offset(emitter, instruction, 0);
            let offset = access(emitter, from, Access::Read, size);
            let value = sized(Register::R10D, size);
            emitter.instruction(Instruction::with2(mov(value, false), value, offset));
            emitter.store(field(at::BRANCH_TARGET), Register::R10D);
            load_offset(emitter, instruction, size);
            let new_selector = access(emitter, from, Access::Read, 2);
            emitter.load_word(Register::R8D, new_selector);
            load_segment(emitter, to, mode, segmented);
            emitter.load(Register::R10D, field(at::BRANCH_TARGET));
            copy(emitter, rename(register), value);
        }
        Code::Mov_r32_cr => return segments::translate(emitter, instruction, mode.is_user),
        _ => return false,
    }
    true
}

/// Returns whether `instruction` loads SS and holds off interrupts until after the next instruction.
pub(crate) fn loads_stack(instruction: &Instruction) -> bool {
    instruction.op0_register() == Register::SS
        && matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Pop)
}

/// Loads a segment register with the selector in R8D. Uses R9, and in protected mode also R10.
fn load_segment(emitter: &mut Emitter, register: Register, mode: &Mode, segmented: &Segmented) {
    if segmented.loading == Loading::Protected {
        emitter.load_number(Register::R9D, register.number() as u32);
        let is_data = !matches!(register, Register::FS | Register::GS);
        let may_become_flat = is_data && mode.has_flat_code() && segmented.has_32_bit_stack;
        let routines = if may_become_flat { at::LOAD_TOWARD_FLAT } else { at::LOAD_VIEW };
        let kind = 2 * u32::from(mode.is_user) + u32::from(segmented.has_32_bit_stack);
        return emitter.call(routines + 8 * kind);
    }
    // The base is 16 times the selector (SDM vol. 3, 21.1.1).
    let store = Instruction::with2(Code::Mov_rm16_r16, selector(register), Register::R8W);
    emitter.instruction(store);
    emitter.instruction(Instruction::with3(
        Code::VEX_Rorx_r32_rm32_imm8,
        Register::R9D,
        Register::R8D,
        32 - 4,
    ));
    emitter.store(field(view(register) + at::BASE), Register::R9D);
}

/// Translates LEA, and the instructions that are copied. Those with a VEX prefix are not: in real mode and virtual-8086
/// mode there are none.
fn general(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    if instruction.op_code().encoding() == EncodingKind::VEX {
        return false;
    }
    if instruction.mnemonic() == Mnemonic::Lea {
        let register = rename(instruction.op0_register());
        load_offset(emitter, instruction, 0);
        copy(emitter, register, sized(Register::R8D, register.size() as u32));
        return true;
    }
    translate_with(emitter, instruction, |emitter| address(emitter, instruction))
}
