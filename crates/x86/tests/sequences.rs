//! Sequences of instructions have the same effect in blocks as one at a time. Handlers for two and three
//! instructions, links, the table of jumps, and deadlines anywhere between them change nothing.
//!
//! The differential tests against the real processor execute each instruction alone, so they do not see these
//! mechanisms.

mod common;

use common::programs::{EXECUTED, machine, program, seen};
use common::series::Series;
use ring3_core::memory::Memory;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::observer::Observer;

const CASES: u64 = 120;

/// An observer that ignores everything, but makes the engine execute one instruction at a time.
#[derive(Debug)]
struct Idler;

impl Observer for Idler {}

fn zero_memory() -> Memory {
    Memory::new(1 << 20).unwrap()
}

#[test]
fn blocks_agree_with_single_instructions() {
    let series = Series::from_environment(CASES);
    let mut executed = 0;
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let code = program(&mut random);
        let state = random.clone();
        let (mut cpu, mut memory) = machine(&mut random, &code, zero_memory());
        let mut engine = Interpreter::new();
        engine.set_observer(Some(Box::new(Idler)));
        let exit = engine.run(&mut cpu, &mut memory, EXECUTED);
        executed += cpu.instructions;
        let one_at_a_time = seen(&exit, &cpu);
        let memory_then = memory;

        random = state;
        let (mut cpu, mut memory) = machine(&mut random, &code, zero_memory());
        let mut engine = Interpreter::new();
        let exit = loop {
            let left = EXECUTED - cpu.instructions;
            let exit = engine.run(&mut cpu, &mut memory, u64::from(1 + random.below(60)).min(left));
            if exit != Exit::Deadline || cpu.instructions >= EXECUTED {
                break exit;
            }
        };
        let what =
            || format!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}: {code:02x?}", series.seed);
        assert_eq!(seen(&exit, &cpu), one_at_a_time, "{}", what());
        assert!(memory.contents() == memory_then.contents(), "memory differs, {}", what());
    }
    println!("{executed} instructions");
}
