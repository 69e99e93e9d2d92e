//! Opens arbitrary bytes as an image: no format panics or hangs. The first byte chooses the format.

#![no_main]

#[path = "../../tests/whole/support/abuse.rs"]
mod abuse;

use ring3_block::Format;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((kind, image)) = bytes.split_first() {
        abuse::use_all(image, Format::ALL[usize::from(*kind) % Format::ALL.len()]);
    }
});
