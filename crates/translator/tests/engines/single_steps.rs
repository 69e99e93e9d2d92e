//! A program that sets TF by POPF and clears it again, with instructions in between that translated code depends
//! on in many ways. The handler of #DB, whose IRET sets TF again, notes what it sees. Both engines must do the
//! same, wherever execution stops in between.

use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::machine::*;
use crate::pair::{Pair, continue_handler_at};

/// The handlers of #DB and of #GP.
const TRAP_HANDLER: u32 = CODE + 0x1000;
const PROTECTION_HANDLER: u32 = CODE + 0x1100;
/// The address of the sum of what the handler has seen in registers, and of the number of traps.
const SEEN: u32 = DATA + 0x10;
const TRAPS: u32 = DATA + 0x14;
const ROUNDS: u32 = 30;
/// More instructions than everything executes.
const LIMIT: u64 = 60_000;
const EXTERNAL: u8 = 0x40;
/// The number of IA32_SYSENTER_ESP.
const SYSENTER_ESP: u32 = 0x175;

/// Instructions that any code executes.
const OF_ALL: [&[u8]; 16] = [
    &[0x01, 0xe8],                   // ADD EAX, EBP
    &[0xa3, 0x20, 0, 2, 0],          // MOV [DATA + 0x20], EAX
    &[0x50, 0x5b],                   // PUSH EAX; POP EBX
    &[0x9c, 0x5b],                   // PUSHF; POP EBX
    &[0x9c, 0x9d],                   // PUSHF; POPF
    &[0x31, 0xc9, 0x74, 0x00],       // XOR ECX, ECX; JZ to the next instruction
    &[0xe8, 0, 0, 0, 0, 0x5b],       // CALL the next instruction; POP EBX
    &[0xb1, 3, 0xf3, 0xab],          // MOV CL, 3; REP STOSD
    &[0xbf, 0, 1, 2, 0],             // MOV EDI, DATA + 0x100
    &[0xd9, 0xe8, 0xdd, 0xd8],       // FLD1; FSTP ST0
    &[0x31, 0xc0, 0x0f, 0xa2],       // XOR EAX, EAX; CPUID
    &[0x8c, 0xd8, 0x8e, 0xc0],       // MOV EAX, DS; MOV ES, EAX
    &[0x8c, 0xd0, 0x8e, 0xd0, 0x90], // MOV EAX, SS; MOV SS, EAX; NOP
    &[0x31, 0xc0, 0x8e, 0xe0],       // XOR EAX, EAX; MOV FS, EAX
    &[0x8c, 0xd8, 0x8e, 0xe0],       // MOV EAX, DS; MOV FS, EAX
    &[0xfd, 0xfc],                   // STD; CLD
];

/// Instructions of the supervisor; users meet #GP.
const OF_SUPERVISOR: [&[u8]; 7] = [
    &[0xfa, 0xfb],             // CLI; STI
    &[0x0f, 0x20, 0xd8],       // MOV EAX, CR3
    &[0x0f, 0x22, 0xd8],       // MOV CR3, EAX
    &[0x89, 0xe8, 0x31, 0xd2], // MOV EAX, EBP; XOR EDX, EDX
    &[0x0f, 0x30],             // WRMSR
    &[0x0f, 0x32],             // RDMSR
    &[0x0f, 0x06],             // CLTS
];

/// Returns the program. Between two parts it sets TF, or clears it, by POPF.
fn program(parts: &[&[u8]], is_user: bool) -> Vec<u8> {
    let mut code = vec![0x9c, 0x81, 0x0c, 0x24, 0, 1, 0, 0, 0x9d]; // PUSHF; OR [ESP], TF; POPF
    code.extend(OF_ALL.concat());
    if !is_user {
        code.push(0xb9); // MOV ECX, imm32
        code.extend(SYSENTER_ESP.to_le_bytes());
        code.extend(OF_SUPERVISOR.concat());
    }
    code.extend(parts.concat());
    code.extend([0x9c, 0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff, 0x9d]); // PUSHF; AND [ESP], !TF; POPF
    code.extend([0x40, 0x4d]); // INC EAX; DEC EBP
    let back = (code.len() as u32 + 6).wrapping_neg();
    code.extend([0x0f, 0x85]); // JNZ to the beginning
    code.extend(back.to_le_bytes());
    code.extend([0x31, 0xc0, 0xf6, 0xf0]); // XOR EAX, EAX; DIV AL
    code
}

