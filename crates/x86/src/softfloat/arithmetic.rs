//! Addition, subtraction, multiplication, division and square root: the operations under precision
//! control.

use super::operand::{Number, any_nan};
use super::rounding::{Exact, shift_right_sticky};
use super::{Class, Context, F80, Flags, Operand, Rounding};

impl Context {
    /// `a` + `b` (FADD).
    pub fn add(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
        self.add_or_sub(a.into(), b.into(), false)
    }

    /// `a` - `b` (FSUB, and FSUBR with the operands exchanged).
    pub fn sub(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
        self.add_or_sub(a.into(), b.into(), true)
    }

    fn add_or_sub(&mut self, a: Operand, b: Operand, subtract: bool) -> Option<F80> {
        self.rounded_up = false;
        if any_nan(a, b) {
            return self.propagate_nans(a, b);
        }
        let b_negative = b.is_negative() ^ subtract;
        let infinities = (a.class == Class::Infinity, b.class == Class::Infinity);
        if infinities == (true, true) && a.is_negative() != b_negative {
            return self.invalid();
        }
        self.check_denormals(a, b)?;
        match infinities {
            (true, _) => Some(a.value),
            (_, true) => Some(b.value.with_sign(b_negative)),
            _ => self.sum(a.number(), Number { negative: b_negative, ..b.number() }),
        }
    }

    fn sum(&mut self, a: Number, b: Number) -> Option<F80> {
        let (large, small) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        // One bit is free at the top for a carry. At the bottom there are at least 62 bits: when the operands
        // are so far apart that some bits become sticky, at most one bit cancels.
        let augend = u128::from(large.significand) << 63;
        let addend = shift_right_sticky(
            u128::from(small.significand) << 63,
            (large.exponent - small.exponent) as u32,
        );
        let (negative, significand) = if large.negative == small.negative {
            (large.negative, augend + addend)
        } else if augend >= addend {
            (large.negative, augend - addend)
        } else {
            (small.negative, addend - augend)
        };
        if significand == 0 {
            // Zeros of equal sign keep it; any other zero is positive unless rounding goes down.
            let negative = if large.negative == small.negative {
                large.negative
            } else {
                self.rounding == Rounding::Down
            };
            return Some(F80::ZERO.with_sign(negative));
        }
        self.round(Exact { negative, exponent: large.exponent + 1, significand }.normalized())
    }

    /// `a` · `b` (FMUL).
    pub fn mul(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
        let (a, b) = (a.into(), b.into());
        self.rounded_up = false;
        if any_nan(a, b) {
            return self.propagate_nans(a, b);
        }
        let negative = a.is_negative() ^ b.is_negative();
        match (a.class, b.class) {
            (Class::Infinity, Class::Zero) | (Class::Zero, Class::Infinity) => {
                return self.invalid();
            }
            _ => self.check_denormals(a, b)?,
        }
        match (a.class, b.class) {
            (Class::Infinity, _) | (_, Class::Infinity) => Some(F80::INFINITY.with_sign(negative)),
            (Class::Zero, _) | (_, Class::Zero) => Some(F80::ZERO.with_sign(negative)),
            _ => {
                let (a, b) = (a.number(), b.number());
                let significand = u128::from(a.significand) * u128::from(b.significand);
                let exponent = a.exponent + b.exponent + 1;
                self.round(Exact { negative, exponent, significand }.normalized())
            }
        }
    }

    /// `a` / `b` (FDIV, and FDIVR with the operands exchanged).
    pub fn div(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Option<F80> {
        let (a, b) = (a.into(), b.into());
        self.rounded_up = false;
        if any_nan(a, b) {
            return self.propagate_nans(a, b);
        }
        let negative = a.is_negative() ^ b.is_negative();
        match (a.class, b.class) {
            (Class::Infinity, Class::Infinity) | (Class::Zero, Class::Zero) => {
                return self.invalid();
            }
            (Class::Infinity, Class::Zero) => {}
            (_, Class::Zero) => {
                // This has priority over the denormal-operand exception (SDM vol. 1, 4.9.2).
                self.raise(Flags::ZERO_DIVIDE)?;
                return Some(F80::INFINITY.with_sign(negative));
            }
            _ => self.check_denormals(a, b)?,
        }
        match (a.class, b.class) {
            (Class::Infinity, _) => Some(F80::INFINITY.with_sign(negative)),
            (Class::Zero, _) | (_, Class::Infinity) => Some(F80::ZERO.with_sign(negative)),
            _ => self.round(quotient(negative, a.number(), b.number())),
        }
    }

    /// The square root of `a` (FSQRT).
    pub fn sqrt(&mut self, a: impl Into<Operand>) -> Option<F80> {
        let a = a.into();
        self.rounded_up = false;
        if a.class.is_nan_or_unsupported() {
            return self.propagate_nan(a);
        }
        if a.class == Class::Zero {
            return Some(a.value);
        }
        if a.is_negative() {
            return self.invalid();
        }
        self.check_denormal(a)?;
        match a.class {
            Class::Infinity => Some(a.value),
            _ => self.round(square_root(a.number())),
        }
    }
}

fn quotient(negative: bool, a: Number, b: Number) -> Exact {
    // Shift the dividend such that the quotient has exactly 64 bits.
    let smaller = a.significand < b.significand;
    let dividend = u128::from(a.significand) << if smaller { 64 } else { 63 };
    let divisor = u128::from(b.significand);
    let twice_remainder = dividend % divisor * 2;
    Exact {
        negative,
        exponent: a.exponent - b.exponent - i32::from(smaller),
        significand: (dividend / divisor) << 64
            | u128::from(twice_remainder >= divisor) << 63
            | u128::from(twice_remainder != 0 && twice_remainder != divisor),
    }
}

fn square_root(a: Number) -> Exact {
    // The radicand is shifted such that its exponent is even and its root has exactly 64 bits.
    let odd = a.exponent & 1;
    let radicand = u128::from(a.significand) << (63 + odd);
    let root = radicand.isqrt();
    // (root + 1/2)² = root² + root + 1/4: no root of an integer lies exactly in the middle.
    let remainder = radicand - root * root;
    Exact {
        negative: false,
        exponent: (a.exponent - odd) / 2,
        significand: root << 64 | u128::from(remainder > root) << 63 | u128::from(remainder != 0),
    }
}
