//! What far transfers of segmented code need in translated code.

use super::Context;
use crate::routines::{self, far};

/// A segment of code. The rest of its mode is that of the code that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct FarMode {
    /// Its selector; one that is none where nothing is known.
    pub(crate) selector: u32,
    /// Its base address.
    pub(crate) base: u32,
    /// The address of the jump table of its mode.
    pub(crate) table: u64,
    /// [`Context::targets`] for it.
    pub(crate) targets: u64,
    /// In protected mode: where the host has its descriptor, and what that was.
    pub(crate) host: u64,
    pub(crate) descriptor: u64,
}

/// So many are known.
pub(crate) const FAR_MODES: usize = 32;
/// The bits that are the place of a segment, of the sum of its selector and that rotated to the right by 8 bits.
pub(crate) const FAR_BITS: u32 = 0x1f0;

impl FarMode {
    /// Nothing is known.
    pub(crate) const NONE: FarMode =
        FarMode { selector: u32::MAX, base: 0, table: 0, targets: 0, host: 0, descriptor: 0 };

    /// Which of [`Context::far_modes`] are those of protected mode; the others are those of real mode or virtual-8086 mode.
    pub(crate) const BY_DESCRIPTOR: usize = 1;

    /// The place of that for `selector`.
    pub(crate) fn place(selector: u16) -> usize {
        let selector = u32::from(selector);
        let sum = selector.wrapping_add(selector.rotate_right(8));
        ((sum & FAR_BITS) >> FAR_BITS.trailing_zeros()) as usize
    }
}

/// What far transfers of segmented code can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllowedFar {
    /// They find descriptors.
    pub(crate) by_descriptors: bool,
    /// INT n finds its vector, and where that leads.
    pub(crate) interrupts: bool,
    /// IRET returns.
    pub(crate) returns: bool,
}

impl Context {
    /// Has far transfers of segmented code find where they lead, or else the interpreter execute them.
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
