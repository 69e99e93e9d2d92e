//! The processor that the guest sees: CPUID (SDM vol. 2, CPUID) and the instruction-set extensions that
//! exist.
//!
//! A [`Model`] has those features of the processor of its name that are implemented; [`IMPLEMENTED`] is the
//! only list of these. CPUID, the decoder, the control registers and the MSRs all use [`Model::features`]. So
//! every feature that CPUID offers exists, and a feature that it does not offer raises #UD or #GP.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use bitflags::bitflags;
use iced_x86::CpuidFeature;
use serde::{Deserialize, Serialize};
use thiserror::Error;

bitflags! {
    /// Feature flags: EDX of CPUID leaf 1 in bits 31 to 0, ECX of leaf 1 in bits 63 to 32, EDX of leaf
    /// 80000001h in bits 95 to 64, and of leaf 7 the lower 24 bits of EBX in bits 119 to 96 and the lower 8
    /// bits of ECX in bits 127 to 120. The bits of ECX of leaf 80000001h ([`IN_ECX`]) are among those of its EDX,
    /// where they are reserved.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u128 {
        /// x87 FPU.
        const FPU = 1 << 0;
        /// Virtual-8086 mode extensions.
        const VME = 1 << 1;
        /// Debugging extensions: breakpoints on ports.
        const DE = 1 << 2;
        /// 4 MiB pages.
        const PSE = 1 << 3;
        /// RDTSC.
        const TSC = 1 << 4;
        /// RDMSR and WRMSR.
        const MSR = 1 << 5;
        /// Physical address extension: 36 bits of physical addresses, and 2 MiB pages.
        const PAE = 1 << 6;
        /// Machine-check exception.
        const MCE = 1 << 7;
        /// CMPXCHG8B.
        const CX8 = 1 << 8;
        /// Local APIC, as long as IA32_APIC_BASE enables it.
        const APIC = 1 << 9;
        /// SYSENTER and SYSEXIT.
        const SEP = 1 << 11;
        /// Memory type range registers.
        const MTRR = 1 << 12;
        /// Global pages.
        const PGE = 1 << 13;
        /// Machine-check architecture.
        const MCA = 1 << 14;
        /// CMOVcc, and FCMOVcc and FCOMI.
        const CMOV = 1 << 15;
        /// Page attribute table.
        const PAT = 1 << 16;
        /// 36 bits of physical addresses in the entries of 4 MiB pages.
        const PSE36 = 1 << 17;
        /// CLFLUSH.
        const CLFSH = 1 << 19;
        /// MMX.
        const MMX = 1 << 23;
        /// FXSAVE and FXRSTOR.
        const FXSR = 1 << 24;
        /// SSE.
        const SSE = 1 << 25;
        /// SSE2.
        const SSE2 = 1 << 26;
        /// SSE3.
        const SSE3 = 1 << 32;
        /// SSSE3.
        const SSSE3 = 1 << (32 + 9);
        /// SSE4.1.
        const SSE4_1 = 1 << (32 + 19);
        /// SSE4.2.
        const SSE4_2 = 1 << (32 + 20);
        /// Fused multiplication and addition.
        const FMA = 1 << (32 + 12);
        /// CMPXCHG16B.
        const CX16 = 1 << (32 + 13);
        /// MOVBE.
        const MOVBE = 1 << (32 + 22);
        /// POPCNT.
        const POPCNT = 1 << (32 + 23);
        /// XSAVE and XRSTOR, XGETBV and XSETBV.
        const XSAVE = 1 << (32 + 26);
        /// AVX: vectors of 256 bits.
        const AVX = 1 << (32 + 28);
        /// Conversions of numbers of 16 bits.
        const F16C = 1 << (32 + 29);
        /// LAHF and SAHF in 64-bit mode.
        const LAHF = 1 << 64;
        /// LZCNT.
        const LZCNT = 1 << (64 + 5);
        /// SYSCALL and SYSRET, which on Intel's processors exist in 64-bit mode only.
        const SYSCALL = 1 << (64 + 11);
        /// Pages from which no instruction can be fetched.
        const NX = 1 << (64 + 20);
        /// 1 GiB pages.
        const PAGE_1_GIB = 1 << (64 + 26);
        /// Long mode.
        const LM = 1 << (64 + 29);
        /// RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE.
        const FSGSBASE = 1 << 96;
        /// ANDN, BEXTR, BLSI, BLSMSK, BLSR and TZCNT.
        const BMI1 = 1 << (96 + 3);
        /// Integer vectors of 256 bits.
        const AVX2 = 1 << (96 + 5);
        /// BZHI, MULX, PDEP, PEXT, RORX, SARX, SHLX and SHRX.
        const BMI2 = 1 << (96 + 8);
        /// Supervisor code cannot be fetched from user pages.
        const SMEP = 1 << (96 + 7);
        /// Supervisor code cannot access data in user pages, except while EFLAGS.AC is set; CLAC and STAC.
        const SMAP = 1 << (96 + 20);
        /// RDTSCP and IA32_TSC_AUX.
        const RDTSCP = 1 << (64 + 27);
        /// User-mode instruction prevention.
        const UMIP = 1 << (120 + 2);
    }
}

