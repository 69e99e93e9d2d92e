//! The two formats (SDM vol. 1, 4.2.2) and the meaning of their encodings.

use serde::{Deserialize, Serialize};

/// The bits of a single-precision value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct F32(pub u32);

/// The bits of a double-precision value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct F64(pub u64);

/// The bits of a half-precision value, which exists only to be converted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct F16(pub u16);

/// A floating-point format that has arithmetic.
///
/// The methods are the host's. Rust defines them as those of IEEE 754, rounding to nearest, so finite results are the
/// same everywhere; it says nothing about exceptions and NaNs.
pub trait Float: Format {
    /// The host's sum.
    #[must_use]
    fn host_add(self, other: Self) -> Self;
    /// The host's difference.
    #[must_use]
    fn host_sub(self, other: Self) -> Self;
    /// The host's product.
    #[must_use]
    fn host_mul(self, other: Self) -> Self;
    /// The host's quotient.
    #[must_use]
    fn host_div(self, other: Self) -> Self;
    /// The host's square root.
    #[must_use]
    fn host_sqrt(self) -> Self;
}

/// A floating-point format: its properties.
pub trait Format: Copy + PartialEq + Default {
    /// The number of bits of the fraction.
    const FRACTION_BITS: u32;
    /// The number of bits of the exponent field.
    const EXPONENT_BITS: u32;
    /// The quiet NaN that is the masked response to an invalid operation (SDM vol. 1, 4.8.3.7).
    const INDEFINITE: Self;

    /// The value with these bits; bits above the format's size are ignored.
    fn from_bits(bits: u64) -> Self;
    /// The bits of the value.
    fn bits(self) -> u64;

    /// The number of significant bits, the implied leading one included.
    const PRECISION: u32 = Self::FRACTION_BITS + 1;
    /// The exponent field of infinities and NaNs.
    const SPECIAL_EXPONENT: u64 = (1 << Self::EXPONENT_BITS) - 1;
    /// The difference between the exponent field and the exponent; the largest exponent, too.
    const BIAS: i32 = (1 << (Self::EXPONENT_BITS - 1)) - 1;
    /// The exponent of the smallest normalised numbers.
    const MIN_EXPONENT: i32 = 1 - Self::BIAS;

    /// A value from its three fields.
    fn from_fields(negative: bool, exponent_field: u64, fraction: u64) -> Self {
        let sign = u64::from(negative) << (Self::FRACTION_BITS + Self::EXPONENT_BITS);
        Self::from_bits(sign | exponent_field << Self::FRACTION_BITS | fraction)
    }

    /// A zero.
    fn zero(negative: bool) -> Self {
        Self::from_fields(negative, 0, 0)
    }

    /// An infinity.
    fn infinity(negative: bool) -> Self {
        Self::from_fields(negative, Self::SPECIAL_EXPONENT, 0)
    }

    /// Whether the sign bit is set; zeros and NaNs have one too.
    fn is_negative(self) -> bool {
        self.bits() >> (Self::FRACTION_BITS + Self::EXPONENT_BITS) != 0
    }

    /// The value with the opposite sign.
    #[must_use]
    fn negate(self) -> Self {
        Self::from_bits(self.bits() ^ 1 << (Self::FRACTION_BITS + Self::EXPONENT_BITS))
    }

    /// The biased exponent.
    fn exponent_field(self) -> u64 {
        self.bits() >> Self::FRACTION_BITS & Self::SPECIAL_EXPONENT
    }

    /// The fraction.
    fn fraction(self) -> u64 {
        self.bits() & ((1 << Self::FRACTION_BITS) - 1)
    }

    /// The NaN with the bit set that makes it quiet.
    #[must_use]
    fn quieted(self) -> Self {
        Self::from_bits(self.bits() | 1 << (Self::FRACTION_BITS - 1))
    }

    /// The class of the value's encoding.
    fn class(self) -> Class {
        match (self.exponent_field(), self.fraction()) {
            (0, 0) => Class::Zero,
            (0, _) => Class::Denormal,
            (field, _) if field != Self::SPECIAL_EXPONENT => Class::Normal,
            (_, 0) => Class::Infinity,
            (_, fraction) if fraction >> (Self::FRACTION_BITS - 1) != 0 => Class::QuietNan,
            _ => Class::SignalingNan,
        }
    }

