//! Interrupts, single steps and breakpoints at every instruction of a program with instructions of many
//! kinds. Each time the handler must find the same on both engines.

use iced_x86::{Code, Instruction, Register};
use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::flags::Eflags;

use crate::common::assembler::{EAX, assemble, binary, call, hlt, jmp, mov};
use crate::machine::*;
use crate::pair::Pair;

/// The vector of the external interrupt, and that of the program's software interrupt.
const INTERRUPT: u8 = 0x40;
const SOFTWARE: u8 = 0x30;
/// The vector of #DB.
const DEBUG: u8 = 1;

/// Addresses in the handlers' log: of the pointer to the next record, and of the first record.
const LOG: u32 = 0x6_0000;
const RECORDS: u32 = LOG + 0x10;
/// Bytes in a record.
const RECORD: u32 = 14 * 4;
/// A handler that logs the registers and the values that were pushed, and returns.
const HANDLER: u32 = CODE + 0x2000;
/// A handler of #DB that does the same, and sets RF so that the instruction to which it returns is executed.
const DEBUG_HANDLER: u32 = CODE + 0x2100;
/// The address of the code that precedes the program.
const PRELUDE: u32 = CODE + 0x1000;
/// The function that the program calls.
const FUNCTION: u32 = CODE + 0x3000;
/// The address of operands on two pages.
const OPERANDS: u32 = DATA + 0xff0;

/// More instructions than the program and its handlers execute.
const LIMIT: u64 = 100_000;

/// JNZ to `target`.
fn jnz(target: u32) -> Instruction {
    Instruction::with_branch(Code::Jne_rel32_32, target.into()).unwrap()
}

/// The instructions of a program, one after the other.
struct Program {
    start: u32,
    code: Vec<u8>,
    /// The address of each instruction.
    addresses: Vec<u32>,
}

impl Program {
    fn at(start: u32) -> Program {
        Program { start, code: Vec::new(), addresses: Vec::new() }
    }

    fn add(&mut self, instruction: &[u8]) {
        self.addresses.push(self.end());
        self.code.extend(instruction);
    }

    fn add_instruction(&mut self, instruction: Instruction) {
        let bytes = assemble(32, self.end(), &[instruction]);
        self.add(&bytes[0]);
    }

    /// Returns the address of the next instruction.
    fn end(&self) -> u32 {
        self.start + self.code.len() as u32
    }
}

