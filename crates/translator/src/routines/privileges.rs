//! SYSENTER, SYSEXIT, INT n and IRET, and far calls and returns that change the privilege. They lead from
//! user code to the supervisor's code or back.
//!
//! Translated code executes all but the first two if the descriptors of their selectors are known
//! ([`Descriptors`](crate::descriptors::Descriptors)), so that they have the same effect as before. Their
//! pushes and pops, which may fault, are in the block, before anything has changed. [`Context::transfer`]
//! keeps what is found out before them.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;

use super::descriptors::{DESCRIPTOR_NUMBER_SHIFT, known_descriptor};
use super::far::{far_check_call, far_check_flat};
use super::virtual_8086::find_program;
use super::{ask_interpreter, jump_by_table, leave_to_step, leave_to_trap};
use crate::context::{
    Context, HOST_FLAGS, PrivilegeState, STATUS_AND_DIRECTION, Tables, Transfer, View, crossed_to,
};
use crate::descriptors::{CALL_INWARD, KNOWN_DESCRIPTORS, KnownDescriptor, allowed};

/// Offsets in the context of the supervisor's privilege, and of the users'.
const SUPERVISOR: usize = offset_of!(Context, privileges);
const USER: usize = SUPERVISOR + size_of::<PrivilegeState>();
/// Bits of EFLAGS that IRET can change at privilege 0, but not in this routine: those that POPF cannot change
/// here either, and those of virtual-8086 mode.
const UNUSUAL: u32 = Eflags::TF
    .union(Eflags::IOPL)
    .union(Eflags::NT)
    .union(Eflags::VM)
    .union(Eflags::AC)
    .union(Eflags::VIF)
    .union(Eflags::VIP)
    .union(Eflags::ID)
    .bits();
/// NT and IF in the second byte of EFLAGS.
const NT: u32 = Eflags::NT.bits() >> 8;
const IF: u32 = Eflags::IF.bits() >> 8;
/// Values that say which DPL a gate must have: each sets those bits of the DPL that need not be set.
pub(crate) const ANY_DPL: u32 = 0x60;
pub(crate) const ONLY_DPL_3: u32 = 0;
/// Bytes that follow a jump to a routine which may leave translated code by [`leave_to_call`].
const LEAVE_DATA: usize = 8;
/// Bytes that INT n pushes: EFLAGS, CS and EIP; and with SS and ESP before them where the privilege changes.
const FRAME: usize = 12;
const OUTER_FRAME: usize = 20;

/// Loads what belongs to the privilege whose [`PrivilegeState`] is at R10. Uses R9.
///
/// Operands: `returns`, `table`, `index_mask` and `new_window`, offsets in a [`PrivilegeState`], and `window`, one in
/// the context.
macro_rules! load_privilege {
    () => {
        "mov rsp, [r10 + {returns}]
        mov r13, [r10 + {table}]
        mov r11d, [r10 + {index_mask}]
        mov r9, [r10 + {new_window}]
        mov [r14 + {window}], r9
        wrgsbase r9"
    };
}

/// Loads the flags that IRET has popped, and R8D with its target. Takes RAX from the host's stack, above which
/// are R8, which is not needed, and the place of the flags. Uses R9.
///
/// Operands: `flags` and `status_flags`, those of [`Transfer`], `system_flags`, and `branch_target`, all offsets in
/// the context.
macro_rules! load_popped_flags {
    () => {
        "mov r9b, [r14 + {flags}]
        mov [r14 + {system_flags} + 1], r9b
        mov r9d, [r14 + {status_flags}]
        mov [rsp + 16], r9
        mov r8d, [r14 + {branch_target}]
        pop rax
        lea rsp, [rsp + 8]
        popfq"
    };
}

/// Leaves translated code as [`leave_to_step`] does, for an instruction that was already subtracted from the
/// budget.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn leave_to_call() {
    naked_asm!(
        "lea r12, [r12 + 1]",
        "mov dword ptr [r14 + {gave_back}], 1",
        "jmp {leave_to_step}",
        gave_back = const offset_of!(Context, gave_back),
        leave_to_step = sym leave_to_step,
    )
}

/// Leaves the instruction to the interpreter, with RAX, R8 and the guest's flags on the host's stack.
#[unsafe(naked)]
unsafe extern "sysv64" fn give_up() {
    naked_asm!(
        "pop rax",
        "pop r8",
        "popfq",
        "jmp {leave_to_call}",
        leave_to_call = sym leave_to_call,
    )
}

