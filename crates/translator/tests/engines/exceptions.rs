//! A program that raises an exception again and again, by an instruction that always raises it. The handler
//! logs what it sees and goes on after the instruction. The logs must be the same on both engines, wherever
//! execution stops in between, and the translator must not leave its code for each of them.

use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::machine::*;
use crate::pair::{Pair, continue_handler_at};

const UD: u8 = 6;
const GP: u8 = 13;
/// The handlers of #UD and #GP.
const HANDLERS_HERE: [u32; 2] = [CODE + 0x1000, CODE + 0x1100];
/// The address of the pointer to the supervisor's next record.
const LOG: u32 = DATA + 4;
/// The supervisor's records, in pages that users may not access, and what each of them has.
const RECORDS: u32 = 0x5_2000;
const RECORD: u32 = 14 * 4;
/// What the program sees.
const PROGRAM_LOG: u32 = 0x6_0000;

const ROUNDS: u32 = 24;
/// More instructions than everything executes.
const LIMIT: u64 = 20_000;

const UD2: &[u8] = &[0x0f, 0x0b];
const CLI: &[u8] = &[0xfa];
const STI: &[u8] = &[0xfb];

/// Instructions that users may not execute.
const FORBIDDEN: [&[u8]; 17] = [
    CLI,
    STI,
    &[0xf4],                   // HLT
    &[0x0f, 0x06],             // CLTS
    &[0x0f, 0x01, 0xf0],       // LMSW AX
    &[0x0f, 0x01, 0x38],       // INVLPG [EAX]
    &[0x0f, 0x08],             // INVD
    &[0x0f, 0x09],             // WBINVD
    &[0x0f, 0x32],             // RDMSR
    &[0x0f, 0x30],             // WRMSR
    &[0x0f, 0x01, 0x10],       // LGDT [EAX]
    &[0x66, 0x0f, 0x01, 0x18], // LIDT [EAX], with a 16-bit operand
    &[0x0f, 0x00, 0xd0],       // LLDT AX
    &[0x0f, 0x00, 0x18],       // LTR [EAX]
    &[0x0f, 0x35],             // SYSEXIT
    &[0x0f, 0x22, 0xd8],       // MOV CR3, EAX
    &[0x0f, 0x21, 0xe0],       // MOV EAX, DR4
];

/// The state in which the program runs.
#[derive(Clone, Copy)]
struct State {
    is_user: bool,
    flags: Eflags,
    cr4: Cr4,
    gate: u8,
}

const SUPERVISOR: State =
    State { is_user: false, flags: Eflags::IF, cr4: Cr4::empty(), gate: INTERRUPT_GATE };
const USER: State = State { is_user: true, ..SUPERVISOR };

/// The program: in each of EBP rounds it executes the instruction and logs the flags. In the end it divides
/// by zero.
fn program(instruction: &[u8]) -> Vec<u8> {
    // STC; the instruction; PUSHFD; POP EAX; STOSD; XOR EAX, EAX; DEC EBP
    let code = [&[0xf9], instruction, &[0x9c, 0x58, 0xab, 0x31, 0xc0, 0x4d]].concat();
    let back = (code.len() as u8 + 2).wrapping_neg();
    [&code[..], &[0x75, back, 0xf6, 0xf0]].concat() // JNZ to the first one; DIV AL
}

/// Logs the frame, and returns to the address EBX bytes after the instruction.
fn handler_code(has_error_code: bool) -> Vec<u8> {
    let log = LOG.to_le_bytes();
    [
        &[0x60, 0xfc, 0x8b, 0x3d][..], // PUSHAD; CLD; MOV EDI, [LOG]
        &log,
        &[0x89, 0xe6],                      // MOV ESI, ESP
        &[0xb9, RECORD as u8 / 4, 0, 0, 0], // MOV ECX, RECORD / 4
        &[0xf3, 0xa5, 0x89, 0x3d],          // REP MOVSD; MOV [LOG], EDI
        &log,
        &[0x61],                                             // POPAD
        if has_error_code { &[0x83, 0xc4, 4] } else { &[] }, // ADD ESP, 4
        &[0x01, 0x1c, 0x24, 0xcf],                           // ADD [ESP], EBX; IRETD
    ]
    .concat()
}