/// Returns the handler of #DB.
fn trap_handler() -> Vec<u8> {
    let add_eax_to_seen = [&[0x01, 0x05][..], &SEEN.to_le_bytes()].concat();
    [
        &[0x60, 0x0f, 0x21, 0xf0][..], // PUSHAD; MOV EAX, DR6
        &add_eax_to_seen,
        &[0x8c, 0xe0], // MOV EAX, FS
        &add_eax_to_seen,
        &[0xb9], // MOV ECX, imm32
        &SYSENTER_ESP.to_le_bytes(),
        &[0x0f, 0x32], // RDMSR
        &add_eax_to_seen,
        &[0x0f, 0x20, 0xc0], // MOV EAX, CR0
        &add_eax_to_seen,
        &[0xff, 0x05], // INC DWORD [TRAPS]
        &TRAPS.to_le_bytes(),
        &[0x31, 0xc0, 0x0f, 0x23, 0xf0, 0x61, 0xcf], // XOR EAX, EAX; MOV DR6, EAX; POPAD; IRETD
    ]
    .concat()
}

fn begin(machine: &mut Machine, is_user: bool) {
    machine.reset_processor();
    machine.enable_paging();
    for page in [INNER_STACK - 0x1000, STACK - 0x1000, GDT, IDT, TSS] {
        machine.map(page, page, P | RW);
    }
    // Users meet #GP, which skips the byte.
    let parts: &[&[u8]] = if is_user { &[&[0xfa], &[0xf4]] } else { &[] };
    machine.put(if is_user { USER_CODE } else { CODE }, &program(parts, is_user));
    machine.put(TRAP_HANDLER, &trap_handler());
    // ADD ESP, 4; INC DWORD [ESP]; IRETD
    machine.put(PROTECTION_HANDLER, &[0x83, 0xc4, 4, 0xff, 0x04, 0x24, 0xcf]);
    for (at, vector) in [(TRAP_HANDLER, vector::DB), (PROTECTION_HANDLER, vector::GP)] {
        continue_handler_at(machine, vector, at);
        machine.set_gate(vector, KERNEL_CODE, INTERRUPT_GATE);
    }
    machine.put(handler(EXTERNAL), &[0xcf]); // IRETD
    machine.put_dword(SEEN, 0);
    machine.put_dword(TRAPS, 0);
    machine.accesses.clear();
    if is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
    cpu.set_eflags(Eflags::IF);
    cpu.set_gpr(reg::BP, ROUNDS.into());
    cpu.set_gpr(reg::DI, (DATA + 0x100).into());
}

#[test]
fn single_steps_are_the_same_wherever_execution_stops() {
    let Some(mut pair) = Pair::new() else { return };
    for is_user in [false, true] {
        for slice in [1, 2, 3, 7, 50, 333, LIMIT, LIMIT] {
            pair.each(|machine| begin(machine, is_user));
            assert_eq!(pair.run_in_slices(slice, LIMIT), Exit::Halt, "{}", pair.reports());
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
            let traps = pair.right.dword(TRAPS);
            assert!(traps > 30 * ROUNDS, "{traps} traps");
        }
    }
}

#[test]
fn interrupts_between_single_steps() {
    let Some(mut pair) = Pair::new() else { return };
    for is_user in [false, true] {
        for before in 1000..1300 {
            pair.each(|machine| begin(machine, is_user));
            pair.each(|machine| machine.run_for(before));
            pair.each(|machine| machine.interrupt = Some(EXTERNAL));
            pair.each(|machine| machine.run_for(LIMIT));
            pair.compare();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}

#[test]
fn only_the_stepped_instruction_is_interpreted() {
    let Some(mut pair) = Pair::new() else { return };
    let program: &[&[u8]] = &[
        &[0x9c, 0x81, 0x0c, 0x24, 0, 1, 0, 0], // PUSHF; OR [ESP], TF
        &[0x0e, 0x68],                         // PUSH CS; PUSH imm32
        &(CODE + 15).to_le_bytes(),
        &[0xcf, 0x90],             // IRETD to the NOP
        &[0x4d, 0x75, 0xed],       // DEC EBP; JNZ to the beginning
        &[0x31, 0xc0, 0xf6, 0xf0], // XOR EAX, EAX; DIV AL
    ];
    pair.each(|machine| begin(machine, false));
    // The trap is that of the NOP, after which the handler leaves TF clear.
    pair.each(|machine| machine.put(CODE, &program.concat()));
    pair.each(|machine| {
        machine.put(TRAP_HANDLER, &[0x81, 0x64, 0x24, 8, 0xff, 0xfe, 0xff, 0xff, 0xcf]);
    });
    pair.each(|machine| machine.cpu.set_gpr(reg::BP, 1000));
    assert_eq!(pair.run_in_slices(LIMIT, LIMIT), Exit::Halt, "{}", pair.reports());
    assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
    let interpreted = pair.counted("instructions interpreted");
    assert!((1000..1030).contains(&interpreted), "{interpreted} instructions interpreted");
}
