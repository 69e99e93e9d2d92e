//! A program that calls the supervisor again and again by INT n, INT3, an instruction that faults or a call
//! gate. The handler executes another INT n, and both return by IRET, or from a call gate by RET. All of them
//! log what they see. The logs must be the same on both engines, wherever execution stops in between, and
//! whatever the handler changes in tables, in its stack and in the frame to which it returns.

use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{TableRegister, sreg};

use crate::machine::*;
use crate::pair::Pair;

/// The program's interrupt, and the one that its handler raises.
const OUTER: u8 = 0x80;
const INNER: u8 = 0x81;
/// An interrupt whose handler is at another address. It counts, and does the same as the handler of
/// [`OUTER`].
const OTHER: u8 = 0xc0;
/// The interrupt of the interrupt controller, whose handler counts and returns.
const EXTERNAL: u8 = 0x40;

const OUTER_HANDLER: u32 = CODE;
const COUNTED: u32 = DATA;
/// The address of the pointer to the supervisor's next record.
const LOG: u32 = DATA + 4;
/// The supervisor's records, in pages that users may not access.
const RECORDS: u32 = 0x5_2000;
const USER_LOG: u32 = 0x6_0000;
/// The selector of the call gate.
const GATE: u16 = 0x4b;
/// The address of a second IDT.
const OTHER_IDT: u32 = 0x5_4000;

const CALLS: u32 = 24;
/// More instructions than everything executes.
const LIMIT: u64 = 20_000;

/// How the program calls.
#[derive(Clone, Copy)]
enum Call {
    Interrupt,
    /// INT3.
    Breakpoint,
    /// UD2. Its handler returns to the instruction after it, with RF set.
    Fault,
    /// A far call through the gate [`GATE`].
    Gate,
}

impl Call {
    const ALL: [Call; 4] = [Call::Interrupt, Call::Breakpoint, Call::Fault, Call::Gate];

    /// Returns its bytes.
    fn code(self) -> &'static [u8] {
        match self {
            Call::Interrupt => &[0xcd, OUTER],
            Call::Breakpoint => &[0xcc, 0x90],
            Call::Fault => &[0x0f, 0x0b],
            Call::Gate => &[0x9a, 0, 0, 0, 0, GATE as u8, 0],
        }
    }

    /// Returns the instruction by which the handler returns.
    fn end(self) -> &'static [u8] {
        match self {
            Call::Gate => &[0xcb], // RETF
            _ => &[0xcf],          // IRETD
        }
    }

    fn vector(self) -> u8 {
        match self {
            Call::Interrupt | Call::Gate => OUTER,
            Call::Breakpoint => 3,
            Call::Fault => 6,
        }
    }
}

/// Logs at EDI what the program sees, and calls the supervisor, until EBP is 0.
fn program(call: Call) -> Vec<u8> {
    let length = call.code().len() as u8;
    [
        &[0xfc, 0x8c, 0xc8, 0xab][..], // CLD; MOV EAX, CS; STOSD
        &[0x8c, 0xd0, 0xab],           // MOV EAX, SS; STOSD
        &[0x8c, 0xe0, 0xab],           // MOV EAX, FS; STOSD
        &[0x8c, 0xe8, 0xab],           // MOV EAX, GS; STOSD
        &[0x89, 0xe0, 0xab],           // MOV EAX, ESP; STOSD
        &[0x9c, 0x58, 0xab],           // PUSHFD; POP EAX; STOSD
        &[0x4d, 0x74, 0x03 + length],  // DEC EBP; JZ over the next three
        &[0xf9],                       // STC
        call.code(),                   // the call
        &[0xeb, 0xe7 - length, 0xf4],  // JMP to the first one; HLT, which is not allowed
    ]
    .concat()
}

/// Logs what the supervisor sees, executes `change` at every fourth call, and returns.
fn outer_handler(call: Call, change: &[u8]) -> Vec<u8> {
    let log = LOG.to_le_bytes();
    let handler = [
        &[0x60, 0xfc, 0x8b, 0x3d][..], // PUSHAD; CLD; MOV EDI, [LOG]
        &log,
        &[0x89, 0xe6],                    // MOV ESI, ESP
        &[0xb9, 13, 0, 0, 0, 0xf3, 0xa5], // MOV ECX, 13; REP MOVSD
        &[0x8c, 0xc8, 0xab],              // MOV EAX, CS; STOSD
        &[0x8c, 0xd0, 0xab],              // MOV EAX, SS; STOSD
        &[0x9c, 0x58, 0xab],              // PUSHFD; POP EAX; STOSD
        &[0x89, 0x3d],                    // MOV [LOG], EDI
        &log,
        &[0xf7, 0xc5, 3, 0, 0, 0, 0x75, change.len() as u8], // TEST EBP, 3; JNZ over the next ones
        change,
        &[0xf9, 0xcd, INNER, 0x61], // STC; INT n; POPAD
        call.end(),
    ];
    handler.concat()
}

