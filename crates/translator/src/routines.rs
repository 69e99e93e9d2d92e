//! The routines that translated code calls. They may use R8 to R10; all other registers are the guest's.
//!
//! # Safety
//! Only translated code may call them, with its registers as [`context`](crate::context) says and the return
//! address on the host's stack.

/// Saves RAX in the context, and the status flags in AX. Restoring the flags by POPF would take longer than
/// what a routine does meanwhile.
///
/// Operand: `saved_rax`, the offset of [`Context::saved_rax`].
macro_rules! keep_flags {
    () => {
        "mov [r14 + {saved_rax}], rax
        lahf
        seto al"
    };
}

/// Restores RAX and the status flags that [`keep_flags`] has saved.
macro_rules! restore_flags {
    () => {
        "add al, 0x7f
        sahf
        mov rax, [r14 + {saved_rax}]"
    };
}

/// Loads the status flags from `$flags`, whose low byte is `$low`. Uses EAX and `$flags`.
///
/// Operand: `overflow`, the number of OF.
macro_rules! load_status {
    ($flags:literal, $low:literal) => {
        concat!(
            concat!("mov eax, ", $flags, "\n"),
            concat!("shr ", $flags, ", {overflow}\n"),
            concat!("and ", $flags, ", 1\n"),
            "shl eax, 8\n",
            concat!("mov al, ", $low, "\n"),
            "add al, 0x7f\n",
            "sahf",
        )
    };
}

/// Sets the status flags and DF to those in R8D, restores the RAX that [`keep_flags`] has saved, and returns. The
/// host's POPF takes longer than this, so it serves only to set DF. Takes the number of a label.
///
/// Operands: `direction`, `status`, `host`, and those of [`load_status`] and [`keep_flags`].
macro_rules! return_with_flags {
    ($label:literal) => {
        concat!(
            "test r8d, {direction}\n",
            concat!("jnz ", $label, "f\n"),
            "cld\n",
            load_status!("r8d", "r8b"),
            "\n",
            "mov rax, [r14 + {saved_rax}]\n",
            "ret\n",
            concat!($label, ":\n"),
            "and r8d, {status}\n",
            "or r8d, {host}\n",
            "push r8\n",
            "popfq\n",
            "mov rax, [r14 + {saved_rax}]\n",
            "ret",
        )
    };
}

/// Loads R10 with the address of the entry for the selector in R9D in a table of
/// [`FarMode`](crate::context::FarMode)s. Uses R8, and changes no flags.
///
/// Operands: `bits` ([`FAR_BITS`](crate::context::FAR_BITS)), `size_shift`, and `modes`, the offset of the
/// table in the context.
macro_rules! locate_far_mode {
    () => {
        "rorx r10d, r9d, 8
        lea r10d, [r10 + r9]
        mov r8d, {bits}
        pext r10d, r10d, r8d
        rorx r10, r10, 64 - {size_shift}
        lea r10, [r14 + r10 + {modes}]"
    };
}

/// Loads R10 with the address of the [`KnownDescriptor`](crate::descriptors::KnownDescriptor) for the
/// selector in R8D. Changes flags.
///
/// Operands: `number_shift` ([`descriptors::DESCRIPTOR_NUMBER_SHIFT`]), `number_mask`, `descriptor_shift`,
/// and `known_descriptors`, the offset of the known descriptors in the context.
macro_rules! find_descriptor {
    () => {
        "mov r10d, r8d
        shr r10d, {number_shift}
        and r10d, {number_mask}
        shl r10d, {descriptor_shift}
        lea r10, [r14 + r10 + {known_descriptors}]"
    };
}

/// Jumps to `$otherwise` unless the known descriptor at R10 is that of the selector in R8D, its byte at
/// `$allowed` has a bit of `here` set, and the descriptor in memory is the one in the entry. Uses `$used`,
/// and changes flags.
///
/// Operands: `selector`, `host` and `descriptor`, offsets in a
/// [`KnownDescriptor`](crate::descriptors::KnownDescriptor), and `here`.
macro_rules! check_descriptor {
    ($allowed:literal, $used:literal, $otherwise:literal) => {
        concat!(
            "cmp [r10 + {selector}], r8d\n",
            concat!("jne ", $otherwise, "\n"),
            concat!("test byte ptr [", $allowed, "], {here}\n"),
            concat!("jz ", $otherwise, "\n"),
            concat!("mov ", $used, ", [r10 + {host}]\n"),
            concat!("mov ", $used, ", [", $used, "]\n"),
            concat!("cmp ", $used, ", [r10 + {descriptor}]\n"),
            concat!("jne ", $otherwise),
        )
    };
}

