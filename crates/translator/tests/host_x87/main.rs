//! Every x87 instruction in random states, translated and on the real processor. The cases are those of the
//! interpreter's test of this name, which says what is not compared.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../../../x86/tests/host_x87/scene.rs"]
mod scene;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/translated.rs"]
mod translated;

use scene::X87Scene;

/// Number of cases: some seconds in either build.
const CASES: u64 = if cfg!(debug_assertions) { 20_000 } else { 50_000 };

#[test]
fn every_form_agrees_with_the_host() {
    let Some(guest) = translated::guest() else { return };
    let encodings = scene::encodings();
    common::comparison::compare_forms(guest, CASES, &encodings, |random, encoding| {
        X87Scene::random(random, encoding)
    });
}
