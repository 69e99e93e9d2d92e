//! System instructions: those that the engine executes while translated code waits, and the cases that need
//! no engine.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::cpu::Cpu;
use ring3_x86::flags::Eflags;

use super::{call_interpreter, numeric_ask};
use crate::context::{
    ANSWERS, Answers, Context, CpuidAnswer, Loaded, MsrAnswer, Tables, leave, outcome, reason,
};
use crate::translator::execute_system;

/// The number of IA32_TIME_STAMP_COUNTER.
const TIME_STAMP_COUNTER: u32 = 0x10;
/// Offsets in the context of what is known of LDTR and of TR.
const LOCAL: usize = offset_of!(Context, tables) + offset_of!(Tables, local);
const TASK: usize = offset_of!(Context, tables) + offset_of!(Tables, task);
/// Offset in a descriptor of the byte with its type, and the bit of that byte which says that a task is busy.
const ATTRIBUTES: usize = 5;
const BUSY: u32 = 2;

/// Jumps to `$otherwise` unless the selector in R8D is that of a [`Loaded`] register, and its descriptor
/// still has the value with which it was loaded. Loads R9 with the host address of the descriptor. Uses R8,
/// and changes flags.
///
/// Operands: `selector`, `host` and `descriptor`, offsets in the context.
macro_rules! check_loaded {
    ($otherwise:literal) => {
        concat!(
            "cmp [r14 + {selector}], r8d\n",
            concat!("jne ", $otherwise, "\n"),
            "mov r9, [r14 + {host}]\n",
            "mov r8, [r9]\n",
            "cmp r8, [r14 + {descriptor}]\n",
            concat!("jne ", $otherwise),
        )
    };
}

/// Loads the guest's general registers from the processor state ([`Cpu`]) at R9.
///
/// Operand: `general`, the offset of the general registers in [`Cpu`].
macro_rules! load_registers {
    () => {
        "mov eax, [r9 + {general}]
        mov ecx, [r9 + {general} + 8]
        mov edx, [r9 + {general} + 16]
        mov ebx, [r9 + {general} + 24]
        mov r15d, [r9 + {general} + 32]
        mov ebp, [r9 + {general} + 40]
        mov esi, [r9 + {general} + 48]
        mov edi, [r9 + {general} + 56]"
    };
}

