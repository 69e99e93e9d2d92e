//! Memory that is watched: whatever writes to a page, on whichever engine, the page is found, and no page that
//! nothing has written to. The guest notices nothing.

use std::collections::BTreeSet;

use ring3_core::memory::PAGE_SIZE;
use ring3_x86::cpu::{Cr4, reg};
use ring3_x86::debugger::{Hit, Watched, Watchpoint};
use ring3_x86::engine::Exit;

use crate::common::random::Random;
use crate::common::series::Series;
use crate::machine::*;
use crate::pair::Pair;

const CASES: u64 = if cfg!(debug_assertions) { 3 } else { 30 };
/// Programs of a case.
const PROGRAMS: u32 = 60;
/// Accesses of a program, which executes them several times.
const ACCESSES: u32 = 4;

/// Physical pages that are written to. Each is mapped at its own address and at another one.
const FRAMES: u32 = 0x10_0000;
const PAGES: u32 = 48;
const ALIAS: u32 = 0x8000_0000;
/// Page tables of the alias, and a large page over the frames.
const ALIAS_TABLE: u32 = 0xa000;
const LARGE: u32 = 0xc000_0000;
const LARGE_BIT: u32 = 0x80;
const ACCESSED_AND_DIRTY: u32 = 0x60;

/// Instructions that write, in all ways in which they do: [EBX], [EDI], or below ESP, which is in a page like
/// the others. ESI leads to a page, too.
#[rustfmt::skip]
const WRITES: [&[u8]; 38] = [
    &[0x88, 0x0b],                         // MOV [EBX], CL
    &[0x66, 0x89, 0x0b],                   // MOV [EBX], CX
    &[0x89, 0x0b],                         // MOV [EBX], ECX
    &[0x89, 0x4b, 0xfe],                   // MOV [EBX-2], ECX: may be in two pages
    &[0xc7, 0x03, 1, 2, 3, 4],             // MOV DWORD [EBX], imm32
    &[0x01, 0x0b],                         // ADD [EBX], ECX
    &[0xff, 0x03],                         // INC DWORD [EBX]
    &[0xf7, 0x13],                         // NOT DWORD [EBX]
    &[0xd1, 0x03],                         // ROL DWORD [EBX], 1
    &[0x0f, 0xab, 0x0b],                   // BTS [EBX], ECX: may be in another page
    &[0x0f, 0x95, 0x03],                   // SETNE [EBX]
    &[0xf0, 0x01, 0x0b],                   // LOCK ADD [EBX], ECX
    &[0xf0, 0x0f, 0xba, 0x3b, 5],          // LOCK BTC DWORD [EBX], 5
    &[0x87, 0x0b],                         // XCHG [EBX], ECX
    &[0xf0, 0x0f, 0xc1, 0x0b],             // LOCK XADD [EBX], ECX
    &[0x0f, 0xb1, 0x0b],                   // CMPXCHG [EBX], ECX: writes even if they differ
    &[0xf0, 0x0f, 0xc7, 0x0b],             // LOCK CMPXCHG8B [EBX]
    &[0xaa],                               // STOSB
    &[0xab],                               // STOSD
    &[0xa5],                               // MOVSD
    &[0xb9, 9, 0, 0, 0, 0xf3, 0xab],       // MOV ECX, 9; REP STOSD
    &[0xb9, 0, 5, 0, 0, 0xf3, 0xaa],       // MOV ECX, 500h; REP STOSB
    &[0xb9, 0, 5, 0, 0, 0xf3, 0xa4],       // MOV ECX, 500h; REP MOVSB
    &[0xb9, 0, 2, 0, 0, 0xf3, 0xa5],       // MOV ECX, 200h; REP MOVSD
    &[0x50],                               // PUSH EAX
    &[0x60],                               // PUSHAD
    &[0x9c],                               // PUSHFD
    &[0xff, 0x33],                         // PUSH DWORD [EBX]
    &[0x8f, 0x03],                         // POP DWORD [EBX]
    &[0xe8, 0, 0, 0, 0],                   // CALL to the next instruction
    &[0xc8, 0x10, 0, 2],                   // ENTER 10h, 2
    &[0xd9, 0xeb, 0xd9, 0x1b],             // FLDPI; FSTP DWORD [EBX]
    &[0xd9, 0xeb, 0xdb, 0x3b],             // FLDPI; FSTP TBYTE [EBX]
    &[0xd9, 0xeb, 0xdf, 0x33],             // FLDPI; FBSTP [EBX]
    &[0xd9, 0x33],                         // FNSTENV [EBX]
    &[0x0f, 0x6e, 0xc1, 0x0f, 0x7f, 0x03], // MOVD MM0, ECX; MOVQ [EBX], MM0
    &[0x66, 0x0f, 0x6e, 0xc1, 0xf3, 0x0f, 0x7f, 0x03], // MOVD XMM0, ECX; MOVDQU [EBX], XMM0
    &[0x0f, 0xae, 0x1b],                   // STMXCSR [EBX]
];

