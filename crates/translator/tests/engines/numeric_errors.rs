//! A program that divides zero by zero again and again, with the exception unmasked. The next x87 or MMX
//! instruction raises #MF, for which the handler logs what it sees. The logs must be the same on both engines,
//! wherever execution stops in between, and the signals must come to an end.

use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::machine::*;
use crate::pair::{Pair, continue_handler_at};

/// The number of #MF.
const MF: u8 = 16;
const HANDLER: u32 = CODE + 0x1000;
/// The address of the pointer to the supervisor's next record.
const LOG: u32 = DATA + 4;
/// The supervisor's records, in pages that users may not access.
const RECORDS: u32 = 0x5_2000;
/// What the program sees.
const PROGRAM_LOG: u32 = 0x6_0000;
/// The control word with the invalid-operation exception unmasked.
const CONTROL_WORD: u16 = 0x37e;
/// The addresses of a number, and of zero.
const NUMBER: u32 = 0x6_1010;
const ZERO: u32 = 0x6_1030;

const ROUNDS: u32 = 24;
/// More instructions than everything executes.
const LIMIT: u64 = 20_000;

/// Instructions that meet the pending exception.
const NEXT: [&[u8]; 6] = [
    &[0x9b],                               // WAIT
    &[0xd8, 0xc0],                         // FADD ST, ST
    &[0xd8, 0x05, 0x10, 0x10, 0x06, 0x00], // FADD DWORD [NUMBER]
    &[0xdb, 0x15, 0x20, 0x10, 0x06, 0x00], // FIST DWORD [NUMBER + 10h]
    // PXOR MM7, MM7; EMMS; FLDZ; FLDZ
    &[0x0f, 0xef, 0xff, 0x0f, 0x77, 0xd9, 0xee, 0xd9, 0xee],
    // WAIT, and another loop of one block.
    &[0x9b, 0xb9, 3, 0, 0, 0, 0x49, 0x75, 0xfd], // WAIT; MOV ECX, 3; DEC ECX; JNZ
];

fn program(next: &[u8]) -> Vec<u8> {
    let code = [
        &[0xfc, 0xd9, 0xee, 0xd9, 0xee, 0xd8, 0x35][..], // CLD; FLDZ; FLDZ; FDIV DWORD [ZERO]
        &ZERO.to_le_bytes(),
        &[0xf9], // STC
        next,
        &[0xdd, 0xd8, 0xdd, 0xd8], // FSTP ST; FSTP ST
        &[0x9c, 0x58, 0xab],       // PUSHFD; POP EAX; STOSD
        &[0xdf, 0xe0, 0xab, 0x4d], // FNSTSW AX; STOSD; DEC EBP
    ]
    .concat();
    let back = (code.len() as u8 + 2).wrapping_neg();
    // JNZ to the first one; HLT, which users may not execute.
    [&code[..], &[0x75, back, 0xf4]].concat()
}

/// Logs the frame and the status word, clears the exception and returns.
fn numeric_handler() -> Vec<u8> {
    let log = LOG.to_le_bytes();
    [
        &[0x60, 0xfc, 0x8b, 0x3d][..], // PUSHAD; CLD; MOV EDI, [LOG]
        &log,
        &[0x89, 0xe6],                    // MOV ESI, ESP
        &[0xb9, 13, 0, 0, 0, 0xf3, 0xa5], // MOV ECX, 13; REP MOVSD
        &[0x9c, 0x58, 0xab],              // PUSHFD; POP EAX; STOSD
        &[0xdf, 0xe0, 0xab],              // FNSTSW AX; STOSD
        &[0x89, 0x3d],                    // MOV [LOG], EDI
        &log,
        &[0xdb, 0xe2, 0x61, 0xcf], // FNCLEX; POPAD; IRETD
    ]
    .concat()
}

fn begin(machine: &mut Machine, next: &[u8], is_user: bool, cr0: Cr0) {
    machine.reset_processor();
    machine.enable_paging();
    for page in [RECORDS, RECORDS + 0x1000, INNER_STACK - 0x1000, STACK - 0x1000, GDT, IDT, TSS] {
        machine.map(page, page, P | RW);
    }
    machine.put(if is_user { USER_CODE } else { CODE }, &program(next));
    machine.put(HANDLER, &numeric_handler());
    continue_handler_at(machine, MF, HANDLER);
    machine.put_dword(LOG, RECORDS);
    machine.put_dword(NUMBER, 1.5_f32.to_bits());
    machine.accesses.clear();
    if is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.set_cr4(Cr4::OSFXSR);
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::MP | cr0);
    cpu.set_eflags(Eflags::IF);
    cpu.fpu.init();
    cpu.fpu.set_control(CONTROL_WORD);
    cpu.set_gpr(reg::BP, ROUNDS.into());
    cpu.set_gpr(reg::DI, PROGRAM_LOG.into());
}

