//! Comparisons: CMPxx, COMISx, UCOMISx, MINxx, MAXxx.

use std::cmp::Ordering;

use super::format::{Class, Format};
use super::{Context, Flags};

/// The predicate of CMPxx (SDM vol. 2, table 3-1): bits 4 to 0 of the immediate operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Predicate(u8);

impl Predicate {
    /// The predicate of an immediate operand. Without VEX, bits 7 to 3 are ignored.
    pub const fn from_immediate(immediate: u8) -> Self {
        Self(immediate & 7)
    }

    /// The predicate of the immediate operand of an instruction with VEX.
    pub const fn with_vex(immediate: u8) -> Self {
        Self(immediate & 31)
    }

    /// Whether the predicate makes a quiet NaN an invalid operation: LT, LE and their opposites, and with bit 4 the
    /// others.
    const fn signals(self) -> bool {
        matches!(self.0 & 3, 1 | 2) != (self.0 & 16 != 0)
    }

    /// Whether the predicate holds for operands of this order; None stands for unordered ones.
    const fn holds(self, order: Option<Ordering>) -> bool {
        let holds = match self.0 & 3 {
            0 => matches!(order, Some(Ordering::Equal)),
            1 => matches!(order, Some(Ordering::Less)),
            2 => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            _ => order.is_none(),
        };
        // With bit 3, it is the other way round for unordered operands.
        let holds = holds != (self.0 & 8 != 0 && order.is_none());
        // NEQ, NLT, NLE, ORD and so on are the opposites.
        holds != (self.0 & 4 != 0)
    }
}

impl Context {
    /// Whether `predicate` holds for `a` and `b` (CMPxx).
    pub fn compare<F: Format>(&mut self, a: F, b: F, predicate: Predicate) -> bool {
        predicate.holds(self.order(a, b, predicate.signals()))
    }

    /// The order of `a` and `b`, or None if one is a NaN. `signal_quiet` says whether a quiet NaN is an
    /// invalid operation (true for COMISx, false for UCOMISx).
    pub fn order<F: Format>(&mut self, a: F, b: F, signal_quiet: bool) -> Option<Ordering> {
        let (a, b) = (self.denormal_as_asked(a), self.denormal_as_asked(b));
        let (class_a, class_b) = (a.class(), b.class());
        if class_a.is_nan() || class_b.is_nan() {
            if signal_quiet || class_a == Class::SignalingNan || class_b == Class::SignalingNan {
                self.raise(Flags::INVALID);
            }
            return None;
        }
        self.check_denormals(a, b);
        Some(place(a).cmp(&place(b)))
    }

    /// The smaller of `a` and `b`; `b` if they are equal or one is a NaN (MINxx).
    pub fn min<F: Format>(&mut self, a: F, b: F) -> F {
        self.select(a, b, Ordering::Less)
    }

    /// The larger of `a` and `b`; `b` if they are equal or one is a NaN (MAXxx).
    pub fn max<F: Format>(&mut self, a: F, b: F) -> F {
        self.select(a, b, Ordering::Greater)
    }

    fn select<F: Format>(&mut self, a: F, b: F, order_for_a: Ordering) -> F {
        let selected = if self.order(a, b, true) == Some(order_for_a) { a } else { b };
        self.denormal_as_asked(selected)
    }
}

/// The position of a number in the order of all numbers; both zeros have the same position.
fn place<F: Format>(a: F) -> i64 {
    let magnitude = (a.bits() & !F::zero(true).bits()) as i64;
    if a.is_negative() { -magnitude } else { magnitude }
}
