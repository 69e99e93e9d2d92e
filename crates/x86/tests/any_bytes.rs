//! Any bytes in any state: whatever the guest does, the processor neither panics nor hangs.
//!
//! For other cases see the variables in `common/series.rs`.

mod common;

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;

use common::anything::{random_cpu, random_memory};
use common::random::Random;
use common::series::Series;

const CASES: u64 = 600;
/// Times that the engine is entered in one case, and instructions for each at most.
const ENTRIES: u32 = 40;
const INSTRUCTIONS: u32 = 40;

#[test]
fn any_bytes_in_any_state() {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let mut memory = random_memory(&mut random);
        let mut cpu = random_cpu(&mut random);
        run(&mut random, &mut cpu, &mut memory);
    }
}

/// Lets the engine run, and answers it with anything.
fn run(random: &mut Random, cpu: &mut Cpu, memory: &mut Memory) {
    let mut engine = Interpreter::new();
    for _ in 0..ENTRIES {
        cpu.interrupt_pin = random.percent(20);
        if random.percent(5) {
            cpu.raise_nmi();
        }
        let instructions = u64::from(1 + random.below(INSTRUCTIONS));
        match engine.run(cpu, memory, instructions) {
            Exit::Deadline => survives_saving(cpu),
            Exit::PortRead { .. } | Exit::MmioRead { .. } | Exit::TimeStamp => {
                cpu.answer(random.next());
            }
            Exit::PortWrite { .. } | Exit::MmioWrite { .. } => cpu.answer(0),
            Exit::InterruptWindow | Exit::Halt => cpu.inject(random.bits() as u8),
            Exit::Shutdown | Exit::Missing(_) => *cpu = random_cpu(random),
        }
    }
}

/// Whatever state there is can be saved and restored.
fn survives_saving(cpu: &Cpu) {
    let saved = cpu.save();
    let mut other = Cpu::new();
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
}
