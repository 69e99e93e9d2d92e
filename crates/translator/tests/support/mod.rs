//! What the tests of this directory share.

use ring3_core::memory::Memory;
use ring3_translator::Translator;

/// A translator, and `bytes` bytes of memory for it; none, and a word about it, where there cannot be one on this host.
pub(crate) fn translator(bytes: u64) -> Option<(Translator, Memory)> {
    Translator::with_memory(bytes).map_err(ring3_skipped::host).ok()
}