    /// The parts of the value, which is a normalised or denormal number.
    fn number(self) -> Number {
        let unplaced = self.fraction() << (63 - Self::FRACTION_BITS);
        let (exponent_field, significand) = match self.exponent_field() {
            0 => (1, unplaced),
            field => (field, unplaced | 1 << 63),
        };
        let shift = significand.leading_zeros() & 63;
        Number {
            negative: self.is_negative(),
            exponent: exponent_field as i32 - Self::BIAS - shift as i32,
            significand: significand << shift,
        }
    }
}

impl Format for F32 {
    const FRACTION_BITS: u32 = 23;
    const EXPONENT_BITS: u32 = 8;
    const INDEFINITE: Self = Self(0xffc0_0000);

    fn from_bits(bits: u64) -> Self {
        Self(bits as u32)
    }

    fn bits(self) -> u64 {
        u64::from(self.0)
    }
}

impl Float for F32 {
    fn host_add(self, other: Self) -> Self {
        Self((f32::from_bits(self.0) + f32::from_bits(other.0)).to_bits())
    }

    fn host_sub(self, other: Self) -> Self {
        Self((f32::from_bits(self.0) - f32::from_bits(other.0)).to_bits())
    }

    fn host_mul(self, other: Self) -> Self {
        Self((f32::from_bits(self.0) * f32::from_bits(other.0)).to_bits())
    }

    fn host_div(self, other: Self) -> Self {
        Self((f32::from_bits(self.0) / f32::from_bits(other.0)).to_bits())
    }

    fn host_sqrt(self) -> Self {
        Self(f32::from_bits(self.0).sqrt().to_bits())
    }
}

impl Format for F64 {
    const FRACTION_BITS: u32 = 52;
    const EXPONENT_BITS: u32 = 11;
    const INDEFINITE: Self = Self(0xfff8_0000_0000_0000);

    fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn bits(self) -> u64 {
        self.0
    }
}

impl Float for F64 {
    fn host_add(self, other: Self) -> Self {
        Self((f64::from_bits(self.0) + f64::from_bits(other.0)).to_bits())
    }

    fn host_sub(self, other: Self) -> Self {
        Self((f64::from_bits(self.0) - f64::from_bits(other.0)).to_bits())
    }

    fn host_mul(self, other: Self) -> Self {
        Self((f64::from_bits(self.0) * f64::from_bits(other.0)).to_bits())
    }

    fn host_div(self, other: Self) -> Self {
        Self((f64::from_bits(self.0) / f64::from_bits(other.0)).to_bits())
    }

    fn host_sqrt(self) -> Self {
        Self(f64::from_bits(self.0).sqrt().to_bits())
    }
}

impl Format for F16 {
    const FRACTION_BITS: u32 = 10;
    const EXPONENT_BITS: u32 = 5;
    const INDEFINITE: Self = Self(0xfe00);

    fn from_bits(bits: u64) -> Self {
        Self(bits as u16)
    }

    fn bits(self) -> u64 {
        u64::from(self.0)
    }
}

/// The classes of encodings (SDM vol. 1, table 4-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A zero of either sign.
    Zero,
    /// A number smaller than all normalised ones.
    Denormal,
    /// A normalised number.
    Normal,
    /// An infinity of either sign.
    Infinity,
    /// A NaN that passes through operations silently.
    QuietNan,
    /// A NaN that raises the invalid-operation exception.
    SignalingNan,
}

impl Class {
    /// Whether the encoding is a NaN.
    pub const fn is_nan(self) -> bool {
        matches!(self, Self::QuietNan | Self::SignalingNan)
    }
}

/// A finite number other than zero: `significand` / 2^63 · 2^`exponent`, with the top bit of the significand
/// set.
///
/// As the exact result of an operation it has its bits below bit 1 merged into bit 0, where they matter only
/// by not being zero: no format has more than 53 bits.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// Its sign.
    pub negative: bool,
    /// Its exponent, not biased.
    pub exponent: i32,
    /// Its significand.
    pub significand: u64,
}
