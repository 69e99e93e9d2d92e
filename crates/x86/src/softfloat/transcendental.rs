//! The transcendental functions (SDM vol. 1, 8.3.7 to 8.3.10): F2XM1, FYL2X, FYL2XP1, FPTAN,
//! FPATAN, FSIN, FCOS, FSINCOS.
//!
//! The manual leaves the last bits to the processor and demands only an error below one unit in the last
//! place. So the implementation is exchangeable ([`Transcendental`]): the host's x87, which delivers a real
//! processor's bits, or [`execute`] in this module, which needs no host.
//!
//! # The implementation in this module
//! Everything except the last bits agrees with AMD's Zen processors: special values, exceptions, the range of
//! angles (C2), and the reduction of angles by a π of 66 bits (SDM vol. 1, 8.3.8). Numbers are computed with
//! at least 118 bits and then rounded in the direction that the control word selects. So the error, in units
//! in the last place, is below 0.5000001 when rounding to nearest and below 1.0000001 otherwise; for FSIN,
//! FCOS, FSINCOS and FPTAN that is the error in the function of the reduced angle. Processors are less exact:
//! Zen 5's results differ from these by up to one unit (`tests/host_x87/portable.rs`).
//!
//! Results that happen to be exact (the logarithm of 8) raise the precision exception all the same, as they
//! do on these processors.

mod approximation;
#[cfg(test)]
mod tests;
mod wide;

use super::operand::{Number, any_nan};
use super::rounding::Exact;
use super::{Class, Context, F80, Flags, Operand};
use crate::fpu::status;
use approximation::{Angle, arctangent, exp2m1, log2, log2p1};

/// Angles from two to this power on are not reduced (SDM vol. 1, 8.3.7).
const ANGLE_LIMIT: i32 = 63;

/// A transcendental instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// 2 to the power of ST(0), less 1.
    F2xm1 = 0xf0,
    /// ST(1) times the binary logarithm of ST(0).
    Fyl2x = 0xf1,
    /// The tangent of ST(0); 1 is pushed after it.
    Fptan = 0xf2,
    /// The angle of the point whose abscissa is ST(0) and whose ordinate is ST(1).
    Fpatan = 0xf3,
    /// ST(1) times the binary logarithm of ST(0) + 1.
    Fyl2xp1 = 0xf9,
    /// The sine of ST(0); its cosine is pushed after it.
    Fsincos = 0xfb,
    /// The sine of ST(0).
    Fsin = 0xfe,
    /// The cosine of ST(0).
    Fcos = 0xff,
}

impl Function {
    /// All functions.
    pub const ALL: [Self; 8] = [
        Self::F2xm1,
        Self::Fyl2x,
        Self::Fptan,
        Self::Fpatan,
        Self::Fyl2xp1,
        Self::Fsincos,
        Self::Fsin,
        Self::Fcos,
    ];

    /// The second byte of the instruction; the first is D9.
    pub const fn opcode(self) -> u8 {
        self as u8
    }
}

/// The type of an implementation. It computes a function of ST(0) and ST(1), neither of them empty, under a
/// control word. Functions of one operand ignore the second.
pub type Transcendental = fn(function: Function, control: u16, st: [F80; 2]) -> Outcome;

/// The result of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The exceptions raised.
    pub raised: Flags,
    /// Whether the magnitude of the result was rounded up (C1).
    pub rounded_up: bool,
    /// Whether the angle was too large, so that nothing was done (C2).
    pub incomplete: bool,
    /// The effect on the stack.
    pub results: Results,
}

impl Outcome {
    /// Makes the result from the status word that a real x87 has left and from the effect on its stack.
    pub const fn from_x87(status: u16, results: Results) -> Self {
        Self {
            raised: Flags::from_word(status),
            rounded_up: status & status::C1 != 0,
            incomplete: status & status::C2 != 0,
            results,
        }
    }
}

/// The effect on the register stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Results {
    /// Nothing.
    None,
    /// ST(0) is replaced by this.
    Replace(F80),
    /// The stack is popped, and the new ST(0) is replaced by this.
    Pop(F80),
    /// ST(0) is replaced, and then a value is pushed.
    Push {
        /// The value that replaces ST(0).
        replacing: F80,
        /// The value that is pushed.
        pushed: F80,
    },
}

