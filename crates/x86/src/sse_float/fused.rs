//! Multiplication and addition with one rounding (VFMADDxx and the like).

use super::format::{Class, Float, Format, Number};
use super::rounding::high_sticky;
use super::{Context, Flags};

/// Which parts of a sum of a product and an addend are negated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signs {
    /// The product.
    pub product: bool,
    /// The addend.
    pub addend: bool,
}

/// A number with twice as many bits: `significand` / 2^127 · 2^`exponent`, with the top bit of the significand set.
#[derive(Clone, Copy)]
struct Wide {
    negative: bool,
    exponent: i32,
    significand: u128,
}

impl Context {
    /// `a` · `b` + `addend`, or with other `signs`. The first operand that is a NaN is the result (SDM vol. 1,
    /// table 14-17).
    pub fn fused<F: Float>(&mut self, a: F, b: F, addend: F, signs: Signs) -> F {
        let operands = [a, b, addend];
        let nan = operands.into_iter().find(|operand| operand.class().is_nan());
        let is_undefined = |context: Self| {
            let [a, b] = [a, b].map(|a| context.denormal_as_asked(a).class());
            matches!((a, b), (Class::Infinity, Class::Zero) | (Class::Zero, Class::Infinity))
        };
        if let Some(nan) = nan {
            if operands.iter().any(|operand| operand.class() == Class::SignalingNan) {
                self.raise(Flags::INVALID);
            }
            return nan.quieted();
        }
        if is_undefined(*self) {
            return self.invalid();
        }
        let [a, b, addend] = operands.map(|operand| self.denormal_as_asked(operand));
        let negative = a.is_negative() ^ b.is_negative() ^ signs.product;
        let addend = if signs.addend { addend.negate() } else { addend };
        let is_infinite = [a, b].iter().any(|factor| factor.class() == Class::Infinity);
        if is_infinite && addend.class() == Class::Infinity && addend.is_negative() != negative {
            return self.invalid();
        }
        self.check_denormals(a, b);
        self.check_denormal(addend);
        if is_infinite {
            return F::infinity(negative);
        }
        let is_zero = [a, b].iter().any(|factor| factor.class() == Class::Zero);
        match addend.class() {
            Class::Infinity => addend,
            Class::Zero if is_zero && addend.is_negative() == negative => addend,
            Class::Zero if is_zero => self.exact_zero_sum(),
            _ if is_zero => self.round(addend.number()),
            Class::Zero => self.round_wide(product(negative, a.number(), b.number())),
            _ => self.wide_sum(product(negative, a.number(), b.number()), addend.number()),
        }
    }

    /// The sum of a product, whose lowest bits are 0, and a number.
    fn wide_sum<F: Format>(&mut self, product: Wide, addend: Number) -> F {
        let Number { negative, exponent, significand } = addend;
        let addend = Wide { negative, exponent, significand: u128::from(significand) << 64 };
        let (large, small) =
            if product.exponent >= addend.exponent { (product, addend) } else { (addend, product) };
        // One bit is free at the top for a carry. Where bits become sticky, the operands are so far apart that at most
        // one bit cancels.
        let augend = large.significand >> 1;
        let distance = (large.exponent - small.exponent) as u32;
        let small_part = shift_right_sticky(small.significand >> 1, distance);
        let (negative, significand) = if large.negative == small.negative {
            (large.negative, augend + small_part)
        } else if augend >= small_part {
            (large.negative, augend - small_part)
        } else {
            (small.negative, small_part - augend)
        };
        if significand == 0 {
            return self.exact_zero_sum();
        }
        let shift = significand.leading_zeros();
        let exponent = large.exponent + 1 - shift as i32;
        self.round_wide(Wide { negative, exponent, significand: significand << shift })
    }

    fn round_wide<F: Format>(&mut self, Wide { negative, exponent, significand }: Wide) -> F {
        self.round(Number { negative, exponent, significand: high_sticky(significand) })
    }
}

/// The product of two numbers, with this sign.
fn product(negative: bool, a: Number, b: Number) -> Wide {
    let product = u128::from(a.significand) * u128::from(b.significand);
    let shift = product.leading_zeros();
    let exponent = a.exponent + b.exponent + 1 - shift as i32;
    Wide { negative, exponent, significand: product << shift }
}

/// Shifts right, merging all bits shifted out into bit 0.
fn shift_right_sticky(value: u128, count: u32) -> u128 {
    match count {
        0 => value,
        1..128 => value >> count | u128::from(value << (128 - count) != 0),
        _ => u128::from(value != 0),
    }
}
