//! The way into the guest's code, of 32 or 64 bits, and back.
//!
//! On the way in, [`enter`] saves the registers that the System V ABI for x86-64 wants preserved, loads the
//! start state, and executes IRETQ. On the way back, a signal handler takes the end state from the signal
//! frame and calls [`leave`], which restores the saved registers and returns to the caller of `enter`. The
//! handler is abandoned without sigreturn, as by siglongjmp; this saves a system call and the reload of a
//! floating-point state that nobody needs. It is sound because the handler has nothing to undo: it blocks no
//! signals, and the kernel tells by the stack pointer alone whether the alternate stack is in use.

use std::arch::{asm, naked_asm};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::layout::{CODE_SELECTOR, DATA_SELECTOR, LONG_CODE_SELECTOR};
use crate::{FxImage, LongState};

/// The switch of the present run, for the signal handlers; null between runs.
pub(super) static CURRENT: AtomicPtr<Switch> = AtomicPtr::new(ptr::null_mut());

/// The data that our side and the guest's share in a run.
pub(super) struct Switch {
    /// The start state; after the run, the end state. 32-bit code uses the lower halves of its registers.
    pub(super) state: LongState,
    /// The guest's code segment, which decides whether its code has 32 or 64 bits.
    pub(super) code_selector: u16,
    /// Whether the processor has YMM registers.
    has_avx: bool,
    /// The exception that ended the run, or None if the timer ended it.
    pub(super) trap: Option<Trap>,
    /// Ticks of the timer since the run began.
    pub(super) ticks: u32,
    /// Our stack pointer, which points to the registers that `enter` has saved; 0 outside the run.
    pub(super) host_rsp: u64,
}

/// An exception as Linux reports it.
#[derive(Clone, Copy)]
pub(super) struct Trap {
    pub(super) vector: u8,
    pub(super) error_code: u32,
    /// The address of the last page fault. It belongs to this trap only if the trap is a page fault.
    pub(super) cr2: u64,
}

impl Switch {
    /// Makes the switch for a run from `state`, whose flags and MXCSR must be loadable, in this code segment.
    pub(super) fn new(state: LongState, code_selector: u16) -> Self {
        let has_avx = is_x86_feature_detected!("avx");
        Self { state, code_selector, has_avx, trap: None, ticks: 0, host_rsp: 0 }
    }

    /// Runs from the start state until a signal handler ends it.
    pub(super) fn run(&mut self) {
        let switch = ptr::from_mut(self);
        CURRENT.store(switch, Ordering::Relaxed);
        // SAFETY: `CURRENT` is set, and the caller, a `Runner`, has the handlers installed; it
        // has made sure that the code at RIP stays in its segment and that the flags and MXCSR
        // can be loaded.
        unsafe { enter(switch) };
        CURRENT.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

const GPR: usize = offset_of!(Switch, state.gpr);

/// Loads the start state and goes to the guest's code. [`leave`] returns from it.
///
/// A far jump would not do: IRETQ loads CS, RIP, SS, RSP and RFLAGS in one instruction, so there is no moment
/// at which our values are mixed with the guest's. It is also a serialising instruction (SDM vol. 3A, 10.3),
/// which is necessary for code that was just written through another address (10.1.3).
///
/// # Safety
/// `switch` must be the one in [`CURRENT`], and the handlers must be installed.
#[unsafe(naked)]
unsafe extern "sysv64" fn enter(switch: *mut Switch) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov eax, ds",
        "push rax",
        "mov eax, es",
        "push rax",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rdi + {host_rsp}], rsp",
        "fxrstor64 [rdi + {fx}]",
        "cmp byte ptr [rdi + {has_avx}], 0",
        "je 2f",
        "vinsertf128 ymm0, ymm0, [rdi + {upper} + 16 * 0], 1",
        "vinsertf128 ymm1, ymm1, [rdi + {upper} + 16 * 1], 1",
        "vinsertf128 ymm2, ymm2, [rdi + {upper} + 16 * 2], 1",
        "vinsertf128 ymm3, ymm3, [rdi + {upper} + 16 * 3], 1",
        "vinsertf128 ymm4, ymm4, [rdi + {upper} + 16 * 4], 1",
        "vinsertf128 ymm5, ymm5, [rdi + {upper} + 16 * 5], 1",
        "vinsertf128 ymm6, ymm6, [rdi + {upper} + 16 * 6], 1",
        "vinsertf128 ymm7, ymm7, [rdi + {upper} + 16 * 7], 1",
        "vinsertf128 ymm8, ymm8, [rdi + {upper} + 16 * 8], 1",
        "vinsertf128 ymm9, ymm9, [rdi + {upper} + 16 * 9], 1",
        "vinsertf128 ymm10, ymm10, [rdi + {upper} + 16 * 10], 1",
        "vinsertf128 ymm11, ymm11, [rdi + {upper} + 16 * 11], 1",
        "vinsertf128 ymm12, ymm12, [rdi + {upper} + 16 * 12], 1",
        "vinsertf128 ymm13, ymm13, [rdi + {upper} + 16 * 13], 1",
        "vinsertf128 ymm14, ymm14, [rdi + {upper} + 16 * 14], 1",
        "vinsertf128 ymm15, ymm15, [rdi + {upper} + 16 * 15], 1",
        "2:",
        "mov eax, {data_selector}",
        "mov ds, eax",
        "mov es, eax",
        // The frame that IRETQ takes: SS, RSP, RFLAGS, CS, RIP.
        "push rax",
        "mov rax, [rdi + {gpr} + 8 * 4]",
        "push rax",
        "mov eax, [rdi + {rflags}]",
        "push rax",
        "movzx eax, word ptr [rdi + {code_selector}]",
        "push rax",
        "mov rax, [rdi + {rip}]",
        "push rax",
        "mov rax, [rdi + {gpr} + 8 * 0]",
        "mov rcx, [rdi + {gpr} + 8 * 1]",
        "mov rdx, [rdi + {gpr} + 8 * 2]",
        "mov rbx, [rdi + {gpr} + 8 * 3]",
        "mov rbp, [rdi + {gpr} + 8 * 5]",
        "mov rsi, [rdi + {gpr} + 8 * 6]",
        "mov r8, [rdi + {gpr} + 8 * 8]",
        "mov r9, [rdi + {gpr} + 8 * 9]",
        "mov r10, [rdi + {gpr} + 8 * 10]",
        "mov r11, [rdi + {gpr} + 8 * 11]",
        "mov r12, [rdi + {gpr} + 8 * 12]",
        "mov r13, [rdi + {gpr} + 8 * 13]",
        "mov r14, [rdi + {gpr} + 8 * 14]",
        "mov r15, [rdi + {gpr} + 8 * 15]",
        "mov rdi, [rdi + {gpr} + 8 * 7]",
        "iretq",
        host_rsp = const offset_of!(Switch, host_rsp),
        fx = const offset_of!(Switch, state.fx),
        has_avx = const offset_of!(Switch, has_avx),
        upper = const offset_of!(Switch, state.upper),
        gpr = const GPR,
        rip = const offset_of!(Switch, state.rip),
        rflags = const offset_of!(Switch, state.rflags),
        data_selector = const DATA_SELECTOR,
        code_selector = const offset_of!(Switch, code_selector),
    )
}

