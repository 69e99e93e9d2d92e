//! Floating-point arithmetic, comparisons and conversions of SSE to SSE4.1 (SDM vol. 1, 10.4.1, 11.4.1,
//! 11.4.4, 12.3, 12.10), with the arithmetic of [`crate::sse_float`].

use std::cmp::Ordering;

use iced_x86::Code;
use ring3_core::memory::Memory;

use super::vex::{self, Xmm};
use super::{Source, Vector};
use crate::cpu::{Cpu, Cr4};
use crate::decode::Op;
use crate::exception::{Fault, Stopped, vector};
use crate::exec::{Done, Mem, Place, Reg};
use crate::flags::{Eflags, Status};
use crate::softfloat::Rounding;
use crate::sse_float::{
    Context, F32, F64, Float, Format, Predicate, reciprocal, reciprocal_square_root,
};
use crate::table::{Rows, exec};
use crate::word::Word;

/// A row: `operation` computes the new destination from context, destination, source and immediate operand.
/// The source is an XMM register or as many bits in memory (`whole`), or its low part of the given type
/// (`low`).
macro_rules! legacy {
    ($rows:ident, $code:ident, $handler:ident $(::<$word:ty>)?, $operation:expr) => {
        $rows.add(iced_x86::Code::$code, $crate::table::exec!(|cpu, memory, op| $handler::<Mem $(, $word)?>(cpu, memory, op, $operation)), $crate::table::exec!(|cpu, memory, op| $handler::<Reg $(, $word)?>(cpu, memory, op, $operation)));
    };
}

/// Rows for the forms of AVX that correspond to such a form of SSE.
macro_rules! avx {
    ($rows:ident, $code:ident, whole, $operation:expr) => {
        vex::row!($rows, $code, whole, $operation);
    };
    ($rows:ident, $code:ident, low::<$word:ty>, $operation:expr) => {
        $rows.add_vex(
            Code::$code,
            (
                exec!(|cpu, memory, op| vex::low::<Mem, $word>(cpu, memory, op, $operation)),
                exec!(|cpu, memory, op| vex::low::<Reg, $word>(cpu, memory, op, $operation)),
            ),
            None,
        );
    };
}

/// A row of SSE, and the corresponding ones of AVX.
macro_rules! row {
    ($rows:ident, $code:ident, $handler:ident $(::<$word:ty>)?, $operation:expr) => {
        legacy!($rows, $code, $handler $(::<$word>)?, $operation);
        avx!($rows, $code, $handler $(::<$word>)?, $operation);
    };
}

/// Rows for two forms with the same operation on singles and on doubles, given the corresponding elements of
/// destination and source. They are made by one of the macros above.
macro_rules! packed {
    ($rows:ident, $row:ident, [$ps:ident $pd:ident], $operation:expr) => {
        $row!($rows, $ps, whole, |c, a, b, i| each::<F32, 4>(a, b, |a, b| $operation(
            &mut *c, a, b, i
        )));
        $row!($rows, $pd, whole, |c, a, b, i| each::<F64, 2>(a, b, |a, b| $operation(
            &mut *c, a, b, i
        )));
    };
}

/// Rows like those of `packed`, and for two forms with the same operation on the first elements only.
macro_rules! arithmetic {
    ($rows:ident, [$($code:ident)+], $operation:expr) => {
        arithmetic!($rows, row, [$($code)+], $operation);
    };
    ($rows:ident, $row:ident, [$ps:ident $pd:ident $ss:ident $sd:ident], $operation:expr) => {
        packed!($rows, $row, [$ps $pd], $operation);
        $row!($rows, $ss, low::<u32>, |c, a, b, i| {
            with_first(a, $operation(c, first::<F32>(a), F32(b), i))
        });
        $row!($rows, $sd, low::<u64>, |c, a, b, i| {
            with_first(a, $operation(c, first::<F64>(a), F64(b), i))
        });
    };
}