/// Runs the program to its end in slices of several lengths. Returns the last exit.
#[track_caller]
fn compare(pair: &mut Pair, next: &[u8], is_user: bool, cr0: Cr0) -> Exit {
    let mut last = Exit::Halt;
    for slice in [1, 2, 3, 7, 50, 333, LIMIT, LIMIT] {
        pair.each(|machine| begin(machine, next, is_user, cr0));
        last = pair.run_in_slices(slice, LIMIT);
    }
    last
}

#[test]
fn errors_stay_in_translated_code() {
    for (is_user, next) in [false, true].into_iter().flat_map(|side| NEXT.map(|next| (side, next)))
    {
        let Some(mut pair) = Pair::new() else { return };
        assert_eq!(compare(&mut pair, next, is_user, Cr0::NE), Exit::Halt);
        let exception = pair.right.exception().map(|exception| exception.vector);
        assert_eq!(exception, is_user.then_some(13), "{}", pair.reports());
        assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        let log = pair.right.dword(LOG);
        assert!(log >= RECORDS + ROUNDS * 15 * 4, "there is an exception each round: {log:#x}");
        let counted = ["signals", "instructions left to the interpreter"];
        let before = counted.map(|name| pair.counted(name));
        pair.each(|machine| begin(machine, next, is_user, Cr0::NE));
        pair.run_to_halt();
        let [signals, left] = [0, 1].map(|at| pair.counted(counted[at]) - before[at]);
        // One for each page that is accessed, and none for the exceptions.
        assert!(signals < 12, "{signals} signals with {next:x?}");
        assert!(left < u64::from(ROUNDS) / 2, "{left} instructions with {next:x?}");
    }
}

/// Where an instruction has met exceptions, other code comes, which raises none or not there.
#[test]
fn other_instructions_come_later() {
    let others: [&[u8]; 9] = [
        &[0xdf, 0xe0],                         // FNSTSW AX
        &[0xdd, 0x3d, 0x20, 0x10, 0x06, 0x00], // FNSTSW [NUMBER + 10h]
        &[0xd9, 0x3d, 0x20, 0x10, 0x06, 0x00], // FNSTCW [NUMBER + 10h]
        &[0xd9, 0x35, 0x40, 0x10, 0x06, 0x00], // FNSTENV [NUMBER + 30h]
        &[0xdd, 0x35, 0x40, 0x10, 0x06, 0x00], // FNSAVE [NUMBER + 30h]
        &[0xdb, 0xe2],                         // FNCLEX
        &[0xdb, 0xe3],                         // FNINIT
        &[0xdb, 0xe0],                         // FNENI
        &[0x0f, 0x57, 0xc0],                   // XORPS XMM0, XMM0
    ];
    for (is_user, other) in
        [false, true].into_iter().flat_map(|side| others.map(|other| (side, other)))
    {
        let Some(mut pair) = Pair::new() else { return };
        for next in [NEXT[1], other, NEXT[2], other] {
            assert_eq!(compare(&mut pair, next, is_user, Cr0::NE), Exit::Halt);
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}

/// With CR0.NE clear the error leaves the processor by FERR#, also where the instruction looks for it.
#[test]
fn errors_for_the_machine() {
    for is_user in [false, true] {
        let Some(mut pair) = Pair::new() else { return };
        compare(&mut pair, NEXT[0], is_user, Cr0::NE);
        assert_eq!(compare(&mut pair, NEXT[0], is_user, Cr0::empty()), Exit::NumericError);
    }
}

#[test]
fn interrupts_at_every_instruction() {
    const EXTERNAL: u8 = 0x40;
    let Some(mut pair) = Pair::new() else { return };
    for is_user in [false, true] {
        for before in 300..400 {
            pair.each(|machine| begin(machine, NEXT[0], is_user, Cr0::NE));
            pair.each(|machine| machine.put(handler(EXTERNAL), &[0xcf])); // IRETD
            pair.each(|machine| machine.run_for(before));
            pair.each(|machine| machine.interrupt = Some(EXTERNAL));
            pair.run_to_halt();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}
