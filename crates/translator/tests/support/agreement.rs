//! What two engines make of the same program, which must be the same.

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::engine::{Engine, Exit};

use crate::random::Random;

/// Instructions of each program.
const EXECUTED: u64 = 4000;

/// Runs a program, some instructions at a time, and returns the states at the deadlines. Now and then an interrupt with
/// the vector `interrupt` comes, if there is one. Goes on at breakpoints of the debugger.
pub(crate) fn run(
    engine: &mut dyn Engine,
    cpu: &mut Cpu,
    memory: &mut Memory,
    random: &mut Random,
    interrupt: Option<u8>,
) -> Vec<(Exit, Cpu)> {
    let mut states = Vec::new();
    while cpu.instructions < EXECUTED {
        let asked = u64::from(1 + random.below(300));
        cpu.interrupt_pin |= interrupt.is_some() && random.percent(30);
        let exit = engine.run(cpu, memory, asked);
        states.push((exit.clone(), cpu.clone()));
        match (exit, interrupt) {
            (Exit::Deadline, _) => {}
            (Exit::InterruptWindow, Some(vector)) => {
                cpu.interrupt_pin = false;
                cpu.inject(vector);
            }
            (Exit::Debugger, _) => {
                cpu.take_debugger_hit();
                cpu.pass_breakpoint();
            }
            _ => break,
        }
    }
    states
}

/// What an engine has made of a program.
pub(crate) struct Outcome<'a> {
    /// Why it stopped, and the processor's state then, at each deadline.
    pub(crate) states: &'a [(Exit, Cpu)],
    /// The memory after the last one.
    pub(crate) memory: &'a Memory,
}

/// Panics, and says of which program (`what`), if `ours` is not the `right` outcome.
#[track_caller]
pub(crate) fn assert_agrees(what: &str, ours: &Outcome, right: &Outcome) {
    for ((exit, cpu), (right_exit, right_cpu)) in ours.states.iter().zip(right.states) {
        let reports =
            || format!("{what}\n{}\n{}", right_cpu.report(right.memory), cpu.report(ours.memory));
        assert_eq!(exit, right_exit, "{}", reports());
        assert_eq!(cpu.instructions, right_cpu.instructions, "{}", reports());
        assert!(cpu.has_state_of(right_cpu), "{}", reports());
    }
    assert_eq!(ours.states.len(), right.states.len(), "{what}");
    let bytes = ours.memory.contents().iter().zip(right.memory.contents()).enumerate();
    let differing: Vec<_> = bytes.filter(|(_, (ours, right))| ours != right).take(8).collect();
    assert!(differing.is_empty(), "memory differs: {differing:x?}, {what}");
}
