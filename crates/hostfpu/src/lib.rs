//! Computes one transcendental function on the x87 of the host, and reads its time-stamp counter.
//!
//! # Why
//! The manual does not say which bits the transcendental instructions deliver (SDM vol. 1, 8.3.10: an error
//! below one unit in the last place), and each family of processors has its own approximations. A guest
//! should see those of a real processor, and the simplest source is the host's x87, if it has one.
//!
//! # How
//! [`execute`] puts two operands on an empty register stack, loads the control word, executes one instruction
//! and saves the whole state with FNSAVE. This instruction does not wait, so that an exception which the
//! guest has unmasked is only reported and never raised on the host.
//!
//! On hosts outside the x86 family [`execute`] and [`time_stamp`] always return `None`.
//!
//! ```
//! const ONE: [u8; 10] = [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f];
//!
//! // FYL2X: 1 times the binary logarithm of 1.
//! if let Some(outcome) = ring3_hostfpu::execute(0xf1, 0x037f, [ONE, ONE]) {
//!     assert_eq!(outcome.stack, ring3_hostfpu::Stack::Popped([0; 10]));
//! }
//! ```

#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x87;

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
mod x87 {
    //! The implementation for hosts without an x87.

    use crate::{Number, Outcome};

    /// Returns no outcome, since this kind of host has no x87.
    pub(crate) fn execute(_: u8, _: u16, _: [Number; 2]) -> Option<Outcome> {
        None
    }
}

/// A number in the format of the registers, as it is in memory.
pub type Number = [u8; 10];

/// The result of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The status word of an FPU that was empty before: exceptions, ES, B, condition codes.
    pub status: u16,
    /// The effect on the register stack.
    pub stack: Stack,
}

/// The effect on the register stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// The stack is as high as before. ST(0) holds this number, which may be the old operand.
    Same(Number),
    /// The stack was popped. The new ST(0) holds this number.
    Popped(Number),
    /// A number was pushed. The new ST(0) and ST(1) hold these numbers.
    Pushed([Number; 2]),
}

/// Executes the transcendental instruction D9 `opcode` under the control word `control`, with `operands` in
/// ST(0) and ST(1) and the other registers empty.
///
/// Returns `None` if the host has no x87 or if `opcode` is not F2XM1 (F0h), FYL2X (F1h), FPTAN (F2h), FPATAN
/// (F3h), FYL2XP1 (F9h), FSINCOS (FBh), FSIN (FEh) or FCOS (FFh).
pub fn execute(opcode: u8, control: u16, operands: [Number; 2]) -> Option<Outcome> {
    x87::execute(opcode, control, operands)
}

/// Returns the time-stamp counter of the host's processor, or `None` if its kind has none.
pub fn time_stamp() -> Option<u64> {
    #[cfg(target_arch = "x86")]
    use std::arch::x86::_rdtsc;
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::_rdtsc;

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    // SAFETY: RDTSC exists on every processor that runs Rust programs (since the Pentium), and only writes
    // registers that the compiler knows of.
    return Some(unsafe { _rdtsc() });
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    None
}
