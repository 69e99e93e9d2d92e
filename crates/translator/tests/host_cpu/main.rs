//! Random instructions of every integer, MMX and SSE form, translated and on the real processor. The cases
//! are those of the interpreter's test of this name.

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

use std::cell::OnceCell;
use std::ops::Range;

use common::comparison::{Case, Outcome, Scene};
use places::translated_code;
use ring3_hostcpu::{Stop, Vendor};
use scene::IntegerScene;

const CASES: u64 = if cfg!(debug_assertions) { 5_000 } else { 40_000 };

#[test]
fn every_form_agrees_with_the_host() {
    let Some(guest) = translated::guest() else { return };
    // The place is known when the guest exists.
    let place = OnceCell::new();
    common::comparison::compare_forms(guest, CASES, &forms::tested(32), |random, form| Beside {
        scene: IntegerScene::random(random, *form),
        translated: place.get_or_init(translated_code).clone(),
    });
}

/// A case on a host whose processor finds translated code in its memory.
struct Beside {
    scene: IntegerScene,
    translated: Vec<Range<u64>>,
}

impl Scene for Beside {
    fn case(&self) -> &Case {
        self.scene.case()
    }

    fn is_left_out(&self, ours: &Outcome, vendor: Vendor) -> bool {
        let is_there =
            |address: u32| self.translated.iter().any(|code| code.contains(&address.into()));
        let accessed = match ours.stop {
            Stop::Exception { vector: 14, cr2, .. } => is_there(cr2),
            _ => false,
        };
        accessed || is_there(ours.state.eip) || self.scene.is_left_out(ours, vendor)
    }

    fn forgive(&self, host: &mut Outcome, ours: &Outcome) {
        self.scene.forgive(host, ours);
    }
}
