//! Who has made the host's processor, which decides what its instructions leave in flags that no manual defines.

use ring3_x86::undefined::Maker;

/// The maker of the host's processor: that of most, where it is another one or none of the x86 family.
#[cfg(target_arch = "x86_64")]
pub(crate) fn detect() -> Maker {
    let basic = std::arch::x86_64::__cpuid(0);
    let name = [basic.ebx, basic.edx, basic.ecx].map(u32::to_le_bytes);
    match name.as_flattened() {
        b"AuthenticAMD" | b"HygonGenuine" => Maker::Amd,
        _ => Maker::Intel,
    }
}

/// The same on other hosts, which have no translator.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn detect() -> Maker {
    Maker::default()
}
