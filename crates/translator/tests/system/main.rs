//! The interpreter's tests of what user mode cannot show, run on the translator.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
mod engine;
#[path = "../../../x86/tests/system/machine.rs"]
mod machine;
#[path = "../support/mod.rs"]
mod support;
#[path = "../../../x86/tests/system/tests.rs"]
mod tests;
