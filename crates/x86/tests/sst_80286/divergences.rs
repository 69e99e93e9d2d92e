//! The cases in which an 80286 differs from the processors that are emulated here (SDM vol. 3, "Architecture
//! Compatibility").

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use ring3_x86::exception::vector;

use super::vectors::Test;

/// A row of the table: some tests, and the differences that are allowed in them.
pub(crate) struct Divergence {
    /// The reason.
    pub(crate) reason: &'static str,
    /// Returns whether the row applies to a test.
    applies: fn(&Test, &Instruction) -> bool,
    /// The exception that the instruction raises here, if any.
    pub(crate) ours: Option<u8>,
    /// The registers that may differ; an empty list stands for everything.
    pub(crate) registers: &'static [&'static str],
}

/// The longest instruction of an 80286, in bytes.
const LONGEST: usize = 10;

/// The table.
pub(crate) static TABLE: &[Divergence] = &[
    Divergence {
        reason: "LOCK goes with every instruction of an 80286; since the 80386, only with those \
                 that modify memory (SDM vol. 2, LOCK)",
        applies: |test, instruction| {
            let checked = Decoder::new(16, &test.bytes, DecoderOptions::NONE).decode();
            instruction.has_lock_prefix() && checked.is_invalid()
        },
        ours: Some(vector::UD),
        registers: &[],
    },
    Divergence {
        reason: "an instruction has 10 bytes at most; since the 80386, 15 (SDM vol. 2, 2.3.11)",
        applies: |test, instruction| raises(test, vector::GP) && instruction.len() > LONGEST,
        ours: None,
        registers: &[],
    },
    Divergence {
        reason: "a word across the end of the stack segment raises #GP; since the 80386, #SS",
        applies: |test, instruction| raises(test, vector::GP) && uses_stack(instruction),
        ours: Some(vector::SS),
        registers: &[],
    },
    Divergence {
        reason: "a string instruction that faults has already moved its registers",
        applies: |test, instruction| {
            raises(test, vector::GP) && instruction.is_string_instruction()
        },
        ours: Some(vector::GP),
        registers: &["cx", "si", "di"],
    },
    Divergence {
        reason: "there are no FS and GS",
        applies: |test, instruction| {
            let operands = [instruction.op0_register(), instruction.op1_register()];
            let new = [Register::FS, Register::GS];
            raises(test, vector::UD) && operands.iter().any(|operand| new.contains(operand))
        },
        ours: None,
        registers: &[],
    },
];

impl Divergence {
    /// Returns the row for `test`, if there is one. `raised` is the exception that the test has raised here.
    pub(crate) fn find(test: &Test, raised: Option<u8>) -> Option<usize> {
        // Without the decoder's checks, LOCK is accepted everywhere.
        let options = DecoderOptions::NO_INVALID_CHECK;
        let instruction = Decoder::new(16, &test.bytes, options).decode();
        TABLE.iter().position(|row| row.ours == raised && (row.applies)(test, &instruction))
    }
}

/// Returns whether the 80286 raises `vector`.
fn raises(test: &Test, vector: u8) -> bool {
    test.exception == Some(vector)
}

/// Returns whether the instruction accesses memory through SS.
fn uses_stack(instruction: &Instruction) -> bool {
    instruction.memory_segment() == Register::SS || instruction.is_stack_instruction()
}
