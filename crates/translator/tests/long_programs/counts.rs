//! What translated 64-bit code costs, in counts of the engine.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr4, reg};
use ring3_x86::engine::{Engine, Exit, HostCode};
use ring3_x86::interpreter::Interpreter;

use crate::machine::{
    KERNEL_CODE, LAYOUTS, Layout, MEMORY, PAGE, SYSTEM, SYSTEM_ENTRY, SYSTEM_LINEAR, TABLES,
    machine, map,
};
use crate::random::Random;
use crate::series;
use crate::support::translator;

/// What a loop checks before its head may fail when no instruction is allowed any more.
#[test]
fn no_instruction_is_executed_after_the_deadline() {
    // MOV R15D, 2; JMP to L; L: MOV RAX, [RBX]; DEC R15D; JNZ to L; XCHG RBX, RBP; JMP to the beginning
    let code = [
        0x41, 0xbf, 2, 0, 0, 0, 0xeb, 0, 0x48, 0x8b, 0x03, 0x41, 0xff, 0xcf, 0x75, 0xf8, 0x48,
        0x87, 0xeb, 0xeb, 0xeb,
    ];
    for layout in &LAYOUTS {
        for deadline in 1..40 {
            let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
            let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
            cpu.set_gpr(reg::BX, layout.data);
            cpu.set_gpr(reg::BP, layout.stack - 0x100);
            assert_eq!(translator.run(&mut cpu, &mut memory, deadline), Exit::Deadline);
            assert_eq!(cpu.instructions, deadline);
        }
    }
}

/// Returns the value of the counter `name` of `engine`.
pub(crate) fn counter(engine: &dyn Engine, name: &str) -> u64 {
    let counters = engine.counters();
    counters.iter().find(|(other, _)| *other == name).expect("there is such a counter").1
}

#[test]
fn system_calls_stay_in_translated_code() {
    const CALLS: u32 = 5000;
    // MOV EBX, CALLS; SYSCALL; PUSHFQ; POP RAX; DEC EBX; JNZ to SYSCALL; JMP to itself
    let mut code = vec![0xbb];
    code.extend(CALLS.to_le_bytes());
    code.extend([0x0f, 0x05, 0x9c, 0x58, 0xff, 0xcb, 0x75, 0xf8, 0xeb, 0xfe]);
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let random = Random::new(series::SEED, 0);
    let mut cpu = machine(&mut memory, &LAYOUTS[1], &code, random);
    let instructions = 12 * u64::from(CALLS) + 100;
    assert_eq!(translator.run(&mut cpu, &mut memory, instructions), Exit::Deadline);
    assert_eq!((cpu.gpr(reg::BX), cpu.cpl()), (0, 3));
    for (name, most) in [
        ("entries to translated code", 100),
        ("instructions left to the interpreter", 30),
        ("signals", 30),
    ] {
        let count = counter(&translator, name);
        assert!(count <= most, "{name}: {count}");
    }
}

/// Executes `body` so many times in the code at `layout`, and returns the engine.
pub(crate) fn repeat(layout: &Layout, body: &[u8], times: u32) -> Option<(impl Engine, Cpu)> {
    // MOV R15D, times; the body; DEC R15D; JNZ to the body; JMP to itself
    let mut code = vec![0x41, 0xbf];
    code.extend(times.to_le_bytes());
    code.extend(body);
    code.extend([0x41, 0xff, 0xcf, 0x75, (-5 - body.len() as i8) as u8, 0xeb, 0xfe]);
    let (mut translator, mut memory) = translator(MEMORY)?;
    let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
    cpu.set_cr4(cpu.cr4() | Cr4::SMAP);
    cpu.set_gpr(reg::BX, layout.data);
    cpu.set_gpr(reg::BP, layout.stack - 0x100);
    let executed = 200 * u64::from(times);
    assert_eq!(translator.run(&mut cpu, &mut memory, executed), Exit::Deadline);
    assert_eq!(cpu.gpr(15), 0, "it has ended");
    Some((translator, cpu))
}

