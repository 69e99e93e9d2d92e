//! Encodes frequent instructions as iced-x86 does, in a tenth of the time: those with ModRM, a register in the opcode or
//! the accumulator, without VEX, LOCK and repeat prefixes (SDM vol. 2, chapter 2). The other ones are left to iced-x86.

use std::sync::LazyLock;

use iced_x86::{
    Code, EncodingKind, Instruction, MandatoryPrefix, MemoryOperand, OpCodeOperandKind,
    OpCodeTableKind, OpKind, Register,
};

/// The most bytes of an instruction.
const LONGEST: usize = 15;

// Bits of REX.
const REX: u8 = 0x40;
const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_X: u8 = 2;
const REX_B: u8 = 1;

/// Where an operand is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In ModRM.rm, as a register, unless the first register of its kind is none, or in memory.
    Rm(Register),
    /// In ModRM.reg.
    Reg(Register),
    /// In the opcode.
    Opcode(Register),
    /// So many bytes behind the others.
    Number(usize),
    /// Nowhere: it is always this register.
    Always(Register),
    /// Nowhere: it is always 1.
    One,
}

impl Place {
    /// Returns where operands of this kind are, if they are in one of these places.
    fn of(kind: OpCodeOperandKind) -> Option<Place> {
        use OpCodeOperandKind as K;
        Some(match kind {
            K::mem => Place::Rm(Register::None),
            K::r8_or_mem => Place::Rm(Register::AL),
            K::r16_or_mem => Place::Rm(Register::AX),
            K::r32_or_mem => Place::Rm(Register::EAX),
            K::r64_or_mem => Place::Rm(Register::RAX),
            K::xmm_or_mem => Place::Rm(Register::XMM0),
            K::r8_reg => Place::Reg(Register::AL),
            K::r16_reg => Place::Reg(Register::AX),
            K::r32_reg => Place::Reg(Register::EAX),
            K::r64_reg => Place::Reg(Register::RAX),
            K::xmm_reg => Place::Reg(Register::XMM0),
            K::r8_opcode => Place::Opcode(Register::AL),
            K::r16_opcode => Place::Opcode(Register::AX),
            K::r32_opcode => Place::Opcode(Register::EAX),
            K::r64_opcode => Place::Opcode(Register::RAX),
            K::imm8 | K::imm8sex16 | K::imm8sex32 | K::imm8sex64 => Place::Number(1),
            K::imm16 => Place::Number(2),
            K::imm32 | K::imm32sex64 => Place::Number(4),
            K::imm64 => Place::Number(8),
            K::imm8_const_1 => Place::One,
            K::al => Place::Always(Register::AL),
            K::cl => Place::Always(Register::CL),
            K::ax => Place::Always(Register::AX),
            K::eax => Place::Always(Register::EAX),
            K::rax => Place::Always(Register::RAX),
            _ => return None,
        })
    }
}

/// How instructions with one code are encoded.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// Whether it has the operand-size prefix.
    has_short_operands: bool,
    /// 66h, F2h or F3h if that is a part of the opcode, or 0.
    prefix: u8,
    /// REX.W, if it is set.
    rex: u8,
    /// The bytes before the opcode.
    escape: &'static [u8],
    opcode: u8,
    /// ModRM.reg, if that extends the opcode, in its place.
    extension: u8,
    has_mod_rm: bool,
    places: [Option<Place>; 3],
}

/// The forms of all codes that have one.
static FORMS: LazyLock<Vec<Option<Form>>> =
    LazyLock::new(|| Code::values().map(Form::of).collect());

impl Form {
    fn of(code: Code) -> Option<Form> {
        let info = code.op_code();
        let is_one = info.encoding() == EncodingKind::Legacy
            && info.mode64()
            && info.op_code_len() == 1
            && !info.is_rm_group()
            && !info.fwait()
            && info.address_size() == 0
            && (1..=3).contains(&info.op_count());
        if !is_one {
            return None;
        }
        let prefix = match info.mandatory_prefix() {
            MandatoryPrefix::None | MandatoryPrefix::PNP => 0,
            MandatoryPrefix::P66 => 0x66,
            MandatoryPrefix::PF3 => 0xf3,
            MandatoryPrefix::PF2 => 0xf2,
        };
        let escape: &[u8] = match info.table() {
            OpCodeTableKind::Normal => &[],
            OpCodeTableKind::T0F => &[0x0f],
            OpCodeTableKind::T0F38 => &[0x0f, 0x38],
            OpCodeTableKind::T0F3A => &[0x0f, 0x3a],
            _ => return None,
        };
        let is_wide = info.operand_size() == 64 && !info.default_op_size64();
        let mut places = [None; 3];
        for (place, kind) in places.iter_mut().zip(info.op_kinds()) {
            *place = Some(Place::of(*kind)?);
        }
        let has_mod_rm = places.iter().any(|place| matches!(place, Some(Place::Rm(_))));
        let is_found = has_mod_rm
            || places
                .iter()
                .any(|place| matches!(place, Some(Place::Opcode(_) | Place::Always(_))));
        is_found.then_some(Form {
            has_short_operands: info.operand_size() == 16,
            prefix,
            rex: if is_wide { REX_W } else { 0 },
            escape,
            opcode: info.op_code() as u8,
            extension: if info.is_group() { (info.group_index() as u8) << 3 } else { 0 },
            has_mod_rm,
            places,
        })
    }
}