pub(crate) mod descriptors;
pub(crate) mod devices;
pub(crate) mod exceptions;
pub(crate) mod far;
pub(crate) mod privileges;
pub(crate) mod system;
pub(crate) mod virtual_8086;

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_core::clock::PICOS_PER_NANO;
use ring3_x86::flags::Eflags;

use crate::context::{
    Context, HOST_FLAGS, INDEX_ROTATION, STATUS_AND_DIRECTION, TimeStamp, leave, reason,
};

const IF: u32 = Eflags::IF.bits();
/// Bits of EFLAGS that POPF changes at no privilege level, or that do not exist: 1, 3, 5, 15, RF, VM, VIF,
/// VIP and all from 22 on.
pub(crate) const KEPT_BY_POPF: u32 = 0xffdb_802a;
/// Bits of EFLAGS that IRET does not change either, at privilege 0.
pub(crate) const KEPT_BY_IRET: u32 =
    KEPT_BY_POPF & !Eflags::RF.union(Eflags::VM).union(Eflags::VIF).union(Eflags::VIP).bits();
/// Larger counts are left to the interpreter.
const LARGEST_COUNT: u32 = 1 << 16;

/// Executes STI where the code may change IF. Leaves the instruction to the interpreter if an interrupt is
/// waiting, or if IF is set already.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn sti() {
    naked_asm!(
        "mov r8, rax",
        "lahf",
        "seto al",
        "cmp byte ptr [r14 + {pin}], 0",
        "jne 2f",
        "mov r9d, [r14 + {system_flags}]",
        "test r9d, {interrupt}",
        "jnz 2f",
        "or r9d, {interrupt}",
        "mov [r14 + {system_flags}], r9d",
        "add al, 0x7f",
        "sahf",
        "mov rax, r8",
        "ret",
        "2:",
        "add al, 0x7f",
        "sahf",
        "mov rax, r8",
        "jmp {ask_interpreter}",
        pin = const offset_of!(Context, interrupt_pin),
        system_flags = const offset_of!(Context, system_flags),
        interrupt = const IF,
        ask_interpreter = sym ask_interpreter,
    )
}

/// Executes POPF of the value in R8D, ignoring the flags in `IGNORED`, where the code may change IF. Leaves
/// the instruction to the interpreter if it changes flags other than the usual ones, or if it sets IF while
/// an interrupt is waiting. Where `TRAPS` is true and it changes TF but neither IF nor other unusual flags, it is
/// executed, and the engine sets TF. Uses R9.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn popf<const IGNORED: u32, const TRAPS: bool>() {
    naked_asm!(
        keep_flags!(),
        "mov r9d, r8d",
        "xor r9d, [r14 + {system_flags}]",
        "test r9d, {unusual}",
        "jne 5f",
        "mov r9d, r8d",
        "and r9d, {interrupt}",
        "je 2f",
        "cmp byte ptr [r14 + {pin}], 0",
        "jne 6f",
        "2:",
        "mov eax, [r14 + {system_flags}]",
        "and eax, {without_interrupt}",
        "or eax, r9d",
        "mov [r14 + {system_flags}], eax",
        "4:",
        return_with_flags!("3"),
        "5:",
        "and r9d, {beside_trap}",
        "jnz 6f",
        "call 4b",
        "mov dword ptr [r14 + {reason}], {trap_flag}",
        "jmp {leave_call}",
        "6:",
        restore_flags!(),
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(Context, saved_rax),
        pin = const offset_of!(Context, interrupt_pin),
        system_flags = const offset_of!(Context, system_flags),
        unusual = const !(STATUS_AND_DIRECTION | IF | IGNORED),
        beside_trap = const if TRAPS {
            !(STATUS_AND_DIRECTION | Eflags::TF.bits() | IGNORED) as i32
        } else {
            -1
        },
        reason = const offset_of!(Context, reason),
        trap_flag = const reason::TRAP_FLAG,
        leave_call = sym leave_call,
        interrupt = const IF,
        without_interrupt = const !IF as i32,
        direction = const Eflags::DF.bits(),
        overflow = const Eflags::OF.bits().ilog2(),
        status = const STATUS_AND_DIRECTION,
        host = const HOST_FLAGS,
        ask_interpreter = sym ask_interpreter,
    )
}

