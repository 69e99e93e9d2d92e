//! Conversions between the registers' format and `float` and `double` in memory.

use super::operand::Number;
use super::rounding::{Exact, Format};
use super::{Class, Context, F80, Flags, INTEGER_BIT, Operand};

impl Context {
    /// A `float` or `double` from memory as a register value (FLD).
    ///
    /// Real processors load a denormal even if the denormal-operand exception is unmasked.
    pub fn load(&mut self, a: Operand) -> Option<F80> {
        self.rounded_up = false;
        if a.class.is_nan_or_unsupported() {
            return self.propagate_nan(a);
        }
        if a.denormal {
            self.raised = self.raised.union(Flags::DENORMAL);
        }
        Some(a.value)
    }

    /// The bits of `a` as a `float` in memory (FST, FSTP).
    pub fn store_f32(&mut self, a: F80) -> Option<u32> {
        self.store_ieee(a, 24, 8).map(|bits| bits as u32)
    }

    /// The bits of `a` as a `double` in memory (FST, FSTP).
    pub fn store_f64(&mut self, a: F80) -> Option<u64> {
        self.store_ieee(a, 53, 11)
    }

    /// The bits of `a` in an IEEE format with `bits` significant bits, the leading one included.
    fn store_ieee(&mut self, a: F80, bits: u32, exponent_bits: u32) -> Option<u64> {
        self.rounded_up = false;
        let a = Operand::from(a);
        let bias = (1 << (exponent_bits - 1)) - 1;
        let special = 2 * bias as u64 + 1;
        let (negative, exponent_field, significand) = match a.class {
            Class::Zero => (a.is_negative(), 0, 0),
            Class::Infinity => (a.is_negative(), special, INTEGER_BIT),
            Class::QuietNan | Class::SignalingNan | Class::Unsupported => {
                let nan = self.propagate_nan(a)?;
                (nan.is_negative(), special, nan.significand)
            }
            Class::Denormal | Class::PseudoDenormal | Class::Normal => {
                let Number { negative, exponent, significand } = a.number();
                let exact =
                    Exact { negative, exponent, significand: u128::from(significand) << 64 };
                let format =
                    Format { bits, min_exponent: 1 - bias, max_exponent: bias, register: false };
                let rounded = self.round_to_format(exact, format)?;
                let field = match rounded.significand & INTEGER_BIT {
                    0 => 0,
                    _ => (rounded.exponent + bias) as u64,
                };
                (negative, field, rounded.significand)
            }
        };
        let fraction = (significand & !INTEGER_BIT) >> (64 - bits);
        let sign = u64::from(negative) << (bits - 1 + exponent_bits);
        Some(sign | exponent_field << (bits - 1) | fraction)
    }
}
