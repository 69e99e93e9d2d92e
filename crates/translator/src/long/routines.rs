//! The routines that translated 64-bit code calls. R11 is the address of the context, and they may use R10;
//! all other registers are the guest's.
//!
//! # Safety
//! Only translated code may call them, with its registers as [`context`](crate::long::context) says and the
//! return address on the host's stack.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_core::clock::PICOS_PER_NANO;
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::long_mode::RETURNED_FLAGS;

use crate::context::{HOST_FLAGS, STATUS_AND_DIRECTION, TimeStamp};
use crate::long::calls::crossed_to;
use crate::long::context::{LongContext, at, leave_from_routine, reason};
use crate::long::jump_table::{CODE, ENTRIES, INDEX_ROTATION};
use crate::long::system::IN_PLACE;
use crate::routines::{KEPT_BY_POPF, compute_time_stamp};

const IF: u32 = Eflags::IF.bits();
/// The offset in the context of the guest's R11, which holds RFLAGS across a system call.
const GUEST_R11: usize = offset_of!(LongContext, gpr) + 11 * size_of::<u64>();

/// Executes STI of the supervisor, the last instruction of its block. Leaves it to the interpreter if an
/// interrupt is waiting, or if IF is set already.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn sti() {
    naked_asm!(
        "mov r10, rcx",
        // Both are compared without a change of flags.
        "mov rcx, [r11 + {interrupt_flag}]",
        "jrcxz 2f",
        "mov rcx, r10",
        "jmp {ask_interpreter}",
        "2:",
        "mov rcx, r10",
        "mov dword ptr [r11 + {interrupt_flag}], {interrupt}",
        "mov [r11 + {after_sti}], r9",
        "ret",
        interrupt_flag = const offset_of!(LongContext, interrupt_flag),
        interrupt = const IF,
        after_sti = const offset_of!(LongContext, after_sti),
        ask_interpreter = sym ask_interpreter,
    )
}

const _: () = assert!(
    offset_of!(LongContext, interrupt_pin) == offset_of!(LongContext, interrupt_flag) + 4,
    "they are compared together"
);

/// Executes POPF of the supervisor. The popped value is in R10. Leaves it to the interpreter if it changes
/// other flags than the status flags, DF and IF, or sets IF while an interrupt is waiting.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn popf() {
    naked_asm!(
        "mov [r11 + {saved_rax}], rax",
        "pushfq",
        "mov eax, r10d",
        "xor eax, [r11 + {other_flags}]",
        "test eax, {unusual}",
        "jnz 4f",
        "mov eax, r10d",
        "and eax, {interrupt}",
        "jz 2f",
        "cmp dword ptr [r11 + {interrupt_pin}], 0",
        "jne 4f",
        "2:",
        "mov [r11 + {interrupt_flag}], eax",
        "lea rsp, [rsp + 8]",
        // The host's POPF takes longer than all of this, so it serves only to set DF.
        "test r10d, {direction}",
        "jnz 3f",
        "cld",
        "mov eax, r10d",
        "shr r10d, {overflow}",
        "and r10d, 1",
        "shl eax, 8",
        "mov al, r10b",
        "add al, 0x7f",
        "sahf",
        "mov rax, [r11 + {saved_rax}]",
        "ret",
        "3:",
        "and r10d, {status}",
        "or r10d, {host}",
        "push r10",
        "popfq",
        "mov rax, [r11 + {saved_rax}]",
        "ret",
        "4:",
        "popfq",
        "mov rax, [r11 + {saved_rax}]",
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(LongContext, saved_rax),
        other_flags = const offset_of!(LongContext, other_flags),
        unusual = const !(STATUS_AND_DIRECTION | IF | KEPT_BY_POPF),
        interrupt = const IF,
        interrupt_pin = const offset_of!(LongContext, interrupt_pin),
        interrupt_flag = const offset_of!(LongContext, interrupt_flag),
        direction = const Eflags::DF.bits(),
        overflow = const Eflags::OF.bits().ilog2(),
        status = const STATUS_AND_DIRECTION,
        host = const HOST_FLAGS,
        ask_interpreter = sym ask_interpreter,
    )
}

