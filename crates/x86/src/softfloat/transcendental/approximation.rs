//! The functions of numbers, with an error below 2^-118 of the result.
//!
//! Each function reduces its argument until a power series converges by several bits with each term, and
//! computes the series in fixed point (Horner's scheme) without its first power. That factor is multiplied in
//! floating point, so that small results are as exact as large ones.

use super::super::operand::Number;
use super::super::rounding::Exact;
use super::wide::{
    ONE, ONE_FIXED, add, divide, from_fixed, integer, multiply, multiply_fixed, negate, scale,
    to_fixed,
};

/// π.
const PI: Exact =
    Exact { negative: false, exponent: 1, significand: 0xc90fdaa22168c234_c4c6628b80dc1cd1 };
/// The natural logarithm of 2.
const LN_2: Exact =
    Exact { negative: false, exponent: -1, significand: 0xb17217f7d1cf79ab_c9e3b39803f2f6af };
/// The binary logarithm of e.
const LOG2_E: Exact =
    Exact { negative: false, exponent: 0, significand: 0xb8aa3b295c17f0bb_be87fed0691d3e88 };
/// The significand of the square root of 2.
const SQRT_2: u128 = 0xb504f333f9de6484_597d89b3754abe9f;

/// The arctangents of 0, 1/8, 2/8 and so on to 1, as fixed-point numbers.
const ARCTANGENTS: [u128; 9] = [
    0x0000000000000000_0000000000000000,
    0x07f56ea6ab0bdb71_9644bcc4f9f44477,
    0x0fadbafc96406eb1_56dc79ef5f7a217e,
    0x16f61941e4def08e_715464245b9fc890,
    0x1dac670561bb4f68_adfc88bd978751a0,
    0x23c01757bdfd67e6_d720d78599710dd1,
    0x292f1f464d3dc249_066a1fca915f6b27,
    0x2e014f8af08c679c_f2cb69548429110f,
    0x3243f6a8885a308d_313198a2e0370734,
];

/// Terms of the series for sine and cosine: the first one left out is below 2^-130 at π/4.
const TRIGONOMETRIC_TERMS: u128 = 17;
/// Terms of the series for 2^x, sufficient at ±1.
const EXPONENTIAL_TERMS: u128 = 35;
/// Terms of the series for the logarithm, sufficient at √2.
const LOGARITHM_TERMS: u128 = 26;
/// Terms of the series for the arctangent, sufficient at 1/16.
const ARCTANGENT_TERMS: u128 = 17;

/// 2^`x` - 1 for magnitudes below 1.
pub(super) fn exp2m1(x: Exact) -> Exact {
    let y = multiply(x, LN_2);
    let fixed = to_fixed(y);
    // (e^y - 1) / y = 1 + y/2 · (1 + y/3 · (1 + …))
    let series = (2..=EXPONENTIAL_TERMS).rev().fold(ONE_FIXED, |sum, n| {
        let term = multiply_fixed(fixed, sum) / n;
        if y.negative { ONE_FIXED - term } else { ONE_FIXED + term }
    });
    multiply(y, from_fixed(series))
}

/// log2(`x`) for positive `x` other than 1.
pub(super) fn log2(x: Exact) -> Exact {
    let above = i32::from(x.significand > SQRT_2);
    let power = x.exponent + above;
    // From √½ to √2.
    let m = scale(x, -power);
    let fraction = log2_of_ratio(add(m, negate(ONE)), add(m, ONE));
    if power == 0 { fraction } else { add(integer(power), fraction) }
}

/// log2(1 + `x`) for `x` above -1 other than 0.
pub(super) fn log2p1(x: Exact) -> Exact {
    if x.exponent < -2 { log2_of_ratio(x, add(x, scale(ONE, 1))) } else { log2(add(x, ONE)) }
}

/// log2((1 + s) / (1 - s)) where s is `numerator` / `denominator`.
fn log2_of_ratio(numerator: Exact, denominator: Exact) -> Exact {
    let s = divide(numerator, denominator);
    let square = to_fixed(multiply(s, s));
    // artanh(s) / s = 1 + s²/3 + s⁴/5 + …
    let series = (0..=LOGARITHM_TERMS)
        .rev()
        .fold(0, |sum, n| ONE_FIXED / (2 * n + 1) + multiply_fixed(square, sum));
    scale(multiply(multiply(s, from_fixed(series)), LOG2_E), 1)
}

/// `n` · π/4.
pub(super) fn multiple_of_quarter_pi(n: i32) -> Exact {
    multiply(integer(n), scale(PI, -2))
}

