//! The state of SSE and AVX (SDM vol. 1, 10.2 and 14.1.1): the XMM registers, which are the lower halves of the YMM
//! registers, and MXCSR.
//!
//! The instructions are in `exec/simd`. The MMX registers are the x87's (see [`crate::fpu`]).

use serde::{Deserialize, Serialize};

/// MXCSR after reset: all exceptions masked, round to nearest.
pub const MXCSR_INIT: u32 = 0x1f80;
/// The bits of MXCSR that exist (SDM vol. 1, 11.6.6): exception flags, DAZ, masks, rounding, FZ.
pub const MXCSR_MASK: u32 = 0xffff;

/// The registers of SSE and AVX.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sse {
    /// XMM0 to XMM15, of which 32-bit code reaches the first eight.
    registers: [u128; 16],
    /// The upper halves of YMM0 to YMM15. States of processors without AVX lack them.
    #[serde(default)]
    upper: [u128; 16],
    mxcsr: u32,
}

impl Default for Sse {
    /// The state after reset.
    fn default() -> Self {
        Sse { registers: [0; 16], upper: [0; 16], mxcsr: MXCSR_INIT }
    }
}

impl Sse {
    /// XMM register `number`, 0 to 15.
    #[inline(always)]
    pub fn xmm(&self, number: u8) -> u128 {
        self.registers[usize::from(number & 15)]
    }

    /// Sets XMM register `number`, 0 to 15.
    #[inline(always)]
    pub fn set_xmm(&mut self, number: u8, value: u128) {
        self.registers[usize::from(number & 15)] = value;
    }

    /// The upper half of YMM register `number`, 0 to 15.
    #[inline(always)]
    pub fn upper(&self, number: u8) -> u128 {
        self.upper[usize::from(number & 15)]
    }

    /// Sets the upper half of YMM register `number`, 0 to 15.
    #[inline(always)]
    pub fn set_upper(&mut self, number: u8, value: u128) {
        self.upper[usize::from(number & 15)] = value;
    }

    /// Both halves of YMM register `number`, 0 to 15, the lower one first.
    #[inline(always)]
    pub fn ymm(&self, number: u8) -> [u128; 2] {
        [self.xmm(number), self.upper(number)]
    }

    /// Sets both halves of YMM register `number`, 0 to 15, the lower one first.
    #[inline(always)]
    pub fn set_ymm(&mut self, number: u8, [lower, upper]: [u128; 2]) {
        self.set_xmm(number, lower);
        self.set_upper(number, upper);
    }

    /// The control and status register.
    pub fn mxcsr(&self) -> u32 {
        self.mxcsr
    }

    /// Sets the control and status register; bits that do not exist stay clear.
    pub fn set_mxcsr(&mut self, value: u32) {
        self.mxcsr = value & MXCSR_MASK;
    }

    /// Returns whether the methods here can make this state, in contrast to one read from a damaged file.
    pub fn is_valid(&self) -> bool {
        self.mxcsr & !MXCSR_MASK == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bits_stay_clear() {
        let mut sse = Sse::default();
        assert_eq!(sse.mxcsr(), 0x1f80);
        sse.set_mxcsr(u32::MAX);
        assert_eq!(sse.mxcsr(), 0xffff);
        assert!(sse.is_valid());
        assert!(!Sse { mxcsr: 0x1_0000, ..Sse::default() }.is_valid());
    }
}
