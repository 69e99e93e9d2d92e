//! The decoder.

use iced_x86::{Code, Instruction, Register};
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{CodeMode, CodeSize, Op, exists, to_op};
use ring3_x86::exception::{Stop, vector};

#[test]
fn two_instructions_share_a_cache_line() {
    assert_eq!(size_of::<Op>(), 32);
}

/// Only the 8086 has POP CS. No model is an 8086, so the instruction is in no table, and the decoder
/// returns it for no bytes.
#[test]
fn offered_forms_that_are_missing_raise_an_exception() {
    let missing = Instruction::with1(Code::Popw_CS, Register::CS).unwrap();
    let mode = CodeMode { size: CodeSize::Bits32, is_flat: true };
    for model in Model::ALL {
        assert!(missing.cpuid_features().iter().all(|feature| model.has(*feature)));
        assert!(!exists(&missing, model));
        let ops = [to_op(&missing, mode, model)];
        let (mut cpu, mut memory) = (Cpu::of_model(model), Memory::new(1 << 20).unwrap());
        assert!((ops[0].exec)(&mut cpu, &mut memory, &ops[0], &ops, 0).is_err(), "{model}");
        let is_undefined = matches!(cpu.stop(), Stop::Fault(fault) if fault.vector == vector::UD);
        assert!(is_undefined, "{model}: {:?}", cpu.stop());
    }
}
