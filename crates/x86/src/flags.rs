//! EFLAGS (SDM vol. 1, 3.4.3), with lazy evaluation of the status flags.
//!
//! Most instructions set all six status flags and few read them. So an instruction stores only its result and
//! the vector of carries out of every bit of its addition, and a flag is computed when it is read. The idea
//! comes from D. Mihocka and S. Shwartsman, *Virtualization Without Direct Execution or Jitting*, 2008.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use crate::word::Word;

bitflags! {
    /// The bits of EFLAGS.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Eflags: u32 {
        /// Carry.
        const CF = 1 << 0;
        /// Parity of the result's low byte.
        const PF = 1 << 2;
        /// Carry out of bit 3.
        const AF = 1 << 4;
        /// Zero.
        const ZF = 1 << 6;
        /// Sign.
        const SF = 1 << 7;
        /// Trap: single step.
        const TF = 1 << 8;
        /// Interrupt enable.
        const IF = 1 << 9;
        /// Direction of string instructions.
        const DF = 1 << 10;
        /// Overflow.
        const OF = 1 << 11;
        /// I/O privilege level, two bits.
        const IOPL = 3 << 12;
        /// Nested task.
        const NT = 1 << 14;
        /// Resume: suppresses instruction breakpoints once.
        const RF = 1 << 16;
        /// Virtual-8086 mode.
        const VM = 1 << 17;
        /// Alignment check.
        const AC = 1 << 18;
        /// Virtual interrupt flag.
        const VIF = 1 << 19;
        /// Virtual interrupt pending.
        const VIP = 1 << 20;
        /// CPUID can be identified.
        const ID = 1 << 21;
        /// CF, PF, AF, ZF, SF and OF.
        const STATUS = Self::CF.bits() | Self::PF.bits() | Self::AF.bits()
            | Self::ZF.bits() | Self::SF.bits() | Self::OF.bits();
    }
}

/// Bit 1 of EFLAGS always reads as one.
pub const ALWAYS_ONE: u32 = 1 << 1;

/// The status flags, as left by the last instruction that set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The result, sign-extended. It determines ZF, and, unless `aux` flips them, SF and PF.
    result: u64,
    /// The bits described by the constants below.
    aux: u32,
}

/// `aux`: CF, the carry out of the highest bit.
const CARRY: u32 = 1 << 31;
/// `aux`: the carry into the highest bit; OF is this XOR [`CARRY`].
const CARRY_IN: u32 = 1 << 30;
/// `aux`: AF, the carry out of bit 3.
const HALF_CARRY: u32 = 1 << 3;
/// `aux`: SF is the inverse of the result's sign.
const FLIP_SIGN: u32 = 1 << 0;
/// `aux`: PF is the inverse of the parity of the result's low byte.
const FLIP_PARITY: u32 = 1 << 8;

impl Default for Status {
    /// All clear, as after reset.
    fn default() -> Self {
        Status { result: 1, aux: 0 }
    }
}

impl Status {
    /// Makes the flags after an addition or subtraction; `carries` holds the carry (or borrow) out of each
    /// bit.
    #[inline(always)]
    fn from_carries<W: Word>(result: W, carries: u64) -> Status {
        let aux = match W::BITS {
            64 => (carries >> 32) as u32 & (CARRY | CARRY_IN),
            bits => (carries << (32 - bits)) as u32 & (CARRY | CARRY_IN),
        };
        Status { result: result.sign_extend(), aux: aux | carries as u32 & HALF_CARRY }
    }

    /// Makes the flags after `a + b` (+ carry) = `result`.
    #[inline(always)]
    pub fn add<W: Word>(a: W, b: W, result: W) -> Status {
        let (a, b, sum) = (a.zero_extend(), b.zero_extend(), result.zero_extend());
        Self::from_carries(result, (a & b) | ((a | b) & !sum))
    }

    /// Makes the flags after `a - b` (- borrow) = `result`.
    #[inline(always)]
    pub fn sub<W: Word>(a: W, b: W, result: W) -> Status {
        let (a, b, difference) = (a.zero_extend(), b.zero_extend(), result.zero_extend());
        Self::from_carries(result, (!a & b) | ((!a | b) & difference))
    }

    /// Makes the flags after AND, OR, XOR or TEST: CF, OF and AF are clear.
    #[inline(always)]
    pub fn logic<W: Word>(result: W) -> Status {
        Status { result: result.sign_extend(), aux: 0 }
    }

    /// Sets ZF, SF and PF by `result`, and the others as given.
    #[inline(always)]
    pub fn new<W: Word>(result: W, carry: bool, overflow: bool, half_carry: bool) -> Status {
        Status { result: result.sign_extend(), aux: 0 }
            .with_carry_overflow(carry, overflow)
            .with_half_carry(half_carry)
    }

    /// Returns these flags with other CF and OF.
    #[inline(always)]
    #[must_use]
    pub fn with_carry_overflow(self, carry: bool, overflow: bool) -> Status {
        let carry_bits = (u32::from(carry) * CARRY) | (u32::from(carry != overflow) * CARRY_IN);
        Status { aux: self.aux & !(CARRY | CARRY_IN) | carry_bits, ..self }
    }

    /// Returns these flags with another CF and the same OF.
    #[inline(always)]
    #[must_use]
    pub fn with_carry(self, carry: bool) -> Status {
        self.with_carry_overflow(carry, self.overflow())
    }

