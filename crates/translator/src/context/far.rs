//! What far transfers of real mode and virtual-8086 mode need in translated code.

use super::Context;
use crate::routines;

/// A segment of code, which begins at 16 times its selector. The rest of its mode is that of the code that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FarMode {
    /// Its selector; one that is none where nothing is known.
    pub(crate) selector: u32,
    /// The address of the jump table of its mode.
    pub(crate) table: u64,
}

/// So many are known.
pub(crate) const FAR_MODES: usize = 32;
/// The bits that are the place of a segment, of the sum of its selector and that rotated to the right by 8 bits.
pub(crate) const FAR_BITS: u32 = 0x1f0;

impl FarMode {
    /// Nothing is known.
    pub(crate) const NONE: FarMode = FarMode { selector: u32::MAX, table: 0 };
}

impl Context {
    /// Far transfers find code with `selector` by the jump table at `table`.
    pub(crate) fn note_far_mode(&mut self, selector: u16, table: u64) {
        let selector = u32::from(selector);
        let sum = selector.wrapping_add(selector.rotate_right(8));
        let place = (sum & FAR_BITS) >> FAR_BITS.trailing_zeros();
        self.far_modes[place as usize] = FarMode { selector, table };
    }

    /// Has INT n of real mode find vectors at `real_vectors`, and IRET return, or else the interpreter execute them.
    pub(crate) fn allow_far_interrupts(&mut self, real_vectors: Option<u32>, returns: bool) {
        let or_ask = |is_allowed| {
            let find = routines::far::far_find as *const ();
            let ask = routines::ask_interpreter as *const ();
            if is_allowed { find as u64 } else { ask as u64 }
        };
        self.real_vectors = real_vectors.unwrap_or_default();
        self.far_find_vector = or_ask(real_vectors.is_some());
        self.far_find_return = or_ask(returns);
    }
}
