//! Permutations, blends, extensions and shifts by a count for each lane (SDM vol. 1, 14.2 and 14.7).

use ring3_core::memory::Memory;

use super::{
    Lanes, Source, begin, combine, combine_by, combine_low, either, handlers, lanes, pair,
};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exception::Stopped;
use crate::exec::simd::shuffle::{blend, inserted_float, sign_mask};
use crate::exec::simd::{Lane, Vector, immediate, vector, zip};
use crate::exec::{Done, Mem, Reg};
use crate::table::{Rows, exec};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    pair!(rows, [VEX_Vpermilps_xmm_xmm_xmmm128 VEX_Vpermilps_ymm_ymm_ymmm256], combine, |a, b| {
        vector(|index| a.lane::<u32>(b.lane::<u32>(index) as usize & 3))
    });
    pair!(rows, [VEX_Vpermilpd_xmm_xmm_xmmm128 VEX_Vpermilpd_ymm_ymm_ymmm256], combine, |a, b| {
        vector(|index| a.lane::<u64>(b.lane::<u64>(index) as usize >> 1 & 1))
    });
    pair!(rows, [VEX_Vpermilps_xmm_xmmm128_imm8 VEX_Vpermilps_ymm_ymmm256_imm8],
        combine_by::<{ 0 }>, |_, b, by| vector(|index| b.lane::<u32>(by >> (2 * index) & 3)));
    pair!(rows, [VEX_Vpermilpd_xmm_xmmm128_imm8 VEX_Vpermilpd_ymm_ymmm256_imm8],
        combine_by::<{ 2 }>, |_, b, by| vector(|index| b.lane::<u64>(by >> index & 1)));
    either!(rows, [VEX_Vperm2f128_ymm_ymm_ymmm256_imm8 VEX_Vperm2i128_ymm_ymm_ymmm256_imm8], choose_lanes);
    either!(rows, [VEX_Vpermq_ymm_ymmm256_imm8 VEX_Vpermpd_ymm_ymmm256_imm8], choose_quadwords);
    either!(rows, [VEX_Vpermd_ymm_ymm_ymmm256 VEX_Vpermps_ymm_ymm_ymmm256], choose_doublewords);
    rows.add(
        iced_x86::Code::VEX_Vmovddup_ymm_ymmm256,
        exec!(|cpu, memory, op| combine::<Mem, 2>(cpu, memory, op, |_, b| vector(|_| b as u64))),
        exec!(|cpu, memory, op| combine::<Reg, 2>(cpu, memory, op, |_, b| vector(|_| b as u64))),
    );

    pair!(rows, [VEX_Vpblendd_xmm_xmm_xmmm128_imm8 VEX_Vpblendd_ymm_ymm_ymmm256_imm8],
        combine_by::<{ 4 }>, blend::<u32>);
    pair!(rows, [VEX_Vpblendvb_xmm_xmm_xmmm128_xmm VEX_Vpblendvb_ymm_ymm_ymmm256_ymm],
        blend_by_register, blend_by::<u8>);
    pair!(rows, [VEX_Vblendvps_xmm_xmm_xmmm128_xmm VEX_Vblendvps_ymm_ymm_ymmm256_ymm],
        blend_by_register, blend_by::<u32>);
    pair!(rows, [VEX_Vblendvpd_xmm_xmm_xmmm128_xmm VEX_Vblendvpd_ymm_ymm_ymmm256_ymm],
        blend_by_register, blend_by::<u64>);
    rows.add(
        iced_x86::Code::VEX_Vinsertps_xmm_xmm_xmmm32_imm8,
        exec!(|cpu, memory, op| {
            let by = immediate(op);
            combine_low::<Mem, u32>(cpu, memory, op, |a, b| [inserted_float(a, b, by), 0])
        }),
        exec!(|cpu, memory, op| {
            let by = immediate(op);
            let change = |a, b: u128| inserted_float(a, b.lane(by >> 6), by);
            combine::<Reg, 1>(cpu, memory, op, change)
        }),
    );

    pair!(rows, [VEX_Vpsllvd_xmm_xmm_xmmm128 VEX_Vpsllvd_ymm_ymm_ymmm256], combine, |a, b| {
        zip(a, b, |a: u32, count| a.checked_shl(count).unwrap_or(0))
    });
    pair!(rows, [VEX_Vpsrlvd_xmm_xmm_xmmm128 VEX_Vpsrlvd_ymm_ymm_ymmm256], combine, |a, b| {
        zip(a, b, |a: u32, count| a.checked_shr(count).unwrap_or(0))
    });
    pair!(rows, [VEX_Vpsravd_xmm_xmm_xmmm128 VEX_Vpsravd_ymm_ymm_ymmm256], combine, |a, b| {
        zip(a, b, |a: i32, count| a >> (count as u32).min(31))
    });
    pair!(rows, [VEX_Vpsllvq_xmm_xmm_xmmm128 VEX_Vpsllvq_ymm_ymm_ymmm256], combine, |a, b| {
        zip(a, b, |a: u64, count| if count < 64 { a << count } else { 0 })
    });
    pair!(rows, [VEX_Vpsrlvq_xmm_xmm_xmmm128 VEX_Vpsrlvq_ymm_ymm_ymmm256], combine, |a, b| {
        zip(a, b, |a: u64, count| if count < 64 { a >> count } else { 0 })
    });

    pair!(rows, [VEX_Vpmovsxbw_xmm_xmmm64 VEX_Vpmovsxbw_ymm_xmmm128], extend, extended::<i8, i16>);
    pair!(rows, [VEX_Vpmovsxbd_xmm_xmmm32 VEX_Vpmovsxbd_ymm_xmmm64], extend, extended::<i8, i32>);
    pair!(rows, [VEX_Vpmovsxbq_xmm_xmmm16 VEX_Vpmovsxbq_ymm_xmmm32], extend, extended::<i8, i64>);
    pair!(rows, [VEX_Vpmovsxwd_xmm_xmmm64 VEX_Vpmovsxwd_ymm_xmmm128], extend, extended::<i16, i32>);
    pair!(rows, [VEX_Vpmovsxwq_xmm_xmmm32 VEX_Vpmovsxwq_ymm_xmmm64], extend, extended::<i16, i64>);
    pair!(rows, [VEX_Vpmovsxdq_xmm_xmmm64 VEX_Vpmovsxdq_ymm_xmmm128], extend, extended::<i32, i64>);
    pair!(rows, [VEX_Vpmovzxbw_xmm_xmmm64 VEX_Vpmovzxbw_ymm_xmmm128], extend, extended::<u8, u16>);
    pair!(rows, [VEX_Vpmovzxbd_xmm_xmmm32 VEX_Vpmovzxbd_ymm_xmmm64], extend, extended::<u8, u32>);
    pair!(rows, [VEX_Vpmovzxbq_xmm_xmmm16 VEX_Vpmovzxbq_ymm_xmmm32], extend, extended::<u8, u64>);
    pair!(rows, [VEX_Vpmovzxwd_xmm_xmmm64 VEX_Vpmovzxwd_ymm_xmmm128], extend, extended::<u16, u32>);
    pair!(rows, [VEX_Vpmovzxwq_xmm_xmmm32 VEX_Vpmovzxwq_ymm_xmmm64], extend, extended::<u16, u64>);
    pair!(rows, [VEX_Vpmovzxdq_xmm_xmmm64 VEX_Vpmovzxdq_ymm_xmmm128], extend, extended::<u32, u64>);
}

