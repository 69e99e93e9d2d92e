//! Comparisons.
//!
//! Real processors set the condition codes after a comparison even if it raises an unmasked exception, so
//! every comparison here has a result.

use std::cmp::Ordering;

use super::operand::any_nan;
use super::{Class, Context, Flags, Operand};

/// The result of a comparison, about its first operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// It is greater than the second.
    Greater,
    /// It is less than the second.
    Less,
    /// It is equal to the second; zeros of different sign are equal.
    Equal,
    /// An operand is a NaN or unsupported.
    Unordered,
}

impl From<Ordering> for Comparison {
    fn from(ordering: Ordering) -> Self {
        match ordering {
            Ordering::Less => Self::Less,
            Ordering::Equal => Self::Equal,
            Ordering::Greater => Self::Greater,
        }
    }
}

impl Context {
    /// Compares, and takes any NaN for an invalid operation (FCOM, FICOM, FCOMI, FTST).
    pub fn compare(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Comparison {
        let (a, b) = (a.into(), b.into());
        self.compare_operands(a, b, any_nan(a, b))
    }

    /// Compares, and lets quiet NaNs pass (FUCOM, FUCOMI).
    pub fn compare_unordered(
        &mut self,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Comparison {
        let (a, b) = (a.into(), b.into());
        self.compare_operands(a, b, a.class.is_invalid() || b.class.is_invalid())
    }

    fn compare_operands(&mut self, a: Operand, b: Operand, invalid: bool) -> Comparison {
        self.rounded_up = false;
        if invalid {
            self.raised = self.raised.union(Flags::INVALID);
        }
        if any_nan(a, b) {
            return Comparison::Unordered;
        }
        if a.denormal || b.denormal {
            self.raised = self.raised.union(Flags::DENORMAL);
        }
        sort_key(a).cmp(&sort_key(b)).into()
    }
}

/// Returns a number that orders the values of operands, which must not be NaNs.
fn sort_key(a: Operand) -> i128 {
    let magnitude = match a.class {
        Class::Zero => return 0,
        // A pseudo-denormal has the value of the normalised number with an exponent field of one.
        Class::PseudoDenormal => 1,
        _ => a.value.exponent_field(),
    };
    let magnitude = i128::from(magnitude) << 64 | i128::from(a.value.significand);
    if a.is_negative() { -magnitude } else { magnitude }
}
