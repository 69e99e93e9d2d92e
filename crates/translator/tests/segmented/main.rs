//! Segmented code, translated and interpreted: real mode, virtual-8086 mode, and protected mode with 16-bit
//! or 32-bit code in segments that have bases and limits.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
mod programs;
mod state;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::anything::instruction;
use common::random::Random;
use common::series::Series;
use iced_x86::{CpuidFeature, Instruction, Mnemonic};
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{self, CodeSize, Op};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::observer::Observer;
use ring3_x86::segment::sreg;
use ring3_x86::undefined::{self, Row, undefined};
use state::{Edges, MEMORY, Seen, linear, random_cpu};
use support::translator;

/// Numbers of cases with single instructions, and with programs.
const INSTRUCTIONS: u64 = if cfg!(debug_assertions) { 2_000 } else { 8_000 };
const PROGRAMS: u64 = 150;
/// Instructions of a program that are executed.
const EXECUTED: u64 = 1000;

/// HLT: it is never translated, so the instructions before it are a block of their own.
const HALT: u8 = 0xf4;

/// Returns the counter called `name`.
fn counter(engine: &dyn Engine, name: &str) -> u64 {
    engine.counters().into_iter().find(|(known, _)| *known == name).unwrap().1
}

/// Returns memory with random contents.
fn filled(random: &mut Random, mut memory: Memory) -> Memory {
    let pattern: Vec<u8> = (0..MEMORY).map(|_| random.bits() as u8).collect();
    memory.load_image(0, &pattern).unwrap();
    memory
}

#[test]
fn every_form_agrees_with_the_interpreter() {
    let series = Series::from_environment(INSTRUCTIONS);
    let Some((mut translator, memory)) = translator(MEMORY) else { return };
    let mut memory = filled(&mut Random::new(1, 0), memory);
    let mut memory_then = filled(&mut Random::new(1, 0), Memory::new(MEMORY).unwrap());
    let mut interpreter = Interpreter::new();
    let mut numeric = [0; 2];
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let mut cpu = random_cpu(&mut random, Edges::Often);
        let size = cpu.code_mode().size;
        let (code, decoded) = random_instruction(&mut random, size);
        let place = linear(&cpu, cpu.ip as u32).into();
        for memory in [&mut memory, &mut memory_then] {
            memory.write(place, &code);
        }
        let undefined = undefined(&decoded, cpu.gpr(reg::CX) as u8);

        let mut cpu_then = cpu.clone();
        let expected = interpreter.run(&mut cpu_then, &mut memory_then, 1);
        let interpreted = counter(&translator, "instructions interpreted");
        let exit = translator.run(&mut cpu, &mut memory, 1);
        let was_interpreted = counter(&translator, "instructions interpreted") > interpreted;
        if is_numeric(&decoded) {
            numeric[usize::from(was_interpreted)] += 1;
        }
        if undefined.destination {
            for memory in [&mut memory, &mut memory_then] {
                memory.write(0, &vec![0; MEMORY as usize]);
            }
            continue;
        }
        let what = || {
            let seed = series.seed;
            format!("RING3_FUZZ_SEED={seed} RING3_FUZZ_CASE={case}: {decoded} {code:02x?}")
        };
        let seen = |exit: Exit, cpu: &Cpu| Seen::new(&[exit], cpu, Eflags::all() - undefined.flags);
        assert_eq!(seen(exit, &cpu), seen(expected, &cpu_then), "{}", what());
        assert!(memory.contents() == memory_then.contents(), "memory differs, {}", what());
        if cpu.fpu.has_pending_exception() {
            // Without a pending exception processors differ in the addresses that they keep.
            let pointers = |cpu: &Cpu| cpu.fpu.environment(true);
            assert_eq!(pointers(&cpu), pointers(&cpu_then), "{}", what());
        }
    }
    let cases = series.cases.end - series.cases.start;
    let interpreted = counter(&translator, "instructions interpreted");
    println!("{cases} instructions, {interpreted} of them interpreted");
    let [translated, interpreted_too] = numeric;
    println!("with x87, MMX or SSE: {translated} translated, {interpreted_too} interpreted");
    // The more cases, the more addresses there are at which an instruction has faulted too often to be translated.
    assert!(cases == 1 || translated > interpreted_too / 6);
    assert!(cases == 1 || interpreted < cases * 4 / 5);
}

/// Returns an instruction of a random form, with an instruction after it that ends the block.
fn random_instruction(random: &mut Random, size: CodeSize) -> (Vec<u8>, Instruction) {
    loop {
        let mut code = Vec::new();
        if random.percent(30) {
            code.push(random.pick(&[0x66, 0x67]));
        }
        instruction(random, &mut code);
        code.resize(32, HALT);
        let decoded = decode::decoder(&code, size, 0, Model::Max).decode();
        // Most forms are x87, MMX and SSE instructions, so some of them are skipped.
        if !decoded.is_invalid() && !is_numeric(&decoded) || random.percent(40) {
            return (code, decoded);
        }
    }
}

