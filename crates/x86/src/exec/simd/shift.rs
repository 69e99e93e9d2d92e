//! Packed shifts (SDM vol. 1, 9.4.6 and 11.4.2).

use super::{Lane, Vector, both, immediate, map};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::Done;
use crate::table::{Rows, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    both!(rows, [Psllw_mm_mmm64 Psllw_xmm_xmmm128], |a, b| left::<_, u16>(a, count(b)));
    both!(rows, [Pslld_mm_mmm64 Pslld_xmm_xmmm128], |a, b| left::<_, u32>(a, count(b)));
    both!(rows, [Psllq_mm_mmm64 Psllq_xmm_xmmm128], |a, b| left::<_, u64>(a, count(b)));
    both!(rows, [Psrlw_mm_mmm64 Psrlw_xmm_xmmm128], |a, b| right::<_, u16>(a, count(b)));
    both!(rows, [Psrld_mm_mmm64 Psrld_xmm_xmmm128], |a, b| right::<_, u32>(a, count(b)));
    both!(rows, [Psrlq_mm_mmm64 Psrlq_xmm_xmmm128], |a, b| right::<_, u64>(a, count(b)));
    both!(rows, [Psraw_mm_mmm64 Psraw_xmm_xmmm128], |a, b| arithmetic::<_, i16>(a, count(b)));
    both!(rows, [Psrad_mm_mmm64 Psrad_xmm_xmmm128], |a, b| arithmetic::<_, i32>(a, count(b)));

    plain!(rows, [Psllw_mm_imm8], |cpu, _, op| by_immediate(cpu, op, left::<u64, u16>));
    plain!(rows, [Pslld_mm_imm8], |cpu, _, op| by_immediate(cpu, op, left::<u64, u32>));
    plain!(rows, [Psllq_mm_imm8], |cpu, _, op| by_immediate(cpu, op, left::<u64, u64>));
    plain!(rows, [Psrlw_mm_imm8], |cpu, _, op| by_immediate(cpu, op, right::<u64, u16>));
    plain!(rows, [Psrld_mm_imm8], |cpu, _, op| by_immediate(cpu, op, right::<u64, u32>));
    plain!(rows, [Psrlq_mm_imm8], |cpu, _, op| by_immediate(cpu, op, right::<u64, u64>));
    plain!(rows, [Psraw_mm_imm8], |cpu, _, op| by_immediate(cpu, op, arithmetic::<u64, i16>));
    plain!(rows, [Psrad_mm_imm8], |cpu, _, op| by_immediate(cpu, op, arithmetic::<u64, i32>));

    plain!(rows, [Psllw_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, left::<u128, u16>));
    plain!(rows, [Pslld_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, left::<u128, u32>));
    plain!(rows, [Psllq_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, left::<u128, u64>));
    plain!(rows, [Psrlw_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, right::<u128, u16>));
    plain!(rows, [Psrld_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, right::<u128, u32>));
    plain!(rows, [Psrlq_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, right::<u128, u64>));
    plain!(rows, [Psraw_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, arithmetic::<u128, i16>));
    plain!(rows, [Psrad_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, arithmetic::<u128, i32>));
    plain!(rows, [Pslldq_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, left_by_bytes));
    plain!(rows, [Psrldq_xmm_imm8], |cpu, _, op| by_immediate(cpu, op, right_by_bytes));
}

/// Returns the count, which is the whole low quadword of the source.
fn count<V: Vector>(source: V) -> u64 {
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
    V::enter(cpu);
    V::set(cpu, op.rm, shift(V::get(cpu, op.rm), immediate(op) as u64));
    Ok(())
}
