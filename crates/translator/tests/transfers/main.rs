//! Random programs of far transfers, software interrupts and loads of segment registers, translated and
//! interpreted: in flat code and 16-bit code, of supervisors and users, in real mode and virtual-8086 mode,
//! by descriptors and gates of all kinds, which change meanwhile.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
mod programs;
#[path = "../support/mod.rs"]
mod support;
mod tables;

use common::random::Random;
use common::series::Series;
use programs::{POINTER_COUNT, Program};
use ring3_core::memory::Memory;
use ring3_core::state::SavedState;
use ring3_x86::cpu::{Cpu, Cr0, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Attributes, Descriptor, Segment, TableRegister, sreg};
use support::translator;
use tables::{BASE, CHANGING, CODE, CODE_SEGMENTS, GDT, IDT, LDT, MEMORY, POINTERS, STACK, TSS};

const CASES: u64 = 100;
/// Instructions of a program that are executed.
const EXECUTED: u64 = 3000;

/// HLT.
const HALT: u8 = 0xf4;

/// The mode in which a program begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// In protected mode, in the first or the second code segment of users or of the supervisor.
    Protected {
        is_user: bool,
        is_flat: bool,
    },
    /// In virtual-8086 mode with this IOPL.
    Virtual(u32),
    Real,
}

fn segment(memory: &Memory, selector: u16) -> Segment {
    let table = if selector & 4 != 0 { LDT } else { GDT };
    let mut bytes = [0; 8];
    memory.read(u64::from(table + u32::from(selector & !7)), &mut bytes);
    Descriptor(u64::from_le_bytes(bytes)).segment(selector)
}

/// Returns a processor that is about to begin.
fn processor(random: &mut Random, memory: &Memory, programs: &[Program; 2], start: Start) -> Cpu {
    let mut cpu = Cpu::new();
    cpu.vendor = ring3_x86::undefined::Vendor::of_host();
    cpu.gdtr = TableRegister { base: GDT.into(), limit: 0x1ff };
    cpu.idtr = TableRegister { base: IDT.into(), limit: 0x3ff };
    cpu.ldtr = Segment::new(0x80, LDT.into(), 0x3f, Attributes(0x82));
    cpu.tr = Segment::new(0x78, TSS.into(), 0x2000, Attributes(0x8b));
    let mut flags = Eflags::from_bits_truncate(random.bits()) & (Eflags::STATUS | Eflags::IF);
    let is_32_bit = match start {
        Start::Protected { is_user, is_flat } => {
            cpu.set_cr0(Cr0::PE);
            if random.percent(20) {
                flags |= Eflags::IOPL;
            }
            cpu.set_eflags(flags);
            let code = CODE_SEGMENTS[usize::from(is_user)][usize::from(!is_flat)];
            let data = tables::STACKS[usize::from(is_user)][usize::from(!is_flat)];
            for register in sreg::ES..=sreg::GS {
                let selector = if register == sreg::CS { code.selector } else { data };
                cpu.set_segment(register, segment(memory, selector));
            }
            is_flat
        }
        Start::Virtual(iopl) => {
            cpu.set_cr0(Cr0::PE);
            cpu.set_eflags(flags | Eflags::VM | Eflags::from_bits_retain(iopl << 12));
            false
        }
        Start::Real => {
            cpu.idtr = TableRegister { base: 0, limit: 0x3ff };
            cpu.set_eflags(flags);
            false
        }
    };
    let dpl = if matches!(start, Start::Virtual(_)) { 3 } else { 0 };
    if !matches!(start, Start::Protected { .. }) {
        for register in sreg::ES..=sreg::GS {
            cpu.set_segment(register, Segment::real((BASE >> 4) as u16, dpl));
        }
    }
    for register in reg::AX..=reg::DI {
        cpu.set_gpr(register, random.below(0x8000).into());
    }
    let base = if is_32_bit { 0 } else { BASE };
    let top = if random.percent(3) { BASE + random.below(16) } else { STACK };
    cpu.set_gpr(reg::SP, (top - base).into());
    cpu.ip = (programs::part(random, programs, is_32_bit) - base).into();
    cpu
}

