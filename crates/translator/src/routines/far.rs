//! Far transfers, and INT n and IRET of segmented code, that change CS and no other segment register.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::segment::sreg;

use super::privileges::read_gate;
use super::{ask_interpreter, jump_by_table, numeric_ask};
use crate::context::{Context, FAR_BITS, FAR_MODES, FarMode, Transfer, View};
use crate::descriptors::{CALL, KNOWN_DESCRIPTORS, KnownDescriptor};
use crate::routines::descriptors::DESCRIPTOR_NUMBER_SHIFT;

/// Leaves the instruction to the interpreter unless the [`FarMode`] at R10 is that of the selector in R9D, or
/// if numeric registers are in use. Keeps RCX in R8, and changes no flags. Uses the labels 2 to 4.
///
/// Operands: the offsets `numeric_is_live` and `selector`, and `ask_interpreter`.
macro_rules! check_far_mode {
    () => {
        "mov r8, rcx
        mov ecx, [r14 + {numeric_is_live}]
        jrcxz 2f
        jmp 3f
        2:
        mov ecx, [r10 + {selector}]
        not ecx
        lea ecx, [rcx + r9 + 1]
        jrcxz 4f
        3:
        mov rcx, r8
        jmp {ask_interpreter}
        4:"
    };
}

/// Loads R10 with the address of the [`FarMode`] of the selector in R9D, from those at `modes`, and
/// [checks](check_far_mode) it.
///
/// Operands: `bits`, `size_shift`, the offset `modes`, and those of [`check_far_mode`].
macro_rules! find_far_mode {
    () => {
        concat!(locate_far_mode!(), "\n", check_far_mode!())
    };
}