/// Calls the engine to execute the instruction with index R8D in the list of those that blocks leave to the
/// interpreter. The instruction must be the last one that was subtracted from the budget. Leaves it to the
/// interpreter, like any other, if it stops, if the numeric registers are in use, or if DF is set.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn system() {
    naked_asm!(
        "pushfq",
        "test dword ptr [rsp], {direction}",
        "jnz {call_interpreter}",
        "cmp dword ptr [r14 + {numeric_is_live}], 0",
        "jne {call_interpreter}",
        "mov r9, [r14 + {cpu}]",
        "mov [r9 + {general}], rax",
        "mov [r9 + {general} + 8], rcx",
        "mov [r9 + {general} + 16], rdx",
        "mov [r9 + {general} + 24], rbx",
        "mov [r9 + {general} + 32], r15",
        "mov [r9 + {general} + 40], rbp",
        "mov [r9 + {general} + 48], rsi",
        "mov [r9 + {general} + 56], rdi",
        "mov [r14 + {system_number}], r8d",
        "lea r8, [rsp + 16]",
        "mov [r14 + {returns}], r8",
        "mov [r14 + {budget}], r12",
        "mov rdi, r14",
        // The called function preserves RBX, RBP and R12 to R15.
        "mov rbx, rsp",
        "mov rsp, [r14 + {host_stack}]",
        "call {execute_system}",
        "mov rsp, rbx",
        "cmp eax, {done}",
        "jne 2f",
        "mov ecx, [rsp]",
        // POPF takes as long as this whole sequence.
        "1:",
        load_status!("ecx", "cl"),
        "mov r9, [r14 + {cpu}]",
        "mov r11d, [r14 + {index_mask}]",
        load_registers!(),
        "lea rsp, [rsp + 8]",
        "ret",
        "2:",
        "test eax, eax",
        "jz 4f",
        "mov ecx, [rsp]",
        "test eax, {sets_zero}",
        "jz 3f",
        "mov r8d, eax",
        "and r8d, {zero}",
        "and ecx, {without_zero}",
        "or ecx, r8d",
        "test eax, {leaves}",
        "jz 1b",
        "3:",
        "mov r8, [rsp + 8]",
        "mov [r14 + {fault_rip}], r8",
        "mov rsp, [r14 + {returns}]",
        "mov dword ptr [r14 + {reason}], {system_done}",
        load_status!("ecx", "cl"),
        "mov r9, [r14 + {cpu}]",
        load_registers!(),
        "jmp {leave}",
        // The guest's registers have not changed. RBX, and those that the call does not preserve, are loaded
        // again.
        "4:",
        "mov r9, [r14 + {cpu}]",
        "mov r11d, [r14 + {index_mask}]",
        "mov eax, [r9 + {general}]",
        "mov ecx, [r9 + {general} + 8]",
        "mov edx, [r9 + {general} + 16]",
        "mov ebx, [r9 + {general} + 24]",
        "mov esi, [r9 + {general} + 48]",
        "mov edi, [r9 + {general} + 56]",
        "jmp {call_interpreter}",
        direction = const Eflags::DF.bits(),
        call_interpreter = sym call_interpreter,
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        cpu = const offset_of!(Context, cpu),
        general = const Cpu::GENERAL_REGISTERS,
        system_number = const offset_of!(Context, system_number),
        returns = const offset_of!(Context, returns),
        budget = const offset_of!(Context, budget),
        host_stack = const offset_of!(Context, host_stack),
        execute_system = sym execute_system,
        done = const outcome::DONE,
        sets_zero = const outcome::SETS_ZERO,
        zero = const Eflags::ZF.bits(),
        without_zero = const !Eflags::ZF.bits() as i32,
        overflow = const Eflags::OF.bits().ilog2(),
        leaves = const outcome::LEAVES,
        index_mask = const offset_of!(Context, index_mask),
        fault_rip = const offset_of!(Context, fault.rip),
        reason = const offset_of!(Context, reason),
        system_done = const reason::SYSTEM,
        leave = sym leave,
    )
}

/// Executes CPUID, whose index is R8D. If the context knows the answer from before, the engine is not called.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn cpuid() {
    naked_asm!(
        "mov [r14 + {system_number}], r8d",
        "mov r9d, {answers} - 1",
        "pext r9d, eax, r9d",
        "rorx r9, r9, 64 - {answer_shift}",
        "lea r9, [r14 + r9 + {cpuid}]",
        "mov r10, rcx",
        "pext rcx, rcx, [r9 + {sub_leaf_bits}]",
        "rorx r8, rcx, 32",
        "lea r8, [r8 + rax + 1]",
        // The comparison must not change flags.
        "mov rcx, [r9 + {asked}]",
        "not rcx",
        "lea rcx, [rcx + r8]",
        "jrcxz 2f",
        "mov rcx, r10",
        "mov r8d, [r14 + {system_number}]",
        "jmp {system}",
        "2:",
        "mov eax, [r9 + {registers}]",
        "mov ebx, [r9 + {registers} + 4]",
        "mov ecx, [r9 + {registers} + 8]",
        "mov edx, [r9 + {registers} + 12]",
        "ret",
        system_number = const offset_of!(Context, system_number),
        answers = const ANSWERS,
        answer_shift = const size_of::<CpuidAnswer>().ilog2(),
        cpuid = const offset_of!(Context, answers) + offset_of!(Answers, cpuid),
        sub_leaf_bits = const offset_of!(CpuidAnswer, sub_leaf_bits),
        asked = const offset_of!(CpuidAnswer, asked),
        registers = const offset_of!(CpuidAnswer, registers),
        system = sym system,
    )
}

const _: () = assert!(size_of::<CpuidAnswer>().is_power_of_two());