/// Executes SYSENTER at privilege 3 (SDM vol. 2). The other flags that it clears besides IF are always clear
/// in code that is translated.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn sysenter() {
    naked_asm!(
        "mov r9b, [r14 + {flags_without_if}]",
        "mov [r14 + {system_flags} + 1], r9b",
        "mov r15d, [r14 + {fast_call_stack}]",
        "mov r8d, [r14 + {fast_call_entry}]",
        "mov dword ptr [r14 + {crossed_to}], {to_supervisor}",
        "mov [r14 + {user} + {returns}], rsp",
        "lea r10, [r14 + {supervisor}]",
        "jmp {change_by_fast_call}",
        flags_without_if = const offset_of!(Context, flags_without_if) + 1,
        system_flags = const offset_of!(Context, system_flags),
        fast_call_stack = const offset_of!(Context, fast_call_stack),
        fast_call_entry = const offset_of!(Context, fast_call_entry),
        crossed_to = const offset_of!(Context, crossed_to),
        to_supervisor = const crossed_to::SUPERVISOR,
        user = const USER,
        supervisor = const SUPERVISOR,
        returns = const offset_of!(PrivilegeState, returns),
        change_by_fast_call = sym change_by_fast_call,
    )
}

/// Executes SYSEXIT at privilege 0.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn sysexit() {
    naked_asm!(
        "mov r15d, ecx",
        "mov r8d, edx",
        "mov dword ptr [r14 + {crossed_to}], {to_user}",
        "mov [r14 + {supervisor} + {returns}], rsp",
        "lea r10, [r14 + {user}]",
        "jmp {change_by_fast_call}",
        crossed_to = const offset_of!(Context, crossed_to),
        to_user = const crossed_to::USER,
        supervisor = const SUPERVISOR,
        user = const USER,
        returns = const offset_of!(PrivilegeState, returns),
        change_by_fast_call = sym change_by_fast_call,
    )
}

/// Goes on at the address in R8D with the privilege whose [`PrivilegeState`] is at R10, with the selectors
/// that SYSENTER and SYSEXIT load there.
#[unsafe(naked)]
unsafe extern "sysv64" fn change_by_fast_call() {
    naked_asm!(
        "mov word ptr [r14 + {transferred}], 0",
        "mov word ptr [r14 + {loaded} + {cs}], 0",
        "movzx r9d, word ptr [r10 + {code}]",
        "mov [r14 + {selectors} + 2 * {cs}], r9w",
        "movzx r9d, word ptr [r10 + {stack}]",
        "mov [r14 + {selectors} + 2 * {ss}], r9w",
        "jmp {change_privilege}",
        transferred = const offset_of!(Context, transferred),
        loaded = const offset_of!(Context, loaded),
        code = const offset_of!(PrivilegeState, code),
        stack = const offset_of!(PrivilegeState, stack),
        selectors = const offset_of!(Context, selectors),
        cs = const sreg::CS,
        ss = const sreg::SS,
        change_privilege = sym change_privilege,
    )
}

/// Goes on at the address in R8D with the privilege whose [`PrivilegeState`] is at R10.
#[unsafe(naked)]
unsafe extern "sysv64" fn change_privilege() {
    naked_asm!(
        load_privilege!(),
        "jmp {jump_by_table}",
        returns = const offset_of!(PrivilegeState, returns),
        table = const offset_of!(PrivilegeState, table),
        index_mask = const offset_of!(PrivilegeState, index_mask),
        new_window = const offset_of!(PrivilegeState, window),
        window = const offset_of!(Context, window),
        jump_by_table = sym jump_by_table,
    )
}

