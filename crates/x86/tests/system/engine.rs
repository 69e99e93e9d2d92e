//! The engine under test.

use ring3_core::memory::Memory;
use ring3_x86::engine::Engine;

use crate::common::coverage::interpreter;

/// Whether it always leaves the same values in undefined flags when it executes the same instruction.
pub(crate) const IS_UNIFORM: bool = true;

/// An engine, and `bytes` bytes of memory for it.
pub(crate) fn engine(bytes: u64) -> (Box<dyn Engine>, Memory) {
    (Box::new(interpreter()), Memory::new(bytes).unwrap())
}
