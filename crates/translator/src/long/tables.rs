//! What instructions do to general registers, for their translation. The [checker](crate::long::verify) knows it by itself.

use iced_x86::{Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic};

/// The tables of all instructions. They take longer than the rest of an instruction's translation, so they are asked
/// only where an instruction is not [plain](is_plain), and made when they are first asked.
#[derive(Debug, Default)]
pub(crate) struct Tables(Option<InstructionInfoFactory>);

impl Tables {
    /// Returns what is known of `instruction`.
    pub(crate) fn info(&mut self, instruction: &Instruction) -> &InstructionInfo {
        self.0.get_or_insert_with(InstructionInfoFactory::new).info(instruction)
    }
}

/// Returns whether `instruction` uses no registers but those of its two operands or fewer, and writes to no general
/// register but the first operand.
pub(crate) fn is_plain(instruction: &Instruction) -> bool {
    only_reads(instruction)
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Mov
                | Mnemonic::Movzx
                | Mnemonic::Movsx
                | Mnemonic::Movsxd
                | Mnemonic::Lea
                | Mnemonic::Add
                | Mnemonic::Sub
                | Mnemonic::Adc
                | Mnemonic::Sbb
                | Mnemonic::And
                | Mnemonic::Or
                | Mnemonic::Xor
                | Mnemonic::Inc
                | Mnemonic::Dec
                | Mnemonic::Neg
                | Mnemonic::Not
        )
}

/// Returns whether `instruction` uses no registers but those of its two operands, and writes to none.
pub(crate) fn only_reads(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
        || instruction.is_jcc_short_or_near()
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, OpAccess, OpKind, Register};

    use super::*;

    /// All instructions with one byte of opcode, and those with two.
    #[test]
    fn plain_instructions_use_only_their_operands() {
        let mut tables = Tables::default();
        let mut plain = 0;
        for (opcode, mod_rm) in (0..=u16::MAX).flat_map(|bytes| {
            let [opcode, mod_rm] = bytes.to_le_bytes();
            [(vec![0x4a, opcode], mod_rm), (vec![opcode], mod_rm), (vec![0x0f, opcode], mod_rm)]
        }) {
            let bytes = [&opcode[..], &[mod_rm], &[0x24; 12]].concat();
            let instruction = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            if instruction.is_invalid() || !is_plain(&instruction) {
                continue;
            }
            plain += 1;
            let is_first = |register: Register| {
                instruction.op0_kind() == OpKind::Register
                    && instruction.op0_register().full_register() == register.full_register()
                    && !only_reads(&instruction)
            };
            let operands = [
                instruction.op0_register(),
                instruction.op1_register(),
                instruction.memory_base(),
                instruction.memory_index(),
            ];
            for used in tables.info(&instruction).used_registers() {
                let register = used.register();
                if !register.is_gpr() {
                    continue;
                }
                let writes = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                assert!(!writes || is_first(register), "{instruction}");
                let is_operand =
                    operands.iter().any(|one| one.full_register() == register.full_register());
                assert!(is_operand, "{instruction}");
            }
            // Flags, not registers, are what a comparison and a branch leave.
            let first = instruction.op0_register();
            if instruction.op0_kind() == OpKind::Register && first.is_gpr() {
                let used = tables.info(&instruction).used_registers();
                let is_written = used.iter().any(|used| {
                    used.register().full_register() == first.full_register()
                        && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
                });
                assert_eq!(is_written, !only_reads(&instruction), "{instruction}");
            }
        }
        assert!(plain > 20_000, "{plain}");
    }
}