/// The program. EBX points to the operands, and EBP counts rounds.
#[rustfmt::skip]
fn program() -> Program {
    let mut program = Program::at(CODE);
    program.add(&[0xbd, 2, 0, 0, 0]); // MOV EBP, 2
    let round = program.end();
    let mov_function = [&[0xb8][..], &FUNCTION.to_le_bytes()].concat();
    let all: &[&[u8]] = &[
        // Plain instructions, and memory.
        &[0x01, 0xd8],             // ADD EAX, EBX
        &[0x13, 0x43, 0x04],       // ADC EAX, [EBX+4]
        &[0x01, 0x43, 0x0e],       // ADD [EBX+14], EAX, across pages
        &[0x50],                   // PUSH EAX
        &[0xff, 0x33],             // PUSH DWORD [EBX]
        &[0x8f, 0x43, 0x08],       // POP DWORD [EBX+8]
        &[0x59],                   // POP ECX
        &[0x8a, 0x64, 0x24, 0xfc], // MOV AH, [ESP-4]
        &[0x12, 0x6c, 0x24, 0xfd], // ADC CH, [ESP-3]
        &[0x28, 0x74, 0x24, 0xfd], // SUB [ESP-3], DH
        &[0x87, 0x4b, 0x04],       // XCHG [EBX+4], ECX
        &[0x0f, 0xb1, 0x0b],       // CMPXCHG [EBX], ECX
        &[0x25, 0x07, 0, 0, 0],    // AND EAX, 7
        &[0x0f, 0xab, 0x03],       // BTS [EBX], EAX
        &[0x0f, 0xa3, 0x03],       // BT [EBX], EAX
        &[0x0f, 0x92, 0xc1],       // SETC CL
        &[0x0f, 0xb6, 0xc9],       // MOVZX ECX, CL
        &[0x74, 0x01],             // JZ over the next one
        &[0x40],                   // INC EAX
        &[0x60],                   // PUSHAD
        &[0x61],                   // POPAD
        &[0xc8, 0x10, 0, 0],       // ENTER 16, 0
        &[0xc9],                   // LEAVE
        // The interrupt flag, and instructions after which interrupts wait.
        &[0xfa],                   // CLI
        &[0x41],                   // INC ECX
        &[0xfb],                   // STI
        &[0x42],                   // INC EDX
        &[0x9c],                   // PUSHFD
        &[0xfa],                   // CLI
        &[0x01, 0x13],             // ADD [EBX], EDX
        &[0x9d],                   // POPFD
        &[0xfa],                   // CLI
        &[0xfb],                   // STI
        &[0xfb],                   // STI
        &[0xfa],                   // CLI
        &[0xfb],                   // STI
        &[0x8c, 0xd0],             // MOV EAX, SS
        &[0x8e, 0xd0],             // MOV SS, EAX
        &[0x89, 0xe4],             // MOV ESP, ESP
        &[0x16],                   // PUSH SS
        &[0x17],                   // POP SS
        &[0x43],                   // INC EBX
        &[0x4b],                   // DEC EBX
        &[0x8e, 0xe0],             // MOV FS, EAX
        &[0x64, 0x8b, 0x13],       // MOV EDX, FS:[EBX]
        // Repeated instructions.
        &[0x89, 0xde],             // MOV ESI, EBX
        &[0x8d, 0x7b, 0x40],       // LEA EDI, [EBX+64]
        &[0xb9, 6, 0, 0, 0],       // MOV ECX, 6
        &[0xf3, 0xa5],             // REP MOVSD
        &[0xb9, 5, 0, 0, 0],       // MOV ECX, 5
        &[0xf3, 0xaa],             // REP STOSB
        &[0x89, 0xdf],             // MOV EDI, EBX
        &[0x89, 0xde],             // MOV ESI, EBX
        &[0xb9, 4, 0, 0, 0],       // MOV ECX, 4
        &[0xf3, 0xa7],             // REPE CMPSD
        &[0x89, 0xdf],             // MOV EDI, EBX
        &[0x30, 0xc0],             // XOR AL, AL
        &[0xb1, 9],                // MOV CL, 9
        &[0xf2, 0xae],             // REPNE SCASB
        &[0x31, 0xc9],             // XOR ECX, ECX
        &[0xf3, 0xa4],             // REP MOVSB of nothing
        &[0xe3, 0x01],             // JECXZ over the next one
        &[0x41],                   // INC ECX
        &[0xb1, 3],                // MOV CL, 3
        &[0xe2, 0xfe],             // LOOP to itself
        // x87 and SSE.
        &[0xd9, 0xe8],             // FLD1
        &[0xd9, 0xeb],             // FLDPI
        &[0xde, 0xc1],             // FADDP
        &[0xdd, 0x5b, 0x20],       // FSTP QWORD [EBX+32]
        &[0x0f, 0x10, 0x43, 0x20], // MOVUPS XMM0, [EBX+32]
        &[0x0f, 0x58, 0xc0],       // ADDPS XMM0, XMM0
        &[0x0f, 0x11, 0x43, 0x30], // MOVUPS [EBX+48], XMM0
        &[0x0f, 0x6f, 0x4b, 0x20], // MOVQ MM1, [EBX+32]
        &[0x0f, 0x77],             // EMMS
        // Other ways of changing control.
        &[0xcd, SOFTWARE],         // INT 30h
        &mov_function,             // MOV EAX, FUNCTION
        &[0x89, 0x43, 0x10],       // MOV [EBX+16], EAX
        &[0xff, 0xd0],             // CALL EAX
        &[0xff, 0x53, 0x10],       // CALL [EBX+16]
        &[0xe4, 0x60],             // IN AL, 60h
        &[0xe6, 0x60],             // OUT 60h, AL
    ];
    for instruction in all {
        program.add(instruction);
    }
    program.add_instruction(call(FUNCTION));
    program.add(&[0x4d]); // DEC EBP
    program.add_instruction(jnz(round));
    // A trap would end the halt.
    program.add(&[0x9c, 0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff]); // PUSHF; AND DWORD [ESP], ~TF
    program.add(&[0x9d]); // POPF
    program.add_instruction(hlt());
    program
}

