//! A random case: an x87 instruction, with a state and memory in which it has an effect.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use ring3_hostcpu::{Layout, LongState, LongStop, Region, Vendor, eflags};
use ring3_x86::table;

use crate::common::comparison::{Case, Outcome, Poke, Scene, data_offset, mask};
use crate::common::guest::Pace;
use crate::common::random::Random;

const LAYOUT: Layout = Layout::FIXED;

/// Bytes of the largest memory operand.
pub(crate) const OPERAND_SIZE: usize = 108;

/// All exceptions, as flags or as masks.
const EXCEPTIONS: u16 = 0x3f;
/// SF of the status word.
const STACK_FAULT: u16 = 0x40;
/// ES and B of the status word.
const SUMMARY: u16 = 0x8080;

/// A case of an x87 instruction.
pub(crate) struct X87Scene {
    case: Case,
    /// The address of the memory operand, if there is one.
    address: u64,
}

impl X87Scene {
    /// Makes a random case of `encoding`, one of [`encodings`], in code of `bits` bits.
    pub(crate) fn random(random: &mut Random, encoding: &[u8], bits: u32) -> X87Scene {
        let mut code = encoding.to_vec();
        let address = operand_address(random);
        let start = start(random, bits);
        if has_memory_operand(encoding) {
            let place = code.len() - 4;
            // In 64-bit code the displacement is relative to the next instruction.
            let base = if bits == 64 { start.rip as u32 + code.len() as u32 } else { 0 };
            code[place..].copy_from_slice(&address.wrapping_sub(base).to_le_bytes());
        }
        let instruction = decode(&code, bits);
        let address = address.into();
        let pokes = vec![Poke { address, bytes: operand(random).to_vec() }];
        let case = Case { bits, code, instruction, start, pokes, pace: Pace::ONCE };
        X87Scene { case, address }
    }

    /// Returns the bytes of the operand that become instruction and operand pointers.
    fn pointers(&self) -> Range<u64> {
        match self.case.instruction.code() {
            Code::Fnstenv_m14byte | Code::Fnsave_m94byte => 6..14,
            Code::Fnstenv_m28byte | Code::Fnsave_m108byte => 12..28,
            _ => 0..0,
        }
    }

    /// Returns whether the instruction stores a number, which it may have to convert.
    fn stores(&self) -> bool {
        matches!(
            self.case.instruction.mnemonic(),
            Mnemonic::Fst
                | Mnemonic::Fstp
                | Mnemonic::Fist
                | Mnemonic::Fistp
                | Mnemonic::Fisttp
                | Mnemonic::Fbstp
        )
    }

    /// Returns whether the memory operand is an environment or a whole state.
    fn is_image(&self) -> bool {
        let loads = [
            Code::Fldenv_m14byte,
            Code::Fldenv_m28byte,
            Code::Frstor_m94byte,
            Code::Frstor_m108byte,
        ];
        loads.contains(&self.case.instruction.code()) || !self.pointers().is_empty()
    }
}

impl Scene for X87Scene {
    fn case(&self) -> &Case {
        &self.case
    }

    /// Leaves out FPREM on other processors, which choose how far one step goes (SDM vol. 2, FPREM); ours
    /// follows AMD's.
    fn is_left_out(&self, _: &Outcome, vendor: Vendor) -> bool {
        let is_step = matches!(self.case.instruction.code(), Code::Fprem | Code::Fprem1);
        is_step && vendor != Vendor::Amd
    }

    fn forgive(&self, host: &mut Outcome, ours: &Outcome) {
        // An unmasked exception prevents storing a value. Intel's processors raise the exception and do not
        // access memory; AMD's and ours access memory first.
        let faults = matches!(ours.stop, LongStop::Exception { vector: 14, .. });
        if faults
            && host.stop == LongStop::Reached
            && self.stores()
            && host.state.fx.fsw() & SUMMARY != 0
        {
            *host = ours.clone();
        }
        // Intel's processors store the first eight bytes of ten before the others, which may be in a
        // page of their own.
        let ten_bytes = [Code::Fstp_m80fp, Code::Fbstp_m80bcd];
        if faults && ten_bytes.contains(&self.case.instruction.code()) {
            for offset in 0..8 {
                if let Some(place) = data_offset(self.address.wrapping_add(offset)) {
                    host.data[place] = ours.data[place];
                }
            }
        }
        // Processors differ in when they keep the pointers.
        for offset in self.pointers() {
            if let Some(place) = data_offset(self.address.wrapping_add(offset)) {
                host.data[place] = ours.data[place];
            }
        }
        // They access the parts of an image in different orders, so either of its pages may be the first one
        // to fault.
        if let LongStop::Exception { cr2, .. } = &mut host.stop
            && let LongStop::Exception { cr2: our_cr2, .. } = ours.stop
            && self.is_image()
        {
            *cr2 = *cr2 & !0xfff | our_cr2 & 0xfff;
        }
    }
}

/// Returns all encodings of all forms in the instruction table for code of `bits` bits. Memory operands are a
/// displacement, the last four bytes.
pub(crate) fn encodings(bits: u32) -> Vec<Vec<u8>> {
    let mut encodings = vec![vec![0x9b]];
    for opcode in 0xd8..=0xdf {
        encodings.extend((0xc0..=0xff).map(|modrm| vec![opcode, modrm]));
        for field in 0..8 {
            let memory = [0x66, opcode, field << 3 | 5, 0, 0, 0, 0];
            encodings.push(memory.to_vec());
            encodings.push(memory[1..].to_vec());
        }
    }
    encodings.retain(|bytes| {
        let instruction = decode(bytes, bits);
        !instruction.is_invalid() && table::find(instruction.code()).is_some()
    });
    encodings
}

