//! Random programs, which must have the same results on the translator as on the interpreter, with deadlines
//! anywhere.

#[path = "../../x86/tests/common/programs.rs"]
mod programs;
#[path = "../../x86/tests/common/random.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod random;
#[path = "../../x86/tests/common/series.rs"]
mod series;
mod support;
#[path = "support/undefined.rs"]
mod undefined;

use programs::{EXECUTED, machine, program, seen};
use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Engine, Exit};
use series::Series;
use support::translator;
use undefined::Watch;

const CASES: u64 = 150;

/// Runs `executed` instructions, some of them at a time.
fn run(
    engine: &mut dyn Engine,
    cpu: &mut Cpu,
    memory: &mut Memory,
    random: &mut random::Random,
    executed: u64,
) -> Exit {
    loop {
        let left = executed - cpu.instructions;
        let asked = u64::from(1 + random.below(200)).min(left);
        let deadline = cpu.instructions + asked;
        let exit = engine.run(cpu, memory, asked);
        assert!(exit != Exit::Deadline || cpu.instructions == deadline, "it stops there");
        if exit != Exit::Deadline || cpu.instructions >= executed {
            return exit;
        }
    }
}

#[test]
fn the_translator_agrees_with_the_interpreter() {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let code = program(&mut random);
        let interpret = |executed: u64| {
            let mut random = random.clone();
            let (mut cpu, mut memory) = machine(&mut random, &code, Memory::new(1 << 20).unwrap());
            let (mut interpreter, watch) = Watch::interpreter();
            let exit = run(&mut interpreter, &mut cpu, &mut memory, &mut random, executed);
            (seen(&exit, &cpu), memory, watch.instructions_before())
        };
        let (mut interpreted, mut memory_then, undefined) = interpret(EXECUTED);
        // A program that has run into its data can execute any instruction.
        let executed = undefined.unwrap_or(EXECUTED);
        if undefined.is_some() {
            (interpreted, memory_then, _) = interpret(executed);
        }

        let Some((mut translator, memory)) = translator(1 << 20) else { return };
        let (mut cpu, mut memory) = machine(&mut random, &code, memory);
        let exit = run(&mut translator, &mut cpu, &mut memory, &mut random, executed);
        let what =
            || format!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}: {code:02x?}", series.seed);
        assert_eq!(seen(&exit, &cpu), interpreted, "{}", what());
        assert!(memory.contents() == memory_then.contents(), "memory differs, {}", what());
    }
}
