//! Where branches may lie. Many Intel processors, those after Skylake up to 2019, do not keep code in their
//! cache of decoded instructions if a branch in it crosses a multiple of 32 bytes or ends there. A
//! macro-fused pair counts as one branch (Intel, "Mitigations for Jump Conditional Code Erratum", section 2).
//! Without alignment loops took up to twice as long, depending on where they happened to lie. On other processors the
//! NOPs only take time, and may come between two instructions that would be fused.

use std::arch::x86_64::__cpuid;
use std::sync::LazyLock;

use ring3_x86::undefined::Vendor;

use super::{Emitter, Mark};

/// Whether this processor is one of those, by its family and model. Tests of this crate expect the code for them.
pub(super) static MUST_ALIGN: LazyLock<bool> = LazyLock::new(|| {
    const FAMILY_6: u32 = 6;
    const MODELS: [u32; 8] = [0x4e, 0x55, 0x5e, 0x8e, 0x9e, 0xa5, 0xa6, 0xae];
    // SDM vol. 2, figure 3-6
    let version = __cpuid(1).eax;
    let model = version >> 4 & 0xf | version >> 12 & 0xf0;
    let is_affected = version >> 8 & 0xf == FAMILY_6 && MODELS.contains(&model);
    cfg!(test) || Vendor::of_host() == Vendor::Intel && is_affected
});

/// Bytes between two boundaries that no branch may cross or end at.
const BOUNDARY: u32 = 32;
/// NOPs by their size less one (SDM vol. 2, NOP).
const NOPS: [&[u8]; 9] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

impl Emitter {
    /// Appends NOPs if a branch of `size` bytes would cross a boundary or end at it.
    pub(super) fn align_branch(&mut self, size: u32) {
        if self.would_cross(self.len(), size) {
            self.align();
        }
    }

    /// Returns whether the instructions since `mark`, with `size` bytes more, cross a boundary or end at it.
    pub(crate) fn crosses_since(&self, mark: Mark, size: u32) -> bool {
        self.would_cross(mark.len, self.len() - mark.len + size)
    }

    /// Appends NOPs up to the next boundary.
    pub(crate) fn align(&mut self) {
        let mut rest = (BOUNDARY - self.here() % BOUNDARY) as usize % BOUNDARY as usize;
        while rest > 0 {
            let nop = NOPS[rest.min(NOPS.len()) - 1];
            self.bytes(nop);
            rest -= nop.len();
        }
    }

    /// Returns whether `size` bytes that begin after `len` bytes of code cross a boundary or end at it.
    fn would_cross(&self, len: u32, size: u32) -> bool {
        self.must_align && (self.start + len) % BOUNDARY + size >= BOUNDARY
    }
}
