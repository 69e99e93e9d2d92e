//! Interrupts and exceptions of virtual-8086 mode, and IRET to it (SDM vol. 3, 21.2.4 and 21.3). The code
//! that runs in virtual-8086 mode is the *program*, and that of the supervisor to which it leads its
//! *monitor*.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::segment::sreg;

use super::descriptors::known_descriptor;
use super::privileges::{read_gate, read_inner_stack};
use super::{ask_interpreter, jump_by_table, numeric_ask};
use crate::context::{
    Context, FAR_BITS, FAR_MODES, FarMode, HOST_FLAGS, STATUS_AND_DIRECTION, Transfer, View,
    crossed_to,
};
use crate::descriptors::{KnownDescriptor, allowed};
use crate::mode::SEGMENTED_INDEX_MASK;

/// The flags of which [`Virtual::flags`](crate::context::Virtual::flags) says how IRET must pop them.
pub(crate) const DECISIVE: u32 = FORBIDDEN | Eflags::VM.union(Eflags::IOPL).bits();
/// Flags that are neither set before IRET nor after it.
const FORBIDDEN: u32 =
    Eflags::TF.union(Eflags::NT).union(Eflags::AC).union(Eflags::VIF).union(Eflags::VIP).bits();
/// Flags that IRET loads into [`Context::system_flags`].
const LOADED: u32 = Eflags::IF.union(Eflags::IOPL).union(Eflags::ID).bits();
/// [`Context::loaded`] after ES, DS, FS and GS were made null.
const DATA_LOADED: u64 =
    1 << (8 * sreg::ES) | 1 << (8 * sreg::DS) | 1 << (8 * sreg::FS) | 1 << (8 * sreg::GS);

/// Sets the limits of the view of the segment register `$register` to R9.
///
/// Operands: `views`, `view`, `read_limit`, `write_limit`, and the number of the register.
macro_rules! set_limits {
    ($register:literal) => {
        concat!(
            concat!("mov [r14 + {views} + {view} * {", $register, "} + {read_limit}], r9\n"),
            concat!("mov [r14 + {views} + {view} * {", $register, "} + {write_limit}], r9"),
        )
    };
}

/// Makes the view of the segment register `$register` that of a null selector. R9 is the
/// [closed limit](Context::closed_limit).
///
/// Operands: those of [`set_limits`], and `base`.
macro_rules! close_view {
    ($register:literal) => {
        concat!(
            set_limits!($register),
            concat!("\nmov dword ptr [r14 + {views} + {view} * {", $register, "} + {base}], 0"),
        )
    };
}

/// Loads CS or SS, `$register`, from the [`KnownDescriptor`] at R10, whose segment begins at 0. Uses R9.
///
/// Operands: those of [`close_view`], `selectors`, `known_selector` and `known_view`.
macro_rules! load_flat {
    ($register:literal) => {
        concat!(
            "mov r9d, [r10 + {known_selector}]\n",
            concat!("mov [r14 + {selectors} + 2 * {", $register, "}], r9w\n"),
            "mov r9, [r10 + {known_view} + {read_limit}]\n",
            concat!("mov [r14 + {views} + {view} * {", $register, "} + {read_limit}], r9\n"),
            "mov r9, [r10 + {known_view} + {write_limit}]\n",
            concat!("mov [r14 + {views} + {view} * {", $register, "} + {write_limit}], r9\n"),
            concat!("mov dword ptr [r14 + {views} + {view} * {", $register, "} + {base}], 0"),
        )
    };
}

/// Loads the segment register `$register` of the program with the element of number `$element` that IRET has
/// popped. R9 is the limit of all segments. Uses R8.
///
/// Operands: those of [`close_view`], `selectors` and `popped`.
macro_rules! load_popped {
    ($register:literal, $element:literal) => {
        concat!(
            concat!("movzx r8d, word ptr [r14 + {popped} + 4 * ", $element, "]\n"),
            concat!("mov [r14 + {selectors} + 2 * {", $register, "}], r8w\n"),
            "shl r8d, 4\n",
            concat!("mov [r14 + {views} + {view} * {", $register, "} + {base}], r8d\n"),
            set_limits!($register),
        )
    };
}