/// Computes `function` without an x87. This is a [`Transcendental`].
pub fn execute(function: Function, control: u16, st: [F80; 2]) -> Outcome {
    let mut context = Context::new(control);
    let [st0, st1] = st.map(Operand::from);
    let mut incomplete = false;
    let results = match function {
        Function::F2xm1 => context.exponential(st0).map(Results::Replace),
        Function::Fyl2x => context.logarithm(st1, st0).map(Results::Pop),
        Function::Fyl2xp1 => context.logarithm_of_more(st1, st0).map(Results::Pop),
        Function::Fpatan => context.arctangent(st1, st0).map(Results::Pop),
        Function::Fptan | Function::Fsincos | Function::Fsin | Function::Fcos => {
            incomplete = is_beyond_limit(st0);
            if incomplete { None } else { context.trigonometric(function, st0) }
        }
    };
    let Context { raised, rounded_up, .. } = context;
    Outcome { raised, rounded_up, incomplete, results: results.unwrap_or(Results::None) }
}

/// Whether the operand is a number of 2^63 or more.
fn is_beyond_limit(angle: Operand) -> bool {
    angle.class == Class::Normal && angle.number().exponent >= ANGLE_LIMIT
}

impl Context {
    /// 2^`x` - 1. For numbers beyond ±1 the manual leaves the result undefined; AMD's processors return the
    /// operand.
    fn exponential(&mut self, x: Operand) -> Option<F80> {
        const MINUS_HALF: F80 = F80::new(0xbffe, 1 << 63);
        if x.class.is_nan_or_unsupported() {
            return self.propagate_nan(x);
        }
        match x.class {
            Class::Infinity if x.is_negative() => return Some(F80::ONE.negate()),
            Class::Zero | Class::Infinity => return Some(x.value),
            _ => self.check_denormal(x)?,
        }
        if x.number().exponent >= 0 {
            let result = if x.value == F80::ONE.negate() { MINUS_HALF } else { x.value };
            return Some(self.inexact(result));
        }
        self.round_inexact(exp2m1(exact(x.number())))
    }

    /// `y` · log2(`x`).
    fn logarithm(&mut self, y: Operand, x: Operand) -> Option<F80> {
        if any_nan(x, y) {
            return self.propagate_nans(x, y);
        }
        if x.class == Class::Zero {
            let negative = !y.is_negative();
            return match y.class {
                Class::Zero => self.invalid(),
                Class::Infinity => Some(F80::INFINITY.with_sign(negative)),
                _ => {
                    // As in a division, this comes before the denormal-operand exception.
                    self.raise(Flags::ZERO_DIVIDE)?;
                    Some(F80::INFINITY.with_sign(negative))
                }
            };
        }
        if x.is_negative() {
            return self.invalid();
        }
        let is_one = x.value == F80::ONE;
        self.times_logarithm(y, x, is_one, x.value.sign_exponent < F80::ONE.sign_exponent, || {
            log2(exact(x.number()))
        })
    }

    /// `y` · log2(`x` + 1). Beyond the range of the manual (about ±0.3) the result is undefined. As on AMD's
    /// processors it is computed as long as there is a logarithm, and beyond that the result is `x`.
    fn logarithm_of_more(&mut self, y: Operand, x: Operand) -> Option<F80> {
        if any_nan(x, y) {
            return self.propagate_nans(x, y);
        }
        if x.class == Class::Infinity && x.is_negative() {
            return self.invalid();
        }
        let is_zero = x.class == Class::Zero;
        let has_logarithm = !x.is_negative() || is_zero || x.number().exponent < 0;
        if !has_logarithm
            && matches!(y.class, Class::Normal | Class::Denormal | Class::PseudoDenormal)
        {
            self.check_denormal(y)?;
            return Some(self.inexact(x.value));
        }
        self.times_logarithm(y, x, is_zero, x.is_negative(), || log2p1(exact(x.number())))
    }

