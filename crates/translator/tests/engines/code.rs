//! Programs that change themselves all the time. They change the next instruction, later ones and earlier
//! ones, through another linear address, by string instructions, by calls and pushes, across pages, and in a
//! page that also has data; they jump into the middle of instructions; and devices change them. Other
//! programs change code which is executed only as a part of other code.

use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::common::random::Random;
use crate::common::series::Series;
use crate::machine::*;
use crate::pair::{LITTLE, Pair};
use crate::undefined::Watch;

const CASES: u64 = if cfg!(debug_assertions) { 50 } else { 200 };

/// Number of slots for instructions in a program, and the bytes in each. NOPs fill the rest of a slot.
const SLOTS: u32 = 24;
const SLOT: u32 = 16;
/// Address of the first slot. The first slots are the last bytes of a page.
const START: u32 = USER_CODE + 0x1000 - 6 * SLOT;
/// Address at which the pages of the program are mapped a second time.
const ALIAS: u32 = 0x7_0000;
/// Addresses, beside the code, of data for operands and strings, and of the stack.
const OPERANDS: u32 = USER_CODE + 0x200;
const STACK_BESIDE: u32 = USER_CODE + 0x400;
/// Rounds of a program, and an upper bound of the instructions that are executed.
const ROUNDS: u8 = 8;
const EXECUTED: u64 = 1500;

const NOP: u8 = 0x90;

fn slot(number: u32) -> u32 {
    START + number * SLOT
}

/// Returns INC or DEC of a register other than ESP and EBP.
fn short(random: &mut Random) -> u8 {
    random.pick(&[0x40, 0x48]) | random.pick(&[0, 1, 2, 3, 6, 7])
}

/// Returns `address`, or its alias, as the target of a write.
fn target(random: &mut Random, address: u32) -> u32 {
    if random.percent(40) { address - USER_CODE + ALIAS } else { address }
}

/// Joins opcodes and numbers.
fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// Returns an instruction, or several that belong together, for slot `number`.
fn slot_code(random: &mut Random, number: u32) -> Vec<u8> {
    let other = random.below(SLOTS);
    // Often a slot that is executed soon.
    let other = if random.percent(50) { (number + random.below(3)) % SLOTS } else { other };
    let at = target(random, slot(other)).to_le_bytes();
    let within = slot(other) + random.below(5);
    let in_it = target(random, within).to_le_bytes();
    let shorts = [(); 4].map(|()| short(random));
    match random.below(15) {
        // Instructions that can be changed, or whose middle is another instruction: MOV EAX with four of
        // them.
        0..3 => bytes(&[&[short(random)], &shorts[..2]]),
        3 => bytes(&[&[0xb8], &shorts]),
        // MOV BYTE [a slot] with another instruction; MOV DWORD with four; the same inside of a slot.
        4 | 5 => bytes(&[&[0xc6, 0x05], &at, &shorts[..1]]),
        6 => bytes(&[&[0xc7, 0x05], &at, &shorts]),
        7 => bytes(&[&[0xc6, 0x05], &in_it, &shorts[..1]]),
        // MOV EDI, a slot; MOV AL, an instruction; MOV ECX, ...; REP STOSB
        8 => {
            let count = random.below(12) as u8;
            bytes(&[&[0xbf], &at, &[0xb0, shorts[0], 0x6a, count, 0x59, 0xf3, 0xaa]])
        }
        // MOV ESI, OPERANDS; MOV EDI, a slot; MOVSD
        9 => bytes(&[&[0xbe], &OPERANDS.to_le_bytes(), &[0xbf], &at, &[0xa5]]),
        // ADD [OPERANDS + 64], EAX
        10 => bytes(&[&[0x01, 0x05], &(OPERANDS + 64).to_le_bytes()]),
        // PUSH EAX; POP ECX, beside the code
        11 => bytes(&[&[0x50, 0x59]]),
        // JMP into the middle of a slot
        12 => {
            let to = slot(other) + random.below(4);
            let next = slot(number) + 5;
            bytes(&[&[0xe9], &to.wrapping_sub(next).to_le_bytes()])
        }
        // CALL the instruction before RET; JMP over both
        13 => bytes(&[&[0xe8, 2, 0, 0, 0, 0xeb, 2, shorts[0], 0xc3]]),
        // XOR BYTE [a slot], 1: changes the register, or makes another instruction.
        _ => bytes(&[&[0x80, 0x35], &at, &[1]]),
    }
}

