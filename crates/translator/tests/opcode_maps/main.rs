//! The interpreter's tests of all opcode maps, run on the translator.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../../../x86/tests/opcode_maps/patterns.rs"]
mod patterns;
#[path = "../support/mod.rs"]
mod support;
#[path = "../../../x86/tests/opcode_maps/tests.rs"]
mod tests;

use common::coverage::interpreter;
use common::guest::MEMORY;
use ring3_core::memory::Memory;
use ring3_x86::engine::Engine;

/// Of the invalid opcodes, one in this many is executed. Each needs a new start of the machine, which costs
/// more than with the interpreter.
pub(crate) const INVALID_STEP: usize = 100;

/// One in this number of instructions is compared with the host's processor. The interpreter compares all, in
/// a fiftieth of the time that their translation takes.
pub(crate) const HOST_STEP: usize = 5;

/// Returns the engine that is tested, and its memory. It is an interpreter on hosts that cannot have a
/// translator.
pub(crate) fn engine() -> (Box<dyn Engine>, Memory) {
    match support::translator(MEMORY) {
        Some((translator, memory)) => (Box::new(translator), memory),
        None => (Box::new(interpreter()), Memory::new(MEMORY).unwrap()),
    }
}
