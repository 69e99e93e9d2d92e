//! What instructions do to registers and memory, by the manual (SDM vol. 2), for the [checker](super).

use iced_x86::{CpuidFeature, Instruction, Mnemonic, OpAccess, OpKind, Register};

use super::Checker;
use super::state::{Name, RSP, name_of};

/// A set of names of general registers, by bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Names(u32);

impl Names {
    const NONE: Names = Names(0);

    fn one(name: Name) -> Names {
        Names(1 << name)
    }

    /// Returns them in order.
    pub(super) fn names(self) -> impl Iterator<Item = Name> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = (rest != 0).then(|| rest.trailing_zeros() as Name);
            rest &= rest.wrapping_sub(1);
            next
        })
    }
}

/// Returns whether `instruction` has a memory operand. None has more than four operands with one among them.
pub(super) fn has_memory_operand(instruction: &Instruction) -> bool {
    [instruction.op0_kind(), instruction.op1_kind(), instruction.op2_kind(), instruction.op3_kind()]
        .contains(&OpKind::Memory)
}

/// Returns the general register that is the first operand of `instruction`, or contains it.
pub(super) fn first_register(instruction: &Instruction) -> Option<Name> {
    let register = instruction.op0_register();
    (instruction.op0_kind() == OpKind::Register && register.is_gpr()).then(|| name_of(register))
}

/// Returns whether instructions with this mnemonic write to no general register but the first of two or three operands,
/// and surely access that or another one if it is in memory.
fn is_plain(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::Lea
            | M::Add
            | M::Sub
            | M::Adc
            | M::Sbb
            | M::And
            | M::Or
            | M::Xor
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Not
            | M::Rorx
    )
}

/// Returns whether instructions with this mnemonic write to no general register but RSP.
fn only_reads(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Cmp | M::Test | M::Nop | M::Push | M::Jmp)
}

impl Checker {
    /// Returns the names of the general registers but RSP to which `instruction` writes, wholly or in part, or may.
    pub(super) fn written(&mut self, instruction: &Instruction) -> Names {
        let mnemonic = instruction.mnemonic();
        if only_reads(mnemonic) || instruction.is_jcc_short_or_near() {
            return Names::NONE;
        }
        if is_plain(mnemonic) {
            let first = first_register(instruction).filter(|name| *name != RSP);
            return first.map_or(Names::NONE, Names::one);
        }
        self.written_by_any(instruction)
    }

    /// Returns the same by tables of all instructions.
    fn written_by_any(&mut self, instruction: &Instruction) -> Names {
        let used = self.factory.info(instruction).used_registers().iter();
        let written = used
            .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
            .map(iced_x86::UsedRegister::register)
            .filter(|register| register.is_gpr() && register.full_register() != Register::RSP);
        Names(written.fold(0, |names, register| names | 1 << name_of(register)))
    }

    /// Returns whether `instruction` surely accesses its memory operand, and at its address.
    pub(super) fn surely_accesses(&mut self, instruction: &Instruction) -> bool {
        let mnemonic = instruction.mnemonic();
        is_plain(mnemonic)
            || matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test)
            || self.any_surely_accesses(instruction)
    }

    /// Returns the same by tables of all instructions.
    fn any_surely_accesses(&mut self, instruction: &Instruction) -> bool {
        // Those of the x87 do not store a number if they raise an unmasked exception.
        let may_not_access = instruction.cpuid_features().iter().any(|feature| {
            use CpuidFeature as F;
            matches!(feature, F::FPU | F::FPU287 | F::FPU387)
        }) || matches!(
            instruction.mnemonic(),
            Mnemonic::Bt
                | Mnemonic::Bts
                | Mnemonic::Btr
                | Mnemonic::Btc
                | Mnemonic::Shl
                | Mnemonic::Shr
                | Mnemonic::Sar
                | Mnemonic::Rol
                | Mnemonic::Ror
                | Mnemonic::Rcl
                | Mnemonic::Rcr
                | Mnemonic::Shld
                | Mnemonic::Shrd
                | Mnemonic::Fisttp
        );
        !may_not_access
            && matches!(
                self.access(instruction),
                OpAccess::Read | OpAccess::Write | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
    }

    /// Returns how `instruction` accesses its memory operand.
    fn access(&mut self, instruction: &Instruction) -> OpAccess {
        let operand = (0..instruction.op_count())
            .find(|operand| instruction.op_kind(*operand) == OpKind::Memory)
            .unwrap_or(0);
        self.factory.info(instruction).op_access(operand)
    }
}

/// Returns whether `instruction` leaves a number of 32 bits, with a sign or without, in its first operand, a register.
pub(super) fn leaves_small_number(instruction: &Instruction) -> bool {
    let size = instruction.op0_register().size();
    let last = instruction.op_count().saturating_sub(1);
    let has_number = matches!(
        instruction.op_kind(last),
        OpKind::Immediate8
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    );
    let number = if has_number { instruction.immediate(last) as i64 } else { -1 };
    match instruction.mnemonic() {
        Mnemonic::Movsx | Mnemonic::Movzx | Mnemonic::Movsxd => size >= 4,
        Mnemonic::And => size == 4 || size == 8 && number >= 0,
        Mnemonic::Mov
        | Mnemonic::Lea
        | Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Inc
        | Mnemonic::Dec
        | Mnemonic::Neg
        | Mnemonic::Not => size == 4,
        Mnemonic::Imul => size == 4 && instruction.op_count() > 1,
        Mnemonic::Shl | Mnemonic::Sar => size == 4 && (1..32).contains(&number),
        Mnemonic::Shr => {
            size == 4 && (1..32).contains(&number) || size == 8 && (32..64).contains(&number)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;
    use crate::long::low::Addresses;

    /// What is known without tables is what the tables say.
    #[test]
    fn effects_of_plain_instructions_are_those_in_the_tables() {
        let addresses = Addresses { context: 0, tables: [0; 3], far_tables: [0; 2] };
        let mut checker = Checker::new(addresses, false);
        let (mut plain, mut number) = (0, 1_u64);
        for _ in 0..200_000 {
            number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let bytes = u128::from(number >> 8) << 64 | u128::from(number.rotate_left(24));
            // With REX, which decides between the two halves of the general registers, and an opcode of integers.
            let bytes = bytes.to_be_bytes();
            for bytes in
                [&bytes[8..], &[0x40 | bytes[0] & 0xf, bytes[1] & 0x3b, bytes[9], bytes[10]]]
            {
                let bytes = [bytes, &[0; 12]].concat();
                let instruction = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
                if instruction.is_invalid() {
                    continue;
                }
                plain += u32::from(is_plain(instruction.mnemonic()));
                assert_eq!(
                    checker.written(&instruction),
                    checker.written_by_any(&instruction),
                    "{instruction}"
                );
                if has_memory_operand(&instruction) && instruction.mnemonic() != Mnemonic::Lea {
                    let surely = checker.any_surely_accesses(&instruction);
                    assert_eq!(checker.surely_accesses(&instruction), surely, "{instruction}");
                }
            }
        }
        assert!(plain > 100_000, "{plain}");
    }
}
