//! Cold code of users: how much of it is interpreted, and that it stops where it must.

use ring3_core::memory::Memory;
use ring3_x86::cpu::reg;
use ring3_x86::engine::{Engine, Exit};

use crate::assert_ends_alike;
use crate::counts::counter;
use crate::machine::{LAYOUTS, MEMORY, PAGE, TABLES, machine, map};
use crate::random::Random;
use crate::series;
use crate::support::{translator, usual_translator};

/// Instructions that are interpreted in a page unless another number is chosen.
const COLD: u64 = 8192;
/// MOV [RBX], RAX; ADD RAX, [RBX + 8]; SYSCALL; JMP to the beginning
const CALLS: [u8; 11] = [0x48, 0x89, 0x03, 0x48, 0x03, 0x43, 0x08, 0x0f, 0x05, 0xeb, 0xf5];
/// MOV [RBX], RAX; ADD RAX, [RBX + 8]; JMP to the beginning
const LOOP: [u8; 9] = [0x48, 0x89, 0x03, 0x48, 0x03, 0x43, 0x08, 0xeb, 0xf7];

#[test]
fn code_of_users_is_translated_when_it_is_warm() {
    // In the other layouts the supervisor may be kept from the data.
    for (number, layout) in LAYOUTS[..3].iter().enumerate() {
        let Some((mut translator, mut memory)) = usual_translator(MEMORY) else { return };
        let mut cpu = machine(&mut memory, layout, &LOOP, Random::new(series::SEED, 0));
        cpu.set_gpr(reg::BX, layout.data);
        for _ in 0..COLD / 64 {
            if layout.is_user {
                assert_eq!(counter(&translator, "blocks translated"), 0, "layout {number}");
            }
            assert_eq!(translator.run(&mut cpu, &mut memory, 64), Exit::Deadline);
        }
        assert_eq!(translator.run(&mut cpu, &mut memory, 100_000), Exit::Deadline);
        assert_eq!(cpu.instructions, COLD + 100_000);
        // Only code of users is ever cold.
        let interpreted = counter(&translator, "instructions of cold code interpreted");
        assert_eq!(interpreted, if layout.is_user { COLD } else { 0 });
        let blocks = counter(&translator, "blocks translated");
        assert!((1..20).contains(&blocks), "{blocks} blocks");
        let all = counter(&translator, "instructions interpreted");
        assert!(all < interpreted + 300, "{all}");
    }
}

/// The system's code is translated at once, and so cold code is left for it and comes back often.
#[test]
fn cold_code_of_users_is_left_for_the_system() {
    let layout = &LAYOUTS[1];
    let Some((mut translator, mut memory)) = usual_translator(MEMORY) else { return };
    let mut cpu = machine(&mut memory, layout, &CALLS, Random::new(series::SEED, 0));
    cpu.set_gpr(reg::BX, layout.data);
    let executed = 2 * COLD;
    assert_eq!(translator.run(&mut cpu, &mut memory, executed), Exit::Deadline);
    // A round has 4 instructions of the user and 7 of the system.
    let interpreted = counter(&translator, "instructions of cold code interpreted");
    assert!(interpreted.abs_diff(executed * 4 / 11) < 50, "{interpreted}");
    assert!(counter(&translator, "signals") < 10);
    assert_eq!(translator.run(&mut cpu, &mut memory, 10 * COLD), Exit::Deadline);
    assert_eq!(counter(&translator, "instructions of cold code interpreted"), COLD);
}

/// A page of a library is at other addresses in each program.
#[test]
fn a_page_is_cold_at_each_address() {
    const ADDRESSES: u64 = 40;
    const FRAME: u64 = 0x18_0000;
    let layout = &LAYOUTS[1];
    let first = layout.code + 0x20_0000;
    let Some((mut translator, mut memory)) = usual_translator(MEMORY) else { return };
    let mut cpu = machine(&mut memory, layout, &[], Random::new(series::SEED, 0));
    let mut tables = TABLES + 0x4_0000;
    memory.write(FRAME, &LOOP);
    for number in 0..ADDRESSES {
        map(&mut memory, &mut tables, first + number * PAGE, FRAME, 7);
    }
    cpu.set_gpr(reg::BX, layout.data);
    for round in 1..3 {
        for number in 0..ADDRESSES {
            cpu.ip = first + number * PAGE;
            assert_eq!(translator.run(&mut cpu, &mut memory, COLD / 2), Exit::Deadline);
        }
        let interpreted = counter(&translator, "instructions of cold code interpreted");
        assert_eq!(interpreted, round * ADDRESSES * COLD / 2);
        assert_eq!(counter(&translator, "blocks translated"), 0);
    }
    for number in 0..ADDRESSES {
        cpu.ip = first + number * PAGE;
        assert_eq!(translator.run(&mut cpu, &mut memory, COLD), Exit::Deadline);
    }
    assert_eq!(counter(&translator, "instructions of cold code interpreted"), ADDRESSES * COLD);
    assert!(counter(&translator, "blocks translated") >= ADDRESSES);
}

/// Cold code with a system call, numeric and string instructions, an access to no memory, and a write to itself.
#[test]
fn cold_code_stops_after_each_number_of_instructions() {
    const LONGEST: u64 = 130;
    let layout = &LAYOUTS[1];
    let mut code = vec![0x48, 0xbf]; // MOV RDI, data
    code.extend(layout.data.to_le_bytes());
    code.extend([0xb9, 20, 0, 0, 0, 0xf3, 0xaa]); // MOV ECX, 20; REP STOSB
    code.extend([0xf2, 0x0f, 0x58, 0xc1, 0xd9, 0xe8, 0xdd, 0x1b]); // ADDSD XMM0, XMM1; FLD1; FSTP QWORD [RBX]
    code.extend([0x0f, 0x05]); // SYSCALL
    code.extend([0x88, 0x05, 0, 0, 0, 0]); // MOV [RIP], AL
    code.resize(0x30, 0x90);
    code.extend([0xa3, 0, 0, 0, 0, 0, 0, 0, 0]); // MOV [0], EAX
    code.resize(0x40, 0x90);
    code.extend([0xeb, 0xbe]); // JMP to the beginning
    for cold in [1, 7, 60, COLD] {
        for count in 1..LONGEST {
            let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
            translator.translate_after(cold);
            let finish = |engine: &mut dyn Engine, memory: &mut Memory| {
                let mut cpu = machine(memory, layout, &code, Random::new(series::SEED, 3));
                cpu.set_gpr(reg::BX, layout.data + 8);
                cpu.set_gpr(reg::AX, 0x90);
                cpu.fpu.set_control(0x37f);
                for asked in [count, 1, LONGEST] {
                    let before = cpu.instructions;
                    assert_eq!(engine.run(&mut cpu, memory, asked), Exit::Deadline);
                    assert_eq!(cpu.instructions, before + asked);
                }
                cpu
            };
            assert_ends_alike(&mut translator, &mut memory, finish);
        }
    }
}
