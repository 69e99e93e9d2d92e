//! A translated guest, for comparisons with the real processor.

use ring3_hostcpu::{Layout, LongState};

use crate::common::guest::{Guest, MEMORY, Pace};
use crate::places::translated_code;
use crate::support::translator;

/// Returns a function that makes a guest for code of `bits` bits. Returns None, and reports a skipped test, on hosts
/// that cannot have a translator.
pub(crate) fn guest(bits: u32) -> Option<impl FnOnce() -> Guest> {
    translator(MEMORY)?;
    Some(move || {
        let (translator, memory) = translator(MEMORY).expect("there was one before");
        let mut guest = Guest::new(bits, Box::new(translator), memory);
        // The first 64-bit code makes the translator for it.
        guest.run(&LongState::at(Layout::FIXED.code.start.into()), &[0x90], Pace::ONCE).unwrap();
        guest.beside = translated_code();
        guest
    })
}