/// Reads the gate at offset R10D of the IDT (SDM vol. 3, 7.12.1), stores its target and the new flags in the
/// context, and loads R8D with its selector. R9D says which DPL the gate must have: [`ANY_DPL`] or
/// [`ONLY_DPL_3`]. Sets CF if the interpreter must execute the instruction: if the gate is not a present
/// 32-bit interrupt or trap gate, if its DPL is another one, or if NT is set, which would have to be cleared.
/// Uses RAX, R9 and R10.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn read_gate() {
    naked_asm!(
        "lea r8d, [r10 + 7]",
        "cmp r8d, [r14 + {idt_limit}]",
        "ja 2f",
        "test byte ptr [r14 + {system_flags} + 1], {nested_task}",
        "jne 2f",
        "mov rax, [r14 + {idt}]",
        "mov rax, [rax + r10]",
        "mov r8, rax",
        "shr r8, 40",
        "or r9d, r8d",
        "or r9d, 1",
        "cmp r9b, 0xef",
        "jne 2f",
        // An interrupt gate clears IF, a trap gate does not.
        "mov r10b, [r14 + {flags_without_if}]",
        "test r8d, 1",
        "je 1f",
        "mov r10b, [r14 + {system_flags} + 1]",
        "1:",
        "mov [r14 + {flags}], r10b",
        "mov r8, rax",
        "shr r8, 32",
        "mov r8w, ax",
        "mov [r14 + {branch_target}], r8d",
        "mov r8d, eax",
        "shr r8d, 16",
        "clc",
        "ret",
        "2:",
        "stc",
        "ret",
        idt_limit = const offset_of!(Context, tables) + offset_of!(Tables, idt_limit),
        idt = const offset_of!(Context, tables) + offset_of!(Tables, idt),
        system_flags = const offset_of!(Context, system_flags),
        flags_without_if = const offset_of!(Context, flags_without_if) + 1,
        nested_task = const NT,
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        branch_target = const offset_of!(Context, branch_target),
    )
}

/// Reads the gate as [`read_gate`] does, for flat code. The gate must lead to code of the supervisor whose
/// descriptor is known. Stores its selector in the context, too.
#[unsafe(naked)]
unsafe extern "sysv64" fn read_flat_gate() {
    naked_asm!(
        "call {read_gate}",
        "jc 2f",
        "cmp r8w, [r14 + {supervisor} + {known_code}]",
        "jne 2f",
        "mov [r14 + {code}], r8w",
        "mov r9d, {cs}",
        "jmp {known_descriptor}",
        "2:",
        "stc",
        "ret",
        read_gate = sym read_gate,
        supervisor = const SUPERVISOR,
        known_code = const offset_of!(PrivilegeState, known_code),
        code = const offset_of!(Context, transfer) + offset_of!(Transfer, code),
        cs = const sreg::CS,
        known_descriptor = sym known_descriptor::<{ allowed::FLAT }>,
    )
}

/// Reads SS0 and ESP0 (SDM vol. 3, figure 9-2) and stores them in the context. Sets CF if the interpreter
/// must execute the instruction: if the TSS is not known, or if SS0 is not known to be a flat stack of the
/// supervisor; otherwise R10 is the address of the [`KnownDescriptor`] of that stack. Uses RAX, R8 and R9.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn read_inner_stack() {
    naked_asm!(
        "mov rax, [r14 + {inner_stack}]",
        "test rax, rax",
        "je 2f",
        "movzx r8d, word ptr [rax + 4]",
        "test r8d, 3",
        "jne 2f",
        "mov eax, [rax]",
        "mov [r14 + {pointer}], eax",
        "mov [r14 + {stack}], r8w",
        "mov r9d, {ss}",
        "jmp {known_descriptor}",
        "2:",
        "stc",
        "ret",
        inner_stack = const offset_of!(Context, tables) + offset_of!(Tables, inner_stack),
        pointer = const offset_of!(Context, transfer) + offset_of!(Transfer, pointer),
        stack = const offset_of!(Context, transfer) + offset_of!(Transfer, stack),
        ss = const sreg::SS,
        known_descriptor = sym known_descriptor::<{ allowed::FLAT }>,
    )
}

/// Executes INT n at privilege 3, by the gate at offset R10D of the IDT, up to its pushes on the supervisor's
/// stack. `DPL` is [`ONLY_DPL_3`], or [`ANY_DPL`] for an exception. Then R10D is the stack pointer, R9D is
/// EFLAGS as it is pushed, and GS is the supervisor's window.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn interrupt_inward<const DPL: u32>() {
    naked_asm!(
        "pushfq",
        "push r8",
        "push rax",
        "mov r9d, {dpl}",
        "call {read_gate}",
        "jc {give_up}",
        "call {read_inner_stack}",
        "jc {give_up}",
        "mov r9, [r14 + {supervisor} + {window}]",
        "wrgsbase r9",
        "mov r10d, [r14 + {pointer}]",
        "jmp {begin_to_push}",
        dpl = const DPL,
        read_gate = sym read_flat_gate,
        give_up = sym give_up,
        read_inner_stack = sym read_inner_stack,
        supervisor = const SUPERVISOR,
        window = const offset_of!(PrivilegeState, window),
        pointer = const offset_of!(Context, transfer) + offset_of!(Transfer, pointer),
        begin_to_push = sym begin_to_push,
    )
}