/// Executes RDMSR at privilege 0, whose index is R8D. The instruction must be the last one that was
/// subtracted from the budget. If the context knows the answer from before, the engine is not called.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn rdmsr() {
    naked_asm!(
        "mov [r14 + {system_number}], r8d",
        "mov r9d, {answers} - 1",
        "pext r9d, ecx, r9d",
        "rorx r9, r9, 64 - {answer_shift}",
        "lea r9, [r14 + r9 + {msr}]",
        "mov r10, rcx",
        // The comparison must not change flags.
        "mov r8, [r9 + {number}]",
        "not r8",
        "lea rcx, [rcx + r8 + 1]",
        "jrcxz 2f",
        "lea rcx, [r10 - {time_stamp_counter}]",
        "jrcxz 3f",
        "mov rcx, r10",
        "mov r8d, [r14 + {system_number}]",
        "jmp {system}",
        "2:",
        "mov rcx, r10",
        "mov eax, [r9 + {registers}]",
        "mov edx, [r9 + {registers} + 4]",
        "ret",
        "3:",
        "mov rcx, r10",
        "jmp [r14 + {time_stamp}]",
        system_number = const offset_of!(Context, system_number),
        answers = const ANSWERS,
        answer_shift = const size_of::<MsrAnswer>().ilog2(),
        msr = const offset_of!(Context, answers) + offset_of!(Answers, msr),
        number = const offset_of!(MsrAnswer, number),
        time_stamp_counter = const TIME_STAMP_COUNTER,
        registers = const offset_of!(MsrAnswer, registers),
        time_stamp = const offset_of!(Context, time_stamp),
        system = sym system,
    )
}

const _: () = assert!(size_of::<MsrAnswer>().is_power_of_two());

/// Executes WRMSR, as [`rdmsr`] executes RDMSR. If the register has this value already, and does nothing but
/// hold it, the engine is not called.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn wrmsr() {
    naked_asm!(
        "mov [r14 + {system_number}], r8d",
        "mov r9d, {answers} - 1",
        "pext r9d, ecx, r9d",
        "rorx r9, r9, 64 - {answer_shift}",
        "lea r9, [r14 + r9 + {msr}]",
        "mov r10, rcx",
        // The comparisons must not change flags.
        "mov r8, [r9 + {rewritten}]",
        "not r8",
        "lea rcx, [rcx + r8 + 1]",
        "jrcxz 2f",
        "1:",
        "mov rcx, r10",
        "mov r8d, [r14 + {system_number}]",
        "jmp {system}",
        "2:",
        "mov rcx, [r9 + {registers}]",
        "not rcx",
        "rorx r8, rdx, 32",
        "lea r8, [r8 + rax + 1]",
        "lea rcx, [rcx + r8]",
        "jrcxz 3f",
        "jmp 1b",
        "3:",
        "mov rcx, r10",
        "ret",
        system_number = const offset_of!(Context, system_number),
        answers = const ANSWERS,
        answer_shift = const size_of::<MsrAnswer>().ilog2(),
        msr = const offset_of!(Context, answers) + offset_of!(Answers, msr),
        rewritten = const offset_of!(MsrAnswer, rewritten),
        registers = const offset_of!(MsrAnswer, registers),
        system = sym system,
    )
}

/// Executes LGDT, whose index is R8D. R10 holds the value to load, in the format of
/// [`Context::table_registers`]. If GDTR has this value already, the engine is not called.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn lgdt() {
    naked_asm!(
        "mov r9, rcx",
        "mov rcx, [r14 + {gdtr}]",
        "jmp {load_table}",
        gdtr = const offset_of!(Context, table_registers),
        load_table = sym load_table,
    )
}

/// Executes LIDT as [`lgdt`] executes LGDT.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn lidt() {
    naked_asm!(
        "mov r9, rcx",
        "mov rcx, [r14 + {idtr}]",
        "jmp {load_table}",
        idtr = const offset_of!(Context, table_registers) + 8,
        load_table = sym load_table,
    )
}