/// Executes POPF of the value in R8D in flat user code, which changes IF only if IOPL is 3, and never IOPL (SDM
/// vol. 2, POPF, table 4-15). Leaves the instruction to the interpreter if it changes flags other than the status
/// flags and DF. Uses R9.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn popf_of_user() {
    naked_asm!(
        keep_flags!(),
        "mov r9d, r8d",
        "xor r9d, [r14 + {system_flags}]",
        "test r9d, {unusual}",
        "jne 5f",
        "test r9d, {interrupt}",
        "jz 2f",
        "mov r9d, [r14 + {system_flags}]",
        "not r9d",
        "test r9d, {iopl}",
        "jz 5f",
        "2:",
        return_with_flags!("3"),
        "5:",
        restore_flags!(),
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(Context, saved_rax),
        system_flags = const offset_of!(Context, system_flags),
        unusual = const !(STATUS_AND_DIRECTION | KEPT_BY_POPF | IF | Eflags::IOPL.bits()),
        interrupt = const IF,
        iopl = const Eflags::IOPL.bits(),
        direction = const Eflags::DF.bits(),
        overflow = const Eflags::OF.bits().ilog2(),
        status = const STATUS_AND_DIRECTION,
        host = const HOST_FLAGS,
        ask_interpreter = sym ask_interpreter,
    )
}

/// Executes CLAC at privilege 0.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn clac() {
    naked_asm!(
        "mov r8b, [r14 + {without_ac}]",
        "mov [r14 + {system_flags} + 2], r8b",
        "mov [r14 + {flags_without_if} + 2], r8b",
        "mov r8, [r14 + {user_window_without_ac}]",
        "mov [r14 + {user_window}], r8",
        "mov r8, [r14 + {outward_without_ac}]",
        "mov [r14 + {sysexit}], r8",
        "mov r8, [r14 + {outward_without_ac} + 8]",
        "mov [r14 + {interrupt_return} + 8], r8",
        "ret",
        without_ac = const offset_of!(Context, flags_with_ac),
        flags_without_if = const offset_of!(Context, flags_without_if),
        system_flags = const offset_of!(Context, system_flags),
        user_window_without_ac = const offset_of!(Context, user_windows),
        user_window = const offset_of!(Context, user_window),
        outward_without_ac = const offset_of!(Context, outward_without_ac),
        sysexit = const offset_of!(Context, sysexit),
        interrupt_return = const offset_of!(Context, interrupt_return),
    )
}

/// Executes STAC at privilege 0.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn stac() {
    naked_asm!(
        "mov r8b, [r14 + {with_ac}]",
        "mov [r14 + {system_flags} + 2], r8b",
        "mov [r14 + {flags_without_if} + 2], r8b",
        "mov r8, [r14 + {user_window_with_ac}]",
        "mov [r14 + {user_window}], r8",
        "mov r8, [r14 + {leave_to_call}]",
        "mov [r14 + {sysexit}], r8",
        "mov [r14 + {interrupt_return} + 8], r8",
        "ret",
        with_ac = const offset_of!(Context, flags_with_ac) + 1,
        flags_without_if = const offset_of!(Context, flags_without_if),
        system_flags = const offset_of!(Context, system_flags),
        user_window_with_ac = const offset_of!(Context, user_windows) + 8,
        user_window = const offset_of!(Context, user_window),
        leave_to_call = const offset_of!(Context, leave_to_call),
        sysexit = const offset_of!(Context, sysexit),
        interrupt_return = const offset_of!(Context, interrupt_return),
    )
}

/// Leaves a repeated instruction to the interpreter if its count is so large that it may be beyond the
/// deadline.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn check_count() {
    naked_asm!(
        "pushfq",
        "cmp ecx, {largest}",
        "ja {call_interpreter}",
        "popfq",
        "ret",
        largest = const LARGEST_COUNT,
        call_interpreter = sym call_interpreter,
    )
}

/// Writes a routine that computes the time stamp of RDTSC, which must be the last instruction that was subtracted from
/// the budget: of a context at `$context`, with the budget in `$budget` and two other registers. It changes no flags.
macro_rules! compute_time_stamp {
    ($type:ty, $context:literal, $budget:literal, $low:literal, $high:literal) => {
        naked_asm!(
            // RDX = origin - budget - 1: the number of instructions before this one. NOT gives the negative less 1.
            concat!("mov ", $low, ", ", $budget),
            concat!("not ", $low),
            concat!("mov ", $high, ", [", $context, " + {origin}]"),
            concat!("lea rdx, [", $low, " + ", $high, "]"),
            concat!("mulx ", $high, ", ", $low, ", [", $context, " + {picos_per_instruction}]"),
            // Divides by 1000.
            concat!("mov ", $high, "d, 3"),
            concat!("shrx rdx, ", $low, ", ", $high),
            concat!("mov ", $low, ", {reciprocal}"),
            concat!("mulx rdx, ", $high, ", ", $low),
            concat!("mov ", $high, "d, 4"),
            concat!("shrx rdx, rdx, ", $high),
            concat!("mov ", $high, ", [", $context, " + {base}]"),
            concat!("lea rdx, [rdx + ", $high, "]"),
            "mov eax, edx",
            concat!("mov ", $high, "d, 32"),
            concat!("shrx rdx, rdx, ", $high),
            "ret",
            origin = const offset_of!($type, time) + offset_of!(TimeStamp, origin),
            picos_per_instruction =
                const offset_of!($type, time) + offset_of!(TimeStamp, picos_per_instruction),
            reciprocal = const (1u128 << 68).div_ceil(PICOS_PER_NANO as u128 / 8) as u64,
            base = const offset_of!($type, time) + offset_of!(TimeStamp, base),
        )
    };
}
pub(crate) use compute_time_stamp;

