//! A guest for comparisons with the real processor, translated.

use crate::common::guest::{Guest, MEMORY};
use crate::support::translator;

/// What makes one; none, and a word about it, where there cannot be one on this host.
pub(crate) fn guest() -> Option<impl FnOnce() -> Guest> {
    translator(MEMORY)?;
    Some(|| {
        let (translator, memory) = translator(MEMORY).expect("there was one before");
        Guest::new(Box::new(translator), memory)
    })
}
