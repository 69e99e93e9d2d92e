//! The fields of the context by which far transfers of segmented code find their targets.

use super::Context;
use crate::routines::{self, far};

/// A segment of code to which far transfers can lead. Apart from CS, its mode is that of the code that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct FarMode {
    /// Its selector; a number above FFFFh in an empty entry.
    pub(crate) selector: u32,
    /// Its base address.
    pub(crate) base: u32,
    /// The address of the jump table of its mode.
    pub(crate) table: u64,
    /// The value of [`Context::code_limit`] for it.
    pub(crate) code_limit: u64,
    /// In protected mode: the host address of its descriptor, and the value that the descriptor had when CS
    /// was loaded from it.
    pub(crate) host: u64,
    pub(crate) descriptor: u64,
}

/// Number of segments that are known at a time.
pub(crate) const FAR_MODES: usize = 32;
/// The bits that select the entry of a segment, in the sum of its selector and its selector rotated to the
/// right by 8 bits.
pub(crate) const FAR_BITS: u32 = 0x1f0;

impl FarMode {
    /// An empty entry.
    pub(crate) const NONE: FarMode =
        FarMode { selector: u32::MAX, base: 0, table: 0, code_limit: 0, host: 0, descriptor: 0 };

    /// Index in [`Context::far_modes`] of the segments of protected mode. Those of real mode and virtual-8086
    /// mode have index 0.
    pub(crate) const BY_DESCRIPTOR: usize = 1;

    /// Returns the index of the entry for `selector`.
    pub(crate) fn place(selector: u16) -> usize {
        let selector = u32::from(selector);
        let sum = selector.wrapping_add(selector.rotate_right(8));
        ((sum & FAR_BITS) >> FAR_BITS.trailing_zeros()) as usize
    }
}

/// The far transfers of segmented code that translated code may execute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllowedFar {
    /// Whether they find their segments by descriptors, as in protected mode.
    pub(crate) by_descriptors: bool,
    /// Whether INT n may find its vector and its handler.
    pub(crate) interrupts: bool,
    /// Whether IRET may return.
    pub(crate) returns: bool,
}

impl Context {
    /// Sets the routines by which far transfers of segmented code find their targets. For those that are not
    /// `allowed`, the routine leaves the instruction to the interpreter.
    pub(crate) fn allow_far_transfers(&mut self, allowed: AllowedFar) {
        let find = if allowed.by_descriptors {
            far::far_find_descriptor as *const ()
        } else {
            far::far_find as *const ()
        };
        let or_ask = |is_allowed| {
            let ask = routines::ask_interpreter as *const ();
            if is_allowed { find as u64 } else { ask as u64 }
        };
        self.far_find = find as u64;
        self.far_find_vector = or_ask(allowed.interrupts);
        self.far_find_return = or_ask(allowed.returns);
    }
}