/// The angle, up to π, of the point (`x`, `y`), both positive, or (-`x`, `y`) if `left`.
pub(super) fn arctangent(y: Exact, x: Exact, left: bool) -> Exact {
    let is_steep = (y.exponent, y.significand) > (x.exponent, x.significand);
    let angle = if is_steep {
        add(multiple_of_quarter_pi(2), negate(arctangent_of(divide(x, y))))
    } else {
        arctangent_of(divide(y, x))
    };
    if left { add(PI, negate(angle)) } else { angle }
}

/// The arctangent of `t`, above 0 and up to 1.
fn arctangent_of(t: Exact) -> Exact {
    let nearest = (to_fixed(t) + ONE_FIXED / 16) / (ONE_FIXED / 8);
    // arctan t = arctan c + arctan u
    let c = scale(integer(nearest as i32), -3);
    let u = match nearest {
        0 => t,
        _ => divide(add(t, negate(c)), add(ONE, multiply(t, c))),
    };
    let square = to_fixed(multiply(u, u));
    // arctan(u) / u = 1 - u²/3 + u⁴/5 - …
    let series = (1..=ARCTANGENT_TERMS)
        .rev()
        .fold(0, |sum, n| ONE_FIXED / (2 * n + 1) - multiply_fixed(square, sum));
    let rest = multiply(u, from_fixed(below_one(multiply_fixed(square, series))));
    add(from_fixed(ARCTANGENTS[nearest as usize]), rest)
}

/// An angle, reduced.
#[derive(Clone, Copy)]
pub(super) struct Angle {
    /// The number of multiples of π/2 that were subtracted, modulo 4.
    quadrant: u8,
    /// The rest, with a magnitude up to π/4.
    rest: Exact,
    /// Whether the sign of the angle was changed before.
    negative: bool,
}

impl Angle {
    /// Subtracts multiples of π/2, where π has 66 bits as in the x87 (SDM vol. 1, 8.3.8). The angle is below
    /// 2^63 and not zero.
    pub(super) fn reduced(angle: Number) -> Self {
        /// π/2 as the processor has it, in units of 2^-65.
        const HALF_PI: u128 = 0x3_243f6a88_85a308d3;
        let Number { negative, exponent, significand } = angle;
        let significand = u128::from(significand);
        if exponent < -1 {
            let rest = Exact { negative: false, exponent, significand: significand << 64 };
            return Self { quadrant: 0, rest, negative };
        }
        let units = significand << (exponent + 2);
        let (quotient, remainder) = (units / HALF_PI, units % HALF_PI);
        let is_above_half = 2 * remainder > HALF_PI;
        let rest = Exact {
            negative: is_above_half,
            exponent: 127 - 65,
            significand: if is_above_half { HALF_PI - remainder } else { remainder },
        };
        let quadrant = (quotient + u128::from(is_above_half)) as u8 & 3;
        Self { quadrant, rest: rest.normalized(), negative }
    }

    /// Its sine.
    pub(super) fn sine(self) -> Exact {
        let value =
            if self.quadrant & 1 == 0 { self.sine_of_rest() } else { self.cosine_of_rest() };
        if self.negative ^ (self.quadrant & 2 != 0) { negate(value) } else { value }
    }

    /// Its cosine.
    pub(super) fn cosine(self) -> Exact {
        let value =
            if self.quadrant & 1 == 0 { self.cosine_of_rest() } else { self.sine_of_rest() };
        if matches!(self.quadrant, 1 | 2) { negate(value) } else { value }
    }

    /// Its tangent.
    pub(super) fn tangent(self) -> Exact {
        divide(self.sine(), self.cosine())
    }

    fn sine_of_rest(self) -> Exact {
        let square = to_fixed(multiply(self.rest, self.rest));
        // sin(r) / r = 1 - r²/(2·3) · (1 - r²/(4·5) · (1 - …))
        let series = (1..=TRIGONOMETRIC_TERMS).rev().fold(ONE_FIXED, |sum, n| {
            below_one(multiply_fixed(square, sum) / (2 * n * (2 * n + 1)))
        });
        multiply(self.rest, from_fixed(series))
    }

    fn cosine_of_rest(self) -> Exact {
        let square = to_fixed(multiply(self.rest, self.rest));
        // cos(r) = 1 - r²/(1·2) · (1 - r²/(3·4) · (1 - …))
        let series = (1..=TRIGONOMETRIC_TERMS).rev().fold(ONE_FIXED, |sum, n| {
            below_one(multiply_fixed(square, sum) / (2 * n * (2 * n - 1)))
        });
        from_fixed(series)
    }
}

/// 1 - `term`, and below 1 even if the term is too small for the available bits, so that rounding sees an
/// inexact value.
fn below_one(term: u128) -> u128 {
    ONE_FIXED - term.max(1)
}