/// REP INSB of 300h bytes, for the supervisor alone.
const INPUT: &[u8] = &[0xb9, 0, 3, 0, 0, 0xf3, 0x6c];

fn set_up(machine: &mut Machine) {
    machine.enable_paging();
    machine.cpu.set_cr4(Cr4::PSE | Cr4::OSFXSR);
    machine.put_dword(PAGE_DIRECTORY + (ALIAS >> 20), ALIAS_TABLE | P | RW | US);
    machine.put_dword(PAGE_DIRECTORY + (LARGE >> 20), LARGE_BIT | P | RW | US);
    for page in 0..PAGES {
        machine.put_dword(ALIAS_TABLE + 4 * page, (FRAMES + page * 0x1000) | P | RW | US);
    }
}

/// Returns the address of a byte in one of the pages, by one of its mappings.
fn address(random: &mut Random) -> u32 {
    // Bytes around it are in the pages too.
    let offset = 0x1000 + random.below((PAGES - 4) * 0x1000);
    // Some are at the beginning of a page.
    let offset = if random.percent(20) { offset & !0xfff } else { offset };
    match random.below(3) {
        0 => ALIAS + offset,
        1 => LARGE + FRAMES + offset,
        _ => FRAMES + offset,
    }
}

/// Returns a program of some accesses that are executed three times.
fn program(random: &mut Random, is_user: bool) -> Vec<u8> {
    let mut code = vec![0xbd, 3, 0, 0, 0]; // MOV EBP, 3
    let again = code.len();
    for _ in 0..ACCESSES {
        // MOV EAX, MOV EBX, MOV ECX, MOV ESI, MOV EDI, MOV ESP
        let registers = [(0, random.next() as u32), (1, random.next() as u32 & 0x7fff)];
        let addresses = [3, 4, 6, 7].map(|register| (register, address(random)));
        for (register, value) in registers.into_iter().chain(addresses) {
            code.push(0xb8 + register);
            code.extend(value.to_le_bytes());
        }
        let is_input = !is_user && random.percent(5);
        let write = WRITES[random.below(WRITES.len() as u32) as usize];
        code.extend(if is_input { INPUT } else { write });
        if write.starts_with(&[0xc8]) {
            // ENTER has changed EBP.
            code.extend([0xbd, 1, 0, 0, 0]);
        }
    }
    code.extend([0xbc]);
    code.extend((if is_user { USER_STACK } else { STACK }).to_le_bytes());
    code.push(0x4d); // DEC EBP
    code.extend([0x0f, 0x85]); // JNZ
    let distance = again as i32 - (code.len() as i32 + 4);
    code.extend(distance.to_le_bytes());
    code.push(0xf4); // HLT, at which user code raises #GP
    code
}

/// Returns the pages in which `after` differs from `before`.
fn changed(before: &[u8], after: &[u8]) -> BTreeSet<u32> {
    let pages = before.chunks(PAGE_SIZE as usize).zip(after.chunks(PAGE_SIZE as usize));
    (0..).zip(pages).filter(|(_, (before, after))| before != after).map(|(page, _)| page).collect()
}