/// Returns a 32-bit call gate for users.
fn call_gate(selector: u16, offset: u32, parameters: u64) -> u64 {
    let access = u64::from(PRESENT | DPL3 | 0x0c);
    u64::from(offset & 0xffff)
        | u64::from(selector) << 16
        | parameters << 32
        | access << 40
        | u64::from(offset >> 16) << 48
}

/// XOR BYTE [address], bits
fn flip_byte(address: u32, bits: u8) -> Vec<u8> {
    [&[0x80, 0x35][..], &address.to_le_bytes(), &[bits]].concat()
}

/// XOR DWORD [address], bits
fn flip(address: u32, bits: u32) -> Vec<u8> {
    [&[0x81, 0x35][..], &address.to_le_bytes(), &bits.to_le_bytes()].concat()
}

/// XOR DWORD [ESP+offset], bits: changes a value that the call has pushed.
fn flip_pushed(offset: u8, bits: u32) -> Vec<u8> {
    [&[0x81, 0x74, 0x24, 32 + offset][..], &bits.to_le_bytes()].concat()
}

const PUSHED_CS: u8 = 4;
const PUSHED_FLAGS: u8 = 8;
const PUSHED_SS: u8 = 16;
/// The offset of SS after a call through a gate, which pushes no flags.
const PUSHED_SS_BY_GATE: u8 = 12;

fn begin(machine: &mut Machine, change: &[u8]) {
    begin_with(machine, Call::Interrupt, change);
}

fn begin_with(machine: &mut Machine, call: Call, change: &[u8]) {
    machine.reset_processor();
    machine.enable_paging();
    machine.put(USER_CODE, &program(call));
    machine.put(OUTER_HANDLER, &outer_handler(call, change));
    let supervisors = [CODE, RECORDS, RECORDS + 0x1000, INNER_STACK - 0x1000, COUNTED, GDT, IDT];
    for page in supervisors.into_iter().chain([TSS, OTHER_IDT, HANDLERS, HANDLERS + 0x1000]) {
        machine.map(page, page, P | RW);
    }
    machine.put_dword(COUNTED, 0);
    machine.put_dword(LOG, RECORDS);
    // Another run may have changed these.
    machine.set_descriptor(KERNEL_CODE, flat(CODE_SEGMENT));
    machine.set_descriptor(KERNEL_DATA, flat(DATA_SEGMENT));
    machine.set_descriptor(USER_CS, flat(CODE_SEGMENT | DPL3));
    machine.set_descriptor(USER_DS, flat(DATA_SEGMENT | DPL3));
    machine.set_descriptor(GATE, call_gate(KERNEL_CODE, OUTER_HANDLER, 0));
    machine.set_inner_stack(0, INNER_STACK, KERNEL_DATA);
    let count = [&[0xff, 0x05][..], &COUNTED.to_le_bytes()].concat(); // INC DWORD [COUNTED]
    let jump_from = |at: u32| (OUTER_HANDLER.wrapping_sub(at + 5)).to_le_bytes();
    let to_outer = |at: u32| [&[0xe9][..], &jump_from(at)].concat();
    let skips: &[u8] = match call {
        Call::Fault => &[0x83, 0x04, 0x24, 2], // ADD DWORD [ESP], 2
        _ => &[],
    };
    let outer = handler(call.vector());
    machine.put(outer, &[skips, &to_outer(outer + skips.len() as u32)].concat());
    let other = handler(OTHER);
    machine.put(other, &[&count[..], &to_outer(other + count.len() as u32)].concat());
    machine.put(handler(EXTERNAL), &[&count[..], &[0xcf]].concat());
    // XOR DWORD [ESP+8], CF; IRETD
    machine.put(handler(INNER), &[&count[..], &[0x83, 0x74, 0x24, 8, 1, 0xcf]].concat());
    machine.set_gate(call.vector(), KERNEL_CODE, INTERRUPT_GATE | DPL3);
    machine.set_gate(INNER, KERNEL_CODE, TRAP_GATE);
    let mut gates = [0; 0x800];
    machine.memory.read(IDT.into(), &mut gates);
    machine.put(OTHER_IDT, &gates);
    let at = OTHER_IDT + u32::from(OUTER) * 8;
    machine.put_dword(at, machine.dword(IDT + u32::from(OTHER) * 8));
    machine.accesses.clear();
    machine.interrupt = None;
    machine.enter_user();
    let cpu = &mut machine.cpu;
    cpu.set_cr4(Cr4::empty());
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
    cpu.set_eflags(Eflags::IF);
    cpu.set_gpr(reg::BP, CALLS.into());
    cpu.set_gpr(reg::DI, USER_LOG.into());
    let data = *cpu.segment(sreg::DS);
    cpu.set_segment(sreg::FS, data);
    cpu.set_segment(sreg::GS, ring3_x86::segment::Segment::null(0));
}

