//! Programs that keep changing themselves. They change the next instruction, later ones and earlier ones, through
//! another linear address, by string instructions, by calls and pushes, and across pages; and they jump into the middle
//! of instructions. Other tests count what a change costs.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};

use crate::assert_ends_alike;
use crate::counts::counter;
use crate::machine::{ALIAS, LAYOUTS, Layout, MEMORY, PAGE, machine};
use crate::maker::SLOT;
use crate::random::Random;
use crate::series;
use crate::support::translator;

/// Number of slots for instructions in a program. NOPs fill the rest of a slot.
const SLOTS: u64 = 24;
/// The offset of the first slot. The first slots are the last bytes of a page.
const START: u64 = PAGE - 6 * SLOT;
const NOP: u8 = 0x90;

/// Returns INC or DEC of a register of 32 bits other than ESP.
fn short(random: &mut Random) -> [u8; 2] {
    [0xff, random.pick(&[0xc0, 0xc8]) | random.pick(&[0, 1, 2, 3, 5, 6, 7])]
}

/// Returns two of them.
fn shorts(random: &mut Random) -> Vec<u8> {
    [short(random), short(random)].concat()
}

/// Returns an instruction, or several that belong together, for slot `number`.
fn slot_code(random: &mut Random, number: u64) -> Vec<u8> {
    let here = START + number * SLOT;
    let other = u64::from(random.below(SLOTS as u32));
    // Often a slot that is executed soon.
    let soon = (number + u64::from(random.below(3))) % SLOTS;
    let slot = START + SLOT * if random.percent(50) { soon } else { other };
    let in_slot = slot + u64::from(random.below(6));
    let alias = if random.percent(40) { ALIAS } else { 0 };
    // An operand at `target` of the instruction in this slot that ends at the offset `end`.
    let relative = |target: u64, end: u64| {
        let from = target.wrapping_add(alias).wrapping_sub(here + end);
        (from as u32).to_le_bytes()
    };
    let whole = |opcode: &[u8], target: u64, rest: &[u8]| {
        let end = (opcode.len() + 4 + rest.len()) as u64;
        [opcode, &relative(target, end), rest].concat()
    };
    match random.below(16) {
        // Instructions that can be changed, or whose middle is another instruction: MOV EAX, and MOV R9D, with two of
        // them.
        0..3 => shorts(random),
        3 => [vec![0xb8], shorts(random)].concat(),
        4 => [vec![0x41, 0xb9], shorts(random)].concat(),
        // MOV WORD [a slot] with another instruction; MOV DWORD with two; MOV BYTE inside of a slot.
        5 | 6 => whole(&[0x66, 0xc7, 0x05], slot, &short(random)),
        7 => whole(&[0xc7, 0x05], slot, &shorts(random)),
        8 => whole(&[0xc6, 0x05], in_slot, &[short(random)[1]]),
        // INC DWORD inside of a slot, which may be a number
        9 => whole(&[0xff, 0x05], slot + 1 + u64::from(random.below(2)), &[]),
        // LEA RDI, a slot; MOV AL, half of an instruction; MOV ECX, ...; REP STOSB
        10 => {
            let count = random.below(12) as u8;
            let rest = [0xb0, short(random)[1], 0x6a, count, 0x59, 0xf3, 0xaa];
            [whole(&[0x48, 0x8d, 0x3d], slot, &[]), rest.to_vec()].concat()
        }
        // LEA RSI, another slot; LEA RDI, a slot; MOVSQ
        11 => {
            let from = START + SLOT * other;
            let to = relative(slot, 14);
            [&whole(&[0x48, 0x8d, 0x35], from, &[])[..], &[0x48, 0x8d, 0x3d], &to, &[0x48, 0xa5]]
                .concat()
        }
        // PUSH RAX; POP RCX
        12 => vec![0x50, 0x59],
        // JMP into the middle of a slot
        13 => {
            let to = in_slot.wrapping_sub(here + 5) as u32;
            [&[0xe9][..], &to.to_le_bytes()].concat()
        }
        // CALL the instruction before RET; JMP over both
        14 => [&[0xe8, 2, 0, 0, 0, 0xeb, 3][..], &short(random), &[0xc3]].concat(),
        // XOR BYTE [a slot + 1], 8: INC becomes DEC, or another instruction is made.
        _ => whole(&[0x80, 0x35], slot + 1, &[8]),
    }
}

/// Returns a program that changes itself in each round of an endless loop.
pub(crate) fn program(random: &mut Random) -> Vec<u8> {
    // JMP to the first slot
    let mut code = vec![0xe9];
    code.extend((START as u32 - 5).to_le_bytes());
    code.resize(START as usize, NOP);
    for number in 0..SLOTS {
        let mut instruction = slot_code(random, number);
        instruction.resize(SLOT as usize, NOP);
        code.extend(instruction);
    }
    code.push(0xe9);
    let end = code.len() as u64 + 4;
    code.extend((START.wrapping_sub(end) as u32).to_le_bytes());
    code
}