/// The number of a register, and what it demands of REX.
struct Numbered {
    number: u8,
    /// Whether there must be REX.
    needs_rex: bool,
    /// Whether there must be none.
    excludes_rex: bool,
}

/// Returns the number of `register` if it is of the kind of `first`.
fn numbered(register: Register, first: Register) -> Option<Numbered> {
    let number = (register as u32).wrapping_sub(first as u32);
    let (number, needs_rex, excludes_rex) = match number {
        // AL to BL, AH to BH, SPL to DIL, R8L to R15L.
        8..20 if first == Register::AL => (number - 4, number < 12, false),
        4..8 if first == Register::AL => (number, false, true),
        0..16 => (number, false, false),
        _ => return None,
    };
    Some(Numbered { number: number as u8, needs_rex, excludes_rex })
}

/// An instruction that is being encoded.
#[derive(Default)]
struct Parts {
    rex: u8,
    needs_rex: bool,
    excludes_rex: bool,
    has_short_address: bool,
    opcode: u8,
    mod_rm: u8,
    sib: Option<u8>,
    displacement: Displacement,
    numbers: [u8; 8],
    /// Bytes of `numbers`.
    numbers_len: usize,
}

#[derive(Default, Clone, Copy)]
enum Displacement {
    #[default]
    None,
    Short(u8),
    Long(u32),
    /// The distance of this address.
    To(u64),
}

impl Parts {
    /// Returns the low three bits of `register`'s number, if it is of the kind of `first`. The highest one becomes `bit`
    /// of REX.
    fn register(&mut self, register: Register, first: Register, bit: u8) -> Option<u8> {
        let Numbered { number, needs_rex, excludes_rex } = numbered(register, first)?;
        self.needs_rex |= needs_rex;
        self.excludes_rex |= excludes_rex;
        self.rex |= if number < 8 { 0 } else { bit };
        Some(number & 7)
    }

    /// Sets the memory operand. Returns None if it is left to iced-x86.
    fn memory(&mut self, operand: &MemoryOperand) -> Option<()> {
        const NONE: Register = Register::None;
        let MemoryOperand { base, index, scale, displacement, displ_size: size, .. } = *operand;
        let scale = scale.trailing_zeros() as u8;
        if base == Register::RIP {
            self.mod_rm |= 5;
            self.displacement = Displacement::To(displacement as u64);
            return (index == NONE && scale == 0).then_some(());
        }
        let has_short_address = base.is_gpr32() || base == NONE && index.is_gpr32();
        let limit = if has_short_address { i64::from(u32::MAX) } else { i32::MAX.into() };
        if !(i64::from(i32::MIN)..=limit).contains(&displacement) {
            return None;
        }
        let long = Displacement::Long(displacement as u32);
        if (base, index) == (NONE, NONE) {
            (self.mod_rm, self.sib) = (self.mod_rm | 4, Some(scale << 6 | 0x25));
            self.displacement = long;
            return (size == 8).then_some(());
        }
        self.has_short_address = has_short_address;
        let first = if has_short_address { Register::EAX } else { Register::RAX };
        let base = if base == NONE { None } else { Some(self.register(base, first, REX_B)?) };
        let index_number = if index == NONE { 4 } else { self.register(index, first, REX_X)? };
        if matches!(index, Register::RSP | Register::ESP) {
            return None;
        }
        let short = i8::try_from(displacement as u32 as i32).ok();
        let Some(base) = base else {
            (self.mod_rm, self.sib) = (self.mod_rm | 4, Some(scale << 6 | index_number << 3 | 5));
            self.displacement = long;
            return Some(());
        };
        let (mode, displacement) = match (size, short) {
            (0, Some(0)) if base != 5 => (0, Displacement::None),
            (0, Some(0)) => (0x40, Displacement::Short(0)),
            (1, Some(short)) => (0x40, Displacement::Short(short as u8)),
            (1, None) => (0x80, long),
            (4, _) if has_short_address => (0x80, long),
            (8, _) if !has_short_address => (0x80, long),
            _ => return None,
        };
        self.displacement = displacement;
        self.mod_rm |= mode;
        if index == NONE && base != 4 && scale == 0 {
            self.mod_rm |= base;
        } else {
            (self.mod_rm, self.sib) =
                (self.mod_rm | 4, Some(scale << 6 | index_number << 3 | base));
        }
        Some(())
    }

