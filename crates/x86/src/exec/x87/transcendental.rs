//! The transcendental instructions (SDM vol. 1, 8.3.7 and 8.3.9): F2XM1, FYL2X, FYL2XP1, FPTAN,
//! FPATAN, FSIN, FCOS, FSINCOS.
//!
//! The functions themselves are those of [`Cpu::transcendental`]; this module handles their effects on the
//! stack.

use ring3_core::memory::Memory;

use super::arithmetic::{top_two, underflow};
use super::{begin, note_instruction};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exec::Done;
use crate::fpu::status;
use crate::softfloat::transcendental::{Function, Outcome, Results};
use crate::softfloat::{Context, F80};
use crate::table::{Rows, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [F2xm1], exponential);
    plain!(rows, [Fyl2x], popping::<Logarithm>);
    plain!(rows, [Fyl2xp1], popping::<LogarithmOfMore>);
    plain!(rows, [Fpatan], popping::<Arctangent>);
    plain!(rows, [Fsin], replacing::<Sine>);
    plain!(rows, [Fcos], replacing::<Cosine>);
    plain!(rows, [Fptan], pushing::<Tangent>);
    plain!(rows, [Fsincos], pushing::<SineAndCosine>);
}

/// The function of a handler.
trait Which {
    const FUNCTION: Function;
}

/// Defines the types that stand for the functions.
macro_rules! which {
    ($($name:ident $function:ident;)*) => {
        $(
            struct $name;

            impl Which for $name {
                const FUNCTION: Function = Function::$function;
            }
        )*
    };
}

which! {
    Logarithm Fyl2x;
    LogarithmOfMore Fyl2xp1;
    Arctangent Fpatan;
    Sine Fsin;
    Cosine Fcos;
    Tangent Fptan;
    SineAndCosine Fsincos;
}

fn exponential(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    match cpu.fpu.st(0) {
        Some(value) => apply(cpu, Function::F2xm1, value, F80::ZERO),
        None => _ = underflow(&mut cpu.fpu, 0),
    }
    Ok(())
}

/// Computes a function of ST(0) and ST(1). The result is in ST(1), which becomes ST(0).
fn popping<W: Which>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    if let Some((st0, st1)) = top_two(&cpu.fpu) {
        apply(cpu, W::FUNCTION, st0, st1);
    } else if underflow(&mut cpu.fpu, 1) {
        cpu.fpu.pop();
    }
    Ok(())
}

/// Computes a function of an angle. C2 says whether the angle is too large.
fn replacing<W: Which>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    cpu.fpu.set_codes(status::C2, 0);
    match cpu.fpu.st(0) {
        Some(angle) => apply(cpu, W::FUNCTION, angle, F80::ZERO),
        None => _ = underflow(&mut cpu.fpu, 0),
    }
    Ok(())
}

/// Computes a function of an angle with two results.
fn pushing<W: Which>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    fpu.set_codes(status::C2, 0);
    let is_masked = match fpu.st(0) {
        None => fpu.stack_underflow(),
        Some(_) if fpu.is_full() => fpu.stack_overflow(),
        Some(angle) => {
            apply(cpu, W::FUNCTION, angle, F80::ZERO);
            return Ok(());
        }
    };
    if is_masked {
        fpu.set_st(0, F80::INDEFINITE);
        fpu.push(F80::INDEFINITE);
    }
    Ok(())
}

/// Computes the function and stores its results.
fn apply(cpu: &mut Cpu, function: Function, st0: F80, st1: F80) {
    let fpu = &mut cpu.fpu;
    let Outcome { raised, rounded_up, incomplete, results } =
        (cpu.transcendental)(function, fpu.control(), [st0, st1]);
    fpu.conclude(Context { raised, rounded_up, ..fpu.context() });
    if incomplete {
        fpu.set_codes(status::C2, status::C2);
    }
    match results {
        Results::None => {}
        Results::Replace(value) => fpu.set_st(0, value),
        Results::Pop(value) => {
            fpu.pop();
            fpu.set_st(0, value);
        }
        Results::Push { replacing, pushed } => {
            fpu.set_st(0, replacing);
            fpu.push(pushed);
        }
    }
}