#[test]
fn exactly_the_pages_that_are_written_are_found() {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let Some(mut pair) = Pair::new() else { return };
        pair.each(set_up);
        let mut before = Vec::new();
        for number in 0..PROGRAMS {
            // Systems go on for a while before anybody looks, and some end watching.
            if number == 0 || random.percent(10) {
                pair.each(|machine| {
                    machine.memory.stop_watching();
                    if number > 0 && number % 2 == 0 {
                        machine.run();
                    }
                    machine.memory.watch();
                    machine.cpu.protect_all_code();
                });
                before = pair.right.memory.contents().to_vec();
            }
            let is_user = random.percent(50);
            let code = program(&mut random, is_user);
            let start = if is_user { USER_CODE } else { CODE };
            // A device writes as well.
            let dma = FRAMES + random.below(PAGES * 0x1000 - 8);
            let bits = if random.percent(30) { 0 } else { ACCESSED_AND_DIRTY };
            let unused = random.below(PAGES);
            pair.each(|machine| {
                machine.put(start, &code);
                machine.put(dma, &case.to_le_bytes());
                let entry = (FRAMES + unused * 0x1000) | P | RW | US | bits;
                machine.put_dword(ALIAS_TABLE + 4 * unused, entry);
                machine.cpu.set_cr3(PAGE_DIRECTORY.into());
            });
            pair.enter(start, is_user, &[(reg::DX, 0x80)]);
            let exit = pair.run_for(50_000);
            assert_eq!(exit, Exit::Halt, "{}", pair.reports());
            if random.percent(50) {
                continue;
            }
            let written = [&mut pair.right, &mut pair.tested].map(|machine| {
                let written = machine.memory.take_written().expect("it is watched");
                machine.cpu.protect_all_code();
                let count = written.len();
                let written: BTreeSet<_> = written.into_iter().collect();
                assert_eq!(written.len(), count, "no page is named twice");
                written
            });
            let changed = changed(&before, pair.right.memory.contents());
            assert_eq!(written[1], written[0], "the engines differ");
            let missing: Vec<_> = changed.difference(&written[0]).collect();
            assert!(missing.is_empty(), "{missing:x?} were written to and not found");
            // Some writes change nothing; all others do.
            let frames = FRAMES >> 12..(FRAMES >> 12) + PAGES;
            let is_strange = |page: &&u32| !frames.contains(*page) && !TOUCHED.contains(page);
            let strange: Vec<_> = written[0].difference(&changed).filter(is_strange).collect();
            assert!(strange.is_empty(), "{strange:x?} were found, but not written to");
            before.copy_from_slice(pair.right.memory.contents());
        }
    }
}

/// Pages that every program writes to, perhaps what is there already: code, stacks and page tables.
const TOUCHED: [u32; 9] = [
    CODE >> 12,
    USER_CODE >> 12,
    (STACK - 1) >> 12,
    (USER_STACK - 1) >> 12,
    (INNER_STACK - 1) >> 12,
    PAGE_DIRECTORY >> 12,
    PAGE_TABLE >> 12,
    ALIAS_TABLE >> 12,
    STACK >> 12,
];

/// A large page is not mapped as a whole while a part of it is watched, so no write there is missed, whatever was
/// accessed beside it before.
#[test]
fn a_debugger_watches_parts_of_large_pages() {
    const ROUNDS: u32 = 5;
    let Some(mut pair) = Pair::new() else { return };
    pair.each(set_up);
    let page = |number: u32| LARGE + FRAMES + number * 0x1000;
    let watched = page(5) + 0x10;
    let mut code = vec![0xbd, ROUNDS as u8, 0, 0, 0]; // MOV EBP, ROUNDS
    let again = code.len();
    for to in [page(1), page(5) - 4, watched, page(6)] {
        code.extend([0x89, 0x2d]); // MOV [to], EBP
        code.extend(to.to_le_bytes());
    }
    code.extend([0xbc]); // MOV ESP, the end of the watched bytes
    code.extend((watched + 4).to_le_bytes());
    code.extend([0x55, 0x5b, 0x4d, 0x75]); // PUSH EBP; POP EBX; DEC EBP; JNZ
    code.push((again as i32 - (code.len() as i32 + 1)) as u8);
    code.push(0xf4); // HLT
    let point = Watchpoint { linear: watched.into(), len: 4, watched: Watched::Writes };
    pair.each(|machine| {
        machine.put(CODE, &code);
        machine.cpu.set_debugger_points(Vec::new(), vec![point]);
    });
    pair.enter(CODE, false, &[]);
    for hit in 0..2 * ROUNDS {
        assert_eq!(pair.run_for(1000), Exit::Debugger, "hit {hit}: {}", pair.reports());
        let found = pair.each(|machine| machine.cpu.take_debugger_hit());
        assert_eq!(found, Some(Hit::Watchpoint(point)));
    }
    assert_eq!(pair.run_for(1000), Exit::Halt, "{}", pair.reports());
}
