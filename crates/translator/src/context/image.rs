//! The memory image of the numeric registers, which holds them while they are not in the host's registers.

/// The area that FXSAVE writes in 64-bit mode (SDM vol. 1, table 10-3).
#[derive(Debug)]
#[repr(C, align(16))]
pub(crate) struct Image(pub(crate) [u8; IMAGE]);

/// Bytes of the image.
pub(crate) const IMAGE: usize = 512;

impl Image {
    /// Returns the quadword at `offset`.
    pub(crate) fn get(&self, offset: usize) -> u64 {
        u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| self.0[offset + byte]))
    }

    /// Sets the quadword at `offset`.
    pub(crate) fn set(&mut self, offset: usize, value: u64) {
        self.0[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
}