    /// Returns these flags with another AF.
    #[inline(always)]
    #[must_use]
    pub fn with_half_carry(self, half_carry: bool) -> Status {
        Status { aux: self.aux & !HALF_CARRY | (u32::from(half_carry) * HALF_CARRY), ..self }
    }

    /// Returns these flags with another ZF.
    #[must_use]
    pub fn with_zero(self, zero: bool) -> Status {
        if self.zero() == zero {
            return self;
        }
        let mut flags = self.to_eflags();
        flags.set(Eflags::ZF, zero);
        Self::from_eflags(flags)
    }

    /// CF.
    #[inline(always)]
    pub fn carry(self) -> bool {
        self.aux & CARRY != 0
    }

    /// OF.
    #[inline(always)]
    pub fn overflow(self) -> bool {
        (self.aux ^ self.aux << 1) & CARRY != 0
    }

    /// AF.
    #[inline(always)]
    pub fn half_carry(self) -> bool {
        self.aux & HALF_CARRY != 0
    }

    /// ZF.
    #[inline(always)]
    pub fn zero(self) -> bool {
        self.result == 0
    }

    /// SF.
    #[inline(always)]
    pub fn sign(self) -> bool {
        (self.result >> 63) as u32 != self.aux & FLIP_SIGN
    }

    /// PF: the number of ones in the low byte is even.
    #[inline(always)]
    pub fn parity(self) -> bool {
        let flip = u32::from(self.aux & FLIP_PARITY != 0);
        ((self.result as u8).count_ones() + flip).is_multiple_of(2)
    }

    /// Returns the six flags as bits of EFLAGS.
    pub fn to_eflags(self) -> Eflags {
        let mut flags = Eflags::empty();
        flags.set(Eflags::CF, self.carry());
        flags.set(Eflags::PF, self.parity());
        flags.set(Eflags::AF, self.half_carry());
        flags.set(Eflags::ZF, self.zero());
        flags.set(Eflags::SF, self.sign());
        flags.set(Eflags::OF, self.overflow());
        flags
    }

    /// Makes the flags from the six bits of EFLAGS, in any combination.
    pub fn from_eflags(flags: Eflags) -> Status {
        // Results 0 and 1 are both non-negative; 0 has even parity and 1 odd.
        let zero = flags.contains(Eflags::ZF);
        let flip_sign = flags.contains(Eflags::SF);
        let flip_parity = flags.contains(Eflags::PF) != zero;
        let aux = (u32::from(flip_sign) * FLIP_SIGN) | (u32::from(flip_parity) * FLIP_PARITY);
        Status { result: u64::from(!zero), aux }
            .with_carry_overflow(flags.contains(Eflags::CF), flags.contains(Eflags::OF))
            .with_half_carry(flags.contains(Eflags::AF))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_survives() {
        for bits in 0..64u32 {
            let mut flags = Eflags::empty();
            for (bit, flag) in Eflags::STATUS.iter().enumerate() {
                flags.set(flag, bits >> bit & 1 != 0);
            }
            assert_eq!(Status::from_eflags(flags).to_eflags(), flags);
        }
    }

    /// Computes the definition in SDM vol. 1, 3.4.3.1, in the most direct way.
    fn reference(a: u8, b: u8, carry: u8, subtract: bool) -> (u8, Eflags) {
        let (wide, signed, low) = if subtract {
            (
                i32::from(a) - i32::from(b) - i32::from(carry),
                i32::from(a as i8) - i32::from(b as i8) - i32::from(carry),
                i32::from(a & 15) - i32::from(b & 15) - i32::from(carry),
            )
        } else {
            (
                i32::from(a) + i32::from(b) + i32::from(carry),
                i32::from(a as i8) + i32::from(b as i8) + i32::from(carry),
                i32::from(a & 15) + i32::from(b & 15) + i32::from(carry),
            )
        };
        let result = wide as u8;
        let mut flags = Eflags::empty();
        flags.set(Eflags::CF, !(0..256).contains(&wide));
        flags.set(Eflags::OF, !(-128..128).contains(&signed));
        flags.set(Eflags::AF, !(0..16).contains(&low));
        flags.set(Eflags::ZF, result == 0);
        flags.set(Eflags::SF, result >= 128);
        flags.set(Eflags::PF, result.count_ones().is_multiple_of(2));
        (result, flags)
    }

    #[test]
    fn sums_and_differences_of_all_bytes() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                for carry in 0..=1 {
                    let (sum, flags) = reference(a, b, carry, false);
                    assert_eq!(Status::add(a, b, sum).to_eflags(), flags, "{a} + {b} + {carry}");
                    let (difference, flags) = reference(a, b, carry, true);
                    assert_eq!(Status::sub(a, b, difference).to_eflags(), flags, "{a} - {b}");
                }
            }
        }
    }

    #[test]
    fn wider_carries() {
        let status = Status::add(0xffff_ffffu32, 1, 0);
        assert_eq!(status.to_eflags(), Eflags::CF | Eflags::AF | Eflags::ZF | Eflags::PF);
        let status = Status::add(0x7fff_ffff_ffff_ffffu64, 1, 1 << 63);
        assert_eq!(status.to_eflags(), Eflags::OF | Eflags::AF | Eflags::SF | Eflags::PF);
        let status = Status::sub(0x8000u16, 1, 0x7fff);
        assert_eq!(status.to_eflags(), Eflags::OF | Eflags::AF | Eflags::PF);
    }
}
