//! Functions that the tests of this directory share.

mod room;

use ring3_core::memory::Memory;
use ring3_translator::Translator;

/// Returns a translator that translates all code at once, with `bytes` bytes of memory. Returns None, and reports a
/// skipped test, on hosts that cannot have a translator.
pub(crate) fn translator(bytes: u64) -> Option<(Translator, Memory)> {
    let (mut translator, memory) = usual_translator(bytes)?;
    translator.translate_after(0);
    Some((translator, memory))
}

/// As [`translator`], but the translator is as users have it.
pub(crate) fn usual_translator(bytes: u64) -> Option<(Translator, Memory)> {
    room::wait();
    Translator::with_memory(bytes).map_err(ring3_skipped::host).ok()
}
