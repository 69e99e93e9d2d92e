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

impl Context {
    /// Sets whether translated code may execute INT n of real mode. Otherwise the interpreter does.
    pub(crate) fn allow_vectors(&mut self, is_allowed: bool) {
        let find = if is_allowed { far::far_find as *const () } else { ask() };
        self.far_find_vector = find as u64;
    }

    /// Sets whether translated code may execute IRET of segmented code that finds its segment by a
    /// descriptor, as in protected mode, or without one.
    pub(crate) fn allow_far_returns(&mut self, by_descriptor: bool, is_allowed: bool) {
        if by_descriptor {
            let find = if is_allowed { far::far_find_descriptor as *const () } else { ask() };
            self.far_find_return_descriptor = find as u64;
        } else {
            let find = if is_allowed { far::far_find as *const () } else { ask() };
            self.far_find_return = find as u64;
        }
    }
}

/// Returns the address of the routine that leaves an instruction to the interpreter.
fn ask() -> *const () {
    routines::ask_interpreter as *const ()
}
