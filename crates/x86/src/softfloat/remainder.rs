//! Partial remainders: FPREM and FPREM1.

use super::operand::{Number, any_nan};
use super::rounding::Exact;
use super::{Class, Context, F80, Operand};

/// The result of FPREM and FPREM1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remainder {
    /// The remainder, or the rest of the dividend if the reduction is incomplete.
    pub value: F80,
    /// The low three bits of the quotient's magnitude: C0, C3 and C1 from the highest on. Zero if
    /// the reduction is incomplete. `None` after a NaN or an invalid operation, which clear C1 but
    /// leave C0 and C3 as they were.
    pub quotient: Option<u8>,
    /// Whether the exponents were too far apart for one step, so that the instruction has to be
    /// executed again (C2).
    pub incomplete: bool,
}

impl Remainder {
    /// The NaN that is the result of an operation without a quotient.
    fn nan(value: F80) -> Self {
        Self { value, quotient: None, incomplete: false }
    }
}

/// How the quotient is rounded to an integer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotient {
    Truncated,
    Nearest,
}

impl Context {
    /// The partial remainder of `a` / `b` with the quotient rounded toward zero (FPREM).
    pub fn remainder_truncated(&mut self, a: F80, b: F80) -> Option<Remainder> {
        self.remainder(a.into(), b.into(), Quotient::Truncated)
    }

    /// The partial remainder of `a` / `b` with the quotient rounded to the nearest integer, as
    /// IEEE 754 defines it (FPREM1).
    pub fn remainder_nearest(&mut self, a: F80, b: F80) -> Option<Remainder> {
        self.remainder(a.into(), b.into(), Quotient::Nearest)
    }

    fn remainder(&mut self, a: Operand, b: Operand, rounding: Quotient) -> Option<Remainder> {
        self.rounded_up = false;
        if any_nan(a, b) {
            return self.propagate_nans(a, b).map(Remainder::nan);
        }
        if a.class == Class::Infinity || b.class == Class::Zero {
            return self.invalid().map(Remainder::nan);
        }
        self.check_denormals(a, b)?;
        let (dividend, divisor) = (a.number(), b.number());
        let mut incomplete = false;
        let (quotient, remainder) = if a.class == Class::Zero || b.class == Class::Infinity {
            (0, whole_dividend(dividend))
        } else {
            let distance = dividend.exponent - divisor.exponent;
            incomplete = distance >= 64;
            if incomplete {
                // The manual lets the processor choose how far one step goes; AMD's processors go this far.
                divide(dividend, divisor, distance & 31 | 32, Quotient::Truncated)
            } else {
                divide(dividend, divisor, distance, rounding)
            }
        };
        let value = match remainder.significand {
            0 => F80::ZERO.with_sign(remainder.negative),
            _ => self.round_to_register(remainder.normalized(), 64)?,
        };
        Some(Remainder {
            value,
            quotient: Some(if incomplete { 0 } else { quotient & 7 }),
            incomplete,
        })
    }
}

/// The remainder of a division whose quotient is zero.
fn whole_dividend(a: Number) -> Exact {
    Exact {
        negative: a.negative,
        exponent: a.exponent,
        significand: u128::from(a.significand) << 64,
    }
}

/// Divides the significand of `a`, shifted left by `shift` bits (up to 63), by that of `b`. Returns the low
/// bits of the quotient's magnitude, and the remainder.
fn divide(a: Number, b: Number, shift: i32, rounding: Quotient) -> (u8, Exact) {
    let unit_exponent = a.exponent - shift.max(0) + 64;
    let remainder =
        |negative, significand| Exact { negative, exponent: unit_exponent, significand };
    let (dividend, divisor) = match shift {
        // Less than half the divisor: the quotient is zero however it is rounded.
        ..-1 => return (0, whole_dividend(a)),
        -1 => (u128::from(a.significand), u128::from(b.significand) << 1),
        _ => (u128::from(a.significand) << shift, u128::from(b.significand)),
    };
    let quotient = (dividend / divisor) as u8;
    let rest = dividend % divisor;
    let above_half = rest * 2 > divisor || rest * 2 == divisor && quotient & 1 != 0;
    if rounding == Quotient::Nearest && above_half {
        (quotient.wrapping_add(1), remainder(!a.negative, divisor - rest))
    } else {
        (quotient, remainder(a.negative, rest))
    }
}
