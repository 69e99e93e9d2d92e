//! Virtual-8086 mode under paging. A monitor enters it by IRETD. The program's first megabyte is mapped
//! elsewhere, page by page. The program faults on pages that the monitor then gives it, and leaves by
//! software interrupts in each of the possible ways (SDM vol. 3, 21.2 and 21.3).

use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, TableRegister};

use crate::machine::*;
use crate::pair::Pair;

/// Linear address at which the monitor has mapped the first megabyte of memory, for itself alone.
const KERNEL: u32 = 0x20_0000;
/// Distance from a page directory to the page table of the lowest 4 MiB, and from the tables of one address
/// space to those of the other.
const TABLE: u32 = PAGE_TABLE - PAGE_DIRECTORY;
const NEXT_SPACE: u32 = 2 * TABLE;
/// Physical address of the frames of the program's pages, which are in no order, and the distance to those of
/// the other space.
const FRAMES: u32 = 0x40_0000;
const SPACE_FRAMES: u32 = 0x10_0000;

// The monitor's handlers and its data.
const PAGE_FAULT_HANDLER: u32 = CODE + 0x100;
const PROTECTION_HANDLER: u32 = CODE + 0x200;
const GATE_HANDLER: u32 = CODE + 0x300;
const EXTERNAL_HANDLER: u32 = CODE + 0x380;
/// Addresses of the pointer to the next record of a page fault, and of the first record.
const LOG: u32 = DATA;
const RECORDS: u32 = DATA + 0x10;
/// The address of the number of #GPs.
const PROTECTIONS: u32 = DATA + 4;
/// The address of the frame with which IRETD enters the program.
const FRAME: u32 = STACK - 9 * 4;

/// Offsets in the TSS of the interrupt redirection bit map and of the I/O permission bit map.
const REDIRECTION: u32 = 0x68;
const PORTS: u32 = REDIRECTION + 32;

// The program's segments.
const PROGRAM: u16 = 0x1000;
const OPERANDS: u16 = 0x2000;
const STACK_SEGMENT: u16 = 0x3000;
/// Offsets in these segments: of a function that crosses into the next page, and of the program's own
/// interrupt handler.
const FUNCTION: u32 = 0xffe;
const OWN_HANDLER: u32 = 0x800;
/// The vector of the software interrupt, and of the interrupt controller's.
const VECTOR: u8 = 0x21;
const EXTERNAL: u8 = 0x40;
const ROUNDS: u8 = 100;

/// How INT n is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the gate, with IOPL 3.
    Gate,
    /// The monitor gets #GP and skips the instruction, with IOPL 0.
    Monitor,
    /// The same with a monitor that loads no data segments, so that its code does not become flat.
    Bare,
    /// By the program's own vector, with CR4.VME and IOPL 0.
    Redirected,
}

/// Returns the physical address of the program's page at `linear`.
fn place(space: u32, linear: u32) -> u32 {
    let frame = (linear >> 12) * 37 % 256;
    FRAMES + space * SPACE_FRAMES + (frame << 12 | linear & 0xfff)
}

/// Returns the address of the page-table entry for `linear`.
fn pte(space: u32, linear: u32) -> u32 {
    PAGE_TABLE + space * NEXT_SPACE + (linear >> 12) * 4
}

/// Returns the linear address of `offset` in `segment`.
fn linear(segment: u16, offset: u32) -> u32 {
    (u32::from(segment) << 4) + offset
}

