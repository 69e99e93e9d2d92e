//! Operations on the exponent: FSCALE and FXTRACT.

use super::operand::any_nan;
use super::rounding::Exact;
use super::{BIAS, Class, Context, F80, Flags, Operand};

/// FSCALE's scale is clamped to two to this power: every finite number, scaled further, overflows or
/// underflows anyway, even with an adjusted exponent.
const MAX_SCALE_BITS: i32 = 16;

impl Context {
    /// `a` · 2^`scale`, where `scale` is rounded toward zero first (FSCALE).
    ///
    /// The result has 64 significant bits, whatever precision control says.
    pub fn scale(&mut self, a: F80, scale: F80) -> Option<F80> {
        let (a, scale) = (Operand::from(a), Operand::from(scale));
        self.rounded_up = false;
        if any_nan(a, scale) {
            return self.propagate_nans(a, scale);
        }
        let negative = a.is_negative();
        match (a.class, scale.class, scale.is_negative()) {
            (Class::Zero, Class::Infinity, false) | (Class::Infinity, Class::Infinity, true) => {
                return self.invalid();
            }
            _ => self.check_denormals(a, scale)?,
        }
        match (a.class, scale.class, scale.is_negative()) {
            (Class::Infinity | Class::Zero, ..) => Some(a.value),
            (_, Class::Infinity, false) => Some(F80::INFINITY.with_sign(negative)),
            (_, Class::Infinity, true) => Some(F80::ZERO.with_sign(negative)),
            _ => {
                let number = a.number();
                let exact = Exact {
                    negative,
                    exponent: number.exponent + scale_exponent(scale),
                    significand: u128::from(number.significand) << 64,
                };
                self.round_to_register(exact, 64)
            }
        }
    }

    /// The exponent and the significand of `a`, both as numbers (FXTRACT).
    pub fn extract(&mut self, a: F80) -> Option<(F80, F80)> {
        let a = Operand::from(a);
        self.rounded_up = false;
        if a.class.is_nan_or_unsupported() {
            return self.propagate_nan(a).map(|nan| (nan, nan));
        }
        if a.class == Class::Zero {
            self.raise(Flags::ZERO_DIVIDE)?;
            return Some((F80::INFINITY.negate(), a.value));
        }
        self.check_denormal(a)?;
        if a.class == Class::Infinity {
            return Some((F80::INFINITY, a.value));
        }
        let number = a.number();
        let significand = F80::new(BIAS as u16, number.significand).with_sign(number.negative);
        Some((F80::from(i64::from(number.exponent)), significand))
    }
}

/// A finite scale as an integer, rounded toward zero.
fn scale_exponent(scale: Operand) -> i32 {
    let number = scale.number();
    let magnitude = match number.exponent {
        ..0 => 0,
        exponent if exponent < MAX_SCALE_BITS => (number.significand >> (63 - exponent)) as i32,
        _ => 1 << MAX_SCALE_BITS,
    };
    if number.negative { -magnitude } else { magnitude }
}
