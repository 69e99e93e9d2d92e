//! The arithmetic of the x87 floating-point unit, without a floating-point unit.
//!
//! A guest's x87 results must not depend on the host: the host may have no 80-bit registers, and a run must
//! repeat to the last bit on another one. So this module computes with integers only. Every result, status
//! flag and the C1 bit are those of real processors (compared with one in many millions of random cases for
//! each operation).
//!
//! Where the manual leaves a choice to the processor (how far FPREM gets in one step, what an unmasked
//! exception leaves undone), this module does the same as AMD's Zen processors.
//!
//! The module contains the arithmetic of single operations: values in, a value and flags out. It does not
//! contain the register stack, the tag word, and the instructions.
//!
//! * [`F80`] is a value in the 80-bit register format, in any of its encodings.
//! * [`Context`] holds the settings of the control word (rounding, precision, masks) and the results for the
//!   status word (exceptions, C1). The operations are its methods.
//! * [`Operand`] is a source of an operation: an [`F80`], or a `float` or `double` from memory.
//!
//! An operation returns `None` when an *unmasked* exception keeps it from delivering a result (SDM
//! vol. 1, 8.4 and 8.5): the registers and memory then stay as they were and the exception is
//! pending. All other exceptions come with a result.
//!
//! ```
//! use ring3_x86::softfloat::{Context, F80, Flags};
//!
//! let mut context = Context::new(0x037f); // as after FNINIT
//! let three = F80::from(3_i64);
//! let third = context.div(F80::ONE, three).unwrap();
//! assert_eq!(third, F80::new(0x3ffd, 0xaaaa_aaaa_aaaa_aaab));
//! assert_eq!(context.raised, Flags::PRECISION);
//! assert!(context.rounded_up);
//! ```

mod arithmetic;
mod bcd;
mod compare;
mod convert;
mod exponent;
mod integer;
mod operand;
mod remainder;
mod rounding;
#[cfg(test)]
mod tests;
pub mod transcendental;

pub use bcd::PackedBcd;
pub use compare::Comparison;
pub use integer::IntegerSize;
pub use operand::Operand;
pub use remainder::Remainder;

use rounding::Exact;
use serde::{Deserialize, Serialize};

/// The difference between the exponent field of an [`F80`] and its exponent.
const BIAS: i32 = 0x3fff;
/// The exponent field of infinities and NaNs.
const MAX_EXPONENT_FIELD: u16 = 0x7fff;
/// The explicit leading bit of a significand (the manual's J-bit).
const INTEGER_BIT: u64 = 1 << 63;
/// The bit of a NaN's significand that makes it quiet.
const QUIET_BIT: u64 = 1 << 62;

/// A number in the double extended-precision format of the x87 registers (SDM vol. 1, 4.2.2).
///
/// All 2^80 bit patterns are values of this type, the unsupported ones too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct F80 {
    /// The integer bit (bit 63) and the fraction.
    pub significand: u64,
    /// The sign (bit 15) and the exponent with a bias of 16383.
    pub sign_exponent: u16,
}

impl F80 {
    /// Positive zero.
    pub const ZERO: Self = Self::new(0, 0);
    /// One.
    pub const ONE: Self = Self::new(0x3fff, INTEGER_BIT);
    /// Positive infinity.
    pub const INFINITY: Self = Self::new(MAX_EXPONENT_FIELD, INTEGER_BIT);
    /// The quiet NaN that is the masked response to an invalid operation (SDM vol. 1, 4.8.3.7).
    pub const INDEFINITE: Self = Self::new(0xffff, INTEGER_BIT | QUIET_BIT);

    /// A value from its two fields.
    pub const fn new(sign_exponent: u16, significand: u64) -> Self {
        Self { significand, sign_exponent }
    }

    /// A value from its ten bytes in memory.
    pub fn from_bytes(bytes: [u8; 10]) -> Self {
        let mut wide = [0; 16];
        wide[..10].copy_from_slice(&bytes);
        let wide = u128::from_le_bytes(wide);
        Self::new((wide >> 64) as u16, wide as u64)
    }

