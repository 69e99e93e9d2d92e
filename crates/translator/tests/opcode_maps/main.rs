//! All opcode maps on the translator: the interpreter's tests of this name.

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

/// Of what is no instruction one in so many is executed: each is a start of the machine, which costs more than the interpreter's.
pub(crate) const INVALID_STEP: usize = 100;

/// The engine that is tested, and its memory; an interpreter where there cannot be one on this host.
pub(crate) fn engine() -> (Box<dyn Engine>, Memory) {
    match support::translator(MEMORY) {
        Some((translator, memory)) => (Box::new(translator), memory),
        None => (Box::new(interpreter()), Memory::new(MEMORY).unwrap()),
    }
}