/// Rows of a conversion between an XMM and a general register or memory, or of a comparison, of SSE and of AVX.
macro_rules! general {
    ($rows:ident, [$sse:ident $avx:ident], $handler:ident $(, $parameter:tt)*) => {
        $rows.add(
            Code::$sse,
            exec!($handler::<Mem, u128 $(, $parameter)*>),
            exec!($handler::<Reg, u128 $(, $parameter)*>),
        );
        $rows.add(
            Code::$avx,
            exec!($handler::<Mem, Xmm $(, $parameter)*>),
            exec!($handler::<Reg, Xmm $(, $parameter)*>),
        );
    };
}

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    arithmetic!(rows,
        [Addps_xmm_xmmm128 Addpd_xmm_xmmm128 Addss_xmm_xmmm32 Addsd_xmm_xmmm64],
        |c: &mut Context, a, b, _| c.add(a, b));
    arithmetic!(rows,
        [Subps_xmm_xmmm128 Subpd_xmm_xmmm128 Subss_xmm_xmmm32 Subsd_xmm_xmmm64],
        |c: &mut Context, a, b, _| c.sub(a, b));
    arithmetic!(rows,
        [Mulps_xmm_xmmm128 Mulpd_xmm_xmmm128 Mulss_xmm_xmmm32 Mulsd_xmm_xmmm64],
        |c: &mut Context, a, b, _| c.mul(a, b));
    arithmetic!(rows,
        [Divps_xmm_xmmm128 Divpd_xmm_xmmm128 Divss_xmm_xmmm32 Divsd_xmm_xmmm64],
        |c: &mut Context, a, b, _| c.div(a, b));
    arithmetic!(rows,
        [Minps_xmm_xmmm128 Minpd_xmm_xmmm128 Minss_xmm_xmmm32 Minsd_xmm_xmmm64],
        |c: &mut Context, a, b, _| c.min(a, b));
    arithmetic!(rows,
        [Maxps_xmm_xmmm128 Maxpd_xmm_xmmm128 Maxss_xmm_xmmm32 Maxsd_xmm_xmmm64],
        |c: &mut Context, a, b, _| c.max(a, b));
    arithmetic!(rows,
        [Sqrtps_xmm_xmmm128 Sqrtpd_xmm_xmmm128 Sqrtss_xmm_xmmm32 Sqrtsd_xmm_xmmm64],
        |c: &mut Context, _, b, _| c.sqrt(b));
    arithmetic!(rows,
        legacy, [Cmpps_xmm_xmmm128_imm8 Cmppd_xmm_xmmm128_imm8 Cmpss_xmm_xmmm32_imm8
            Cmpsd_xmm_xmmm64_imm8],
        |c: &mut Context, a, b, i| compare(c, a, b, Predicate::from_immediate(i)));
    arithmetic!(rows,
        avx, [Cmpps_xmm_xmmm128_imm8 Cmppd_xmm_xmmm128_imm8 Cmpss_xmm_xmmm32_imm8
            Cmpsd_xmm_xmmm64_imm8],
        |c: &mut Context, a, b, i| compare(c, a, b, Predicate::with_vex(i)));
    arithmetic!(rows,
        [Roundps_xmm_xmmm128_imm8 Roundpd_xmm_xmmm128_imm8 Roundss_xmm_xmmm32_imm8
            Roundsd_xmm_xmmm64_imm8],
        round);
    row!(rows, Haddps_xmm_xmmm128, whole, |c, a, b, _| pairs::<F32, 4>(a, b, |a, b| c.add(a, b)));
    row!(rows, Haddpd_xmm_xmmm128, whole, |c, a, b, _| pairs::<F64, 2>(a, b, |a, b| c.add(a, b)));
    row!(rows, Hsubps_xmm_xmmm128, whole, |c, a, b, _| pairs::<F32, 4>(a, b, |a, b| c.sub(a, b)));
    row!(rows, Hsubpd_xmm_xmmm128, whole, |c, a, b, _| pairs::<F64, 2>(a, b, |a, b| c.sub(a, b)));
    row!(rows, Addsubps_xmm_xmmm128, whole, |c, a, b, _| add_and_subtract::<F32, 4>(c, a, b));
    row!(rows, Addsubpd_xmm_xmmm128, whole, |c, a, b, _| add_and_subtract::<F64, 2>(c, a, b));
    legacy!(rows, Dpps_xmm_xmmm128_imm8, whole, |c, a, b, i| {
        let [result] = c.dot_f32([(elements(a), elements(b))], i);
        join(result)
    });
    row!(rows, Dppd_xmm_xmmm128_imm8, whole, |c, a, b, i| {
        join(c.dot_f64(elements(a), elements(b), i))
    });
    row!(rows, Rcpps_xmm_xmmm128, whole, |_, _, b, _| join(elements::<_, 4>(b).map(reciprocal)));
    row!(rows, Rcpss_xmm_xmmm32, low::<u32>, |_, a, b, _| with_first(a, reciprocal(F32(b))));
    row!(rows, Rsqrtps_xmm_xmmm128, whole, |_, _, b, _| {
        join(elements::<_, 4>(b).map(reciprocal_square_root))
    });
    row!(rows, Rsqrtss_xmm_xmmm32, low::<u32>, |_, a, b, _| {
        with_first(a, reciprocal_square_root(F32(b)))
    });

    general!(rows, [Comiss_xmm_xmmm32 VEX_Vcomiss_xmm_xmmm32], set_flags, u32, F32, true);
    general!(rows, [Ucomiss_xmm_xmmm32 VEX_Vucomiss_xmm_xmmm32], set_flags, u32, F32, false);
    general!(rows, [Comisd_xmm_xmmm64 VEX_Vcomisd_xmm_xmmm64], set_flags, u64, F64, true);
    general!(rows, [Ucomisd_xmm_xmmm64 VEX_Vucomisd_xmm_xmmm64], set_flags, u64, F64, false);

    conversions(rows);
}