    /// The ten bytes of the value in memory.
    pub fn to_bytes(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&self.significand.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sign_exponent.to_le_bytes());
        bytes
    }

    /// Whether the sign bit is set; zeros and NaNs have one too.
    pub const fn is_negative(self) -> bool {
        self.sign_exponent >> 15 != 0
    }

    /// The value with its sign bit clear (FABS).
    #[must_use]
    pub const fn abs(self) -> Self {
        Self::new(self.exponent_field(), self.significand)
    }

    /// The value with its sign bit inverted (FCHS).
    #[must_use]
    pub const fn negate(self) -> Self {
        Self::new(self.sign_exponent ^ 0x8000, self.significand)
    }

    /// The class of the value's encoding.
    pub const fn class(self) -> Class {
        let integer_bit = self.significand & INTEGER_BIT != 0;
        let fraction = self.significand & !INTEGER_BIT;
        match (self.exponent_field(), integer_bit) {
            (0, false) if fraction == 0 => Class::Zero,
            (0, false) => Class::Denormal,
            (0, true) => Class::PseudoDenormal,
            (_, false) => Class::Unsupported,
            (MAX_EXPONENT_FIELD, true) if fraction == 0 => Class::Infinity,
            (MAX_EXPONENT_FIELD, true) if fraction & QUIET_BIT != 0 => Class::QuietNan,
            (MAX_EXPONENT_FIELD, true) => Class::SignalingNan,
            (_, true) => Class::Normal,
        }
    }

    /// The biased exponent.
    const fn exponent_field(self) -> u16 {
        self.sign_exponent & MAX_EXPONENT_FIELD
    }

    /// The value with the sign bit set to `negative`.
    const fn with_sign(self, negative: bool) -> Self {
        Self::new(self.exponent_field() | (negative as u16) << 15, self.significand)
    }

    /// The value with the bit set that makes a signaling NaN quiet.
    const fn quieted(self) -> Self {
        Self::new(self.sign_exponent, self.significand | QUIET_BIT)
    }
}

/// The classes of encodings of an [`F80`] (SDM vol. 1, tables 4-3 and 8-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A zero of either sign.
    Zero,
    /// A number with a zero exponent field and no integer bit.
    Denormal,
    /// A number with a zero exponent field and an integer bit; hardware reads it, but never makes
    /// one.
    PseudoDenormal,
    /// A normalised number.
    Normal,
    /// An infinity of either sign.
    Infinity,
    /// A NaN that passes through operations silently.
    QuietNan,
    /// A NaN that raises the invalid-operation exception.
    SignalingNan,
    /// An unnormal, pseudo-infinity or pseudo-NaN: an invalid operand since the 80387.
    Unsupported,
}

impl Class {
    /// Whether the encoding is a number smaller than all normalised ones, but not zero.
    pub const fn is_denormal(self) -> bool {
        matches!(self, Self::Denormal | Self::PseudoDenormal)
    }

    /// Whether the encoding stands for no number and no infinity.
    const fn is_nan_or_unsupported(self) -> bool {
        matches!(self, Self::QuietNan | Self::SignalingNan | Self::Unsupported)
    }

    /// Whether using the operand in arithmetic is an invalid operation, whatever the operation.
    const fn is_invalid(self) -> bool {
        matches!(self, Self::SignalingNan | Self::Unsupported)
    }
}

/// A set of the six floating-point exceptions, by their bits in the status word; the masks have the
/// same bits in the control word (SDM vol. 1, 8.1.3.3 and 8.1.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u8);

impl Flags {
    /// No exception.
    pub const NONE: Self = Self(0);
    /// IE: invalid operation.
    pub const INVALID: Self = Self(0x01);
    /// DE: denormal operand.
    pub const DENORMAL: Self = Self(0x02);
    /// ZE: division by zero.
    pub const ZERO_DIVIDE: Self = Self(0x04);
    /// OE: numeric overflow.
    pub const OVERFLOW: Self = Self(0x08);
    /// UE: numeric underflow.
    pub const UNDERFLOW: Self = Self(0x10);
    /// PE: inexact result.
    pub const PRECISION: Self = Self(0x20);
    /// All six exceptions.
    pub const ALL: Self = Self(0x3f);

    /// The exceptions of a status word, or the masks of a control word.
    pub const fn from_word(word: u16) -> Self {
        Self(word as u8 & Self::ALL.0)
    }

    /// The bits of the set as they stand in the status and control words.
    pub const fn bits(self) -> u16 {
        self.0 as u16
    }

    /// Whether every exception of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set with the exceptions of `other` added.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the exceptions of `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether no exception is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Rounding control, bits 10 and 11 of the control word (SDM vol. 1, 4.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// To the nearest value, and to the even one of two equally near.
    Nearest,
    /// Toward negative infinity.
    Down,
    /// Toward positive infinity.
    Up,
    /// Toward zero.
    Zero,
}

