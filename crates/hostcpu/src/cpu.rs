//! Identifies the processor, since processors differ in results that the manual leaves undefined.

/// The maker of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// "GenuineIntel".
    Intel,
    /// "AuthenticAMD", and "HygonGenuine", which is the same design.
    Amd,
    /// Any other.
    Other,
}

/// The answers of CPUID (SDM vol. 2A, "CPUID"). Under a hypervisor some instructions may exist that CPUID
/// does not report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The maker.
    pub vendor: Vendor,
    /// Family, with the extended family added.
    pub family: u32,
    /// Model, with the extended model in bits 7 to 4.
    pub model: u32,
    /// Stepping.
    pub stepping: u32,
    /// Leaf 1, ECX.
    leaf1_ecx: u32,
    /// Leaf 1, EDX.
    leaf1_edx: u32,
    /// Leaf 7, subleaf 0, EBX.
    leaf7_ebx: u32,
    /// Leaf 8000_0001H, ECX.
    extended_ecx: u32,
}

/// The features that decide whether an instruction of 32-bit code exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manual's names; there is nothing to add")]
pub enum Feature {
    Cx8,
    Cmov,
    Mmx,
    Fxsr,
    Sse,
    Sse2,
    Sse3,
    Pclmulqdq,
    Ssse3,
    Sse41,
    Sse42,
    Movbe,
    Popcnt,
    Aes,
    Bmi1,
    Bmi2,
    /// AVX, if the operating system has enabled it; so do the others of its registers.
    Avx,
    Avx2,
    Fma,
    F16c,
    Adx,
    Sha,
    /// LZCNT; on a processor without it the same bytes are BSR.
    Lzcnt,
    /// SSE4a, of AMD.
    Sse4a,
    /// XSAVE, if the operating system has enabled it.
    Xsave,
}

/// The bits of the features that need the operating system.
const FMA: u32 = 12;
const AVX: u32 = 28;
const F16C: u32 = 29;
const AVX2: u32 = 5;

impl Cpu {
    /// Queries the present processor. Returns `None` if it does not belong to the x86 family.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Option<Self> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        let basic = __cpuid(0);
        let vendor = [basic.ebx, basic.edx, basic.ecx].map(u32::to_le_bytes);
        let vendor = match vendor.as_flattened() {
            b"GenuineIntel" => Vendor::Intel,
            b"AuthenticAMD" | b"HygonGenuine" => Vendor::Amd,
            _ => Vendor::Other,
        };
        let signature = __cpuid(1);
        let leaf7_ebx = if basic.eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let extended_ecx =
            if __cpuid(0x8000_0000).eax > 0x8000_0000 { __cpuid(0x8000_0001).ecx } else { 0 };
        let base_family = signature.eax >> 8 & 0xf;
        let extended_family = signature.eax >> 20 & 0xff;
        let mut leaf1_ecx = signature.ecx;
        let mut leaf7_ebx = leaf7_ebx;
        if !is_x86_feature_detected!("avx") {
            leaf1_ecx &= !(1 << FMA | 1 << AVX | 1 << F16C);
            leaf7_ebx &= !(1 << AVX2);
        }
        Some(Self {
            vendor,
            family: base_family + if base_family == 0xf { extended_family } else { 0 },
            model: signature.eax >> 4 & 0xf | signature.eax >> 12 & 0xf0,
            stepping: signature.eax & 0xf,
            leaf1_ecx,
            leaf1_edx: signature.edx,
            leaf7_ebx,
            extended_ecx,
        })
    }

    /// Queries the present processor. Returns `None` if it does not belong to the x86 family.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Option<Self> {
        None
    }

    /// Returns whether the processor reports `feature`.
    pub fn has(&self, feature: Feature) -> bool {
        let (word, bit) = match feature {
            Feature::Cx8 => (self.leaf1_edx, 8),
            Feature::Cmov => (self.leaf1_edx, 15),
            Feature::Mmx => (self.leaf1_edx, 23),
            Feature::Fxsr => (self.leaf1_edx, 24),
            Feature::Sse => (self.leaf1_edx, 25),
            Feature::Sse2 => (self.leaf1_edx, 26),
            Feature::Sse3 => (self.leaf1_ecx, 0),
            Feature::Pclmulqdq => (self.leaf1_ecx, 1),
            Feature::Ssse3 => (self.leaf1_ecx, 9),
            Feature::Sse41 => (self.leaf1_ecx, 19),
            Feature::Sse42 => (self.leaf1_ecx, 20),
            Feature::Movbe => (self.leaf1_ecx, 22),
            Feature::Popcnt => (self.leaf1_ecx, 23),
            Feature::Aes => (self.leaf1_ecx, 25),
            Feature::Bmi1 => (self.leaf7_ebx, 3),
            Feature::Bmi2 => (self.leaf7_ebx, 8),
            Feature::Avx => (self.leaf1_ecx, AVX),
            Feature::Avx2 => (self.leaf7_ebx, AVX2),
            Feature::Fma => (self.leaf1_ecx, FMA),
            Feature::F16c => (self.leaf1_ecx, F16C),
            Feature::Adx => (self.leaf7_ebx, 19),
            Feature::Sha => (self.leaf7_ebx, 29),
            Feature::Lzcnt => (self.extended_ecx, 5),
            Feature::Sse4a => (self.extended_ecx, 6),
            Feature::Xsave => (self.leaf1_ecx, 27),
        };
        word >> bit & 1 != 0
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_64_bit_processor_has_sse2() {
        let cpu = Cpu::detect().unwrap();
        assert!(cpu.family >= 6);
        assert!(cpu.has(Feature::Sse2) && cpu.has(Feature::Cmov) && cpu.has(Feature::Fxsr));
        assert_eq!(cpu.has(Feature::Popcnt), is_x86_feature_detected!("popcnt"));
        assert_eq!(cpu.has(Feature::Bmi2), is_x86_feature_detected!("bmi2"));
        assert_eq!(cpu.has(Feature::Lzcnt), is_x86_feature_detected!("lzcnt"));
    }
}