/// Returns the bytes of a number in code.
fn number(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

/// The monitor's entry: it executes IRETD with the frame on its stack, which leads into the program.
const ENTRY: [u8; 1] = [0xcf]; // IRETD

/// Returns the handler of page faults, which notes address and error code, and gives the program full access
/// to the page.
fn page_fault_handler() -> Vec<u8> {
    [
        &[0x50, 0x53][..],                // PUSH EAX; PUSH EBX
        &[0x6a, KERNEL_DATA as u8, 0x1f], // PUSH KERNEL_DATA; POP DS
        &[0x6a, KERNEL_DATA as u8, 0x07], // PUSH KERNEL_DATA; POP ES
        &[0x8b, 0x1d],                    // MOV EBX, [LOG]
        &number(KERNEL + LOG),
        &[0x0f, 0x20, 0xd0],    // MOV EAX, CR2
        &[0x89, 0x03],          // MOV [EBX], EAX
        &[0x8b, 0x44, 0x24, 8], // MOV EAX, [ESP+8]
        &[0x89, 0x43, 4],       // MOV [EBX+4], EAX
        &[0x83, 0xc3, 8],       // ADD EBX, 8
        &[0x89, 0x1d],          // MOV [LOG], EBX
        &number(KERNEL + LOG),
        &[0x0f, 0x20, 0xdb], // MOV EBX, CR3
        &[0x0f, 0x20, 0xd0], // MOV EAX, CR2
        &[0xc1, 0xe8, 12],   // SHR EAX, 12
        &[0x80, 0x8c, 0x83], // OR BYTE [EBX+4*EAX+...], 7
        &number(KERNEL + TABLE),
        &[7],
        &[0x0f, 0x20, 0xd0],    // MOV EAX, CR2
        &[0x0f, 0x01, 0x38],    // INVLPG [EAX]
        &[0x5b, 0x58],          // POP EBX; POP EAX
        &[0x83, 0xc4, 4, 0xcf], // ADD ESP, 4; IRETD
    ]
    .concat()
}

/// Returns the handler of #GP. It halts if the instruction is HLT, and skips all other instructions: INT n
/// has two bytes, and the others have one.
fn protection_handler(is_bare: bool) -> Vec<u8> {
    let loads = [
        0x6a,
        KERNEL_DATA as u8,
        0x1f, // PUSH KERNEL_DATA; POP DS
        0x6a,
        KERNEL_DATA as u8,
        0x07, // PUSH KERNEL_DATA; POP ES
    ];
    [
        &[0x50, 0x53][..], // PUSH EAX; PUSH EBX
        if is_bare { &[] } else { &loads },
        &[0x36, 0xff, 0x05], // INC DWORD SS:[PROTECTIONS]
        &number(KERNEL + PROTECTIONS),
        &[0x0f, 0xb7, 0x44, 0x24, 16], // MOVZX EAX, WORD [ESP+16]
        &[0xc1, 0xe0, 4],              // SHL EAX, 4
        &[0x03, 0x44, 0x24, 12],       // ADD EAX, [ESP+12]
        &[0x36, 0x8a, 0x18],           // MOV BL, SS:[EAX]
        &[0x80, 0xfb, 0xf4, 0x75, 3],  // CMP BL, F4h; JNE over three bytes
        &[0x5b, 0x58, 0xf4],           // POP EBX; POP EAX; HLT
        &[0x80, 0xfb, 0xcd, 0x75, 4],  // CMP BL, CDh; JNE over four bytes
        &[0xff, 0x44, 0x24, 12],       // INC DWORD [ESP+12]
        &[0xff, 0x44, 0x24, 12],       // INC DWORD [ESP+12]
        &[0x5b, 0x58],                 // POP EBX; POP EAX
        &[0x83, 0xc4, 4, 0xcf],        // ADD ESP, 4; IRETD
    ]
    .concat()
}

/// LEA EDX, [EDX+0x101]; IRETD
const GATE: [u8; 7] = [0x8d, 0x92, 0x01, 0x01, 0, 0, 0xcf];

/// The program. It walks through its operands, some words of which cross a page boundary.
#[rustfmt::skip]
fn program() -> Vec<u8> {
    let to_function = FUNCTION as u16 - 26;
    let [low, high] = to_function.to_le_bytes();
    vec![
        0xbd, ROUNDS, 0, //          00: MOV BP, ROUNDS
        0x8b, 0x04, //               03: MOV AX, [SI]
        0x01, 0x05, //               05: ADD [DI], AX
        0x13, 0x5c, 0x02, //         07: ADC BX, [SI+2]
        0x53, 0x0f, 0xa0, //         0A: PUSH BX; PUSH FS
        0x8e, 0xc3, //               0D: MOV ES, BX
        0x07, //                     0F: POP ES
        0x26, 0x89, 0x04, //         10: MOV ES:[SI], AX
        0x58, //                     13: POP AX
        0xcd, VECTOR, //             14: INT 21h
        0x40, //                     16: INC AX
        0xe8, low, high, //          17: CALL FUNCTION
        0x9c, 0xfa, 0xfb, 0x9d, //   1A: PUSHF; CLI; STI; POPF
        0x81, 0xc6, 0xd3, 0x01, //   1E: ADD SI, 1D3h
        0x81, 0xc7, 0x2f, 0x01, //   22: ADD DI, 12Fh
        0x4d, //                     26: DEC BP
        0x75, 0xda, //               27: JNZ 03
        0xb9, 0x10, 0x00, //         29: MOV CX, 10h
        0xbe, 0xf1, 0x0f, //         2C: MOV SI, FF1h
        0xbf, 0xf8, 0xcf, //         2F: MOV DI, CFF8h
        0x1e, 0x07, //               32: PUSH DS; POP ES
        0xf3, 0xa5, //               34: REP MOVSW
        0xf4, //                     36: HLT
    ]
}

/// ADD DX, with a number of the space's own, across two pages; RET
fn function(space: u32) -> [u8; 5] {
    [0x81, 0xc2, 0x67 + space as u8, 0x45, 0xc3]
}

/// ADD DX, 11h; IRET
const OWN: [u8; 4] = [0x83, 0xc2, 0x11, 0xcf];

/// Puts the monitor and both address spaces into memory.
fn prepare(machine: &mut Machine, way: Way) {
    for (place, code) in [
        (CODE, &ENTRY[..]),
        (PAGE_FAULT_HANDLER, &page_fault_handler()),
        (PROTECTION_HANDLER, &protection_handler(way == Way::Bare)),
        (GATE_HANDLER, &GATE),
        (EXTERNAL_HANDLER, &ENTRY),
    ] {
        machine.put(place, code);
    }
    let handlers = [
        (vector::PF, PAGE_FAULT_HANDLER, 0),
        (vector::GP, PROTECTION_HANDLER, 0),
        (VECTOR, GATE_HANDLER, DPL3),
        (EXTERNAL, EXTERNAL_HANDLER, 0),
    ];
    for (vector, handler, privilege) in handlers {
        let (handler, gate) = (KERNEL + handler, IDT + u32::from(vector) * 8);
        machine.put_dword(gate, u32::from(KERNEL_CODE) << 16 | handler & 0xffff);
        let access = u32::from(INTERRUPT_GATE | privilege) << 8;
        machine.put_dword(gate + 4, handler & 0xffff_0000 | access);
    }
    machine.set_inner_stack(0, KERNEL + INNER_STACK, KERNEL_DATA);
    machine.put_dword(TSS + 0x64, PORTS << 16);
    machine.put_dword(LOG, KERNEL + RECORDS);
    let iopl = if way == Way::Gate { Eflags::IOPL } else { Eflags::empty() };
    let frame = [
        0,
        PROGRAM.into(),
        (Eflags::VM | Eflags::IF | iopl).bits(),
        0x1000,
        STACK_SEGMENT.into(),
        OPERANDS.into(),            // ES
        OPERANDS.into(),            // DS
        u32::from(OPERANDS) + 0x40, // FS
        0,
    ];
    for (at, value) in (FRAME..).step_by(4).zip(frame) {
        machine.put_dword(at, value);
    }
    for space in 0..2 {
        prepare_space(machine, space);
    }
}

/// Puts an address space into memory.
fn prepare_space(machine: &mut Machine, space: u32) {
    let directory = PAGE_DIRECTORY + space * NEXT_SPACE;
    machine.put_dword(directory, (directory + TABLE) | P | RW | US);
    for page in (0..0x10_0000).step_by(0x1000) {
        machine.put_dword(pte(space, page), place(space, page) | P | RW | US);
        machine.put_dword(pte(space, KERNEL + page), page | P | RW);
        // The numbers differ from page to page.
        let numbers: Vec<u8> =
            (0..0x1000).map(|at| (at * 7 + page / 0x1000 * 3 + space) as u8).collect();
        machine.put(place(space, page), &numbers);
    }
    let mut put = |linear: u32, bytes: &[u8]| {
        for (at, byte) in (linear..).zip(bytes) {
            machine.put(place(space, at), &[*byte]);
        }
    };
    put(linear(PROGRAM, 0), &program());
    put(linear(PROGRAM, FUNCTION), &function(space));
    put(linear(PROGRAM, OWN_HANDLER), &OWN);
    put(u32::from(VECTOR) * 4, &number(u32::from(PROGRAM) << 16 | OWN_HANDLER));
    for (page, bits, _) in WITHHELD {
        machine.put_dword(pte(space, page), place(space, page) | bits);
    }
}

/// Pages that are not present at first, or that can only be read, in the order in which the program comes to
/// them. Each has the error code of its page fault: of an instruction (4), or of a write to a page that is
/// not present (6) or present (7).
const WITHHELD: [(u32, u32, u32); 5] = [
    (0x3_0000, 0, 6),
    (0x1_1000, 0, 4),
    (0x2_2000, 0, 6),
    (0x2_4000, P | US, 7),
    (0x2_d000, P | US, 7),
];

/// Enters the program in `space`.
fn enter(machine: &mut Machine, space: u32, way: Way) {
    machine.reset_processor();
    let cpu = &mut machine.cpu;
    cpu.set_cr3((PAGE_DIRECTORY + space * NEXT_SPACE).into());
    cpu.set_cr4(if way == Way::Redirected { Cr4::VME } else { Cr4::empty() });
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP);
    cpu.gdtr = TableRegister { base: (KERNEL + GDT).into(), ..cpu.gdtr };
    cpu.idtr = TableRegister { base: (KERNEL + IDT).into(), ..cpu.idtr };
    cpu.tr = Segment::new(TASK, (KERNEL + TSS).into(), PORTS + 0x20, Attributes(0x8b));
    cpu.set_gpr(reg::SP, (KERNEL + FRAME).into());
    cpu.set_gpr(reg::DX, 0);
    cpu.ip = (KERNEL + CODE).into();
}

