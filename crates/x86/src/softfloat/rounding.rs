//! Rounds an exact result to one that fits, with overflow and underflow (SDM vol. 1, 4.8.4 and 4.9.1.4 to
//! 4.9.1.6).

use super::{BIAS, Context, F80, Flags, INTEGER_BIT, MAX_EXPONENT_FIELD, Rounding};

/// The amount by which unmasked overflow and underflow shift the exponent of a result that goes to a
/// register, so that a handler can still read it (SDM vol. 1, 8.5.4 and 8.5.5).
const EXPONENT_ADJUSTMENT: i32 = 24576;

/// A finite, non-zero result before rounding: `significand` / 2^127 · 2^`exponent`.
///
/// Bits that are too low for any rounding to examine may be merged into bit 0 (a *sticky* bit): they matter
/// only by not being zero.
#[derive(Clone, Copy)]
pub(super) struct Exact {
    pub(super) negative: bool,
    pub(super) exponent: i32,
    pub(super) significand: u128,
}

/// A result after rounding: `significand` / 2^63 · 2^`exponent`.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    pub(super) exponent: i32,
    pub(super) significand: u64,
    /// Whether the exact result was a different number.
    pub(super) inexact: bool,
    /// Whether the exact result had a smaller magnitude.
    pub(super) up: bool,
}

/// The limits of a destination.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// The number of significant bits.
    pub(super) bits: u32,
    /// The exponent of the smallest normalised numbers.
    pub(super) min_exponent: i32,
    /// The exponent of the largest finite numbers.
    pub(super) max_exponent: i32,
    /// Whether the destination is a register, which can hold the results of unmasked overflow and underflow.
    pub(super) register: bool,
}

impl Format {
    /// The format of the registers, with results of `bits` significant bits.
    pub(super) const fn register(bits: u32) -> Self {
        Self { bits, min_exponent: 1 - BIAS, max_exponent: BIAS, register: true }
    }
}

impl Exact {
    /// The number with its significand shifted so that its top bit is set.
    pub(super) fn normalized(self) -> Self {
        let shift = self.significand.leading_zeros();
        Self {
            exponent: self.exponent - shift as i32,
            significand: self.significand << shift,
            ..self
        }
    }

    /// Rounds to the top `bits` (1 to 64) bits of the significand, with an unbounded exponent.
    pub(super) fn round_to_bits(self, bits: u32, rounding: Rounding) -> Rounded {
        let unit = 1_u128 << (128 - bits);
        let tail = self.significand & (unit - 1);
        let kept = self.significand - tail;
        let inexact = tail != 0;
        let up = match rounding {
            Rounding::Nearest => tail > unit / 2 || tail == unit / 2 && kept & unit != 0,
            Rounding::Down => inexact && self.negative,
            Rounding::Up => inexact && !self.negative,
            Rounding::Zero => false,
        };
        let (significand, carry) = kept.overflowing_add(if up { unit } else { 0 });
        if carry {
            return Rounded { exponent: self.exponent + 1, significand: INTEGER_BIT, inexact, up };
        }
        Rounded { exponent: self.exponent, significand: (significand >> 64) as u64, inexact, up }
    }
}

/// Shifts right, merging all bits shifted out into bit 0.
pub(super) const fn shift_right_sticky(value: u128, count: u32) -> u128 {
    match count {
        0 => value,
        1..128 => value >> count | (value << (128 - count) != 0) as u128,
        _ => (value != 0) as u128,
    }
}

impl Context {
    /// Rounds to the precision of precision control.
    pub(super) fn round(&mut self, exact: Exact) -> Option<F80> {
        self.round_to_register(exact, self.precision.bits())
    }

    /// Rounds to a register value with `bits` significant bits, and raises exceptions.
    pub(super) fn round_to_register(&mut self, exact: Exact, bits: u32) -> Option<F80> {
        let Rounded { exponent, significand, .. } =
            self.round_to_format(exact, Format::register(bits))?;
        let field = match significand & INTEGER_BIT {
            0 => 0,
            _ => ((exponent + BIAS) as u16).min(MAX_EXPONENT_FIELD),
        };
        Some(F80::new(field, significand).with_sign(exact.negative))
    }

