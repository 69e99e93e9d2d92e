//! Floating-point instructions (SDM vol. 1, 14.1 and 14.4): handlers of those that SSE has too, and the conversions that
//! change the number of bits.

use ring3_core::memory::Memory;

use super::{Source, begin, either, handlers, lanes, pair};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::Done;
use crate::exec::simd::float::{compute, elements, from_integers, join, to_integers};
use crate::softfloat::Rounding;
use crate::sse_float::{Context, F16, F32, F64};
use crate::table::Rows;
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    pair!(rows, [VEX_Vcvtps2pd_xmm_xmmm64 VEX_Vcvtps2pd_ymm_xmmm128], widen, |c, b| {
        join(elements::<F32, 2>(b.into()).map(|b| c.convert::<_, F64>(b)))
    });
    pair!(rows, [VEX_Vcvtdq2pd_xmm_xmmm64 VEX_Vcvtdq2pd_ymm_xmmm128], widen, |c, b| {
        from_integers::<F64, 2>(c, b.into())
    });
    pair!(rows, [VEX_Vcvtpd2ps_xmm_xmmm128 VEX_Vcvtpd2ps_xmm_ymmm256], narrow, |c, b| {
        join(elements::<F64, 2>(b).map(|b| c.convert::<_, F32>(b)))
    });
    pair!(rows, [VEX_Vcvtpd2dq_xmm_xmmm128 VEX_Vcvtpd2dq_xmm_ymmm256], narrow, |c, b| {
        to_integers::<F64, 2>(c, b, c.rounding)
    });
    pair!(rows, [VEX_Vcvttpd2dq_xmm_xmmm128 VEX_Vcvttpd2dq_xmm_ymmm256], narrow, |c, b| {
        to_integers::<F64, 2>(c, b, Rounding::Zero)
    });
    pair!(rows, [VEX_Vcvtph2ps_xmm_xmmm64 VEX_Vcvtph2ps_ymm_xmmm128], widen, |c, b| {
        join(elements::<F16, 4>(b.into()).map(|b| c.convert_from_f16(b)))
    });
    either!(rows, [VEX_Vdpps_xmm_xmm_xmmm128_imm8], dot, 1);
    either!(rows, [VEX_Vdpps_ymm_ymm_ymmm256_imm8], dot, 2);
    either!(rows, [VEX_Vcvtps2ph_xmmm64_xmm_imm8], narrow_to_f16, 1);
    either!(rows, [VEX_Vcvtps2ph_xmmm128_ymm_imm8], narrow_to_f16, 2);
}

/// Sets each lane of the destination to the value that `operation` computes from the lanes of both sources and the
/// immediate operand.
pub(in crate::exec::simd) fn whole<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u128, u128, u8) -> u128,
) -> Done {
    begin(cpu)?;
    let b = S::lanes::<COUNT>(cpu, memory, op, false)?;
    let a = cpu.sse.ymm(op.vvvv());
    let by = op.immediate();
    let result = compute(cpu, |c| lanes::<COUNT>(|lane| operation(&mut *c, a[lane], b[lane], by)))?;
    cpu.sse.set_ymm(op.reg, result);
    Ok(())
}

/// Performs VDPPS.
fn dot<S: Source, const COUNT: usize>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let b = S::lanes::<COUNT>(cpu, memory, op, false)?;
    let a = cpu.sse.ymm(op.vvvv());
    let result = compute(cpu, |c| {
        let vectors = std::array::from_fn(|lane| (elements(a[lane]), elements(b[lane])));
        c.dot_f32::<COUNT>(vectors, op.immediate()).map(join)
    })?;
    cpu.sse.set_ymm(op.reg, lanes::<COUNT>(|lane| result[lane]));
    Ok(())
}

/// Sets the destination to the value that `operation` computes from the first source, the low bits of the second one,
/// and the immediate operand.
pub(in crate::exec::simd) fn low<S: Source, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u128, W, u8) -> u128,
) -> Done {
    begin(cpu)?;
    let b = S::low::<W>(cpu, memory, op)?;
    let a = cpu.sse.xmm(op.vvvv());
    let result = compute(cpu, |c| operation(c, a, b, op.immediate()))?;
    cpu.sse.set_ymm(op.reg, [result, 0]);
    Ok(())
}

/// Sets each lane of the destination to the value that `operation` computes from a quadword of the source.
fn widen<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u64) -> u128,
) -> Done {
    begin(cpu)?;
    let source = match COUNT {
        1 => S::low::<u64>(cpu, memory, op)?.into(),
        _ => S::lanes::<1>(cpu, memory, op, false)?[0],
    };
    let quadword = |lane| (source >> (64 * lane)) as u64;
    let result = compute(cpu, |c| lanes::<COUNT>(|lane| operation(&mut *c, quadword(lane))))?;
    cpu.sse.set_ymm(op.reg, result);
    Ok(())
}

/// Sets each quadword of the destination to the value that `operation` computes from a lane of the source.
fn narrow<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u128) -> u128,
) -> Done {
    begin(cpu)?;
    let source = S::lanes::<COUNT>(cpu, memory, op, false)?;
    let [low, high] = compute(cpu, |c| lanes::<COUNT>(|lane| operation(&mut *c, source[lane])))?;
    cpu.sse.set_ymm(op.reg, [low | high << 64, 0]);
    Ok(())
}

/// Performs VCVTPS2PH, whose destination ModRM.rm specifies. Bits 0 and 1 of the immediate operand are rounding
/// control, and bit 2 selects MXCSR's instead.
///
/// Whether a fault of the memory access comes before the exceptions of the conversion, which leave flags in MXCSR, is
/// up to the processor (SDM vol. 3, 6.9): it does on AMD's.
fn narrow_to_f16<S: Source, const COUNT: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    begin(cpu)?;
    if cpu.vendor.is_amd() {
        S::check_writable(cpu, memory, op, 8 * COUNT)?;
    }
    let source = cpu.sse.ymm(op.reg);
    let (by, vendor): (u8, _) = (op.immediate(), cpu.vendor);
    let [low, high] = compute(cpu, |c| {
        let rounding = if by & 4 == 0 { Rounding::of_control(by.into()) } else { c.rounding };
        lanes::<COUNT>(|lane| {
            join(elements::<F32, 4>(source[lane]).map(|a| c.convert_to_f16(a, rounding, vendor)))
        })
    })?;
    match COUNT {
        1 => S::set_low(cpu, memory, op, low as u64),
        _ => S::set_lanes::<1>(cpu, memory, op, [low | high << 64, 0], false),
    }
}