/// Returns the code of all slots, with a loop around them.
fn program(random: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    for number in 0..SLOTS {
        let mut instruction = slot_code(random, number);
        instruction.resize(SLOT as usize, NOP);
        code.extend(instruction);
    }
    // DEC EBP; JNZ to the start; HLT
    code.extend([0x4d, 0x0f, 0x85]);
    let end = START + code.len() as u32 + 4;
    code.extend(START.wrapping_sub(end).to_le_bytes());
    code.push(0xf4);
    code
}

fn begin(machine: &mut Machine, code: &[u8], is_user: bool) {
    machine.reset_processor();
    machine.enable_paging();
    for page in (0..0x3000).step_by(0x1000) {
        machine.map(ALIAS + page, USER_CODE + page, P | RW | US);
    }
    machine.put(USER_CODE, &[0; 0x3000]);
    machine.put(START, code);
    machine.put(OPERANDS, &[0x42; 32]);
    if is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.set_eflags(Eflags::empty());
    cpu.set_gpr(reg::BP, ROUNDS.into());
    cpu.set_gpr(reg::SP, STACK_BESIDE.into());
    cpu.ip = START.into();
}

#[test]
fn programs_that_change_themselves() {
    let watched = || {
        let (interpreter, watch) = Watch::interpreter();
        Some((Pair::beside(interpreter, LITTLE)?, watch))
    };
    let Some((mut pair, mut watch)) = watched() else { return };
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        println!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}", series.seed);
        let mut random = series.random(case);
        let code = program(&mut random);
        let is_user = random.percent(50);
        pair.each(|machine| begin(machine, &code, is_user));
        let end = pair.right.cpu.instructions + EXECUTED;
        while pair.right.cpu.instructions < end {
            let left = end - pair.right.cpu.instructions;
            let asked = u64::from(1 + random.below(120)).min(left);
            let exits = [pair.right.run_for(asked), pair.tested.run_for(asked)];
            if watch.instructions_before().is_some() {
                break;
            }
            assert_eq!(exits[0], exits[1]);
            pair.compare_processors();
            if exits[0] != Exit::Deadline {
                break;
            }
            if random.percent(30) {
                let (at, byte) = (slot(random.below(SLOTS)), short(&mut random));
                pair.each(|machine| machine.put(at, &[byte]));
            }
        }
        if watch.instructions_before().is_none() {
            pair.compare();
        } else {
            // The machines may not be equal any more.
            (pair, watch) = watched().expect("there were some before");
        }
    }
}

/// Runs code at [`CODE`] that changes code at [`USER_CODE`]. EBX is 0, and EDI holds an address.
#[track_caller]
fn run_beside(code: &[u8], changed: &[(u32, &[u8])], edi: u32) -> Option<Pair> {
    let mut pair = Pair::new()?;
    pair.each(|machine| {
        machine.put(CODE, code);
        for (at, bytes) in changed {
            machine.put(*at, bytes);
        }
        machine.cpu.set_gpr(reg::BX, 0);
        machine.cpu.set_gpr(reg::DI, edi.into());
        machine.cpu.set_gpr(reg::SI, USER_CODE.into());
    });
    pair.run_to_halt();
    Some(pair)
}

