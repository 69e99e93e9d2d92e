//! Instructions that move lanes to other places (SDM vol. 1, 9.4.4, 9.4.5, 10.4.4, 11.4.2, 12.6, 12.10):
//! pack, unpack, shuffle, blend, extend, duplicate.

use ring3_core::memory::Memory;

use super::{Lane, Source, Vector, both, combine, combine_low, immediate, row, vector};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::{Done, Mem, Reg};
use crate::table::{Rows, exec, rm};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    both!(rows, [Packsswb_mm_mmm64 Packsswb_xmm_xmmm128], |a, b| pack(a, b, |lane: i16| {
        lane.clamp(i8::MIN.into(), i8::MAX.into()) as i8
    }));
    both!(rows, [Packuswb_mm_mmm64 Packuswb_xmm_xmmm128], |a, b| pack(a, b, |lane: i16| {
        lane.clamp(0, u8::MAX.into()) as u8
    }));
    both!(rows, [Packssdw_mm_mmm64 Packssdw_xmm_xmmm128], |a, b| pack(a, b, |lane: i32| {
        lane.clamp(i16::MIN.into(), i16::MAX.into()) as i16
    }));
    row!(rows, u128, [Packusdw_xmm_xmmm128], combine, |a, b| pack(a, b, |lane: i32| {
        lane.clamp(0, u16::MAX.into()) as u16
    }));

    // The forms on MMX registers read only the half of a memory operand that they need.
    rm!(rows, u32, [Punpcklbw_mm_mmm32], unpack_doubleword, u8);
    rm!(rows, u32, [Punpcklwd_mm_mmm32], unpack_doubleword, u16);
    rm!(rows, u32, [Punpckldq_mm_mmm32], unpack_doubleword, u32);
    row!(rows, u128, [Punpcklbw_xmm_xmmm128], combine, interleave_low::<_, u8>);
    row!(rows, u128, [Punpcklwd_xmm_xmmm128], combine, interleave_low::<_, u16>);
    row!(rows, u128, [Punpckldq_xmm_xmmm128], combine, interleave_low::<_, u32>);
    row!(rows, u128, [Punpcklqdq_xmm_xmmm128], combine, interleave_low::<_, u64>);
    both!(rows, [Punpckhbw_mm_mmm64 Punpckhbw_xmm_xmmm128], interleave_high::<_, u8>);
    both!(rows, [Punpckhwd_mm_mmm64 Punpckhwd_xmm_xmmm128], interleave_high::<_, u16>);
    both!(rows, [Punpckhdq_mm_mmm64 Punpckhdq_xmm_xmmm128], interleave_high::<_, u32>);
    row!(rows, u128, [Punpckhqdq_xmm_xmmm128], combine, interleave_high::<_, u64>);
    row!(rows, u128, [Unpcklps_xmm_xmmm128], combine, interleave_low::<_, u32>);
    row!(rows, u128, [Unpcklpd_xmm_xmmm128], combine, interleave_low::<_, u64>);
    row!(rows, u128, [Unpckhps_xmm_xmmm128], combine, interleave_high::<_, u32>);
    row!(rows, u128, [Unpckhpd_xmm_xmmm128], combine, interleave_high::<_, u64>);

    both!(rows, [Pshufb_mm_mmm64 Pshufb_xmm_xmmm128], shuffle_bytes);
    row!(rows, u64, [Pshufw_mm_mmm64_imm8], combine_by, |_, b, by| shuffle_words(b, by, 0));
    row!(rows, u128, [Pshuflw_xmm_xmmm128_imm8], combine_by, |_, b, by| shuffle_words(b, by, 0));
    row!(rows, u128, [Pshufhw_xmm_xmmm128_imm8], combine_by, |_, b, by| shuffle_words(b, by, 4));
    row!(rows, u128, [Pshufd_xmm_xmmm128_imm8], combine_by, |_, b, by| {
        vector(|index| b.lane::<u32>(by >> (2 * index) & 3))
    });
    row!(rows, u128, [Shufps_xmm_xmmm128_imm8], combine_by, |a, b, by| {
        vector(|index| (if index < 2 { a } else { b }).lane::<u32>(by >> (2 * index) & 3))
    });
    row!(rows, u128, [Shufpd_xmm_xmmm128_imm8], combine_by 2, |a, b, by| {
        vector(|index| (if index < 1 { a } else { b }).lane::<u64>(by >> index & 1))
    });
    row!(rows, u64, [Palignr_mm_mmm64_imm8], combine_by, align);
    row!(rows, u128, [Palignr_xmm_xmmm128_imm8], combine_by, align);

    row!(rows, u128, [Pblendw_xmm_xmmm128_imm8], combine_by, blend::<u16>);
    row!(rows, u128, [Blendps_xmm_xmmm128_imm8], combine_by 4, blend::<u32>);
    row!(rows, u128, [Blendpd_xmm_xmmm128_imm8], combine_by 2, blend::<u64>);
    rm!(rows, u8, [Pblendvb_xmm_xmmm128], blend_by_xmm0);
    rm!(rows, u32, [Blendvps_xmm_xmmm128], blend_by_xmm0);
    rm!(rows, u64, [Blendvpd_xmm_xmmm128], blend_by_xmm0);
    rows.add(
        iced_x86::Code::Insertps_xmm_xmmm32_imm8,
        exec!(insert_float::<Mem>),
        exec!(insert_float::<Reg>),
    );

    rm!(rows, u64, [Pmovsxbw_xmm_xmmm64], extend, i8, i16);
    rm!(rows, u32, [Pmovsxbd_xmm_xmmm32], extend, i8, i32);
    rm!(rows, u16, [Pmovsxbq_xmm_xmmm16], extend, i8, i64);
    rm!(rows, u64, [Pmovsxwd_xmm_xmmm64], extend, i16, i32);
    rm!(rows, u32, [Pmovsxwq_xmm_xmmm32], extend, i16, i64);
    rm!(rows, u64, [Pmovsxdq_xmm_xmmm64], extend, i32, i64);
    rm!(rows, u64, [Pmovzxbw_xmm_xmmm64], extend, u8, u16);
    rm!(rows, u32, [Pmovzxbd_xmm_xmmm32], extend, u8, u32);
    rm!(rows, u16, [Pmovzxbq_xmm_xmmm16], extend, u8, u64);
    rm!(rows, u64, [Pmovzxwd_xmm_xmmm64], extend, u16, u32);
    rm!(rows, u32, [Pmovzxwq_xmm_xmmm32], extend, u16, u64);
    rm!(rows, u64, [Pmovzxdq_xmm_xmmm64], extend, u32, u64);

    row!(rows, u128, [Movsldup_xmm_xmmm128], combine, |_, b| {
        vector(|index| b.lane::<u32>(index & !1))
    });
    row!(rows, u128, [Movshdup_xmm_xmmm128], combine, |_, b| {
        vector(|index| b.lane::<u32>(index | 1))
    });
    rm!(rows, u64, [Movddup_xmm_xmmm64], duplicate);
}