/// The features that are implemented. Adding one here gives it to all models that had it.
const IMPLEMENTED: Features = Features::FPU
    .union(Features::VME)
    .union(Features::DE)
    .union(Features::PSE)
    .union(Features::TSC)
    .union(Features::MSR)
    .union(Features::PAE)
    .union(Features::MCE)
    .union(Features::CX8)
    .union(Features::APIC)
    .union(Features::SEP)
    .union(Features::MTRR)
    .union(Features::PGE)
    .union(Features::MCA)
    .union(Features::CMOV)
    .union(Features::PAT)
    .union(Features::PSE36)
    .union(Features::CLFSH)
    .union(Features::MMX)
    .union(Features::FXSR)
    .union(Features::SSE)
    .union(Features::SSE2)
    .union(Features::SSE3)
    .union(Features::SSSE3)
    .union(Features::SSE4_1)
    .union(Features::SSE4_2)
    .union(Features::POPCNT)
    .union(Features::NX)
    .union(Features::RDTSCP)
    .union(Features::SMEP)
    .union(Features::SMAP)
    .union(Features::UMIP)
    .union(Features::XSAVE)
    .union(LONG_MODE)
    .union(LEVEL_3);

/// The features of processors with long mode.
const LONG_MODE: Features = Features::CX16
    .union(Features::LAHF)
    .union(Features::SYSCALL)
    .union(Features::PAGE_1_GIB)
    .union(Features::LM)
    .union(Features::FSGSBASE);

/// The features of the level x86-64-v3 that earlier ones lack. With them CPUID shows CR4.OSXSAVE.
const LEVEL_3: Features = Features::AVX
    .union(Features::AVX2)
    .union(Features::BMI1)
    .union(Features::BMI2)
    .union(Features::F16C)
    .union(Features::FMA)
    .union(Features::LZCNT)
    .union(Features::MOVBE);

/// The features that ECX of leaf 80000001h tells of.
const IN_ECX: Features = Features::LAHF.union(Features::LZCNT);

/// A processor model. Later models are greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Model {
    /// `486`: an Intel486 DX4, which has CPUID and little else.
    I486,
    /// `pentium`: a Pentium with MMX.
    Pentium,
    /// `pentium3`: a Pentium III.
    Pentium3,
    /// `pentium4`: a Pentium 4 with SSE3 and execute-disable, in its 32-bit modes.
    Pentium4,
    /// `max`: everything that is implemented, without long mode.
    #[default]
    Max,
    /// `qemu64`: the same with long mode.
    Qemu64,
    /// `x86-64-v2`: the same with XSAVE, which is more than the level of this name that compilers know.
    #[allow(non_camel_case_types, reason = "it is the name of a level")]
    X86_64_V2,
    /// `x86-64-v3`: the same with AVX and AVX2, the instructions for bits of BMI1 and BMI2, and what else compilers
    /// call by this name.
    #[allow(non_camel_case_types, reason = "it is the name of a level")]
    X86_64_V3,
}

/// CPUID's four registers: EAX, EBX, ECX, EDX.
pub type Leaf = [u32; 4];

