//! What the tests of this directory share.

use std::sync::Arc;

use ring3_core::memory::Memory;
use ring3_translator::{GuestMemory, Translator};

/// A translator, and `bytes` bytes of memory for it; none, and a word about it, where there cannot be one on this host.
pub(crate) fn translator(bytes: u64) -> Option<(Translator, Memory)> {
    let guest_memory = Arc::new(GuestMemory::default());
    match Translator::new(Arc::clone(&guest_memory)) {
        Ok(translator) => Some((translator, Memory::with_pages(bytes, guest_memory).unwrap())),
        Err(error) => {
            ring3_skipped::host(error);
            None
        }
    }
}