/// Returns whether `instruction` uses x87, MMX or SSE registers or their formats of numbers.
fn is_numeric(instruction: &Instruction) -> bool {
    instruction.cpuid_features().contains(&CpuidFeature::FPU)
        || (0..instruction.op_count()).any(|operand| {
            let register = instruction.op_register(operand);
            register.is_mm() || register.is_xmm()
        })
}

/// Notes whether an instruction was executed that may leave flags undefined, or that shows the address of the
/// last x87 instruction, which some processors keep and others do not.
#[derive(Debug, Default, Clone)]
struct Watcher(Arc<AtomicBool>);

impl Observer for Watcher {
    fn instruction(&mut self, _: &Cpu, op: &Op) {
        let mnemonic = op.form.form().map(|form| form.code.mnemonic());
        let is_among = |row: &Row| mnemonic.is_some_and(|known| row.mnemonics.contains(&known));
        let shows_pointers = mnemonic.is_some_and(|mnemonic| {
            matches!(mnemonic, Mnemonic::Fnsave | Mnemonic::Fnstenv | Mnemonic::Fxsave)
        });
        if shows_pointers || undefined::TABLE.iter().any(is_among) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs [`EXECUTED`] instructions, some of them at a time. When a run ends before that, it begins again with
/// other registers.
fn run(
    engine: &mut dyn Engine,
    cpu: &mut Cpu,
    memory: &mut Memory,
    random: &mut Random,
    edges: Edges,
) -> Vec<Exit> {
    let start = cpu.clone();
    let mut exits = Vec::new();
    loop {
        let left = EXECUTED - cpu.instructions;
        let asked = u64::from(1 + random.below(200)).min(left);
        let deadline = cpu.instructions + asked;
        let exit = engine.run(cpu, memory, asked);
        assert!(exit != Exit::Deadline || cpu.instructions == deadline, "it stops there");
        if exit != Exit::Deadline {
            let instructions = cpu.instructions + 1;
            *cpu = start.clone();
            cpu.instructions = instructions;
            state::set_registers(random, cpu, edges);
            exits.push(exit);
        }
        if cpu.instructions >= EXECUTED {
            return exits;
        }
    }
}

#[test]
fn programs_agree_with_the_interpreter() {
    let series = Series::from_environment(PROGRAMS);
    let (mut compared, mut executed, mut interpreted) = (0, 0, 0);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let edges = if random.percent(30) { Edges::Often } else { Edges::Rarely };
        let cpu = random_cpu(&mut random, edges);
        let is_32_bit = cpu.code_mode().size == CodeSize::Bits32;
        let code = programs::program(&mut random, is_32_bit);
        let place = linear(&cpu, cpu.ip as u32).into();
        let state = random.clone();
        let prepared = |random: &mut Random, memory: Memory| {
            let mut memory = programs::filled(random, memory, &cpu);
            memory.write(place, &code);
            memory
        };

        let mut memory_then = prepared(&mut random, Memory::new(MEMORY).unwrap());
        let mut cpu_then = cpu.clone();
        let watcher = Watcher::default();
        let mut interpreter = Interpreter::new();
        interpreter.set_observer(Some(Box::new(watcher.clone())));
        let exits = run(&mut interpreter, &mut cpu_then, &mut memory_then, &mut random, edges);
        if watcher.0.load(Ordering::Relaxed) {
            // The program has left its code, and the result is unknown.
            continue;
        }
        let expected = Seen::new(&exits, &cpu_then, Eflags::all());

        random = state;
        let Some((mut translator, memory)) = translator(MEMORY) else { return };
        let mut memory = prepared(&mut random, memory);
        let mut cpu = cpu.clone();
        let exits = run(&mut translator, &mut cpu, &mut memory, &mut random, edges);
        let what = || {
            let code_segment = cpu_then.segment(sreg::CS);
            format!(
                "RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}: {code_segment:x?} {code:02x?}",
                series.seed
            )
        };
        assert_eq!(Seen::new(&exits, &cpu, Eflags::all()), expected, "{}", what());
        assert!(memory.contents() == memory_then.contents(), "memory differs, {}", what());
        compared += 1;
        executed += cpu.instructions;
        interpreted += counter(&translator, "instructions interpreted");
    }
    if compared > 1 {
        println!("{compared} programs, {interpreted} of {executed} instructions interpreted");
        assert!(interpreted < executed / 2, "{interpreted} of {executed}");
    }
}
