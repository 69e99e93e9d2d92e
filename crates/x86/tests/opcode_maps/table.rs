//! Tests of the table of instructions, which is the same for all engines.

use std::collections::BTreeMap;

use ring3_x86::cpuid::Model;
use ring3_x86::decode::{CodeMode, CodeSize, decode};

use crate::patterns::{self, is_offered};
use crate::tests::is_ignored;

/// The table contains what CPUID offers, and nothing else is decoded, for all bytes, models and sizes of
/// code.
#[test]
fn the_table_has_all_offered_forms() {
    let mut wrong = BTreeMap::new();
    for pattern in patterns::all() {
        for is_32_bit in [false, true] {
            let instruction = pattern.instruction(is_32_bit);
            if instruction.is_invalid() {
                continue;
            }
            for model in Model::ALL {
                let mode = CodeMode { size: CodeSize::of(is_32_bit), is_flat: is_32_bit };
                let op = decode(&pattern.bytes, mode, model).expect("they are enough bytes");
                let is_there = op.form.form().is_some();
                let code = instruction.code();
                if is_there != is_offered(&instruction, model) && !is_ignored(code) {
                    wrong.entry((code, model.name())).or_insert(pattern.bytes.clone());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:02x?}");
}

/// 0F 0D and the other reserved NOPs exist on the models that have them (SDM vol. 2, table A-3).
#[test]
fn reserved_nops_are_of_the_models_that_had_them() {
    let has = |model, opcode: u8, modrm: u8| {
        let mode = CodeMode { size: CodeSize::Bits32, is_flat: true };
        let op = decode(&[0x0f, opcode, modrm, 0, 0, 0, 0, 0], mode, model);
        op.expect("they are enough bytes").form.form().is_some()
    };
    for modrm in 0..=255 {
        let models = |opcode| Model::ALL.map(|model| has(model, opcode, modrm));
        assert_eq!(models(0x0d), [false, false, false, true, true, true, true, true], "{modrm:#x}");
        for opcode in 0x18..=0x1f {
            assert_eq!(
                models(opcode),
                [false, false, true, true, true, true, true, true],
                "{opcode:#x} {modrm:#x}"
            );
        }
    }
}