/// Executes RDTSC.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn time_stamp() {
    compute_time_stamp!(Context, "r14", "r12", "r8", "r9")
}

/// Leaves translated code so that the interpreter executes the instruction whose host code called a routine.
/// The guest's flags are on the stack, and the return address is above them.
#[unsafe(naked)]
unsafe extern "sysv64" fn call_interpreter() {
    naked_asm!("popfq", "jmp {ask_interpreter}", ask_interpreter = sym ask_interpreter)
}

/// Leaves translated code so that the interpreter executes the instruction whose host code called a routine.
/// Only the return address is on the stack.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn ask_interpreter() {
    naked_asm!(
        "mov dword ptr [r14 + {reason}], {called}",
        "jmp {leave_call}",
        reason = const offset_of!(Context, reason),
        called = const reason::CALLED,
        leave_call = sym leave_call,
    )
}

/// Leaves translated code from a routine, whose return address tells the engine the site.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_call() {
    naked_asm!(
        "pop r8",
        "mov [r14 + {fault_rip}], r8",
        "jmp {leave}",
        fault_rip = const offset_of!(Context, fault.rip),
        leave = sym leave,
    )
}

/// Leaves translated code so that the engine links a branch. R8 points to the branch's target and to the
/// address after its distance.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn leave_to_link() {
    naked_asm!(
        "mov dword ptr [r14 + {reason}], {link}",
        "jmp {leave_with}",
        reason = const offset_of!(Context, reason),
        link = const reason::LINK,
        leave_with = sym leave_with,
    )
}

/// Leaves translated code so that the interpreter executes an instruction. R8 points to the instruction's
/// address and to the bits of [`info`](crate::context::info) that describe it.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn leave_to_step() {
    naked_asm!(
        "mov dword ptr [r14 + {reason}], {step}",
        "jmp {leave_with}",
        reason = const offset_of!(Context, reason),
        step = const reason::STEP,
        leave_with = sym leave_with,
    )
}

/// Leaves translated code after an IRET to the guest address in R8D, so that the engine sets TF.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_to_trap() {
    naked_asm!(
        "mov [r14 + {eip}], r8d",
        "mov dword ptr [r14 + {reason}], {returned_to_trap}",
        "jmp {leave}",
        eip = const offset_of!(Context, eip),
        reason = const offset_of!(Context, reason),
        returned_to_trap = const reason::RETURNED_TO_TRAP,
        leave = sym leave,
    )
}

/// Leaves translated code with the values of EIP and [`Context::info`] to which R8 points.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_with() {
    naked_asm!(
        "mov r9d, [r8]",
        "mov [r14 + {eip}], r9d",
        "mov r9d, [r8 + 4]",
        "mov [r14 + {info}], r9d",
        "jmp {leave}",
        eip = const offset_of!(Context, eip),
        info = const offset_of!(Context, info),
        leave = sym leave,
    )
}

/// Numeric check that returns at once, since the numeric registers are in the host's.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn numeric_ready() {
    naked_asm!("ret")
}

/// Numeric check that loads the numeric registers from the image.
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

/// SSE check where SSE is enabled: the same as the numeric check.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn check_numeric() {
    naked_asm!(
        "jmp [r14 + {numeric_check}]",
        numeric_check = const offset_of!(Context, numeric_check),
    )
}

/// Numeric check that leaves translated code and asks the engine for the numeric registers.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn numeric_ask() {
    naked_asm!(
        "mov dword ptr [r14 + {reason}], {numeric}",
        "jmp {leave_call}",
        reason = const offset_of!(Context, reason),
        numeric = const reason::NUMERIC,
        leave_call = sym leave_call,
    )
}

/// Returns to the guest address in R8D when the host's stack is empty. The stack stays empty.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn return_by_table() {
    naked_asm!("lea rsp, [rsp - 8]", "jmp {jump_by_table}", jump_by_table = sym jump_by_table)
}

/// Jumps to the guest address in R8D by the jump table.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn jump_by_table() {
    naked_asm!(
        "rorx r9d, r8d, {rotation}",
        "lea r9, [r9 + r8]",
        "pext r9d, r9d, r11d",
        "mov r9d, [r13 + r9 * 4]",
        "jmp r9",
        rotation = const INDEX_ROTATION,
    )
}

/// Leaves translated code because the jump table has no code for the guest address in R8D.
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
