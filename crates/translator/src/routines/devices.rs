//! Device registers that translated code reads again and again.

use std::arch::naked_asm;
use std::mem::offset_of;

use super::ask_interpreter;
use crate::context::{Context, DEVICE_READ_BITS, DeviceRead};

/// Finds the value of the device register at the linear address in R8D, and stores it in the context. If the
/// value is not known, leaves translated code to ask the engine. Uses R8 to R10.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn read_device() {
    naked_asm!(
        "mov r9d, {bits}",
        "pext r9d, r8d, r9d",
        "lea r9, [r14 + r9 * 8 + {reads}]",
        "mov r10, rcx",
        // The comparison must not change flags.
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
