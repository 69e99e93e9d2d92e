//! Packed shifts (SDM vol. 1, 9.4.6 and 11.4.2).

use super::{Lane, Vector, immediate, map, row, vex};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::Done;
use crate::table::{Rows, plain};

/// Rows for an MMX and an XMM form, and for those of AVX, all lanes of which are shifted by the same count. It is in a
/// vector of 64 or 128 bits.
macro_rules! counted {
    ($rows:ident, [$mm:ident $xmm:ident], $shift:ident, $lane:ty) => {
        row!($rows, u64, [$mm], combine, |a, b| $shift::<_, $lane>(a, count(b)));
        row!($rows, { u128 }, [$xmm], combine, |a, b| $shift::<_, $lane>(a, count(b)));
        vex::row!($rows, $xmm, counted, $shift::<u128, $lane>);
    };
}

/// Rows for an MMX and an XMM form, or the latter alone, and for those of AVX, with an immediate operand as the count.
macro_rules! by_immediate {
    ($rows:ident, [$mm:ident $xmm:ident], $shift:ident, $lane:ty) => {
        plain!($rows, [$mm], |cpu, _, op| by_immediate(cpu, op, $shift::<u64, $lane>));
        by_immediate!($rows, [$xmm], $shift::<u128, $lane>);
    };
    ($rows:ident, [$xmm:ident], $shift:expr) => {
        plain!($rows, [$xmm], |cpu, _, op| by_immediate(cpu, op, $shift));
        vex::row!($rows, $xmm, by_immediate, $shift);
    };
}

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    counted!(rows, [Psllw_mm_mmm64 Psllw_xmm_xmmm128], left, u16);
    counted!(rows, [Pslld_mm_mmm64 Pslld_xmm_xmmm128], left, u32);
    counted!(rows, [Psllq_mm_mmm64 Psllq_xmm_xmmm128], left, u64);
    counted!(rows, [Psrlw_mm_mmm64 Psrlw_xmm_xmmm128], right, u16);
    counted!(rows, [Psrld_mm_mmm64 Psrld_xmm_xmmm128], right, u32);
    counted!(rows, [Psrlq_mm_mmm64 Psrlq_xmm_xmmm128], right, u64);
    counted!(rows, [Psraw_mm_mmm64 Psraw_xmm_xmmm128], arithmetic, i16);
    counted!(rows, [Psrad_mm_mmm64 Psrad_xmm_xmmm128], arithmetic, i32);

    by_immediate!(rows, [Psllw_mm_imm8 Psllw_xmm_imm8], left, u16);
    by_immediate!(rows, [Pslld_mm_imm8 Pslld_xmm_imm8], left, u32);
    by_immediate!(rows, [Psllq_mm_imm8 Psllq_xmm_imm8], left, u64);
    by_immediate!(rows, [Psrlw_mm_imm8 Psrlw_xmm_imm8], right, u16);
    by_immediate!(rows, [Psrld_mm_imm8 Psrld_xmm_imm8], right, u32);
    by_immediate!(rows, [Psrlq_mm_imm8 Psrlq_xmm_imm8], right, u64);
    by_immediate!(rows, [Psraw_mm_imm8 Psraw_xmm_imm8], arithmetic, i16);
    by_immediate!(rows, [Psrad_mm_imm8 Psrad_xmm_imm8], arithmetic, i32);
    by_immediate!(rows, [Pslldq_xmm_imm8], left_by_bytes);
    by_immediate!(rows, [Psrldq_xmm_imm8], right_by_bytes);
}

/// Returns the count, which is the whole low quadword of the source.
pub(super) fn count<V: Vector>(source: V) -> u64 {
    source.lane(0)
}

fn left<V: Vector, L: Lane>(a: V, count: u64) -> V {
    map(a, |lane: L| if count < L::BITS as u64 { L::of(lane.bits() << count) } else { L::of(0) })
}

fn right<V: Vector, L: Lane>(a: V, count: u64) -> V {
    map(a, |lane: L| if count < L::BITS as u64 { L::of(lane.bits() >> count) } else { L::of(0) })
}

/// Shifts right with copies of the sign; `L` is signed.
fn arithmetic<V: Vector, L: Lane>(a: V, count: u64) -> V {
    map(a, |lane: L| L::of((lane.bits() as i64 >> count.min(63)) as u64))
}

fn left_by_bytes(a: u128, bytes: u64) -> u128 {
    if bytes < 16 { a << (8 * bytes) } else { 0 }
}

fn right_by_bytes(a: u128, bytes: u64) -> u128 {
    if bytes < 16 { a >> (8 * bytes) } else { 0 }
}

/// Shifts the register that ModRM.rm specifies by the immediate operand.
fn by_immediate<V: Vector>(cpu: &mut Cpu, op: &Op, shift: impl Fn(V, u64) -> V) -> Done {
    V::begin(cpu)?;
    V::set(cpu, op.rm, shift(V::get(cpu, op.rm), immediate(op) as u64));
    Ok(())
}