#[test]
fn a_block_goes_on_behind_branches_forward_and_calls() {
    // JE over the NOP; NOP; CALL of RET; JMP over it; RET
    let body = [0x74, 0x01, 0x90, 0xe8, 0x02, 0, 0, 0, 0xeb, 0x01, 0xc3];
    for layout in &LAYOUTS {
        let Some((engine, _)) = repeat(layout, &body, 1000) else { return };
        // Those that begin before the body, with it, with RET, behind it, and with the last jump
        assert!(counter(&engine, "blocks translated") <= 5);
        assert!(counter(&engine, "branches linked") <= 5);
    }
}

#[test]
fn memory_at_several_distances_stays_in_translated_code() {
    const TIMES: u32 = 5000;
    // STAC; MOV RAX, [RBX]; INC RAX; MOV [RBX + 8], RAX; CLAC; PUSH RAX; POP [RBP]'s register RDX; MOV [RBP],
    // RDX
    let copy = [
        0x48, 0x8b, 0x03, 0x48, 0xff, 0xc0, 0x48, 0x89, 0x43, 0x08, 0x50, 0x5a, 0x48, 0x89, 0x55, 0,
    ];
    let kernel_copy = [&[0x0f, 0x01, 0xcb][..], &copy, &[0x0f, 0x01, 0xca]].concat();
    for layout in &LAYOUTS {
        let body = if layout.is_user { &copy[..] } else { &kernel_copy };
        let Some((engine, cpu)) = repeat(layout, body, TIMES) else { return };
        assert!(!cpu.has_alignment_flag());
        for name in ["instructions left to the interpreter", "signals"] {
            let count = counter(&engine, name);
            assert!(count <= 60, "{name}: {count} at {:#x} and {:#x}", layout.code, layout.data);
        }
    }
}

#[test]
fn tables_at_the_top_of_the_upper_half_stay_in_translated_code() {
    // MOV ECX, 8; MOV EAX, [RCX + the address of the code]
    let body = [0xb9, 8, 0, 0, 0, 0x8b, 0x81, 0, 0, 0, 0x81];
    let Some((engine, _)) = repeat(&LAYOUTS[0], &body, 5000) else { return };
    for name in ["instructions left to the interpreter", "signals"] {
        let count = counter(&engine, name);
        assert!(count <= 30, "{name}: {count}");
    }
}

#[test]
fn x87_and_mmx_instructions_stay_in_translated_code() {
    // FLD QWORD [RBX]; FADD QWORD [RBX + 8]; FLDPI; FMULP; FNSTCW [RBP]; FLDCW [RBP]; FSTP QWORD [RBX]
    let x87 = [
        0xdd, 0x03, 0xdc, 0x43, 0x08, 0xd9, 0xeb, 0xde, 0xc9, 0xd9, 0x7d, 0, 0xd9, 0x6d, 0, 0xdd,
        0x1b,
    ];
    // MOVQ MM0, [RBX]; PADDD MM0, MM1; MOVQ [RBX], MM0; EMMS; ADDPD XMM0, XMM1
    let mmx =
        [0x0f, 0x6f, 0x03, 0x0f, 0xfe, 0xc1, 0x0f, 0x7f, 0x03, 0x0f, 0x77, 0x66, 0x0f, 0x58, 0xc1];
    for layout in &LAYOUTS[..3] {
        for body in [&x87[..], &mmx] {
            let Some((engine, _)) = repeat(layout, body, 5000) else { return };
            for (name, most) in [
                ("instructions left to the interpreter", 20),
                ("signals", 20),
                ("entries to translated code", 40),
            ] {
                let count = counter(&engine, name);
                assert!(count <= most, "{name}: {count} in {body:x?}");
            }
        }
    }
}

#[test]
fn calls_and_returns_that_do_not_match_raise_few_signals() {
    const TIMES: u32 = 10_000;
    // JMP over f; f: DEC ECX; JZ to RET; CALL f; RET; MOV ECX, 20; CALL f
    let nested = [
        0xeb, 0x0a, 0xff, 0xc9, 0x74, 0x05, 0xe8, 0xf7, 0xff, 0xff, 0xff, 0xc3, 0xb9, 20, 0, 0, 0,
        0xe8, 0xec, 0xff, 0xff, 0xff,
    ];
    // CALL over a NOP; ADD RSP, 8
    let calls = [0xe8, 1, 0, 0, 0, 0x90, 0x48, 0x83, 0xc4, 8];
    // LEA RAX, the address behind RET; PUSH RAX; RET
    let returns = [0x48, 0x8d, 0x05, 2, 0, 0, 0, 0x50, 0xc3];
    for body in [&nested[..], &calls, &returns] {
        for layout in &LAYOUTS[..3] {
            let Some((engine, cpu)) = repeat(layout, body, TIMES) else { return };
            assert_eq!(cpu.gpr(reg::SP), layout.stack - 0x800);
            for (name, most) in [
                ("signals", 60),
                ("instructions left to the interpreter", 60),
                ("branches looked up", 60),
            ] {
                let count = counter(&engine, name);
                assert!(count <= most, "{name}: {count} in {body:x?}");
            }
        }
    }
}