/// Returns the page faults that the monitor has noted, as pages and error codes.
fn page_faults(machine: &Machine) -> Vec<(u32, u32)> {
    let end = machine.dword(LOG) - KERNEL;
    let records = (RECORDS..end).step_by(8);
    records.map(|at| (machine.dword(at) & !0xfff, machine.dword(at + 4))).collect()
}

/// Runs both machines until the monitor halts, in pieces of at most `piece` instructions.
fn run_in_pieces(pair: &mut Pair, piece: u64) {
    loop {
        match pair.each(|machine| machine.run_for(piece)) {
            Exit::Deadline => {}
            exit => return assert_eq!(exit, Exit::Halt, "{}", pair.reports()),
        }
    }
}

/// The first space runs twice, since the translator uses what it knows of it again.
#[test]
fn a_monitor_emulates_instructions_of_its_program() {
    for (way, added, protections) in [
        (Way::Gate, 0x101, 1),
        (Way::Monitor, 0, 1 + 5 * u32::from(ROUNDS)),
        (Way::Bare, 0, 1 + 5 * u32::from(ROUNDS)),
        (Way::Redirected, 0x11, 1),
    ] {
        for piece in [u64::from(u32::MAX), 500, 13] {
            let Some(mut pair) = Pair::new() else { return };
            pair.each(|machine| prepare(machine, way));
            let mut expected = Vec::new();
            for (space, is_known) in [(0, false), (1, false), (0, true)] {
                pair.each(|machine| {
                    machine.put_dword(PROTECTIONS, 0);
                    enter(machine, space, way);
                });
                let before = pair.counted("entries to translated code");
                run_in_pieces(&mut pair, piece);
                pair.compare();
                let entries = pair.counted("entries to translated code") - before;
                let stays = matches!(way, Way::Gate | Way::Bare);
                // A round contains one INT n, or five instructions that the monitor executes, and as many
                // IRETDs. One other instruction of a round may be left to the interpreter.
                if is_known && piece > 1000 && stays {
                    assert!(entries < 2 * u64::from(ROUNDS), "{way:?}: {entries} entries");
                }

                if !is_known {
                    expected.extend(WITHHELD.map(|(page, _, error_code)| (page, error_code)));
                }
                assert_eq!(page_faults(&pair.tested), expected, "{way:?}");
                assert_eq!(pair.tested.dword(PROTECTIONS), protections, "{way:?}");
                let each_round = 0x4567 + space + added;
                let sum = each_round * u32::from(ROUNDS);
                assert_eq!(pair.tested.get(reg::DX) & 0xffff, sum & 0xffff, "{way:?}");
            }
            let counters = pair.tested.engine.counters();
            let (_, interpreted) =
                counters.iter().find(|(name, _)| *name == "instructions interpreted").unwrap();
            let executed = pair.tested.cpu.instructions;
            println!("{way:?}: {interpreted} of {executed} instructions interpreted");
            assert!(piece < 100 || *interpreted < executed / 2, "{interpreted} of {executed}");
        }
    }
}

