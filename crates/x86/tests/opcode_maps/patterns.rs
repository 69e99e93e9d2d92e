//! The bytes of all instructions, without their immediate operands: prefixes, map, opcode and ModRM.

use iced_x86::{Instruction, OpKind};
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{CodeSize, decoder};

/// Prefixes that have a meaning for some instruction (SDM vol. 2, 2.1.1), alone and as pairs that select
/// instructions. The first ones are also tried with VEX and similar prefixes.
const PREFIXES: [&[u8]; 15] = [
    &[],
    &[0x66],
    &[0xf0],
    &[0xf2],
    &[0xf3],
    &[0x67],
    &[0x2e],
    &[0x36],
    &[0x3e],
    &[0x26],
    &[0x64],
    &[0x66, 0xf2],
    &[0x66, 0xf3],
    &[0x66, 0x67],
    &[0xf0, 0x66],
];

const WITH_VEX: usize = 3;
/// The number of prefixes that are tried on the host.
const PREFIXES_ON_HOST: usize = 6;

/// The bytes before the opcode: the maps of legacy instructions, and the prefixes VEX of two and three bytes,
/// EVEX and XOP, which contain the numbers of their maps. Some of these are LES, LDS, BOUND and POP if they
/// specify memory, so both kinds are here.
const MAPS: [&[u8]; 23] = [
    &[],
    &[0x0f],
    &[0x0f, 0x38],
    &[0x0f, 0x3a],
    // VEX and similar prefixes begin here.
    &[0xc5, 0xf8],
    &[0xc5, 0xf9],
    &[0xc5, 0xfa],
    &[0xc5, 0xff],
    &[0xc4, 0xe1, 0x78],
    &[0xc4, 0xe2, 0x79],
    &[0xc4, 0xe2, 0x72],
    &[0xc4, 0xe3, 0x7b],
    &[0xc4, 0xe2, 0xfd],
    &[0xc4, 0x02, 0x79],
    &[0x62, 0xf1, 0x7c, 0x48],
    &[0x62, 0xf2, 0x7d, 0x08],
    &[0x62, 0xf3, 0x7d, 0x28],
    &[0x62, 0xf5, 0x7c, 0x08],
    &[0x62, 0x01, 0x7c, 0x48],
    &[0x8f, 0xe8, 0x78],
    &[0x8f, 0xe9, 0x78],
    &[0x8f, 0xea, 0x78],
    &[0x8f, 0x08, 0x78],
];

/// The bytes after ModRM: a SIB byte, a displacement or an immediate operand.
const REST: [u8; 10] = [0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Bytes that begin with an instruction.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub(crate) bytes: Vec<u8>,
    /// The offset of ModRM, if there is one.
    pub(crate) modrm: u8,
}

/// Returns all patterns, and for each the 3DNow! instruction, whose opcode comes last.
pub(crate) fn all() -> impl Iterator<Item = Pattern> {
    let maps =
        MAPS.into_iter().flat_map(|map| (0..=255).map(move |opcode| [map, &[opcode]].concat()));
    let usual = maps.flat_map(|opcode| {
        (0..=255).map(move |modrm| ([&opcode[..], &[modrm]].concat(), modrm, REST))
    });
    let three_d = (0..=255).flat_map(|opcode| {
        let rest = [opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        [0xc1, 0x06].map(|modrm| (vec![0x0f, 0x0f, modrm], modrm, rest))
    });
    usual.chain(three_d).flat_map(|(opcode, modrm, rest)| {
        let tried = if is_vex(&opcode) { &PREFIXES[..WITH_VEX] } else { &PREFIXES[..] };
        tried.iter().map(move |prefixes| {
            let mut bytes = [*prefixes, &opcode[..], &rest[..]].concat();
            bytes.truncate(15);
            Pattern { bytes, modrm }
        })
    })
}

/// Returns whether the bytes begin like VEX or a similar prefix.
fn is_vex(bytes: &[u8]) -> bool {
    bytes.len() > 2 && matches!(bytes[0], 0xc4 | 0xc5 | 0x62 | 0x8f)
}

impl Pattern {
    /// Returns the instruction, for an independent view of what it needs. It is decoded as ring3 does where
    /// processors without an extension ignore bits.
    pub(crate) fn instruction(&self, is_32_bit: bool) -> Instruction {
        decoder(&self.bytes, CodeSize::of(is_32_bit), 0, Model::Max).decode()
    }

    /// Returns whether this belongs to an even smaller sample, because each instruction takes some system
    /// calls on the host.
    pub(crate) fn is_host_sample(&self) -> bool {
        let prefixes =
            self.bytes.iter().take_while(|byte| PREFIXES.concat().contains(byte)).count();
        let is_usual = PREFIXES[..PREFIXES_ON_HOST].contains(&&self.bytes[..prefixes]);
        let is_vex = is_vex(&self.bytes[prefixes..]);
        self.is_sample() && is_usual && (!is_vex || prefixes == 0 && self.modrm >> 3 & 7 == 0)
    }

    /// Returns whether this belongs to a small sample of each instruction, opcode and kind of operand, whose
    /// effects are unlike those of others.
    pub(crate) fn is_sample(&self) -> bool {
        let (mode, rm) = (self.modrm >> 6, self.modrm & 7);
        mode == 3 && rm == 1 || mode == 0 && rm == 6
    }
}

/// Returns whether processors of model `model` have `instruction`, by the features that iced-x86 says it
/// needs.
pub(crate) fn is_offered(instruction: &Instruction, model: Model) -> bool {
    !instruction.is_invalid()
        && instruction.cpuid_features().iter().all(|feature| model.has(*feature))
}

/// Returns whether the instruction has an operand in memory.
pub(crate) fn names_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory)
}
