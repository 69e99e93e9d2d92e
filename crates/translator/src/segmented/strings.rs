//! MOVS, CMPS, STOS, LODS and SCAS in segmented code; [`repeats`] has those that are repeated. For a single one the host's own would need addresses in the
//! window in RSI and RDI, so what they do is done by other instructions.

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, Register};
use ring3_x86::decode::has_16_bit_addresses;
use ring3_x86::flags::Eflags;

use super::{Access, access, copy, repeats, sized, zero_extend};
use crate::emitter::Emitter;
use crate::strings::repeat_prefix;

/// Translates `instruction`. False, and nothing was written, if it is left to the interpreter.
pub(super) fn translate(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    use Mnemonic as M;
    if let Some(repeat) = repeat_prefix(instruction) {
        return repeats::translate(emitter, instruction, repeat);
    }
    let string = String {
        size: instruction.memory_size().size() as u32,
        has_16_bit_addresses: has_16_bit_addresses(instruction),
    };
    let source = instruction.memory_segment();
    let accumulator = string.part_of(Register::EAX);
    let value = string.part_of(Register::R10D);
    match instruction.mnemonic() {
        M::Movsb | M::Movsw | M::Movsd => {
            let from = string.operand(emitter, Register::ESI, source, Access::Read);
            string.mov(emitter, value, from, Access::Read);
            let to = string.operand(emitter, Register::EDI, Register::ES, Access::Write);
            string.mov(emitter, value, to, Access::Write);
            string.step(emitter, &[Register::ESI, Register::EDI]);
        }
        M::Stosb | M::Stosw | M::Stosd => {
            let to = string.operand(emitter, Register::EDI, Register::ES, Access::Write);
            string.mov(emitter, accumulator, to, Access::Write);
            string.step(emitter, &[Register::EDI]);
        }
        M::Lodsb | M::Lodsw | M::Lodsd => {
            let from = string.operand(emitter, Register::ESI, source, Access::Read);
            string.mov(emitter, accumulator, from, Access::Read);
            string.step(emitter, &[Register::ESI]);
        }
        M::Cmpsb | M::Cmpsw | M::Cmpsd => {
            let first = string.operand(emitter, Register::ESI, source, Access::Read);
            string.mov(emitter, value, first, Access::Read);
            let second = string.operand(emitter, Register::EDI, Register::ES, Access::Read);
            string.compare(emitter, value, second);
            string.step(emitter, &[Register::ESI, Register::EDI]);
        }
        M::Scasb | M::Scasw | M::Scasd => {
            let with = string.operand(emitter, Register::EDI, Register::ES, Access::Read);
            string.compare(emitter, accumulator, with);
            string.step(emitter, &[Register::EDI]);
        }
        _ => return false,
    }
    true
}

/// A string instruction.
struct String {
    /// Bytes of an element.
    size: u32,
    /// SI and DI are its index registers.
    has_16_bit_addresses: bool,
}

impl String {
    /// The part of `register` that an element has.
    fn part_of(&self, register: Register) -> Register {
        match (self.size, register) {
            (1, Register::R10D) => Register::R10L,
            (1, _) => Register::AL,
            _ => sized(register, self.size),
        }
    }

    /// The element at `index` in `segment`, by R8; R9 is used.
    fn operand(
        &self,
        emitter: &mut Emitter,
        index: Register,
        segment: Register,
        kind: Access,
    ) -> MemoryOperand {
        if self.has_16_bit_addresses {
            zero_extend(emitter, Register::R8D, sized(index, 2));
        } else {
            emitter.copy(Register::R8D, index);
        }
        access(emitter, segment, kind, self.size)
    }

    /// Loads or stores an element.
    fn mov(&self, emitter: &mut Emitter, register: Register, memory: MemoryOperand, kind: Access) {
        let mov = match (self.size, kind) {
            (1, Access::Read) => Instruction::with2(Code::Mov_r8_rm8, register, memory),
            (2, Access::Read) => Instruction::with2(Code::Mov_r16_rm16, register, memory),
            (_, Access::Read) => Instruction::with2(Code::Mov_r32_rm32, register, memory),
            (1, Access::Write) => Instruction::with2(Code::Mov_rm8_r8, memory, register),
            (2, Access::Write) => Instruction::with2(Code::Mov_rm16_r16, memory, register),
            (_, Access::Write) => Instruction::with2(Code::Mov_rm32_r32, memory, register),
        };
        emitter.instruction(mov);
    }

    /// `cmp register, memory`.
    fn compare(&self, emitter: &mut Emitter, register: Register, memory: MemoryOperand) {
        let code = match self.size {
            1 => Code::Cmp_r8_rm8,
            2 => Code::Cmp_r16_rm16,
            _ => Code::Cmp_r32_rm32,
        };
        emitter.instruction(Instruction::with2(code, register, memory));
    }

    /// Moves index registers on by an element, forward or, with DF, backward. No flags are changed. R8 to R10 are used.
    fn step(&self, emitter: &mut Emitter, registers: &[Register]) {
        emitter.instruction(Ok(Instruction::with(Code::Pushfq)));
        emitter.instruction(Instruction::with1(Code::Pop_r64, Register::R9));
        emitter.load_number(Register::R8D, Eflags::DF.bits());
        emitter.instruction(Instruction::with3(
            Code::VEX_Pext_r32_r32_rm32,
            Register::R9D,
            Register::R9D,
            Register::R8D,
        ));
        // R9 becomes -1, or with DF -2.
        emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R9));
        for register in registers {
            let moved = MemoryOperand::with_base_index_scale_displ_size(
                register.full_register(),
                Register::R9,
                2 * self.size,
                (3 * self.size).into(),
                1,
            );
            emitter.instruction(Instruction::with2(Code::Lea_r32_m, Register::R8D, moved));
            let width = if self.has_16_bit_addresses { 2 } else { 4 };
            copy(emitter, sized(*register, width), sized(Register::R8D, width));
        }
    }
}
