//! Storing and loading descriptor-table registers, selectors and the machine status word (SDM vol. 2, SGDT,
//! SIDT, SLDT, STR, SMSW).

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::segment::{Attributes, Segment, TableRegister};

use crate::common::assembler::*;
use crate::machine::*;

const OLD: u32 = 0xcccc_cccc;

/// Runs `instruction` with EAX and the memory at [`DATA`] all [`OLD`]. Returns EAX and two doublewords
/// afterwards.
fn stored(instruction: Instruction, prepare: impl Fn(&mut Machine)) -> (u32, [u32; 2]) {
    let mut machine = Machine::with_code(&[instruction, hlt()]);
    machine.cpu.set_gpr(reg::AX, OLD.into());
    machine.put_dword(DATA, OLD);
    machine.put_dword(DATA + 4, OLD);
    prepare(&mut machine);
    machine.run_to_halt();
    (machine.get(reg::AX), [machine.dword(DATA), machine.dword(DATA + 4)])
}

/// All 32 bits of the base are stored at any operand size.
#[test]
fn descriptor_tables_are_stored_whole() {
    let table = TableRegister { base: 0x8765_4321, limit: 0x1234 };
    let expected = [0x4321_1234, 0xcccc_8765];
    for code in [Code::Sgdt_m1632_16, Code::Sgdt_m1632] {
        let (_, bytes) = stored(memory(code, DATA), |machine| machine.cpu.gdtr = table);
        assert_eq!(bytes, expected, "{code:?}");
    }
    for code in [Code::Sidt_m1632_16, Code::Sidt_m1632] {
        let (_, bytes) = stored(memory(code, DATA), |machine| machine.cpu.idtr = table);
        assert_eq!(bytes, expected, "{code:?}");
    }
}

#[test]
fn sgdt_stores_the_value_that_lgdt_loads() {
    let (from, to) = (DATA + 0x10, DATA);
    for (load, base) in [(Code::Lgdt_m1632_16, 0x65_4321), (Code::Lgdt_m1632, 0x8765_4321)] {
        let code = [memory(load, from), memory(Code::Sgdt_m1632, to), hlt()];
        let mut machine = Machine::with_code(&code);
        machine.put(from, &[0x34, 0x12, 0x21, 0x43, 0x65, 0x87]);
        machine.run_to_halt();
        assert_eq!((machine.dword(to) & 0xffff, machine.dword(to + 2)), (0x1234, base));
    }
}

/// Memory and a word register receive a word, and a doubleword register the selector and zeros.
#[test]
fn selectors() {
    let low_word = |value: u16| OLD & 0xffff_0000 | u32::from(value);
    let ldtr = 0xabc8;
    let prepare = |machine: &mut Machine| {
        machine.cpu.ldtr = Segment::new(ldtr, 0, 0xffff, Attributes(0x82));
    };
    for (word, doubleword, selector) in
        [(Code::Sldt_rm16, Code::Sldt_r32m16, ldtr), (Code::Str_rm16, Code::Str_r32m16, TASK)]
    {
        assert_eq!(stored(unary(word, AX), prepare).0, low_word(selector));
        assert_eq!(stored(unary(doubleword, EAX), prepare).0, u32::from(selector));
        for code in [word, doubleword] {
            let (_, bytes) = stored(memory(code, DATA), prepare);
            assert_eq!(bytes, [low_word(selector), OLD], "{code:?}");
        }
    }
}

#[test]
fn the_machine_status_word() {
    let cr0 = Cr0::PE | Cr0::MP | Cr0::ET | Cr0::NE | Cr0::AM;
    let prepare = |machine: &mut Machine| machine.cpu.set_cr0(cr0);
    let low_word = OLD & 0xffff_0000 | cr0.bits() & 0xffff;
    assert_eq!(stored(unary(Code::Smsw_rm16, AX), prepare).0, low_word);
    assert_eq!(stored(unary(Code::Smsw_r32m16, EAX), prepare).0, cr0.bits());
    for code in [Code::Smsw_rm16, Code::Smsw_r32m16] {
        assert_eq!(stored(memory(code, DATA), prepare).1, [low_word, OLD], "{code:?}");
    }
}
