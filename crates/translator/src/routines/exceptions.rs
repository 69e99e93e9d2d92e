//! Exceptions that translated code delivers to their handlers itself. It goes on as after INT n
//! ([`privileges`](super::privileges)).

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::cpu::Cr0;

use super::privileges::leave_to_call;
use crate::context::Context;

/// Begins to deliver #MF by the gate at offset R10D of the IDT, up to its pushes, at privilege 3 if `IS_USER`
/// is 1 and at privilege 0 if it is 0. With CR0.NE clear the error leaves the processor by FERR# instead, and
/// the interpreter executes the instruction.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn numeric_error<const IS_USER: usize>() {
    naked_asm!(
        "pushfq",
        "test dword ptr [r14 + {cr0}], {numeric_error}",
        "jz 2f",
        "popfq",
        "jmp [r14 + {exception}]",
        "2:",
        "popfq",
        "jmp {leave_to_call}",
        cr0 = const offset_of!(Context, control),
        numeric_error = const Cr0::NE.bits(),
        exception = const offset_of!(Context, exception) + IS_USER * size_of::<u64>(),
        leave_to_call = sym leave_to_call,
    )
}
