//! Random programs of 64-bit code, of a kernel and of users, with exceptions, system instructions and code
//! that changes: they must have the same results on the translator as on the interpreter, with deadlines
//! anywhere. What translation costs is counted in `counts`, `cold` and
//! `page_faults`.

#[path = "../support/agreement.rs"]
mod agreement;
mod breakpoints;
mod changing;
mod cold;
mod counts;
mod invalidations;
mod machine;
mod maker;
mod page_faults;
#[path = "../../../x86/tests/common/random.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod random;
#[path = "../../../x86/tests/common/series.rs"]
mod series;
mod strings;
#[path = "../support/mod.rs"]
mod support;

use std::thread;

use agreement::{Outcome, assert_agrees, run};
use counts::counter;
use machine::{INTERRUPT, LAYOUTS, Layout, MEMORY, machine};
use maker::Maker;
use random::Random;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;
use series::Series;
use support::translator;

const CASES: u64 = if cfg!(debug_assertions) { 30 } else { 120 };
/// Instructions that are interpreted in a page of code of users before it is translated.
const COLD: [u64; 4] = [0, 0, 60, 900];

/// Compares random programs that `make` makes for a layout.
fn compare(make: impl Fn(&mut Random, &Layout) -> Vec<u8>) {
    compare_debugged(make, |_, _| Vec::new());
}

/// Compares random programs that `make` makes for a layout, with breakpoints of a debugger at the addresses that
/// `points` returns.
fn compare_debugged(
    make: impl Fn(&mut Random, &Layout) -> Vec<u8>,
    points: impl Fn(&mut Random, &Layout) -> Vec<u64>,
) {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let layout = &LAYOUTS[(case % LAYOUTS.len() as u64) as usize];
        let code = make(&mut random, layout);
        let points = points(&mut random, layout);
        let mut interpreted = Memory::new(MEMORY).unwrap();
        let mut cpu = machine(&mut interpreted, layout, &code, random.clone());
        cpu.set_debugger_points(points.clone(), Vec::new());
        let interrupt = Some(INTERRUPT);
        let (mut engine, mut same) = (Interpreter::new(), random.clone());
        let expected = run(&mut engine, &mut cpu, &mut interpreted, &mut same, interrupt);
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        translator.translate_after(COLD[(case / LAYOUTS.len() as u64) as usize % COLD.len()]);
        let mut cpu = machine(&mut memory, layout, &code, random.clone());
        cpu.set_debugger_points(points, Vec::new());
        let states = run(&mut translator, &mut cpu, &mut memory, &mut random, interrupt);
        let what = format!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}", series.seed);
        let ours = Outcome { states: &states, memory: &memory };
        assert_agrees(&what, &ours, &Outcome { states: &expected, memory: &interpreted });
        assert_eq!(counter(&translator, "translations without proof"), 0, "{what}");
    }
}

#[test]
fn the_translator_agrees_with_the_interpreter_in_64_bit_code() {
    compare(|random, layout| Maker { random, code: layout.code }.program());
}

/// Returns a loop over accesses by RBX, R9, RCX and R10, and steps between them, which reach beyond the pages of data.
fn random_loop(random: &mut Random) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..=random.below(6) {
        let small = random.below(0x80) as u8;
        let next: &[u8] = match random.below(16) {
            0 | 1 => &[0x48, 0x8b, 0x43, small],   // MOV RAX, [RBX + small]
            2 => &[0x48, 0x89, 0x43, small],       // MOV [RBX + small], RAX
            3 => &[0x48, 0x8b, 0x14, 0xcb],        // MOV RDX, [RBX + RCX * 8]
            4 => &[0x48, 0x89, 0x54, 0xcb, small], // MOV [RBX + RCX * 8 + small], RDX
            5 => &[0x49, 0x8b, 0x01],              // MOV RAX, [R9]
            6 => &[0x4b, 0x03, 0x04, 0xd1],        // ADD RAX, [R9 + R10 * 8]
            7 => &[0x89, 0xc9],                    // MOV ECX, ECX
            8 => &[0x48, 0x83, 0xc3, small],       // ADD RBX, small
            9 => &[0x48, 0x83, 0xc1, 0x01],        // ADD RCX, 1
            10 => &[0x49, 0x83, 0xc1, 0x08],       // ADD R9, 8
            11 => &[0x49, 0xff, 0xc2],             // INC R10
            12 => &[0x48, 0x83, 0xe3, 0xf8],       // AND RBX, -8
            13 => &[0x50, 0x5a],                   // PUSH RAX; POP RDX
            14 => &[0x48, 0x8d, 0x5b, small],      // LEA RBX, [RBX + small]
            _ => &[0x01, 0xc8],                    // ADD EAX, ECX
        };
        body.extend(next);
    }
    // MOV R15D, times; the body; DEC R15D; JNZ to the body; JMP to itself
    let mut code = vec![0x41, 0xbf];
    code.extend((1 + random.below(400)).to_le_bytes());
    code.extend(&body);
    code.extend([0x41, 0xff, 0xcf, 0x75, (-5 - body.len() as i8) as u8, 0xeb, 0xfe]);
    code
}

#[test]
fn loops_that_check_once_agree_with_the_interpreter() {
    compare(|random, _| random_loop(random));
}

#[test]
fn code_that_keeps_changing_agrees_with_the_interpreter() {
    compare(|random, _| changing::program(random));
}

/// Lets the translator and the interpreter `finish` a program, each in a memory of its own, and panics if the results
/// differ. Returns the processor.
#[track_caller]
fn assert_ends_alike(
    translator: &mut dyn Engine,
    memory: &mut Memory,
    finish: impl Fn(&mut dyn Engine, &mut Memory) -> Cpu,
) -> Cpu {
    let mut others = Memory::new(MEMORY).unwrap();
    let cpu = finish(translator, memory);
    let right = finish(&mut Interpreter::new(), &mut others);
    assert!(cpu.has_state_of(&right), "{}\n{}", right.report(&others), cpu.report(memory));
    assert!(memory.contents() == others.contents(), "memory differs");
    cpu
}

/// The places in which a translator has its code are those of others, on other threads, before and after it.
#[test]
fn translators_on_many_threads_receive_no_signals_of_others() {
    const THREADS: usize = 8;
    const TRANSLATORS: u64 = 50;
    // L: MOV RAX, [RBX]; JMP to L, which raises a signal to own a unit, and one to map a page.
    let code = [0x48, 0x8b, 0x03, 0xeb, 0xfb];
    let come_and_go = || {
        for number in 0..TRANSLATORS {
            let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
            let mut cpu =
                machine(&mut memory, &LAYOUTS[0], &code, Random::new(series::SEED, number));
            cpu.set_gpr(reg::BX, LAYOUTS[0].data);
            assert_eq!(translator.run(&mut cpu, &mut memory, 100), Exit::Deadline);
            assert_eq!(cpu.instructions, 100);
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(come_and_go);
        }
    });
}