/// Runs the program, with `change` in its handler, to its end in slices of several lengths. Returns the last
/// exit.
#[track_caller]
fn compare(pair: &mut Pair, change: &[u8]) -> Exit {
    compare_with(pair, Call::Interrupt, change)
}

#[track_caller]
fn compare_with(pair: &mut Pair, call: Call, change: &[u8]) -> Exit {
    let mut last = Exit::Halt;
    for slice in [1, 2, 3, 7, 50, 333, LIMIT, LIMIT] {
        pair.each(|machine| begin_with(machine, call, change));
        last = pair.run_in_slices(slice, LIMIT);
    }
    last
}

/// Runs the program, in which all calls are made, to its normal end.
#[track_caller]
fn compare_to_the_end(pair: &mut Pair, change: &[u8]) {
    assert_eq!(compare(pair, change), Exit::Halt);
    let exception = pair.right.exception().map(|exception| (exception.vector, exception.cs));
    assert_eq!(exception, Some((13, USER_CS)), "{}", pair.reports());
    assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
}

#[test]
fn calls_stay_in_translated_code() {
    let Some(mut pair) = Pair::new() else { return };
    compare_to_the_end(&mut pair, &[]);
    let before = pair.counted("instructions left to the interpreter");
    pair.each(|machine| begin(machine, &[]));
    pair.run_to_halt();
    let left = pair.counted("instructions left to the interpreter") - before;
    // Each call contains four INT n and IRET, besides PUSHAD and POPAD.
    assert!(left < 3 * u64::from(CALLS), "{left} instructions for {CALLS} calls");
}

