//! The sources of operations, and the treatment of NaNs and denormals before an operation starts.

use super::{BIAS, Class, Context, F80, Flags, INTEGER_BIT, MAX_EXPONENT_FIELD};

/// The exponent that stands for "smaller than everything" in the [`Number`] of a zero.
const EXPONENT_OF_ZERO: i32 = -0x10_0000;

/// A source operand.
///
/// It is more than an [`F80`] because a denormal `float` or `double` from memory is a normalised
/// number in the registers' format, and yet raises the denormal-operand exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    pub(super) value: F80,
    pub(super) class: Class,
    pub(super) denormal: bool,
}

impl From<F80> for Operand {
    fn from(value: F80) -> Self {
        let class = value.class();
        Self { value, class, denormal: class.is_denormal() }
    }
}

impl Operand {
    /// An operand from the bits of a `float` in memory.
    pub fn from_f32(bits: u32) -> Self {
        Self::from_fields(bits >> 31 != 0, bits >> 23 & 0xff, 8, u64::from(bits) << 41)
    }

    /// An operand from the bits of a `double` in memory.
    pub fn from_f64(bits: u64) -> Self {
        Self::from_fields(bits >> 63 != 0, (bits >> 52) as u32 & 0x7ff, 11, bits << 12)
    }

    /// An operand from the fields of an IEEE format whose exponent has `exponent_bits` bits; the
    /// fraction is at the top of the `fraction` word.
    fn from_fields(negative: bool, exponent: u32, exponent_bits: u32, fraction: u64) -> Self {
        let maximum = (1 << exponent_bits) - 1;
        let rebias = BIAS - maximum / 2;
        let exponent = exponent as i32;
        let magnitude = if exponent == maximum {
            F80::new(MAX_EXPONENT_FIELD, INTEGER_BIT | fraction >> 1)
        } else if exponent != 0 {
            F80::new((exponent + rebias) as u16, INTEGER_BIT | fraction >> 1)
        } else if fraction == 0 {
            F80::ZERO
        } else {
            let shift = fraction.leading_zeros() as i32;
            F80::new((rebias - shift) as u16, fraction << shift)
        };
        let denormal = exponent == 0 && fraction != 0;
        Self { denormal, ..magnitude.with_sign(negative).into() }
    }

    /// Whether the operand's sign bit is set.
    pub(super) const fn is_negative(self) -> bool {
        self.value.is_negative()
    }

    /// The parts of the operand, which is a zero, denormal or normalised number.
    pub(super) const fn number(self) -> Number {
        let F80 { significand, .. } = self.value;
        let negative = self.is_negative();
        if significand == 0 {
            return Number { negative, exponent: EXPONENT_OF_ZERO, significand };
        }
        let shift = significand.leading_zeros();
        // Denormals have the exponent of the smallest normalised numbers.
        let field = match self.value.exponent_field() {
            0 => 1,
            field => field as i32,
        };
        Number {
            negative,
            exponent: field - BIAS - shift as i32,
            significand: significand << shift,
        }
    }
}

/// A finite number: `significand` / 2^63 · 2^`exponent`. The top bit of the significand is set
/// unless the number is zero.
#[derive(Clone, Copy)]
pub(super) struct Number {
    pub(super) negative: bool,
    pub(super) exponent: i32,
    pub(super) significand: u64,
}

/// Whether one of two operands is a NaN or unsupported, so that the result is a NaN.
pub(super) const fn any_nan(a: Operand, b: Operand) -> bool {
    a.class.is_nan_or_unsupported() || b.class.is_nan_or_unsupported()
}

impl Context {
    /// The result of an operation with one operand that is a NaN or unsupported.
    pub(super) fn propagate_nan(&mut self, a: Operand) -> Option<F80> {
        self.propagate_nans(a, a)
    }

    /// The result of an operation on `a` and `b`, one of which is a NaN or unsupported (SDM vol. 1, table
    /// 4-7, the rules for the x87 FPU).
    pub(super) fn propagate_nans(&mut self, a: Operand, b: Operand) -> Option<F80> {
        if a.class.is_invalid() || b.class.is_invalid() {
            self.raise(Flags::INVALID)?;
        }
        Some(match (a.class, b.class) {
            (Class::Unsupported, _) | (_, Class::Unsupported) => F80::INDEFINITE,
            (Class::SignalingNan, Class::QuietNan) => b.value,
            (Class::QuietNan, Class::SignalingNan) => a.value,
            (Class::SignalingNan | Class::QuietNan, Class::SignalingNan | Class::QuietNan) => {
                larger_significand(a.value, b.value).quieted()
            }
            (Class::SignalingNan | Class::QuietNan, _) => a.value.quieted(),
            _ => b.value.quieted(),
        })
    }

    /// Raises the denormal-operand exception if `a` is a denormal; `None` if it is unmasked.
    pub(super) fn check_denormal(&mut self, a: Operand) -> Option<()> {
        if a.denormal { self.raise(Flags::DENORMAL) } else { Some(()) }
    }

    /// Raises the denormal-operand exception if an operand is a denormal; `None` if it is unmasked.
    pub(super) fn check_denormals(&mut self, a: Operand, b: Operand) -> Option<()> {
        if a.denormal || b.denormal { self.raise(Flags::DENORMAL) } else { Some(()) }
    }
}

/// Returns the NaN with the larger significand; of two equal ones the positive one.
fn larger_significand(a: F80, b: F80) -> F80 {
    let a_first = (a.significand, !a.is_negative()) >= (b.significand, !b.is_negative());
    if a_first { a } else { b }
}