fn begin(machine: &mut Machine, instruction: &[u8], state: State) {
    machine.reset_processor();
    machine.enable_paging();
    for page in [RECORDS, RECORDS + 0x1000, INNER_STACK - 0x1000, STACK - 0x1000, GDT, IDT, TSS] {
        machine.map(page, page, P | RW);
    }
    machine.put(if state.is_user { USER_CODE } else { CODE }, &program(instruction));
    for (at, vector) in HANDLERS_HERE.into_iter().zip([UD, GP]) {
        machine.put(at, &handler_code(vector == GP));
        continue_handler_at(machine, vector, at);
        machine.set_gate(vector, KERNEL_CODE, state.gate);
    }
    machine.put_dword(LOG, RECORDS);
    machine.accesses.clear();
    if state.is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.set_cr4(state.cr4);
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP);
    cpu.set_eflags(state.flags);
    cpu.set_gpr(reg::BP, ROUNDS.into());
    cpu.set_gpr(reg::BX, instruction.len() as u64);
    cpu.set_gpr(reg::DI, PROGRAM_LOG.into());
}

/// Runs the program to its end in slices of several lengths. Returns the number of exceptions.
#[track_caller]
fn compare(pair: &mut Pair, instruction: &[u8], state: State) -> u32 {
    for slice in [1, 2, 3, 7, 50, 333, LIMIT, LIMIT] {
        pair.each(|machine| begin(machine, instruction, state));
        assert_eq!(pair.run_in_slices(slice, LIMIT), Exit::Halt, "{}", pair.reports());
        assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
    }
    (pair.right.dword(LOG) - RECORDS) / RECORD
}

/// Returns how many signals there are, and how many instructions are left to the interpreter.
fn costs(pair: &mut Pair, instruction: &[u8], state: State) -> [u64; 2] {
    let counted = ["signals", "instructions left to the interpreter"];
    let before = counted.map(|name| pair.counted(name));
    pair.each(|machine| begin(machine, instruction, state));
    while pair.each(|machine| machine.run_for(LIMIT)) != Exit::Halt {}
    [0, 1].map(|at| pair.counted(counted[at]) - before[at])
}

#[test]
fn exceptions_stay_in_translated_code() {
    let by_users = FORBIDDEN.map(|instruction| (instruction, USER));
    let undefined = [(UD2, SUPERVISOR), (UD2, USER)];
    for (instruction, state) in undefined.into_iter().chain(by_users) {
        for gate in [INTERRUPT_GATE, TRAP_GATE] {
            let Some(mut pair) = Pair::new() else { return };
            let state = State { gate, ..state };
            assert_eq!(compare(&mut pair, instruction, state), ROUNDS, "{instruction:x?}");
            let [signals, left] = costs(&mut pair, instruction, state);
            assert!(signals < 12, "{signals} signals with {instruction:x?}");
            assert!(left < u64::from(ROUNDS) / 2, "{left} instructions with {instruction:x?}");
        }
    }
}

/// Users execute CLI and STI where IOPL or CR4.PVI allows it.
#[test]
fn users_may_change_interrupt_flags() {
    let Some(mut pair) = Pair::new() else { return };
    for instruction in [CLI, STI] {
        for (flags, cr4, allowed) in [
            (Eflags::IF, Cr4::empty(), false),
            (Eflags::IF | Eflags::IOPL, Cr4::empty(), true),
            (Eflags::IF | Eflags::from_bits_retain(2 << 12), Cr4::empty(), false),
            (Eflags::IF, Cr4::PVI, true),
            (Eflags::IF | Eflags::IOPL, Cr4::PVI, true),
            (Eflags::IF, Cr4::empty(), false),
        ] {
            let exceptions = compare(&mut pair, instruction, State { flags, cr4, ..USER });
            assert_eq!(exceptions, if allowed { 0 } else { ROUNDS }, "{flags:?} {cr4:?}");
        }
    }
}

/// The gate is a 16-bit one, or leads to the null segment, or is not present.
#[test]
fn other_gates() {
    for gate in [0x86, 0x0e, 0x85] {
        for (instruction, state) in [(UD2, SUPERVISOR), (UD2, USER), (CLI, USER)] {
            let Some(mut pair) = Pair::new() else { return };
            compare(&mut pair, instruction, state);
            for slice in [1, 3, LIMIT] {
                pair.each(|machine| begin(machine, instruction, State { gate, ..state }));
                pair.each(|machine| machine.run_for(slice));
                pair.compare_processors();
                pair.each(|machine| machine.run_for(200));
                pair.compare();
            }
        }
    }
}

#[test]
fn interrupts_at_every_instruction() {
    const EXTERNAL: u8 = 0x40;
    let Some(mut pair) = Pair::new() else { return };
    for (instruction, state) in [(UD2, SUPERVISOR), (UD2, USER), (CLI, USER)] {
        let state = State { gate: TRAP_GATE, ..state };
        for before in 300..380 {
            pair.each(|machine| begin(machine, instruction, state));
            pair.each(|machine| machine.put(handler(EXTERNAL), &[0xcf])); // IRETD
            pair.each(|machine| machine.run_for(before));
            pair.each(|machine| machine.interrupt = Some(EXTERNAL));
            pair.each(|machine| machine.run_for(LIMIT));
            pair.compare();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}