/// How often code is changed and executed.
const TIMES: u32 = 5000;
/// The offset of the code that changes, in another page than the code that changes it.
const FUNCTION: u64 = PAGE + 0x20;

/// Returns a program that executes `change` and then the function, `TIMES` times.
fn changing_a_function(change: &[u8], function: &[u8]) -> Vec<u8> {
    // MOV R15D, TIMES; the change; CALL the function; LEA RBP, [RBP + RAX]; DEC R15D; JNZ to the change; JMP to itself
    let mut code = vec![0x41, 0xbf];
    code.extend(TIMES.to_le_bytes());
    code.extend(change);
    code.push(0xe8);
    let end = code.len() as u64 + 4;
    code.extend((FUNCTION.wrapping_sub(end) as u32).to_le_bytes());
    code.extend([0x48, 0x8d, 0x6c, 0x05, 0, 0x41, 0xff, 0xcf]);
    code.extend([0x75, (-15 - change.len() as i8) as u8, 0xeb, 0xfe]);
    code.resize(FUNCTION as usize, NOP);
    code.extend(function);
    code
}

/// Returns an instruction of `opcode` with an operand at `offset` in the program, `rest` behind it, where the function is
/// changed.
fn change(opcode: &[u8], offset: u64, rest: &[u8]) -> Vec<u8> {
    let end = 6 + (opcode.len() + 4 + rest.len()) as u64;
    [opcode, &(offset.wrapping_sub(end) as u32).to_le_bytes(), rest].concat()
}

/// Executes `code` in each layout on both engines, and calls `check` with the translator.
fn execute(code: &[u8], check: impl Fn(&dyn Engine)) {
    for layout in &LAYOUTS[..3] {
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let finish = |engine: &mut dyn Engine, memory: &mut Memory| -> Cpu {
            let mut cpu = machine(memory, layout, code, Random::new(series::SEED, 0));
            assert_eq!(engine.run(&mut cpu, memory, 20 * u64::from(TIMES)), Exit::Deadline);
            cpu
        };
        let cpu = assert_ends_alike(&mut translator, &mut memory, finish);
        assert_eq!(cpu.gpr(15), 0, "it has ended");
        check(&translator);
    }
}

#[track_caller]
fn assert_counts(engine: &dyn Engine, most: &[(&str, u64)]) {
    for (name, most) in most {
        let count = counter(engine, name);
        assert!(count <= *most, "{name}: {count}");
    }
}

#[test]
fn a_number_in_code_that_keeps_changing_costs_no_signals_and_no_blocks() {
    // INC DWORD [the number]. MOV EAX or R8D, number; RET, with MOV RAX, R8 before it
    let functions: [&[u8]; 2] =
        [&[0xb8, 0, 0, 0, 0, 0xc3], &[0x41, 0xb8, 0, 0, 0, 0, 0x4c, 0x89, 0xc0, 0xc3]];
    for function in functions {
        let number = FUNCTION + u64::from(function[0] == 0x41) + 1;
        let code = changing_a_function(&change(&[0xff, 0x05], number, &[]), function);
        execute(&code, |engine| {
            assert_counts(
                engine,
                &[
                    ("signals", 60),
                    ("instructions left to the interpreter", 60),
                    ("entries to translated code", 150),
                    ("blocks translated", 60),
                    ("translations without proof", 0),
                ],
            );
        });
    }
}

#[test]
fn code_that_changes_to_and_fro_costs_no_signals_and_no_blocks() {
    // XOR BYTE [the function + 1], 8: INC EAX; RET, or DEC EAX; RET
    let code = changing_a_function(&change(&[0x80, 0x35], FUNCTION + 1, &[8]), &[0xff, 0xc0, 0xc3]);
    execute(&code, |engine| {
        assert_counts(
            engine,
            &[
                ("signals", 60),
                ("instructions left to the interpreter", 60),
                ("blocks translated", 60),
                ("translations without proof", 0),
            ],
        );
    });
}

#[test]
fn code_that_is_new_each_time_costs_no_signals() {
    // INC DWORD [the number]. MOV RAX, number, of 64 bits; RET
    let function = [0x48, 0xb8, 0, 0, 0, 0, 1, 0, 0, 0, 0xc3];
    let code = changing_a_function(&change(&[0xff, 0x05], FUNCTION + 2, &[]), &function);
    execute(&code, |engine| {
        assert_counts(
            engine,
            &[
                ("signals", 60),
                ("instructions left to the interpreter", 60),
                ("blocks translated", u64::from(TIMES) + 60),
                ("translations without proof", 0),
            ],
        );
    });
}