/// Something that changes while the program runs.
type Change = fn(&mut Machine);

/// Changes a byte of the descriptor of `selector`.
fn flip_descriptor(machine: &mut Machine, selector: u16, byte: u32, bits: u64) {
    machine.set_descriptor(selector, machine.descriptor(selector) ^ bits << (8 * byte));
}

/// Changes a byte of the gates through which the program leads to the monitor.
fn flip_gates(machine: &mut Machine, byte: u32, bits: u8) {
    for vector in [vector::GP, VECTOR] {
        let at = IDT + u32::from(vector) * 8 + byte;
        let old = machine.dword(at) as u8;
        machine.put(at, &[old ^ bits]);
    }
}

/// Changes flags of the program, if it is what runs.
fn flip_flags(machine: &mut Machine, flags: Eflags) {
    let old = machine.cpu.eflags();
    if old.contains(Eflags::VM) {
        machine.cpu.set_eflags(old ^ flags);
    }
}

/// Makes the monitor's stack begin `bytes` bytes above a page that is not present.
fn cut_stack(machine: &mut Machine, bytes: u32) {
    let page = INNER_STACK - 0x2000;
    machine.put_dword(pte(0, KERNEL + page - 0x1000), 0);
    machine.set_inner_stack(0, KERNEL + page + bytes, KERNEL_DATA);
    let cr3 = machine.cpu.cr3();
    machine.cpu.set_cr3(cr3);
}