/// The error for a name that no processor model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("give one of 486, pentium, pentium3, pentium4, max, qemu64, x86-64-v2 and x86-64-v3")]
pub struct UnknownModel;

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Model, UnknownModel> {
        Model::ALL.into_iter().find(|model| model.name() == name).ok_or(UnknownModel)
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The leaf about XSAVE, and its sub-leaf about the upper halves of the vectors of AVX: component 2.
pub(crate) const EXTENDED_STATES: u32 = 13;
const UPPER_HALVES: u32 = 2;
/// The offset of these in the area of XSAVE, behind the image of FXSAVE and the header, and their size.
pub(crate) const STATE_OFFSET: u32 = 512 + 64;
pub(crate) const STATE_SIZE: u32 = 16 * 16;

/// The first extended leaf.
const EXTENDED: u32 = 0x8000_0000;

/// The leaves in which a guest looks for long mode: it tests whether the second one exists, and its bit 29 of
/// EDX.
pub(crate) const ABOUT_LONG_MODE: RangeInclusive<u32> = EXTENDED..=EXTENDED + 1;

impl Model {
    /// All models, the oldest first.
    pub const ALL: [Model; 8] = [
        Model::I486,
        Model::Pentium,
        Model::Pentium3,
        Model::Pentium4,
        Model::Max,
        Model::Qemu64,
        Model::X86_64_V2,
        Model::X86_64_V3,
    ];

    /// Returns the name by which users choose it.
    pub const fn name(self) -> &'static str {
        match self {
            Model::I486 => "486",
            Model::Pentium => "pentium",
            Model::Pentium3 => "pentium3",
            Model::Pentium4 => "pentium4",
            Model::Max => "max",
            Model::Qemu64 => "qemu64",
            Model::X86_64_V2 => "x86-64-v2",
            Model::X86_64_V3 => "x86-64-v3",
        }
    }

    /// Returns whether it has long mode, and so 64-bit code.
    pub const fn has_long_mode(self) -> bool {
        self.features().contains(Features::LM)
    }

    /// Returns family, model and stepping as CPUID leaf 1 returns them in EAX, and as EDX holds them after
    /// reset (SDM vol. 2, figure 3-6). The signature of `max` is that of the first processors with SSE4.2.
    /// Later processors, which introduced its other features, had flaws and counters that systems expect when
    /// they see their numbers.
    pub const fn signature(self) -> u32 {
        match self {
            Model::I486 => 0x0000_0480,
            Model::Pentium => 0x0000_0543,
            Model::Pentium3 => 0x0000_0686,
            Model::Pentium4 => 0x0000_0f41,
            Model::Max | Model::Qemu64 | Model::X86_64_V2 | Model::X86_64_V3 => 0x0001_06a5,
        }
    }

    /// Returns the family: 4 for the 486, 6 for the P6 family, 15 for the Pentium 4.
    pub(crate) const fn family(self) -> u32 {
        self.signature() >> 8 & 0xf
    }

    /// Returns the features that the processor of this name had and that are implemented.
    pub const fn features(self) -> Features {
        IMPLEMENTED.intersection(self.historical_features())
    }

    /// Returns the features that the processor of this name had.
    const fn historical_features(self) -> Features {
        match self {
            Model::I486 => Features::FPU.union(Features::VME),
            Model::Pentium => Model::I486
                .historical_features()
                .union(Features::DE)
                .union(Features::PSE)
                .union(Features::TSC)
                .union(Features::MSR)
                .union(Features::MCE)
                .union(Features::CX8)
                .union(Features::APIC)
                .union(Features::MMX),
            Model::Pentium3 => Model::Pentium
                .historical_features()
                .union(Features::PAE)
                .union(Features::SEP)
                .union(Features::MTRR)
                .union(Features::PGE)
                .union(Features::MCA)
                .union(Features::CMOV)
                .union(Features::PAT)
                .union(Features::PSE36)
                .union(Features::FXSR)
                .union(Features::SSE),
            Model::Pentium4 => Model::Pentium3
                .historical_features()
                .union(Features::CLFSH)
                .union(Features::SSE2)
                .union(Features::SSE3)
                .union(Features::NX),
            Model::Max => Model::Qemu64.historical_features().difference(LONG_MODE),
            Model::Qemu64 => Model::X86_64_V2.historical_features().difference(Features::XSAVE),
            Model::X86_64_V2 => Features::all().difference(LEVEL_3),
            Model::X86_64_V3 => Features::all(),
        }
    }

    /// Bits of a physical address (SDM vol. 3, 5.1.4).
    pub const fn physical_address_bits(self) -> u32 {
        let features = self.features();
        if self.has_long_mode() {
            return 40;
        }
        if features.contains(Features::PAE) || features.contains(Features::PSE36) { 36 } else { 32 }
    }

    /// Returns how many performance counters RDPMC can read (SDM vol. 2, RDPMC). They exist on models with
    /// the instruction, but never count anything. `max` has none: processors of its kind announce theirs in a
    /// CPUID leaf that it lacks.
    pub(crate) const fn performance_counters(self) -> u32 {
        match self {
            Model::I486 | Model::Max | Model::Qemu64 | Model::X86_64_V2 | Model::X86_64_V3 => 0,
            Model::Pentium | Model::Pentium3 => 2,
            Model::Pentium4 => 18,
        }
    }

    /// Returns whether opcode 0F 0D, by which other processors prefetch data, is a NOP, as on all of Intel's
    /// processors since those with 64-bit extensions. On earlier ones it was undefined.
    pub(crate) const fn ignores_prefetches(self) -> bool {
        !matches!(self, Model::I486 | Model::Pentium | Model::Pentium3)
    }

    /// Returns the last basic leaf of CPUID.
    const fn last_leaf(self) -> u32 {
        match self {
            Model::I486 | Model::Pentium => 1,
            Model::Pentium3 | Model::Pentium4 => 2,
            Model::Max | Model::Qemu64 => 7,
            Model::X86_64_V2 | Model::X86_64_V3 => EXTENDED_STATES,
        }
    }

    /// Returns whether IA32_ARCH_CAPABILITIES exists, which lists flaws that the processor does not have.
    pub(crate) const fn tells_of_flaws(self) -> bool {
        matches!(self, Model::Max | Model::Qemu64 | Model::X86_64_V2 | Model::X86_64_V3)
    }

    /// Returns the last extended leaf of CPUID, or None on processors without such leaves.
    const fn last_extended_leaf(self) -> Option<u32> {
        match self {
            Model::I486 | Model::Pentium | Model::Pentium3 => None,
            _ => Some(EXTENDED + 8),
        }
    }

    /// Returns the processor's name in the extended leaves.
    const fn brand(self) -> &'static str {
        match self {
            Model::I486 | Model::Pentium | Model::Pentium3 => "",
            Model::Pentium4 => "Intel(R) Pentium(R) 4 CPU",
            _ => "ring3 virtual CPU",
        }
    }

    /// Returns the result of CPUID for `leaf`. As on Intel's processors, a leaf past the last one gives the
    /// last basic one. Without `has_apic`, the local APIC is switched off (SDM vol. 3, 12.4.3).
    pub fn leaf(self, leaf: u32, has_apic: bool) -> Leaf {
        match self.last_extended_leaf() {
            Some(last) if (EXTENDED..=last).contains(&leaf) => self.extended_leaf(leaf, last),
            _ => self.basic_leaf(leaf.min(self.last_leaf()), has_apic),
        }
    }

    /// Returns whether CR4 exists. Processors without any feature to enable in it had none.
    pub fn has_cr4(self) -> bool {
        self.features().intersects(Features::VME | Features::TSC)
    }

    /// Returns the state components that XCR0 may have: the x87, SSE and AVX.
    pub(crate) const fn state_components(self) -> u64 {
        if self.features().contains(Features::AVX) { 7 } else { 3 }
    }

    /// Returns the result of CPUID for sub-leaf `sub_leaf`, which is not 0, of a leaf that [has
    /// some](Model::has_sub_leaf).
    pub(crate) fn sub_leaf(self, leaf: u32, sub_leaf: u32) -> Leaf {
        let has_upper_halves = self.features().contains(Features::AVX);
        match (leaf, sub_leaf) {
            (EXTENDED_STATES, UPPER_HALVES) if has_upper_halves => [STATE_SIZE, STATE_OFFSET, 0, 0],
            _ => [0; 4],
        }
    }

    /// Returns the size of the area of XSAVE for these state components.
    pub(crate) const fn state_size(components: u64) -> u32 {
        STATE_OFFSET + if components >> UPPER_HALVES & 1 != 0 { STATE_SIZE } else { 0 }
    }

    /// Returns whether the result of CPUID for `leaf` depends on ECX.
    pub fn has_sub_leaf(self, leaf: u32) -> bool {
        matches!(leaf, 7 | EXTENDED_STATES) && leaf <= self.last_leaf()
    }

    fn basic_leaf(self, leaf: u32, has_apic: bool) -> Leaf {
        let name = |part: &[u8; 4]| u32::from_le_bytes(*part);
        match leaf {
            0 => [self.last_leaf(), name(b"Genu"), name(b"ntel"), name(b"ineI")],
            1 => {
                let off = if has_apic { Features::empty() } else { Features::APIC };
                let features = self.features().difference(off);
                let (edx, ecx) = (word(features, 0), word(features, 32));
                // The Pentium III indicates its name by a number (SDM vol. 2, table 3-14).
                let brand = if self == Model::Pentium3 { 2 } else { 0 };
                // The size is in units of 8 bytes.
                let clflush_line = if features.contains(Features::CLFSH) { 8 } else { 0 };
                [self.signature(), clflush_line << 8 | brand, ecx, edx]
            }
            // There are no leaves of cache parameters (4), MONITOR (5), power management (6), direct cache access
            // (9), performance counters (10) and topology (11), and leaves 3, 8 and 12 are empty.
            3..=6 | 8..=12 => [0; 4],
            // The components in XCR0, and the size of the area of XSAVE, with those that XCR0 has now and with all.
            EXTENDED_STATES => {
                let all = self.state_components();
                [all as u32, STATE_OFFSET, Model::state_size(all), 0]
            }
            // The x87 notes only the operands of unmasked exceptions.
            7 => {
                let word = word(self.features(), 96);
                let (ebx, ecx) = (word & 0xff_ffff, word >> 24);
                [0, ebx | 1 << 6, ecx, u32::from(self.tells_of_flaws()) << 29]
            }
            // Descriptors of TLBs and caches (SDM vol. 2, table 3-12), those of the real processors.
            _ => match self {
                Model::Pentium3 => [0x0302_0101, 0, 0, 0x0c04_0882],
                _ => [0x605b_5001, 0, 0, 0x007d_7040],
            },
        }
    }

    fn extended_leaf(self, leaf: u32, last: u32) -> Leaf {
        match leaf - EXTENDED {
            0 => [last, 0, 0, 0],
            1 => {
                let in_ecx = self.features().intersection(IN_ECX);
                let in_edx = self.features().difference(IN_ECX);
                [0, 0, word(in_ecx, 64), word(in_edx, 64)]
            }
            part @ 2..=4 => {
                // 48 bytes, 16 in each of the three leaves.
                let mut text = [0; 48];
                text[..self.brand().len()].copy_from_slice(self.brand().as_bytes());
                let start = (part as usize - 2) * 16;
                std::array::from_fn(|register| {
                    let at = start + register * 4;
                    u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]])
                })
            }
            // The second-level cache of leaf 2: lines of 64 bytes, 8 ways, 2 MiB.
            6 => [0, 0, 0x0800_6040, 0],
            // Number of bits of physical and of linear addresses.
            8 => {
                let linear_address_bits = if self.has_long_mode() { 48 } else { 32 };
                [linear_address_bits << 8 | self.physical_address_bits(), 0, 0, 0]
            }
            _ => [0; 4],
        }
    }

    /// Returns whether the instruction-set extension `feature` exists on this model. If CPUID does not offer
    /// it, its instructions raise #UD.
    pub fn has(self, feature: CpuidFeature) -> bool {
        let flag = match feature {
            CpuidFeature::INTEL8086
            | CpuidFeature::INTEL8086_ONLY
            | CpuidFeature::INTEL186
            | CpuidFeature::INTEL286
            | CpuidFeature::INTEL386
            | CpuidFeature::INTEL486
            | CpuidFeature::CPUID
            // PAUSE is a NOP with a prefix that older processors ignore.
            | CpuidFeature::PAUSE => return true,
            CpuidFeature::MULTIBYTENOP => return self.family() >= 6,
            CpuidFeature::RDPMC => return self.family() >= 5,
            CpuidFeature::FPU | CpuidFeature::FPU287 | CpuidFeature::FPU387 => Features::FPU,
            CpuidFeature::TSC => Features::TSC,
            CpuidFeature::MSR => Features::MSR,
            CpuidFeature::CX8 => Features::CX8,
            CpuidFeature::SEP => Features::SEP,
            CpuidFeature::CMOV => Features::CMOV,
            CpuidFeature::CLFSH => Features::CLFSH,
            CpuidFeature::MMX => Features::MMX,
            CpuidFeature::FXSR => Features::FXSR,
            CpuidFeature::SSE => Features::SSE,
            CpuidFeature::SSE2 => Features::SSE2,
            CpuidFeature::SSE3 => Features::SSE3,
            CpuidFeature::SSSE3 => Features::SSSE3,
            CpuidFeature::SSE4_1 => Features::SSE4_1,
            CpuidFeature::SSE4_2 => Features::SSE4_2,
            CpuidFeature::POPCNT => Features::POPCNT,
            CpuidFeature::RDTSCP => Features::RDTSCP,
            CpuidFeature::SMAP => Features::SMAP,
            CpuidFeature::X64 => Features::LM,
            CpuidFeature::CMPXCHG16B => Features::CX16,
            CpuidFeature::FSGSBASE => Features::FSGSBASE,
            CpuidFeature::SYSCALL => Features::SYSCALL,
            CpuidFeature::XSAVE => Features::XSAVE,
            CpuidFeature::AVX => Features::AVX,
            CpuidFeature::AVX2 => Features::AVX2,
            CpuidFeature::BMI1 => Features::BMI1,
            CpuidFeature::BMI2 => Features::BMI2,
            CpuidFeature::F16C => Features::F16C,
            CpuidFeature::FMA => Features::FMA,
            CpuidFeature::LZCNT => Features::LZCNT,
            CpuidFeature::MOVBE => Features::MOVBE,
            _ => return false,
        };
        self.features().contains(flag)
    }
}

