//! The checks that blocks of 64-bit code call before their first numeric instruction, by which the guest's registers come
//! into the host's.
//!
//! # Safety
//! Only translated code may call them, with its registers as [`context`](crate::long::context) says and the
//! return address on the host's stack.

use std::arch::naked_asm;
use std::mem::offset_of;

use super::{IN_IMAGE, LongContext, MXCSR_IN_IMAGE, leave_from_routine, live, reason};

/// Writes one instruction for each YMM register: between its upper half and its place behind `[r11 + {upper}]`.
macro_rules! upper_halves {
    (load) => {
        upper_halves!(load; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (store) => {
        upper_halves!(store; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (load; $($n:literal)*) => {
        concat!($("vinsertf128 ymm", $n, ", ymm", $n, ", [r11 + {upper} + 16 * ", $n, "], 1\n"),*)
    };
    (store; $($n:literal)*) => {
        concat!($("vextractf128 [r11 + {upper} + 16 * ", $n, "], ymm", $n, ", 1\n"),*)
    };
    // Loads them if AVX is enabled, without a change of flags. Uses R10.
    (load if enabled) => {
        concat!(
            "mov r10d, [r11 + {has_upper}]\n",
            "xchg rcx, r10\n",
            "jrcxz 5f\n",
            "jmp 6f\n",
            "5:\n",
            "jmp 7f\n",
            "6:\n",
            upper_halves!(load),
            "7:\n",
            "mov rcx, r10\n",
        )
    };
}

/// Writes one instruction for each XMM register: between the register and its place behind `[r11 +
/// {vectors}]`.
macro_rules! vectors {
    (load) => {
        vectors!("movaps xmm", ", [r11 + {vectors} + 16 * ", "]")
    };
    (store) => {
        vectors!("movaps [r11 + {vectors} + 16 * ", "], xmm", "")
    };
    ($before:literal, $between:literal, $after:literal) => {
        vectors!($before $between $after; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($before:literal $between:literal $after:literal; $($n:literal)*) => {
        concat!($($before, $n, $between, $n, $after, "\n"),*)
    };
}

pub(super) use {upper_halves, vectors};

/// Check once the guest's registers are in the host's.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn numeric_ready() {
    naked_asm!("ret")
}

/// Check for SSE instructions that loads the registers. R11 is the address of the context. Uses R10.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn vectors_load() {
    naked_asm!(
        vectors!(load),
        upper_halves!(load if enabled),
        "ldmxcsr [r11 + {mxcsr}]",
        "mov dword ptr [r11 + {is_live}], {live_vectors}",
        "lea r10, [rip + {ready}]",
        "mov [r11 + {vector_check}], r10",
        "mov r10, [r11 + {avx_then}]",
        "mov [r11 + {avx_check}], r10",
        "ret",
        has_upper = const offset_of!(LongContext, has_upper),
        upper = const offset_of!(LongContext, upper),
        avx_then = const offset_of!(LongContext, avx_then),
        avx_check = const offset_of!(LongContext, avx_check),
        vectors = const IN_IMAGE,
        mxcsr = const MXCSR_IN_IMAGE,
        is_live = const offset_of!(LongContext, is_live),
        live_vectors = const live::VECTORS,
        vector_check = const offset_of!(LongContext, vector_check),
        ready = sym numeric_ready,
    )
}

/// Check for x87 and MMX instructions that loads the registers, with those of SSE. R11 is the address of the
/// context. Uses R10, and changes no flags.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn x87_load() {
    naked_asm!(
        // Nothing may be live, or the registers of SSE.
        "mov r10d, [r11 + {is_live}]",
        "xchg rcx, r10",
        "jrcxz 2f",
        "jmp 3f",
        "2:",
        "jmp 4f",
        "3:",
        vectors!(store),
        "stmxcsr [r11 + {mxcsr}]",
        "mov rcx, r10",
        // The upper halves are in the host's registers already, which FXRSTOR leaves alone.
        "jmp 8f",
        "4:",
        "mov rcx, r10",
        upper_halves!(load if enabled),
        "8:",
        "fxrstor64 [r11 + {image}]",
        "mov dword ptr [r11 + {is_live}], {live_all}",
        "lea r10, [rip + {ready}]",
        "mov [r11 + {x87_check}], r10",
        "mov r10, [r11 + {vectors_then}]",
        "mov [r11 + {vector_check}], r10",
        "mov r10, [r11 + {avx_then}]",
        "mov [r11 + {avx_check}], r10",
        "ret",
        has_upper = const offset_of!(LongContext, has_upper),
        upper = const offset_of!(LongContext, upper),
        avx_then = const offset_of!(LongContext, avx_then),
        avx_check = const offset_of!(LongContext, avx_check),
        vectors = const IN_IMAGE,
        mxcsr = const MXCSR_IN_IMAGE,
        image = const offset_of!(LongContext, image),
        is_live = const offset_of!(LongContext, is_live),
        live_all = const live::ALL,
        x87_check = const offset_of!(LongContext, x87_check),
        vectors_then = const offset_of!(LongContext, vectors_then),
        vector_check = const offset_of!(LongContext, vector_check),
        ready = sym numeric_ready,
    )
}

/// Check for SSE instructions where the engine must be asked for the registers. R11 is the address of the
/// context.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn vectors_ask() {
    leave_from_routine!(reason::VECTORS)
}

/// The same for x87 and MMX instructions.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn x87_ask() {
    leave_from_routine!(reason::X87)
}
