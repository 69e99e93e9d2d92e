//! A program that raises an exception again and again, by an instruction that always raises it. The handler
//! logs what it sees and goes on after the instruction. The logs must be the same on both engines, wherever
//! execution stops in between, and the translator must not leave its code for each of them.

use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::machine::*;
use crate::pair::{Pair, continue_handler_at};

const DE: u8 = 0;
const UD: u8 = 6;
const GP: u8 = 13;
/// The handlers of #DE, #UD and #GP.
const HANDLERS_HERE: [u32; 3] = [CODE + 0x1000, CODE + 0x1100, CODE + 0x1200];
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

/// Divisions by zero, with EAX = 0, and the length of each.
const BY_ZERO: [(&[u8], usize); 8] = [
    (&[0xf6, 0xf0], 2),       // DIV AL
    (&[0xf6, 0xfc], 2),       // IDIV AH
    (&[0x66, 0xf7, 0xf0], 3), // DIV AX
    (&[0x66, 0xf7, 0xf8], 3), // IDIV AX
    (&[0xf7, 0xf0], 2),       // DIV EAX
    (&[0xf7, 0xf8], 2),       // IDIV EAX
    // XOR ECX, ECX; STC; DIV ECX: the divisor is the register that translated code looks at.
    (&[0x31, 0xc9, 0xf9, 0xf7, 0xf1], 2),
    (&[0x31, 0xc9, 0xf9, 0x66, 0xf7, 0xf9], 3),
];
/// MOV ECX, EBP; AND ECX, 1; XOR EDX, EDX; IDIV ECX: every other divisor is zero.
const BY_SOME_ZEROS: &[u8] = &[0x89, 0xe9, 0x83, 0xe1, 1, 0x31, 0xd2, 0xf7, 0xf9];
/// MOV ECX, EBP; SHR ECX, 1; CMC; SBB EDX, EDX; DIV EBX: every other quotient is too large.
const LARGE_QUOTIENTS: &[u8] = &[0x89, 0xe9, 0xd1, 0xe9, 0xf5, 0x19, 0xd2, 0xf7, 0xf3];

/// The state in which the program runs.
#[derive(Clone, Copy)]
struct State {
    is_user: bool,
    flags: Eflags,
    cr4: Cr4,
    gate: u8,
    /// The length of the division with which the code ends, if it is one.
    division: Option<usize>,
}

const SUPERVISOR: State = State {
    is_user: false,
    flags: Eflags::IF,
    cr4: Cr4::empty(),
    gate: INTERRUPT_GATE,
    division: None,
};
const USER: State = State { is_user: true, ..SUPERVISOR };

/// The program: in each of EBP rounds it executes the instruction and logs the flags. In the end it divides
/// by zero, or, after divisions, executes UD2.
fn program(instruction: &[u8], state: State) -> Vec<u8> {
    // STC; the instruction; PUSHFD; POP EAX; STOSD; XOR EAX, EAX; DEC EBP
    let code = [&[0xf9], instruction, &[0x9c, 0x58, 0xab, 0x31, 0xc0, 0x4d]].concat();
    let back = (code.len() as u8 + 2).wrapping_neg();
    let end = if state.division.is_some() { UD2 } else { &[0xf6, 0xf0] }; // DIV AL
    [&code[..], &[0x75, back], end].concat() // JNZ to the first one
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
    machine.put(if state.is_user { USER_CODE } else { CODE }, &program(instruction, state));
    for (at, vector) in HANDLERS_HERE.into_iter().zip([DE, UD, GP]) {
        if (vector == DE) != state.division.is_some() {
            continue;
        }
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
    cpu.set_gpr(reg::BX, state.division.unwrap_or(instruction.len()) as u64);
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

/// A few signals come before translated code looks for zeros.
#[test]
fn divisions_by_zero_stay_in_translated_code() {
    for (instruction, length) in BY_ZERO {
        for state in [SUPERVISOR, USER, State { gate: TRAP_GATE, ..USER }] {
            let Some(mut pair) = Pair::new() else { return };
            let state = State { division: Some(length), ..state };
            assert_eq!(compare(&mut pair, instruction, state), ROUNDS, "{instruction:x?}");
            let [signals, left] = costs(&mut pair, instruction, state);
            assert!(signals < 12, "{signals} signals with {instruction:x?}");
            assert!(left < u64::from(ROUNDS) / 2, "{left} instructions with {instruction:x?}");
        }
    }
}

#[test]
fn some_divisions_raise_exceptions() {
    for instruction in [BY_SOME_ZEROS, LARGE_QUOTIENTS] {
        for state in [SUPERVISOR, USER] {
            let Some(mut pair) = Pair::new() else { return };
            let state = State { division: Some(2), ..state };
            assert_eq!(compare(&mut pair, instruction, state), ROUNDS / 2, "{instruction:x?}");
            let [signals, _] = costs(&mut pair, instruction, state);
            assert!(signals < 24, "{signals} signals with {instruction:x?}");
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