#[test]
fn a_return_leads_to_no_code_of_the_other_privilege() {
    const ROUNDS: u64 = 40;
    // The instructions of each round, and of the last one.
    const EXECUTED: u64 = 11 * (ROUNDS - 1) + 8;
    // CALL f; MOV EAX, CS; MOV [RBX], EAX; JMP to the CALL; f: SYSCALL; RET
    let code = [0xe8, 6, 0, 0, 0, 0x8c, 0xc8, 0x89, 0x03, 0xeb, 0xf5, 0x0f, 0x05, 0xc3];
    // The system's code: DEC EDX; JZ to the RET; CALL the RET; SYSRET; RET
    let entered = [0xff, 0xca, 0x74, 8, 0xe8, 3, 0, 0, 0, 0x48, 0x0f, 0x07, 0xc3];
    let layout = &LAYOUTS[1];
    let random = Random::new(series::SEED, 0);
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let mut others = Memory::new(MEMORY).unwrap();
    let finish = |engine: &mut dyn Engine, memory: &mut Memory| {
        let mut cpu = machine(memory, layout, &code, random.clone());
        cpu.set_cr4(cpu.cr4() - Cr4::SMAP);
        cpu.set_gpr(reg::BX, layout.data);
        memory.write(SYSTEM_ENTRY - SYSTEM_LINEAR + SYSTEM, &entered);
        // At first it returns to code of users by SYSRET, and then by RET, with the supervisor's privilege.
        cpu.set_gpr(reg::DX, ROUNDS);
        assert_eq!(engine.run(&mut cpu, memory, EXECUTED), Exit::Deadline);
        cpu
    };
    let cpu = finish(&mut translator, &mut memory);
    let right = finish(&mut Interpreter::new(), &mut others);
    assert!(cpu.has_state_of(&right), "{}\n{}", right.report(&others), cpu.report(&memory));
    assert_eq!((cpu.cpl(), cpu.gpr(reg::AX)), (0, KERNEL_CODE.into()));
}

/// Returns code that writes twice to each of so many pages from RBX on, with `2 * pause + 4` instructions between.
pub(crate) fn touching(pages: u32, pause: u32) -> Vec<u8> {
    // MOV ECX, pages; MOV [RBX], AL; MOV [RBX + 8], AL; MOV EDX, pause; DEC EDX; JNZ to the DEC; ADD RBX, 4096;
    // DEC ECX; JNZ to the first MOV [RBX]; JMP to itself
    let mut code = vec![0xb9];
    code.extend(pages.to_le_bytes());
    code.extend([0x88, 0x03, 0x88, 0x43, 0x08, 0xba]);
    code.extend(pause.to_le_bytes());
    code.extend([0xff, 0xca, 0x75, 0xfc]);
    code.extend([0x48, 0x81, 0xc3, 0, 0x10, 0, 0, 0xff, 0xc9, 0x75, 0xe7, 0xeb, 0xfe]);
    code
}