/// Executes INT n at privilege 0, by the gate at offset R10D of the IDT, up to its pushes. Then R10D is the
/// stack pointer, and R9D is EFLAGS as it is pushed.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn interrupt_within() {
    naked_asm!(
        "pushfq",
        "push r8",
        "push rax",
        "mov r9d, {any_dpl}",
        "call {read_gate}",
        "jc {give_up}",
        "mov r10d, r15d",
        "jmp {begin_to_push}",
        any_dpl = const ANY_DPL,
        read_gate = sym read_flat_gate,
        give_up = sym give_up,
        begin_to_push = sym begin_to_push,
    )
}

/// Continues in the block after its jump to [`interrupt_inward`] or [`interrupt_within`].
#[unsafe(naked)]
unsafe extern "sysv64" fn begin_to_push() {
    naked_asm!(
        "mov r9d, [rsp + 16]",
        "and r9d, {status}",
        "or r9d, [r14 + {system_flags}]",
        "pop rax",
        "pop r8",
        "popfq",
        "lea r8, [r8 + {leave_data}]",
        "jmp r8",
        status = const STATUS_AND_DIRECTION,
        system_flags = const offset_of!(Context, system_flags),
        leave_data = const LEAVE_DATA,
    )
}

/// Executes the rest of INT n at privilege 3, after all its pushes on the stack at R10D, and goes on with the
/// handler. After a far call through a gate, which pushes no flags, R10D is 4 more.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter_handler_inward() {
    naked_asm!(
        "lea r15d, [r10 - {frame}]",
        "movzx r9d, word ptr [r14 + {code}]",
        "mov [r14 + {selectors} + 2 * {cs}], r9w",
        "movzx r9d, word ptr [r14 + {stack}]",
        "mov [r14 + {selectors} + 2 * {ss}], r9w",
        "mov word ptr [r14 + {transferred}], 0x101",
        "mov dword ptr [r14 + {crossed_to}], {to_supervisor}",
        "mov r9b, [r14 + {flags}]",
        "mov [r14 + {system_flags} + 1], r9b",
        "mov r8d, [r14 + {branch_target}]",
        "mov [r14 + {user} + {returns}], rsp",
        "lea r10, [r14 + {supervisor}]",
        "jmp {change_privilege}",
        frame = const OUTER_FRAME,
        code = const offset_of!(Context, transfer) + offset_of!(Transfer, code),
        stack = const offset_of!(Context, transfer) + offset_of!(Transfer, stack),
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        selectors = const offset_of!(Context, selectors),
        cs = const sreg::CS,
        ss = const sreg::SS,
        transferred = const offset_of!(Context, transferred),
        crossed_to = const offset_of!(Context, crossed_to),
        to_supervisor = const crossed_to::SUPERVISOR,
        system_flags = const offset_of!(Context, system_flags),
        branch_target = const offset_of!(Context, branch_target),
        user = const USER,
        supervisor = const SUPERVISOR,
        returns = const offset_of!(PrivilegeState, returns),
        change_privilege = sym change_privilege,
    )
}

