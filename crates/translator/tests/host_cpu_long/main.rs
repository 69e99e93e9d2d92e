//! Random instructions of 64-bit code of every form, translated and on the real processor. The cases are those
//! of the interpreter's test of this name.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../../../x86/tests/host_cpu_long/comparison.rs"]
mod comparison;
#[path = "../../../x86/tests/host_cpu_long/encode.rs"]
mod encode;
#[path = "../../../x86/tests/host_cpu/forms.rs"]
mod forms;
#[path = "../../../x86/tests/host_cpu_long/guest.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod guest;
#[path = "../support/places.rs"]
mod places;
#[path = "../../../x86/tests/host_cpu_long/scene.rs"]
mod scene;
#[path = "../support/mod.rs"]
mod support;
#[path = "../../../x86/tests/host_cpu_long/vendors.rs"]
mod vendors;

use common::guest::Pace;
use guest::{LongGuest, MEMORY};
use ring3_hostcpu::{Layout, LongState};

const CASES: u64 = if cfg!(debug_assertions) { 5_000 } else { 40_000 };

#[test]
fn every_form_agrees_with_the_host() {
    // The host's part is made first, since its addresses are fixed.
    if support::translator(MEMORY).is_none() {
        return;
    }
    let guest = || {
        let (translator, memory) = support::translator(MEMORY).expect("there was one before");
        let mut guest = LongGuest::new(Box::new(translator), memory);
        // The first 64-bit code makes the translator for it.
        guest.run(&LongState::at(Layout::FIXED.code.start.into()), &[0x90], Pace::ONCE).unwrap();
        guest.beside = places::translated_code();
        guest
    };
    comparison::compare(guest, CASES, &forms::tested(64));
}