    /// Sets operand `number`, which is in `place`. Returns None if it is left to iced-x86.
    fn operand(&mut self, instruction: &Instruction, number: u32, place: Place) -> Option<()> {
        let kind = instruction.op_kind(number);
        let is_register = kind == OpKind::Register;
        match place {
            Place::Rm(_) if kind == OpKind::Memory => self.memory(&MemoryOperand {
                base: instruction.memory_base(),
                index: instruction.memory_index(),
                scale: instruction.memory_index_scale(),
                displacement: instruction.memory_displacement64() as i64,
                displ_size: instruction.memory_displ_size(),
                is_broadcast: false,
                segment_prefix: Register::None,
            })?,
            Place::Rm(first) if is_register && first != Register::None => {
                let register = self.register(instruction.op_register(number), first, REX_B)?;
                self.mod_rm |= 0xc0 | register;
            }
            Place::Reg(first) if is_register => {
                let register = self.register(instruction.op_register(number), first, REX_R)?;
                self.mod_rm |= register << 3;
            }
            Place::Opcode(first) if is_register => {
                self.opcode += self.register(instruction.op_register(number), first, REX_B)?;
            }
            Place::Always(register) if is_register => {
                return (instruction.op_register(number) == register).then_some(());
            }
            Place::Number(len) if !is_register && kind != OpKind::Memory => {
                self.numbers = instruction.immediate(number).to_le_bytes();
                self.numbers_len = len;
            }
            Place::One => return (instruction.immediate(number) == 1).then_some(()),
            _ => return None,
        }
        Some(())
    }

    /// Returns the bytes of an instruction of `form` at `address`, with the prefix of `segment`.
    fn bytes(&self, form: &Form, segment: Register, address: u64) -> Option<Bytes> {
        let has_rex = self.rex != 0 || self.needs_rex;
        if has_rex && self.excludes_rex {
            return None;
        }
        let mut bytes = Bytes::default();
        match segment {
            Register::None => {}
            Register::ES => bytes.push(0x26),
            Register::CS => bytes.push(0x2e),
            Register::SS => bytes.push(0x36),
            Register::DS => bytes.push(0x3e),
            Register::FS => bytes.push(0x64),
            _ => bytes.push(0x65),
        }
        if form.has_short_operands {
            bytes.push(0x66);
        }
        if self.has_short_address {
            bytes.push(0x67);
        }
        if form.prefix != 0 {
            bytes.push(form.prefix);
        }
        if has_rex {
            bytes.push(REX | self.rex);
        }
        bytes.append(form.escape);
        bytes.push(self.opcode);
        if form.has_mod_rm {
            bytes.push(self.mod_rm);
        }
        if let Some(sib) = self.sib {
            bytes.push(sib);
        }
        let numbers = &self.numbers[..self.numbers_len];
        match self.displacement {
            Displacement::None => {}
            Displacement::Short(short) => bytes.push(short),
            Displacement::Long(long) => bytes.append(&long.to_le_bytes()),
            Displacement::To(target) => {
                let end = address + (bytes.len + size_of::<i32>() + numbers.len()) as u64;
                let distance = i32::try_from(target.wrapping_sub(end) as i64).ok()?;
                bytes.append(&distance.to_le_bytes());
            }
        }
        bytes.append(numbers);
        (bytes.len <= LONGEST).then_some(bytes)
    }
}

/// The bytes of an instruction. The longest one of these forms would have 22.
#[derive(Default)]
struct Bytes {
    bytes: [u8; 24],
    len: usize,
}