/// Checks a far call of user code to the selector in R8D. If the selector is that of a call gate known to
/// lead to the supervisor's code (SDM vol. 3, 6.8.5), then R9D is 1, GS is the supervisor's window, and what
/// is left are the pushes and [`enter_handler_inward`]. All other calls are checked by [`far_check_call`],
/// and R9D is 0.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_check_call_of_user() {
    naked_asm!(
        keep_flags!(),
        find_descriptor!(),
        check_descriptor!("r10 + {inward}", "r9", "2f"),
        "push rax",
        "mov r9d, [r10 + {offset}]",
        "mov [r14 + {branch_target}], r9d",
        "mov r8d, [r10 + {gate_code}]",
        "cmp r8w, [r14 + {supervisor} + {known_code}]",
        "jne 3f",
        "mov [r14 + {code}], r8w",
        "mov r9d, {cs}",
        "call {known_descriptor}",
        "jc 3f",
        "call {read_inner_stack}",
        "jc 3f",
        "mov r9, [r14 + {supervisor} + {window}]",
        "wrgsbase r9",
        // The call changes no flags.
        "mov r9b, [r14 + {system_flags} + 1]",
        "mov [r14 + {flags}], r9b",
        "mov r9d, 1",
        "pop rax",
        restore_flags!(),
        "ret",
        "2:",
        restore_flags!(),
        "jmp {far_check_call}",
        "3:",
        "pop rax",
        restore_flags!(),
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(Context, saved_rax),
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        inward = const offset_of!(KnownDescriptor, allowed) + CALL_INWARD,
        here = const allowed::of_user(allowed::FLAT),
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
        offset = const offset_of!(KnownDescriptor, view) + offset_of!(View, base),
        branch_target = const offset_of!(Context, branch_target),
        gate_code = const offset_of!(KnownDescriptor, near),
        supervisor = const SUPERVISOR,
        known_code = const offset_of!(PrivilegeState, known_code),
        code = const offset_of!(Context, transfer) + offset_of!(Transfer, code),
        cs = const sreg::CS,
        known_descriptor = sym known_descriptor::<{ allowed::FLAT }>,
        read_inner_stack = sym read_inner_stack,
        window = const offset_of!(PrivilegeState, window),
        system_flags = const offset_of!(Context, system_flags),
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        far_check_call = sym far_check_call::<{ allowed::of_user(allowed::FLAT) }>,
        ask_interpreter = sym ask_interpreter,
    )
}

/// Checks a far return of the supervisor's code to the selector in R8D. If it leads to user code whose
/// descriptor is known, then R9D is 1, and what is left is what IRET to user code does after its first pops
/// ([`return_outward`]), with the flags as they are. All other returns are checked by [`far_check_flat`], and
/// R9D is 0.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_check_return() {
    naked_asm!(
        keep_flags!(),
        "cmp r8w, [r14 + {user} + {known_code}]",
        "jne 2f",
        "push rax",
        "mov r9d, {cs}",
        "call {known_descriptor}",
        "pop rax",
        "jc 2f",
        "mov [r14 + {code}], r8w",
        "mov r9b, [r14 + {system_flags} + 1]",
        "mov [r14 + {flags}], r9b",
        "mov dword ptr [r14 + {of_next}], 0",
        restore_flags!(),
        "pushfq",
        "pop r9",
        "mov [r14 + {status_flags}], r9d",
        "mov r9d, 1",
        "ret",
        "2:",
        restore_flags!(),
        "jmp {far_check_flat}",
        saved_rax = const offset_of!(Context, saved_rax),
        user = const USER,
        known_code = const offset_of!(PrivilegeState, known_code),
        cs = const sreg::CS,
        known_descriptor = sym known_descriptor::<{ allowed::of_user(allowed::FLAT) }>,
        code = const offset_of!(Context, transfer) + offset_of!(Transfer, code),
        system_flags = const offset_of!(Context, system_flags),
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        of_next = const offset_of!(Context, transfer) + offset_of!(Transfer, of_next),
        status_flags = const offset_of!(Context, transfer) + offset_of!(Transfer, status),
        far_check_flat = sym far_check_flat::<{ allowed::FLAT }>,
    )
}

/// Executes the rest of INT n at privilege 0, after all its pushes, and goes on with the handler.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter_handler_within() {
    naked_asm!(
        "lea r15d, [r10 - {frame}]",
        "mov byte ptr [r14 + {transferred}], 1",
        "mov r9b, [r14 + {flags}]",
        "mov [r14 + {system_flags} + 1], r9b",
        "mov r8d, [r14 + {branch_target}]",
        "jmp {jump_by_table}",
        frame = const FRAME,
        transferred = const offset_of!(Context, transferred),
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        system_flags = const offset_of!(Context, system_flags),
        branch_target = const offset_of!(Context, branch_target),
        jump_by_table = sym jump_by_table,
    )
}

