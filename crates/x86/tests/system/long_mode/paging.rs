//! 4-level paging (SDM vol. 3, 5.5).

use iced_x86::Code;
use iced_x86::Register::{RAX, RBX, RCX, RDI, RSI};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use super::*;
use crate::common::assembler::hlt;

/// A linear address in the upper half, and the tables that map it.
const HIGH: u64 = 0xffff_9234_5670_0000;
const HIGH_POINTERS: u32 = 0x10_0000;
const HIGH_DIRECTORY: u32 = 0x10_1000;
const HIGH_TABLE: u32 = 0x10_2000;

/// Returns the address of the entry for `linear` in the table of `level`, 0 for the page table.
fn entry(table: u32, linear: u64, level: u32) -> u32 {
    table + (linear >> (12 + 9 * level) & 0x1ff) as u32 * 8
}

/// Maps [`HIGH`] to `physical` by a page of the level, 0 for 4 KiB, with these bits.
fn map_high(machine: &mut LongMachine, level: u32, entry_bits: u64) {
    let tables = [HIGH_TABLE, HIGH_DIRECTORY, HIGH_POINTERS, PML4];
    for upper in level + 1..4 {
        let at = entry(tables[upper as usize], HIGH, upper);
        machine.put_quadword(at, u64::from(tables[upper as usize - 1]) | ALL);
    }
    machine.put_quadword(entry(tables[level as usize], HIGH, level), entry_bits);
}

#[test]
fn pages_of_each_size() {
    let code = [mov64(RBX, HIGH + 0x1008), load64(RAX, RBX), store64(RBX, RAX), hlt()];
    for (level, bits, physical) in [
        (1, 0x20_0000 | LARGE | ALL, 0x30_1008),
        (2, LARGE | ALL, (HIGH as u32 & 0x3fff_ffff) + 0x1008),
    ] {
        let mut machine = LongMachine::new(&code);
        map_high(&mut machine, level, bits);
        let is_ram = u64::from(physical) < MEMORY;
        if is_ram {
            machine.put_quadword(physical, 0x1122_3344_5566_7788);
        }
        assert_eq!(machine.run(), Exit::Halt);
        if is_ram {
            assert_eq!(machine.cpu.gpr(reg::AX), 0x1122_3344_5566_7788);
        }
        let tables = [HIGH_TABLE, HIGH_DIRECTORY, HIGH_POINTERS, PML4];
        let noted = machine.quadword(entry(tables[level as usize], HIGH, level));
        assert_eq!(noted & (ACCESSED | DIRTY), ACCESSED | DIRTY);
        for upper in level + 1..4 {
            let noted = machine.quadword(entry(tables[upper as usize], HIGH, upper));
            assert_eq!(noted & (ACCESSED | DIRTY), ACCESSED, "level {upper}");
        }
    }
}

#[test]
fn invlpg_drops_a_huge_page() {
    let code = [
        mov64(RBX, HIGH),
        mov64(RCX, HIGH + 0x1_0000),
        load64(RAX, RBX),
        load64(RAX, RCX),
        at(Code::Invlpg_m, RBX),
        load64(RAX, RCX),
    ];
    for (level, bits) in [(0, 0x5_0000 | ALL), (1, LARGE | ALL), (2, LARGE | ALL)] {
        let mut machine = LongMachine::new(&code);
        map_high(&mut machine, level, bits);
        if level == 0 {
            machine.put_quadword(entry(HIGH_TABLE, HIGH + 0x1_0000, 0), 0x6_0000 | ALL);
        }
        assert_eq!(machine.run_for(4), Exit::Deadline);
        let tables = [HIGH_TABLE, HIGH_DIRECTORY, HIGH_POINTERS];
        machine.put_quadword(entry(tables[level as usize], HIGH + 0x1_0000, level), 0);
        if level == 0 {
            // The other page stays in the TLB.
            assert_eq!(machine.run_for(2), Exit::Deadline);
        } else {
            assert_eq!(machine.raised(), (vector::PF, Some(0)));
            assert_eq!(machine.cpu.cr2, HIGH + 0x1_0000);
        }
    }
}

#[test]
fn reserved_bits_and_missing_entries() {
    let code = [mov64(RBX, HIGH), load64(RAX, RBX)];
    let reserved = Some(1 | 8);
    for (level, bits, error_code) in [
        (0, 0, Some(0)),
        (1, 0, Some(0)),
        (2, 0, Some(0)),
        (3, 0, Some(0)),
        (3, LARGE | ALL, reserved),
        (0, 1 << 40 | ALL, reserved),
        (1, 1 << 13 | LARGE | ALL, reserved),
        (2, 1 << 21 | LARGE | ALL, reserved),
        (2, 1 << 51 | ALL, reserved),
        // Bits 62 to 52 are ignored.
    ] {
        let mut machine = LongMachine::new(&code);
        map_high(&mut machine, level, bits);
        assert_eq!(machine.raised(), (vector::PF, error_code), "{level} {bits:x}");
        assert_eq!(machine.cpu.cr2, HIGH);
    }
    let mut machine = LongMachine::new(&code);
    map_high(&mut machine, 0, 0x7ff << 52 | 0x5_0000 | ALL);
    assert_eq!(machine.run_for(2), Exit::Deadline);
    // Without NXE, bit 63 is reserved.
    let mut machine = LongMachine::new(&code);
    machine.cpu.msrs.no_execute = false;
    map_high(&mut machine, 0, NO_EXECUTE | 0x5_0000 | ALL);
    assert_eq!(machine.raised(), (vector::PF, reserved));
}

#[test]
fn code_is_not_fetched_from_pages_that_forbid_it() {
    let jump = iced_x86::Instruction::with1(Code::Jmp_rm64, RBX).unwrap();
    let code = [mov64(RBX, HIGH), jump];
    let mut machine = LongMachine::new(&code);
    map_high(&mut machine, 0, u64::from(USER_CODE) | ALL);
    machine.code_of(64, USER_CODE, &[hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, HIGH + 1);
    let mut machine = LongMachine::new(&code);
    map_high(&mut machine, 0, NO_EXECUTE | u64::from(USER_CODE) | ALL);
    let exception = machine.run_to_long_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::PF, Some(1 | 16)));
    assert_eq!((exception.rip, machine.cpu.cr2), (HIGH, HIGH));
    // A higher level forbids it, too.
    let mut machine = LongMachine::new(&code);
    map_high(&mut machine, 0, u64::from(USER_CODE) | ALL);
    let at = entry(PML4, HIGH, 3);
    let pointer = machine.quadword(at);
    machine.put_quadword(at, pointer | NO_EXECUTE);
    assert_eq!(machine.raised(), (vector::PF, Some(1 | 16)));
}

#[test]
fn an_element_that_is_not_at_canonical_addresses_changes_no_cr2() {
    const LAST: u64 = 0x0000_7fff_ffff_ffff;
    // The target is written before, so that its page is known.
    let code = [
        mov64(RDI, DATA.into()),
        store64(RDI, RDI),
        mov64(RSI, LAST),
        mov64(RCX, 9),
        iced_x86::Instruction::with_rep_movsq(64).unwrap(),
    ];
    let mut machine = LongMachine::new(&code);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
    assert_eq!(machine.cpu.cr2, 0);
}