/// Executes INT n of the program, or raises the exception of an instruction that it may not execute
/// (`IS_EXCEPTION`), by the gate at offset R10D of the IDT, up to its pushes on the monitor's stack. Then
/// R10D is the stack pointer, R9D is EFLAGS as it is pushed, and GS is the monitor's window.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn interrupt_program<const IS_EXCEPTION: bool>() {
    naked_asm!(
        "pushfq",
        keep_flags!(),
        "push rax",
        "mov r9d, {any_privilege}",
        "call {read_gate}",
        "jc 2f",
        // The selectors of the next numeric instruction are others.
        "cmp dword ptr [r14 + {numeric_is_live}], 0",
        "jne 2f",
        "mov [r14 + {code}], r8w",
        "mov r9d, {cs}",
        "call {known_descriptor}",
        "jc 2f",
        "mov [r14 + {code_descriptor}], r10",
        "call {read_inner_stack}",
        "jc 2f",
        "mov [r14 + {stack_descriptor}], r10",
        "mov r9, [r14 + {window}]",
        "wrgsbase r9",
        "mov r10d, [r14 + {pointer}]",
        "mov r9d, [rsp + 8]",
        "and r9d, {status}",
        "or r9d, [r14 + {system_flags}]",
        "or r9d, {pushed}",
        "pop rax",
        restore_flags!(),
        "lea rsp, [rsp + 8]",
        "ret",
        "2:",
        "pop rax",
        restore_flags!(),
        "lea rsp, [rsp + 8]",
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(Context, saved_rax),
        any_privilege = const if IS_EXCEPTION { 0x60u32 } else { 0 },
        read_gate = sym read_gate,
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        code = const offset_of!(Context, transfer) + offset_of!(Transfer, code),
        cs = const sreg::CS,
        known_descriptor = sym known_descriptor::<{ allowed::FLAT }>,
        code_descriptor = const offset_of!(Context, virtual_8086.code),
        read_inner_stack = sym read_inner_stack,
        stack_descriptor = const offset_of!(Context, virtual_8086.stack),
        window = const offset_of!(Context, virtual_8086.monitor.window),
        pointer = const offset_of!(Context, transfer) + offset_of!(Transfer, pointer),
        status = const STATUS_AND_DIRECTION,
        system_flags = const offset_of!(Context, system_flags),
        // Faults push RF (SDM vol. 3, 19.3.1.1).
        pushed = const Eflags::VM.bits() | if IS_EXCEPTION { Eflags::RF.bits() } else { 0 },
        ask_interpreter = sym ask_interpreter,
    )
}

/// Enters the monitor after all pushes, with its stack pointer in R10D.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter_monitor() {
    naked_asm!(
        "mov r15d, r10d",
        "mov r9b, [r14 + {flags}]",
        "mov [r14 + {system_flags} + 1], r9b",
        // ES, DS, FS and GS become null.
        "mov r9, [r14 + {closed_limit}]",
        "mov dword ptr [r14 + {selectors} + 2 * {fs}], 0",
        "mov word ptr [r14 + {selectors} + 2 * {es}], 0",
        "mov word ptr [r14 + {selectors} + 2 * {ds}], 0",
        close_view!("es"),
        close_view!("ds"),
        close_view!("fs"),
        close_view!("gs"),
        "mov r9, {data_loaded}",
        "mov [r14 + {loaded}], r9",
        // Code and stack begin at 0.
        "mov r10, [r14 + {code_descriptor}]",
        load_flat!("cs"),
        "mov r10, [r14 + {stack_descriptor}]",
        load_flat!("ss"),
        "mov word ptr [r14 + {transferred}], 0x101",
        "mov dword ptr [r14 + {has_gone_far}], 0",
        "mov dword ptr [r14 + {crossed_to}], {to_monitor}",
        "lea r9, [rip + {numeric_ask}]",
        "mov [r14 + {numeric_check}], r9",
        "mov r9, [r14 + {monitor_window}]",
        "mov [r14 + {window}], r9",
        "mov r13, [r14 + {table}]",
        "mov r11d, {index_mask}",
        "mov rsp, [r14 + {returns}]",
        "mov [r14 + {no_returns}], rsp",
        "mov r8d, [r14 + {branch_target}]",
        "jmp {jump_by_table}",
        flags = const offset_of!(Context, transfer) + offset_of!(Transfer, flags),
        system_flags = const offset_of!(Context, system_flags),
        closed_limit = const offset_of!(Context, closed_limit),
        selectors = const offset_of!(Context, selectors),
        es = const sreg::ES,
        cs = const sreg::CS,
        ss = const sreg::SS,
        ds = const sreg::DS,
        fs = const sreg::FS,
        gs = const sreg::GS,
        views = const offset_of!(Context, views),
        view = const size_of::<View>(),
        read_limit = const offset_of!(View, read_limit),
        write_limit = const offset_of!(View, write_limit),
        base = const offset_of!(View, base),
        data_loaded = const DATA_LOADED,
        loaded = const offset_of!(Context, loaded),
        code_descriptor = const offset_of!(Context, virtual_8086.code),
        stack_descriptor = const offset_of!(Context, virtual_8086.stack),
        known_selector = const offset_of!(KnownDescriptor, selector),
        known_view = const offset_of!(KnownDescriptor, view),
        transferred = const offset_of!(Context, transferred),
        has_gone_far = const offset_of!(Context, has_gone_far),
        crossed_to = const offset_of!(Context, crossed_to),
        to_monitor = const crossed_to::MONITOR,
        numeric_ask = sym numeric_ask,
        numeric_check = const offset_of!(Context, numeric_check),
        monitor_window = const offset_of!(Context, virtual_8086.monitor.window),
        window = const offset_of!(Context, window),
        table = const offset_of!(Context, virtual_8086.monitor.table),
        index_mask = const SEGMENTED_INDEX_MASK,
        returns = const offset_of!(Context, virtual_8086.monitor.returns),
        no_returns = const offset_of!(Context, no_returns),
        branch_target = const offset_of!(Context, branch_target),
        jump_by_table = sym jump_by_table,
    )
}