/// Executes IRET at privilege 0 (SDM vol. 2) to the address in [`Context::branch_target`], with the selector
/// in R9D and EFLAGS in R10D. If it leads to user code or to virtual-8086 mode, continues in the block after
/// its jump to this routine; R9D is then 0 or 1.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn interrupt_return() {
    naked_asm!(
        "pushfq",
        "push r8",
        "push rax",
        "test r10d, {vm}",
        "jnz 5f",
        "mov eax, r10d",
        "xor eax, [r14 + {system_flags}]",
        "test eax, {unusual}",
        "jne 7f",
        "8:",
        // With NT set, IRET returns to another task.
        "test byte ptr [r14 + {system_flags} + 1], {nested_task}",
        "jne {give_up}",
        "mov eax, r10d",
        "shr eax, 8",
        "and eax, {interrupt}",
        "je 2f",
        "cmp byte ptr [r14 + {pin}], 0",
        "jne {give_up}",
        "2:",
        "or al, [r14 + {flags_without_if}]",
        "mov [r14 + {flags}], al",
        // While there are no breakpoints, RF is visible only if no further instruction is executed.
        "mov eax, r10d",
        "and eax, {resume_or_trap}",
        "mov [r14 + {of_next}], eax",
        "and r10d, {status}",
        "or r10d, {host}",
        "mov [r14 + {status_flags}], r10d",
        "movzx r8d, r9w",
        "mov r9d, {cs}",
        "cmp r8w, [r14 + {supervisor} + {known_code}]",
        "jne 3f",
        "call {known_descriptor}",
        "jc {give_up}",
        "lea r15d, [r15 + {frame}]",
        "mov byte ptr [r14 + {transferred}], 1",
        "cmp dword ptr [r14 + {of_next}], {trap}",
        "je 9f",
        "jb 4f",
        "mov [r14 + {resumed}], r12",
        "4:",
        load_popped_flags!(),
        "jmp {jump_by_table}",
        "9:",
        load_popped_flags!(),
        "jmp {leave_to_trap}",
        "3:",
        "cmp r8w, [r14 + {user} + {known_code}]",
        "jne {give_up}",
        "call {known_descriptor_of_user}",
        "jc {give_up}",
        "mov [r14 + {code}], r8w",
        "xor r9d, r9d",
        "6:",
        "pop rax",
        "pop r8",
        "popfq",
        "lea r8, [r8 + {leave_data}]",
        "jmp r8",
        "5:",
        "mov [r14 + {far_flags}], r10d",
        "mov [r14 + {far_selector}], r9w",
        "mov r9d, [r14 + {branch_target}]",
        "mov [r14 + {far_offset}], r9d",
        "call {find_program}",
        "jc {give_up}",
        "mov r9d, 1",
        "jmp 6b",
        // TF alone may be set.
        "7:",
        "test eax, {beside_trap}",
        "jne {give_up}",
        "test r10d, {resume}",
        "jz 8b",
        "jmp {give_up}",
        vm = const Eflags::VM.bits(),
        far_flags = const offset_of!(Context, far_flags),
        far_selector = const offset_of!(Context, far_selector),
        far_offset = const offset_of!(Context, far_offset),
        find_program = sym find_program,
        system_flags = const offset_of!(Context, system_flags),
        unusual = const UNUSUAL,
        nested_task = const NT,
        give_up = sym give_up,
        interrupt = const IF,
        pin = const offset_of!(Context, interrupt_pin),
        flags_without_if = const offset_of!(Context, flags_without_if) + 1,
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        resume = const Eflags::RF.bits(),
        resume_or_trap = const Eflags::RF.union(Eflags::TF).bits(),
        beside_trap = const UNUSUAL & !Eflags::TF.bits(),
        trap = const Eflags::TF.bits(),
        of_next = const offset_of!(Context, transfer) + offset_of!(Transfer, of_next),
        leave_to_trap = sym leave_to_trap,
        resumed = const offset_of!(Context, resumed),
        status = const STATUS_AND_DIRECTION,
        host = const HOST_FLAGS,
        status_flags = const offset_of!(Context, transfer) + offset_of!(Transfer, status),
        cs = const sreg::CS,
        supervisor = const SUPERVISOR,
        user = const USER,
        known_code = const offset_of!(PrivilegeState, known_code),
        known_descriptor = sym known_descriptor::<{ allowed::FLAT }>,
        known_descriptor_of_user = sym known_descriptor::<{ allowed::of_user(allowed::FLAT) }>,
        frame = const FRAME,
        transferred = const offset_of!(Context, transferred),
        branch_target = const offset_of!(Context, branch_target),
        jump_by_table = sym jump_by_table,
        code = const offset_of!(Context, transfer) + offset_of!(Transfer, code),
        leave_data = const LEAVE_DATA,
    )
}

