//! Packed decimal integers: FBLD and FBSTP.

use super::{Context, F80, Flags};

/// An 18-digit decimal integer as in memory: two digits a byte, the lowest first, and a byte with
/// the sign in bit 7 (SDM vol. 1, 4.7).
pub type PackedBcd = [u8; 10];

/// The masked response to values that do not fit.
const INDEFINITE: PackedBcd = [0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0xff];

/// The largest magnitude that 18 digits can hold.
const MAXIMUM: u64 = 999_999_999_999_999_999;

impl F80 {
    /// The decimal integer as a register value (FBLD), which is always exact. Digits above nine
    /// count with their value, as on hardware.
    pub fn from_bcd(bcd: PackedBcd) -> Self {
        let magnitude = bcd[..9].iter().rev().fold(0, |magnitude, pair| {
            magnitude * 100 + u64::from(pair >> 4) * 10 + u64::from(pair & 15)
        });
        Self::from_magnitude(bcd[9] & 0x80 != 0, magnitude)
    }
}

impl Context {
    /// `a` as a decimal integer for memory (FBSTP).
    pub fn store_bcd(&mut self, a: F80) -> Option<PackedBcd> {
        let Some(mut magnitude) = self.whole_magnitude(a, MAXIMUM, self.rounding) else {
            self.raise(Flags::INVALID)?;
            return Some(INDEFINITE);
        };
        let mut bcd = [0; 10];
        for pair in &mut bcd[..9] {
            let (tens, ones) = (magnitude / 10 % 10, magnitude % 10);
            *pair = (tens << 4 | ones) as u8;
            magnitude /= 100;
        }
        bcd[9] = u8::from(a.is_negative()) << 7;
        Some(bcd)
    }
}
