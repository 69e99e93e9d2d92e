//! A program whose loads of segment registers are refused again and again, and sometimes allowed. The handler
//! logs what it sees and goes on after the instruction. The logs must be the same on both engines, wherever
//! execution stops in between.

use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::common::random::Random;
use crate::common::series::Series;
use crate::devices::run_in_pieces;
use crate::machine::*;
use crate::pair::{LEAVINGS, Pair, continue_handler_at};

/// Number of programs.
const CASES: u64 = 40;
/// Instructions of each that are executed, and loads in it.
const INSTRUCTIONS: u64 = 4000;
const LOADS: u32 = 8;
/// Bytes of each load with the NOPs after it.
const LOAD_SIZE: u8 = 4;
const HANDLER: u32 = CODE + 0x1000;
/// A selector, which is also that of a far pointer here.
const SELECTOR: u32 = DATA + 0x100;
/// The pointer to the next record, and the records: ES, DS, the general registers, the error code, EIP, CS and
/// EFLAGS.
const LOG: u32 = DATA + 4;
const RECORDS: u32 = 0x10_0000;
const RECORD_DWORDS: u32 = 14;

/// Selectors of code that cannot be read, of data that is not present, of an LDT, and of data whose accessed
/// bit is clear.
const UNREADABLE: u16 = FREE;
const ABSENT: u16 = FREE + 0x08;
const SYSTEM: u16 = FREE + 0x10;
const FRESH: u16 = FREE + 0x18;
/// Selectors beyond the end of the GDT, and in an LDT where there is none.
const BEYOND: u16 = 0x1000;
const LOCAL: u16 = 0x0c;

const SELECTORS: [u16; 11] =
    [0, 3, KERNEL_DATA, KERNEL_CODE, USER_DS, UNREADABLE, ABSENT, SYSTEM, FRESH | 3, BEYOND, LOCAL];

/// Returns a load with NOPs up to [`LOAD_SIZE`]. ESI is the address of [`SELECTOR`].
fn load(random: &mut Random) -> Vec<u8> {
    let mut code = match random.below(8) {
        0 => vec![0x8e, 0xe3],       // MOV FS, BX
        1 => vec![0x8e, 0xe9],       // MOV GS, CX
        2 => vec![0x8e, 0xc2],       // MOV ES, DX
        3 => vec![0x8e, 0xd8],       // MOV DS, AX
        4 => vec![0x8e, 0xd3],       // MOV SS, BX
        5 => vec![0x8e, 0x26],       // MOV FS, [ESI]
        6 => vec![0x0f, 0xb4, 0x3e], // LFS EDI, [ESI]
        _ => vec![0x66, 0x8e, 0xe1], // MOV FS, CX
    };
    code.resize(LOAD_SIZE.into(), 0x90);
    code
}

/// Returns a program that never ends. AX stays a selector of data, so that DS stays one.
fn program(loads: &[Vec<u8>]) -> Vec<u8> {
    let mut code = loads.concat();
    // XCHG EBX, ECX; XCHG ECX, EDX; ADD EDI, imm32
    code.extend([0x87, 0xcb, 0x87, 0xd1, 0x81, 0xc7, 0x67, 0x45, 0x23, 0x81]);
    let back = (code.len() as u8 + 2).wrapping_neg();
    code.extend([0xeb, back]); // JMP to the beginning
    code
}

/// Returns the handler of #GP, #NP and #SS.
fn handler_code() -> Vec<u8> {
    let log = LOG.to_le_bytes();
    [
        &[0x60, 0x1e, 0x06][..],               // PUSHAD; PUSH DS; PUSH ES
        &[0x8c, 0xd0, 0x8e, 0xd8, 0x8e, 0xc0], // MOV EAX, SS; MOV DS, EAX; MOV ES, EAX
        &[0xfc, 0x8b, 0x3d],                   // CLD; MOV EDI, [LOG]
        &log,
        &[0x89, 0xe6, 0xb9, RECORD_DWORDS as u8, 0, 0, 0], // MOV ESI, ESP; MOV ECX, 14
        &[0xf3, 0xa5, 0x89, 0x3d],                         // REP MOVSD; MOV [LOG], EDI
        &log,
        &[0x83, 0x44, 0x24, 0x2c, LOAD_SIZE], // ADD DWORD [ESP+2Ch], imm8
        &[0x07, 0x1f, 0x61, 0x83, 0xc4, 4, 0xcf], // POP ES; POP DS; POPAD; ADD ESP, 4; IRETD
    ]
    .concat()
}