/// Executes the rest of IRET to user code, after [`interrupt_return`], with the selector of the stack in R9D
/// and its pointer in R10D.
///
/// IRET makes data segment registers null that hold segments of the supervisor (SDM vol. 2, IRET). If all
/// their selectors have RPL 3, no such segment is among them: in protected mode a selector with RPL 3 is
/// loaded only with a segment for privilege 3. A selector of 0 is null already.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn return_outward() {
    naked_asm!(
        "pushfq",
        "push r8",
        "push rax",
        "mov [r14 + {pointer}], r10d",
        "mov eax, [r14 + {branch_target}]",
        "cmp rax, [r14 + {awaited}]",
        "je {give_up}",
        // DS and ES are not null in flat code.
        "mov al, [r14 + {selectors} + 2 * {ds}]",
        "and al, [r14 + {selectors} + 2 * {es}]",
        "and al, r9b",
        "and al, 3",
        "cmp al, 3",
        "jne {give_up}",
        "movzx eax, word ptr [r14 + {selectors} + 2 * {fs}]",
        "test eax, eax",
        "je 2f",
        "cmp eax, 4",
        "jb {give_up}",
        "and al, 3",
        "cmp al, 3",
        "jne {give_up}",
        "2:",
        "movzx eax, word ptr [r14 + {selectors} + 2 * {gs}]",
        "test eax, eax",
        "je 3f",
        "cmp eax, 4",
        "jb {give_up}",
        "and al, 3",
        "cmp al, 3",
        "jne {give_up}",
        "3:",
        "movzx r8d, r9w",
        "mov r9d, {ss}",
        "call {known_descriptor}",
        "jc {give_up}",
        "mov [r14 + {selectors} + 2 * {ss}], r8w",
        "movzx r9d, word ptr [r14 + {code}]",
        "mov [r14 + {selectors} + 2 * {cs}], r9w",
        "mov word ptr [r14 + {transferred}], 0x101",
        "mov dword ptr [r14 + {crossed_to}], {to_user}",
        "mov r15d, [r14 + {pointer}]",
        "cmp dword ptr [r14 + {of_next}], {trap}",
        "je 5f",
        "jb 4f",
        "mov [r14 + {resumed}], r12",
        "4:",
        load_popped_flags!(),
        "mov [r14 + {supervisor} + {returns}], rsp",
        "lea r10, [r14 + {user}]",
        "jmp {change_privilege}",
        "5:",
        load_popped_flags!(),
        "mov [r14 + {supervisor} + {returns}], rsp",
        "lea r10, [r14 + {user}]",
        load_privilege!(),
        "jmp {leave_to_trap}",
        pointer = const offset_of!(Context, transfer) + offset_of!(Transfer, pointer),
        awaited = const offset_of!(Context, awaited),
        selectors = const offset_of!(Context, selectors),
        es = const sreg::ES,
        cs = const sreg::CS,
        ss = const sreg::SS,
        ds = const sreg::DS,
        fs = const sreg::FS,
        gs = const sreg::GS,
        give_up = sym give_up,
        known_descriptor = sym known_descriptor::<{ allowed::of_user(allowed::FLAT) }>,
        code = const offset_of!(Context, transfer) + offset_of!(Transfer, code),
        transferred = const offset_of!(Context, transferred),
        crossed_to = const offset_of!(Context, crossed_to),
        to_user = const crossed_to::USER,
        trap = const Eflags::TF.bits(),
        of_next = const offset_of!(Context, transfer) + offset_of!(Transfer, of_next),
        leave_to_trap = sym leave_to_trap,
        table = const offset_of!(PrivilegeState, table),
        index_mask = const offset_of!(PrivilegeState, index_mask),
        new_window = const offset_of!(PrivilegeState, window),
        window = const offset_of!(Context, window),
        resumed = const offset_of!(Context, resumed),
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        system_flags = const offset_of!(Context, system_flags),
        status_flags = const offset_of!(Context, transfer) + offset_of!(Transfer, status),
        branch_target = const offset_of!(Context, branch_target),
        supervisor = const SUPERVISOR,
        user = const USER,
        returns = const offset_of!(PrivilegeState, returns),
        change_privilege = sym change_privilege,
    )
}