/// Returns from `enter`, wherever the stack pointer is now.
///
/// # Safety
/// This must be called in a signal handler that interrupted the run; `host_rsp` must be that of its
/// [`Switch`]. The frames in between are abandoned, so there must be nothing to drop in them.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn leave(host_rsp: u64) -> ! {
    naked_asm!(
        "mov rsp, rdi",
        // The kernel has initialised the floating-point registers for the handler, so no x87
        // exception of the guest is pending here.
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "add rsp, 8",
        "pop rax",
        "mov es, eax",
        "pop rax",
        "mov ds, eax",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

/// Returns whether the descriptor table has code segments of 32 and 64 bits for CPL 3 where Linux keeps them.
pub(super) fn has_code_segments() -> bool {
    /// The bits of a descriptor's second word (SDM vol. 3A, 3.4.5).
    const CODE: u32 = 1 << 11 | 1 << 12;
    const DPL_3: u32 = 3 << 13;
    const PRESENT: u32 = 1 << 15;
    const LONG: u32 = 1 << 21;
    const DEFAULT_32: u32 = 1 << 22;
    const COMMON: u32 = CODE | DPL_3 | PRESENT;

    let is = |selector: u16, size: u32| {
        rights(selector)
            .is_some_and(|rights| rights & (COMMON | LONG | DEFAULT_32) == COMMON | size)
    };
    is(CODE_SELECTOR, DEFAULT_32) && is(LONG_CODE_SELECTOR, LONG)
}

/// Returns the second word of a descriptor that code at CPL 3 may use.
fn rights(selector: u16) -> Option<u32> {
    let rights: u32;
    let valid: u8;
    // SAFETY: LAR reads the descriptor table only and never faults (SDM vol. 2A, "LAR").
    unsafe {
        asm!(
            "lar {rights:e}, {selector:e}",
            "setz {valid}",
            selector = in(reg) u32::from(selector),
            rights = inout(reg) 0_u32 => rights,
            valid = out(reg_byte) valid,
            options(nomem, nostack),
        );
    }
    (valid != 0).then_some(rights)
}

/// Returns the present contents of the floating-point registers.
pub(super) fn present_fx() -> FxImage {
    let mut image = FxImage::INIT;
    // SAFETY: the image has the size and alignment that FXSAVE64 needs.
    unsafe { asm!("fxsave64 [{}]", in(reg) &raw mut image, options(nostack, preserves_flags)) };
    image
}
