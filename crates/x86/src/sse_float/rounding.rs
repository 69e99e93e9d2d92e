//! Rounds an exact result to one that fits, with overflow and underflow (SDM vol. 1, 4.8.4, 4.9.1.4 to
//! 4.9.1.6, and 11.5.2.4 to 11.5.2.6).

use super::format::{Format, Number};
use super::{Context, Flags, Rounding};

/// Shifts right, merging all bits shifted out into bit 0.
pub(super) const fn shift_right_sticky(value: u64, count: u32) -> u64 {
    match count {
        0 => value,
        1..64 => value >> count | (value << (64 - count) != 0) as u64,
        _ => (value != 0) as u64,
    }
}

/// `value` with its low 64 bits merged into the lowest of the high ones.
pub(super) const fn high_sticky(value: u128) -> u64 {
    (value >> 64) as u64 | (value as u64 != 0) as u64
}

impl Rounding {
    /// The direction that the two low bits of a control word or an immediate operand select.
    pub const fn of_control(control: u32) -> Rounding {
        match control & 3 {
            0 => Self::Nearest,
            1 => Self::Down,
            2 => Self::Up,
            _ => Self::Zero,
        }
    }

    /// Whether a significand must be rounded away from zero. The bits of `tail` do not fit: they are a part
    /// of a `unit` (below it). `odd` says whether the number in the remaining bits is odd.
    pub(super) const fn is_away(self, negative: bool, tail: u64, unit: u64, odd: bool) -> bool {
        match self {
            Self::Nearest => tail > unit / 2 || tail == unit / 2 && odd,
            Self::Down => tail != 0 && negative,
            Self::Up => tail != 0 && !negative,
            Self::Zero => false,
        }
    }
}

/// `number` rounded to the top `bits` (1 to 63) bits of its significand, and whether that differs from the
/// number. The significand's top bit need not be set.
fn round_to_bits(number: Number, bits: u32, rounding: Rounding) -> (Number, bool) {
    let unit = 1 << (64 - bits);
    let tail = number.significand & (unit - 1);
    let kept = number.significand - tail;
    let away = rounding.is_away(number.negative, tail, unit, kept & unit != 0);
    let (significand, carry) = kept.overflowing_add(if away { unit } else { 0 });
    let rounded = if carry {
        Number { exponent: number.exponent + 1, significand: 1 << 63, ..number }
    } else {
        Number { significand, ..number }
    };
    (rounded, tail != 0)
}

/// The value of a number that fits. Without the top bit of its significand it is a denormal.
fn encode<F: Format>(number: Number) -> F {
    let fraction = number.significand << 1 >> (64 - F::FRACTION_BITS);
    let exponent_field = match number.significand >> 63 {
        0 => 0,
        _ => (number.exponent + F::BIAS) as u64,
    };
    F::from_fields(number.negative, exponent_field, fraction)
}

impl Context {
    /// Rounds an exact result, and raises exceptions.
    pub(super) fn round<F: Format>(&mut self, exact: Number) -> F {
        let (rounded, inexact) = round_to_bits(exact, F::PRECISION, self.rounding);
        if inexact {
            self.raise(Flags::PRECISION);
        }
        if rounded.exponent > F::BIAS {
            self.overflow(exact.negative)
        } else if rounded.exponent < F::MIN_EXPONENT {
            // Tininess is detected after rounding (SDM vol. 1, 4.9.1.5).
            self.underflow(exact)
        } else {
            encode(rounded)
        }
    }

    /// Handles a result that is too large. If overflow is unmasked, the precision exception is raised as well
    /// only if rounding was inexact.
    fn overflow<F: Format>(&mut self, negative: bool) -> F {
        self.raise(Flags::OVERFLOW);
        if self.masks.contains(Flags::OVERFLOW) {
            self.raise(Flags::PRECISION);
        }
        let to_infinity = match self.rounding {
            Rounding::Nearest => true,
            Rounding::Down => negative,
            Rounding::Up => !negative,
            Rounding::Zero => false,
        };
        if to_infinity {
            F::infinity(negative)
        } else {
            F::from_bits(F::infinity(negative).bits() - 1)
        }
    }

    /// Handles a result that is too small to be normalised. If underflow is unmasked, it is raised for exact
    /// results too, and FTZ is ignored.
    fn underflow<F: Format>(&mut self, exact: Number) -> F {
        let masked = self.masks.contains(Flags::UNDERFLOW);
        if masked && self.flush_to_zero {
            self.raise(Flags::UNDERFLOW.union(Flags::PRECISION));
            return F::zero(exact.negative);
        }
        let shift = (F::MIN_EXPONENT - exact.exponent) as u32;
        let denormal = Number {
            exponent: F::MIN_EXPONENT,
            significand: shift_right_sticky(exact.significand, shift),
            ..exact
        };
        let (rounded, inexact) = round_to_bits(denormal, F::PRECISION, self.rounding);
        if !masked {
            self.raise(Flags::UNDERFLOW);
        } else if inexact {
            self.raise(Flags::UNDERFLOW.union(Flags::PRECISION));
        }
        encode(rounded)
    }
}
