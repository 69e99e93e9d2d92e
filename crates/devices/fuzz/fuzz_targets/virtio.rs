//! Any bytes as what a driver does to a virtio disk or network card.

#![no_main]

#[path = "../../tests/support/abuse.rs"]
mod abuse;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| abuse::use_virtio(bytes));