/// Position-independent code finds its own address by a call of MOV register, [ESP]; RET, which is translated
/// as a part of the calling code. Here the called function changes to another register, again and again.
#[test]
fn a_function_that_only_loads_its_address_is_changed() {
    #[rustfmt::skip]
    let code = [
        // The function is called once by itself, so that its page is known to hold code.
        0x8d, 0x47, 0xff, //    LEA EAX, [EDI-1]
        0xff, 0xd0, //          CALL EAX
        0xb9, 5, 0, 0, 0, //    MOV ECX, 5
        0x31, 0xd2, //          XOR EDX, EDX
        0xff, 0xd6, //          CALL ESI
        0x01, 0xc3, //          ADD EBX, EAX
        0x6b, 0xdb, 3, //       IMUL EBX, EBX, 3
        0x01, 0xd3, //          ADD EBX, EDX
        0x80, 0x37, 0x10, //    XOR BYTE [EDI], 10h
        0x49, 0x75, 0xf1, //    DEC ECX; JNZ to the CALL
        0xf4, //                HLT
    ];
    // In the same page, but not in the same 64 bytes, and in another page.
    for function in [USER_CODE + 0x800, USER_CODE + 0x1800] {
        let distance = function - (USER_CODE + 10);
        // MOV EAX, 7; CALL the function; RET
        let caller = [&[0xb8, 7, 0, 0, 0, 0xe8][..], &distance.to_le_bytes(), &[0xc3]].concat();
        // MOV EAX, [ESP], and with bit 4 of its second byte set EDX; RET
        let thunk = [0x8b, 0x04, 0x24, 0xc3];
        let changed: [(u32, &[u8]); 2] = [(USER_CODE, &caller), (function, &thunk)];
        let Some(pair) = run_beside(&code, &changed, function + 1) else { return };
        let returned = USER_CODE + 10;
        let mut expected = (0_u32, 0_u32);
        for round in 0..5 {
            let eax = if round % 2 == 0 { returned } else { 7 };
            if round % 2 == 1 {
                expected.1 = returned;
            }
            expected.0 = expected.0.wrapping_add(eax).wrapping_mul(3).wrapping_add(expected.1);
        }
        assert_eq!((pair.tested.get(reg::BX), pair.tested.get(reg::DX)), expected);
    }
}

/// An instruction begins in a page that does not change and ends in one whose code keeps changing, including
/// the bytes of this instruction that are there.
#[test]
fn an_instruction_goes_on_in_a_page_that_keeps_changing() {
    #[rustfmt::skip]
    let code = [
        // Another function in the second page changes so often that the page counts as one that keeps
        // changing.
        0xb9, 200, 0, 0, 0, //              MOV ECX, 200
        0x8d, 0x87, 0x00, 0x01, 0, 0, //    LEA EAX, [EDI+100h]
        0xff, 0x40, 0x01, //                INC DWORD [EAX+1]
        0xff, 0xd0, //                      CALL EAX
        0x01, 0xd3, //                      ADD EBX, EDX
        0x49, 0x75, 0xf0, //                DEC ECX; JNZ to the LEA
        // Now the immediate operand changes, in the instruction that crosses into this page.
        0xb9, 20, 0, 0, 0, //               MOV ECX, 20
        0x8d, 0x47, 0xfd, //                LEA EAX, [EDI-3]
        0xff, 0xd0, //                      CALL EAX
        0x6b, 0xdb, 3, //                   IMUL EBX, EBX, 3
        0x01, 0xd3, //                      ADD EBX, EDX
        0xfe, 0x07, //                      INC BYTE [EDI]
        0x49, 0x75, 0xf1, //                DEC ECX; JNZ to the LEA
        0xf4, //                            HLT
    ];
    let second = USER_CODE + 0x1000;
    // MOV EDX, 44332211h; RET. The last two bytes of the number are in the second page.
    let crossing = [0xba, 0x11, 0x22, 0x33, 0x44, 0xc3];
    // MOV EDX, 0; RET
    let other = [0xba, 0, 0, 0, 0, 0xc3];
    let changed: [(u32, &[u8]); 2] = [(second - 3, &crossing), (second + 0x100, &other)];
    let Some(pair) = run_beside(&code, &changed, second) else { return };
    let sum = (1..=200).sum::<u32>();
    let expected = (0..20)
        .fold(sum, |sum, round| sum.wrapping_mul(3).wrapping_add(0x4433_2211 + (round << 16)));
    assert_eq!(pair.tested.get(reg::BX), expected);
}
