//! Code that changes while it is executed, crosses pages, or ends at the limit.
//!
//! Since the P6 a write takes effect on the very next instruction, without a jump in between (SDM vol. 3,
//! 13.6).

use iced_x86::{Code, Instruction};
use ring3_core::memory::Backing;
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::common::assembler::*;
use crate::machine::*;

const INC_EBX: u8 = 0x43;
const HLT: u8 = 0xf4;

#[test]
fn the_next_instruction_is_changed() {
    // MOV BYTE [CODE+7], INC EBX is 7 bytes.
    let mut machine = Machine::with_code(&[store_byte(CODE + 7, INC_EBX), nop(), hlt()]);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 1);
}

#[test]
fn a_later_instruction_of_the_block_is_changed() {
    let mut machine = Machine::new();
    let code = [nop(), store_byte(CODE + 10, INC_EBX), nop(), nop(), nop(), hlt()];
    let addresses = machine.code(CODE, &code);
    assert_eq!(addresses[4], CODE + 10);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 1);
}

/// A loop turns its own NOP into INC EBX when it has run as decoded code for a while.
#[test]
fn an_instruction_that_was_executed_before_is_changed() {
    let mut machine = Machine::new();
    let back = |target: u32| Instruction::with_branch(Code::Loop_rel8_32_ECX, target.into());
    let start = CODE + 5;
    let code = [mov(ECX, 10), nop(), store_byte(start, INC_EBX), back(start).unwrap(), hlt()];
    machine.code(CODE, &code);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 9);
}

/// A branch that is executed alone, after MOV SS, tells the engine nothing about the target of another one:
/// the JMP at the start must not get the target of the RET.
#[test]
fn a_branch_alone_is_not_taken_for_another() {
    let mut machine = Machine::new();
    machine.put(CODE, &[0xeb, 0x3e]); // JMP CODE+40h
    machine.put(CODE + 0x40, &[0x8c, 0xd0, 0x8e, 0xd0, 0xeb, 0x1a]); // MOV EAX, SS; MOV SS, EAX; JMP CODE+60h
    machine.put(CODE + 0x60, &[0x43, 0x83, 0xfb, 3, 0x74, 6, 0x68]); // INC EBX; CMP EBX, 3; JE CODE+6Ch; PUSH ...
    machine.put(CODE + 0x67, &(CODE + 0x80).to_le_bytes());
    machine.put(CODE + 0x6b, &[0xc3, HLT]); // RET; HLT
    machine.put(CODE + 0x80, &[0xe9, 0x7b, 0xff, 0xff, 0xff]); // JMP CODE
    machine.cpu.ip = CODE.into();
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 3);
}

#[test]
fn code_in_another_page_is_changed() {
    let other = CODE + 0x3000;
    let code = [call(other), store_byte(other, INC_EBX), call(other), hlt()];
    let mut machine = Machine::with_code(&code);
    machine.code(other, &[nop(), plain(Code::Retnd)]);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 1);
}

/// Code is changed through the same physical page at another linear address.
#[test]
fn code_is_changed_through_an_alias() {
    let alias = 0x7_0000;
    let code = [store_byte(alias + 8, INC_EBX), nop(), nop(), hlt()];
    let mut machine = Machine::with_code(&code);
    machine.enable_paging();
    machine.map(alias, CODE, P | RW);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 1);
}

/// Code is called, changed by a push or a string instruction, and called again.
#[test]
fn a_push_and_a_string_instruction_change_code() {
    const RET: u8 = 0xc3;
    let target = CODE + 0x1000;
    let new_code = u32::from_le_bytes([INC_EBX, RET, RET, RET]);
    let by_push =
        [call(target), mov(ESP, target + 4), push_value(new_code), mov(ESP, STACK), call(target)];
    let by_string = [
        call(target),
        mov(EDI, target),
        mov(ECX, 1),
        mov(EAX, new_code),
        rep_stosb(),
        call(target),
    ];
    for change in [&by_push[..], &by_string[..]] {
        let mut machine = Machine::with_code(&[change, &[hlt()]].concat());
        machine.code(target, &[nop(), plain(Code::Retnd)]);
        machine.run_to_halt();
        assert_eq!(machine.get(reg::BX), 1);
    }
}

/// REP MOVSB overwrites itself: the next iteration sees the new bytes.
#[test]
fn a_repeated_instruction_overwrites_itself() {
    let code = [mov(ESI, DATA), mov(EDI, CODE + 15), mov(ECX, 8), rep_movsb(), nop(), hlt()];
    let mut machine = Machine::new();
    let addresses = machine.code(CODE, &code);
    assert_eq!(addresses[3], CODE + 15);
    machine.put(DATA, &[INC_EBX, INC_EBX, HLT, HLT, HLT, HLT, HLT, HLT]);
    machine.run_to_halt();
    // The first byte replaces the prefix: the result is INC EBX, and MOVSB without one.
    assert_eq!(machine.get(reg::BX), 1);
    assert_eq!(machine.get(reg::CX), 7);
}

#[test]
fn a_device_changes_code() {
    let mut machine = Machine::new();
    let addresses = machine.code(CODE, &[nop(), jmp(CODE)]);
    assert_eq!(machine.run_for(11), Exit::Deadline);
    machine.put(addresses[0], &[INC_EBX]);
    assert_eq!(machine.run_for(10), Exit::Deadline);
    assert_eq!(machine.get(reg::BX), 5);
    machine.put(addresses[0], &[HLT]);
    machine.run_to_halt();
}

