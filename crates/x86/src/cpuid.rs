//! Which processor this is to the guest: CPUID (SDM vol. 2, CPUID) and the instruction-set
//! extensions that exist.

use bitflags::bitflags;
use iced_x86::CpuidFeature;
use serde::{Deserialize, Serialize};

bitflags! {
    /// Feature flags of CPUID leaf 1, EDX.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u32 {
        /// x87 FPU.
        const FPU = 1 << 0;
        /// 4 MiB pages.
        const PSE = 1 << 3;
        /// RDTSC.
        const TSC = 1 << 4;
        /// RDMSR and WRMSR.
        const MSR = 1 << 5;
        /// CMPXCHG8B.
        const CX8 = 1 << 8;
        /// SYSENTER and SYSEXIT.
        const SEP = 1 << 11;
        /// Global pages.
        const PGE = 1 << 13;
        /// CMOVcc, and FCMOVcc and FCOMI.
        const CMOV = 1 << 15;
    }
}

/// A processor model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Model {
    /// The P6 family without MMX: what is implemented now, and no more.
    #[default]
    PentiumPro,
}

/// CPUID's four registers: EAX, EBX, ECX, EDX.
pub type Leaf = [u32; 4];

impl Model {
    /// Family, model and stepping as CPUID leaf 1 has them in EAX, and EDX
    /// after reset.
    ///
    /// That of the model here is the first one whose SEP flag software believes (SDM
    /// vol. 2, SYSENTER).
    pub const fn signature(self) -> u32 {
        match self {
            Model::PentiumPro => 0x0000_0633,
        }
    }

    /// What it can.
    pub const fn features(self) -> Features {
        match self {
            Model::PentiumPro => Features::all(),
        }
    }

    /// What CPUID answers for `leaf`; as on Intel's processors, a leaf past the last one gives the last.
    pub fn leaf(self, leaf: u32) -> Leaf {
        const LAST: u32 = 1;
        match leaf {
            0 => {
                let name = |part: &[u8; 4]| u32::from_le_bytes(*part);
                [LAST, name(b"Genu"), name(b"ntel"), name(b"ineI")]
            }
            _ => [self.signature(), 0, 0, self.features().bits()],
        }
    }

    /// True when the instruction-set extension `feature` exists on this model: what does
    /// not is #UD, exactly as CPUID promises.
    pub fn has(self, feature: CpuidFeature) -> bool {
        let features = self.features();
        match feature {
            CpuidFeature::INTEL8086
            | CpuidFeature::INTEL8086_ONLY
            | CpuidFeature::INTEL186
            | CpuidFeature::INTEL286
            | CpuidFeature::INTEL386
            | CpuidFeature::INTEL486
            | CpuidFeature::CPUID
            | CpuidFeature::MULTIBYTENOP
            // PAUSE is a NOP with a prefix that older processors ignore.
            | CpuidFeature::PAUSE => true,
            CpuidFeature::FPU
            | CpuidFeature::FPU287
            | CpuidFeature::FPU387 => features.contains(Features::FPU),
            CpuidFeature::TSC => features.contains(Features::TSC),
            CpuidFeature::MSR => features.contains(Features::MSR),
            CpuidFeature::CX8 => features.contains(Features::CX8),
            CpuidFeature::SEP => features.contains(Features::SEP),
            CpuidFeature::CMOV => features.contains(Features::CMOV),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_is_spelled_in_ebx_edx_ecx() {
        let [_, ebx, ecx, edx] = Model::PentiumPro.leaf(0);
        let text: Vec<u8> = [ebx, edx, ecx].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(text, b"GenuineIntel");
    }

    #[test]
    fn what_cpuid_does_not_offer_does_not_exist() {
        assert!(!Model::PentiumPro.has(CpuidFeature::SSE2));
        assert!(!Model::PentiumPro.has(CpuidFeature::MMX));
        assert!(Model::PentiumPro.has(CpuidFeature::CMOV));
    }
}
