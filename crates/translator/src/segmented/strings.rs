//! MOVS, CMPS, STOS, LODS and SCAS in segmented code without a repeat prefix; [`repeats`] translates those
//! with one. The host's string instructions would need addresses in the window in RSI and RDI. For a single
//! element that costs too much, so other instructions have the same effect.

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, Register};
use ring3_x86::decode::has_16_bit_addresses;
use ring3_x86::flags::Eflags;

use super::{Access, access, copy, repeats, sized, zero_extend};
use crate::code::emitter::Emitter;
use crate::code::strings::repeat_prefix;

/// Translates `instruction`. Returns false if it is left to the interpreter, and then writes nothing.
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
    /// Whether SI and DI are its index registers.
    has_16_bit_addresses: bool,
}

impl String {
    /// Returns the part of `register` that has the size of an element.
    fn part_of(&self, register: Register) -> Register {
        match (self.size, register) {
            (1, Register::R10D) => Register::R10L,
            (1, _) => Register::AL,
            _ => sized(register, self.size),
        }
    }

    /// Returns the operand of the element at `index` in `segment`, with its linear address in R8. Uses R9.
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

    /// Advances the index registers by an element, forward, or backward if DF is set. Changes no flags. Uses
    /// R8 to R10.
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
        // R9 becomes -1, or -2 if DF is set.
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
