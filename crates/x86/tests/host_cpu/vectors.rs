//! Sets the state for instructions on MMX and XMM registers.

use iced_x86::{Code, CpuidFeature, Instruction, Mnemonic, OpCodeOperandKind as Kind};
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
/// The masks in MXCSR.
const MXCSR_MASKS: u32 = 0x1f80;

/// Returns whether the instruction belongs to MMX or SSE, or concerns their state.
pub(crate) fn uses_vectors(code: Code) -> bool {
    const FEATURES: [CpuidFeature; 13] = [
        CpuidFeature::MMX,
        CpuidFeature::FXSR,
        CpuidFeature::SSE,
        CpuidFeature::SSE2,
        CpuidFeature::SSE3,
        CpuidFeature::SSSE3,
        CpuidFeature::SSE4_1,
        CpuidFeature::SSE4_2,
        CpuidFeature::XSAVE,
        CpuidFeature::AVX,
        CpuidFeature::AVX2,
        CpuidFeature::F16C,
        CpuidFeature::FMA,
    ];
    code.cpuid_features().iter().any(|feature| FEATURES.contains(feature))
}

/// Returns whether this is an instruction on an area of XSAVE.
pub(crate) fn is_extended(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Xsave | M::Xsave64 | M::Xrstor | M::Xrstor64)
}

/// Returns whether this is an instruction that loads elements from places that a vector of indices gives.
pub(crate) fn is_gather(instruction: &Instruction) -> bool {
    let index = instruction.memory_index();
    index.is_xmm() || index.is_ymm()
}

/// Floating-point numbers at the edges of their classes, and NaNs of both kinds (SDM vol. 1, 4.8.3).
const SINGLES: [u32; 22] = [
    0,
    0x8000_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7f80_0001,
    0xff87_6543,
    0x7fbf_ffff,
    0x7fc0_0000,
    0xffc0_1234,
    0x7fff_ffff,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x4b00_0001,
    0x4f00_0000,
    0xcf00_0000,
    0x7f7f_ffff,
    0xff7f_fffe,
    0x0080_0000,
    0x8080_0001,
    0x007f_ffff,
    0x8000_0001,
];

/// The same of double precision.
const DOUBLES: [u64; 22] = [
    0,
    0x8000_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff0_0000_0000_0001,
    0xfff0_1234_5678_9abc,
    0x7ff7_ffff_ffff_ffff,
    0x7ff8_0000_0000_0000,
    0xfff8_0000_0000_1234,
    0x7fff_ffff_ffff_ffff,
    0x3ff0_0000_0000_0000,
    0xbff0_0000_0000_0000,
    0x3ff0_0000_0000_0001,
    0x4330_0000_0000_0001,
    0x41e0_0000_0000_0000,
    0xc3e0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_fffe,
    0x0010_0000_0000_0000,
    0x8010_0000_0000_0001,
    0x000f_ffff_ffff_ffff,
    0x8000_0000_0000_0001,
];

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
        if random.percent(30) {
            // Nothing is unmasked, so that there is a result.
            fx.set_mxcsr(fx.mxcsr() | MXCSR_MASKS);
        }
        let kind = random.below(10);
        for i in 0..vectors {
            let mut bytes = [0; 16];
            for qword in bytes.chunks_mut(8) {
                let value = match kind {
                    0 | 1 => [(); 2].map(|()| text(random)).concat(),
                    2 => [(); 2].map(|()| random.pick(&SINGLES).to_le_bytes()).concat(),
                    3 => random.pick(&DOUBLES).to_le_bytes().to_vec(),
                    _ => [(); 2].map(|()| random.number().to_le_bytes()).concat(),
                };
                qword.copy_from_slice(&value);
            }
            fx.set_xmm(i, u128::from_le_bytes(bytes));
            self.0.start.upper[i] =
                u128::from_le_bytes(bytes).rotate_left(32 * random.below(4) + 8);
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
            self.0.start.gpr[gpr::EAX] = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 7, 7]);
            self.0.start.gpr[gpr::EDX] = 0;
        }
        if is_gather(&self.0.instruction) {
            self.set_indices(random);
        }
        if matches!(
            self.0.instruction.mnemonic(),
            Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu
        ) {
            self.0.start.gpr[gpr::EDI] = address(random, self.0.bits);
        }
    }

    /// Makes the indices of a gather numbers that mostly lead into the data region.
    fn set_indices(&mut self, random: &mut Random) {
        let number = self.0.instruction.memory_index().number();
        let kinds = self.0.instruction.op_code().op_kind(1);
        let is_short = matches!(kinds, Kind::mem_vsib32x | Kind::mem_vsib32y);
        let bits = if is_short { 32 } else { 64 };
        let mut indices = [0_u128; 2];
        for at in (0..256).step_by(bits) {
            let far = if random.percent(10) { random.bits() } else { random.below(64) };
            let index = if random.percent(30) { -i64::from(far as i32) } else { far.into() };
            let element = index as u64 & (u64::MAX >> (64 - bits));
            indices[at / 128] |= u128::from(element) << (at % 128);
        }
        self.0.start.fx.set_xmm(number, indices[0]);
        self.0.start.upper[number] = indices[1];
    }

    /// If the memory operand at `at` is an area of XSAVE, makes its header a valid one, or one that is invalid on all
    /// processors.
    pub(crate) fn poke_header(&mut self, random: &mut Random, at: u64) {
        if !is_extended(self.0.instruction.mnemonic()) {
            return;
        }
        let reserved = if random.percent(10) { 1 << 40 } else { 0 };
        let components = u64::from(random.below(8)) | reserved;
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
            Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => fx.xmm(register),
            _ => return false,
        };
        mask.to_le_bytes().iter().all(|byte| byte & 0x80 == 0)
    }

    /// If the memory operand at `at` contains an MXCSR, makes it a valid one, or one that is invalid on all
    /// processors.
    pub(crate) fn poke_mxcsr(&mut self, random: &mut Random, at: u64) {
        let offset = match self.0.instruction.mnemonic() {
            Mnemonic::Ldmxcsr | Mnemonic::Vldmxcsr => 0,
            Mnemonic::Fxrstor | Mnemonic::Fxrstor64 | Mnemonic::Xrstor | Mnemonic::Xrstor64 => 24,
            _ => return,
        };
        let reserved = if random.percent(20) { MXCSR_RESERVED } else { 0 };
        let value = random.bits() & MXCSR | reserved;
        self.poke(at.wrapping_add(offset) & self.0.mask(), 4, value.into());
    }
}
