//! The floating-point arithmetic of SSE, SSE2, SSE3 and SSE4.1, without an SSE unit.
//!
//! A guest's results must not depend on the host, so this module computes with integers. Where the host's
//! IEEE arithmetic is certain to give the same bits, it uses that (see [`Float`]). Results and exception
//! flags are those of real processors (compared with one in millions of random cases for each operation).
//!
//! The module contains the arithmetic of single elements: values in, a value and exceptions out. The
//! instructions handle registers, memory and MXCSR itself.
//!
//! * [`F32`] and [`F64`] are the bits of a value; [`Float`] is their common trait.
//! * [`Context`] holds the settings of MXCSR (rounding, masks, DAZ, FTZ) and the results for it. The
//!   operations are its methods. A packed instruction has one context for all its elements.
//!
//! Operations always return the masked response. [`Context::conclude`] then says whether the instruction may
//! deliver it: an unmasked exception in any element prevents writing all of them (SDM vol. 1, 11.5.3), and an
//! unmasked exception that is detected before computation (IE, DE, ZE) suppresses those that are detected
//! after it (OE, UE, PE).
//!
//! ```
//! use ring3_x86::softfloat::Flags;
//! use ring3_x86::sse_float::{Context, F32};
//!
//! let mut context = Context::new(0x1f80); // as after reset
//! let third = context.div(F32(0x3f80_0000), F32(0x4040_0000));
//! assert_eq!(third, F32(0x3eaa_aaab));
//! assert_eq!(context.conclude(), Ok(Flags::PRECISION));
//!
//! let mut context = Context::new(0x0f80); // the precision exception is unmasked
//! context.div(F32(0x3f80_0000), F32(0x4040_0000));
//! assert_eq!(context.conclude(), Err(Flags::PRECISION));
//! ```

mod approximate;
mod arithmetic;
mod compare;
mod convert;
mod dot;
mod format;
mod fused;
mod rounding;
#[cfg(test)]
mod tests;

pub use approximate::{reciprocal, reciprocal_square_root};
pub use compare::Predicate;
pub use format::{F16, F32, F64, Float, Format};
pub use fused::Signs;

use crate::softfloat::{Flags, Rounding};

/// The exceptions that are detected in the result; the others are detected in the operands (SDM vol. 1,
/// 11.5.2).
const AFTER_COMPUTATION: Flags = Flags::OVERFLOW.union(Flags::UNDERFLOW).union(Flags::PRECISION);

/// DAZ: MXCSR bit 6.
const DENORMALS_ARE_ZEROS: u32 = 1 << 6;
/// Bit 0 of the exception masks in MXCSR.
const MASKS_SHIFT: u32 = 7;
/// Bit 0 of rounding control in MXCSR.
const ROUNDING_SHIFT: u32 = 13;
/// FTZ: MXCSR bit 15.
const FLUSH_TO_ZERO: u32 = 1 << 15;

/// The settings of an instruction, which MXCSR selects (SDM vol. 1, 10.2.3), and the exceptions that its
/// elements raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The direction in which results that do not fit are rounded.
    pub rounding: Rounding,
    /// The exceptions that are masked.
    pub masks: Flags,
    /// Whether denormal operands count as zeros (DAZ).
    pub denormals_are_zeros: bool,
    /// Whether tiny results become zeros while the underflow exception is masked (FTZ).
    pub flush_to_zero: bool,
    /// The exceptions raised so far.
    raised: Flags,
    /// The exceptions that earlier steps of the instruction raised.
    raised_earlier: Flags,
    /// Whether a finite and normalised result of host arithmetic needs no check of its exceptions: rounding
    /// is to nearest, nothing is unmasked, and MXCSR already has PE.
    host_suffices: bool,
    /// Whether an earlier step of the instruction had an unmasked exception, so that later steps do not take
    /// place.
    ended: bool,
}

impl Context {
    /// The context that MXCSR selects, with nothing raised yet.
    pub const fn new(mxcsr: u32) -> Self {
        let rounding = Rounding::of_control(mxcsr >> ROUNDING_SHIFT);
        let masks = Flags::from_word((mxcsr >> MASKS_SHIFT) as u16);
        let has_precision = Flags::from_word(mxcsr as u16).contains(Flags::PRECISION);
        Self {
            rounding,
            masks,
            denormals_are_zeros: mxcsr & DENORMALS_ARE_ZEROS != 0,
            flush_to_zero: mxcsr & FLUSH_TO_ZERO != 0,
            raised: Flags::NONE,
            raised_earlier: Flags::NONE,
            host_suffices: has_precision
                && masks.contains(Flags::ALL)
                && matches!(rounding, Rounding::Nearest),
            ended: false,
        }
    }

    /// How the instruction ends. `Ok`: it delivers its results, and MXCSR gets these flags (flags that MXCSR
    /// already has may be missing). `Err`: it delivers nothing, MXCSR gets these flags, and #XM follows.
    pub const fn conclude(&self) -> Result<Flags, Flags> {
        let raised = self.raised;
        let before = raised.difference(AFTER_COMPUTATION);
        if !before.difference(self.masks).is_empty() {
            Err(before.union(self.raised_earlier))
        } else if !raised.difference(self.masks).is_empty() {
            Err(raised)
        } else {
            Ok(raised)
        }
    }

    /// Raises exceptions.
    fn raise(&mut self, exceptions: Flags) {
        if !self.ended {
            self.raised = self.raised.union(exceptions);
        }
    }

    /// Raises the invalid-operation exception and returns the masked response to it.
    fn invalid<F: Format>(&mut self) -> F {
        self.raise(Flags::INVALID);
        F::INDEFINITE
    }

    /// Begins the next step of an instruction that computes with its own intermediate results.
    fn next_step(&mut self) {
        match self.conclude() {
            Ok(raised) => self.raised_earlier = raised,
            Err(_) => self.ended = true,
        }
    }
}