    /// `y` times a logarithm that depends on `x`: it is zero if `is_zero` and otherwise has the sign
    /// `negative`; its magnitude is infinite for infinite `x`.
    fn times_logarithm(
        &mut self,
        y: Operand,
        x: Operand,
        is_zero: bool,
        negative: bool,
        logarithm: impl Fn() -> Exact,
    ) -> Option<F80> {
        let negative = negative ^ y.is_negative();
        match (y.class, x.class) {
            (Class::Infinity, _) if is_zero => return self.invalid(),
            (Class::Zero, Class::Infinity) => return self.invalid(),
            _ => self.check_denormals(x, y)?,
        }
        match (y.class, x.class) {
            (Class::Infinity, _) | (_, Class::Infinity) => Some(F80::INFINITY.with_sign(negative)),
            (Class::Zero, _) => Some(F80::ZERO.with_sign(negative)),
            _ if is_zero => Some(F80::ZERO.with_sign(negative)),
            _ => self.round_logarithm(wide::multiply(exact(y.number()), logarithm())),
        }
    }

    /// The angle between the positive x-axis and the point (`x`, `y`) (SDM vol. 2, "FPATAN").
    fn arctangent(&mut self, y: Operand, x: Operand) -> Option<F80> {
        if any_nan(x, y) {
            return self.propagate_nans(x, y);
        }
        self.check_denormals(x, y)?;
        // The size classes of the operands; the numbers decide if both are in the same class.
        let size = |operand: Operand| match operand.class {
            Class::Zero => 0,
            Class::Infinity => 2,
            _ => 1,
        };
        let angle = match (size(y), size(x)) {
            (1, 1) => {
                let positive = |number: Number| Exact { negative: false, ..exact(number) };
                arctangent(positive(y.number()), positive(x.number()), x.is_negative())
            }
            (2, 2) => approximation::multiple_of_quarter_pi(if x.is_negative() { 3 } else { 1 }),
            (of_y, of_x) if of_y > of_x => approximation::multiple_of_quarter_pi(2),
            _ if x.is_negative() => approximation::multiple_of_quarter_pi(4),
            _ => return Some(F80::ZERO.with_sign(y.is_negative())),
        };
        self.round_inexact(Exact { negative: y.is_negative(), ..angle })
    }

    /// The functions of an angle below the limit.
    fn trigonometric(&mut self, function: Function, x: Operand) -> Option<Results> {
        let (first, second) = if x.class.is_nan_or_unsupported() {
            let nan = self.propagate_nan(x)?;
            (nan, nan)
        } else if x.class == Class::Infinity {
            let indefinite = self.invalid()?;
            (indefinite, indefinite)
        } else if x.class == Class::Zero {
            (if function == Function::Fcos { F80::ONE } else { x.value }, F80::ONE)
        } else {
            self.check_denormal(x)?;
            let angle = Angle::reduced(x.number());
            match function {
                Function::Fcos => (self.round_inexact(angle.cosine())?, F80::ONE),
                Function::Fsin => (self.round_inexact(angle.sine())?, F80::ONE),
                Function::Fptan => (self.round_inexact(angle.tangent())?, F80::ONE),
                _ => (self.round_inexact(angle.sine())?, self.round_inexact(angle.cosine())?),
            }
        };
        Some(match function {
            Function::Fsin | Function::Fcos => Results::Replace(first),
            _ => Results::Push { replacing: first, pushed: second },
        })
    }

    /// `value` as the result of an operation that is never exact.
    fn inexact(&mut self, value: F80) -> F80 {
        self.raised = self.raised.union(Flags::PRECISION);
        value
    }

    /// Rounds the result of FYL2X and FYL2XP1. It may be exact, like the logarithm of a power of two;
    /// processors raise the exceptions of an inexact result all the same.
    fn round_logarithm(&mut self, value: Exact) -> Option<F80> {
        let result = self.round_to_register(value, 64)?;
        if matches!(result.class(), Class::Denormal | Class::Zero) {
            self.raised = self.raised.union(Flags::UNDERFLOW);
        }
        Some(self.inexact(result))
    }

    /// Rounds the result of an operation that is never exact. Precision control does not apply to it (SDM
    /// vol. 1, 8.1.5.2).
    fn round_inexact(&mut self, value: Exact) -> Option<F80> {
        let significand = value.significand | 1;
        self.round_to_register(Exact { significand, ..value }, 64)
    }
}

/// A number other than zero, with more bits.
fn exact(number: Number) -> Exact {
    let Number { negative, exponent, significand } = number;
    Exact { negative, exponent, significand: u128::from(significand) << 64 }
}
