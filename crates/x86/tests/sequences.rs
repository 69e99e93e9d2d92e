//! Instructions that follow each other do the same in blocks as one at a time: handlers for two and three of
//! them, links, the table of jumps, and deadlines anywhere between them change nothing.
//!
//! The differential tests against the real processor execute each instruction alone, so this is what they do not see.

mod common;

use common::random::Random;
use common::series::Series;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::observer::Observer;

const CASES: u64 = 1000;

/// Where the code is, at the end of a page so that some of it is in the next one.
const CODE: u32 = 0x2_0f80;
/// Where the registers point to.
const DATA: u32 = 0x4_0000;
/// Instructions in a program, and how many of them are executed.
const LENGTH: usize = 40;
const EXECUTED: u64 = 400;

/// Looks at nothing, but makes the engine execute one instruction at a time.
#[derive(Debug)]
struct Idler;

impl Observer for Idler {}

/// A program of what compilers write most, and where each of its instructions begins. Branches go to any of them.
fn program(random: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    let mut starts = Vec::new();
    let mut jumps = Vec::new();
    while starts.len() < LENGTH {
        starts.push(code.len());
        let (a, b) = (random.below(8) as u8, random.below(8) as u8);
        let registers = 0xc0 | a << 3 | b;
        // A base register other than ESP, which has another encoding, and a displacement.
        let base = [0, 1, 2, 3, 5, 6, 7][random.below(7) as usize];
        let operand = [0x40 | a << 3 | base, random.below(256) as u8];
        let number = random.below(256) as u8;
        match random.below(20) {
            0 | 1 => code.extend([0x8b, operand[0], operand[1]]), // mov r, [m]
            2 | 3 => code.extend([0x89, operand[0], operand[1]]), // mov [m], r
            4 => code.extend([0x89, registers]),                  // mov r, r
            5 => code.push(0x50 | a),                             // push
            6 => code.push(0x58 | if a == reg::SP { b & 3 } else { a }), // pop
            7 => code.extend([0x8d, operand[0], operand[1]]),     // lea
            8 => code.extend([0x85, registers]),                  // test r, r
            9 => code.extend([[0x39, 0x3b, 0x38, 0x3a, 0x85][a as usize % 5], registers]), // cmp, test
            10 => code.extend([[0x39, 0x3b, 0x3a][b as usize % 3], operand[0], operand[1]]),
            11 => code.extend([0x83, registers, number]), // add, or, adc, sbb, and, sub, xor, cmp
            12 => code.extend([0x83, operand[0], operand[1], number]),
            13 => code.push(0x40 | (a & 1) << 3 | b & 3), // inc, dec
            14 => code.extend([0xff, 0x40 | (a & 1) << 3 | base, operand[1]]),
            15 => code.push(0xc3), // ret
            16 => {
                code.extend([0xe8, 0, 0, 0, 0]); // call
                jumps.push((code.len(), 4));
            }
            _ => {
                code.extend([0x70 | number & 15, 0]); // jcc
                jumps.push((code.len(), 1));
            }
        }
    }
    for (end, bytes) in jumps {
        let to = starts[random.below(LENGTH as u32) as usize];
        let distance = (to as i32 - end as i32).to_le_bytes();
        let is_near = (-128..128).contains(&(to as i32 - end as i32));
        if bytes == 4 || is_near {
            code[end - bytes..end].copy_from_slice(&distance[..bytes]);
        }
    }
    code
}

/// A machine in which the program is about to run.
fn machine(random: &mut Random, code: &[u8]) -> (Cpu, Memory) {
    let mut memory = Memory::new(1 << 20).unwrap();
    memory.load_image(CODE.into(), code).unwrap();
    // Data that are addresses of data, and on the stack some of code.
    for offset in (0..0x4000).step_by(4) {
        let value = if offset % 16 == 0 {
            CODE + random.below(code.len() as u32)
        } else {
            DATA + random.below(0x4000)
        };
        memory.load_image((DATA + offset).into(), &value.to_le_bytes()).unwrap();
    }
    let mut cpu = Cpu::new();
    cpu.set_flat_entry(0x08, 0x10, CODE);
    for register in reg::AX..=reg::DI {
        cpu.set_gpr(register, ((DATA + 0x1000 + random.below(0x2000)) & !3).into());
    }
    cpu.set_eflags(Eflags::from_bits_truncate(random.below(0x1000)) & Eflags::STATUS);
    (cpu, memory)
}

/// How a run ended, and what the processor is then.
fn seen(exit: &Exit, cpu: &Cpu) -> String {
    let registers: Vec<_> = (reg::AX..=reg::DI).map(|number| cpu.gpr(number)).collect();
    format!("{exit:?} {registers:x?} {:x} {:?} {}", cpu.ip, cpu.eflags(), cpu.instructions)
}

#[test]
fn blocks_do_what_their_instructions_do() {
    let series = Series::from_environment(CASES);
    let mut executed = 0;
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let code = program(&mut random);
        let state = random.clone();
        let (mut cpu, mut memory) = machine(&mut random, &code);
        let mut engine = Interpreter::new();
        engine.set_observer(Some(Box::new(Idler)));
        let exit = engine.run(&mut cpu, &mut memory, EXECUTED);
        executed += cpu.instructions;
        let one_at_a_time = seen(&exit, &cpu);
        let memory_then = memory;

        random = state;
        let (mut cpu, mut memory) = machine(&mut random, &code);
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
