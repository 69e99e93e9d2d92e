//! Tests what cannot be tested in user mode: modes, descriptors, paging, interrupts, code that changes while
//! it is executed, devices, and the counting of instructions.

#[path = "../common/mod.rs"]
mod common;

mod engine;
mod long_mode;
mod machine;

#[path = "tests.rs"]
mod tests;