/// Returns a handler that logs the registers and the values that were pushed, sets the bits `pushed` in the
/// pushed EFLAGS, and returns.
#[rustfmt::skip]
fn handler_code(pushed: u32) -> Vec<u8> {
    let log = LOG.to_le_bytes();
    [
        &[0x60, 0x8b, 0x3d][..], &log,       // PUSHAD; MOV EDI, [LOG]
        &[0x89, 0xe6],                       // MOV ESI, ESP
        &[0xb9, 13, 0, 0, 0, 0xfc],          // MOV ECX, 13; CLD
        &[0xf3, 0xa5, 0x89, 0x3d], &log,     // REP MOVSD; MOV [LOG], EDI
        &[0x0f, 0x21, 0xf0, 0xab],           // MOV EAX, DR6; STOSD
        &[0x89, 0x3d], &log,                 // MOV [LOG], EDI
        &[0x31, 0xc0, 0x0f, 0x23, 0xf0],     // XOR EAX, EAX; MOV DR6, EAX
        &[0x61, 0x81, 0x4c, 0x24, 0x08],     // POPAD; OR DWORD [ESP+8], pushed
        &pushed.to_le_bytes(),
        &[0xcf],                             // IRETD
    ]
    .concat()
}

/// Returns both machines with the program, the handlers, and the code `prelude` at [`PRELUDE`], which
/// precedes the program.
fn stage(program: &Program, prelude: &[Instruction]) -> Option<Pair> {
    let mut pair = Pair::new()?;
    pair.each(|machine| {
        machine.put(CODE, &program.code);
        machine.code(PRELUDE, prelude);
        machine.put(HANDLER, &handler_code(0));
        // RF, so that a breakpoint on an instruction does not occur again (SDM vol. 3, 19.3.1.1).
        machine.put(DEBUG_HANDLER, &handler_code(Eflags::RF.bits()));
        // ADD EAX, [ESP]; RET
        machine.put(FUNCTION, &[0x03, 0x04, 0x24, 0xc3]);
        for vector in [INTERRUPT, SOFTWARE] {
            machine.code(handler(vector), &[jmp(HANDLER)]);
        }
        machine.set_gate(SOFTWARE, KERNEL_CODE, INTERRUPT_GATE | DPL3);
        machine.code(handler(DEBUG), &[jmp(DEBUG_HANDLER)]);
    });
    Some(pair)
}

/// Begins the program at privilege 3 or 0.
fn begin(machine: &mut Machine, is_user: bool, flags: Eflags) {
    machine.reset_processor();
    machine.enable_paging();
    machine.put_dword(LOG, RECORDS);
    machine.put(OPERANDS, &[0x11; 0x100]);
    machine.accesses.clear();
    if is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.set_cr4(Cr4::OSFXSR | Cr4::OSXMMEXCPT);
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
    // The program may execute all its instructions except HLT, at which #GP ends it.
    cpu.set_eflags(flags | Eflags::IOPL);
    cpu.set_gpr(reg::BX, OPERANDS.into());
    cpu.ip = CODE.into();
}

const PRIVILEGES: [bool; 2] = [false, true];

