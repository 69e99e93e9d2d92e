//! The translator compared with the interpreter, which is the specification: both run the same guests, and
//! afterwards state, memory, accesses to devices and counts of instructions must be the same. The
//! interpreter's own tests say what is right; these tests cover what is difficult for a translator.

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
const COUNTS_FORMS: bool = false;

mod addresses;
mod calls;
mod code;
mod devices;
mod exceptions;
mod far_pushes;
mod fast_calls;
mod faults;
mod first_accesses;
mod hosts;
mod interrupts;
mod joins;
mod loops;
mod neighbours;
mod numeric_errors;
mod page_faults;
mod paging;
mod pair;
mod ports;
mod refused_loads;
mod repeats;
mod single_steps;
mod software_interrupts;
mod system_instructions;
mod virtual_8086;
mod watching;
