//! Every x87 instruction in random states, translated and on the real processor, in 32-bit code and in 64-bit code.
//! The cases are those of the interpreter's test of this name, which says what is not compared.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../support/places.rs"]
mod places;
#[path = "../../../x86/tests/host_x87/scene.rs"]
mod scene;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/translated.rs"]
mod translated;

use scene::X87Scene;

/// Number of cases: some seconds in either build.
const CASES: u64 = if cfg!(debug_assertions) { 20_000 } else { 50_000 };

/// Compares cases of all encodings in code of `bits` bits.
fn compare(bits: u32) {
    let _alone = common::comparison::alone();
    let Some(guest) = translated::guest(bits) else { return };
    let encodings = scene::encodings(bits);
    common::comparison::compare_forms(guest, CASES, &encodings, |random, encoding| {
        X87Scene::random(random, encoding, bits)
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