const CHANGES: &[Change] = &[
    // Trap gates, gates of 16 bits, task gates, of privilege 0, not present, to data, and to nothing.
    |machine| flip_gates(machine, 5, 1),
    |machine| flip_gates(machine, 5, 8),
    |machine| flip_gates(machine, 5, 11),
    |machine| flip_gates(machine, 5, DPL3),
    |machine| flip_gates(machine, 5, PRESENT),
    |machine| flip_gates(machine, 2, (KERNEL_CODE ^ KERNEL_DATA) as u8),
    |machine| flip_gates(machine, 2, KERNEL_CODE as u8),
    |machine| flip_gates(machine, 2, 3),
    |machine| machine.cpu.idtr.limit = 0x6e,
    // Code that is conforming, at privilege 3, not present, that cannot be read, of 16 bits, with a limit,
    // with a base, and with a bit that has no effect; the accessed bit.
    |machine| flip_descriptor(machine, KERNEL_CODE, 5, 4),
    |machine| flip_descriptor(machine, KERNEL_CODE, 5, DPL3.into()),
    |machine| flip_descriptor(machine, KERNEL_CODE, 5, PRESENT.into()),
    |machine| flip_descriptor(machine, KERNEL_CODE, 5, 2),
    |machine| flip_descriptor(machine, KERNEL_CODE, 6, 0x40),
    |machine| flip_descriptor(machine, KERNEL_CODE, 6, 0x8f),
    |machine| flip_descriptor(machine, KERNEL_CODE, 3, 1),
    |machine| flip_descriptor(machine, KERNEL_CODE, 6, 0x10),
    |machine| flip_descriptor(machine, KERNEL_CODE, 5, 1),
    // A stack that grows down, that is read-only, not present, of 16 bits, with a limit, with a base.
    |machine| flip_descriptor(machine, KERNEL_DATA, 5, 4),
    |machine| flip_descriptor(machine, KERNEL_DATA, 5, 2),
    |machine| flip_descriptor(machine, KERNEL_DATA, 5, PRESENT.into()),
    |machine| flip_descriptor(machine, KERNEL_DATA, 6, 0x40),
    |machine| flip_descriptor(machine, KERNEL_DATA, 6, 0x8f),
    |machine| flip_descriptor(machine, KERNEL_DATA, 2, 4),
    |machine| flip_descriptor(machine, KERNEL_DATA, 5, 1),
    // The stack of the TSS: another pointer, other selectors, a TSS that is too short, and one of 16 bits.
    |machine| machine.set_inner_stack(0, KERNEL + INNER_STACK - 0x44, KERNEL_DATA),
    |machine| machine.set_inner_stack(0, KERNEL + INNER_STACK - 0x41, KERNEL_DATA),
    |machine| machine.set_inner_stack(0, KERNEL + INNER_STACK, FREE),
    |machine| machine.set_inner_stack(0, KERNEL + INNER_STACK, 0),
    |machine| machine.set_inner_stack(0, KERNEL + INNER_STACK, USER_DS),
    |machine| machine.set_inner_stack(0, 8, KERNEL_DATA),
    |machine| machine.cpu.tr.limit = 10,
    |machine| machine.cpu.tr.attributes = Attributes(0x83),
    |machine| cut_stack(machine, 0),
    |machine| cut_stack(machine, 8),
    |machine| cut_stack(machine, 20),
    |machine| cut_stack(machine, 36),
    |machine| cut_stack(machine, 40),
    // Flags of the program, and what decides on them.
    |machine| flip_flags(machine, Eflags::NT),
    |machine| flip_flags(machine, Eflags::AC),
    |machine| flip_flags(machine, Eflags::ID),
    |machine| flip_flags(machine, Eflags::IF),
    |machine| flip_flags(machine, Eflags::IOPL),
    |machine| flip_flags(machine, Eflags::VIF),
    |machine| flip_flags(machine, Eflags::VIP),
    |machine| flip_flags(machine, Eflags::RF),
    |machine| flip_flags(machine, Eflags::TF),
    |machine| machine.cpu.set_cr4(Cr4::VME),
    |machine| machine.cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::AM),
];

