//! The string instructions of SSE4.2 (SDM vol. 2, 4.1, "Imm8 control byte operation"): PCMPxSTRx.
//!
//! Each instruction compares two short strings of bytes or words in XMM registers, and computes from the
//! comparison a bit for each element of the second one.

use std::array;

use iced_x86::Code;
use ring3_core::memory::Memory;

use super::vex::Xmm;
use super::{Lane, Vector, immediate, vector};
use crate::cpu::{Cpu, reg};
use crate::decode::Op;
use crate::exception::Stopped;
use crate::exec::{Done, Mem, Place, Reg};
use crate::flags::{Eflags, Status};
use crate::table::{Rows, exec};

/// Rows for a form of SSE4.2 and that of AVX.
macro_rules! compare {
    ($rows:ident, [$sse:ident $avx:ident], $length:ty, $output:ty) => {
        $rows.add(
            Code::$sse,
            exec!(compare::<Mem, $length, $output, u128>),
            exec!(compare::<Reg, $length, $output, u128>),
        );
        $rows.add(
            Code::$avx,
            exec!(compare::<Mem, $length, $output, Xmm>),
            exec!(compare::<Reg, $length, $output, Xmm>),
        );
    };
}

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    compare!(rows, [Pcmpestrm_xmm_xmmm128_imm8 VEX_Vpcmpestrm_xmm_xmmm128_imm8], Explicit, Mask);
    compare!(rows, [Pcmpestri_xmm_xmmm128_imm8 VEX_Vpcmpestri_xmm_xmmm128_imm8], Explicit, Index);
    compare!(rows, [Pcmpestrm64_xmm_xmmm128_imm8 VEX_Vpcmpestrm64_xmm_xmmm128_imm8], ExplicitLong, Mask);
    compare!(rows, [Pcmpestri64_xmm_xmmm128_imm8 VEX_Vpcmpestri64_xmm_xmmm128_imm8], ExplicitLong, Index);
    compare!(rows, [Pcmpistrm_xmm_xmmm128_imm8 VEX_Vpcmpistrm_xmm_xmmm128_imm8], Implicit, Mask);
    compare!(rows, [Pcmpistri_xmm_xmmm128_imm8 VEX_Vpcmpistri_xmm_xmmm128_imm8], Implicit, Index);
}

/// A string: its elements, extended for the comparison, and its length.
struct Text {
    elements: Vec16,
    length: usize,
}

/// Space for sixteen elements. Strings of words use eight.
type Vec16 = [i32; 16];

/// The control byte.
#[derive(Clone, Copy)]
struct Control(usize);

impl Control {
    fn has_words(self) -> bool {
        self.0 & 1 != 0
    }

    fn is_signed(self) -> bool {
        self.0 & 2 != 0
    }

    /// Returns the number of elements in a register.
    fn count(self) -> usize {
        if self.has_words() { 8 } else { 16 }
    }

    /// Returns the mask of all result bits.
    fn all(self) -> u32 {
        u32::MAX >> (32 - self.count())
    }

    /// Returns the elements of `string`.
    fn elements(self, string: u128) -> Vec16 {
        let word = |index: usize| string.lane::<u16>(index % 8);
        match (self.has_words(), self.is_signed()) {
            (false, false) => string.to_le_bytes().map(i32::from),
            (false, true) => string.to_le_bytes().map(|byte| (byte as i8).into()),
            (true, false) => array::from_fn(|index| word(index).into()),
            (true, true) => array::from_fn(|index| (word(index) as i16).into()),
        }
    }
}

/// The way in which the end of a string is determined.
trait Length {
    /// Returns the length of the string of `elements`. `register` holds an explicit length.
    fn length(cpu: &Cpu, register: u8, elements: &[i32]) -> usize;
}

/// The length is in EAX or EDX: the absolute value, but at most the number of elements.
struct Explicit;
/// The length is in RAX or RDX in the same way.
struct ExplicitLong;
/// The string ends at its first element of 0.
struct Implicit;

impl Length for Explicit {
    fn length(cpu: &Cpu, register: u8, elements: &[i32]) -> usize {
        let length = (cpu.get::<u32>(register) as i32).unsigned_abs() as usize;
        length.min(elements.len())
    }
}

impl Length for ExplicitLong {
    fn length(cpu: &Cpu, register: u8, elements: &[i32]) -> usize {
        let length = (cpu.gpr(register) as i64).unsigned_abs();
        usize::try_from(length).map_or(elements.len(), |length| length.min(elements.len()))
    }
}