/// Executes the common part of LGDT and LIDT. RCX holds the table register's value, and R9 the guest's RCX.
#[unsafe(naked)]
unsafe extern "sysv64" fn load_table() {
    naked_asm!(
        // The comparison must not change flags.
        "not rcx",
        "lea rcx, [rcx + r10 + 1]",
        "jrcxz 2f",
        "mov rcx, r9",
        "jmp {system}",
        "2:",
        "mov rcx, r9",
        "ret",
        system = sym system,
    )
}

/// Executes LLDT with the selector in R8D, in flat code. R10D is the index of the instruction. If LDTR was
/// loaded from this descriptor already, the engine is not called.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn lldt() {
    naked_asm!(
        keep_flags!(),
        check_loaded!("2f"),
        restore_flags!(),
        "ret",
        "2:",
        restore_flags!(),
        "mov r8d, r10d",
        "jmp {system}",
        saved_rax = const offset_of!(Context, saved_rax),
        selector = const LOCAL + offset_of!(Loaded, selector),
        host = const LOCAL + offset_of!(Loaded, host),
        descriptor = const LOCAL + offset_of!(Loaded, descriptor),
        system = sym system,
    )
}

/// Executes LTR as [`lldt`] executes LLDT, and marks the task as busy.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn ltr() {
    naked_asm!(
        keep_flags!(),
        check_loaded!("2f"),
        "or byte ptr [r9 + {attributes}], {busy}",
        restore_flags!(),
        "ret",
        "2:",
        restore_flags!(),
        "mov r8d, r10d",
        "jmp {system}",
        saved_rax = const offset_of!(Context, saved_rax),
        selector = const TASK + offset_of!(Loaded, selector),
        host = const TASK + offset_of!(Loaded, host),
        descriptor = const TASK + offset_of!(Loaded, descriptor),
        attributes = const ATTRIBUTES,
        busy = const BUSY,
        system = sym system,
    )
}

/// Loads CR0 with R8D in flat code. R10D is the index of the instruction. The engine is not called if CR0 has
/// this value already, or if only TS changes; after a change of TS, the next numeric instruction asks the
/// engine.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn load_cr0() {
    naked_asm!(
        "mov r9, rcx",
        // The comparisons must not change flags.
        "mov ecx, [r14 + {cr0}]",
        "not ecx",
        "lea ecx, [rcx + r8 + 1]",
        "jrcxz 3f",
        "mov ecx, [r14 + {task_switched}]",
        "not ecx",
        "lea ecx, [rcx + r8 + 1]",
        "jrcxz 2f",
        "mov ecx, [r14 + {task_switched} + 4]",
        "not ecx",
        "lea ecx, [rcx + r8 + 1]",
        "jrcxz 2f",
        "mov rcx, r9",
        "mov r8d, r10d",
        "jmp {system}",
        "2:",
        "mov [r14 + {cr0}], r8d",
        "mov rcx, [r14 + {cpu}]",
        "mov [rcx + {control_register_0}], r8d",
        "lea rcx, [rip + {numeric_ask}]",
        "mov [r14 + {numeric_check}], rcx",
        "3:",
        "mov rcx, r9",
        "ret",
        cr0 = const offset_of!(Context, control),
        task_switched = const offset_of!(Context, task_switched),
        cpu = const offset_of!(Context, cpu),
        control_register_0 = const Cpu::CONTROL_REGISTER_0,
        numeric_ask = sym numeric_ask,
        numeric_check = const offset_of!(Context, numeric_check),
        system = sym system,
    )
}

/// Loads CR4 with R8D. R10D is the index of the instruction. If CR4 has this value already, the engine is not
/// called.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn load_cr4() {
    naked_asm!(
        "mov r9, rcx",
        // The comparison must not change flags.
        "mov rcx, [r14 + {known_cr4}]",
        "not rcx",
        "lea rcx, [rcx + r8 + 1]",
        "jrcxz 2f",
        "mov rcx, r9",
        "mov r8d, r10d",
        "jmp {system}",
        "2:",
        "mov rcx, r9",
        "ret",
        known_cr4 = const offset_of!(Context, known_cr4),
        system = sym system,
    )
}
