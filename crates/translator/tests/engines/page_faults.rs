//! A program whose accesses to memory raise #PF again and again. The handler logs what it sees, and then either
//! goes on after the instruction or gives the page other rights and has the instruction executed again. The
//! logs must be the same on both engines, wherever execution stops in between.

use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::common::random::Random;
use crate::common::series::Series;
use crate::devices::run_in_pieces;
use crate::machine::*;
use crate::pair::{LEAVINGS, Pair, continue_handler_at};

/// Number of programs.
const CASES: u64 = 40;
/// Instructions of each that are executed, and accesses in it.
const INSTRUCTIONS: u64 = 4000;
const ACCESSES: u32 = 12;
/// Bytes of each access with the NOPs after it.
const ACCESS_SIZE: u8 = 7;
const HANDLER: u32 = CODE + 0x1000;
/// The page that the program accesses, after which another one is always mapped.
const PAGE: u32 = 0x6_0000;
/// The accessed and dirty bits of its entry, which are always set: a write that is refused may set the first.
const USED: u32 = 0x60;
/// In a page for the supervisor alone: the pointer to the next record, and the state of the random numbers.
const LOG: u32 = DATA + 4;
const SEED: u32 = DATA + 8;
const RECORDS: u32 = 0x10_0000;

/// The state in which a program runs.
#[derive(Debug, Clone, Copy)]
struct State {
    is_user: bool,
    flags: Eflags,
    cr0: Cr0,
    cr4: Cr4,
    gate: u8,
    /// Whether the handler always goes on after the instruction.
    skips: bool,
}

const SUPERVISOR: State = State {
    is_user: false,
    flags: Eflags::IF,
    cr0: Cr0::WP,
    cr4: Cr4::empty(),
    gate: INTERRUPT_GATE,
    skips: true,
};
const USER: State = State { is_user: true, ..SUPERVISOR };

/// Returns an access to memory with NOPs up to [`ACCESS_SIZE`]. ESI is [`PAGE`], and EDI is 1.
fn access(random: &mut Random) -> Vec<u8> {
    let page = PAGE.to_le_bytes();
    let mut code = match random.below(12) {
        0 => vec![0x8a, 0x06],                    // MOV AL, [ESI]
        1 => vec![0x88, 0x26],                    // MOV [ESI], AH
        2 => vec![0x8b, 0x5e, 4],                 // MOV EBX, [ESI+4]
        3 => vec![0x66, 0x89, 0x46, 2],           // MOV [ESI+2], AX
        4 => vec![0x0f, 0xb6, 0x16],              // MOVZX EDX, BYTE [ESI]
        5 => vec![0xc7, 0x06, 1, 2, 3, 4],        // MOV DWORD [ESI], imm32
        6 => [&[0xa1], &page[..]].concat(),       // MOV EAX, [PAGE]
        7 => [&[0xa2], &page[..]].concat(),       // MOV [PAGE], AL
        8 => vec![0x8b, 0x04, 0x7e],              // MOV EAX, [ESI+EDI*2]
        9 => vec![0x89, 0x04, 0x3e],              // MOV [ESI+EDI], EAX: not aligned
        10 => vec![0x8b, 0x8e, 0xfe, 0x0f, 0, 0], // MOV ECX, [ESI+0FFEh]: in two pages
        _ => vec![0x01, 0x06],                    // ADD [ESI], EAX
    };
    code.resize(ACCESS_SIZE.into(), 0x90);
    code
}

/// Returns a program that never ends.
fn program(accesses: &[Vec<u8>]) -> Vec<u8> {
    let mut code = accesses.concat();
    // ADD EAX, imm32
    code.extend([0x05, 0x67, 0x45, 0x23, 0x81]);
    let back = (code.len() as u8 + 2).wrapping_neg();
    code.extend([0xeb, back]); // JMP to the beginning
    code
}

/// Returns the handler of #PF and #AC.
fn handler_code(skips: bool) -> Vec<u8> {
    let [log, seed, entry, page] = [LOG, SEED, Machine::pte(PAGE), PAGE].map(u32::to_le_bytes);
    let bits = (PAGE | USED).to_le_bytes();
    let skip = [0x83, 0x44, 0x24, 0x24, ACCESS_SIZE]; // ADD DWORD [ESP+24h], imm8
    let change = [
        &[0x83, 0xe0, 7, 0x0d][..], // AND EAX, 7; OR EAX, imm32
        &bits,
        &[0xa3], // MOV [the entry], EAX
        &entry,
        &[0x0f, 0x01, 0x3d], // INVLPG [PAGE]
        &page,
    ]
    .concat();
    [
        &[0x60, 0xfc, 0x8b, 0x3d][..], // PUSHAD; CLD; MOV EDI, [LOG]
        &log,
        &[0x0f, 0x20, 0xd0, 0xab],        // MOV EAX, CR2; STOSD
        &[0x89, 0xe6, 0xb9, 12, 0, 0, 0], // MOV ESI, ESP; MOV ECX, 12
        &[0xf3, 0xa5, 0x89, 0x3d],        // REP MOVSD; MOV [LOG], EDI
        &log,
        &[0x69, 0x05], // IMUL EAX, [SEED], imm32
        &seed,
        &0x9e37_79b1_u32.to_le_bytes(),
        &[0x05, 0x15, 0x7c, 0x4a, 0x7f, 0xa3], // ADD EAX, imm32; MOV [SEED], EAX
        &seed,
        &[0xc1, 0xe8, 28], // SHR EAX, 28
        // TEST AL, imm8; JNZ to the code that skips the instruction
        &[0xa8, if skips { 0 } else { 8 }, if skips { 0x74 } else { 0x75 }, change.len() as u8 + 2],
        &change,
        &[0xeb, skip.len() as u8], // JMP over it
        &skip,
        &[0x61, 0x83, 0xc4, 4, 0xcf], // POPAD; ADD ESP, 4; IRETD
    ]
    .concat()
}