/// Adds the forms of CVTxx2xx.
fn conversions(rows: &mut Rows) {
    row!(rows, Cvtss2sd_xmm_xmmm32, low::<u32>, |c, a, b, _| {
        with_first(a, c.convert::<_, F64>(F32(b)))
    });
    row!(rows, Cvtsd2ss_xmm_xmmm64, low::<u64>, |c, a, b, _| {
        with_first(a, c.convert::<_, F32>(F64(b)))
    });
    legacy!(rows, Cvtps2pd_xmm_xmmm64, low::<u64>, |c, _, b, _| {
        join(elements::<F32, 2>(b.into()).map(|b| c.convert::<_, F64>(b)))
    });
    legacy!(rows, Cvtpd2ps_xmm_xmmm128, whole, |c, _, b, _| {
        join(elements::<F64, 2>(b).map(|b| c.convert::<_, F32>(b)))
    });
    row!(rows, Cvtdq2ps_xmm_xmmm128, whole, |c, _, b, _| from_integers::<F32, 4>(c, b));
    legacy!(rows, Cvtdq2pd_xmm_xmmm64, low::<u64>, |c, _, b, _| from_integers::<F64, 2>(
        c,
        b.into()
    ));
    row!(rows, Cvtps2dq_xmm_xmmm128, whole, |c, _, b, _| {
        to_integers::<F32, 4>(c, b, c.rounding)
    });
    row!(rows, Cvttps2dq_xmm_xmmm128, whole, |c, _, b, _| {
        to_integers::<F32, 4>(c, b, Rounding::Zero)
    });
    legacy!(rows, Cvtpd2dq_xmm_xmmm128, whole, |c, _, b, _| {
        to_integers::<F64, 2>(c, b, c.rounding)
    });
    legacy!(rows, Cvttpd2dq_xmm_xmmm128, whole, |c, _, b, _| {
        to_integers::<F64, 2>(c, b, Rounding::Zero)
    });

    legacy!(rows, Cvtpi2ps_xmm_mmm64, from_mm, |c, a, b| {
        a >> 64 << 64 | from_integers::<F32, 2>(c, b.into())
    });
    legacy!(rows, Cvtpi2pd_xmm_mmm64, from_mm, |c, _, b| from_integers::<F64, 2>(c, b.into()));
    legacy!(rows, Cvtps2pi_mm_xmmm64, low_to_mm, |c, b| {
        to_integers::<F32, 2>(c, b.into(), c.rounding)
    });
    legacy!(rows, Cvttps2pi_mm_xmmm64, low_to_mm, |c, b| {
        to_integers::<F32, 2>(c, b.into(), Rounding::Zero)
    });
    legacy!(rows, Cvtpd2pi_mm_xmmm128, whole_to_mm, |c, b| to_integers::<F64, 2>(c, b, c.rounding));
    legacy!(rows, Cvttpd2pi_mm_xmmm128, whole_to_mm, |c, b| {
        to_integers::<F64, 2>(c, b, Rounding::Zero)
    });

    general!(rows, [Cvtsi2ss_xmm_rm32 VEX_Vcvtsi2ss_xmm_xmm_rm32], from_general, u32, F32);
    general!(rows, [Cvtsi2sd_xmm_rm32 VEX_Vcvtsi2sd_xmm_xmm_rm32], from_general, u32, F64);
    general!(rows, [Cvtsi2ss_xmm_rm64 VEX_Vcvtsi2ss_xmm_xmm_rm64], from_general, u64, F32);
    general!(rows, [Cvtsi2sd_xmm_rm64 VEX_Vcvtsi2sd_xmm_xmm_rm64], from_general, u64, F64);
    general!(rows, [Cvtss2si_r32_xmmm32 VEX_Vcvtss2si_r32_xmmm32], to_general, u32, F32, u32, false);
    general!(rows, [Cvttss2si_r32_xmmm32 VEX_Vcvttss2si_r32_xmmm32], to_general, u32, F32, u32, true);
    general!(rows, [Cvtsd2si_r32_xmmm64 VEX_Vcvtsd2si_r32_xmmm64], to_general, u64, F64, u32, false);
    general!(rows, [Cvttsd2si_r32_xmmm64 VEX_Vcvttsd2si_r32_xmmm64], to_general, u64, F64, u32, true);
    general!(rows, [Cvtss2si_r64_xmmm32 VEX_Vcvtss2si_r64_xmmm32], to_general, u32, F32, u64, false);
    general!(rows, [Cvttss2si_r64_xmmm32 VEX_Vcvttss2si_r64_xmmm32], to_general, u32, F32, u64, true);
    general!(rows, [Cvtsd2si_r64_xmmm64 VEX_Vcvtsd2si_r64_xmmm64], to_general, u64, F64, u64, false);
    general!(rows, [Cvttsd2si_r64_xmmm64 VEX_Vcvttsd2si_r64_xmmm64], to_general, u64, F64, u64, true);
}

