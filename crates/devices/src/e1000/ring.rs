//! A ring of descriptors in guest memory (chapter 3).

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_LEN: u32 = 16;

/// Where a ring is, and which of its descriptors are the card's: those from the head to before the tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) base: u64,
    /// Bytes.
    pub(super) len: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Ring {
    /// How many descriptors there are in all.
    pub(super) fn size(&self) -> u32 {
        self.len / DESCRIPTOR_LEN
    }

    /// How many are the card's: none while its registers make no sense.
    pub(super) fn available(&self) -> u32 {
        let size = self.size();
        if self.head >= size || self.tail >= size {
            return 0;
        }
        (self.tail + size - self.head) % size
    }

    /// Where the first is that is the card's.
    pub(super) fn address_of_head(&self) -> u64 {
        self.base.wrapping_add(u64::from(self.head) * u64::from(DESCRIPTOR_LEN))
    }

    /// Gives that one back to software.
    pub(super) fn advance(&mut self) {
        self.head = (self.head + 1) % self.size().max(1);
    }
}