/// Returns the lanes of `a` and then those of `b`, each reduced to half its size by `narrow`.
fn pack<V: Vector, L: Lane, N: Lane>(a: V, b: V, narrow: impl Fn(L) -> N) -> V {
    let count = V::BITS / L::BITS;
    vector(|index| narrow(if index < count { a.lane(index) } else { b.lane(index - count) }))
}

/// Returns lanes of `a` and `b` in turns, from lane `first` on.
fn interleave<V: Vector, L: Lane>(a: V, b: V, first: usize) -> V {
    vector(|index| (if index % 2 == 0 { a } else { b }).lane::<L>(first + index / 2))
}

fn interleave_low<V: Vector, L: Lane>(a: V, b: V) -> V {
    interleave::<V, L>(a, b, 0)
}

fn interleave_high<V: Vector, L: Lane>(a: V, b: V) -> V {
    interleave::<V, L>(a, b, V::BITS / L::BITS / 2)
}

fn unpack_doubleword<S: Source, W: Word, L: Lane>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    combine_low::<S, u64, W>(cpu, memory, op, |a, b| interleave_low::<u64, L>(a, b.zero_extend()))
}

/// Performs PSHUFB: each byte of `b` selects the byte of `a` that it becomes, or 0 if its highest bit is set.
fn shuffle_bytes<V: Vector>(a: V, b: V) -> V {
    vector(|index| {
        let choice: u8 = b.lane(index);
        if choice & 0x80 != 0 { 0u8 } else { a.lane(usize::from(choice) & (V::BITS / 8 - 1)) }
    })
}

