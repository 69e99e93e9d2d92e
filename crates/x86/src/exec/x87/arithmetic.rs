//! x87 arithmetic (SDM vol. 1, 8.3.5): FADD to FDIVR, FSQRT, FRNDINT, FSCALE, FXTRACT, FPREM, FPREM1,
//! FCHS, FABS.

use ring3_core::memory::Memory;

use super::{M16Int, M32Fp, M32Int, M64Fp, Source, Sti, begin, note_instruction};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::Done;
use crate::fpu::{Fpu, status};
use crate::softfloat::{Context, F80, Operand, Remainder};
use crate::table::{Rows, plain};

/// Rows for the forms of an operation of two operands: with a source in memory, and with two registers.
macro_rules! arithmetic {
    ($rows:ident, $operation:ty, [$m32fp:ident $m64fp:ident $m16int:ident $m32int:ident],
        [$st0_sti:ident $sti_st0:ident $popping:ident]) => {
        plain!($rows, [$m32fp], to_st0::<M32Fp, $operation>);
        plain!($rows, [$m64fp], to_st0::<M64Fp, $operation>);
        plain!($rows, [$m16int], to_st0::<M16Int, $operation>);
        plain!($rows, [$m32int], to_st0::<M32Int, $operation>);
        plain!($rows, [$st0_sti], to_st0::<Sti, $operation>);
        plain!($rows, [$sti_st0], to_sti::<$operation, false>);
        plain!($rows, [$popping], to_sti::<$operation, true>);
    };
}

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    arithmetic!(rows, Add, [Fadd_m32fp Fadd_m64fp Fiadd_m16int Fiadd_m32int],
        [Fadd_st0_sti Fadd_sti_st0 Faddp_sti_st0]);
    arithmetic!(rows, Multiply, [Fmul_m32fp Fmul_m64fp Fimul_m16int Fimul_m32int],
        [Fmul_st0_sti Fmul_sti_st0 Fmulp_sti_st0]);
    arithmetic!(rows, Subtract, [Fsub_m32fp Fsub_m64fp Fisub_m16int Fisub_m32int],
        [Fsub_st0_sti Fsub_sti_st0 Fsubp_sti_st0]);
    arithmetic!(rows, SubtractFrom, [Fsubr_m32fp Fsubr_m64fp Fisubr_m16int Fisubr_m32int],
        [Fsubr_st0_sti Fsubr_sti_st0 Fsubrp_sti_st0]);
    arithmetic!(rows, Divide, [Fdiv_m32fp Fdiv_m64fp Fidiv_m16int Fidiv_m32int],
        [Fdiv_st0_sti Fdiv_sti_st0 Fdivp_sti_st0]);
    arithmetic!(rows, DivideInto, [Fdivr_m32fp Fdivr_m64fp Fidivr_m16int Fidivr_m32int],
        [Fdivr_st0_sti Fdivr_sti_st0 Fdivrp_sti_st0]);

    plain!(rows, [Fsqrt], unary::<SquareRoot>);
    plain!(rows, [Frndint], unary::<RoundToInteger>);
    plain!(rows, [Fchs], unary::<ChangeSign>);
    plain!(rows, [Fabs], unary::<Absolute>);
    plain!(rows, [Fscale], scale);
    plain!(rows, [Fxtract], extract);
    plain!(rows, [Fprem], remainder::<Truncated>);
    plain!(rows, [Fprem1], remainder::<Nearest>);
}

/// An operation of two operands.
trait Binary {
    /// Returns the new value of the destination, or None if an unmasked exception keeps the old one.
    fn apply(context: &mut Context, destination: Operand, source: Operand) -> Option<F80>;
}

/// An operation of one operand.
trait Unary {
    /// Returns the new value of the operand, or None if an unmasked exception keeps the old one.
    fn apply(context: &mut Context, value: F80) -> Option<F80>;
}

/// FPREM and FPREM1.
trait PartialRemainder {
    /// Returns the remainder, or None if an unmasked exception keeps the dividend.
    fn apply(context: &mut Context, dividend: F80, divisor: F80) -> Option<Remainder>;
}

struct Add;
struct Multiply;
struct Subtract;
/// FSUBR, which subtracts the destination.
struct SubtractFrom;
struct Divide;
/// FDIVR, whose divisor is the destination.
struct DivideInto;
struct SquareRoot;
struct RoundToInteger;
struct ChangeSign;
struct Absolute;
struct Truncated;
struct Nearest;

impl Binary for Add {
    fn apply(context: &mut Context, destination: Operand, source: Operand) -> Option<F80> {
        context.add(destination, source)
    }
}

impl Binary for Multiply {
    fn apply(context: &mut Context, destination: Operand, source: Operand) -> Option<F80> {
        context.mul(destination, source)
    }
}

impl Binary for Subtract {
    fn apply(context: &mut Context, destination: Operand, source: Operand) -> Option<F80> {
        context.sub(destination, source)
    }
}

impl Binary for SubtractFrom {
    fn apply(context: &mut Context, destination: Operand, source: Operand) -> Option<F80> {
        context.sub(source, destination)
    }
}

impl Binary for Divide {
    fn apply(context: &mut Context, destination: Operand, source: Operand) -> Option<F80> {
        context.div(destination, source)
    }
}