/// RF, which IRET sets after faults, is visible if no further instruction is executed.
#[test]
fn calls_of_other_kinds() {
    let Some(mut pair) = Pair::new() else { return };
    for (call, most) in [(Call::Breakpoint, 3), (Call::Fault, 4)] {
        for flags in [Eflags::empty(), Eflags::RF, Eflags::RF | Eflags::IF] {
            compare_with(&mut pair, call, &flip_pushed(PUSHED_FLAGS, flags.bits()));
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
        pair.each(|machine| begin_with(machine, call, &[]));
        pair.run_to_halt();
        let before = pair.counted("instructions left to the interpreter");
        pair.each(|machine| begin_with(machine, call, &[]));
        pair.run_to_halt();
        let left = pair.counted("instructions left to the interpreter") - before;
        // PUSHAD and POPAD, and the instruction that faults.
        assert!(left < most * u64::from(CALLS), "{left} instructions for {CALLS} calls");
    }
}

#[test]
fn tables_change_between_calls() {
    let Some(mut pair) = Pair::new() else { return };
    let gate = IDT + u32::from(OUTER) * 8;
    // The available bit of a descriptor, which is visible in its segment register, and its accessed bit.
    let available = |selector: u16| flip_byte(GDT + u32::from(selector & !7) + 6, 0x10);
    let accessed = |selector: u16| flip_byte(GDT + u32::from(selector & !7) + 5, 1);
    let mut changes = vec![
        vec![0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8], // MOV EAX, CR3; MOV CR3, EAX
        flip_byte(gate + 5, 1),                   // to a trap gate, and back
        flip(gate, handler(OUTER) ^ handler(OTHER)),
        flip(TSS + 4, 0x40),
        flip(TSS + 8, u32::from(KERNEL_DATA ^ FREE)),
        [&[0x0f, 0x01, 0x3d][..], &gate.to_le_bytes()].concat(), // INVLPG [gate]
    ];
    for selector in [KERNEL_CODE, KERNEL_DATA, USER_CS, USER_DS] {
        changes.extend([available(selector), accessed(selector)]);
    }
    for change in changes {
        pair.each(|machine| machine.set_descriptor(FREE, flat(DATA_SEGMENT)));
        compare_to_the_end(&mut pair, &change);
    }
}

#[test]
fn calls_through_gates_stay_in_translated_code() {
    let Some(mut pair) = Pair::new() else { return };
    compare_with(&mut pair, Call::Gate, &[]);
    assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
    let before = pair.counted("instructions left to the interpreter");
    pair.each(|machine| begin_with(machine, Call::Gate, &[]));
    pair.run_to_halt();
    let left = pair.counted("instructions left to the interpreter") - before;
    // PUSHAD and POPAD, where they are left, and the ends of the program.
    assert!(left < 3 * u64::from(CALLS), "{left} instructions for {CALLS} calls");
}

#[test]
fn call_gates_change_between_calls() {
    let Some(mut pair) = Pair::new() else { return };
    let gate = GDT + u32::from(GATE & !7);
    let code = |selector: u16| GDT + u32::from(selector & !7);
    let elsewhere = OUTER_HANDLER ^ handler(OUTER);
    for change in [
        [flip_byte(gate + 1, (elsewhere >> 8) as u8), flip_byte(gate + 6, (elsewhere >> 16) as u8)]
            .concat(),
        flip_byte(gate + 2, (KERNEL_CODE ^ KERNEL_DATA) as u8),
        flip_byte(gate + 2, 3),
        // Parameters, a gate with 16 bits, and gates that raise exceptions.
        flip_byte(gate + 4, 1),
        flip_byte(gate + 5, 0x0c ^ 0x04),
        flip_byte(gate + 5, 0x20),
        flip_byte(gate + 5, PRESENT),
        // Code that is conforming, that is at privilege 3, that is not present or has a limit; a bit that is
        // visible, and the accessed bit.
        flip_byte(code(KERNEL_CODE) + 5, 4),
        flip_byte(code(KERNEL_CODE) + 5, DPL3),
        flip_byte(code(KERNEL_CODE) + 5, PRESENT),
        flip_byte(code(KERNEL_CODE) + 6, 0x8f),
        flip_byte(code(KERNEL_CODE) + 6, 0x10),
        flip_byte(code(KERNEL_CODE) + 5, 1),
        // Stacks.
        flip(TSS + 4, 0x40),
        flip(TSS + 8, u32::from(KERNEL_DATA ^ FREE)),
        flip(TSS + 8, u32::from(KERNEL_DATA ^ USER_DS)),
        flip(TSS + 8, KERNEL_DATA.into()),
        flip_byte(code(KERNEL_DATA) + 5, 4),
        flip_byte(code(KERNEL_DATA) + 6, 0x40),
        vec![0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8], // MOV EAX, CR3; MOV CR3, EAX
    ] {
        pair.each(|machine| machine.set_descriptor(FREE, flat(DATA_SEGMENT)));
        compare_with(&mut pair, Call::Gate, &change);
    }
    // The stack is not present, or only part of the frame fits.
    for pointer in [0x5_6000, 0x5_5008, 0x5_500c, 0, 8, 0xc] {
        let present = pointer & 0xfff != 0;
        pair.each(|machine| {
            machine.map(0x5_4000, 0x5_4000, P | RW);
            machine.map(0x5_5000, 0x5_5000, if present { P | RW } else { 0 });
        });
        compare_with(&mut pair, Call::Gate, &flip(TSS + 4, INNER_STACK ^ pointer));
    }
}

#[test]
fn far_returns_to_the_program() {
    let Some(mut pair) = Pair::new() else { return };
    for (pushed, bits) in [
        (PUSHED_CS, USER_CS ^ USER_DS),
        (PUSHED_CS, USER_CS),
        (PUSHED_CS, USER_CS ^ (KERNEL_CODE | 3)),
        (PUSHED_CS, USER_CS ^ KERNEL_CODE),
        (PUSHED_CS, USER_CS ^ 0x103),
        (PUSHED_SS_BY_GATE, USER_DS ^ KERNEL_DATA),
        (PUSHED_SS_BY_GATE, USER_DS),
        (PUSHED_SS_BY_GATE, USER_DS ^ USER_CS),
        (PUSHED_SS_BY_GATE - 4, 0x40),
    ] {
        compare_with(&mut pair, Call::Gate, &flip_pushed(pushed, bits.into()));
    }
    for (selector, vector) in [(USER_CS, 11), (USER_DS, 12)] {
        let change = flip_byte(GDT + u32::from(selector & !7) + 5, 0x80);
        assert_eq!(compare_with(&mut pair, Call::Gate, &change), Exit::Halt);
        assert_eq!(pair.right.exception().map(|exception| exception.vector), Some(vector));
    }
    // RET makes data segment registers with the supervisor's segments null in the program.
    for load in [[0x8e, 0xe0], [0x8e, 0xe8], [0x8e, 0xd8]] {
        for selector in [KERNEL_DATA, 3, 0, USER_DS] {
            let change = [&[0x66, 0xb8][..], &selector.to_le_bytes(), &load].concat(); // MOV AX, selector; MOV Sreg, AX
            compare_with(&mut pair, Call::Gate, &change);
        }
    }
    // RET with parameters, which lie on both stacks.
    for number in [8u8, 4] {
        for slice in [1, 3, LIMIT] {
            pair.each(|machine| {
                begin_with(machine, Call::Gate, &[]);
                let handler = outer_handler(Call::Gate, &[]);
                let end = OUTER_HANDLER + handler.len() as u32 - 1;
                // SUB ESP, number; MOV of the frame down; RET number
                let frame: Vec<u8> = [0, 4]
                    .into_iter()
                    .flat_map(|at| [0x8b, 0x44, 0x24, at + number, 0x89, 0x44, 0x24, at])
                    .collect();
                let code = [&[0x83, 0xec, number][..], &frame, &[0xca, number, 0]].concat();
                machine.put(end, &code);
            });
            while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                pair.compare_processors();
            }
            pair.compare();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}

#[test]
fn another_table_of_gates() {
    let Some(mut pair) = Pair::new() else { return };
    let registers = DATA + 0x10;
    for limit in [0x7ffu16, 0x406, 0x407] {
        pair.each(|machine| {
            machine.put(registers, &limit.to_le_bytes());
            machine.put(registers + 2, &OTHER_IDT.to_le_bytes());
        });
        // LIDT [registers]
        compare(&mut pair, &[&[0x0f, 0x01, 0x1d][..], &registers.to_le_bytes()].concat());
        let idtr = TableRegister { base: OTHER_IDT.into(), limit };
        assert!(pair.right.cpu.idtr == idtr, "{}", pair.reports());
    }
}

#[test]
fn handlers_change_the_state_to_which_they_return() {
    let Some(mut pair) = Pair::new() else { return };
    for flag in [
        Eflags::DF,
        Eflags::IF,
        Eflags::AC,
        Eflags::ID,
        Eflags::NT,
        Eflags::RF,
        Eflags::IOPL,
        Eflags::VIF,
        Eflags::STATUS,
    ] {
        let ends = compare(&mut pair, &flip_pushed(PUSHED_FLAGS, flag.bits()));
        assert!(ends == Exit::Halt || flag == Eflags::NT, "{}", pair.reports());
    }
    // IRET makes data segment registers with the supervisor's segments null in the program.
    for load in [[0x8e, 0xe0], [0x8e, 0xe8]] {
        for selector in [KERNEL_DATA, 3, 0, USER_DS] {
            let change = [&[0x66, 0xb8][..], &selector.to_le_bytes(), &load].concat(); // MOV AX, selector; MOV FS/GS, AX
            compare_to_the_end(&mut pair, &change);
        }
    }
    // MOV AX, KERNEL_DATA; MOV DS, AX
    let change = [&[0x66, 0xb8][..], &KERNEL_DATA.to_le_bytes(), &[0x8e, 0xd8]].concat();
    assert_eq!(compare(&mut pair, &change), Exit::Halt);
}

#[test]
fn returns_that_fault() {
    let Some(mut pair) = Pair::new() else { return };
    let vectors = [
        (PUSHED_CS, USER_CS ^ USER_DS, 13),
        (PUSHED_CS, USER_CS, 13),
        (PUSHED_CS, USER_CS ^ (KERNEL_CODE | 3), 13),
        (PUSHED_CS, USER_CS ^ 0x103, 13),
        (PUSHED_SS, USER_DS ^ KERNEL_DATA, 13),
        (PUSHED_SS, USER_DS, 13),
        (PUSHED_SS, USER_DS ^ USER_CS, 13),
    ];
    for (pushed, bits, vector) in vectors {
        assert_eq!(compare(&mut pair, &flip_pushed(pushed, bits.into())), Exit::Halt);
        let exception = pair.right.exception().map(|exception| (exception.vector, exception.cs));
        assert_eq!(exception, Some((vector, KERNEL_CODE)), "{}", pair.reports());
    }
    // The segments of the program are no longer present.
    for (selector, vector) in [(USER_CS, 11), (USER_DS, 12)] {
        let change = flip_byte(GDT + u32::from(selector & !7) + 5, 0x80);
        assert_eq!(compare(&mut pair, &change), Exit::Halt);
        assert_eq!(pair.right.exception().map(|exception| exception.vector), Some(vector));
    }
}

#[test]
fn calls_that_fault() {
    let Some(mut pair) = Pair::new() else { return };
    let gate = IDT + u32::from(OUTER) * 8;
    let vectors = [
        (flip_byte(gate + 5, DPL3), 13),
        (flip_byte(gate + 5, PRESENT), 11),
        (flip_byte(gate + 5, 2), 13),
        (flip_byte(gate + 2, (KERNEL_CODE ^ KERNEL_DATA) as u8), 13),
        // SS0 becomes a selector of the program, one of another kind, and null.
        (flip(TSS + 8, u32::from(KERNEL_DATA ^ KERNEL_CODE)), 10),
        (flip(TSS + 8, u32::from(KERNEL_DATA ^ USER_DS)), 10),
        (flip(TSS + 8, KERNEL_DATA.into()), 10),
    ];
    for (change, vector) in vectors {
        compare(&mut pair, &change);
        if vector != 10 {
            let exception = pair.right.exception();
            assert_eq!(exception.map(|exception| exception.vector), Some(vector), "{change:x?}");
        }
    }
    // The supervisor's stack is not present, or only half of the frame fits. There is no other stack, so the
    // processor shuts down.
    for pointer in [0x5_6000, 0x5_5008, 0x5_5010, 0, 8, 0x14] {
        let present = pointer == 0x5_5008 || pointer == 0x5_5010;
        pair.each(|machine| {
            machine.map(0x5_4000, 0x5_4000, P | RW);
            machine.map(0x5_5000, 0x5_5000, if present { P | RW } else { 0 });
        });
        let change = flip(TSS + 4, INNER_STACK ^ pointer);
        compare(&mut pair, &change);
    }
}

#[test]
fn the_stack_is_in_pages_of_any_kind() {
    let Some(mut pair) = Pair::new() else { return };
    let stack = INNER_STACK - 0x1000;
    // A page of users, and one that also holds code.
    for (page, bits) in [(stack, P | RW | US), (stack, P | RW), (OUTER_HANDLER + 0x1000, P | RW)] {
        for slice in [1, 5, LIMIT] {
            pair.each(|machine| {
                begin(machine, &[]);
                machine.map(page, page, bits);
                machine.set_inner_stack(0, page + 0x1000, KERNEL_DATA);
                // NOP; IRETD: code that is executed beside the stack.
                machine.put(page + 0x800, &[0x90, 0xcf]);
                let offset = (page + 0x800) & 0xffff;
                let at = IDT + u32::from(INNER) * 8;
                machine.put_dword(at, u32::from(KERNEL_CODE) << 16 | offset);
                machine.put_dword(at + 4, page & 0xffff_0000 | u32::from(TRAP_GATE) << 8);
            });
            while pair.each(|machine| machine.run_for(slice)) == Exit::Deadline {
                pair.compare_processors();
            }
            pair.compare();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}

#[test]
fn interrupts_at_every_instruction_of_calls() {
    let Some(mut pair) = Pair::new() else { return };
    // The frame's IF is changed, so that interrupts are off now and then.
    let changes = [vec![], flip_pushed(PUSHED_FLAGS, Eflags::IF.bits())];
    let all = changes.iter().flat_map(|change| Call::ALL.map(|call| (call, change)));
    for (call, change) in all {
        // After this many instructions everything is translated.
        let first = 200;
        for before in first..first + 140 {
            pair.each(|machine| begin_with(machine, call, change));
            pair.each(|machine| machine.run_for(before));
            pair.each(|machine| machine.interrupt = Some(EXTERNAL));
            pair.run_to_halt();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}
