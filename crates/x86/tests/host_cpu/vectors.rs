//! Sets the state for instructions on MMX and XMM registers.

use iced_x86::{Code, CpuidFeature, Mnemonic};
use ring3_hostcpu::gpr;

use crate::common::random::Random;
use crate::scene::{IntegerScene, address};

/// All exceptions of the x87, as flags or as masks.
const EXCEPTIONS: u16 = 0x3f;
/// ES and B of the x87's status word.
const SUMMARY: u16 = 0x8080;
/// The bits of MXCSR that all processors with SSE2 have, and one that none has.
const MXCSR: u32 = 0xffff;
const MXCSR_RESERVED: u32 = 1 << 16;

/// Returns whether the instruction belongs to MMX or SSE, or concerns their state.
pub(crate) fn uses_vectors(code: Code) -> bool {
    const FEATURES: [CpuidFeature; 9] = [
        CpuidFeature::MMX,
        CpuidFeature::FXSR,
        CpuidFeature::SSE,
        CpuidFeature::SSE2,
        CpuidFeature::SSE3,
        CpuidFeature::SSSE3,
        CpuidFeature::SSE4_1,
        CpuidFeature::SSE4_2,
        CpuidFeature::XSAVE,
    ];
    code.cpuid_features().iter().any(|feature| FEATURES.contains(feature))
}

/// Returns whether this is an instruction on an area of XSAVE.
pub(crate) fn is_extended(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Xsave | M::Xsave64 | M::Xrstor | M::Xrstor64)
}

/// Returns a text of few letters, which sometimes ends.
fn text(random: &mut Random) -> [u8; 4] {
    std::array::from_fn(|_| random.pick(&[0, 1, 1, 2, 2, 2, 3, 0x81]))
}

impl IntegerScene {
    /// Sets numbers in the vectors, and any state of the x87.
    pub(crate) fn set_vectors(&mut self, random: &mut Random) {
        let vectors = if self.0.bits == 64 { 16 } else { 8 };
        let fx = &mut self.0.start.fx;
        let mut status = random.bits() as u16 & !(SUMMARY | EXCEPTIONS);
        if random.percent(3) {
            // One of the exceptions is pending.
            fx.set_fcw(0x0340);
            status |= SUMMARY | random.bits() as u16 & EXCEPTIONS | 1;
        }
        fx.set_fsw(status);
        fx.set_ftw(random.bits() as u8);
        fx.set_mxcsr(random.bits() & MXCSR);
        let is_text = random.percent(20);
        for i in 0..vectors {
            let mut bytes = [0; 16];
            for dword in bytes.chunks_mut(4) {
                dword.copy_from_slice(&if is_text {
                    text(random)
                } else {
                    random.number().to_le_bytes()
                });
            }
            fx.set_xmm(i, u128::from_le_bytes(bytes));
            if i < 8 {
                bytes.rotate_left(4);
                fx.set_st(i, std::array::from_fn(|byte| bytes[byte]));
            }
        }
        if random.percent(10) {
            let (to, from) = (random.below(8) as usize, random.below(8) as usize);
            fx.set_xmm(to, fx.xmm(from));
            fx.set_mm(to, fx.mm(from));
        }
        if is_extended(self.0.instruction.mnemonic()) {
            // These are the components that our processor has.
            self.0.start.gpr[gpr::EAX] = random.pick(&[0, 1, 2, 3, 3, 3, 3, 3]);
            self.0.start.gpr[gpr::EDX] = 0;
        }
        if matches!(self.0.instruction.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu) {
            self.0.start.gpr[gpr::EDI] = address(random, self.0.bits);
        }
    }

    /// If the memory operand at `at` is an area of XSAVE, makes its header a valid one, or one that is invalid on all
    /// processors.
    pub(crate) fn poke_header(&mut self, random: &mut Random, at: u64) {
        if !is_extended(self.0.instruction.mnemonic()) {
            return;
        }
        let reserved = if random.percent(10) { 1 << 40 } else { 0 };
        let components = u64::from(random.below(4)) | reserved;
        let mask = self.0.mask();
        self.poke(at.wrapping_add(512) & mask, 8, components);
        let behind = if random.percent(10) { 1 << random.below(60) } else { 0 };
        self.poke(at.wrapping_add(520) & mask, 8, behind);
        self.poke(at.wrapping_add(528) & mask, 48, 0);
    }

    /// Returns whether this is MASKMOVQ or MASKMOVDQU with a mask in which no effective bit is set.
    pub(crate) fn masks_all_bytes(&self) -> bool {
        let fx = &self.0.start.fx;
        let register = self.0.instruction.op2_register().number();
        let mask = match self.0.instruction.mnemonic() {
            Mnemonic::Maskmovq => fx.mm(register).into(),
            Mnemonic::Maskmovdqu => fx.xmm(register),
            _ => return false,
        };
        mask.to_le_bytes().iter().all(|byte| byte & 0x80 == 0)
    }

    /// If the memory operand at `at` contains an MXCSR, makes it a valid one, or one that is invalid on all
    /// processors.
    pub(crate) fn poke_mxcsr(&mut self, random: &mut Random, at: u64) {
        let offset = match self.0.instruction.mnemonic() {
            Mnemonic::Ldmxcsr => 0,
            Mnemonic::Fxrstor | Mnemonic::Fxrstor64 | Mnemonic::Xrstor | Mnemonic::Xrstor64 => 24,
            _ => return,
        };
        let reserved = if random.percent(20) { MXCSR_RESERVED } else { 0 };
        let value = random.bits() & MXCSR | reserved;
        self.poke(at.wrapping_add(offset) & self.0.mask(), 4, value.into());
    }
}
