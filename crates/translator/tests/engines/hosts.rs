//! Guests that exhaust what the translator and the host have: address spaces, mappings, room for code, and
//! addresses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::Engine;

use crate::machine::*;
use crate::pair::Pair;
use crate::support;

/// Physical address of the page tables of all spaces, 4 KiB each.
const TABLES: u32 = 0x40_0000;
/// Physical address of the pages that linear pages are mapped to.
const FRAMES: u32 = 0x80_0000;
/// Linear address of the first page that the guest touches.
const START: u32 = 0x4000_0000;

/// A user program. It adds EAX to ECX doublewords, EDX bytes apart, from EBX on. It sums them up in EAX, and
/// ends with #GP.
#[rustfmt::skip]
const TOUCH: &[u8] = &[
    0x01, 0x03, // ADD [EBX], EAX
    0x03, 0x03, // ADD EAX, [EBX]
    0x01, 0xd3, // ADD EBX, EDX
    0xe2, 0xf8, // LOOP to the start
    0xf4,       // HLT
];

/// Makes the space of the page directory at `directory`: the lowest 4 MiB, and pages from [`START`] on by
/// `tables`.
fn make_space(machine: &mut Machine, directory: u32, tables: impl IntoIterator<Item = u32>) {
    machine.put_dword(directory, PAGE_TABLE | P | RW | US);
    let entries = (directory + (START >> 22) * 4..).step_by(4);
    for (entry, table) in entries.zip(tables) {
        machine.put_dword(entry, table | P | RW | US);
    }
}

/// Runs the program on `pages` pages in the space of `cr3`.
fn touch(pair: &mut Pair, cr3: u32, pages: u32) {
    pair.each(|machine| {
        machine.reset_processor();
        machine.enable_paging();
        machine.enter_user();
        let cpu = &mut machine.cpu;
        cpu.set_cr3(cr3.into());
        for (register, value) in
            [(reg::AX, 1), (reg::BX, START), (reg::CX, pages), (reg::DX, 0x1000)]
        {
            cpu.set_gpr(register, value.into());
        }
    });
    pair.run_to_halt();
}

/// The guest has more spaces than the translator keeps. Each has frames of its own.
#[test]
fn many_address_spaces() {
    const SPACES: u32 = 80;
    const PAGES: u32 = 12;
    let Some(mut pair) = Pair::with_more_memory() else { return };
    pair.each(|machine| {
        machine.put(USER_CODE, TOUCH);
        for space in 0..SPACES {
            let (directory, table) = (TABLES + space * 0x2000, TABLES + space * 0x2000 + 0x1000);
            make_space(machine, directory, [table]);
            for page in 0..PAGES {
                let frame = FRAMES + (space * PAGES + page) * 0x1000;
                machine.put_dword(table + page * 4, frame | P | RW | US);
            }
        }
    });
    for round in 0..3 {
        for space in 0..SPACES {
            // Every round has another order.
            touch(&mut pair, TABLES + (space * (2 * round + 1) % SPACES) * 0x2000, PAGES);
        }
    }
    assert!(pair.right.dword(FRAMES) > 2, "the pages were written to");
}

/// Linux allows a process 65530 mappings. Each page here takes one, since all pages in a row are the same
/// frame.
#[test]
fn more_pages_than_mappings() {
    const PAGES_OF_TABLE: u32 = 1024;
    const PAGES: u32 = 15 * PAGES_OF_TABLE;
    const SPACES: u32 = 4;
    let Some(mut pair) = Pair::with_more_memory() else { return };
    let table = |number: u32| TABLES + 0x1_0000 + number * 0x1000;
    pair.each(|machine| {
        machine.put(USER_CODE, TOUCH);
        for page in 0..PAGES {
            let frame = FRAMES + page % 3 * 0x1000;
            let entry = table(page / PAGES_OF_TABLE) + page % PAGES_OF_TABLE * 4;
            machine.put_dword(entry, frame | P | RW | US);
        }
        for space in 0..SPACES {
            make_space(machine, TABLES + space * 0x1000, (0..PAGES / PAGES_OF_TABLE).map(table));
        }
    });
    let before = pair.counted("flushes");
    for space in 0..SPACES {
        touch(&mut pair, TABLES + space * 0x1000, PAGES);
    }
    assert!(pair.counted("flushes") > before, "they were too many");
}

/// The guest has more code than there is room for its host code.
#[test]
fn more_code_than_there_is_room_for() {
    // JZ to another block, over 63 others, which takes a lot of host code.
    const BRANCH: [u8; 2] = [0x74, 126];
    const FIRST: u32 = 0x40_0000;
    const BRANCHES: usize = 3 << 19;
    let Some(mut pair) = Pair::with_more_memory() else { return };
    pair.each(|machine| {
        machine.put(FIRST, &BRANCH.repeat(BRANCHES));
        machine.put(FIRST + 2 * BRANCHES as u32, &[0xf4]);
    });
    for _ in 0..2 {
        let before = pair.counted("flushes");
        pair.each(|machine| {
            machine.reset_processor();
            machine.cpu.ip = FIRST.into();
        });
        pair.run_to_halt();
        assert!(pair.counted("flushes") > before, "it did not fit");
    }
}

/// Translated code reaches guest memory by addresses of its own. So a translator refuses every memory except
/// its own, to which nobody else can refer meanwhile.
#[test]
fn a_translator_runs_with_its_own_memory_alone() {
    let Some((mut translator, mut own)) = support::translator(1 << 20) else { return };
    let Some((_, mut of_another)) = support::translator(1 << 20) else { return };
    let mut of_none = Memory::new(1 << 20).unwrap();
    let mut run = |memory: &mut Memory| {
        let mut cpu = Cpu::new();
        catch_unwind(AssertUnwindSafe(|| translator.run(&mut cpu, memory, 1))).is_ok()
    };
    assert_eq!([&mut own, &mut of_another, &mut of_none].map(&mut run), [true, false, false]);
    // The memory's identity counts, not the variable that holds it.
    std::mem::swap(&mut own, &mut of_another);
    assert_eq!([&mut own, &mut of_another].map(run), [false, true]);
}

/// Runs tests of this program in a process that may have only so many addresses. If there is no room for a
/// translator they say so. If there is less room than it would like, the results are the same.
#[test]
fn few_addresses() {
    // In GiB: too little for a translator; enough for one, but not for a window of user code; enough for one
    // such window; and for several.
    const LIMITS: [u64; 5] = [1, 12, 28, 40, 100];
    let program = std::env::current_exe().unwrap();
    for limit in LIMITS {
        for test in ["hosts::many_address_spaces", "paging::page_tables_that_change_are_seen"] {
            let output = Command::new("sh")
                .args(["-c", "ulimit -v $0; exec \"$@\""])
                .arg((limit << 20).to_string())
                .arg(&program)
                .args([test, "--exact", "--nocapture", "--test-threads=1"])
                .env("RING3_FUZZ_CASES", "2")
                // A skip in this process is no test of its own.
                .env_remove("RING3_SKIPPED")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{test} in {limit} GiB: {text}{errors}");
            assert!(text.contains("1 passed"), "{text}");
            let is_skipped = errors.contains("skipped: the system gives no memory for it");
            assert!(is_skipped || limit > 12, "in {limit} GiB: {text}");
            assert!(!is_skipped || limit < 100, "in {limit} GiB: {text}");
        }
    }
}