/// The number in the code is loaded into each register, RSP among them, and neither call nor push is near.
#[test]
fn a_number_that_keeps_changing_is_loaded_into_any_register() {
    for number in 0..16_u8 {
        // INC DWORD [the number]; JMP to the function; the function: MOV register, number; JMP back
        let mut code = vec![0xff, 0x05];
        let prefix: &[u8] = if number < 8 { &[] } else { &[0x41] };
        let operand = FUNCTION + prefix.len() as u64 + 1;
        code.extend((operand as u32 - 6).to_le_bytes());
        code.push(0xe9);
        code.extend((FUNCTION as u32 - 11).to_le_bytes());
        code.resize(FUNCTION as usize, NOP);
        code.extend(prefix);
        code.extend([0xb8 | number & 7, 0xf0, 0xff, 0xff, 0xff, 0xe9]);
        let end = code.len() as u32 + 4;
        code.extend(0_u32.wrapping_sub(end).to_le_bytes());
        for layout in &LAYOUTS[..2] {
            let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
            let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
            for executed in (4..4000).step_by(4) {
                assert_eq!(translator.run(&mut cpu, &mut memory, 4), Exit::Deadline);
                let now = 0xffff_fff0_u32.wrapping_add(executed / 4);
                assert_eq!((cpu.ip, cpu.gpr(number)), (layout.code, now.into()));
            }
        }
    }
}

/// A device, or another part of the machine, writes to code of a page that keeps changing.
#[test]
fn code_that_keeps_changing_may_be_written_to_from_outside() {
    let function = [0xb8, 0, 0, 0, 0, 0xc3];
    let code = changing_a_function(&change(&[0xff, 0x05], FUNCTION + 1, &[]), &function);
    let layout: &Layout = &LAYOUTS[1];
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let finish = |engine: &mut dyn Engine, memory: &mut Memory| {
        let mut cpu = machine(memory, layout, &code, Random::new(series::SEED, 0));
        for number in 0..50_u8 {
            assert_eq!(engine.run(&mut cpu, memory, 997), Exit::Deadline);
            // ADD EAX, number; RET
            memory.write(crate::machine::CODE + FUNCTION, &[0x83, 0xc0, number, 0xc3]);
        }
        cpu
    };
    let cpu = assert_ends_alike(&mut translator, &mut memory, finish);
    assert_ne!(cpu.gpr(reg::BP), layout.stack - 0x400);
}

/// Repeated instructions of a page that keeps changing, which write elsewhere.
#[test]
fn a_repeated_instruction_in_code_that_keeps_changing_is_executed_at_once() {
    // INC DWORD [the number], where the function is: MOV EAX, number; MOV RDI, RBX; MOV ECX, 64; CLD or STD;
    // REP STOSQ; CLD; RET
    for direction in [0xfc, 0xfd] {
        let function = [
            0xb8, 0, 0, 0, 0, 0x48, 0x89, 0xdf, 0xb9, 64, 0, 0, 0, direction, 0xf3, 0x48, 0xab,
            0xfc, 0xc3,
        ];
        let code = changing_a_function(&change(&[0xff, 0x05], FUNCTION + 1, &[]), &function);
        let layout = &LAYOUTS[0];
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
        cpu.set_gpr(reg::BX, layout.data + 0x1400);
        let instructions = 80 * u64::from(TIMES);
        assert_eq!(translator.run(&mut cpu, &mut memory, instructions), Exit::Deadline);
        assert_eq!(cpu.gpr(15), 0, "it has ended");
        let steps = counter(&translator, "instructions left to the interpreter");
        assert!(steps <= 4 * u64::from(TIMES), "{steps}");
    }
}

/// A page that has changed again and again, and changes no longer, holds code like any other.
#[test]
fn code_that_changes_no_longer_is_like_any_other() {
    // INC DWORD [the number]. MOV EAX, number; RET; then the loop: MOV RDI, RBX; MOV ECX, 512; REP STOSQ; JMP
    let function =
        [0xb8, 0, 0, 0, 0, 0xc3, 0x48, 0x89, 0xdf, 0xb9, 0, 2, 0, 0, 0xf3, 0x48, 0xab, 0xeb, 0xf3];
    let mut code = changing_a_function(&change(&[0xff, 0x05], FUNCTION + 1, &[]), &function);
    let end = code.windows(2).position(|bytes| bytes == [0xeb, 0xfe]).expect("it ends so");
    code[end] = 0xe9;
    code[end + 1..end + 5].copy_from_slice(&(FUNCTION as u32 + 6 - (end as u32 + 5)).to_le_bytes());
    let layout = &LAYOUTS[0];
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    let mut cpu = machine(&mut memory, layout, &code, Random::new(series::SEED, 0));
    cpu.set_gpr(reg::BX, layout.data);
    let mut steps = [0; 2];
    for steps in &mut steps {
        // The engine looks around after each slice.
        for _ in 0..100 {
            assert_eq!(translator.run(&mut cpu, &mut memory, 1 << 20), Exit::Deadline);
        }
        *steps = counter(&translator, "instructions left to the interpreter");
    }
    assert!(steps[0] > 10_000, "{steps:?}: it kept changing");
    assert!(steps[1] - steps[0] < 300, "{steps:?}");
}