#[test]
fn a_large_page_is_mapped_at_once() {
    const PAGES: u32 = 512;
    const LARGE: u64 = 2 << 20;
    /// P, R/W, A, D and PS.
    const LARGE_ENTRY: u64 = 0xe3;
    let linear = 0xffff_9000_0000_0000_u64;
    let layout = &LAYOUTS[0];
    let Some((mut translator, mut memory)) = translator(2 * LARGE) else { return };
    let code = touching(PAGES, 600);
    let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
    let mut tables = TABLES + 0x4_0000;
    map(&mut memory, &mut tables, linear, 0, 0);
    // The last table but one has the entry for the last one, in whose place it maps a page.
    memory.write(tables - 2 * PAGE, &(LARGE | LARGE_ENTRY).to_le_bytes());
    cpu.set_gpr(reg::BX, linear);
    assert_eq!(translator.run(&mut cpu, &mut memory, 1300 * u64::from(PAGES)), Exit::Deadline);
    assert_eq!((cpu.gpr(reg::BX), cpu.gpr(reg::CX)), (linear + LARGE, 0));
    let signals = counter(&translator, "signals");
    assert!(signals <= 20, "{signals}");
}

#[test]
fn repeated_instructions_go_on_after_a_deadline() {
    const SLICES: u64 = 100;
    let layout = &LAYOUTS[0];
    // MOV RDI, data; MOV ECX, 16000; REP STOSB; JMP to the first one
    let mut code = vec![0x48, 0xbf];
    code.extend(layout.data.to_le_bytes());
    code.extend([0xb9, 0x80, 0x3e, 0, 0, 0xf3, 0xaa, 0xeb, 0xed]);
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let random = Random::new(series::SEED, 0);
    let mut cpu = machine(&mut memory, layout, &code, random);
    for _ in 0..SLICES {
        assert_eq!(translator.run(&mut cpu, &mut memory, 5000), Exit::Deadline);
    }
    assert_eq!(cpu.instructions, SLICES * 5000);
    let steps = counter(&translator, "instructions left to the interpreter");
    assert!(steps <= 4 * SLICES, "{steps}");
}

/// Profilers of the host may ask for the code before there is any, and later.
#[test]
fn translated_code_is_shown_to_profilers() {
    // L: INC EAX; JMP to L
    let code = [0xff, 0xc0, 0xeb, 0xfc];
    for layout in &LAYOUTS[..2] {
        for reveals_at in [0, 1] {
            let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
            let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
            for time in 0..3 {
                if time == reveals_at {
                    translator.reveal_code().unwrap();
                }
                assert_eq!(translator.run(&mut cpu, &mut memory, 1000), Exit::Deadline);
            }
            assert_eq!(cpu.instructions, 3000);
            let blocks = translator.host_code();
            let is_loop =
                |block: &&HostCode| (block.linear, block.is_user) == (layout.code, layout.is_user);
            let found = blocks.iter().find(is_loop).expect("it is translated");
            assert!((8..200).contains(&found.len), "{found:?}");
        }
    }
}

/// A loop that touches many pages for the first time, which are at scattered places, takes a signal for each page, and is
/// not left to the interpreter for that.
#[test]
fn an_instruction_that_touches_many_pages_stays_translated() {
    const PAGES: u64 = 512;
    const FRAMES: u64 = 64;
    const FIRST_PLACE: u64 = 0x18_0000;
    // MOV ECX, PAGES; L: MOV AL, [RBX]; ADD RBX, 4096; DEC ECX; JNZ to L; JMP to itself
    let code = [
        0xb9, 0, 2, 0, 0, 0x8a, 0x03, 0x48, 0x81, 0xc3, 0, 0x10, 0, 0, 0xff, 0xc9, 0x75, 0xf3,
        0xeb, 0xfe,
    ];
    for layout in &LAYOUTS[..2] {
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
        let first = layout.data + 0x20_0000;
        let mut tables = TABLES + 0x4_0000;
        // P, R/W, A and D, and U/S for users
        let rights = 0x63 | if layout.is_user { 4 } else { 0 };
        for page in 0..PAGES {
            let place = FIRST_PLACE + page * 7 % FRAMES * PAGE;
            map(&mut memory, &mut tables, first + page * PAGE, place, rights);
        }
        cpu.set_gpr(reg::BX, first);
        assert_eq!(translator.run(&mut cpu, &mut memory, 5 * PAGES), Exit::Deadline);
        assert_eq!((cpu.gpr(reg::BX), cpu.gpr(reg::CX)), (first + PAGES * PAGE, 0));
        let signals = counter(&translator, "signals");
        assert!((PAGES..PAGES + 20).contains(&signals), "{signals}");
        let steps = counter(&translator, "instructions left to the interpreter");
        assert!(steps <= 20, "{steps}");
    }
}