fn has_memory_operand(encoding: &[u8]) -> bool {
    encoding.len() > 2
}

fn decode(bytes: &[u8], bits: u32) -> Instruction {
    Decoder::new(bits, bytes, DecoderOptions::NONE).decode()
}

/// Returns the address of an operand: usually inside the data region, and otherwise across a page boundary,
/// where some accesses fault.
fn operand_address(random: &mut Random) -> u32 {
    let Region { start, .. } = LAYOUT.data;
    let boundary = match random.below(16) {
        0 => start,
        1 => LAYOUT.data.end(),
        2 => LAYOUT.read_only.end(),
        3 => start + 0x1000,
        _ => return start + random.below(0x1000),
    };
    boundary - random.below(OPERAND_SIZE as u32 + 8)
}

fn start(random: &mut Random, bits: u32) -> LongState {
    let mut state = LongState::at(LAYOUT.code.start.into());
    state.rflags |= random.bits() & eflags::STATUS;
    for register in &mut state.gpr[..if bits == 64 { 16 } else { 8 }] {
        *register = random.next() & mask(bits);
    }
    let fx = &mut state.fx;

    let masks = if random.percent(50) { EXCEPTIONS } else { random.bits() as u16 & EXCEPTIONS };
    let precision = random.pick(&[0, 2, 3, 3]) << 8;
    let rounding_and_infinity = (random.bits() as u16 & 7) << 10;
    fx.set_fcw(masks | 0x40 | precision | rounding_and_infinity);

    let mut status = random.bits() as u16 & !SUMMARY;
    match random.below(8) {
        0 => {}
        1..4 => status &= !EXCEPTIONS | masks,
        _ => status &= !(EXCEPTIONS | STACK_FAULT),
    }
    if status & EXCEPTIONS & !masks != 0 {
        status |= SUMMARY;
    }
    fx.set_fsw(status);

    let above_top = 1 << (fx.top().wrapping_sub(1) & 7);
    fx.set_ftw(match random.below(8) {
        0 => random.bits() as u8,
        1 => !(1 << random.below(8)),
        2..5 => !above_top,
        _ => 0xff,
    });
    for i in 0..8 {
        fx.set_st(i, f80(random));
    }
    state
}

/// Returns a memory operand in one of the formats, followed by random bytes.
fn operand(random: &mut Random) -> [u8; OPERAND_SIZE] {
    let mut bytes = std::array::from_fn(|_| random.bits() as u8);
    match random.below(6) {
        0 => bytes[..4].copy_from_slice(&(ieee(random, 8, 23) as u32).to_le_bytes()),
        1 => bytes[..8].copy_from_slice(&ieee(random, 11, 52).to_le_bytes()),
        2 => bytes[..10].copy_from_slice(&f80(random)),
        3 => bytes[..8].copy_from_slice(&fraction(random).to_le_bytes()),
        4 => {
            let digits = |_| (random.below(10) << 4 | random.below(10)) as u8;
            bytes[..9].copy_from_slice(&std::array::from_fn::<u8, 9, _>(digits));
        }
        _ => {}
    }
    bytes
}

/// Returns 64 bits for fractions with long runs of zeros and ones.
fn fraction(random: &mut Random) -> u64 {
    let bits = random.next();
    match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << (bits & 63),
        3 => u64::MAX << (bits & 63),
        4 => u64::MAX >> (bits & 63),
        5 => bits << 40,
        _ => bits,
    }
}

/// Returns a value of any class in the registers' format, often with an exponent at the limit of some format.
pub(crate) fn f80(random: &mut Random) -> [u8; 10] {
    const BIAS: u32 = 0x3fff;
    let near = |random: &mut Random, exponent: u32| exponent + random.below(5) - 2;
    let exponent = match random.below(16) {
        0 => 0,
        1 => 0x7fff,
        2 => 1 + random.below(3),
        3 => 0x7ffe - random.below(3),
        4 => near(random, BIAS - 0x7f),
        5 => near(random, BIAS - 0x3ff),
        6 => near(random, BIAS + 0x7f),
        7 => near(random, BIAS + 0x3ff),
        8 => random.below(0x8000),
        9..12 => BIAS - 4 + random.below(70),
        _ => near(random, BIAS),
    };
    let is_usual = exponent != 0 && !random.percent(8);
    let significand = fraction(random) >> 1 | u64::from(is_usual) << 63;
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&significand.to_le_bytes());
    bytes[8..].copy_from_slice(&(exponent as u16 | random.pick(&[0, 0x8000])).to_le_bytes());
    bytes
}

/// Returns a value in an IEEE format with fields of these sizes.
fn ieee(random: &mut Random, exponent_bits: u32, fraction_bits: u32) -> u64 {
    let maximum = (1 << exponent_bits) - 1;
    let exponent = match random.below(8) {
        0 => 0,
        1 => maximum,
        2 => 1,
        3 => maximum - 1,
        4 => random.below(maximum + 1),
        _ => maximum / 2 - 4 + random.below(9),
    };
    let sign_and_exponent = random.below(2) << exponent_bits | exponent;
    u64::from(sign_and_exponent) << fraction_bits | fraction(random) >> (64 - fraction_bits)
}