#[test]
fn rom_does_not_change() {
    let rom = CODE + 0x1000;
    let mut machine = Machine::with_code(&[jmp(rom)]);
    machine.code(rom, &[store_byte(rom + 7, INC_EBX), nop(), hlt()]);
    machine.memory.map(rom.into(), 0x1000, Backing::Ram, Backing::Nothing).unwrap();
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 0);
}

/// Makes a machine with MOV EBX, 1, whose first `first` bytes are at the end of a page.
fn crossing(first: u32) -> (Machine, u32, u32) {
    let second_page = 0x7_1000;
    let start = second_page - first;
    let mut machine = Machine::new();
    machine.code(start, &[mov(EBX, 0x0101_0101), hlt()]);
    machine.code(USER_CODE, &[jmp(start)]);
    machine.enable_paging();
    machine.enter_user();
    (machine, start, second_page)
}

#[test]
fn an_instruction_goes_on_in_a_page_that_is_absent() {
    for first in 1..5 {
        let (mut machine, start, second) = crossing(first);
        machine.map(second, 0, 0);
        let exception = machine.run_to_exception();
        assert_eq!((exception.vector, exception.error_code), (vector::PF, Some(4)));
        assert_eq!(exception.eip, start);
        assert_eq!(machine.cpu.cr2, u64::from(second));
        assert_eq!(machine.get(reg::BX), 0);
    }
}

/// The instruction ends with its page, and the next one is not accessed.
#[test]
fn an_instruction_that_ends_with_its_page_does_not_need_the_next() {
    let (mut machine, _, second) = crossing(5);
    machine.map(second, 0, 0);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (vector::PF, second));
    assert_eq!(machine.get(reg::BX), 0x0101_0101);
}

/// The second page is a different one the second time.
#[test]
fn an_instruction_goes_on_in_a_page_that_was_remapped() {
    let second = 0x7_1000;
    let start = second - 2;
    let code = [
        call(start),
        push(EBX),
        mov(EAX, 0x7_3000 | P | RW),
        store(Machine::pte(second), EAX),
        invlpg(second),
        call(start),
        push(EBX),
        hlt(),
    ];
    let mut machine = Machine::with_code(&code);
    machine.code(start, &[mov(EBX, 0x1111_1111), plain(Code::Retnd)]);
    // The rest of MOV EBX, 22222211h, and RET.
    machine.put(0x7_3000, &[0x22, 0x22, 0x22, 0xc3]);
    machine.enable_paging();
    machine.run_to_halt();
    assert_eq!(machine.dword(STACK - 4), 0x1111_1111);
    assert_eq!(machine.dword(STACK - 8), 0x2222_2211);
}

/// A write to the second page changes an instruction that begins in the first one.
#[test]
fn an_instruction_is_changed_behind_the_page_boundary() {
    let second = 0x7_1000;
    let start = second - 2;
    let code = [call(start), store_byte(second, 0x33), call(start), hlt()];
    let mut machine = Machine::with_code(&code);
    machine.code(start, &[mov(EBX, 0x1111_1111), plain(Code::Retnd)]);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 0x1111_3311);
}

/// The last byte of an instruction may be the last one of the segment, but not beyond it.
#[test]
fn code_ends_at_its_limit() {
    let code = [mov(EBX, 5), mov(EBX, 6)];
    for (limit, expected, eip) in [
        (CODE + 4, 5, CODE + 5),
        (CODE + 8, 5, CODE + 5),
        (CODE + 9, 6, CODE + 10),
        (CODE + 3, 0, CODE),
    ] {
        let mut machine = Machine::with_code(&code);
        // The code was decoded without the limit before, which must not matter.
        for round in 0..2 {
            machine.cpu.set_flat_entry(KERNEL_CODE, KERNEL_DATA, CODE);
            machine.cpu.set_gpr(reg::BX, 0);
            machine.cpu.set_gpr(reg::SP, STACK.into());
            if round == 0 {
                assert_eq!(machine.run_for(2), Exit::Deadline);
                continue;
            }
            let small = Segment::new(KERNEL_CODE, 0, limit, Attributes(0x409b));
            machine.cpu.set_segment(sreg::CS, small);
            let exception = machine.run_to_exception();
            assert_eq!((exception.vector, exception.error_code), (vector::GP, Some(0)));
            assert_eq!((machine.get(reg::BX), exception.eip), (expected, eip), "{limit:x}");
        }
    }
}

#[test]
fn an_instruction_of_more_than_15_bytes_is_gp() {
    let mut machine = Machine::new();
    let mut bytes = [0x3e; 16]; // DS:
    bytes[14] = 0x90;
    machine.put(CODE, &bytes);
    assert_eq!(machine.run_for(1), Exit::Deadline);
    assert_eq!(machine.cpu.ip, u64::from(CODE) + 15);
    let mut machine = Machine::new();
    machine.put(CODE, &[0x3e; 15]);
    machine.put(CODE + 15, &[0x90]);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::GP, Some(0)));
}

/// One byte of the doubleword is code. The write stops before any change, and starts again with the original
/// values.
#[test]
fn a_write_across_pages_that_stops_at_code_writes_once() {
    let code = CODE + 0x1000;
    let mut machine =
        Machine::with_code(&[call(code), mov(EAX, 1), add_to_memory(code - 3, EAX), hlt()]);
    machine.code(code, &[nop(), plain(Code::Retnd)]);
    machine.run_to_halt();
    assert_eq!(machine.dword(code - 3), 0x9000_0001);
}