/// Fills memory with tables and programs.
fn fill(
    random: &mut Random,
    memory: &mut Memory,
    programs: &mut [Program; 2],
    is_user: bool,
    real: bool,
) {
    // Code that leaves the programs halts, or raises #GP at HLT.
    memory.load_image(0, &vec![HALT; MEMORY as usize]).unwrap();
    for which in 0..2 {
        for (at, segment, bytes) in std::mem::take(&mut programs[which].targets) {
            let offset = programs::part(random, programs, segment.is_32_bit) - segment.base;
            programs[which].code[at..at + bytes].copy_from_slice(&offset.to_le_bytes()[..bytes]);
        }
    }
    for (start, program) in CODE.into_iter().zip(&*programs) {
        memory.write(u64::from(start + 0x10), &program.code);
    }
    for number in 0..POINTER_COUNT {
        let segment = programs::code(random, is_user);
        let is_code = random.percent(60);
        let selector = match (real, is_code) {
            (true, _) => (BASE >> 4) as u16,
            (_, true) => segment.selector,
            (_, false) => programs::data(random, is_user),
        };
        let (base, is_32_bit) =
            if real { (BASE, false) } else { (segment.base, segment.is_32_bit) };
        let offset = programs::part(random, programs, is_32_bit) - base;
        let address = u64::from(POINTERS + number * 8);
        // For 16-bit operands, or for 32-bit ones.
        if random.percent(50) {
            memory.write(address, &offset.to_le_bytes());
            memory.write(address + 4, &selector.to_le_bytes());
        } else {
            memory.write(address, &(offset as u16).to_le_bytes());
            memory.write(address + 2, &selector.to_le_bytes());
        }
    }
    let parts = &*programs;
    tables::fill(random, memory, |random, is_32_bit| programs::part(random, parts, is_32_bit));
    // The handlers of real mode.
    for vector in 0..if real { 0x100 } else { 0 } {
        let offset =
            if vector < 0x20 { 0x8000 } else { programs::part(random, parts, false) - BASE };
        memory.write(
            vector * 4,
            &[(offset as u16).to_le_bytes(), ((BASE >> 4) as u16).to_le_bytes()].concat(),
        );
    }
}

/// Runs a program, some instructions at a time, and returns the states in between. When the program ends, it
/// begins again, mostly with a descriptor changed.
fn run(
    engine: &mut dyn Engine,
    memory: &mut Memory,
    random: &mut Random,
    programs: &[Program; 2],
    start: Start,
) -> Vec<(Exit, SavedState)> {
    let mut seen = Vec::new();
    let mut cpu = processor(random, memory, programs, start);
    let mut changed = None;
    let mut executed = 0;
    while executed < EXECUTED {
        let asked = u64::from(1 + random.below(300));
        let before = cpu.instructions;
        let exit = engine.run(&mut cpu, memory, asked);
        executed += cpu.instructions - before + 1;
        seen.push((exit.clone(), cpu.save()));
        if exit == Exit::Deadline {
            continue;
        }
        let instructions = cpu.instructions;
        if let Some((address, byte)) = changed.take() {
            memory.write(address, &[byte]);
        } else if random.percent(50) {
            let address = u64::from(GDT + random.below(CHANGING) * 8 + random.below(8));
            let mut byte = [0];
            memory.read(address, &mut byte);
            changed = Some((address, byte[0]));
            memory.write(address, &[byte[0] ^ 1 << random.below(8)]);
        }
        cpu = processor(random, memory, programs, start);
        cpu.instructions = instructions;
    }
    seen
}

/// Describes a state that [`run`] has returned.
fn report(state: &SavedState, memory: &Memory) -> String {
    let mut cpu = Cpu::new();
    cpu.restore(state).unwrap();
    format!("{} instructions\n{}", cpu.instructions, cpu.report(memory))
}

#[test]
fn transfers_and_loads_agree_with_the_interpreter() {
    let series = Series::from_environment(CASES);
    let (mut executed, mut interpreted) = (0, 0);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let (is_user, is_flat) = (random.percent(40), random.percent(50));
        let start = match random.below(10) {
            0 => Start::Real,
            1 => Start::Virtual(3),
            2 => Start::Virtual(random.below(4)),
            _ => Start::Protected { is_user, is_flat },
        };
        let real = !matches!(start, Start::Protected { .. });
        let state = random.clone();
        let prepared = |random: &mut Random, mut memory: Memory| {
            // Virtual-8086 mode leads to code of the supervisor.
            let is_user = is_user && !real;
            let mut programs = [true, false]
                .map(|is_32_bit| programs::program(random, is_32_bit, is_user, real && !is_32_bit));
            fill(random, &mut memory, &mut programs, is_user, start == Start::Real);
            (programs, memory)
        };
        let (programs, mut memory_then) = prepared(&mut random, Memory::new(MEMORY).unwrap());
        let mut interpreter = Interpreter::new();
        let expected = run(&mut interpreter, &mut memory_then, &mut random, &programs, start);
        random = state;
        let Some((mut translator, memory)) = translator(MEMORY) else { return };
        let (programs, mut memory) = prepared(&mut random, memory);
        let seen = run(&mut translator, &mut memory, &mut random, &programs, start);
        let what = format!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}: {start:?}", series.seed);
        for (number, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
            let reports = || {
                let [expected, seen] = [expected, seen].map(|(_, state)| report(state, &memory));
                format!("interpreter:\n{expected}\ntranslator:\n{seen}")
            };
            assert_eq!(seen.0, expected.0, "exit {number}, {what}\n{}", reports());
            assert!(seen.1 == expected.1, "exit {number}, {what}\n{}", reports());
        }
        assert!(seen == expected, "the number of exits, {what}");
        assert!(memory.contents() == memory_then.contents(), "memory differs, {what}");
        let counters: Vec<_> = translator.counters();
        let counted = |name: &str| counters.iter().find(|(known, _)| *known == name).unwrap().1;
        executed += EXECUTED;
        interpreted += counted("instructions interpreted");
    }
    println!("{interpreted} of {executed} instructions interpreted");
}
