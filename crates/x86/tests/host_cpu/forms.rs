//! The forms that are tested, and the reasons why others are not.

use iced_x86::{Code, CpuidFeature, Mnemonic};
use ring3_hostcpu::{Cpu as HostCpu, Feature};
use ring3_x86::table;

/// The forms of code of `bits` bits that are tested.
pub(crate) fn tested(bits: u32) -> Vec<Code> {
    let codes = table::forms().iter().map(|form| form.code);
    let is_tested = |code: &Code| exists(*code, bits) && why_not(*code).is_none();
    codes.filter(|code| is_tested(code) && wants_form(&format!("{code:?}"))).collect()
}

/// Returns whether the environment asks for the form with this name: `RING3_FUZZ_FORMS` is a part of it.
fn wants_form(name: &str) -> bool {
    std::env::var("RING3_FUZZ_FORMS").map_or(true, |text| name.contains(&text))
}

/// Returns whether code of `bits` bits, 32 or 64, can have the form.
fn exists(code: Code, bits: u32) -> bool {
    let form = code.op_code();
    if bits == 64 { form.mode64() && form.intel_decoder64() } else { form.mode32() }
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
        | Code::Jmp_m1664
        | Code::Call_ptr1616
        | Code::Call_ptr1632
        | Code::Call_m1616
        | Code::Call_m1632
        | Code::Call_m1664 => return Some("a far transfer could leave the 32-bit code segment"),
        Code::Popw_FS
        | Code::Popd_FS
        | Code::Popq_FS
        | Code::Popw_GS
        | Code::Popd_GS
        | Code::Popq_GS => {
            return Some("the host's process needs FS and GS");
        }
        _ => {}
    }
    match code.mnemonic() {
        Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => {
            Some("a far transfer could leave the 32-bit code segment")
        }
        Mnemonic::Int
        | Mnemonic::Sysenter
        | Mnemonic::Sysexit
        | Mnemonic::Sysexitq
        | Mnemonic::Syscall
        | Mnemonic::Sysret
        | Mnemonic::Sysretq => Some("a system call of the host, or #UD on AMD"),
        Mnemonic::Rdfsbase | Mnemonic::Rdgsbase | Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => {
            Some("the host's process needs FS, and its kernel decides about them")
        }
        Mnemonic::Int1 => {
            Some("on some virtual machines its own address is reported, not the next one")
        }
        Mnemonic::Lfs | Mnemonic::Lgs => Some("the host's process needs FS and GS"),
        Mnemonic::Sgdt | Mnemonic::Sidt | Mnemonic::Sldt | Mnemonic::Smsw | Mnemonic::Str => {
            Some("tells of the host, or is emulated by its kernel (UMIP)")
        }
        Mnemonic::Cpuid | Mnemonic::Rdtsc | Mnemonic::Rdtscp | Mnemonic::Xgetbv => {
            Some("tells of the host")
        }
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
        CpuidFeature::XSAVE => Feature::Xsave,
        CpuidFeature::AVX => Feature::Avx,
        CpuidFeature::AVX2 => Feature::Avx2,
        CpuidFeature::BMI1 => Feature::Bmi1,
        CpuidFeature::BMI2 => Feature::Bmi2,
        CpuidFeature::F16C => Feature::F16c,
        CpuidFeature::FMA => Feature::Fma,
        CpuidFeature::LZCNT => Feature::Lzcnt,
        CpuidFeature::MOVBE => Feature::Movbe,
        _ => return true,
    };
    HostCpu::detect().is_some_and(|cpu| cpu.has(feature))
}
