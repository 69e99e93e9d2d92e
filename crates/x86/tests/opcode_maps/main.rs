//! Decodes and executes all opcode maps, with all prefixes and operands: every instruction that exists
//! executes, and all other bytes raise #UD.

#[path = "../common/mod.rs"]
mod common;

mod patterns;
mod table;

#[path = "tests.rs"]
mod tests;

use common::coverage::interpreter;
use common::guest::MEMORY;
use ring3_core::memory::Memory;
use ring3_x86::engine::Engine;

/// One in this number of invalid instructions is executed.
pub(crate) const INVALID_STEP: usize = if cfg!(debug_assertions) { 50 } else { 10 };

/// One in this number of instructions is compared with the host's processor.
pub(crate) const HOST_STEP: usize = 1;

/// The engine that is tested, and its memory.
pub(crate) fn engine() -> (Box<dyn Engine>, Memory) {
    (Box::new(interpreter()), Memory::new(MEMORY).unwrap())
}