    /// Rounds `exact`, whose top bit is set, to `format`, and raises exceptions.
    ///
    /// In the result an exponent above the format's largest stands for infinity, and a significand
    /// without its top bit for a denormal or zero. `None` means an unmasked exception that leaves
    /// a destination in memory as it was.
    pub(super) fn round_to_format(&mut self, exact: Exact, format: Format) -> Option<Rounded> {
        let rounded = exact.round_to_bits(format.bits, self.rounding);
        if rounded.exponent > format.max_exponent {
            self.overflow(exact.negative, rounded, format)
        } else if rounded.exponent < format.min_exponent {
            // Tininess is detected after rounding (SDM vol. 1, 4.9.1.5).
            self.underflow(exact, rounded, format)
        } else {
            self.note_rounding(rounded);
            Some(rounded)
        }
    }

    /// Raises the precision exception and sets C1 according to the rounding.
    pub(super) fn note_rounding(&mut self, rounded: Rounded) {
        if rounded.inexact {
            self.raised = self.raised.union(Flags::PRECISION);
            self.rounded_up = rounded.up;
        }
    }

    /// Handles a result that is too large: SDM vol. 1, 4.9.1.4 and 8.5.4.
    fn overflow(&mut self, negative: bool, rounded: Rounded, format: Format) -> Option<Rounded> {
        if self.raise(Flags::OVERFLOW).is_none() {
            return self.adjust_exponent(rounded, format, -EXPONENT_ADJUSTMENT);
        }
        let to_infinity = match self.rounding {
            Rounding::Nearest => true,
            Rounding::Down => negative,
            Rounding::Up => !negative,
            Rounding::Zero => false,
        };
        let (exponent, significand) = if to_infinity {
            (format.max_exponent + 1, INTEGER_BIT)
        } else {
            (format.max_exponent, u64::MAX << (64 - format.bits))
        };
        let response = Rounded { exponent, significand, inexact: true, up: to_infinity };
        self.note_rounding(response);
        Some(response)
    }

    /// Handles a result that is too small to be normalised: SDM vol. 1, 4.9.1.5 and 8.5.5.
    fn underflow(&mut self, exact: Exact, rounded: Rounded, format: Format) -> Option<Rounded> {
        if !self.masks.contains(Flags::UNDERFLOW) {
            self.raised = self.raised.union(Flags::UNDERFLOW);
            return self.adjust_exponent(rounded, format, EXPONENT_ADJUSTMENT);
        }
        let shift = (format.min_exponent - exact.exponent) as u32;
        let denormal = Exact {
            exponent: format.min_exponent,
            significand: shift_right_sticky(exact.significand, shift),
            ..exact
        }
        .round_to_bits(format.bits, self.rounding);
        if denormal.inexact {
            self.raised = self.raised.union(Flags::UNDERFLOW);
        }
        self.note_rounding(denormal);
        Some(denormal)
    }

    /// The response to unmasked overflow and underflow: a register takes the result with its
    /// exponent adjusted by `adjustment`, memory takes nothing.
    fn adjust_exponent(
        &mut self,
        rounded: Rounded,
        format: Format,
        adjustment: i32,
    ) -> Option<Rounded> {
        if !format.register {
            return None;
        }
        let exponent = rounded.exponent + adjustment;
        // Only FSCALE gets far enough that even the adjusted exponent does not fit. Processors then deliver
        // infinity or zero in any rounding mode.
        let response = if exponent > format.max_exponent {
            let exponent = format.max_exponent + 1;
            Rounded { exponent, significand: INTEGER_BIT, inexact: true, up: true }
        } else if exponent < format.min_exponent {
            Rounded { exponent, significand: 0, inexact: true, up: false }
        } else {
            Rounded { exponent, ..rounded }
        };
        self.note_rounding(response);
        Some(response)
    }
}
