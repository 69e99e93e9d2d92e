//! Any bytes in any state: the processor neither panics nor hangs (see `tests/any_bytes.rs`).

#![no_main]
#![allow(dead_code, reason = "the tests need what is not used here")]

#[path = "../../tests/common/anything.rs"]
mod anything;
#[path = "../../tests/common/random.rs"]
mod random;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| anything::run_bytes(bytes));
