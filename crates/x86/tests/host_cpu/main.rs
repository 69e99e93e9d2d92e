//! Runs random instructions of every integer form at privilege 3, here and on the real processor.
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

#[test]
fn every_form_agrees_with_the_host() {
    let forms = forms::tested(32);
    common::comparison::compare_forms(Guest::interpreted, CASES, &forms, |random, form| {
        IntegerScene::random(random, *form)
    });
}
