//! The engine that is tested.

use ring3_core::memory::Memory;
use ring3_x86::engine::Engine;

use crate::common::coverage::interpreter;
use crate::support::translator;

/// Whether it always leaves the same undefined flags for the same instruction. It does not: near a deadline
/// the interpreter executes the instruction, and otherwise the host.
pub(crate) const IS_UNIFORM: bool = false;

/// Returns a translator with `bytes` bytes of memory, or an interpreter on hosts that cannot have a
/// translator.
pub(crate) fn engine(bytes: u64) -> (Box<dyn Engine>, Memory) {
    match translator(bytes) {
        Some((translator, memory)) => (Box::new(translator), memory),
        None => (Box::new(interpreter()), Memory::new(bytes).unwrap()),
    }
}
