//! The FXSAVE image: x87, MMX and SSE registers in 512 bytes.

use std::fmt;

/// The memory image of FXSAVE64 and FXRSTOR64 (SDM vol. 1, 10.5.1 and vol. 2A, "FXSAVE").
///
/// The 64-bit layout is that of Linux signal frames. It has wide instruction and data pointers
/// where the 32-bit layout has selectors; the registers are in the same places.
#[derive(Clone, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct FxImage(pub [u8; 512]);

const FCW: usize = 0;
const FSW: usize = 2;
const FTW: usize = 4;
const FOP: usize = 6;
const FIP: usize = 8;
const FDP: usize = 16;
const MXCSR: usize = 24;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const MXCSR_MASK: usize = 28;
const ST: usize = 32;
const XMM: usize = 160;

impl FxImage {
    /// The state after FNINIT and a reset of MXCSR: all exceptions masked, x87 stack empty.
    pub const INIT: Self = {
        let mut bytes = [0; 512];
        bytes[FCW] = 0x7f;
        bytes[FCW + 1] = 0x03;
        bytes[MXCSR] = 0x80;
        bytes[MXCSR + 1] = 0x1f;
        Self(bytes)
    };

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    /// The x87 control word.
    pub fn fcw(&self) -> u16 {
        u16::from_le_bytes(self.get(FCW))
    }

    /// Sets the x87 control word.
    pub fn set_fcw(&mut self, value: u16) {
        self.set(FCW, value.to_le_bytes());
    }

    /// The x87 status word.
    pub fn fsw(&self) -> u16 {
        u16::from_le_bytes(self.get(FSW))
    }

    /// Sets the x87 status word.
    pub fn set_fsw(&mut self, value: u16) {
        self.set(FSW, value.to_le_bytes());
    }

    /// The top of the x87 stack, 0 to 7: bits 13 to 11 of the status word.
    pub fn top(&self) -> usize {
        usize::from(self.fsw() >> 11 & 7)
    }

    /// The x87 tag word in its abridged form: bit i is set if physical register i is not empty.
    pub fn ftw(&self) -> u8 {
        self.0[FTW]
    }

    /// Sets the abridged x87 tag word.
    pub fn set_ftw(&mut self, value: u8) {
        self.0[FTW] = value;
    }

    /// The opcode of the last x87 instruction, 11 bits. Many processors keep it, and the two
    /// pointers, only for an instruction that raised an unmasked exception.
    pub fn fop(&self) -> u16 {
        u16::from_le_bytes(self.get(FOP))
    }

    /// The offset of the last x87 instruction.
    pub fn fip(&self) -> u32 {
        u32::from_le_bytes(self.get(FIP))
    }

    /// The offset of the memory operand of the last x87 instruction.
    pub fn fdp(&self) -> u32 {
        u32::from_le_bytes(self.get(FDP))
    }

    /// The SSE control and status register.
    pub fn mxcsr(&self) -> u32 {
        u32::from_le_bytes(self.get(MXCSR))
    }

    /// Sets MXCSR. A run ignores bits that the processor does not have.
    pub fn set_mxcsr(&mut self, value: u32) {
        self.set(MXCSR, value.to_le_bytes());
    }

    /// Returns the bits of MXCSR that the processor has (SDM vol. 1, 11.6.6). Only an image that the
    /// processor wrote holds them.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub(crate) fn mxcsr_mask(&self) -> u32 {
        match u32::from_le_bytes(self.get(MXCSR_MASK)) {
            0 => 0x0000_ffbf,
            mask => mask,
        }
    }

    /// ST(i), i in 0 to 7, in the 80-bit memory format: 64 bits of significand, then sign and
    /// exponent.
    pub fn st(&self, i: usize) -> [u8; 10] {
        self.get(ST + 16 * (i & 7))
    }

    /// Sets ST(i); see [`Self::st`].
    pub fn set_st(&mut self, i: usize, value: [u8; 10]) {
        self.set(ST + 16 * (i & 7), value);
    }

    /// MMi, i in 0 to 7: the significand of physical register i, wherever TOP is.
    pub fn mm(&self, i: usize) -> u64 {
        u64::from_le_bytes(self.get(ST + 16 * self.st_of_physical(i)))
    }

    /// Sets MMi; see [`Self::mm`]. Leaves sign and exponent of the register as they are.
    pub fn set_mm(&mut self, i: usize, value: u64) {
        self.set(ST + 16 * self.st_of_physical(i), value.to_le_bytes());
    }

    /// The image holds the x87 registers in stack order: physical register i is
    /// ST((i - TOP) mod 8).
    fn st_of_physical(&self, i: usize) -> usize {
        i.wrapping_sub(self.top()) & 7
    }

    /// XMMi, i in 0 to 15, of which 32-bit code reaches the first eight.
    pub fn xmm(&self, i: usize) -> u128 {
        u128::from_le_bytes(self.get(XMM + 16 * (i & 15)))
    }

    /// Sets XMMi.
    pub fn set_xmm(&mut self, i: usize, value: u128) {
        self.set(XMM + 16 * (i & 15), value.to_le_bytes());
    }

    /// Copies from `start` the fields that are not registers: the MXCSR mask, and the bytes from 416 on,
    /// which FXSAVE leaves to software (the kernel puts a description of the frame there). So a NOP returns
    /// the image that it was given.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    pub(crate) fn keep_unused_of(&mut self, start: &Self) {
        self.set::<4>(MXCSR_MASK, start.get(MXCSR_MASK));
        self.0[416..].copy_from_slice(&start.0[416..]);
    }
}

impl Default for FxImage {
    fn default() -> Self {
        Self::INIT
    }
}

impl fmt::Debug for FxImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FxImage {{ fcw: {:04x}, fsw: {:04x}", self.fcw(), self.fsw())?;
        write!(f, ", ftw: {:02x}, mxcsr: {:08x}", self.ftw(), self.mxcsr())?;
        for i in 0..8 {
            let st = self.st(i);
            let exponent = u16::from_le_bytes([st[8], st[9]]);
            let significand = u64::from_le_bytes(self.get(ST + 16 * i));
            write!(f, ", st{i}: {exponent:04x}:{significand:016x}")?;
        }
        for i in 0..8 {
            write!(f, ", xmm{i}: {:032x}", self.xmm(i))?;
        }
        write!(f, " }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mmx_registers_are_physical() {
        let mut fx = FxImage::INIT;
        fx.set_fsw(3 << 11);
        fx.set_mm(3, 0x1122334455667788);
        assert_eq!(fx.st(0)[..8], 0x1122334455667788_u64.to_le_bytes());
        assert_eq!(fx.mm(3), 0x1122334455667788);
        assert_eq!(fx.mm(0), 0);
    }
}