impl Bytes {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Appends `instruction`, which will be at `address`, to `code`. Returns false, and appends nothing, if it is left to
/// iced-x86.
pub(super) fn encode(instruction: &Instruction, address: u64, code: &mut Vec<u8>) -> bool {
    let form = FORMS[instruction.code() as usize].as_ref();
    let Some(bytes) = form.and_then(|form| encoded(form, instruction, address)) else {
        return false;
    };
    code.extend_from_slice(&bytes.bytes[..bytes.len]);
    true
}

/// Returns the bytes of `instruction`.
fn encoded(form: &Form, instruction: &Instruction, address: u64) -> Option<Bytes> {
    let has_prefix = instruction.has_lock_prefix()
        || instruction.has_rep_prefix()
        || instruction.has_repne_prefix();
    if has_prefix {
        return None;
    }
    let mut parts =
        Parts { rex: form.rex, opcode: form.opcode, mod_rm: form.extension, ..Parts::default() };
    for (number, place) in (0..).zip(form.places.iter().flatten()) {
        parts.operand(instruction, number, *place)?;
    }
    parts.bytes(form, instruction.segment_prefix(), address)
}

/// Appends an instruction of `opcode`, of one byte, or of two with 0Fh, with `register`, of 32 or 64 bits, and `memory`.
/// Returns false, and appends nothing, if there is none.
pub(super) fn encode_access(
    opcode: [u8; 2],
    register: Register,
    memory: &MemoryOperand,
    address: u64,
    code: &mut Vec<u8>,
) -> bool {
    let first = if register.is_gpr64() { Register::RAX } else { Register::EAX };
    let form = Form {
        has_short_operands: false,
        prefix: 0,
        rex: if register.is_gpr64() { REX_W } else { 0 },
        escape: if opcode[0] == 0 { &[] } else { &[0x0f] },
        opcode: opcode[1],
        extension: 0,
        has_mod_rm: true,
        places: [None; 3],
    };
    let mut parts = Parts { rex: form.rex, opcode: form.opcode, ..Parts::default() };
    let Some(number) = parts.register(register, first, REX_R) else { return false };
    parts.mod_rm = number << 3;
    let bytes =
        parts.memory(memory).and_then(|()| parts.bytes(&form, memory.segment_prefix, address));
    let Some(bytes) = bytes else { return false };
    code.extend_from_slice(&bytes.bytes[..bytes.len]);
    true
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Encoder};

    use super::*;
    use crate::code::copy::set_memory;

    const ADDRESS: u64 = 0x2800_0000;

    /// Checks that `instruction` is encoded as iced-x86 does, or left to it. Returns whether it is encoded.
    fn is_encoded(instruction: &Instruction) -> bool {
        let mut encoder = Encoder::new(64);
        let exists = encoder.encode(instruction, ADDRESS).is_ok();
        let expected = encoder.take_buffer();
        let mut bytes = Vec::new();
        let is_encoded = encode(instruction, ADDRESS, &mut bytes);
        if is_encoded {
            assert!(exists, "{instruction}");
            assert_eq!(bytes, expected, "{instruction}");
        }
        is_encoded
    }

    /// A generator of random numbers.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            self.0 >> 16
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.next() % limit
        }

        /// Returns a register of 64 bits, or at times one of 32, or none.
        fn register(&mut self) -> Register {
            match self.below(10) {
                0 => Register::None,
                1 => Register::EAX + self.below(16) as u32,
                _ => Register::RAX + self.below(16) as u32,
            }
        }

        fn memory(&mut self) -> MemoryOperand {
            let displacement = match self.below(4) {
                0 => 0,
                1 => i64::from(self.next() as i8),
                2 => i64::from(self.next() as i32),
                _ => i64::from(self.next() as u32),
            };
            let size = [0, 1, 4, 8][self.below(4) as usize];
            let segment = [Register::None, Register::GS, Register::DS][self.below(3) as usize];
            if self.below(8) == 0 {
                let target = (ADDRESS as i64).wrapping_add(displacement);
                return MemoryOperand::new(
                    Register::RIP,
                    Register::None,
                    1,
                    target,
                    8,
                    false,
                    segment,
                );
            }
            let index = if self.below(2) == 0 { Register::None } else { self.register() };
            let scale = if index == Register::None { 1 } else { 1 << self.below(4) };
            MemoryOperand::new(self.register(), index, scale, displacement, size, false, segment)
        }
    }

    #[test]
    fn instructions_are_encoded_as_by_iced() {
        let mut random = Random(1);
        let mut encoded = 0;
        for _ in 0..300_000 {
            // With REX and a short opcode, or with two bytes, or any bytes.
            let mut bytes = [0_u8; 16];
            for part in bytes.chunks_mut(4) {
                part.copy_from_slice(&(random.next() as u32).to_le_bytes());
            }
            match random.below(4) {
                0 => bytes[0] = 0x40 | bytes[0] & 0xf,
                1 => bytes[0] = 0x0f,
                2 => (bytes[0], bytes[1]) = (0x66, 0x40 | bytes[1] & 0xf),
                _ => {}
            }
            let mut instruction =
                Decoder::with_ip(64, &bytes, ADDRESS, DecoderOptions::NONE).decode();
            if instruction.is_invalid() {
                continue;
            }
            encoded += u32::from(is_encoded(&instruction));
            if instruction.op_kinds().any(|kind| kind == OpKind::Memory) {
                set_memory(&mut instruction, &random.memory());
                encoded += u32::from(is_encoded(&instruction));
            }
        }
        assert!(encoded > 150_000, "{encoded}");
    }
}
