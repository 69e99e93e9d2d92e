//! What translated code calls. R8 to R10 are free; all else is the guest's.

use std::arch::naked_asm;
use std::mem::offset_of;

use crate::context::{Context, leave, reason};

/// Bits of EFLAGS that POPF changes here: status flags, DF and IF.
const CHANGED: u32 = 0xed5;
/// The bits that it leaves alone at any privilege, or that do not exist: 1, 3, 5, 15, RF, VM, VIF, VIP and from 22 on.
const LEFT_ALONE: u32 = 0xffdb_802a;
/// Larger counts are for the interpreter.
const LARGEST_COUNT: u32 = 1 << 16;
/// Status flags and DF.
const STATUS: u32 = 0xcd5;
const IF: u32 = 0x200;
/// Flags of the host that are always set: bit 1, and interrupts.
const HOST: u32 = 0x202;

/// STI at privilege 0. Where an interrupt is waiting for it the interpreter executes it.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn sti() {
    naked_asm!(
        "pushfq",
        "cmp byte ptr [r14 + {pin}], 0",
        "jne 2f",
        "or dword ptr [r14 + {system_flags}], {interrupt}",
        "popfq",
        "ret",
        "2:",
        "popfq",
        "jmp {call_interpreter}",
        pin = const offset_of!(Context, interrupt_pin),
        system_flags = const offset_of!(Context, system_flags),
        interrupt = const IF,
        call_interpreter = sym call_interpreter,
    )
}

/// POPF at privilege 0, of R8D. Where it changes more than is usual, or an interrupt is waiting, the interpreter executes it.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn popf() {
    naked_asm!(
        "pushfq",
        "mov r9d, r8d",
        "xor r9d, [r14 + {system_flags}]",
        "test r9d, {unusual}",
        "jne 2f",
        "mov r9d, r8d",
        "and r9d, {interrupt}",
        "je 3f",
        "cmp byte ptr [r14 + {pin}], 0",
        "jne 2f",
        "3:",
        "and dword ptr [r14 + {system_flags}], {without_interrupt}",
        "or [r14 + {system_flags}], r9d",
        "and r8d, {status}",
        "or r8d, {host}",
        "mov [rsp], r8",
        "popfq",
        "ret",
        "2:",
        "popfq",
        "jmp {call_interpreter}",
        pin = const offset_of!(Context, interrupt_pin),
        system_flags = const offset_of!(Context, system_flags),
        unusual = const !(CHANGED | LEFT_ALONE),
        interrupt = const IF,
        without_interrupt = const !IF as i32,
        status = const STATUS,
        host = const HOST,
        call_interpreter = sym call_interpreter,
    )
}

/// Has the interpreter execute a repeated instruction with a count that may be beyond the deadline.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn check_count() {
    naked_asm!(
        "pushfq",
        "cmp ecx, {largest}",
        "ja 2f",
        "popfq",
        "ret",
        "2:",
        "popfq",
        "jmp {call_interpreter}",
        largest = const LARGEST_COUNT,
        call_interpreter = sym call_interpreter,
    )
}

/// Leaves translated code to have the instruction that called a routine executed by the interpreter.
#[unsafe(naked)]
unsafe extern "sysv64" fn call_interpreter() {
    naked_asm!(
        "pop r8",
        "mov [r14 + {fault_rip}], r8",
        "mov dword ptr [r14 + {reason}], {called}",
        "jmp {leave}",
        fault_rip = const offset_of!(Context, fault_rip),
        reason = const offset_of!(Context, reason),
        called = const reason::CALLED,
        leave = sym leave,
    )
}

/// A numeric check: the registers are there.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn numeric_ready() {
    naked_asm!("ret")
}

/// A numeric check: the registers are in the image.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn numeric_load() {
    naked_asm!(
        "fxrstor64 [r14 + {image}]",
        "mov dword ptr [r14 + {numeric_is_live}], 1",
        "lea r8, [rip + {ready}]",
        "mov [r14 + {numeric_check}], r8",
        "ret",
        image = const offset_of!(Context, image),
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        numeric_check = const offset_of!(Context, numeric_check),
        ready = sym numeric_ready,
    )
}

/// A numeric check: the engine is to be asked.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn numeric_ask() {
    naked_asm!(
        "pop r8",
        "mov [r14 + {fault_rip}], r8",
        "mov dword ptr [r14 + {reason}], {numeric}",
        "jmp {leave}",
        fault_rip = const offset_of!(Context, fault_rip),
        reason = const offset_of!(Context, reason),
        numeric = const reason::NUMERIC,
        leave = sym leave,
    )
}

/// A jump to the guest address in R8D that the jump table does not know.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn miss() {
    naked_asm!(
        "mov [r14 + {eip}], r8d",
        "mov dword ptr [r14 + {reason}], {look_up}",
        "jmp {leave}",
        eip = const offset_of!(Context, eip),
        reason = const offset_of!(Context, reason),
        look_up = const reason::LOOK_UP,
        leave = sym leave,
    )
}
