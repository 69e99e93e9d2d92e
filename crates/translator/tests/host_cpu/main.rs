//! Random instructions of every integer, MMX and SSE form, translated and on the real processor, in 32-bit code and
//! in 64-bit code. The cases are those of the interpreter's test of this name.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../../../x86/tests/host_cpu/encode.rs"]
mod encode;
#[path = "../../../x86/tests/host_cpu/forms.rs"]
mod forms;
#[path = "../support/places.rs"]
mod places;
#[path = "../../../x86/tests/host_cpu/scene.rs"]
mod scene;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/translated.rs"]
mod translated;
#[path = "../../../x86/tests/host_cpu/vectors.rs"]
mod vectors;
#[path = "../../../x86/tests/host_cpu/vendors.rs"]
mod vendors;

use scene::IntegerScene;

const CASES: u64 = if cfg!(debug_assertions) { 5_000 } else { 40_000 };

/// Compares cases of all forms of code of `bits` bits.
fn compare(bits: u32) {
    let _alone = common::comparison::alone();
    let Some(guest) = translated::guest(bits) else { return };
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
