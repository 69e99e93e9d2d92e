//! Functions that the tests of this directory share.

use ring3_core::memory::Memory;
use ring3_translator::Translator;

/// Returns a translator with `bytes` bytes of memory. Returns None, and reports a skipped test, on hosts that
/// cannot have a translator.
pub(crate) fn translator(bytes: u64) -> Option<(Translator, Memory)> {
    Translator::with_memory(bytes).map_err(ring3_skipped::host).ok()
}