impl Binary for DivideInto {
    fn apply(context: &mut Context, destination: Operand, source: Operand) -> Option<F80> {
        context.div(source, destination)
    }
}

impl Unary for SquareRoot {
    fn apply(context: &mut Context, value: F80) -> Option<F80> {
        context.sqrt(value)
    }
}

impl Unary for RoundToInteger {
    fn apply(context: &mut Context, value: F80) -> Option<F80> {
        context.round_to_integer(value)
    }
}

impl Unary for ChangeSign {
    fn apply(_: &mut Context, value: F80) -> Option<F80> {
        Some(value.negate())
    }
}

impl Unary for Absolute {
    fn apply(_: &mut Context, value: F80) -> Option<F80> {
        Some(value.abs())
    }
}

impl PartialRemainder for Truncated {
    fn apply(context: &mut Context, dividend: F80, divisor: F80) -> Option<Remainder> {
        context.remainder_truncated(dividend, divisor)
    }
}

impl PartialRemainder for Nearest {
    fn apply(context: &mut Context, dividend: F80, divisor: F80) -> Option<Remainder> {
        context.remainder_nearest(dividend, divisor)
    }
}

fn to_st0<S: Source, O: Binary>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let source = S::read(cpu, memory, op)?;
    binary::<O>(&mut cpu.fpu, 0, source);
    Ok(())
}

fn to_sti<O: Binary, const POP: bool>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let source = cpu.fpu.st(0);
    let has_result = binary::<O>(&mut cpu.fpu, op.rm, source);
    if POP && has_result {
        cpu.fpu.pop();
    }
    Ok(())
}

/// Applies the operation to ST(`destination`) and `source`, where None stands for an empty register. Returns
/// whether there was a result.
fn binary<O: Binary>(fpu: &mut Fpu, destination: u8, source: Option<impl Into<Operand>>) -> bool {
    let (Some(value), Some(source)) = (fpu.st(destination), source) else {
        return underflow(fpu, destination);
    };
    let mut context = fpu.context();
    let result = O::apply(&mut context, value.into(), source.into());
    fpu.conclude(context);
    if let Some(result) = result {
        fpu.set_st(destination, result);
    }
    result.is_some()
}

/// Handles a stack underflow of an operation whose result is ST(`destination`). Returns whether there is a
/// result.
pub(super) fn underflow(fpu: &mut Fpu, destination: u8) -> bool {
    let masked = fpu.stack_underflow();
    if masked {
        fpu.set_st(destination, F80::INDEFINITE);
    }
    masked
}

fn unary<O: Unary>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    let Some(value) = fpu.st(0) else {
        underflow(fpu, 0);
        return Ok(());
    };
    let mut context = fpu.context();
    let result = O::apply(&mut context, value);
    fpu.conclude(context);
    if let Some(result) = result {
        fpu.set_st(0, result);
    }
    Ok(())
}

/// Returns ST(0) and ST(1), the operands of instructions without explicit ones.
pub(super) fn top_two(fpu: &Fpu) -> Option<(F80, F80)> {
    fpu.st(0).zip(fpu.st(1))
}

fn scale(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    let Some((value, scale)) = top_two(fpu) else {
        underflow(fpu, 0);
        return Ok(());
    };
    let mut context = fpu.context();
    let result = context.scale(value, scale);
    fpu.conclude(context);
    if let Some(result) = result {
        fpu.set_st(0, result);
    }
    Ok(())
}

/// Performs FXTRACT: the exponent replaces ST(0), and the significand is pushed.
fn extract(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    let parts = match fpu.st(0) {
        None => fpu.stack_underflow().then_some((F80::INDEFINITE, F80::INDEFINITE)),
        Some(_) if fpu.is_full() => {
            fpu.stack_overflow().then_some((F80::INDEFINITE, F80::INDEFINITE))
        }
        Some(value) => {
            let mut context = fpu.context();
            let parts = context.extract(value);
            fpu.conclude(context);
            parts
        }
    };
    if let Some((exponent, significand)) = parts {
        fpu.set_st(0, exponent);
        fpu.push(significand);
    }
    Ok(())
}

/// Performs FPREM and FPREM1. After an exception without a result the manual leaves the codes undefined;
/// here, as on AMD's processors, C1 and C2 are then cleared.
fn remainder<O: PartialRemainder>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    fpu.set_codes(status::C2, 0);
    let Some((dividend, divisor)) = top_two(fpu) else {
        underflow(fpu, 0);
        return Ok(());
    };
    let mut context = fpu.context();
    let result = O::apply(&mut context, dividend, divisor);
    fpu.conclude(context);
    let Some(Remainder { value, quotient, incomplete }) = result else {
        return Ok(());
    };
    fpu.set_st(0, value);
    if incomplete {
        fpu.set_codes(status::C2, status::C2);
    }
    if let Some(quotient) = quotient {
        let code = |bit: u8, code: u16| if quotient & bit != 0 { code } else { 0 };
        let codes = code(4, status::C0) | code(2, status::C3) | code(1, status::C1);
        fpu.set_codes(status::C0 | status::C3 | status::C1, codes);
    }
    Ok(())
}
