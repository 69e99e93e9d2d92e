//! Programs whose pages the guest's system makes present when they are touched.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};

use crate::assert_ends_alike;
use crate::counts::{counter, touching};
use crate::machine::{
    HANDLERS, IDT, LAYOUTS, MEMORY, PAGE, SYSTEM, SYSTEM_LINEAR, TABLES, machine, map,
};
use crate::random::Random;
use crate::series;
use crate::support::translator;

/// The layout of the program.
const PROGRAM: usize = 1;
/// The pages that are not present.
const PAGES: u64 = 64;
const FIRST: u64 = LAYOUTS[PROGRAM].data + 0x20_0000;
const FIRST_PLACE: u64 = 0x18_0000;
/// The address of the last page table.
const TABLE: u64 = SYSTEM_LINEAR + 8 * PAGE;

/// Returns a machine whose program is `code`, with the first page in RBX.
fn machine_of(memory: &mut Memory, code: &[u8]) -> Cpu {
    let mut cpu = machine(memory, &LAYOUTS[PROGRAM], code, Random::new(series::SEED, 0));
    let mut tables = TABLES + 0x4_0000;
    for page in 0..PAGES {
        // Users may write there, once it is present.
        map(memory, &mut tables, FIRST + page * PAGE, FIRST_PLACE + page * PAGE, 6);
    }
    // The last table that was made is that of these pages.
    let table_place = tables - PAGE;
    map(memory, &mut tables, TABLE, table_place, 3);
    // The handler sets the bit P in the entry for CR2.
    let mut handler = vec![
        0x50, 0x51, // PUSH RAX; PUSH RCX
        0x0f, 0x20, 0xd0, // MOV RAX, CR2
        0x48, 0xc1, 0xe8, 0x0c, // SHR RAX, 12
        0x25, 0xff, 0x01, 0, 0, // AND EAX, 511
        0x48, 0xb9, // MOV RCX, the table
    ];
    handler.extend(TABLE.to_le_bytes());
    // OR QWORD [RCX + RAX * 8], 1; POP RCX; POP RAX; ADD RSP, 8; IRETQ
    handler.extend([0x48, 0x83, 0x0c, 0xc1, 0x01, 0x59, 0x58, 0x48, 0x83, 0xc4, 0x08, 0x48, 0xcf]);
    let place = |linear: u64| linear - SYSTEM_LINEAR + SYSTEM;
    let at = HANDLERS + 0xd00;
    memory.write(place(at), &handler);
    memory.write(place(IDT + 14 * 16), &(at as u16).to_le_bytes());
    cpu.set_gpr(reg::BX, FIRST);
    cpu
}

/// Returns the signals of a program that touches each page after `pause` loops.
fn signals(pause: u32) -> Option<u64> {
    let (mut translator, mut memory) = translator(MEMORY)?;
    let mut cpu = machine_of(&mut memory, &touching(PAGES as u32, pause));
    let executed = PAGES * (2 * u64::from(pause) + 100);
    assert_eq!(translator.run(&mut cpu, &mut memory, executed), Exit::Deadline);
    assert_eq!((cpu.gpr(reg::BX), cpu.gpr(reg::CX)), (FIRST + PAGES * PAGE, 0));
    Some(counter(&translator, "signals"))
}

#[test]
fn a_page_fault_that_the_guest_handles_raises_one_signal() {
    let Some(signals) = signals(600) else { return };
    assert!((PAGES..PAGES + 30).contains(&signals), "{signals}");
}

#[test]
fn page_faults_that_come_soon_after_each_other_raise_few_signals() {
    for pause in [1, 10, 100, 400, 505] {
        let Some(signals) = signals(pause) else { return };
        assert!(signals < 16, "{signals} with pauses of {pause}");
    }
}

#[test]
fn a_page_is_mapped_when_the_program_goes_on_with_it() {
    // MOV [RBX], AL; DEC ECX; JNZ to the MOV; JMP to itself
    let code = [0x88, 0x03, 0xff, 0xc9, 0x75, 0xfa, 0xeb, 0xfe];
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let mut cpu = machine_of(&mut memory, &code);
    cpu.set_gpr(reg::CX, 10_000);
    assert_eq!(translator.run(&mut cpu, &mut memory, 40_000), Exit::Deadline);
    assert_eq!(cpu.gpr(reg::CX), 0);
    let signals = counter(&translator, "signals");
    assert!(signals <= 8, "{signals}");
    let interpreted = counter(&translator, "instructions interpreted");
    assert!(interpreted < 100, "{interpreted}");
}

#[test]
fn sweeps_stop_after_each_number_of_instructions() {
    const LONGEST: u64 = 400;
    let code = touching(PAGES as u32, 4);
    for count in 1..LONGEST {
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let finish = |engine: &mut dyn Engine, memory: &mut Memory| {
            let mut cpu = machine_of(memory, &code);
            for asked in [count, 1, 5, LONGEST] {
                let before = cpu.instructions;
                assert_eq!(engine.run(&mut cpu, memory, asked), Exit::Deadline);
                assert_eq!(cpu.instructions, before + asked);
            }
            cpu
        };
        assert_ends_alike(&mut translator, &mut memory, finish);
    }
}
