//! The ways into translated code and out of it.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::flags::Eflags;

use super::Context;

/// Loads the guest's general registers from [`Context::gpr`].
macro_rules! load_registers {
    () => {
        "mov eax, [r14]
        mov ecx, [r14 + 4]
        mov edx, [r14 + 8]
        mov ebx, [r14 + 12]
        mov r15d, [r14 + 16]
        mov ebp, [r14 + 20]
        mov esi, [r14 + 24]
        mov edi, [r14 + 28]"
    };
}

/// Stores the guest's general registers in [`Context::gpr`].
macro_rules! store_registers {
    () => {
        "mov [r14], eax
        mov [r14 + 4], ecx
        mov [r14 + 8], edx
        mov [r14 + 12], ebx
        mov [r14 + 16], r15d
        mov [r14 + 20], ebp
        mov [r14 + 24], esi
        mov [r14 + 28], edi"
    };
}

/// Pushes the registers of the engine that [`return_to_engine`] pops. Then RSP is a multiple of 16.
macro_rules! keep_registers {
    () => {
        "push rbx
        push rbp
        push r12
        push r13
        push r14
        push r15
        sub rsp, 8"
    };
}

pub(crate) use {keep_registers, load_registers, store_registers};

/// Executes translated code from `target` on until it is left.
///
/// # Safety
/// `target` must be the entry of a translated block, an instruction in it, or the entry of the jump table for
/// `eip`. `budget`, `window` and `table` must be as the module says, and the handler of [`crate::signals`]
/// must be installed.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter(context: *mut Context) {
    naked_asm!(
        keep_registers!(),
        "mov r14, rdi",
        "mov [r14 + {host_stack}], rsp",
        "mov rax, [r14 + {window}]",
        "cmp rax, [r14 + {set_window}]",
        "je 1f",
        "wrgsbase rax",
        "1:",
        "mov qword ptr [r14 + {set_window}], 0",
        "mov r12, [r14 + {budget}]",
        "mov r13, [r14 + {table}]",
        "mov r11d, [r14 + {index_mask}]",
        "cmp dword ptr [r14 + {numeric_is_live}], 0",
        "je 2f",
        "fxrstor64 [r14 + {image}]",
        "2:",
        // POPF takes as long as this whole function. It is needed only if DF is set.
        "mov eax, [r14 + {flags}]",
        "test eax, {direction}",
        "jnz 4f",
        "mov ecx, eax",
        "shr ecx, {overflow}",
        "and ecx, 1",
        "shl eax, 8",
        "mov al, cl",
        "add al, 0x7f",
        "sahf",
        "3:",
        "mov rsp, [r14 + {returns}]",
        load_registers!(),
        "mov r8d, [r14 + {eip}]",
        "jmp qword ptr [r14 + {target}]",
        "4:",
        "push qword ptr [r14 + {flags}]",
        "popfq",
        "jmp 3b",
        direction = const Eflags::DF.bits(),
        overflow = const Eflags::OF.bits().ilog2(),
        host_stack = const offset_of!(Context, host_stack),
        window = const offset_of!(Context, window),
        set_window = const offset_of!(Context, set_window),
        budget = const offset_of!(Context, budget),
        table = const offset_of!(Context, table),
        flags = const offset_of!(Context, flags),
        target = const offset_of!(Context, target),
        eip = const offset_of!(Context, eip),
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        image = const offset_of!(Context, image),
        returns = const offset_of!(Context, returns),
        index_mask = const offset_of!(Context, index_mask),
    )
}

/// Leaves translated code: saves the guest's registers and returns to the engine.
///
/// # Safety
/// Only translated code may jump here. All registers must be as the module says.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn leave() {
    naked_asm!(
        store_registers!(),
        "mov [r14 + {returns}], rsp",
        "mov rsp, [r14 + {host_stack}]",
        "pushfq",
        "pop qword ptr [r14 + {flags}]",
        "cld",
        "mov [r14 + {budget}], r12",
        "mov [r14 + {repeat_count}], r10",
        "mov eax, [r14 + {numeric_is_live}]",
        "mov [r14 + {numeric_was_live}], eax",
        "test eax, eax",
        "je 2f",
        "fxsave64 [r14 + {image}]",
        "fninit",
        "ldmxcsr [r14 + {host_mxcsr}]",
        "2:",
        "jmp {return_to_engine}",
        host_stack = const offset_of!(Context, host_stack),
        budget = const offset_of!(Context, budget),
        flags = const offset_of!(Context, flags),
        repeat_count = const offset_of!(Context, repeat_count),
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        numeric_was_live = const offset_of!(Context, numeric_was_live),
        image = const offset_of!(Context, image),
        returns = const offset_of!(Context, returns),
        host_mxcsr = const offset_of!(Context, host_mxcsr),
        return_to_engine = sym return_to_engine,
    )
}

/// Returns to the caller of [`enter`].
///
/// # Safety
/// RSP must be the one that [`enter`] has noted.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn return_to_engine() {
    naked_asm!(
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

/// Returns to the caller of [`enter`], which has left RSP at `host_stack`, from the handler of a signal, which has
/// saved the registers ([`Context::take_registers`]) and runs on the same thread. The kernel has reset the
/// numeric registers for the handler, and has blocked all other signals. The signals in `mask` are blocked
/// when RSP is back on the thread's stack.
///
/// # Safety
/// The signal must have come in translated code that was entered with that stack. Nothing on the handler's
/// stack may be needed any more.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn leave_signal(host_stack: u64, mask: *const u64) -> ! {
    naked_asm!(
        "mov rsp, rdi",
        "mov edi, {set_mask}",
        "xor edx, edx",
        "mov r10d, {mask_size}",
        "mov eax, {rt_sigprocmask}",
        "syscall",
        "jmp {return_to_engine}",
        set_mask = const libc::SIG_SETMASK,
        mask_size = const size_of::<u64>(),
        rt_sigprocmask = const libc::SYS_rt_sigprocmask,
        return_to_engine = sym return_to_engine,
    )
}
