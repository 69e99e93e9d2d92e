//! Exceptions that translated code delivers to their handlers itself. It goes on as after INT n
//! ([`privileges`](super::privileges)).

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::cpu::{Cr0, Cr4};
use ring3_x86::flags::Eflags;

use super::privileges::leave_to_call;
use crate::context::Context;

const IOPL: u32 = Eflags::IOPL.bits();

/// Begins to deliver #MF by the gate at offset R10D of the IDT, up to its pushes, at privilege 3 if `IS_USER`
/// is 1 and at privilege 0 if it is 0. With CR0.NE clear the error leaves the processor by FERR# instead, and
/// the interpreter executes the instruction.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn numeric_error<const IS_USER: usize>() {
    naked_asm!(
        keep_flags!(),
        "test dword ptr [r14 + {cr0}], {numeric_error}",
        "jz 2f",
        restore_flags!(),
        "jmp [r14 + {exception}]",
        "2:",
        restore_flags!(),
        "jmp {leave_to_call}",
        saved_rax = const offset_of!(Context, saved_rax),
        cr0 = const offset_of!(Context, control),
        numeric_error = const Cr0::NE.bits(),
        exception = const offset_of!(Context, exception) + IS_USER * size_of::<u64>(),
        leave_to_call = sym leave_to_call,
    )
}

/// Begins to deliver #GP for CLI or STI at privilege 3 as [`numeric_error`] delivers #MF. If IOPL allows the
/// instruction, or if CR4.PVI may (SDM vol. 3, 21.4), the interpreter executes it.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn interrupt_flag_error() {
    naked_asm!(
        keep_flags!(),
        "test dword ptr [r14 + {cr4}], {virtual_interrupts}",
        "jnz 2f",
        "mov r9d, [r14 + {system_flags}]",
        "not r9d",
        "test r9d, {iopl}",
        "jz 2f",
        restore_flags!(),
        "jmp [r14 + {exception}]",
        "2:",
        restore_flags!(),
        "jmp {leave_to_call}",
        saved_rax = const offset_of!(Context, saved_rax),
        cr4 = const offset_of!(Context, control) + 4 * size_of::<u32>(),
        virtual_interrupts = const Cr4::PVI.bits(),
        system_flags = const offset_of!(Context, system_flags),
        iopl = const IOPL,
        exception = const offset_of!(Context, exception) + size_of::<u64>(),
        leave_to_call = sym leave_to_call,
    )
}
