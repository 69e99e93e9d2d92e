//! Short loops, of which a block contains several rounds. They end in any of these rounds, fault in any and
//! are interrupted in any.

use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::machine::*;
use crate::pair::Pair;

/// Address of the numbers that are summed up. The page behind the last number is not present.
const NUMBERS: u32 = 0x6_0000;
const END: u32 = NUMBERS + 0x1000;

/// ADD EAX, [ESI]; ADD ESI, 4; DEC ECX; JNZ to the first; HLT
const TESTED_AT_ITS_END: [u8; 9] = [0x03, 0x06, 0x83, 0xc6, 4, 0x49, 0x75, 0xf8, 0xf4];
/// DEC ECX; JS to the HLT; ADD EAX, [ESI]; ADD ESI, 4; JMP to the first; HLT
const TESTED_AT_ITS_BEGINNING: [u8; 11] =
    [0x49, 0x78, 7, 0x03, 0x06, 0x83, 0xc6, 4, 0xeb, 0xf6, 0xf4];

fn begin(machine: &mut Machine, code: &[u8], at: u32, count: u32) {
    machine.reset_processor();
    machine.enable_paging();
    machine.map(NUMBERS, NUMBERS, P | RW | US);
    machine.map(END, END, 0);
    machine.put(USER_CODE, code);
    for number in 0..0x400 {
        machine.put_dword(NUMBERS + number * 4, number.wrapping_mul(0x0101_0101));
    }
    machine.enter_user();
    let cpu = &mut machine.cpu;
    cpu.ip = USER_CODE.into();
    cpu.set_gpr(reg::AX, 0);
    cpu.set_gpr(reg::SI, at.into());
    cpu.set_gpr(reg::CX, count.into());
}

#[test]
fn loops_of_any_length_in_slices_of_any_size() {
    let Some(mut pair) = Pair::new() else { return };
    for code in [&TESTED_AT_ITS_END[..], &TESTED_AT_ITS_BEGINNING] {
        for (count, slice) in (1..30).flat_map(|count| [1, 2, 3, 7, 13, 1000].map(|s| (count, s))) {
            pair.each(|machine| begin(machine, code, NUMBERS, count));
            // HLT is an exception for a program.
            while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                pair.compare_processors();
            }
            pair.compare();
            let sum = (0..count).fold(0_u32, |sum, n| sum.wrapping_add(n * 0x0101_0101));
            assert_eq!(pair.tested.get(reg::AX), sum, "{count} in slices of {slice}");
        }
    }
}

#[test]
fn a_fault_in_any_round() {
    let Some(mut pair) = Pair::new() else { return };
    for code in [&TESTED_AT_ITS_END[..], &TESTED_AT_ITS_BEGINNING] {
        for before in 0..20 {
            pair.each(|machine| begin(machine, code, END - before * 4, 1000));
            pair.run_to_halt();
            let exception = pair.tested.exception().expect("the next page is not present");
            assert_eq!(exception.vector, 14);
            assert_eq!(pair.tested.get(reg::SI), END);
        }
    }
}

#[test]
fn an_interrupt_in_any_round() {
    let Some(mut pair) = Pair::new() else { return };
    for code in [&TESTED_AT_ITS_END[..], &TESTED_AT_ITS_BEGINNING] {
        for before in 1..60 {
            pair.each(|machine| begin(machine, code, NUMBERS, 1000));
            pair.each(|machine| {
                machine.cpu.set_eflags(Eflags::IF);
                machine.run_for(before);
                machine.interrupt = Some(0x40);
            });
            pair.run_to_halt();
        }
    }
}