/// Returns lane `index` of a vector of 256 bits.
fn lane<L: Lane>(vector: Lanes, index: usize) -> L {
    let each = 128 / L::BITS;
    vector[index / each].lane(index % each)
}

/// Makes a vector of 256 bits; `lane` makes each lane by its index.
fn all<L: Lane>(lane: impl Fn(usize) -> L) -> Lanes {
    lanes::<2>(|number| vector(|index| lane(number * (128 / L::BITS) + index)))
}

/// Performs VPERM2x128: each half is any half of both sources, or 0.
fn choose_lanes<S: Source>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let b = S::lanes::<2>(cpu, memory, op, false)?;
    let a = cpu.sse.ymm(op.vvvv());
    let by = immediate(op);
    let result = lanes::<2>(|number| match by >> (4 * number) & 15 {
        8.. => 0,
        choice => [a, b][choice >> 1 & 1][choice & 1],
    });
    cpu.sse.set_ymm(op.reg, result);
    Ok(())
}

/// Performs VPERMQ and VPERMPD.
fn choose_quadwords<S: Source>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let b = S::lanes::<2>(cpu, memory, op, false)?;
    let by = immediate(op);
    cpu.sse.set_ymm(op.reg, all::<u64>(|index| lane(b, by >> (2 * index) & 3)));
    Ok(())
}

/// Performs VPERMD and VPERMPS, whose choices are in the first source.
fn choose_doublewords<S: Source>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let b = S::lanes::<2>(cpu, memory, op, false)?;
    let a = cpu.sse.ymm(op.vvvv());
    cpu.sse.set_ymm(op.reg, all::<u32>(|index| lane(b, lane::<u32>(a, index) as usize & 7)));
    Ok(())
}

/// Returns the lanes of `b` where the sign bits of those in `choices` are set, and otherwise those of `a`.
fn blend_by<L: Lane>(a: u128, b: u128, choices: u128) -> u128 {
    blend::<L>(a, b, sign_mask::<_, L>(choices) as usize)
}

/// Sets each lane of the destination to the value that `change` computes from the lanes of three sources, the third
/// of which is in a register that an immediate operand specifies.
fn blend_by_register<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    change: impl Fn(u128, u128, u128) -> u128,
) -> Done {
    begin(cpu)?;
    let b = S::lanes::<COUNT>(cpu, memory, op, false)?;
    let a = cpu.sse.ymm(op.vvvv());
    let choices = cpu.sse.ymm(op.immediate::<u8>());
    cpu.sse.set_ymm(op.reg, lanes::<COUNT>(|lane| change(a[lane], b[lane], choices[lane])));
    Ok(())
}

/// Returns how many bits lanes of type `N` have for 128 bits of lanes of type `L`, and the `number`th 128 bits of
/// these, extended from those of `source` according to their types.
fn extended<N: Lane, L: Lane>(source: u128, number: usize) -> (usize, u128) {
    let count = 128 / L::BITS;
    let lanes = vector(|index| L::of(source.lane::<N>(number * count + index).bits()));
    (count * N::BITS, lanes)
}

/// Performs VPMOVSX and VPMOVZX.
fn extend<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    extended: impl Fn(u128, usize) -> (usize, u128),
) -> Done {
    begin(cpu)?;
    let (bits, _) = extended(0, 0);
    let source = part::<S>(cpu, memory, op, COUNT * bits)?;
    cpu.sse.set_ymm(op.reg, lanes::<COUNT>(|number| extended(source, number).1));
    Ok(())
}

/// Reads the `bits` low bits of the source.
fn part<S: Source>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    bits: usize,
) -> Result<u128, Stopped> {
    Ok(match bits {
        16 => S::low::<u16>(cpu, memory, op)?.into(),
        32 => S::low::<u32>(cpu, memory, op)?.into(),
        64 => S::low::<u64>(cpu, memory, op)?.into(),
        _ => S::lanes::<1>(cpu, memory, op, false)?[0],
    })
}
