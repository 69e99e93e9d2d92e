//! A program that calls the supervisor again and again by SYSENTER, which returns by SYSEXIT. Both log what
//! they see of the processor. The logs must be the same on both engines, wherever execution stops in between.

use ring3_core::clock::{Clock, Time};
use ring3_x86::cpu::{Cr0, Cr4, Msrs, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::machine::*;
use crate::pair::Pair;

/// The first target of SYSENTER. Later it alternates between this and the next address, where the same code
/// is.
const ENTRY: u32 = CODE;
const OTHER_ENTRY: u32 = ENTRY + 0x400;
/// The supervisor's stack and log, in pages that users may not access.
const SUPERVISOR_STACK: u32 = 0x5_1000;
const SUPERVISOR_LOG: u32 = 0x5_2000;
const USER_LOG: u32 = 0x6_0000;
/// A handler that counts interrupts and returns.
const HANDLER: u32 = CODE + 0x800;
const COUNTED: u32 = DATA;
const INTERRUPT: u8 = 0x40;

const CALLS: u32 = 40;
/// More instructions than everything executes.
const LIMIT: u64 = 20_000;

/// Logs at EDI what the program sees, and calls the supervisor.
fn program() -> Vec<u8> {
    let back = USER_CODE + 38;
    let code = [
        &[0x8c, 0xc8, 0xab][..],   // MOV EAX, CS; STOSD
        &[0x8c, 0xd0, 0xab],       // MOV EAX, SS; STOSD
        &[0x89, 0xe0, 0xab],       // MOV EAX, ESP; STOSD
        &[0x9c, 0x58, 0xab],       // PUSHFD; POP EAX; STOSD
        &[0x0f, 0x31, 0xab],       // RDTSC; STOSD
        &[0x92, 0xab],             // XCHG EDX, EAX; STOSD
        &[0xd9, 0xe8, 0xd9, 0x1f], // FLD1; FSTP DWORD [EDI]
        &[0xe8, 0, 0, 0, 0],       // CALL to the next one
        &[0x58, 0x89, 0xe1, 0xba], // POP EAX; MOV ECX, ESP; MOV EDX, back
        &back.to_le_bytes(),
        &[0xf9, 0x90, 0x0f, 0x34], // STC; NOP; SYSENTER
        &[0xeb, 0xd8],             // JMP to the first one
    ]
    .concat();
    assert_eq!(code.len(), 40);
    code
}

/// Logs at ESI what the supervisor sees, and returns. Now and then it does something unusual.
#[rustfmt::skip]
fn supervisor() -> Vec<u8> {
    let rest: &[u8] = &[
        0xfb,                          // STI
        0x0f, 0x35,                    // SYSEXIT
    ];
    let other_entry: &[u8] = &[
        0x51, 0xb9, 0x76, 1, 0, 0,     // PUSH ECX; MOV ECX, IA32_SYSENTER_EIP
        0x52, 0x0f, 0x32,              // PUSH EDX; RDMSR
        0x35, 0x00, 0x04, 0, 0,        // XOR EAX, 400h
        0x0f, 0x30, 0x5a, 0x59,        // WRMSR; POP EDX; POP ECX
    ];
    let load_cr3: &[u8] = &[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8]; // MOV EAX, CR3; MOV CR3, EAX
    [
        &[0x52, 0x9c, 0x0f, 0x31][..], // PUSH EDX; PUSHFD; RDTSC
        &[0x89, 0x06],                 // MOV [ESI], EAX
        &[0x8f, 0x46, 0x04, 0x5a],     // POP DWORD [ESI+4]; POP EDX
        &[0x8c, 0xc8, 0x89, 0x46, 8],  // MOV EAX, CS; MOV [ESI+8], EAX
        &[0x8c, 0xd0, 0x89, 0x46, 12], // MOV EAX, SS; MOV [ESI+12], EAX
        &[0x89, 0x66, 16],             // MOV [ESI+16], ESP
        &[0x83, 0xc6, 20],             // ADD ESI, 20
        &[0x4d, 0x75, 1, 0xf4],        // DEC EBP; JNZ over the next one; HLT
        &[0xf7, 0xc5, 3, 0, 0, 0],     // TEST EBP, 3
        &[0x75, load_cr3.len() as u8], // JNZ over the next two
        load_cr3,
        &[0xf7, 0xc5, 7, 0, 0, 0],     // TEST EBP, 7
        &[0x75, other_entry.len() as u8],
        other_entry,
        rest,
    ]
    .concat()
}

fn begin(machine: &mut Machine, cr4: Cr4) {
    machine.reset_processor();
    machine.enable_paging();
    machine.put(USER_CODE, &program());
    for entry in [ENTRY, OTHER_ENTRY] {
        machine.put(entry, &supervisor());
    }
    for page in [ENTRY, SUPERVISOR_STACK - 0x1000, SUPERVISOR_LOG, INNER_STACK - 0x1000, COUNTED] {
        machine.map(page, page, P | RW);
    }
    // INC DWORD [COUNTED]; IRETD
    let count = [&[0xff, 0x05][..], &COUNTED.to_le_bytes(), &[0xcf]].concat();
    machine.put(HANDLER, &count);
    machine.put_dword(COUNTED, 0);
    let jump = (HANDLER - handler(INTERRUPT) - 5).to_le_bytes();
    machine.put(handler(INTERRUPT), &[&[0xe9][..], &jump].concat());
    machine.accesses.clear();
    machine.enter_user();
    let cpu = &mut machine.cpu;
    cpu.msrs = Msrs {
        sysenter_cs: KERNEL_CODE.into(),
        sysenter_esp: SUPERVISOR_STACK.into(),
        sysenter_eip: ENTRY.into(),
        time_stamp_offset: 12_345,
        ..cpu.msrs
    };
    let mut clock = Clock::new(1370);
    clock.set(cpu.instructions, Time::from_nanos(u64::from(u32::MAX) - 1000), 1370);
    cpu.clock = Some(clock);
    cpu.set_cr4(Cr4::OSFXSR | cr4);
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP | Cr0::AM);
    cpu.set_eflags(Eflags::IF);
    cpu.set_gpr(reg::BP, CALLS.into());
    cpu.set_gpr(reg::SI, SUPERVISOR_LOG.into());
    cpu.set_gpr(reg::DI, USER_LOG.into());
}

