//! Instructions on R8 to R11, which the context holds, that use one of them where it is: the host's instruction has a
//! memory operand in the register's place. So a move takes one host instruction and not three, and a comparison one and
//! not two.
//!
//! Those that change such a register by its old value do not do so, since what they have written is read soon, and the
//! upper half of a register becomes 0 with its lower one.

use iced_x86::{Code, Instruction, Mnemonic, OpKind};

use crate::code::copy::set_memory;
use crate::long::writer::{Writer, is_in_context, rename};

/// Translates `instruction`, which has no memory operand. Returns false, and writes nothing, if it is none of these.
pub(crate) fn translate(writer: &mut Writer, instruction: &Instruction) -> bool {
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    if instruction.op_count() != 2
        || instruction.op0_kind() != OpKind::Register
        || !matches!(to.size(), 4 | 8)
    {
        return false;
    }
    let mut copy = *instruction;
    if is_in_context(to) && !is_in_context(from) {
        let is_register = instruction.op1_kind() == OpKind::Register;
        if is_register && matches!(instruction.code(), Code::Mov_rm64_r64 | Code::Mov_r64_rm64) {
            writer.store(writer.register(to), rename(from));
            return true;
        }
        let Some(code) = compares_memory(instruction.code()) else { return false };
        copy.set_code(code);
        if is_register {
            copy.set_op1_register(rename(from));
        }
        copy.set_op0_kind(OpKind::Memory);
        set_memory(&mut copy, &writer.register(to));
    } else if is_in_context(from) && !is_in_context(to) {
        let is_test = instruction.mnemonic() == Mnemonic::Test;
        let (memory, register) = if is_test {
            (0, 1)
        } else {
            let Some(code) = reads_memory(instruction.code()) else { return false };
            copy.set_code(code);
            (1, 0)
        };
        copy.set_op_register(register, rename(to));
        copy.set_op_kind(register, OpKind::Register);
        copy.set_op_kind(memory, OpKind::Memory);
        set_memory(&mut copy, &writer.register(from));
    } else {
        return false;
    }
    writer.emitter.try_instruction(&copy)
}

/// Returns the encoding of the comparison `code` whose first operand may be in memory.
fn compares_memory(code: Code) -> Option<Code> {
    use Code as C;
    Some(match code {
        C::Cmp_r32_rm32 => C::Cmp_rm32_r32,
        C::Cmp_r64_rm64 => C::Cmp_rm64_r64,
        C::Cmp_rm32_r32
        | C::Cmp_rm64_r64
        | C::Cmp_rm32_imm8
        | C::Cmp_rm32_imm32
        | C::Cmp_rm64_imm8
        | C::Cmp_rm64_imm32
        | C::Test_rm32_r32
        | C::Test_rm64_r64
        | C::Test_rm32_imm32
        | C::Test_rm64_imm32 => code,
        _ => return None,
    })
}

/// Returns the encoding of `code` whose second operand may be in memory.
fn reads_memory(code: Code) -> Option<Code> {
    use Code as C;
    Some(match code {
        C::Mov_rm32_r32 | C::Mov_r32_rm32 => C::Mov_r32_rm32,
        C::Mov_rm64_r64 | C::Mov_r64_rm64 => C::Mov_r64_rm64,
        C::Add_rm32_r32 | C::Add_r32_rm32 => C::Add_r32_rm32,
        C::Add_rm64_r64 | C::Add_r64_rm64 => C::Add_r64_rm64,
        C::Or_rm32_r32 | C::Or_r32_rm32 => C::Or_r32_rm32,
        C::Or_rm64_r64 | C::Or_r64_rm64 => C::Or_r64_rm64,
        C::Adc_rm32_r32 | C::Adc_r32_rm32 => C::Adc_r32_rm32,
        C::Adc_rm64_r64 | C::Adc_r64_rm64 => C::Adc_r64_rm64,
        C::Sbb_rm32_r32 | C::Sbb_r32_rm32 => C::Sbb_r32_rm32,
        C::Sbb_rm64_r64 | C::Sbb_r64_rm64 => C::Sbb_r64_rm64,
        C::And_rm32_r32 | C::And_r32_rm32 => C::And_r32_rm32,
        C::And_rm64_r64 | C::And_r64_rm64 => C::And_r64_rm64,
        C::Sub_rm32_r32 | C::Sub_r32_rm32 => C::Sub_r32_rm32,
        C::Sub_rm64_r64 | C::Sub_r64_rm64 => C::Sub_r64_rm64,
        C::Xor_rm32_r32 | C::Xor_r32_rm32 => C::Xor_r32_rm32,
        C::Xor_rm64_r64 | C::Xor_r64_rm64 => C::Xor_r64_rm64,
        C::Cmp_rm32_r32 | C::Cmp_r32_rm32 => C::Cmp_r32_rm32,
        C::Cmp_rm64_r64 | C::Cmp_r64_rm64 => C::Cmp_r64_rm64,
        C::Imul_r32_rm32
        | C::Imul_r64_rm64
        | C::Movsxd_r64_rm32
        | C::Movzx_r32_rm8
        | C::Movzx_r32_rm16
        | C::Movzx_r64_rm8
        | C::Movzx_r64_rm16
        | C::Movsx_r32_rm8
        | C::Movsx_r32_rm16
        | C::Movsx_r64_rm8
        | C::Movsx_r64_rm16 => code,
        _ => return None,
    })
}