fn begin(machine: &mut Machine, program: &[u8], state: State, seed: u32, rights: u32) {
    machine.reset_processor();
    machine.enable_paging();
    for page in (0..4 << 20).step_by(0x1000) {
        let is_users = [USER_CODE, USER_STACK - 0x1000, PAGE + 0x1000].contains(&page);
        // The tables must not change without the processor's noticing, but the one entry does.
        let rights = if is_users && state.is_user { P | RW | US } else { P | RW };
        machine.map(page, page, rights);
    }
    machine.map(PAGE, PAGE, rights | USED);
    machine.put(if state.is_user { USER_CODE } else { CODE }, program);
    machine.put(HANDLER, &handler_code(state.skips));
    for vector in [vector::PF, vector::AC] {
        continue_handler_at(machine, vector, HANDLER);
        machine.set_gate(vector, KERNEL_CODE, state.gate);
    }
    machine.put_dword(LOG, RECORDS);
    machine.put_dword(SEED, seed);
    machine.put(PAGE, &[0; 0x1000]);
    if state.is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.set_cr4(state.cr4);
    cpu.set_cr0(Cr0::PE | Cr0::PG | state.cr0);
    cpu.set_eflags(state.flags);
    cpu.set_gpr(reg::SI, PAGE.into());
    cpu.set_gpr(reg::DI, 1);
}

/// Runs both machines for [`INSTRUCTIONS`] instructions, in pieces of at most `longest`, and compares
/// everything. Returns the number of exceptions.
fn compare(pair: &mut Pair, random: &mut Random, longest: u32) -> u32 {
    run_in_pieces(pair, random, INSTRUCTIONS, longest);
    (pair.right.dword(LOG) - RECORDS) / (13 * 4)
}

#[test]
fn pages_come_and_go() {
    let Some(mut pair) = Pair::new() else { return };
    let series = Series::from_environment(CASES);
    let mut exceptions = [0; 2];
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let accesses: Vec<_> = (0..ACCESSES).map(|_| access(&mut random)).collect();
        let program = program(&accesses);
        let is_user = random.percent(50);
        let state = State {
            is_user,
            flags: if random.percent(20) { Eflags::IF | Eflags::AC } else { Eflags::IF },
            cr0: random.pick(&[Cr0::empty(), Cr0::WP, Cr0::WP | Cr0::AM]),
            cr4: random.pick(&[Cr4::empty(), Cr4::PSE, Cr4::SMAP]),
            gate: random.pick(&[INTERRUPT_GATE, TRAP_GATE]),
            skips: random.percent(30),
        };
        let seed = random.bits();
        let rights = random.below(8);
        for longest in [4, 70, 10_000] {
            pair.each(|machine| begin(machine, &program, state, seed, rights));
            exceptions[usize::from(is_user)] += compare(&mut pair, &mut random, longest);
        }
    }
    assert!(exceptions.iter().all(|number| *number > 1500), "{exceptions:?}");
}

#[test]
fn translated_code_is_not_left_for_page_faults() {
    let Some(mut pair) = Pair::new() else { return };
    let mut random = Random::new(1, 1);
    for (state, rights) in [
        (SUPERVISOR, 0),
        (USER, 0),
        (USER, P | RW), // a page of the supervisor
        (USER, US | RW),
    ] {
        // MOV AL, [ESI] and MOV [ESI], AH, with NOPs
        let accesses = [[0x8a, 0x06], [0x88, 0x26]].map(|code| {
            let mut code = code.to_vec();
            code.resize(ACCESS_SIZE.into(), 0x90);
            code
        });
        pair.each(|machine| begin(machine, &program(&accesses), state, 1, rights));
        let before = LEAVINGS.map(|name| pair.counted(name));
        let exceptions = compare(&mut pair, &mut random, 1_000_000);
        assert!(exceptions > 200, "{state:?}: {exceptions}");
        for (name, before) in LEAVINGS.into_iter().zip(before) {
            let number = pair.counted(name) - before;
            assert!(
                number < u64::from(exceptions / 20),
                "{state:?}: {number} {name} for {exceptions} exceptions"
            );
        }
    }
}