/// Computes by `operation` and handles the exceptions: MXCSR gets the flags, and #XM follows if one is
/// unmasked (#UD if the system does not support #XM; SDM vol. 1, 11.5.3).
#[inline(always)]
pub(super) fn compute<R>(
    cpu: &mut Cpu,
    operation: impl FnOnce(&mut Context) -> R,
) -> Result<R, Stopped> {
    let mut context = Context::new(cpu.sse.mxcsr());
    let result = operation(&mut context);
    let (raised, delivered) = match context.conclude() {
        Ok(raised) => (raised, Some(result)),
        Err(raised) => (raised, None),
    };
    cpu.sse.set_mxcsr(cpu.sse.mxcsr() | u32::from(raised.bits()));
    match delivered {
        Some(result) => Ok(result),
        None if cpu.cr4().contains(Cr4::OSXMMEXCPT) => Err(cpu.fault(Fault::new(vector::XM))),
        None => Err(cpu.undefined_opcode()),
    }
}

fn whole<S: Source>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u128, u128, u8) -> u128,
) -> Done {
    u128::begin(cpu)?;
    let source = S::vector(cpu, memory, op)?;
    let destination = cpu.sse.xmm(op.reg);
    let result = compute(cpu, |c| operation(c, destination, source, op.immediate()))?;
    cpu.sse.set_xmm(op.reg, result);
    Ok(())
}

