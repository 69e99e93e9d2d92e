//! Addition, subtraction, multiplication, division and square root, and the treatment of NaNs and denormals
//! before an operation starts.

use super::format::{Class, Float, Format, Number};
use super::rounding::{high_sticky, shift_right_sticky};
use super::{Context, Flags, Rounding};

impl Context {
    /// `a` + `b` (ADDxx).
    pub fn add<F: Float>(&mut self, a: F, b: F) -> F {
        self.on_host(a, b, F::host_add).unwrap_or_else(|| self.add_or_sub(a, b, false))
    }

    /// `a` - `b` (SUBxx).
    pub fn sub<F: Float>(&mut self, a: F, b: F) -> F {
        self.on_host(a, b, F::host_sub).unwrap_or_else(|| self.add_or_sub(a, b, true))
    }

    fn add_or_sub<F: Float>(&mut self, a: F, b: F, subtract: bool) -> F {
        if let Some(nan) = self.propagate_nans(a, b) {
            return nan;
        }
        let (a, b) = (self.denormal_as_asked(a), self.denormal_as_asked(b));
        let addend = if subtract { b.negate() } else { b };
        match (a.class(), b.class()) {
            (Class::Infinity, Class::Infinity) if a != addend => return self.invalid(),
            _ => self.check_denormals(a, b),
        }
        match (a.class(), b.class()) {
            (Class::Infinity, _) => a,
            (_, Class::Infinity) => addend,
            (Class::Zero, Class::Zero) if a == addend => a,
            (Class::Zero, Class::Zero) => self.exact_zero_sum(),
            // A denormal must still be flushed, or raise underflow.
            (Class::Zero, _) => self.round(addend.number()),
            (_, Class::Zero) => self.round(a.number()),
            _ => self.sum(a.number(), addend.number()),
        }
    }

    /// The zero that is the sum of numbers of opposite sign.
    pub(super) fn exact_zero_sum<F: Format>(self) -> F {
        F::zero(self.rounding == Rounding::Down)
    }

    fn sum<F: Float>(&mut self, a: Number, b: Number) -> F {
        let (large, small) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        // One bit is free at the top for a carry. At the bottom there are at least ten bits: when the
        // operands are so far apart that some bits become sticky, at most one bit cancels.
        let augend = large.significand >> 1;
        let addend =
            shift_right_sticky(small.significand >> 1, (large.exponent - small.exponent) as u32);
        let (negative, significand) = if large.negative == small.negative {
            (large.negative, augend + addend)
        } else if augend >= addend {
            (large.negative, augend - addend)
        } else {
            (small.negative, addend - augend)
        };
        if significand == 0 {
            return self.exact_zero_sum();
        }
        let shift = significand.leading_zeros();
        self.round(Number {
            negative,
            exponent: large.exponent + 1 - shift as i32,
            significand: significand << shift,
        })
    }

    /// `a` · `b` (MULxx).
    pub fn mul<F: Float>(&mut self, a: F, b: F) -> F {
        if let Some(product) = self.on_host(a, b, F::host_mul) {
            return product;
        }
        if let Some(nan) = self.propagate_nans(a, b) {
            return nan;
        }
        let (a, b) = (self.denormal_as_asked(a), self.denormal_as_asked(b));
        let negative = a.is_negative() ^ b.is_negative();
        match (a.class(), b.class()) {
            (Class::Infinity, Class::Zero) | (Class::Zero, Class::Infinity) => {
                return self.invalid();
            }
            _ => self.check_denormals(a, b),
        }
        match (a.class(), b.class()) {
            (Class::Infinity, _) | (_, Class::Infinity) => F::infinity(negative),
            (Class::Zero, _) | (_, Class::Zero) => F::zero(negative),
            _ => {
                let (a, b) = (a.number(), b.number());
                let product = u128::from(a.significand) * u128::from(b.significand);
                let shift = product.leading_zeros();
                self.round(Number {
                    negative,
                    exponent: a.exponent + b.exponent + 1 - shift as i32,
                    significand: high_sticky(product << shift),
                })
            }
        }
    }