#[test]
fn interrupts_at_every_instruction() {
    let Some(mut pair) = stage(&program(), &[]) else { return };
    for is_user in PRIVILEGES {
        pair.each(|machine| begin(machine, is_user, Eflags::IF));
        let begun = pair.right.cpu.instructions;
        pair.run_for(LIMIT);
        let all = pair.right.cpu.instructions - begun;
        assert!(all > 150, "the program is executed: {all}");
        for before in 0..all {
            pair.each(|machine| begin(machine, is_user, Eflags::IF));
            pair.run_for(before);
            pair.each(|machine| machine.interrupt = Some(INTERRUPT));
            pair.run_to_halt();
            let records = (pair.right.dword(LOG) - RECORDS) / RECORD;
            // Two software interrupts and this one, except when it came in the handler in which a user
            // program ends.
            assert!(records == 2 + 1 || before + 2 >= all, "{records} after {before}");
        }
    }
}

#[test]
fn single_steps() {
    let Some(mut pair) = stage(&program(), &[]) else { return };
    for is_user in PRIVILEGES {
        pair.each(|machine| begin(machine, is_user, Eflags::IF | Eflags::TF));
        pair.run_to_halt();
        let records = (pair.right.dword(LOG) - RECORDS) / RECORD;
        assert!(
            (150..400).contains(&records),
            "nearly each instruction is followed by a trap: {records}"
        );
    }
}

#[test]
fn breakpoints_at_every_instruction() {
    let program = program();
    let addresses = &program.addresses;
    let are_met = |address: &&u32| breakpoints_are_met(&program, **address, EXECUTION);
    let met = addresses.iter().filter(are_met).count();
    // The program jumps over some instructions.
    assert!(met + 3 >= addresses.len(), "{met} of {}", addresses.len());
}

#[test]
fn breakpoints_on_data() {
    let program = program();
    for address in [OPERANDS, OPERANDS + 4, OPERANDS + 0x10, OPERANDS + 0x40, STACK - 4] {
        for kind in [WRITES, ACCESSES] {
            assert!(breakpoints_are_met(&program, address, kind), "at {address:x}");
        }
    }
}

// Bits of DR7, R/W0 and LEN0: execution, writes and accesses, the latter two of four bytes (SDM vol. 3,
// 19.2.4).
const EXECUTION: u32 = 0;
const WRITES: u32 = 0b1101 << 16;
const ACCESSES: u32 = 0b1111 << 16;

/// Runs the program with a breakpoint on `address`. Returns whether it was met.
fn breakpoints_are_met(program: &Program, address: u32, kind: u32) -> bool {
    let to_debug = |to, from| binary(Code::Mov_dr_r32, to, from);
    let prelude = [
        mov(EAX, address),
        to_debug(Register::DR0, EAX),
        mov(EAX, kind | 1),
        to_debug(Register::DR7, EAX),
        mov(EAX, 0),
        jmp(CODE),
    ];
    let Some(mut pair) = stage(program, &prelude) else { return true };
    pair.each(|machine| {
        begin(machine, false, Eflags::IF);
        machine.cpu.ip = PRELUDE.into();
    });
    pair.run_to_halt();
    let records = (pair.right.dword(LOG) - RECORDS) / RECORD;
    records > 2
}

#[test]
fn handlers_of_interrupts_are_not_interpreted() {
    const TIMES: u32 = 100;
    let Some(mut pair) = Pair::new() else { return };
    pair.each(|machine| {
        machine.put(CODE, &[0xeb, 0xfe]); // JMP to itself
        machine.put(handler(INTERRUPT), &[0x41, 0xcf]); // INC ECX; IRETD
    });
    pair.enter(CODE, false, &[(reg::CX, 0)]);
    pair.each(|machine| machine.cpu.set_eflags(Eflags::IF));
    pair.run_for(50);
    let before = pair.counted("instructions interpreted");
    for _ in 0..TIMES {
        pair.each(|machine| machine.interrupt = Some(INTERRUPT));
        pair.run_for(50);
    }
    assert_eq!(pair.right.get(reg::CX), TIMES);
    let interpreted = pair.counted("instructions interpreted") - before;
    assert!(interpreted < u64::from(TIMES) / 4, "{interpreted} instructions");
}
