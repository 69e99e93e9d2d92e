//! Far transfers of real mode and virtual-8086 mode.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::segment::sreg;

use super::{ask_interpreter, jump_by_table, numeric_ask};
use crate::context::{Context, FAR_BITS, FarMode, View};

/// Finds the jump table for code with the selector in R9D: it is in R10. R8 is used. Where it is not known, or numeric registers are in use, of whose last instruction
/// the selector of CS is to be known, the interpreter executes the instruction.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_find() {
    naked_asm!(
        "rorx r10d, r9d, 8",
        "lea r10d, [r10 + r9]",
        "mov r8d, {bits}",
        "pext r10d, r10d, r8d",
        "lea r10, [r10 * 8]",
        "lea r10, [r14 + r10 * 2 + {modes}]",
        "mov r8, rcx",
        "mov ecx, [r14 + {numeric_is_live}]",
        "jrcxz 2f",
        "jmp 3f",
        "2:",
        "mov ecx, [r10 + {selector}]",
        // No flags change.
        "not ecx",
        "lea ecx, [rcx + r9 + 1]",
        "jrcxz 4f",
        "3:",
        "mov rcx, r8",
        "jmp {ask_interpreter}",
        "4:",
        "mov rcx, r8",
        "mov r10, [r10 + {table}]",
        "ret",
        bits = const FAR_BITS,
        modes = const offset_of!(Context, far_modes),
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        selector = const offset_of!(FarMode, selector),
        table = const offset_of!(FarMode, table),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Goes on at the guest address in R8D in the segment of code whose selector is in R9D and whose jump table is in R10.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_go() {
    naked_asm!(
        "mov [r14 + {selector}], r9w",
        "rorx r9d, r9d, 32 - 4",
        "mov [r14 + {base}], r9d",
        "mov dword ptr [r14 + {has_gone_far}], 1",
        // The addresses of numeric instructions have another selector.
        "lea r9, [rip + {numeric_ask}]",
        "mov [r14 + {numeric_check}], r9",
        "mov r13, r10",
        // What has an address in one segment has another one in the other.
        "mov rsp, [r14 + {no_returns}]",
        "jmp {jump_by_table}",
        selector = const offset_of!(Context, selectors) + 2 * sreg::CS as usize,
        base = const offset_of!(Context, views)
            + size_of::<View>() * sreg::CS as usize
            + offset_of!(View, base),
        has_gone_far = const offset_of!(Context, has_gone_far),
        numeric_ask = sym numeric_ask,
        numeric_check = const offset_of!(Context, numeric_check),
        no_returns = const offset_of!(Context, no_returns),
        jump_by_table = sym jump_by_table,
    )
}

const _: () = assert!(size_of::<FarMode>() == 16);
