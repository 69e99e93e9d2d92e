//! Runs every x87 instruction in random states at privilege 3, here and on the real processor, in 32-bit code and
//! in 64-bit code.
//!
//! The results compared are the control and status words (including a pending exception), the contents of all
//! registers, which of them are empty, EFLAGS, the general registers, memory, and the exception with its
//! error code and CR2. The full tag word is compared where FNSTENV and FNSAVE store it. These are not
//! compared:
//!
//! | result | reason |
//! | --- | --- |
//! | instruction, operand and opcode pointers | processors differ in when they keep them |
//! | the page offset in CR2 for environments and whole states | processors access these in different orders |
//! | FPREM and FPREM1, except on AMD | the processor chooses how far one step goes |
//! | whether a store faults that an exception prevents | Intel's processors do not access memory then |
//! | the first eight bytes that FSTP and FBSTP store before a fault | Intel's processors do not wait for the last two |
//!
//! On both sides the host computes the transcendental functions, so that everything else about their
//! instructions is compared bit by bit. `portable.rs` compares the functions that need no host.
//!
//! For other cases see the variables in `common/series.rs`.

#[path = "../common/mod.rs"]
mod common;

mod portable;
mod scene;

use common::guest::Guest;
use scene::X87Scene;

/// Number of cases: some seconds in either build.
const CASES: u64 = if cfg!(debug_assertions) { 50_000 } else { 100_000 };

/// Compares cases of all encodings in code of `bits` bits.
fn compare(bits: u32) {
    let _alone = common::comparison::alone();
    let guest = || Guest::interpreted(bits);
    let encodings = scene::encodings(bits);
    common::comparison::compare_forms(guest, CASES, &encodings, |random, encoding| {
        X87Scene::random(random, encoding, bits)
    });
}

#[test]
fn every_form_of_32_bit_code_agrees_with_the_host() {
    compare(32);
}

#[test]
fn every_form_of_64_bit_code_agrees_with_the_host() {
    compare(64);
}