fn begin(machine: &mut Machine, program: &[u8], is_user: bool, selectors: [u16; 4]) {
    machine.reset_processor();
    machine.enable_paging();
    for page in (0..4 << 20).step_by(0x1000) {
        let is_users = [USER_CODE, USER_STACK - 0x1000, DATA].contains(&page);
        machine.map(page, page, if is_users && is_user { P | RW | US } else { P | RW });
    }
    machine.set_descriptor(UNREADABLE, flat(0x99 | DPL3));
    machine.set_descriptor(ABSENT, flat((DATA_SEGMENT | DPL3) & !PRESENT));
    machine.set_descriptor(SYSTEM, flat(0x82 | DPL3));
    machine.set_descriptor(FRESH, flat(0x92 | DPL3));
    machine.put(if is_user { USER_CODE } else { CODE }, program);
    machine.put(HANDLER, &handler_code());
    for vector in [vector::GP, vector::NP, vector::SS] {
        continue_handler_at(machine, vector, HANDLER);
    }
    let [b, c, d, in_memory] = selectors;
    machine.put_dword(LOG, RECORDS);
    machine.put_dword(SELECTOR, in_memory.into());
    machine.put_dword(SELECTOR + 4, in_memory.into());
    if is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.set_cr0(Cr0::PE | Cr0::PG);
    cpu.set_eflags(Eflags::IF);
    let data = if is_user { USER_DS } else { KERNEL_DATA };
    for (register, value) in [(reg::AX, data), (reg::BX, b), (reg::CX, c), (reg::DX, d)] {
        cpu.set_gpr(register, value.into());
    }
    cpu.set_gpr(reg::SI, SELECTOR.into());
}

/// Runs both machines for [`INSTRUCTIONS`] instructions, in pieces of at most `longest`, and compares
/// everything. Returns the number of exceptions.
fn compare(pair: &mut Pair, random: &mut Random, longest: u32) -> u32 {
    run_in_pieces(pair, random, INSTRUCTIONS, longest);
    (pair.right.dword(LOG) - RECORDS) / (RECORD_DWORDS * 4)
}

#[test]
fn loads_are_refused_and_allowed_by_turns() {
    let Some(mut pair) = Pair::new() else { return };
    let series = Series::from_environment(CASES);
    let mut exceptions = [0; 2];
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let loads: Vec<_> = (0..LOADS).map(|_| load(&mut random)).collect();
        let program = program(&loads);
        let is_user = random.percent(50);
        let selectors = std::array::from_fn(|_| random.pick(&SELECTORS));
        for longest in [4, 70, 10_000] {
            pair.each(|machine| begin(machine, &program, is_user, selectors));
            exceptions[usize::from(is_user)] += compare(&mut pair, &mut random, longest);
        }
    }
    assert!(exceptions.iter().all(|number| *number > 1500), "{exceptions:?}");
}

#[test]
fn translated_code_is_not_left_for_refused_loads() {
    let Some(mut pair) = Pair::new() else { return };
    let mut random = Random::new(1, 1);
    for is_user in [false, true] {
        for selector in [BEYOND, LOCAL, UNREADABLE, SYSTEM] {
            // MOV FS, BX; MOV GS, CX; MOV ES, DX; MOV FS, [ESI], each with two NOPs
            let loads = [[0x8e, 0xe3], [0x8e, 0xe9], [0x8e, 0xc2], [0x8e, 0x26]]
                .map(|[first, second]| vec![first, second, 0x90, 0x90]);
            pair.each(|machine| begin(machine, &program(&loads), is_user, [selector; 4]));
            let before = LEAVINGS.map(|name| pair.counted(name));
            let exceptions = compare(&mut pair, &mut random, 1_000_000);
            assert!(exceptions > 200, "{selector:x}h: {exceptions}");
            for (name, before) in LEAVINGS.into_iter().zip(before) {
                let number = pair.counted(name) - before;
                assert!(
                    number < u64::from(exceptions / 4),
                    "{selector:x}h, user: {is_user}: {number} {name} for {exceptions} exceptions"
                );
            }
        }
    }
}

/// Where loads were refused again and again there is other code later, such as reads of segment registers.
#[test]
fn other_code_comes_where_loads_were_refused() {
    let Some(mut pair) = Pair::new() else { return };
    let mut random = Random::new(2, 1);
    for is_user in [false, true] {
        for second in [0xe3, 0xe9, 0xc2, 0xda, 0x26] {
            // MOV Sreg, r/m16, and MOV r/m16, Sreg
            let [loads, reads] =
                [0x8e, 0x8c].map(|opcode| program(&[vec![opcode, second, 0x90, 0x90]]));
            pair.each(|machine| begin(machine, &loads, is_user, [BEYOND; 4]));
            assert!(compare(&mut pair, &mut random, 1_000_000) > 100, "{second:x}h");
            pair.each(|machine| begin(machine, &reads, is_user, [BEYOND; 4]));
            assert_eq!(compare(&mut pair, &mut random, 1_000_000), 0, "{second:x}h");
        }
    }
}