    /// `a` / `b` (DIVxx).
    pub fn div<F: Float>(&mut self, a: F, b: F) -> F {
        if let Some(quotient) = self.on_host(a, b, F::host_div) {
            return quotient;
        }
        if let Some(nan) = self.propagate_nans(a, b) {
            return nan;
        }
        let (a, b) = (self.denormal_as_asked(a), self.denormal_as_asked(b));
        let negative = a.is_negative() ^ b.is_negative();
        match (a.class(), b.class()) {
            (Class::Infinity, Class::Infinity) | (Class::Zero, Class::Zero) => self.invalid(),
            (Class::Infinity, Class::Zero) => F::infinity(negative),
            (_, Class::Zero) => {
                // This has priority over the denormal-operand exception (SDM vol. 1, 4.9.2).
                self.raise(Flags::ZERO_DIVIDE);
                F::infinity(negative)
            }
            (class_a, class_b) => {
                self.check_denormals(a, b);
                match (class_a, class_b) {
                    (Class::Infinity, _) => F::infinity(negative),
                    (Class::Zero, _) | (_, Class::Infinity) => F::zero(negative),
                    _ => self.round(quotient(negative, a.number(), b.number())),
                }
            }
        }
    }

    /// The square root of `a` (SQRTxx).
    pub fn sqrt<F: Float>(&mut self, a: F) -> F {
        if let Some(root) = self.on_host(a, a, |a, _| a.host_sqrt()) {
            return root;
        }
        if let Some(nan) = self.propagate_nan(a) {
            return nan;
        }
        let a = self.denormal_as_asked(a);
        match a.class() {
            Class::Zero => a,
            _ if a.is_negative() => self.invalid(),
            Class::Infinity => a,
            _ => {
                self.check_denormal(a);
                self.round(square_root(a.number()))
            }
        }
    }

    /// The host's result, if it is certain to be right and to raise only an exception that MXCSR already has:
    /// operands are normalised or zero, and the result is normalised and not adjacent to the denormals (it
    /// may have been rounded up from there).
    fn on_host<F: Float>(self, a: F, b: F, operation: impl Fn(F, F) -> F) -> Option<F> {
        let ordinary = |value| matches!(F::class(value), Class::Normal | Class::Zero);
        if !self.host_suffices || !ordinary(a) || !ordinary(b) {
            return None;
        }
        let result = operation(a, b);
        (2..F::SPECIAL_EXPONENT).contains(&result.exponent_field()).then_some(result)
    }

    /// The result of an operation with one operand, if that is a NaN.
    pub(super) fn propagate_nan<F: Format>(&mut self, a: F) -> Option<F> {
        self.propagate_nans(a, a)
    }

    /// The result of an operation on `a` and `b` if one is a NaN: the first NaN (SDM vol. 1, table 4-7, the
    /// rules for SSE).
    pub(super) fn propagate_nans<F: Format>(&mut self, a: F, b: F) -> Option<F> {
        let (class_a, class_b) = (a.class(), b.class());
        if class_a == Class::SignalingNan || class_b == Class::SignalingNan {
            self.raise(Flags::INVALID);
        }
        if class_a.is_nan() {
            Some(a.quieted())
        } else if class_b.is_nan() {
            Some(b.quieted())
        } else {
            None
        }
    }

    /// The effective operand: a zero for a denormal if MXCSR.DAZ is set.
    pub(super) fn denormal_as_asked<F: Format>(self, a: F) -> F {
        if self.denormals_are_zeros && a.class() == Class::Denormal {
            F::zero(a.is_negative())
        } else {
            a
        }
    }

    /// Raises the denormal-operand exception if `a` is a denormal.
    pub(super) fn check_denormal<F: Format>(&mut self, a: F) {
        if a.class() == Class::Denormal {
            self.raise(Flags::DENORMAL);
        }
    }

    /// Raises the denormal-operand exception if an operand is a denormal.
    pub(super) fn check_denormals<F: Format>(&mut self, a: F, b: F) {
        self.check_denormal(a);
        self.check_denormal(b);
    }
}

fn quotient(negative: bool, a: Number, b: Number) -> Number {
    // Shift the dividend such that the quotient has exactly 64 bits.
    let smaller = a.significand < b.significand;
    let dividend = u128::from(a.significand) << if smaller { 64 } else { 63 };
    let divisor = u128::from(b.significand);
    let inexact = dividend % divisor != 0;
    Number {
        negative,
        exponent: a.exponent - b.exponent - i32::from(smaller),
        significand: (dividend / divisor) as u64 | u64::from(inexact),
    }
}

fn square_root(a: Number) -> Number {
    // The radicand is shifted such that its exponent is even and its root has exactly 64 bits.
    let odd = a.exponent & 1;
    let radicand = u128::from(a.significand) << (63 + odd);
    let root = radicand.isqrt();
    Number {
        negative: false,
        exponent: (a.exponent - odd) / 2,
        significand: root as u64 | u64::from(root * root != radicand),
    }
}
