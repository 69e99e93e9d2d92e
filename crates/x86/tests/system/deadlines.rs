//! The engine counts exactly: `run(n)` executes n instructions, wherever the last one is.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, MemoryOperand};
use ring3_core::memory::Memory;
use ring3_core::state::SavedState;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::undefined::undefined;

use crate::common::anything::{MEMORY, fill, instruction, random_cpu};
use crate::common::assembler::*;
use crate::common::random::Random;
use crate::common::series::Series;
use crate::engine::{IS_UNIFORM, engine};
use crate::machine::*;

/// The number of random programs, and the number of instructions that are compared in each.
const CASES: u64 = 10;
const INSTRUCTIONS: u64 = 60;

/// A user's program begins with some of these flags.
const USER_FLAGS: Eflags = Eflags::STATUS.union(Eflags::DF).union(Eflags::TF);

/// A random program, and the machine's answers to it.
struct Program {
    cpu: Cpu,
    memory: Memory,
    engine: Box<dyn Engine>,
    answers: Random,
}

impl Program {
    /// Makes a program of any bytes in any state; it often ends soon.
    fn anything(mut random: Random) -> Program {
        let (engine, mut memory) = engine(MEMORY);
        fill(&mut random, &mut memory);
        let cpu = random_cpu(&mut random);
        Program { cpu, memory, engine, answers: random }
    }

    /// Makes a program of random instructions of a user who may use ports, and may overwrite the
    /// instructions. An instruction that raises an exception is skipped, byte by byte.
    fn of_user(mut random: Random) -> Program {
        let mut machine = Machine::new();
        machine.enable_paging();
        for page in (0..CODE).step_by(0x1000) {
            machine.map(page, page, P | RW);
        }
        for vector in 0..32 {
            let has_code = matches!(vector, 8 | 10..=14 | 17);
            let eip = MemoryOperand::with_base(ESP);
            let skip = Instruction::with1(Code::Inc_rm32, eip).unwrap();
            let drop_code = Instruction::with2(Code::Add_rm32_imm8, ESP, 4).unwrap();
            let start = usize::from(!has_code);
            machine.code(handler(vector), &[drop_code, skip, plain(Code::Iretd)][start..]);
        }
        let mut code = Vec::new();
        while code.len() < 0x1000 {
            instruction(&mut random, &mut code);
        }
        machine.put(USER_CODE, &code);
        machine.enter_user();
        let flags = Eflags::from_bits_truncate(random.bits()) & USER_FLAGS;
        machine.cpu.set_eflags(flags | Eflags::IOPL);
        for register in (0..8).filter(|register| *register != reg::SP) {
            let near = [USER_CODE, DATA, random.below(64)];
            let value = random.pick(&near) + random.below(0x1000);
            machine.cpu.set_gpr(register, value.into());
        }
        machine.cpu.ip += u64::from(random.below(0x800));
        let Machine { cpu, memory, engine, .. } = machine;
        Program { cpu, memory, engine, answers: random }
    }

    /// Runs `instructions` instructions. Returns false if the program ends before.
    fn run(&mut self, instructions: u64) -> bool {
        let end = self.cpu.instructions + instructions;
        loop {
            let left = end - self.cpu.instructions;
            match self.engine.run(&mut self.cpu, &mut self.memory, left) {
                Exit::Deadline => {
                    assert_eq!(self.cpu.instructions, end);
                    return true;
                }
                Exit::Halt | Exit::Debugger | Exit::Shutdown | Exit::Missing(_) => return false,
                Exit::NumericError => self.cpu.ignore_numeric_error(),
                _ => self.cpu.answer(self.answers.next()),
            }
        }
    }

    /// Returns whether the next instruction leaves flags undefined, which the engine may set in different
    /// ways at different times. Only flat 32-bit code that is mapped to itself is examined.
    fn is_about_to_differ(&self) -> bool {
        if IS_UNIFORM {
            return false;
        }
        let rest = self.memory.contents().get(self.cpu.ip as usize..).unwrap_or_default();
        let next = Decoder::new(32, rest, DecoderOptions::NONE).decode();
        !undefined(&next, self.cpu.get(reg::CX)).flags.is_empty()
    }

    /// Returns everything that can differ; the program does not use memory above the first megabyte.
    fn state(&self) -> (SavedState, &[u8]) {
        (self.cpu.save(), &self.memory.contents()[..1 << 20])
    }
}

fn one_by_one_is_the_same_as_at_once(program: fn(Random) -> Program) {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut single = program(series.random(case));
        for count in 1..=INSTRUCTIONS {
            if single.is_about_to_differ() {
                break;
            }
            let goes_on = single.run(1);
            let mut whole = program(series.random(case));
            assert_eq!(whole.run(count), goes_on, "case {case}, {count} instructions");
            assert!(whole.state() == single.state(), "case {case}, {count} instructions");
            if !goes_on {
                break;
            }
        }
    }
}

#[test]
fn anything_runs_one_by_one_as_at_once() {
    one_by_one_is_the_same_as_at_once(Program::anything);
}

#[test]
fn user_code_runs_one_by_one_as_at_once() {
    one_by_one_is_the_same_as_at_once(Program::of_user);
}
