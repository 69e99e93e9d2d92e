//! The engine that is tested.

use ring3_core::memory::Memory;
use ring3_x86::engine::Engine;

use crate::common::coverage::interpreter;
use crate::support::translator;

/// It does not leave the same in undefined flags whenever it executes the same instruction: near a deadline that is
/// the interpreter, and else the host.
pub(crate) const IS_UNIFORM: bool = false;

/// A translator, and `bytes` bytes of memory for it; an interpreter where there cannot be one on this host.
pub(crate) fn engine(bytes: u64) -> (Box<dyn Engine>, Memory) {
    match translator(bytes) {
        Some((translator, memory)) => (Box::new(translator), memory),
        None => (Box::new(interpreter()), Memory::new(bytes).unwrap()),
    }
}
