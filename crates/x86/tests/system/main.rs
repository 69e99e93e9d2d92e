//! What user mode cannot show: modes, descriptors, paging, interrupts, code that
//! changes under the processor, devices, and how the engine counts.

#[path = "../common/mod.rs"]
mod common;

mod engine;
mod machine;

#[path = "tests.rs"]
mod tests;