/// Finds the [`FarMode`] of the program's code to which IRET with the values in the context's `far_flags`,
/// `far_selector` and `far_offset` leads, with VM set. Sets CF if the interpreter must execute IRET. Uses R8
/// to R10.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn find_program() {
    naked_asm!(
        "mov r8d, [r14 + {far_flags}]",
        "mov r9d, r8d",
        "and r9d, {decisive}",
        "cmp r9d, [r14 + {expected}]",
        "jne 2f",
        "mov r9d, [r14 + {system_flags}]",
        "test r9d, {forbidden}",
        "jnz 2f",
        "xor r9d, r8d",
        "test r9d, {id}",
        "jnz 2f",
        "test r8d, {interrupt}",
        "jz 1f",
        "cmp byte ptr [r14 + {pin}], 0",
        "jne 2f",
        "1:",
        // The selectors of the next numeric instruction are others.
        "cmp dword ptr [r14 + {numeric_is_live}], 0",
        "jne 2f",
        "movzx r8d, word ptr [r14 + {far_offset}]",
        "cmp r8, [r14 + {awaited}]",
        "je 2f",
        "movzx r9d, word ptr [r14 + {far_selector}]",
        locate_far_mode!(),
        "cmp [r10 + {selector}], r9d",
        "jne 2f",
        "mov [r14 + {far_mode}], r10",
        "clc",
        "ret",
        "2:",
        "stc",
        "ret",
        far_flags = const offset_of!(Context, far_flags),
        decisive = const DECISIVE,
        expected = const offset_of!(Context, virtual_8086.flags),
        system_flags = const offset_of!(Context, system_flags),
        forbidden = const FORBIDDEN,
        id = const Eflags::ID.bits(),
        interrupt = const Eflags::IF.bits(),
        pin = const offset_of!(Context, interrupt_pin),
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        far_offset = const offset_of!(Context, far_offset),
        awaited = const offset_of!(Context, awaited),
        far_selector = const offset_of!(Context, far_selector),
        bits = const FAR_BITS,
        size_shift = const size_of::<FarMode>().ilog2(),
        modes = const offset_of!(Context, far_modes),
        selector = const offset_of!(FarMode, selector),
        far_mode = const offset_of!(Context, virtual_8086.far_mode),
    )
}

/// Checks IRET of segmented code at privilege 0 that has popped the values in the context's `far_flags`,
/// `far_selector` and `far_offset`. If it leads to the program, R9D is 1, and what is left are its other pops
/// and [`enter_program`]. If VM is clear, R9D is 0.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn check_return_to_program() {
    naked_asm!(
        keep_flags!(),
        "test dword ptr [r14 + {far_flags}], {vm}",
        "jz 2f",
        "call {find_program}",
        "jc 3f",
        "mov r9d, 1",
        restore_flags!(),
        "ret",
        "2:",
        "xor r9d, r9d",
        restore_flags!(),
        "ret",
        "3:",
        restore_flags!(),
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(Context, saved_rax),
        far_flags = const offset_of!(Context, far_flags),
        vm = const Eflags::VM.bits(),
        find_program = sym find_program,
        ask_interpreter = sym ask_interpreter,
    )
}