/// Executes SYSCALL of users. R10 is RIP after it. Leaves it to the interpreter if it clears other flags than
/// the status flags, DF and IF, all of which it clears.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn syscall() {
    naked_asm!(
        "pushfq",
        "mov [r11 + {saved_rax}], rax",
        "mov eax, [r11 + {other_flags}]",
        "test eax, [r11 + {flag_mask}]",
        "jnz 2f",
        "mov rcx, r10",
        "pop r10",
        "and r10d, {status}",
        "or r10d, eax",
        "or r10d, [r11 + {interrupt_flag}]",
        "mov [r11 + {gpr_r11}], r10",
        "mov dword ptr [r11 + {interrupt_flag}], 0",
        "mov dword ptr [r11 + {crossed_to}], {supervisor}",
        "mov rax, [r11 + {distance}]",
        "wrgsbase rax",
        "mov [r11 + {set_distance}], rax",
        "mov rax, [r11 + {side_table}]",
        "mov [r11 + {table}], rax",
        "add rax, [r11 + {slot}]",
        "mov r10, [rax]",
        "lea rsp, [rsp + 8]",
        "mov [r11 + {user_returns}], rsp",
        "mov rsp, [r11 + {supervisor_returns}]",
        "mov rax, [r11 + {supervisor_no_returns}]",
        "mov [r11 + {no_returns}], rax",
        "mov rax, [r11 + {supervisor_selectors}]",
        "mov [r11 + {code_and_stack}], rax",
        // The sum has no flags.
        "xor eax, eax",
        "add eax, 1",
        "cld",
        "mov rax, [r11 + {saved_rax}]",
        "mov r11, [r11 + {system_entry}]",
        "xchg r10, r11",
        "jmp r11",
        "2:",
        "popfq",
        "mov rax, [r11 + {saved_rax}]",
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(LongContext, saved_rax),
        other_flags = const offset_of!(LongContext, other_flags),
        flag_mask = const offset_of!(LongContext, flag_mask),
        status = const STATUS_AND_DIRECTION,
        interrupt_flag = const offset_of!(LongContext, interrupt_flag),
        gpr_r11 = const GUEST_R11,
        crossed_to = const offset_of!(LongContext, crossed_to),
        supervisor = const crossed_to::SUPERVISOR,
        distance = const at::SUPERVISOR_DISTANCE,
        set_distance = const offset_of!(LongContext, set_distance),
        side_table = const at::SUPERVISOR_TABLE,
        table = const at::TABLE,
        slot = const offset_of!(LongContext, system_entry_slot),
        user_returns = const at::USER_RETURNS,
        supervisor_returns = const at::SUPERVISOR_RETURNS,
        supervisor_no_returns = const at::SUPERVISOR_NO_RETURNS,
        supervisor_selectors = const at::SUPERVISOR_SELECTORS,
        code_and_stack = const at::CODE_AND_STACK,
        no_returns = const at::NO_RETURNS,
        system_entry = const offset_of!(LongContext, system_entry),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Executes SYSRET of the supervisor to 64-bit code. Leaves it to the interpreter if there is no code for its
/// target, or if it changes other flags than the status flags, DF and IF, or sets IF while an interrupt is
/// waiting, or AC.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn sysret() {
    naked_asm!(
        "pushfq",
        "mov [r11 + {saved_rax}], rax",
        "mov r10, [r11 + {gpr_r11}]",
        "mov eax, r10d",
        "and eax, {other_returned}",
        "or eax, {always_one}",
        "cmp eax, [r11 + {other_flags}]",
        "jne 4f",
        // With AC, accesses of users may have to be aligned.
        "test r10d, {alignment}",
        "jnz 4f",
        "test r10d, {interrupt}",
        "jz 2f",
        "cmp dword ptr [r11 + {interrupt_pin}], 0",
        "jne 4f",
        "2:",
        // Known code is at canonical addresses.
        "rorx rax, rcx, {rotation}",
        "add eax, ecx",
        "and eax, {last_entry}",
        "shl eax, 3",
        "add rax, [r11 + {side_table}]",
        "mov r10, [rax]",
        "add r10, rcx",
        "jnz 4f",
        "mov r10, [rax + {code}]",
        "lea rsp, [rsp + 16]",
        "mov [r11 + {supervisor_returns}], rsp",
        "mov rsp, [r11 + {user_returns}]",
        "mov rax, [r11 + {user_no_returns}]",
        "mov [r11 + {no_returns}], rax",
        "mov rax, [r11 + {user_selectors}]",
        "mov [r11 + {code_and_stack}], rax",
        "mov dword ptr [r11 + {crossed_to}], {user}",
        "mov rax, [r11 + {distance}]",
        "wrgsbase rax",
        "mov [r11 + {set_distance}], rax",
        "mov rax, [r11 + {side_table}]",
        "mov [r11 + {table}], rax",
        "mov eax, [r11 + {gpr_r11}]",
        "and eax, {interrupt}",
        "mov [r11 + {interrupt_flag}], eax",
        "mov [r11 + {target}], r10",
        "mov r10d, [r11 + {gpr_r11}]",
        "test r10d, {direction}",
        "jnz 3f",
        "cld",
        "mov eax, r10d",
        "shr r10d, {overflow}",
        "and r10d, 1",
        "shl eax, 8",
        "mov al, r10b",
        "add al, 0x7f",
        "sahf",
        "mov rax, [r11 + {saved_rax}]",
        "jmp qword ptr [r11 + {target}]",
        "3:",
        "and r10d, {status}",
        "or r10d, {host}",
        "push r10",
        "popfq",
        "mov rax, [r11 + {saved_rax}]",
        "jmp qword ptr [r11 + {target}]",
        "4:",
        "popfq",
        "mov rax, [r11 + {saved_rax}]",
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(LongContext, saved_rax),
        gpr_r11 = const GUEST_R11,
        other_returned = const RETURNED_FLAGS & !IN_PLACE.bits(),
        always_one = const ALWAYS_ONE,
        other_flags = const offset_of!(LongContext, other_flags),
        alignment = const Eflags::AC.bits(),
        interrupt = const IF,
        interrupt_pin = const offset_of!(LongContext, interrupt_pin),
        rotation = const INDEX_ROTATION,
        last_entry = const ENTRIES - 1,
        side_table = const at::USER_TABLE,
        code = const CODE,
        supervisor_returns = const at::SUPERVISOR_RETURNS,
        user_returns = const at::USER_RETURNS,
        user_no_returns = const at::USER_NO_RETURNS,
        user_selectors = const at::USER_SELECTORS,
        code_and_stack = const at::CODE_AND_STACK,
        no_returns = const at::NO_RETURNS,
        crossed_to = const offset_of!(LongContext, crossed_to),
        user = const crossed_to::USER,
        distance = const at::USER_DISTANCE,
        set_distance = const offset_of!(LongContext, set_distance),
        table = const at::TABLE,
        interrupt_flag = const offset_of!(LongContext, interrupt_flag),
        target = const offset_of!(LongContext, target),
        direction = const Eflags::DF.bits(),
        overflow = const Eflags::OF.bits().ilog2(),
        status = const STATUS_AND_DIRECTION,
        host = const HOST_FLAGS,
        ask_interpreter = sym ask_interpreter,
    )
}

/// Executes RDTSC, the last instruction of its block.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn time_stamp() {
    compute_time_stamp!(LongContext, "r11", "r9", "rax", "r10")
}

/// Leaves translated code so that the interpreter executes the instruction whose host code called a routine.
/// Only the return address is on the stack.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn ask_interpreter() {
    leave_from_routine!(reason::CALLED)
}
