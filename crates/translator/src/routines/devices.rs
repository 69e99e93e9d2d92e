//! Registers of devices that translated code reads again and again.

use std::arch::naked_asm;
use std::mem::offset_of;

use super::ask_interpreter;
use crate::context::{Context, DEVICE_READ_BITS, DeviceRead};

/// Finds what is known of the device's register at the linear address in R8D, and leaves its value in the context. R8 to R10 are used. Where nothing is known, the
/// engine is asked.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn read_device() {
    naked_asm!(
        "mov r9d, {bits}",
        "pext r9d, r8d, r9d",
        "lea r9, [r14 + r9 * 8 + {reads}]",
        "mov r10, rcx",
        // No flags change.
        "mov ecx, [r9 + {linear}]",
        "not ecx",
        "lea ecx, [rcx + r8 + 1]",
        "jrcxz 2f",
        "mov rcx, r10",
        "mov [r14 + {address}], r8d",
        "jmp {ask_interpreter}",
        "2:",
        "mov rcx, r10",
        "mov r8d, [r9 + {value}]",
        "mov [r14 + {device_value}], r8d",
        "ret",
        bits = const DEVICE_READ_BITS,
        reads = const offset_of!(Context, device_reads),
        linear = const offset_of!(DeviceRead, linear),
        value = const offset_of!(DeviceRead, value),
        address = const offset_of!(Context, device_address),
        device_value = const offset_of!(Context, device_value),
        ask_interpreter = sym ask_interpreter,
    )
}

const _: () = assert!(size_of::<DeviceRead>() == 8);
