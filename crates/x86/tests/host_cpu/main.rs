//! Runs random instructions of every integer, MMX and SSE form at privilege 3, here and on the real processor, in
//! 32-bit code and in 64-bit code.
//!
//! The results compared are registers, EIP, EFLAGS except for flags that are
//! [undefined](ring3_x86::undefined), memory, and the exception with its error code and CR2. Alignment checks
//! (EFLAGS.AC) are not part of the test, because the interpreter has none. `vendors.rs` lists where
//! processors differ.
//!
//! For other cases see the variables in `common/series.rs`.

#[path = "../common/mod.rs"]
mod common;

mod encode;
mod forms;
mod scene;
mod vectors;
mod vendors;

use common::guest::Guest;
use scene::IntegerScene;

const CASES: u64 = if cfg!(debug_assertions) { 20_000 } else { 100_000 };

/// Compares cases of all forms of code of `bits` bits.
fn compare(bits: u32) {
    let _alone = common::comparison::alone();
    let guest = || Guest::interpreted(bits);
    common::comparison::compare_forms(guest, CASES, &forms::tested(bits), |random, form| {
        IntegerScene::random(random, *form, bits)
    });
}

#[test]
fn every_form_of_32_bit_code_agrees_with_the_host() {
    compare(32);
}

#[test]
fn every_form_of_64_bit_code_agrees_with_the_host() {
    compare(64);
}