/// Returns the 32 feature flags from bit `first` on.
fn word(features: Features, first: u32) -> u32 {
    (features.bits() >> first) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn vendor_is_spelled_in_ebx_edx_ecx() {
        for model in Model::ALL {
            let [_, ebx, ecx, edx] = model.leaf(0, true);
            assert_eq!(text([ebx, edx, ecx]), b"GenuineIntel");
        }
    }

    #[test]
    fn features_that_cpuid_does_not_offer_do_not_exist() {
        use CpuidFeature as F;
        let flags = [
            (F::FMA, 2, 12),
            (F::MOVBE, 2, 22),
            (F::AVX, 2, 28),
            (F::F16C, 2, 29),
            (F::TSC, 3, 4),
            (F::MSR, 3, 5),
            (F::CX8, 3, 8),
            (F::SEP, 3, 11),
            (F::CMOV, 3, 15),
            (F::MMX, 3, 23),
            (F::FXSR, 3, 24),
            (F::SSE, 3, 25),
            (F::SSE2, 3, 26),
            (F::SSE3, 2, 0),
            (F::SSSE3, 2, 9),
            (F::SSE4_1, 2, 19),
            (F::SSE4_2, 2, 20),
            (F::POPCNT, 2, 23),
            (F::XSAVE, 2, 26),
        ];
        for model in Model::ALL {
            for (feature, register, bit) in flags {
                let offered = model.leaf(1, true)[register] >> bit & 1 != 0;
                assert_eq!(model.has(feature), offered, "{model}: {feature:?}");
            }
        }
    }

    #[test]
    fn newer_models_have_more() {
        for pair in Model::ALL.windows(2) {
            assert!(pair[1].historical_features().contains(pair[0].historical_features()));
        }
        assert!(!Model::I486.has(CpuidFeature::CMOV));
        assert!(!Model::I486.has(CpuidFeature::TSC));
        assert!(!Model::Pentium.has(CpuidFeature::MULTIBYTENOP));
        assert_eq!(Model::Max.features(), Model::Qemu64.features().difference(LONG_MODE));
        assert_eq!(Model::X86_64_V3.features(), IMPLEMENTED);
        assert_eq!(Model::X86_64_V2.features(), IMPLEMENTED.difference(LEVEL_3));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for model in Model::ALL {
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        assert_eq!("Pentium".parse::<Model>(), Err(UnknownModel));
    }

    #[test]
    fn leaves_past_the_last_give_the_last_basic_one() {
        assert_eq!(Model::I486.leaf(2, true), Model::I486.leaf(1, true));
        assert_eq!(Model::Pentium3.leaf(0x8000_0000, true), Model::Pentium3.leaf(2, true));
        assert_eq!(Model::Max.leaf(0x8000_0009, true), Model::Max.leaf(7, true));
        assert_eq!(Model::Max.leaf(0xffff_ffff, true), Model::Max.leaf(7, true));
    }

    #[test]
    fn the_brand_is_spelled_in_three_leaves() {
        let leaves = (0x8000_0002..=0x8000_0004).flat_map(|leaf| Model::Pentium4.leaf(leaf, true));
        let text = text(leaves);
        assert_eq!(text.len(), 48);
        assert!(text.starts_with(b"Intel(R) Pentium(R) 4 CPU\0"));
    }
}
