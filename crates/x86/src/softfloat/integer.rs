//! Whole numbers: conversions from and to integers, and rounding to a whole number.

use super::operand::Number;
use super::rounding::{Exact, Rounded, shift_right_sticky};
use super::{BIAS, Class, Context, F80, Flags, Operand, Rounding};

/// The sizes of integers in memory (SDM vol. 1, 8.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntegerSize {
    /// 16 bits.
    Word,
    /// 32 bits.
    Doubleword,
    /// 64 bits.
    Quadword,
}

impl IntegerSize {
    /// The smallest integer, which is also the *integer indefinite*: the masked response to values
    /// that do not fit.
    const fn minimum(self) -> i64 {
        match self {
            Self::Word => i16::MIN as i64,
            Self::Doubleword => i32::MIN as i64,
            Self::Quadword => i64::MIN,
        }
    }
}

impl From<i64> for F80 {
    /// The integer as a register value (FILD), which is always exact.
    fn from(integer: i64) -> Self {
        Self::from_magnitude(integer < 0, integer.unsigned_abs())
    }
}

impl F80 {
    /// A whole number from its sign and its magnitude.
    pub(super) fn from_magnitude(negative: bool, magnitude: u64) -> Self {
        if magnitude == 0 {
            return Self::ZERO.with_sign(negative);
        }
        let shift = magnitude.leading_zeros();
        Self::new((BIAS + 63 - shift as i32) as u16, magnitude << shift).with_sign(negative)
    }
}

impl Context {
    /// `a` as an integer of the given size for memory, sign-extended. FIST and FISTP round as
    /// [`Context::rounding`] says, FISTTP toward zero.
    pub fn store_integer(&mut self, a: F80, size: IntegerSize, rounding: Rounding) -> Option<i64> {
        let minimum = size.minimum();
        let limit =
            if a.is_negative() { minimum.unsigned_abs() } else { minimum.unsigned_abs() - 1 };
        let Some(magnitude) = self.whole_magnitude(a, limit, rounding) else {
            self.raise(Flags::INVALID)?;
            return Some(minimum);
        };
        Some(if a.is_negative() {
            0_i64.wrapping_sub_unsigned(magnitude)
        } else {
            magnitude as i64
        })
    }

    /// The magnitude of `a` as a whole number, or `None` if there is none up to `limit`.
    pub(super) fn whole_magnitude(
        &mut self,
        a: F80,
        limit: u64,
        rounding: Rounding,
    ) -> Option<u64> {
        self.rounded_up = false;
        let a = Operand::from(a);
        if a.class == Class::Infinity || a.class.is_nan_or_unsupported() {
            return None;
        }
        let whole = round_to_whole(a.number(), rounding)?;
        if whole.significand > limit {
            return None;
        }
        self.note_rounding(whole);
        Some(whole.significand)
    }

    /// `a` rounded to a whole number (FRNDINT).
    pub fn round_to_integer(&mut self, a: F80) -> Option<F80> {
        self.rounded_up = false;
        let operand = Operand::from(a);
        if operand.class.is_nan_or_unsupported() {
            return self.propagate_nan(operand);
        }
        self.check_denormal(operand)?;
        if operand.class == Class::Infinity {
            return Some(a);
        }
        let Some(whole) = round_to_whole(operand.number(), self.rounding) else {
            return Some(a);
        };
        self.note_rounding(whole);
        Some(F80::from_magnitude(a.is_negative(), whole.significand))
    }
}

/// Rounds to a whole number, which is the significand of the result; `None` from 2^64 on, where all
/// numbers are whole.
fn round_to_whole(a: Number, rounding: Rounding) -> Option<Rounded> {
    let Number { negative, exponent, significand } = a;
    let fraction_bits = u32::try_from(63 - exponent).ok()?;
    // The upper 64 bits become the whole part, the lower 64 bits the fraction.
    let significand = shift_right_sticky(u128::from(significand) << 64, fraction_bits);
    Some(Exact { negative, exponent, significand }.round_to_bits(64, rounding))
}
