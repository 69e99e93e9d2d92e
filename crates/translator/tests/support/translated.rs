//! A translated guest, for comparisons with the real processor.

use crate::common::guest::{Guest, MEMORY};
use crate::support::translator;

/// Returns a function that makes a guest. Returns None, and reports a skipped test, on hosts that cannot have
/// a translator.
pub(crate) fn guest() -> Option<impl FnOnce() -> Guest> {
    translator(MEMORY)?;
    Some(|| {
        let (translator, memory) = translator(MEMORY).expect("there was one before");
        Guest::new(Box::new(translator), memory)
    })
}