fn low<S: Source, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u128, W, u8) -> u128,
) -> Done {
    u128::begin(cpu)?;
    let source = S::low::<u128, W>(cpu, memory, op)?;
    let destination = cpu.sse.xmm(op.reg);
    let result = compute(cpu, |c| operation(c, destination, source, op.immediate()))?;
    cpu.sse.set_xmm(op.reg, result);
    Ok(())
}

/// Performs CVTPI2PS and CVTPI2PD. They are instructions of MMX only if the source is an MMX register (SDM
/// vol. 2, CVTPI2PD; AMD's processors do the same with CVTPI2PS).
fn from_mm<S: Source + Place>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u128, u64) -> u128,
) -> Done {
    u128::begin(cpu)?;
    if S::IS_REGISTER {
        u64::begin(cpu)?;
    }
    let source = S::vector::<u64>(cpu, memory, op)?;
    let destination = cpu.sse.xmm(op.reg);
    let result = compute(cpu, |c| operation(c, destination, source))?;
    cpu.sse.set_xmm(op.reg, result);
    Ok(())
}

/// CVTPS2PI and CVTTPS2PI.
fn low_to_mm<S: Source>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u64) -> u128,
) -> Done {
    u128::begin(cpu)?;
    u64::begin(cpu)?;
    let source = S::low::<u128, u64>(cpu, memory, op)?;
    let result = compute(cpu, |c| operation(c, source))?;
    u64::set(cpu, op.reg, result as u64);
    Ok(())
}

/// CVTPD2PI and CVTTPD2PI.
fn whole_to_mm<S: Source>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    operation: impl Fn(&mut Context, u128) -> u128,
) -> Done {
    u128::begin(cpu)?;
    u64::begin(cpu)?;
    let source = S::vector::<u128>(cpu, memory, op)?;
    let result = compute(cpu, |c| operation(c, source))?;
    u64::set(cpu, op.reg, result as u64);
    Ok(())
}

/// COMISx and UCOMISx.
fn set_flags<S: Source, V: Vector, W: Word, F: Float, const SIGNAL_QUIET: bool>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    let source = S::low::<V, W>(cpu, memory, op)?;
    let source = F::from_bits(source.zero_extend());
    let destination = first::<F>(cpu.sse.xmm(op.reg));
    let order = compute(cpu, |c| c.order(destination, source, SIGNAL_QUIET))?;
    cpu.status = Status::from_eflags(match order {
        None => Eflags::ZF | Eflags::PF | Eflags::CF,
        Some(Ordering::Less) => Eflags::CF,
        Some(Ordering::Equal) => Eflags::ZF,
        Some(Ordering::Greater) => Eflags::empty(),
    });
    Ok(())
}

/// CVTSI2SS and CVTSI2SD.
fn from_general<P: Place, V: Vector, W: Word, F: Float>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    let source: W = P::read(cpu, memory, op)?;
    let result = compute(cpu, |c| c.convert_integer::<F>(source.sign_extend() as i64))?;
    let others = V::get(cpu, V::first(op)).wide();
    V::set(cpu, op.reg, V::of(with_first(others, result)));
    Ok(())
}

/// CVTSS2SI and CVTSD2SI, and with `TRUNCATE` CVTTSS2SI and CVTTSD2SI.
fn to_general<S: Source, V: Vector, W: Word, F: Float, To: Word, const TRUNCATE: bool>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    V::begin(cpu)?;
    let source = S::low::<V, W>(cpu, memory, op)?;
    let source = F::from_bits(source.zero_extend());
    let result = compute(cpu, |c| {
        let rounding = if TRUNCATE { Rounding::Zero } else { c.rounding };
        match To::BITS {
            64 => c.convert_to_i64(source, rounding),
            _ => c.convert_to_i32(source, rounding).into(),
        }
    })?;
    cpu.set(op.reg, To::truncate(result as u64));
    Ok(())
}