/// Loads R10 with the address of the [`FarMode`] of the selector in R9D. Leaves the instruction to the
/// interpreter if the segment is not known. Does so too if numeric registers are in use, since the selector
/// of their last instruction, which is that of CS, must stay known. Uses R8.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_find() {
    naked_asm!(
        find_far_mode!(),
        "mov rcx, r8",
        "ret",
        bits = const FAR_BITS,
        size_shift = const size_of::<FarMode>().ilog2(),
        modes = const offset_of!(Context, far_modes),
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        selector = const offset_of!(FarMode, selector),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Leaves the instruction to the interpreter as [`far_find`] does, but with the address of the [`FarMode`] in
/// R10 already. Uses R8.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_check() {
    naked_asm!(
        check_far_mode!(),
        "mov rcx, r8",
        "ret",
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        selector = const offset_of!(FarMode, selector),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Loads R10 as [`far_find`] does, in protected mode: the descriptor in memory must also be the one that CS
/// was last loaded from. Uses R8 and R9.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_find_descriptor() {
    naked_asm!(
        find_far_mode!(),
        "mov rcx, [r10 + {host}]",
        "mov rcx, [rcx]",
        "not rcx",
        "mov r9, [r10 + {descriptor}]",
        "lea rcx, [rcx + r9 + 1]",
        "jrcxz 5f",
        "jmp 3b",
        "5:",
        "mov rcx, r8",
        "ret",
        bits = const FAR_BITS,
        size_shift = const size_of::<FarMode>().ilog2(),
        modes = const offset_of!(Context, far_modes)
            + FarMode::BY_DESCRIPTOR * FAR_MODES * size_of::<FarMode>(),
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        selector = const offset_of!(FarMode, selector),
        host = const offset_of!(FarMode, host),
        descriptor = const offset_of!(FarMode, descriptor),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Goes on at the guest address in R8D, in the code whose [`FarMode`] is at R10.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_go() {
    naked_asm!(
        "mov r9d, [r10 + {mode_selector}]",
        "mov [r14 + {selector}], r9w",
        "mov r9d, [r10 + {mode_base}]",
        "mov [r14 + {base}], r9d",
        "mov r9, [r10 + {mode_code_limit}]",
        "mov [r14 + {code_limit}], r9",
        "mov dword ptr [r14 + {has_gone_far}], 1",
        "mov r13, [r10 + {table}]",
        // Numeric instructions have addresses with another selector from here on, so the engine is asked
        // before the next one.
        "lea r9, [rip + {numeric_ask}]",
        "mov [r14 + {numeric_check}], r9",
        // The same address in CS is other code in another segment, so the host's stack must be emptied.
        "mov rsp, [r14 + {no_returns}]",
        "jmp {jump_by_table}",
        mode_selector = const offset_of!(FarMode, selector),
        mode_base = const offset_of!(FarMode, base),
        mode_code_limit = const offset_of!(FarMode, code_limit),
        table = const offset_of!(FarMode, table),
        selector = const offset_of!(Context, selectors) + 2 * sreg::CS as usize,
        base = const offset_of!(Context, views)
            + size_of::<View>() * sreg::CS as usize
            + offset_of!(View, base),
        code_limit = const offset_of!(Context, code_limit),
        has_gone_far = const offset_of!(Context, has_gone_far),
        numeric_ask = sym numeric_ask,
        numeric_check = const offset_of!(Context, numeric_check),
        no_returns = const offset_of!(Context, no_returns),
        jump_by_table = sym jump_by_table,
    )
}

/// Reads the gate at offset R10D of the IDT, for INT n of segmented code at privilege 0. Stores the target in
/// the context.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_gate() {
    naked_asm!(
        "pushfq",
        "push rax",
        "mov r9d, 0x60",
        "call {read_gate}",
        "jc 2f",
        "mov [r14 + {far_selector}], r8w",
        "mov r8d, [r14 + {branch_target}]",
        "mov [r14 + {far_offset}], r8d",
        "movzx r8d, byte ptr [r14 + {flags}]",
        "shl r8d, 8",
        "mov eax, [r14 + {system_flags}]",
        "and eax, 0xffff00ff",
        "or eax, r8d",
        "mov [r14 + {far_flags}], eax",
        "pop rax",
        "popfq",
        "ret",
        "2:",
        "pop rax",
        "popfq",
        "jmp {ask_interpreter}",
        read_gate = sym read_gate,
        far_selector = const offset_of!(Context, far_selector),
        far_offset = const offset_of!(Context, far_offset),
        far_flags = const offset_of!(Context, far_flags),
        system_flags = const offset_of!(Context, system_flags),
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        branch_target = const offset_of!(Context, branch_target),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Checks a far transfer of flat code to the selector in R8D. Leaves the instruction to the interpreter
/// unless the selector's descriptor is that of flat code of the privilege that `ALLOWED` says, and is the one
/// in the selector's entry. Does so too if numeric registers are in use and the transfer changes the selector
/// of CS. Then R9D is 0. Uses R10.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_check_flat<const ALLOWED: u8>() {
    naked_asm!(
        keep_flags!(),
        find_descriptor!(),
        check_descriptor!("r10 + {allowed}", "r9", "3f"),
        "cmp r8w, [r14 + {code}]",
        "jne 4f",
        "2:",
        "xor r9d, r9d",
        restore_flags!(),
        "ret",
        "4:",
        "cmp dword ptr [r14 + {numeric_is_live}], 0",
        "je 2b",
        "3:",
        restore_flags!(),
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(Context, saved_rax),
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        allowed = const offset_of!(KnownDescriptor, allowed) + sreg::CS as usize,
        here = const ALLOWED,
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
        code = const offset_of!(Context, selectors) + 2 * sreg::CS as usize,
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Checks a far call as [`far_check_flat`] does. The call may also be through a call gate that is known to
/// lead to such code (SDM vol. 3, 6.8.4). Then this replaces the target, in [`Context::branch_target`], and
/// the selector of the code, in [`Context::far_selector`], by those of the gate.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_check_call<const ALLOWED: u8>() {
    naked_asm!(
        keep_flags!(),
        find_descriptor!(),
        check_descriptor!("r10 + {allowed}", "r9", "2f"),
        // The descriptor in memory is a known gate, and so not that of code.
        "mov r8d, [r10 + {offset}]",
        "mov [r14 + {branch_target}], r8d",
        "mov r8d, [r10 + {gate_code}]",
        "2:",
        "mov [r14 + {far_selector}], r8w",
        restore_flags!(),
        "jmp {far_check_flat}",
        saved_rax = const offset_of!(Context, saved_rax),
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        allowed = const offset_of!(KnownDescriptor, allowed) + CALL,
        here = const ALLOWED,
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
        offset = const offset_of!(KnownDescriptor, view) + offset_of!(View, base),
        gate_code = const offset_of!(KnownDescriptor, near),
        branch_target = const offset_of!(Context, branch_target),
        far_selector = const offset_of!(Context, far_selector),
        far_check_flat = sym far_check_flat::<ALLOWED>,
    )
}

/// Loads CS with the selector in R8D, for which [`far_check_flat`] has returned. Uses R9 and R10.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn far_load_flat() {
    naked_asm!(
        "mov r9, rcx",
        "movzx ecx, word ptr [r14 + {code}]",
        "not ecx",
        "lea ecx, [rcx + r8 + 1]",
        "jrcxz 2f",
        "mov [r14 + {code}], r8w",
        "mov byte ptr [r14 + {transferred}], 1",
        // Numeric instructions have addresses with another selector from here on, so the engine is asked
        // before the next one.
        "lea r10, [rip + {numeric_ask}]",
        "mov [r14 + {numeric_check}], r10",
        "2:",
        "mov rcx, r9",
        "ret",
        code = const offset_of!(Context, selectors) + 2 * sreg::CS as usize,
        transferred = const offset_of!(Context, transferred),
        numeric_ask = sym numeric_ask,
        numeric_check = const offset_of!(Context, numeric_check),
    )
}

const _: () = assert!(size_of::<FarMode>().is_power_of_two());
