//! The forms that are tested, and the reasons why others are not.

use iced_x86::{Code, CpuidFeature, Mnemonic};
use ring3_hostcpu::{Cpu as HostCpu, Feature};
use ring3_x86::table;

/// The forms that are tested.
pub(crate) fn tested() -> Vec<Code> {
    let codes = table::forms().iter().map(|form| form.code);
    codes.filter(|code| why_not(*code).is_none()).collect()
}

/// Returns why a form is not tested, or None if it is.
fn why_not(code: Code) -> Option<&'static str> {
    const X87: [CpuidFeature; 3] = [CpuidFeature::FPU, CpuidFeature::FPU287, CpuidFeature::FPU387];
    if code.cpuid_features().iter().any(|feature| X87.contains(feature)) {
        return Some("the x87 has a test of its own");
    }
    if !code.cpuid_features().iter().all(|feature| host_has(*feature)) {
        return Some("the host's processor has not got it");
    }
    match code {
        Code::Jmp_ptr1616
        | Code::Jmp_ptr1632
        | Code::Jmp_m1616
        | Code::Jmp_m1632
        | Code::Call_ptr1616
        | Code::Call_ptr1632
        | Code::Call_m1616
        | Code::Call_m1632 => return Some("a far transfer could leave the 32-bit code segment"),
        Code::Popw_FS | Code::Popd_FS | Code::Popw_GS | Code::Popd_GS => {
            return Some("the host's process needs FS and GS");
        }
        _ => {}
    }
    match code.mnemonic() {
        Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd => {
            Some("a far transfer could leave the 32-bit code segment")
        }
        Mnemonic::Int | Mnemonic::Sysenter | Mnemonic::Sysexit => {
            Some("a system call of the host, or #UD on AMD")
        }
        Mnemonic::Int1 => {
            Some("on some virtual machines its own address is reported, not the next one")
        }
        Mnemonic::Lfs | Mnemonic::Lgs => Some("the host's process needs FS and GS"),
        Mnemonic::Sgdt | Mnemonic::Sidt | Mnemonic::Sldt | Mnemonic::Smsw | Mnemonic::Str => {
            Some("tells of the host, or is emulated by its kernel (UMIP)")
        }
        Mnemonic::Cpuid | Mnemonic::Rdtsc | Mnemonic::Rdtscp => Some("tells of the host"),
        _ => None,
    }
}

/// Returns whether the host's processor has an extension; a 64-bit one has all up to SSE2.
fn host_has(feature: CpuidFeature) -> bool {
    let feature = match feature {
        CpuidFeature::SSE3 => Feature::Sse3,
        CpuidFeature::SSSE3 => Feature::Ssse3,
        CpuidFeature::SSE4_1 => Feature::Sse41,
        CpuidFeature::SSE4_2 => Feature::Sse42,
        CpuidFeature::POPCNT => Feature::Popcnt,
        _ => return true,
    };
    HostCpu::detect().is_some_and(|cpu| cpu.has(feature))
}