/// Executes the rest of IRET to the program, which [`find_program`] has found, after its pops.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter_program() {
    naked_asm!(
        "mov r10, [r14 + {far_mode}]",
        "mov r13, [r10 + {mode_table}]",
        "mov r8d, [r10 + {mode_selector}]",
        "mov [r14 + {selectors} + 2 * {cs}], r8w",
        "mov r8d, [r10 + {mode_base}]",
        "mov [r14 + {views} + {view} * {cs} + {base}], r8d",
        // All segments have the same limit.
        "mov r9, [r10 + {mode_code_limit}]",
        "mov [r14 + {code_limit}], r9",
        set_limits!("cs"),
        load_popped!("ss", "1"),
        load_popped!("es", "2"),
        load_popped!("ds", "3"),
        load_popped!("fs", "4"),
        load_popped!("gs", "5"),
        "mov r15d, [r14 + {popped}]",
        "mov qword ptr [r14 + {loaded}], 0",
        "mov word ptr [r14 + {transferred}], 0",
        "mov dword ptr [r14 + {has_gone_far}], 0",
        "mov dword ptr [r14 + {crossed_to}], {to_program}",
        "lea r9, [rip + {numeric_ask}]",
        "mov [r14 + {numeric_check}], r9",
        "mov r11d, {index_mask}",
        "mov r9, [r14 + {program_window}]",
        "mov [r14 + {window}], r9",
        "wrgsbase r9",
        "mov r8d, [r14 + {far_flags}]",
        "mov r9d, r8d",
        "and r9d, {loaded_flags}",
        "or r9d, {always_one}",
        "mov [r14 + {system_flags}], r9d",
        "and r9d, {without_interrupt}",
        "mov [r14 + {flags_without_if}], r9d",
        // While there are no breakpoints, RF is visible only if no further instruction is executed.
        "test r8d, {resume}",
        "jz 1f",
        "mov [r14 + {resumed}], r12",
        "1:",
        "test r8d, {direction}",
        "jnz 3f",
        "cld",
        "mov [r14 + {saved_rax}], rax",
        load_status!("r8d", "r8b"),
        "mov rax, [r14 + {saved_rax}]",
        "2:",
        "movzx r8d, word ptr [r14 + {far_offset}]",
        "mov rsp, [r14 + {returns}]",
        "mov [r14 + {no_returns}], rsp",
        "jmp {jump_by_table}",
        "3:",
        "and r8d, {status}",
        "or r8d, {host}",
        "push r8",
        "popfq",
        "jmp 2b",
        far_mode = const offset_of!(Context, virtual_8086.far_mode),
        mode_table = const offset_of!(FarMode, table),
        mode_selector = const offset_of!(FarMode, selector),
        mode_base = const offset_of!(FarMode, base),
        mode_code_limit = const offset_of!(FarMode, code_limit),
        code_limit = const offset_of!(Context, code_limit),
        selectors = const offset_of!(Context, selectors),
        es = const sreg::ES,
        cs = const sreg::CS,
        ss = const sreg::SS,
        ds = const sreg::DS,
        fs = const sreg::FS,
        gs = const sreg::GS,
        views = const offset_of!(Context, views),
        view = const size_of::<View>(),
        read_limit = const offset_of!(View, read_limit),
        write_limit = const offset_of!(View, write_limit),
        base = const offset_of!(View, base),
        popped = const offset_of!(Context, virtual_8086.popped),
        loaded = const offset_of!(Context, loaded),
        transferred = const offset_of!(Context, transferred),
        has_gone_far = const offset_of!(Context, has_gone_far),
        crossed_to = const offset_of!(Context, crossed_to),
        to_program = const crossed_to::PROGRAM,
        numeric_ask = sym numeric_ask,
        numeric_check = const offset_of!(Context, numeric_check),
        index_mask = const SEGMENTED_INDEX_MASK,
        program_window = const offset_of!(Context, virtual_8086.program.window),
        window = const offset_of!(Context, window),
        far_flags = const offset_of!(Context, far_flags),
        loaded_flags = const LOADED,
        always_one = const ALWAYS_ONE,
        system_flags = const offset_of!(Context, system_flags),
        without_interrupt = const !Eflags::IF.bits() as i32,
        flags_without_if = const offset_of!(Context, flags_without_if),
        resume = const Eflags::RF.bits(),
        resumed = const offset_of!(Context, resumed),
        direction = const Eflags::DF.bits(),
        saved_rax = const offset_of!(Context, saved_rax),
        overflow = const Eflags::OF.bits().ilog2(),
        far_offset = const offset_of!(Context, far_offset),
        returns = const offset_of!(Context, virtual_8086.program.returns),
        no_returns = const offset_of!(Context, no_returns),
        jump_by_table = sym jump_by_table,
        status = const STATUS_AND_DIRECTION,
        host = const HOST_FLAGS,
    )
}

// `enter_monitor` clears the selectors of FS and GS at once.
const _: () = assert!(sreg::GS == sreg::FS + 1 && FAR_MODES.is_power_of_two());