#[test]
fn calls_to_the_end_in_slices_of_any_size() {
    let Some(mut pair) = Pair::new() else { return };
    for slice in [1, 2, 3, 5, 7, 11, 50, 333, LIMIT] {
        pair.each(|machine| begin(machine, Cr4::empty()));
        assert_eq!(pair.run_in_slices(slice, LIMIT), Exit::Halt, "{}", pair.reports());
        assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        let last = USER_LOG + (CALLS - 1) * 24;
        assert_eq!(pair.right.dword(last), USER_CS.into(), "the program logs");
    }
}

#[test]
fn interrupts_at_every_instruction_of_calls() {
    let Some(mut pair) = Pair::new() else { return };
    // After this many instructions everything is translated.
    let first = 400;
    for before in first..first + 120 {
        pair.each(|machine| begin(machine, Cr4::empty()));
        pair.each(|machine| machine.run_for(before));
        pair.each(|machine| machine.interrupt = Some(INTERRUPT));
        pair.run_to_halt();
        assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        assert_eq!(pair.right.dword(COUNTED), 1, "after {before}");
    }
}

#[test]
fn time_stamps_that_are_the_supervisors_alone() {
    let Some(mut pair) = Pair::new() else { return };
    pair.each(|machine| begin(machine, Cr4::TSD));
    pair.run_to_halt();
    assert_eq!(pair.right.exception().map(|exception| exception.vector), Some(13));
}

#[test]
fn alignment_is_checked_in_the_program_alone() {
    let Some(mut pair) = Pair::new() else { return };
    // The program's stack is not aligned, so it faults as soon as alignment is checked. A call switches this
    // on.
    pair.each(|machine| {
        begin(machine, Cr4::empty());
        let with_alignment_check = [
            &[0x4d, 0xf7, 0xc5, 7, 0, 0, 0, 0x75, 9][..], // DEC EBP; TEST EBP, 7; JNZ over the next three
            &[0x9c, 0x81, 0x0c, 0x24, 0, 0, 4, 0, 0x9d],  // PUSHFD; OR DWORD [ESP], AC; POPFD
            &[0xfb, 0x0f, 0x35],                          // STI; SYSEXIT
        ];
        machine.put(ENTRY, &with_alignment_check.concat());
        machine.cpu.set_gpr(reg::SP, u64::from(USER_STACK) - 2);
    });
    pair.run_to_halt();
    assert_eq!(pair.right.exception().map(|exception| exception.vector), Some(17));
}

#[test]
fn strings_respect_the_rights_of_their_privilege() {
    let Some(mut pair) = Pair::new() else { return };
    // Calls, and reads at ESI; after the last call it reads what the supervisor has written.
    let program = [
        &[0xbe][..], // MOV ESI, USER_LOG
        &USER_LOG.to_le_bytes(),
        &[0xba], // MOV EDX, back
        &(USER_CODE + 14).to_le_bytes(),
        &[0x89, 0xe1, 0x0f, 0x34], // MOV ECX, ESP; SYSENTER
        &[0xad, 0xeb, 0xef],       // back: LODSD; JMP to the first one
    ];
    let mut supervisor = vec![0x56, 0x57, 0x51, 0x0f, 0x01, 0x05]; // PUSH ESI; PUSH EDI; PUSH ECX; SGDT [SUPERVISOR_LOG]
    supervisor.extend(SUPERVISOR_LOG.to_le_bytes());
    supervisor.push(0xbe); // MOV ESI, SUPERVISOR_LOG
    supervisor.extend(SUPERVISOR_LOG.to_le_bytes());
    supervisor.extend([0x8d, 0x7e, 0x40, 0xb9, 4, 0, 0, 0]); // LEA EDI, [ESI+64]; MOV ECX, 4
    supervisor.extend([0xf3, 0xa5, 0x59, 0x5f, 0x5e]); // REP MOVSD; POP ECX; POP EDI; POP ESI
    supervisor.extend([0x4d, 0x75, 0x05, 0xbe]); // DEC EBP; JNZ over the next one; MOV ESI, SUPERVISOR_LOG
    supervisor.extend(SUPERVISOR_LOG.to_le_bytes());
    supervisor.extend([0xfb, 0x0f, 0x35]); // STI; SYSEXIT
    pair.each(|machine| {
        begin(machine, Cr4::empty());
        machine.put(USER_CODE, &program.concat());
        machine.put(ENTRY, &supervisor);
    });
    pair.run_to_halt();
    assert_eq!(pair.right.exception().map(|exception| exception.vector), Some(14));
    assert_eq!(pair.right.cpu.cr2, SUPERVISOR_LOG.into());
}
