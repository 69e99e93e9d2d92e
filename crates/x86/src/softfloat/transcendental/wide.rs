//! Arithmetic with 128 bits: on floating-point numbers ([`Exact`], normalised unless zero), and on
//! fixed-point numbers below 4 with 126 bits after the point. Results are truncated.

use std::cmp::Ordering;

use super::super::rounding::Exact;

/// One, as a fixed-point number.
pub(super) const ONE_FIXED: u128 = 1 << FIXED_BITS;
/// Bits after the point.
const FIXED_BITS: u32 = 126;

/// One.
pub(super) const ONE: Exact = Exact { negative: false, exponent: 0, significand: 1 << 127 };
/// Zero, with an exponent that makes it smaller than any number to which it is added.
const ZERO: Exact = Exact { negative: false, exponent: -0x100_0000, significand: 0 };

fn normalized(value: Exact) -> Exact {
    if value.significand == 0 { ZERO } else { value.normalized() }
}

/// `a` with its sign changed.
pub(super) fn negate(a: Exact) -> Exact {
    Exact { negative: !a.negative, ..a }
}

/// `a` · 2^`power`.
pub(super) fn scale(a: Exact, power: i32) -> Exact {
    Exact { exponent: a.exponent + power, ..a }
}

/// `value` as a floating-point number.
pub(super) fn integer(value: i32) -> Exact {
    let significand = u128::from(value.unsigned_abs());
    normalized(Exact { negative: value < 0, exponent: 127, significand })
}

/// `a` + `b`.
pub(super) fn add(a: Exact, b: Exact) -> Exact {
    let (large, small) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
    // One bit is free for a carry.
    let distance = (large.exponent - small.exponent) as u32;
    let augend = large.significand >> 1;
    let addend = (small.significand >> 1).checked_shr(distance).unwrap_or(0);
    let sum = |negative, significand| {
        normalized(Exact { negative, exponent: large.exponent + 1, significand })
    };
    if a.negative == b.negative {
        return sum(a.negative, augend + addend);
    }
    match augend.cmp(&addend) {
        Ordering::Less => sum(small.negative, addend - augend),
        _ => sum(large.negative, augend - addend),
    }
}

/// `a` · `b`.
pub(super) fn multiply(a: Exact, b: Exact) -> Exact {
    let (significand, _) = full_product(a.significand, b.significand);
    let negative = a.negative ^ b.negative;
    normalized(Exact { negative, exponent: a.exponent + b.exponent + 1, significand })
}

/// `a` / `b`; `b` is not zero.
pub(super) fn divide(a: Exact, b: Exact) -> Exact {
    let (mut remainder, divisor) = (a.significand, b.significand);
    let (mut quotient, mut carry) = (0_u128, false);
    for _ in 0..128 {
        quotient <<= 1;
        if carry || remainder >= divisor {
            remainder = remainder.wrapping_sub(divisor);
            quotient |= 1;
        }
        carry = remainder >> 127 != 0;
        remainder <<= 1;
    }
    let negative = a.negative ^ b.negative;
    normalized(Exact { negative, exponent: a.exponent - b.exponent, significand: quotient })
}

/// The magnitude, which is below 4, as a fixed-point number.
pub(super) fn to_fixed(a: Exact) -> u128 {
    a.significand.checked_shr((1 - a.exponent) as u32).unwrap_or(0)
}

/// The fixed-point number `significand` as a floating-point number.
pub(super) fn from_fixed(significand: u128) -> Exact {
    normalized(Exact { negative: false, exponent: 1, significand })
}

/// The product of two fixed-point numbers, which is below 4.
pub(super) fn multiply_fixed(a: u128, b: u128) -> u128 {
    let (high, low) = full_product(a, b);
    high << (128 - FIXED_BITS) | low >> FIXED_BITS
}

/// The high and the low half of a product.
fn full_product(a: u128, b: u128) -> (u128, u128) {
    let halves = |value: u128| (value >> 64, value & u128::from(u64::MAX));
    let ((a_high, a_low), (b_high, b_low)) = (halves(a), halves(b));
    let low = a_low * b_low;
    let (cross, carry) = (a_high * b_low).overflowing_add(a_low * b_high);
    let (low, low_carry) = low.overflowing_add(cross << 64);
    let high = a_high * b_high + (cross >> 64) + (u128::from(carry) << 64) + u128::from(low_carry);
    (high, low)
}
