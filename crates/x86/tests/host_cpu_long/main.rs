//! Runs random instructions of 64-bit code of every form at privilege 3, here and on the real processor.
//!
//! It is the counterpart of `host_cpu`, which tests 32-bit code, and compares the same. For other cases see the
//! variables in `common/series.rs`.

#[path = "../common/mod.rs"]
mod common;

mod comparison;
mod encode;
#[path = "../host_cpu/forms.rs"]
mod forms;
mod guest;
mod scene;
mod vendors;

const CASES: u64 = if cfg!(debug_assertions) { 20_000 } else { 100_000 };

#[test]
fn every_form_agrees_with_the_host() {
    comparison::compare(guest::LongGuest::interpreted, CASES, &forms::tested(64));
}