/// Rearranges four words from word `first` on, and keeps the others.
fn shuffle_words<V: Vector>(b: V, choices: usize, first: usize) -> V {
    vector(|index| match index.checked_sub(first) {
        Some(place @ 0..4) => b.lane::<u16>(first + (choices >> (2 * place) & 3)),
        _ => b.lane(index),
    })
}

/// Performs PALIGNR: the bytes of `b` and then those of `a`, from byte `first` on.
fn align<V: Vector>(a: V, b: V, first: usize) -> V {
    let bytes = V::BITS / 8;
    vector(|index| match first + index {
        place if place < bytes => b.lane(place),
        place if place < 2 * bytes => a.lane(place - bytes),
        _ => 0u8,
    })
}

/// Returns the lanes of `b` where `choices` has a bit set, and otherwise those of `a`.
pub(super) fn blend<L: Lane>(a: u128, b: u128, choices: usize) -> u128 {
    vector(|index| (if choices >> index & 1 != 0 { b } else { a }).lane::<L>(index))
}

/// Blends by the sign bits of the lanes of XMM0.
fn blend_by_xmm0<S: Source, L: Lane>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let choices = sign_mask::<_, L>(cpu.sse.xmm(0)) as usize;
    combine::<S, u128>(cpu, memory, op, |a, b| blend::<L>(a, b, choices))
}

/// Returns the sign bit of each lane.
pub(super) fn sign_mask<V: Vector, L: Lane>(a: V) -> u32 {
    (0..V::BITS / L::BITS).fold(0, |mask, index| {
        let sign = a.lane::<L>(index).bits() >> (L::BITS - 1) & 1;
        mask | (sign as u32) << index
    })
}

/// Performs INSERTPS, which reads only a doubleword of a source in memory.
fn insert_float<S: Source + Choice>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let by = immediate(op);
    S::doubleword(cpu, memory, op, by >> 6, |a, value| inserted_float(a, value, by))
}

/// Returns `a` with `value` and zeros in the lanes that the immediate operand of INSERTPS selects.
pub(super) fn inserted_float(a: u128, value: u32, by: usize) -> u128 {
    vector(|index| match index {
        _ if by >> index & 1 != 0 => 0,
        _ if index == by >> 4 & 3 => value,
        _ => a.lane::<u32>(index),
    })
}

/// A source of which one doubleword is needed.
trait Choice {
    /// Sets the destination to the value that `change` computes from it and from doubleword `index` of the
    /// source.
    fn doubleword(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        index: usize,
        change: impl Fn(u128, u32) -> u128,
    ) -> Done;
}

impl Choice for Mem {
    fn doubleword(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        _: usize,
        change: impl Fn(u128, u32) -> u128,
    ) -> Done {
        combine_low::<Mem, u128, u32>(cpu, memory, op, change)
    }
}

impl Choice for Reg {
    fn doubleword(
        cpu: &mut Cpu,
        memory: &mut Memory,
        op: &Op,
        index: usize,
        change: impl Fn(u128, u32) -> u128,
    ) -> Done {
        combine::<Reg, u128>(cpu, memory, op, |a, b| change(a, b.lane(index)))
    }
}

/// Performs PMOVSX and PMOVZX: the lowest lanes of type `N`, extended according to the type.
fn extend<S: Source, W: Word, N: Lane, L: Lane>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    combine_low::<S, u128, W>(cpu, memory, op, |_, b| {
        vector(|index| L::of(b.zero_extend().lane::<N>(index).bits()))
    })
}

fn duplicate<S: Source, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    combine_low::<S, u128, W>(cpu, memory, op, |_, b| vector(|_| b.zero_extend()))
}