/// Returns whether `instruction` writes all of its operand number `operand`, a register of the context, without
/// reading it, or any other operand that is a part of it.
pub(crate) fn overwrites(instruction: &Instruction, operand: u32) -> bool {
    let register = instruction.op_register(operand);
    let whole = register.full_register();
    let is_other = |other: u32| {
        other == operand
            || instruction.op_kind(other) != OpKind::Register
            || instruction.op_register(other).full_register() != whole
    };
    register.size() >= 4 && (0..instruction.op_count()).all(is_other)
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;
    use crate::long::low::Addresses;

    /// Returns the number of host instructions for the instruction with these bytes, or 0 if it is none of these.
    fn count(bytes: &[u8]) -> usize {
        let addresses = Addresses { context: 0x2000_0000, tables: [0; 3], far_tables: [0; 2] };
        let mut writer = Writer::new(0x2800_0000, addresses, true);
        let instruction = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
        let is_translated = translate(&mut writer, &instruction);
        let code = writer.emitter.finish();
        assert_eq!(is_translated, !code.is_empty());
        Decoder::new(64, &code, DecoderOptions::NONE).iter().count()
    }

    #[test]
    fn a_register_of_the_context_is_used_where_it_is() {
        for bytes in [
            &[0x4c, 0x89, 0xc8][..],   // MOV RAX, R9
            &[0x49, 0x89, 0xc1],       // MOV R9, RAX
            &[0x44, 0x01, 0xc8],       // ADD EAX, R9D
            &[0x4c, 0x39, 0xc8],       // CMP RAX, R9
            &[0x49, 0x39, 0xc1],       // CMP R9, RAX
            &[0x41, 0x83, 0xf9, 0x05], // CMP R9D, 5
            &[0x4c, 0x85, 0xc8],       // TEST RAX, R9
            &[0x41, 0x0f, 0xb6, 0xc1], // MOVZX EAX, R9B
            &[0x49, 0x63, 0xc1],       // MOVSXD RAX, R9D
        ] {
            assert_eq!(count(bytes), 1, "{bytes:x?}");
        }
        for bytes in [
            &[0x41, 0x89, 0xc1][..],   // MOV R9D, EAX, which clears the upper half
            &[0x4d, 0x89, 0xc8],       // MOV R8, R9
            &[0x49, 0x01, 0xc1],       // ADD R9, RAX
            &[0x66, 0x44, 0x89, 0xc8], // MOV AX, R9W
        ] {
            assert_eq!(count(bytes), 0, "{bytes:x?}");
        }
    }

    #[test]
    fn what_is_overwritten_is_not_loaded() {
        let overwrites =
            |bytes: &[u8]| overwrites(&Decoder::new(64, bytes, DecoderOptions::NONE).decode(), 0);
        assert!(overwrites(&[0x44, 0x8b, 0x0b]), "MOV R9D, [RBX]");
        assert!(!overwrites(&[0x66, 0x44, 0x8b, 0x0b]), "MOV R9W, [RBX]");
        assert!(!overwrites(&[0x4d, 0x0f, 0xb6, 0xc9]), "MOVZX R9, R9B");
    }
}
