//! Conversions among the formats and integers (CVTxx2xx), and ROUNDxx.

use super::format::{Class, F16, F32, Format, Number};
use super::rounding::shift_right_sticky;
use super::{Context, Flags, Rounding};
use crate::undefined::Vendor;

impl Context {
    /// `a` in another format (CVTSS2SD, CVTSD2SS and their packed forms).
    pub fn convert<F: Format, G: Format>(&mut self, a: F) -> G {
        if let Some(nan) = self.propagate_nan(a) {
            // A NaN keeps the high bits of its fraction.
            let fraction = nan.fraction() << (64 - F::FRACTION_BITS) >> (64 - G::FRACTION_BITS);
            return G::from_fields(nan.is_negative(), G::SPECIAL_EXPONENT, fraction);
        }
        let a = self.denormal_as_asked(a);
        match a.class() {
            Class::Zero => G::zero(a.is_negative()),
            Class::Infinity => G::infinity(a.is_negative()),
            _ => {
                self.check_denormal(a);
                self.round(a.number())
            }
        }
    }

    /// A half-precision value in single precision (VCVTPH2PS). It is exact, and neither DAZ nor the denormal-operand
    /// exception have to do with it.
    pub fn convert_from_f16(&mut self, a: F16) -> F32 {
        match a.class() {
            Class::Denormal => self.round(a.number()),
            _ => self.convert(a),
        }
    }

    /// `a` in half precision (VCVTPS2PH), to which FTZ does not apply. For Intel's processors a denormal, which is far
    /// too small, raises the precision exception even if underflow is unmasked.
    pub fn convert_to_f16(&mut self, a: F32, rounding: Rounding, vendor: Vendor) -> F16 {
        let mut context = Context { rounding, flush_to_zero: false, ..*self };
        let result = context.convert(a);
        let is_denormal = self.denormal_as_asked(a).class() == Class::Denormal;
        if is_denormal && vendor == Vendor::Intel {
            context.raise(Flags::PRECISION);
        }
        self.raised = context.raised;
        result
    }

    /// A signed integer as a number (CVTSI2SS, CVTDQ2PD and similar instructions).
    pub fn convert_integer<F: Format>(&mut self, integer: i64) -> F {
        if integer == 0 {
            return F::zero(false);
        }
        let magnitude = integer.unsigned_abs();
        let shift = magnitude.leading_zeros();
        self.round(Number {
            negative: integer < 0,
            exponent: 63 - shift as i32,
            significand: magnitude << shift,
        })
    }

    /// `a` as a signed integer of 32 bits (CVTSS2SI and similar instructions; with [`Rounding::Zero`],
    /// CVTTSS2SI and similar ones). A value that does not fit is an invalid operation and becomes `i32::MIN`.
    pub fn convert_to_i32<F: Format>(&mut self, a: F, rounding: Rounding) -> i32 {
        self.convert_to_integer(a, rounding, i32::MIN.into(), i32::MAX.into()) as i32
    }

    /// `a` as a signed integer of 64 bits, as [`Context::convert_to_i32`].
    pub fn convert_to_i64<F: Format>(&mut self, a: F, rounding: Rounding) -> i64 {
        self.convert_to_integer(a, rounding, i64::MIN, i64::MAX)
    }

    fn convert_to_integer<F: Format>(
        &mut self,
        a: F,
        rounding: Rounding,
        min: i64,
        max: i64,
    ) -> i64 {
        let a = self.denormal_as_asked(a);
        let class = a.class();
        if class == Class::Zero {
            return 0;
        }
        if class.is_nan() || class == Class::Infinity || a.number().exponent > 63 {
            self.raise(Flags::INVALID);
            return min;
        }
        let (magnitude, inexact) = integer_part(a.number(), rounding);
        let magnitude = i128::from(magnitude);
        let integer = if a.is_negative() { -magnitude } else { magnitude };
        if !(i128::from(min)..=i128::from(max)).contains(&integer) {
            self.raise(Flags::INVALID);
            return min;
        }
        if inexact {
            self.raise(Flags::PRECISION);
        }
        integer as i64
    }

    /// `a` rounded to an integer in its own format (ROUNDxx). Bit 3 of the immediate operand can suppress the
    /// precision exception, and a denormal operand raises no exception.
    pub fn round_to_integral<F: Format>(
        &mut self,
        a: F,
        rounding: Rounding,
        suppress_precision: bool,
    ) -> F {
        if let Some(nan) = self.propagate_nan(a) {
            return nan;
        }
        let a = self.denormal_as_asked(a);
        if matches!(a.class(), Class::Zero | Class::Infinity)
            || a.number().exponent >= F::FRACTION_BITS as i32
        {
            return a;
        }
        let (magnitude, inexact) = integer_part(a.number(), rounding);
        if inexact && !suppress_precision {
            self.raise(Flags::PRECISION);
        }
        if magnitude == 0 {
            return F::zero(a.is_negative());
        }
        let shift = magnitude.leading_zeros();
        let exponent_field = (63 - shift as i32 + F::BIAS) as u64;
        let fraction = magnitude << shift << 1 >> (64 - F::FRACTION_BITS);
        F::from_fields(a.is_negative(), exponent_field, fraction)
    }
}

/// The magnitude of a number below 2^64, rounded to an integer, and whether that differs from the number.
/// There is no carry out of the integer, since a number of that size has no fraction.
fn integer_part(number: Number, rounding: Rounding) -> (u64, bool) {
    let Number { negative, exponent, significand } = number;
    if exponent == 63 {
        return (significand, false);
    }
    // The fraction as a part of 2^63; bits that are too low are merged into one.
    let (whole, fraction) = if exponent < 0 {
        (0, shift_right_sticky(significand, exponent.unsigned_abs()))
    } else {
        (significand >> (63 - exponent), significand << exponent << 1 >> 1)
    };
    let away = rounding.is_away(negative, fraction, 1 << 63, whole & 1 != 0);
    (whole + u64::from(away), fraction != 0)
}
