//! The translator compared with the interpreter as in `engines`, while both count executed instructions by their
//! form: this changes nothing, and they count alike. The programs are those that leave blocks in all ways in which
//! counts are corrected.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../../../x86/tests/host_cpu/encode.rs"]
mod encode;
#[path = "../system/engine.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod engine;
#[path = "../../../x86/tests/system/machine.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod machine;
#[path = "../../../x86/tests/host_cpu/scene.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod scene;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/undefined.rs"]
mod undefined;
#[path = "../../../x86/tests/host_cpu/vectors.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod vectors;
#[path = "../../../x86/tests/host_x87/scene.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod x87_scene;

/// Whether both engines count executed instructions by their form.
const COUNTS_FORMS: bool = true;

#[path = "../engines/calls.rs"]
mod calls;
#[path = "../engines/code.rs"]
mod code;
#[path = "../engines/devices.rs"]
mod devices;
#[path = "../engines/exceptions.rs"]
mod exceptions;
#[path = "../engines/fast_calls.rs"]
mod fast_calls;
#[path = "../engines/faults.rs"]
mod faults;
#[path = "../engines/interrupts.rs"]
mod interrupts;
#[path = "../engines/loops.rs"]
mod loops;
#[path = "../engines/page_faults.rs"]
mod page_faults;
#[path = "../engines/paging.rs"]
mod paging;
#[path = "../engines/pair.rs"]
mod pair;
#[path = "../engines/ports.rs"]
mod ports;
#[path = "../engines/refused_loads.rs"]
mod refused_loads;
#[path = "../engines/repeats.rs"]
mod repeats;
#[path = "../engines/single_steps.rs"]
mod single_steps;
#[path = "../engines/software_interrupts.rs"]
mod software_interrupts;