/// Performs CMPxx: all ones if the predicate holds, and otherwise 0.
fn compare<F: Float>(c: &mut Context, a: F, b: F, predicate: Predicate) -> F {
    let holds = c.compare(a, b, predicate);
    F::from_bits(if holds { u64::MAX } else { 0 })
}

/// Performs ROUNDxx. Bits 0 and 1 of the immediate operand are rounding control, bit 2 selects MXCSR's
/// instead, and bit 3 suppresses the precision exception (SDM vol. 2, figure 4-24).
fn round<F: Float>(c: &mut Context, _: F, b: F, immediate: u8) -> F {
    let rounding = match immediate & 7 {
        0 => Rounding::Nearest,
        1 => Rounding::Down,
        2 => Rounding::Up,
        3 => Rounding::Zero,
        _ => c.rounding,
    };
    c.round_to_integral(b, rounding, immediate & 8 != 0)
}

/// Performs HADDxx and HSUBxx: applies `operation` to the pairs of neighbours, first those of `a`, then those
/// of `b`.
fn pairs<F: Float, const N: usize>(a: u128, b: u128, mut operation: impl FnMut(F, F) -> F) -> u128 {
    let (a, b) = (elements::<F, N>(a), elements::<F, N>(b));
    join::<F, N>(std::array::from_fn(|index| {
        let (from, pair) = if index < N / 2 { (&a, index) } else { (&b, index - N / 2) };
        operation(from[2 * pair], from[2 * pair + 1])
    }))
}

/// Performs ADDSUBxx: even elements are subtracted, odd ones added.
fn add_and_subtract<F: Float, const N: usize>(c: &mut Context, a: u128, b: u128) -> u128 {
    let mut is_odd = true;
    each::<F, N>(a, b, |a, b| {
        is_odd = !is_odd;
        if is_odd { c.add(a, b) } else { c.sub(a, b) }
    })
}

/// Converts doublewords to numbers.
pub(super) fn from_integers<F: Float, const N: usize>(c: &mut Context, source: u128) -> u128 {
    let integer = |index: usize| i64::from((source >> (32 * index)) as i32);
    join::<F, N>(std::array::from_fn(|index| c.convert_integer(integer(index))))
}

/// Converts numbers to doublewords; the rest is 0.
pub(super) fn to_integers<F: Float, const N: usize>(
    c: &mut Context,
    source: u128,
    rounding: Rounding,
) -> u128 {
    let numbers = elements::<F, N>(source);
    join(numbers.map(|number| F32(c.convert_to_i32(number, rounding) as u32)))
}

/// Returns the number of bits of an element.
const fn size<F: Format>() -> u32 {
    1 + F::EXPONENT_BITS + F::FRACTION_BITS
}

/// Returns the elements of a vector, or the low ones if it has more.
#[inline(always)]
pub(super) fn elements<F: Format, const N: usize>(vector: u128) -> [F; N] {
    std::array::from_fn(|index| F::from_bits((vector >> (index as u32 * size::<F>())) as u64))
}

/// Makes the vector of these elements; the rest is 0.
#[inline(always)]
pub(super) fn join<F: Format, const N: usize>(elements: [F; N]) -> u128 {
    elements
        .iter()
        .rev()
        .fold(0, |vector, element| vector << size::<F>() | u128::from(element.bits()))
}

/// Applies `operation` to the elements, one of `a` and one of `b`.
#[inline(always)]
fn each<F: Float, const N: usize>(a: u128, b: u128, mut operation: impl FnMut(F, F) -> F) -> u128 {
    let (a, b) = (elements::<F, N>(a), elements::<F, N>(b));
    join::<F, N>(std::array::from_fn(|index| operation(a[index], b[index])))
}

/// Returns the first element of a vector.
#[inline(always)]
pub(super) fn first<F: Format>(vector: u128) -> F {
    F::from_bits(vector as u64)
}

/// Returns the vector with another first element.
#[inline(always)]
pub(super) fn with_first<F: Format>(vector: u128, element: F) -> u128 {
    vector >> size::<F>() << size::<F>() | u128::from(element.bits())
}