impl Length for Implicit {
    fn length(_: &Cpu, _: u8, elements: &[i32]) -> usize {
        elements.iter().position(|element| *element == 0).unwrap_or(elements.len())
    }
}

/// The output of the result bits.
trait Output {
    /// Writes the result bits.
    fn write<V: Vector>(cpu: &mut Cpu, control: Control, bits: u32);
}

/// They are written to XMM0, directly or expanded to its elements.
struct Mask;
/// The index of the first or the last of them is written to ECX.
struct Index;

/// Bit 6: select the last bit, or an expanded mask.
const OUTPUT_SELECTION: usize = 0x40;

impl Output for Mask {
    fn write<V: Vector>(cpu: &mut Cpu, control: Control, bits: u32) {
        let spread = |index: usize| if bits >> index & 1 != 0 { u64::MAX } else { 0 };
        let value = match (control.0 & OUTPUT_SELECTION != 0, control.has_words()) {
            (false, _) => u128::from(bits),
            (true, false) => vector(|index| u8::of(spread(index))),
            (true, true) => vector(|index| u16::of(spread(index))),
        };
        V::set(cpu, 0, V::of(value));
    }
}

impl Output for Index {
    fn write<V: Vector>(cpu: &mut Cpu, control: Control, bits: u32) {
        let index = match bits {
            0 => control.count() as u32,
            _ if control.0 & OUTPUT_SELECTION != 0 => bits.ilog2(),
            _ => bits.trailing_zeros(),
        };
        cpu.set(reg::CX, index);
    }
}

/// Returns the second operand, which need not be aligned.
fn second_operand<P: Place>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<u128, Stopped> {
    if P::IS_REGISTER { Ok(cpu.sse.xmm(op.rm)) } else { u128::load(cpu, memory, op, false) }
}

fn compare<P: Place, L: Length, O: Output, V: Vector>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    let control = Control(immediate(op));
    let b = second_operand::<P>(cpu, memory, op)?;
    let a = cpu.sse.xmm(op.reg);
    let text = |string: u128, register: u8| {
        let elements = control.elements(string);
        Text { elements, length: L::length(cpu, register, &elements[..control.count()]) }
    };
    let (a, b) = (text(a, reg::AX), text(b, reg::DX));
    let bits = polarized(control, aggregated(control, &a, &b), &b);
    let mut flags = Eflags::empty();
    flags.set(Eflags::CF, bits != 0);
    flags.set(Eflags::ZF, b.length < control.count());
    flags.set(Eflags::SF, a.length < control.count());
    flags.set(Eflags::OF, bits & 1 != 0);
    O::write::<V>(cpu, control, bits);
    cpu.status = Status::from_eflags(flags);
    Ok(())
}

/// Returns a bit for each of the first `count` elements for which `holds` is true.
#[inline(always)]
fn bits(count: usize, holds: impl Fn(usize) -> bool) -> u32 {
    (0..count).fold(0, |bits, index| bits | u32::from(holds(index)) << index)
}

/// Returns the result of the comparison for each element of `b`. Elements beyond the ends compare as in table
/// 4-7 of the manual.
fn aggregated(control: Control, a: &Text, b: &Text) -> u32 {
    let count = control.count();
    let within = |index: usize| index < b.length;
    match control.0 >> 2 & 3 {
        // Equal any: the element is one of `a`.
        0 => bits(b.length, |j| a.elements[..a.length].contains(&b.elements[j])),
        // Ranges: the element is in one of the ranges in `a`.
        1 => bits(b.length, |j| {
            let mut ranges = a.elements[..a.length].chunks_exact(2);
            ranges.any(|range| range[0] <= b.elements[j] && b.elements[j] <= range[1])
        }),
        // Equal each: the elements are equal, or both beyond the end.
        2 => bits(count, |j| match (j < a.length, within(j)) {
            (true, true) => a.elements[j] == b.elements[j],
            (in_a, in_b) => in_a == in_b,
        }),
        // Equal ordered: `a` is found here, or as much of it as fits.
        _ => bits(count, |j| {
            (0..a.length.min(count - j))
                .all(|i| within(j + i) && a.elements[i] == b.elements[j + i])
        }),
    }
}

/// Negates the bits, either all or those within the second string.
fn polarized(control: Control, bits: u32, b: &Text) -> u32 {
    match control.0 >> 4 & 3 {
        1 => bits ^ control.all(),
        3 => bits ^ (control.all() & !(u32::MAX << b.length)),
        _ => bits,
    }
}
