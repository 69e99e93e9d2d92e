//! RCPxx and RSQRTxx: approximations that depend on no bit of MXCSR and raise no exception.
//!
//! The manual only bounds their relative error, by 1.5 · 2^-12. Intel's and AMD's processors differ in the
//! bits, so programs cannot rely on them. Here they are the true values rounded to 12 significant bits, which
//! is within 2^-12, so that the error after Newton's iteration is as large as on processors.

use super::format::{Class, F32, Format, Number};

/// The number of significant bits of the approximations.
const BITS: u32 = 12;

/// An approximation of 1 / `a` (RCPSS, RCPPS).
#[must_use]
pub fn reciprocal(a: F32) -> F32 {
    let negative = a.is_negative();
    match a.class() {
        Class::QuietNan | Class::SignalingNan => a.quieted(),
        Class::Infinity => F32::zero(negative),
        // Denormal operands count as zeros.
        Class::Zero | Class::Denormal => F32::infinity(negative),
        Class::Normal => {
            let Number { exponent, significand, .. } = a.number();
            // Between 2^63 and 2^64: the reciprocal of a number between one and two, times 2^64.
            let quotient = (1 << 127) / u128::from(significand);
            approximation(negative, -exponent, quotient)
        }
    }
}

/// An approximation of 1 / √`a` (RSQRTSS, RSQRTPS).
#[must_use]
pub fn reciprocal_square_root(a: F32) -> F32 {
    let negative = a.is_negative();
    match a.class() {
        Class::QuietNan | Class::SignalingNan => a.quieted(),
        // Denormal operands count as zeros.
        Class::Zero | Class::Denormal => F32::infinity(negative),
        _ if negative => F32::INDEFINITE,
        Class::Infinity => F32::zero(negative),
        Class::Normal => {
            let Number { exponent, significand, .. } = a.number();
            let odd = exponent & 1;
            // The remaining exponent is even. Here the operand is a number between one and four, times 2^23,
            // and the reciprocal of its root is one between a half and one, times 2^52.
            let operand = u128::from(significand >> 40) << odd;
            let root = ((1 << 127) / operand).isqrt() << 12;
            approximation(false, -((exponent - odd) / 2), root)
        }
    }
}

/// `significand` / 2^64 · 2^`exponent`, rounded; tiny values are flushed to zero.
fn approximation(negative: bool, exponent: i32, significand: u128) -> F32 {
    let unit = 1 << (64 - BITS);
    let rounded = (significand + unit / 2) / unit * unit;
    // The top bit is at 2^63 or, if the value is one, at 2^64.
    let carry = (rounded >> 64) as i32;
    let exponent = exponent - 1 + carry;
    if exponent < F32::MIN_EXPONENT {
        return F32::zero(negative);
    }
    let fraction = (rounded >> carry) as u64 & !(1 << 63);
    F32::from_fields(negative, (exponent + F32::BIAS) as u64, fraction >> (63 - F32::FRACTION_BITS))
}
