//! Large pages that are invalidated by any address in them.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;

use crate::machine::{LAYOUTS, PAGE, SYSTEM_LINEAR, TABLES, machine, map};
use crate::random::Random;
use crate::series;
use crate::support::translator;

const LARGE: u64 = 2 << 20;
const MEMORY: u64 = 4 * LARGE;
/// P, R/W, A, D and PS.
const LARGE_ENTRY: u64 = 0xe3;
/// What one of the pages contains, and the other.
const PLACES: [u64; 2] = [LARGE, 2 * LARGE];
/// The linear address of 1 GiB of which its second large page is used.
const LINEAR: u64 = 0xffff_9000_0000_0000;
const USED: u64 = LINEAR + LARGE;
/// Where the table with the entry that changes is mapped.
const TABLE: u64 = SYSTEM_LINEAR + 8 * PAGE;

/// A program that reads from a page and calls code there, changes the entry of its page table by RBP, and invalidates
/// the page by the address in R12, which changes by R8.
const CODE: [u8; 27] = [
    0x48, 0x8b, 0x03, //             MOV RAX, [RBX]
    0xff, 0xd6, //                   CALL RSI
    0x48, 0x31, 0x2f, //             XOR [RDI], RBP
    0x41, 0x0f, 0x01, 0x3c, 0x24, // INVLPG [R12]
    0x4d, 0x31, 0xc4, //             XOR R12, R8
    0x48, 0x01, 0xc1, //             ADD RCX, RAX
    0x49, 0x01, 0xd5, //             ADD R13, RDX
    0x49, 0xff, 0xc6, //             INC R14
    0xeb, 0xe5, //                   JMP to the beginning
];

/// Returns a machine with the program. The page is one of 2 MiB that becomes another one, or, if it `is_huge`, one of
/// 1 GiB that becomes one of 2 MiB.
fn machine_with(memory: &mut Memory, is_huge: bool, invalidated: u64) -> Cpu {
    let mut cpu = machine(memory, &LAYOUTS[0], &CODE, Random::new(series::SEED, 0));
    let mut tables = TABLES + 0x4_0000;
    map(memory, &mut tables, USED, 0, 0);
    // The tables that were made last are those for 1 GiB, for 2 MiB and for the page.
    let [pointers, directory] = [tables - 3 * PAGE, tables - 2 * PAGE];
    let changed = directory + 8;
    memory.write(changed, &(PLACES[0] | LARGE_ENTRY).to_le_bytes());
    let (table, entry, difference) = if is_huge {
        let other = u64::from_le_bytes(memory.read_aligned(pointers));
        memory.write(changed, &(PLACES[1] | LARGE_ENTRY).to_le_bytes());
        memory.write(pointers, &LARGE_ENTRY.to_le_bytes());
        (pointers, pointers, other ^ LARGE_ENTRY)
    } else {
        (directory, changed, PLACES[0] ^ PLACES[1])
    };
    map(memory, &mut tables, TABLE, table, 3);
    for (number, place) in (1..).zip(PLACES) {
        memory.write(place, &(number * 0x1001_u64).to_le_bytes());
        memory.write(place + PAGE, &[0xba, number as u8, 0, 0, 0, 0xc3]); // MOV EDX, number; RET
    }
    for (register, value) in [
        (reg::BX, USED),
        (reg::SI, USED + PAGE),
        (reg::DI, TABLE + entry - table),
        (reg::BP, difference),
        (12, invalidated),
        // A page of 2 MiB has fewer addresses.
        (8, if is_huge { invalidated ^ USED } else { 0 }),
        (13, 0),
        (14, 0),
        (reg::CX, 0),
    ] {
        cpu.set_gpr(register, value);
    }
    cpu
}

#[test]
fn a_large_page_is_invalidated_by_any_of_its_addresses() {
    const ROUNDS: u64 = 60;
    for (is_huge, offset) in
        [(false, 0), (false, 0x12_3456), (false, LARGE - 1), (true, 0), (true, (1 << 30) - 1)]
    {
        let base = if is_huge { LINEAR } else { USED };
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let mut others = Memory::new(MEMORY).unwrap();
        let finish = |engine: &mut dyn Engine, memory: &mut Memory| {
            let mut cpu = machine_with(memory, is_huge, base + offset);
            // A round has 9 instructions of its own and 2 of the code that it calls.
            assert_eq!(engine.run(&mut cpu, memory, 11 * ROUNDS), Exit::Deadline);
            cpu
        };
        let cpu = finish(&mut translator, &mut memory);
        let right = finish(&mut Interpreter::new(), &mut others);
        assert!(cpu.has_state_of(&right), "{}\n{}", right.report(&others), cpu.report(&memory));
        assert_eq!(cpu.gpr(14), ROUNDS);
        assert_eq!((cpu.gpr(reg::CX), cpu.gpr(13)), (ROUNDS / 2 * 0x3003, ROUNDS / 2 * 3));
    }
}