#[test]
fn tables_stacks_and_flags_change_while_a_program_runs() {
    let Some(mut pair) = Pair::new() else { return };
    for way in [Way::Gate, Way::Bare, Way::Monitor] {
        for (number, change) in CHANGES.iter().enumerate() {
            for before in [900, 905, 911] {
                let both: Change = |machine| {
                    machine.set_descriptor(KERNEL_CODE, flat(CODE_SEGMENT));
                    machine.set_descriptor(KERNEL_DATA, flat(DATA_SEGMENT));
                    machine.set_descriptor(FREE, flat(DATA_SEGMENT));
                };
                pair.each(both);
                pair.each(|machine| prepare(machine, way));
                pair.each(|machine| enter(machine, 0, way));
                pair.each(|machine| machine.run_for(before));
                pair.each(change);
                for _ in 0..12 {
                    let exit = pair.each(|machine| machine.run_for(97));
                    pair.compare_processors();
                    if exit != Exit::Deadline {
                        break;
                    }
                }
                pair.compare();
                println!("{way:?}, change {number} after {before} instructions");
            }
        }
    }
}

#[test]
fn interrupts_at_every_instruction_of_a_program() {
    let Some(mut pair) = Pair::new() else { return };
    for way in [Way::Gate, Way::Bare] {
        for before in 1000..1070 {
            pair.each(|machine| prepare(machine, way));
            pair.each(|machine| enter(machine, 0, way));
            pair.each(|machine| machine.run_for(before));
            pair.each(|machine| machine.interrupt = Some(EXTERNAL));
            run_in_pieces(&mut pair, 100_000);
            pair.compare();
        }
    }
}
