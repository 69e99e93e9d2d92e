//! Computes one transcendental function on the x87 of the host.
//!
//! # Why
//! The manual does not say which bits the transcendental instructions deliver (SDM vol. 1,
//! 8.3.10: an error below one unit in the last place), and each family of processors has its own
//! approximations. A guest is to see those of a real processor, and where the host has an
//! x87 there is no simpler way than to ask it.
//!
//! # How
//! [`execute`] puts two operands on an empty register stack, loads the control word, executes one
//! instruction and takes the whole state with FNSAVE, which does not wait, so that an
//! exception the guest has unmasked is only reported and never raised on the host.
//!
//! On hosts that are not of the x86 family [`execute`] always returns `None`.
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
    //! Hosts without an x87.

    use crate::{Number, Outcome};

    /// Never an outcome on this kind of host.
    pub(crate) fn execute(_: u8, _: u16, _: [Number; 2]) -> Option<Outcome> {
        None
    }
}

/// A number in the registers' format, as it is in memory.
pub type Number = [u8; 10];

/// What an instruction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The status word of an FPU that had nothing in it before: exceptions, ES, B, condition codes.
    pub status: u16,
    /// What became of the register stack.
    pub stack: Stack,
}

/// What became of the register stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// It is as high as before; this is in ST(0), which may be the old operand.
    Same(Number),
    /// It was popped; this is in the new ST(0).
    Popped(Number),
    /// Something was pushed; these are in the new ST(0) and ST(1).
    Pushed([Number; 2]),
}

/// Executes the instruction D9 `opcode`, which is one of the transcendental ones, under the control
/// word `control` with `operands` in ST(0) and ST(1) and nothing in the other registers.
///
/// `None` where the host has no x87 and where `opcode` is not F2XM1 (F0h), FYL2X (F1h), FPTAN
/// (F2h), FPATAN (F3h), FYL2XP1 (F9h), FSINCOS (FBh), FSIN (FEh) or FCOS (FFh).
pub fn execute(opcode: u8, control: u16, operands: [Number; 2]) -> Option<Outcome> {
    x87::execute(opcode, control, operands)
}