impl Rounding {
    /// The rounding control of a control word.
    pub const fn from_control_word(control_word: u16) -> Self {
        match control_word >> 10 & 3 {
            0 => Self::Nearest,
            1 => Self::Down,
            2 => Self::Up,
            _ => Self::Zero,
        }
    }
}

/// Precision control, bits 8 and 9 of the control word: how many significant bits the results of
/// add, subtract, multiply, divide and square root have (SDM vol. 1, 8.1.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// 24 bits.
    Single,
    /// 53 bits.
    Double,
    /// 64 bits.
    Extended,
}

impl Precision {
    /// The precision control of a control word. The reserved value acts as extended precision.
    pub const fn from_control_word(control_word: u16) -> Self {
        match control_word >> 8 & 3 {
            0 => Self::Single,
            2 => Self::Double,
            _ => Self::Extended,
        }
    }

    /// The number of significant bits.
    const fn bits(self) -> u32 {
        match self {
            Self::Single => 24,
            Self::Double => 53,
            Self::Extended => 64,
        }
    }
}

/// The settings of an operation, which the control word selects, and its results for the status word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The direction in which results that do not fit are rounded.
    pub rounding: Rounding,
    /// How many bits the results of the basic arithmetic have.
    pub precision: Precision,
    /// The exceptions that are masked: the operation itself responds to them.
    pub masks: Flags,
    /// The exceptions raised so far. Operations add to them and never remove any.
    pub raised: Flags,
    /// Whether the last operation rounded the magnitude of its result up (C1).
    pub rounded_up: bool,
}

impl Context {
    /// The context that a control word asks for, with nothing raised yet.
    pub const fn new(control_word: u16) -> Self {
        Self {
            rounding: Rounding::from_control_word(control_word),
            precision: Precision::from_control_word(control_word),
            masks: Flags::from_word(control_word),
            raised: Flags::NONE,
            rounded_up: false,
        }
    }

    /// The exceptions raised that are not masked, for which the processor calls its handler.
    pub const fn unmasked(&self) -> Flags {
        self.raised.difference(self.masks)
    }

    /// The constant that an FLDxx instruction loads: rounded as the control word says, but always
    /// to 64 bits, and silently (SDM vol. 1, 8.3.4).
    pub fn constant(&mut self, constant: Constant) -> F80 {
        self.rounded_up = false;
        let (exponent, significand) = match constant {
            Constant::Zero => return F80::ZERO,
            Constant::One => return F80::ONE,
            Constant::Log2Of10 => (1, 0xd49a784bcd1b8afe_492bf6ff4dafdb4c),
            Constant::Log2OfE => (0, 0xb8aa3b295c17f0bb_be87fed0691d3e88),
            Constant::Pi => (1, 0xc90fdaa22168c234_c4c6628b80dc1cd1),
            Constant::Log10Of2 => (-2, 0x9a209a84fbcff798_8f8959ac0b7c9178),
            Constant::LnOf2 => (-1, 0xb17217f7d1cf79ab_c9e3b39803f2f6af),
        };
        let exact = Exact { negative: false, exponent, significand };
        let rounded = exact.round_to_bits(64, self.rounding);
        F80::new((rounded.exponent + BIAS) as u16, rounded.significand)
    }

    /// Raises `exception`. Returns `None` if it is unmasked, for exceptions that then allow no result.
    fn raise(&mut self, exception: Flags) -> Option<()> {
        self.raised = self.raised.union(exception);
        self.masks.contains(exception).then_some(())
    }

    /// Raises the invalid-operation exception and returns the masked response to it.
    fn invalid(&mut self) -> Option<F80> {
        self.raise(Flags::INVALID)?;
        Some(F80::INDEFINITE)
    }
}

/// The constants that have a load instruction (SDM vol. 1, 8.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Constant {
    /// FLD1.
    One,
    /// FLDL2T: the binary logarithm of ten.
    Log2Of10,
    /// FLDL2E: the binary logarithm of e.
    Log2OfE,
    /// FLDPI.
    Pi,
    /// FLDLG2: the decimal logarithm of two.
    Log10Of2,
    /// FLDLN2: the natural logarithm of two.
    LnOf2,
    /// FLDZ.
    Zero,
}
