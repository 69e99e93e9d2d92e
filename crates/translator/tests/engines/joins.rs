//! Ways through a block that part and join again. On each of them the block faults at any instruction, is
//! interrupted there, and meets the end of a slice.

use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::machine::*;
use crate::pair::Pair;

/// Address of the numbers whose low bits decide about the ways. The page behind the last one is not present.
const NUMBERS: u32 = 0x6_0000;
const END: u32 = NUMBERS + 0x1000;
/// Number of all ways.
const WAYS: u32 = 16;

#[rustfmt::skip]
const CODE: &[u8] = &[
    0x8b, 0x06,                   // 00 MOV EAX, [ESI]
    0x83, 0xc6, 0x04,             // 02 ADD ESI, 4
    0xa8, 0x01,                   // 05 TEST AL, 1
    0x74, 0x08,                   // 07 JE 11
    0x03, 0x1e,                   // 09 ADD EBX, [ESI]
    0xdb, 0x06,                   // 0b FILD dword [ESI]
    0xdb, 0x1e,                   // 0d FISTP dword [ESI]
    0xeb, 0x04,                   // 0f JMP 15
    0x2b, 0x1e,                   // 11 SUB EBX, [ESI]
    0x31, 0xc7,                   // 13 XOR EDI, EAX
    0xa8, 0x02,                   // 15 TEST AL, 2
    0x74, 0x07,                   // 17 JE 20
    0x50,                         // 19 PUSH EAX
    0xe8, 0x18, 0x00, 0x00, 0x00, // 1a CALL 37
    0x58,                         // 1f POP EAX
    0xa8, 0x04,                   // 20 TEST AL, 4
    0x74, 0x09,                   // 22 JE 2d
    0xa8, 0x08,                   // 24 TEST AL, 8
    0x75, 0x05,                   // 26 JNE 2d
    0xdb, 0x06,                   // 28 FILD dword [ESI]
    0xdb, 0x1e,                   // 2a FISTP dword [ESI]
    0x42,                         // 2c INC EDX
    0xdb, 0x06,                   // 2d FILD dword [ESI]
    0xdb, 0x1e,                   // 2f FISTP dword [ESI]
    0x49,                         // 31 DEC ECX
    0x75, 0xcc,                   // 32 JNE 00
    0x01, 0xd3,                   // 34 ADD EBX, EDX
    0xf4,                         // 36 HLT
    0x01, 0xda,                   // 37 ADD EDX, EBX
    0xc3,                         // 39 RET
];

/// Prepares the numbers from `at` on, the first of which is `first`, and the program that reads `count` of them.
fn begin(machine: &mut Machine, at: u32, first: u32, count: u32) {
    machine.reset_processor();
    machine.enable_paging();
    machine.map(NUMBERS, NUMBERS, P | RW | US);
    machine.map(END, END, 0);
    machine.put(USER_CODE, CODE);
    for (address, number) in (at..END).step_by(4).zip(first..) {
        machine.put_dword(address, number.wrapping_mul(0x0101_0101));
    }
    machine.enter_user();
    let cpu = &mut machine.cpu;
    cpu.ip = USER_CODE.into();
    for (register, value) in [(reg::BX, 0), (reg::CX, count), (reg::SI, at)] {
        cpu.set_gpr(register, value.into());
    }
}

#[test]
fn slices_of_any_size() {
    let Some(mut pair) = Pair::new() else { return };
    for slice in [1, 2, 3, 7, 19, 30, 31, 32, 33, 34, 35, 64, 1000] {
        pair.each(|machine| begin(machine, NUMBERS, 0, 2 * WAYS));
        // HLT is an exception for a program.
        while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
            pair.compare_processors();
        }
        pair.compare();
        assert_eq!(pair.tested.get(reg::SI), NUMBERS + 2 * WAYS * 4, "in slices of {slice}");
    }
}

#[test]
fn a_fault_on_any_way() {
    let Some(mut pair) = Pair::new() else { return };
    for (first, before) in (0..WAYS).flat_map(|first| (0..3).map(move |before| (first, before))) {
        pair.each(|machine| begin(machine, END - before * 4, first, 1000));
        pair.run_to_halt();
        let exception = pair.tested.exception().expect("the next page is not present");
        assert_eq!(exception.vector, 14);
    }
}

#[test]
fn an_interrupt_at_any_instruction() {
    let Some(mut pair) = Pair::new() else { return };
    for before in 1..400 {
        pair.each(|machine| begin(machine, NUMBERS, 0, WAYS));
        pair.each(|machine| {
            machine.cpu.set_eflags(Eflags::IF);
            machine.run_for(before);
            machine.interrupt = Some(0x40);
        });
        pair.run_to_halt();
    }
}
