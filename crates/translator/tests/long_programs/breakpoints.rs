//! Breakpoints of a debugger: the guest stops at them, and all other code stays translated.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;

use crate::assert_ends_alike;
use crate::counts::counter;
use crate::machine::{LAYOUTS, Layout, MEMORY, SYSTEM_ENTRY, machine};
use crate::maker::{Maker, SLOT, SLOTS};
use crate::random::Random;
use crate::series;
use crate::support::translator;

/// Returns addresses of instructions of a random program, and of addresses within some.
fn anywhere(random: &mut Random, layout: &Layout) -> Vec<u64> {
    let count = 1 + random.below(6);
    let mut points: Vec<u64> = (0..count)
        .map(|_| {
            let inside = if random.percent(20) { u64::from(random.below(8)) } else { 0 };
            layout.code + u64::from(random.below(SLOTS as u32)) * SLOT + inside
        })
        .collect();
    points.extend(random.percent(20).then_some(SYSTEM_ENTRY));
    points
}

#[test]
fn debugged_programs_agree_with_the_interpreter() {
    crate::compare_debugged(
        |random, layout| Maker { random, code: layout.code }.program(),
        anywhere,
    );
}

/// Code that counts ECX down in a loop of three instructions, and after each round changes a word of data.
const LOOP: [u8; 9] = [
    0xff, 0x03, // L: INC DWORD [RBX]
    0x90, // NOP
    0xff, 0xc9, // DEC ECX
    0x75, 0xf9, // JNZ L
    0xeb, 0xfe, // JMP to itself
];

fn begin(layout: &Layout, memory: &mut Memory, rounds: u64) -> Cpu {
    let mut cpu = machine(memory, layout, &LOOP, Random::new(series::SEED, 0));
    cpu.set_gpr(reg::BX, layout.data);
    cpu.set_gpr(reg::CX, rounds);
    cpu
}

#[test]
fn code_beside_breakpoints_stays_translated() {
    const ROUNDS: u64 = 10_000;
    for layout in &LAYOUTS[..3] {
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let mut cpu = begin(layout, &mut memory, ROUNDS);
        cpu.set_debugger_points(vec![layout.code + 7], Vec::new());
        assert_eq!(translator.run(&mut cpu, &mut memory, 5 * ROUNDS), Exit::Debugger);
        assert_eq!((cpu.ip, cpu.instructions), (layout.code + 7, 4 * ROUNDS));
        for name in ["instructions left to the interpreter", "instructions interpreted"] {
            let count = counter(&translator, name);
            assert!(count <= 20, "{name}: {count}");
        }
    }
}

#[test]
fn the_guest_stops_each_time() {
    const ROUNDS: u64 = 50;
    for layout in &LAYOUTS[..3] {
        // At the head of the loop, within it, and at its branch.
        for offset in [0, 2, 5] {
            let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
            let mut cpu = begin(layout, &mut memory, ROUNDS);
            // The loop is translated before there is a breakpoint, and after there was one.
            assert_eq!(translator.run(&mut cpu, &mut memory, 40), Exit::Deadline);
            cpu.set_debugger_points(vec![layout.code + offset], Vec::new());
            for stop in 0..10 {
                let round = ROUNDS - 10 - stop;
                assert_eq!(translator.run(&mut cpu, &mut memory, 100), Exit::Debugger);
                assert_eq!(cpu.ip, layout.code + offset);
                let left = if offset == 5 { round - 1 } else { round };
                assert_eq!(cpu.gpr(reg::CX), left);
                cpu.take_debugger_hit();
                cpu.pass_breakpoint();
            }
            cpu.set_debugger_points(Vec::new(), Vec::new());
            assert_eq!(translator.run(&mut cpu, &mut memory, 4 * ROUNDS), Exit::Deadline);
            assert_eq!(cpu.gpr(reg::CX), 0);
        }
    }
}

/// The interpreter has decoded code with breakpoints, and then executes an instruction of it for the translator.
#[test]
fn an_instruction_whose_breakpoint_was_removed_is_executed_once() {
    let layout = &LAYOUTS[1];
    let mut memory = Memory::new(MEMORY).unwrap();
    let mut interpreter = Interpreter::new();
    let mut cpu = begin(layout, &mut memory, 50);
    let point = layout.code + 2;
    cpu.set_debugger_points(vec![point], Vec::new());
    assert_eq!(interpreter.run(&mut cpu, &mut memory, 100), Exit::Debugger);
    cpu.take_debugger_hit();
    cpu.set_debugger_points(Vec::new(), Vec::new());
    let before = cpu.instructions;
    assert_eq!((cpu.ip, interpreter.execute_next(&mut cpu, &mut memory, 1)), (point, None));
    assert_eq!((cpu.ip, cpu.instructions), (point + 1, before + 1));
}

/// The page fault of a fetch comes before the breakpoint at the instruction.
#[test]
fn the_guest_does_not_stop_where_it_cannot_fetch() {
    // JMP to another page, which is not present
    let code = [0xe9, 0xfb, 0x7f, 0, 0];
    for layout in &LAYOUTS[..2] {
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let finish = |engine: &mut dyn Engine, memory: &mut Memory| {
            let mut cpu = machine(memory, layout, &code, Random::new(series::SEED, 0));
            cpu.set_debugger_points(vec![layout.code + 0x8000], Vec::new());
            assert_eq!(engine.run(&mut cpu, memory, 4), Exit::Deadline);
            cpu
        };
        let cpu = assert_ends_alike(&mut translator, &mut memory, finish);
        assert_eq!((cpu.cr2, cpu.cpl()), (layout.code + 0x8000, 0));
    }
}
