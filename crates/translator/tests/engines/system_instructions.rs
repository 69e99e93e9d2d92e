//! System instructions, most of which translated code executes without being left. The program logs what each
//! of them leaves in registers, flags and memory. The logs must be the same on both engines, wherever
//! execution stops in between.

use ring3_core::clock::{Clock, Time};
use ring3_x86::cpu::{Cr0, Cr4, Msrs, reg};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;

use crate::machine::*;
use crate::pair::Pair;

/// The address of the log.
const LOG: u32 = 0x10_0000;
/// The address of operands in memory.
const OPERAND: u32 = DATA + 0x100;
/// The addresses of a pseudo-descriptor of the GDT, and of one with a smaller limit.
const GDTR: u32 = DATA + 0x200;
const SMALLER_GDTR: u32 = DATA + 0x210;
/// The addresses of a pseudo-descriptor of the IDT, and of one with a smaller limit.
const IDTR: u32 = DATA + 0x220;
const SMALLER_IDTR: u32 = DATA + 0x230;
/// The selector of a local descriptor table.
const LOCAL_TABLE: u16 = 0x38;

const ROUNDS: u32 = 12;
/// More instructions than everything executes.
const LIMIT: u64 = 200_000;

/// CF, PF, AF, ZF, SF and OF; DF.
const STATUS: u32 = 0x8d5;
const DF: u32 = 0x400;

/// MOV register, number: `register` is the number of the register.
fn load(register: u8, number: u32) -> Vec<u8> {
    [&[0xb8 + register][..], &number.to_le_bytes()].concat()
}

/// An instruction with the opcode `bytes` and its operand at `address`. `digit` is in its ModRM byte.
fn at(bytes: &[u8], digit: u8, address: u32) -> Vec<u8> {
    [bytes, &[digit << 3 | 5], &address.to_le_bytes()].concat()
}

/// Executes `what` with these flags, and logs flags, EAX, EBX, ECX and EDX at ESI.
fn logged(what: &[u8], flags: u32) -> Vec<u8> {
    [
        &[0x68][..],
        &(flags | 2).to_le_bytes(),
        &[0x9d], // PUSH flags; POPFD
        what,
        &[0x9c, 0x8f, 0x06],               // PUSHFD; POP DWORD [ESI]
        &[0x89, 0x46, 4, 0x89, 0x5e, 8],   // MOV [ESI+4], EAX; MOV [ESI+8], EBX
        &[0x89, 0x4e, 12, 0x89, 0x56, 16], // MOV [ESI+12], ECX; MOV [ESI+16], EDX
        &[0x8d, 0x76, 20, 0x8b, 0x1d],     // LEA ESI, [ESI+20]; MOV EBX, [OPERAND]
        &OPERAND.to_le_bytes(),
    ]
    .concat()
}

/// A program that executes and logs each of `steps` in each of EBP rounds, and then halts.
fn program(steps: &[Vec<u8>]) -> Vec<u8> {
    let mut code = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        code.extend(logged(step, [0, STATUS, DF, STATUS | DF, 0x40, 0x801][number % 6]));
    }
    code.extend([0x68, 2, 0, 0, 0, 0x9d, 0x4d, 0x0f, 0x85]); // PUSH 2; POPFD; DEC EBP; JNZ to the first one
    let distance = (code.len() as u32 + 4).wrapping_neg();
    code.extend(distance.to_le_bytes());
    code.push(0xf4);
    code
}

/// Instructions about selectors and tables that any privilege may execute.
fn looks() -> Vec<Vec<u8>> {
    let mut steps = Vec::new();
    let selectors =
        [KERNEL_CODE, KERNEL_DATA | 3, USER_CS, USER_DS, TASK, LOCAL_TABLE, 0, 3, 0xfff8, 4];
    let forms: [&[u8]; 10] = [
        &[0x0f, 0x00, 0xe2],       // VERR DX
        &[0x0f, 0x00, 0xea],       // VERW DX
        &[0x0f, 0x02, 0xc2],       // LAR EAX, EDX
        &[0x66, 0x0f, 0x02, 0xc2], // LAR AX, DX
        &[0x0f, 0x03, 0xc2],       // LSL EAX, EDX
        &[0x66, 0x0f, 0x03, 0xca], // LSL CX, DX
        &[0x0f, 0x03, 0xd2],       // LSL EDX, EDX
        &[0x63, 0xd0],             // ARPL AX, DX
        &[0x0f, 0x02, 0xe2],       // LAR ESP, EDX
        &[0x63, 0xc2],             // ARPL DX, AX
    ];
    for form in forms {
        for selector in selectors {
            // The value that was loaded into ESP is taken out of it again.
            let changes_stack = form == [0x0f, 0x02, 0xe2];
            let (before, after): (&[u8], &[u8]) = if changes_stack {
                (&[0x89, 0xe1], &[0x89, 0xe0, 0x89, 0xcc]) // MOV ECX, ESP; MOV EAX, ESP; MOV ESP, ECX
            } else {
                (&[], &[])
            };
            steps.push([&load(2, selector.into()), before, form, after].concat());
        }
        // Applied to each descriptor in turn.
        if form != [0x0f, 0x02, 0xe2] {
            steps.push([&[0x89, 0xea, 0xc1, 0xe2, 3][..], form].concat()); // MOV EDX, EBP; SHL EDX, 3
        }
    }
    for (opcode, digit) in [
        (&[0x0f, 0x00][..], 4),
        (&[0x0f, 0x00], 5),
        (&[0x0f, 0x02], 0),
        (&[0x0f, 0x03], 1),
        (&[0x63], 0),
    ] {
        let store = at(&[0x66, 0x89], 2, OPERAND); // MOV [OPERAND], DX
        steps.push([load(2, USER_DS.into()), store, at(opcode, digit, OPERAND)].concat());
    }
    steps
}

/// Instructions that store registers of the processor.
fn stores() -> Vec<Vec<u8>> {
    let mut steps = Vec::new();
    for (second, digit) in [(0, 0), (0, 1), (1, 4)] {
        // SLDT, STR and SMSW to EAX, CX and memory; the memory is also below the stack, by ESP.
        let register = |number: u8| 0xc0 | digit << 3 | number;
        steps.push(vec![0x0f, second, register(0)]);
        steps.push(vec![0x66, 0x0f, second, register(1)]);
        steps.push(at(&[0x0f, second], digit, OPERAND));
        steps.push(vec![0x50, 0x0f, second, digit << 3 | 4, 0x24, 0x58]); // PUSH EAX; ... [ESP]; POP EAX
        steps.push(vec![0x89, 0xe1, 0x0f, second, register(4), 0x89, 0xe0, 0x89, 0xcc]); // ... ESP
    }
    for digit in 0..2 {
        // SGDT and SIDT to memory, by FS, and below the stack.
        for prefix in [&[][..], &[0x66], &[0x64]] {
            let store = at(&[prefix, &[0x0f, 0x01]].concat(), digit, OPERAND);
            steps.push([store, at(&[0x8b], 0, OPERAND + 4)].concat()); // MOV EAX, [OPERAND+4]
        }
        // PUSH EAX; ... [ESP-20]; MOV EAX, [ESP-20]; POP ECX
        steps.push(vec![
            0x50,
            0x0f,
            0x01,
            digit << 3 | 0x44,
            0x24,
            0xec,
            0x8b,
            0x44,
            0x24,
            0xec,
            0x59,
        ]);
    }
    steps
}

/// CPUID of many leaves.
fn leaves() -> Vec<Vec<u8>> {
    let leaf = |leaf: u32, rest: &[u8]| [&load(0, leaf), rest, &[0x0f, 0xa2]].concat();
    let mut steps: Vec<_> =
        [0, 1, 2, 4, 7, 0x0f, 0x4000_0000, 0x8000_0000, 0x8000_0001, 0x8000_0004, u32::MAX]
            .into_iter()
            .flat_map(|number| [leaf(number, &load(1, 0)), leaf(number, &[0x89, 0xe9])]) // MOV ECX, EBP
            .collect();
    steps.push(leaf(7, &[0x89, 0xe9, 0x83, 0xe1, 1])); // MOV ECX, EBP; AND ECX, 1
    steps.push(vec![0x89, 0xe8, 0x0f, 0xa2]); // MOV EAX, EBP; CPUID
    steps
}

/// POPF of each flag but TF, which makes no difference to the code that follows but by the flags.
fn pops_of_flags() -> Vec<Vec<u8>> {
    let flags = (0..32).filter(|number| *number != 8).map(|number| 1_u32 << number);
    let pop = |flags: u32| [&[0x68], &flags.to_le_bytes()[..], &[0x9d, 0x9c, 0x58]].concat(); // PUSH; POPF; PUSHF; POP EAX
    flags.chain([0, 0x3000, 0x3200, STATUS | 0x200]).map(pop).collect()
}

/// Instructions that only the supervisor may execute.
fn privileged() -> Vec<Vec<u8>> {
    let mut steps = vec![vec![0x0f, 0x09], vec![0x0f, 0x08]]; // WBINVD; INVD
    let read = |number: u32| [&load(1, number)[..], &[0x0f, 0x32]].concat();
    // EDX:EAX becomes 0:EBP.
    let write =
        |number: u32| [&load(1, number)[..], &[0x89, 0xe8, 0x31, 0xd2, 0x0f, 0x30]].concat();
    let numbers =
        [0x10, 0x17, 0x1b, 0x8b, 0x174, 0x175, 0x176, 0x1a0, 0x277, 0xc000_0080, 0xc000_0103, 0xfe];
    steps.extend(numbers.map(read));
    for number in [0x10, 0x174, 0x175, 0x176, 0xc000_0103] {
        steps.extend([write(number), read(number), vec![0x0f, 0x31], vec![0x0f, 0x01, 0xf9]]); // RDTSC; RDTSCP
    }
    // WRMSR of the same value twice, and of one with EDX set, which most of these registers ignore.
    for number in [0x174, 0x175, 0x176, 0xc000_0103] {
        let write = |high| [&load(2, high)[..], &[0x0f, 0x30]].concat();
        let high = u32::from(number < 0x1000);
        let number = [load(1, number), load(0, 0x1234_5678)].concat();
        steps.push([&number[..], &write(0), &write(0), &write(high), &write(0)].concat());
        steps.push([&number[..], &write(0), &[0x0f, 0x32]].concat());
    }
    // WRMSR of a value that RDMSR has read.
    steps.extend(
        [0x1b, 0x277, 0x1a0, 0xc000_0080].map(|number| [&read(number)[..], &[0x0f, 0x30]].concat()),
    );
    // Control registers.
    let cr0 = |change: &[u8]| [&[0x0f, 0x20, 0xc0], change, &[0x0f, 0x22, 0xc0]].concat();
    let cr4 = |change: &[u8]| [&[0x0f, 0x20, 0xe0], change, &[0x0f, 0x22, 0xe0]].concat();
    let numeric = [&[0xd9, 0xe8][..], &at(&[0xd9], 3, OPERAND)].concat(); // FLD1; FSTP DWORD [OPERAND]
    let task_switched = cr0(&[0x83, 0xc8, 8]); // OR EAX, 8
    steps.extend([
        cr0(&[]),
        cr0(&[0x83, 0xf0, 8]),
        cr0(&[0x83, 0xf0, 2]),
        cr0(&[0x83, 0xf0, 0x20]),
    ]);
    steps.extend([cr0(&[0x35, 0, 0, 1, 0]), cr0(&[0x35, 0, 0, 4, 0])]); // XOR EAX, WP; XOR EAX, AM
    steps.extend([vec![0x0f, 0x06], numeric.clone(), task_switched.clone()]);
    steps.push([&numeric[..], &task_switched, &numeric, &[0x0f, 0x01, 0xe0]].concat()); // SMSW EAX
    steps.push([&task_switched[..], &[0x0f, 0x06], &numeric, &[0x0f, 0x06], &numeric].concat());
    let sse = [0x0f, 0x58, 0xc1]; // ADDPS XMM0, XMM1
    steps.push(
        [
            &sse[..],
            &task_switched,
            &sse,
            &cr4(&[0x35, 0, 2, 0, 0]),
            &cr4(&[0x35, 0, 2, 0, 0]),
            &sse,
        ]
        .concat(),
    );
    for bits in [1, 0xb, 0xfff1, 7, 3] {
        // LMSW AX; LMSW [OPERAND]
        steps.push([&load(0, bits)[..], &[0x0f, 0x01, 0xf0]].concat());
        steps.push(
            [
                at(&[0xc7], 0, OPERAND),
                (bits ^ 2).to_le_bytes().into(),
                at(&[0x0f, 0x01], 6, OPERAND),
            ]
            .concat(),
        );
    }
    steps.push([&load(0, 1)[..], &[0x0f, 0x01, 0xf0], &numeric].concat());
    steps.extend([
        vec![0x0f, 0x22, 0xd4, 0x0f, 0x20, 0xd0],
        vec![0x0f, 0x22, 0xd5, 0x0f, 0x20, 0xd1],
    ]); // CR2 of ESP and EBP
    for bit in [0, 4, 8, 0x10, 0x80, 0x100, 0x800] {
        steps.push(cr4(&[&[0x35][..], &u32::to_le_bytes(bit)].concat()));
        steps.push(vec![0x0f, 0x31]);
        steps.push(cr4(&[&[0x35][..], &u32::to_le_bytes(bit)].concat()));
    }
    // Debug registers: no breakpoint is enabled, and then one for a while.
    for number in 0..4 {
        steps.push(vec![0x0f, 0x23, 0xc5 | number << 3, 0x0f, 0x21, 0xc0 | number << 3]); // of EBP
    }
    steps.push(vec![0x0f, 0x23, 0xcc, 0x0f, 0x21, 0xcc - 1]); // MOV DR1, ESP; MOV EBX, DR1
    for number in [4, 5, 6, 7] {
        steps.push(
            [
                &load(0, 0x402)[..],
                &[0x0f, 0x23, 0xc0 | number << 3, 0x0f, 0x21, 0xc1 | number << 3],
            ]
            .concat(),
        );
        steps.push(
            [
                &load(0, 0x400)[..],
                &[0x0f, 0x23, 0xc0 | number << 3, 0x0f, 0x21, 0xc1 | number << 3],
            ]
            .concat(),
        );
    }
    steps.push(at(&[0x0f, 0x01], 7, OPERAND)); // INVLPG [OPERAND]
    // LGDT and LIDT: of the same table, of a smaller one, with 24 bits of the base, by FS, and by the stack.
    for (digit, same, smaller) in [(2, GDTR, SMALLER_GDTR), (3, IDTR, SMALLER_IDTR)] {
        for address in [same, smaller, smaller, same] {
            let load = at(&[0x0f, 0x01], digit, address);
            let store = at(&[0x0f, 0x01], digit - 2, OPERAND);
            steps.push([load.clone(), store].concat());
            steps.push(load);
        }
        steps.push(at(&[0x66, 0x0f, 0x01], digit, same));
        steps.push(at(&[0x64, 0x0f, 0x01], digit, smaller));
        steps.push(at(&[0x0f, 0x01], digit, same));
        let push = |address| at(&[0xff], 6, address);
        // PUSH DWORD [same+4]; PUSH DWORD [same]; ... [ESP]; POP EAX; POP EAX
        steps.push(
            [push(same + 4), push(same), vec![0x0f, 0x01, digit << 3 | 4, 0x24, 0x58, 0x58]]
                .concat(),
        );
    }
    for selector in [LOCAL_TABLE, LOCAL_TABLE, 0, 3] {
        steps.push([&load(0, selector.into())[..], &[0x0f, 0x00, 0xd0, 0x0f, 0x00, 0xc1]].concat()); // LLDT AX; SLDT ECX
        steps.push(
            [
                at(&[0xc7], 0, OPERAND),
                u32::from(selector).to_le_bytes().into(),
                at(&[0x0f, 0x00], 2, OPERAND),
            ]
            .concat(),
        );
    }
    // AND BYTE [descriptor + 5], FDh; LTR AX
    let free = [&[0x80, 0x25][..], &(GDT + u32::from(TASK) + 5).to_le_bytes(), &[0xfd]].concat();
    steps.push([&load(0, TASK.into()), &free[..], &[0x0f, 0x00, 0xd8]].concat());
    // The same with another limit: XOR BYTE [descriptor], 10h
    let limit = |selector: u16| {
        [&[0x80, 0x35][..], &(GDT + u32::from(selector)).to_le_bytes(), &[0x10]].concat()
    };
    for _ in 0..2 {
        steps.push([&limit(TASK)[..], &load(0, TASK.into()), &free, &[0x0f, 0x00, 0xd8]].concat());
    }
    for change in [true, false, true] {
        let change = if change { limit(LOCAL_TABLE) } else { Vec::new() };
        steps.push([&change[..], &load(0, LOCAL_TABLE.into()), &[0x0f, 0x00, 0xd0]].concat());
    }
    // XOR DWORD [descriptor + 4], 1 << 22; LAR EAX, EDX
    let change = [
        &[0x81, 0x35][..],
        &(GDT + u32::from(USER_DS & !3) + 4).to_le_bytes(),
        &(1_u32 << 22).to_le_bytes(),
    ]
    .concat();
    steps.push([&change[..], &load(2, USER_DS.into()), &[0x0f, 0x02, 0xc2]].concat());
    steps
}

/// Puts `code` at `address` unless it is there already, so that engines keep what they have made of it.
fn put_code(machine: &mut Machine, address: u32, code: &[u8]) {
    let mut known = vec![0; code.len()];
    machine.memory.read(address.into(), &mut known);
    if known != code {
        machine.put(address, code);
    }
}

/// Puts the program of `steps`, and everything that it needs, into memory.
fn begin(machine: &mut Machine, steps: &[Vec<u8>], is_user: bool) {
    machine.reset_processor();
    machine.enable_paging();
    machine.set_descriptor(LOCAL_TABLE, 0x0000_8206_0000_000f);
    machine.set_descriptor(TASK, 0x0000_8900_0000_0067 | u64::from(TSS) << 16);
    put_code(machine, if is_user { USER_CODE } else { CODE }, &program(steps));
    // CLTS; IRETD
    put_code(machine, handler(7), &[0x0f, 0x06, 0xcf]);
    for (address, base, limit) in [
        (GDTR, GDT, 0xff),
        (SMALLER_GDTR, GDT, 0x3f),
        (IDTR, IDT, 0x7ff),
        (SMALLER_IDTR, IDT, 0x6ff),
    ] {
        machine.put_dword(address, base << 16 | limit);
        machine.put_dword(address + 4, base >> 16);
    }
    machine.put_dword(OPERAND, 0x1234_5678);
    machine.accesses.clear();
    if is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.msrs = Msrs { sysenter_cs: KERNEL_CODE.into(), time_stamp_offset: 12_345, ..cpu.msrs };
    let mut clock = Clock::new(1370);
    clock.set(cpu.instructions, Time::from_nanos(u64::from(u32::MAX) - 1000), 1370);
    cpu.clock = Some(clock);
    cpu.set_cr4(Cr4::OSFXSR | Cr4::PSE);
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
    for register in [reg::AX, reg::CX, reg::DX, reg::BX] {
        cpu.set_gpr(register, 0x1000 + u64::from(register));
    }
    cpu.set_gpr(reg::BP, ROUNDS.into());
    cpu.set_gpr(reg::SI, LOG.into());
}

/// Runs the program in slices of many sizes, and asserts that it is translated. With DF set, a third of the
/// steps leave translated code; all other steps do so now and then.
#[track_caller]
fn assert_same(steps: &[Vec<u8>], is_user: bool) {
    let Some(mut pair) = Pair::new() else { return };
    for slice in [1, 2, 3, 7, 50, 333, LIMIT, LIMIT] {
        pair.each(|machine| begin(machine, steps, is_user));
        assert_eq!(pair.run_in_slices(slice, LIMIT), Exit::Halt, "{}", pair.reports());
        // In user code HLT raises #GP.
        let exception = pair.right.exception().map(|exception| exception.vector);
        assert_eq!(exception, is_user.then_some(13), "{}", pair.reports());
        assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        assert_eq!(pair.right.get(reg::SI), LOG + ROUNDS * 20 * steps.len() as u32);
    }
    let before = pair.counted("entries to translated code");
    pair.each(|machine| begin(machine, steps, is_user));
    pair.run_for(LIMIT);
    let entries = pair.counted("entries to translated code") - before;
    let all = u64::from(ROUNDS) * steps.len() as u64;
    assert!(entries < all / 2, "{entries} entries for {all} steps");
}

#[test]
fn instructions_of_the_supervisor() {
    assert_same(&[leaves(), privileged(), stores(), looks()].concat(), false);
}

#[test]
fn instructions_of_programs() {
    assert_same(&[leaves(), stores(), looks(), pops_of_flags()].concat(), true);
}

/// What POPF changes in user code depends on IOPL, and on what IF was.
#[test]
fn flags_that_programs_pop() {
    let Some(mut pair) = Pair::new() else { return };
    for before in [0, 0x200, 0x3000, 0x3200, 0x1202] {
        pair.each(|machine| {
            begin(machine, &pops_of_flags(), true);
            machine.cpu.set_eflags(Eflags::from_bits_retain(before));
        });
        assert_eq!(pair.run_in_slices(LIMIT, LIMIT), Exit::Halt, "{}", pair.reports());
        assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
    }
}

/// Executes each instruction alone, where it raises an exception or would do so in another mode.
#[test]
fn instructions_that_raise_exceptions() {
    let Some(mut pair) = Pair::new() else { return };
    let steps = [leaves(), privileged(), stores(), looks()].concat();
    let ways: [(bool, Cr4, u32); 5] = [
        (true, Cr4::empty(), 0),
        (true, Cr4::UMIP | Cr4::DE, 0),
        // DR7.GD
        (false, Cr4::empty(), 0x2000),
        (false, Cr4::DE, 0),
        (false, Cr4::SMAP | Cr4::UMIP, 0),
    ];
    for (is_user, cr4, dr7) in ways {
        for step in &steps {
            // Once when it is first met, and once more.
            for _ in 0..2 {
                pair.each(|machine| {
                    begin(machine, std::slice::from_ref(step), is_user);
                    machine.cpu.set_gpr(reg::BP, 3);
                    machine.cpu.set_cr4(machine.cpu.cr4() | cr4);
                    if cr4.contains(Cr4::SMAP) {
                        // Only the operands belong to users.
                        let is_users = |page| page == OPERAND & !0xfff;
                        for page in (0..1 << 22).step_by(0x1000) {
                            machine.map(page, page, P | RW | if is_users(page) { US } else { 0 });
                        }
                    }
                    if dr7 != 0 {
                        let code = [load(0, dr7), vec![0x0f, 0x23, 0xf8]].concat(); // MOV DR7, EAX
                        machine.put(CODE, &[code, program(std::slice::from_ref(step))].concat());
                    }
                });
                pair.run_to_halt();
            }
        }
    }
}

/// Operands that cross a page boundary, or lie in a page that is not present or must not be written to.
#[test]
fn operands_that_fault() {
    let Some(mut pair) = Pair::new() else { return };
    let page = 0x5_0000;
    let operands: [(&[u8], u8); 14] = [
        (&[0x0f, 0x01], 0), // SGDT
        (&[0x0f, 0x01], 1), // SIDT
        (&[0x0f, 0x01], 2), // LGDT
        (&[0x0f, 0x01], 3), // LIDT
        (&[0x0f, 0x01], 4), // SMSW
        (&[0x0f, 0x01], 6), // LMSW
        (&[0x0f, 0x00], 0), // SLDT
        (&[0x0f, 0x00], 1), // STR
        (&[0x0f, 0x00], 2), // LLDT
        (&[0x0f, 0x00], 4), // VERR
        (&[0x0f, 0x02], 0), // LAR
        (&[0x0f, 0x03], 0), // LSL
        (&[0x63], 0),       // ARPL
        (&[0x0f, 0x01], 7), // INVLPG
    ];
    for (opcode, digit) in operands {
        for (first, second) in
            [(P | RW, P | RW), (P | RW, 0), (0, P | RW), (P, P | RW), (P | RW, P)]
        {
            for offset in [0xff8_u32, 0xffa, 0xffb, 0xffd, 0xffe, 0xfff] {
                for _ in 0..2 {
                    pair.each(|machine| {
                        let step = at(opcode, digit, page + offset);
                        begin(machine, &[step], false);
                        machine.cpu.set_gpr(reg::BP, 2);
                        machine.put(page + offset, &[0xff, 0, 0, GDT as u8, (GDT >> 8) as u8, 0]);
                        machine.put(page + offset, &[0xff, 0, 0, (GDT >> 8) as u8, 0, 0]);
                        machine.map(page, page, first);
                        machine.map(page + 0x1000, page + 0x1000, second);
                    });
                    pair.run_to_halt();
                }
            }
        }
    }
}

/// INVLPG of pages that have moved: pages of data, of the code itself, and of users.
#[test]
fn pages_that_are_elsewhere() {
    let Some(mut pair) = Pair::new() else { return };
    let (page, other) = (0x5_0000, 0x5_1000);
    let code = |value: u8| {
        let swap =
            [&[0x81, 0x35][..], &Machine::pte(page).to_le_bytes(), &0x1000_u32.to_le_bytes()]
                .concat();
        [
            &swap[..],                   // XOR DWORD [pte], 1000h
            &at(&[0x0f, 0x01], 7, page), // INVLPG [page]
            &[0x83, 0xc0, value],        // ADD EAX, value
            &[0x03, 0x1d],               // ADD EBX, [page + 800h]
            &(page + 0x800).to_le_bytes(),
            &[0x4d, 0x75, 0xe1 - 2, 0xf4], // DEC EBP; JNZ to the first one; HLT
        ]
        .concat()
    };
    assert_eq!(code(0).len(), 10 + 7 + 3 + 6 + 4);
    for is_there in [false, true] {
        for bits in [P | RW, P | RW | US] {
            pair.each(|machine| {
                machine.reset_processor();
                machine.enable_paging();
                for page in (0..0x10_0000).step_by(0x1000) {
                    machine.map(page, page, P | RW);
                }
                machine.map(page, page, bits);
                machine.put_dword(page + 0x800, 1);
                machine.put_dword(other + 0x800, 0x100);
                let start = if is_there { page } else { CODE };
                machine.put(start, &code(1));
                machine.put(other, &code(0x10));
                machine.cpu.ip = start.into();
                machine.cpu.set_gpr(reg::AX, 0);
                machine.cpu.set_gpr(reg::BX, 0);
                machine.cpu.set_gpr(reg::BP, 40);
            });
            pair.run_to_halt();
            let expected = if is_there { 20 + 20 * 0x10 } else { 40 };
            assert_eq!(pair.right.get(reg::AX), expected);
            assert_eq!(pair.right.get(reg::BX), 20 * 0x101);
        }
    }
}

/// LTR marks as busy a TSS whose descriptor is also code: from its type on it is MOV [EAX], EAX, and with a
/// busy task MOV EAX, [EAX].
#[test]
fn a_busy_task_is_other_code() {
    let Some(mut pair) = Pair::new() else { return };
    let kind = GDT + u32::from(TASK) + 5;
    let call = |from: usize| kind.wrapping_sub(CODE + from as u32 + 5).to_le_bytes();
    let mut code = [
        &load(0, TASK.into())[..],
        &[0x80, 0x25],
        &kind.to_le_bytes(),
        &[0xfd], // AND BYTE [kind], FDh
    ]
    .concat();
    for what in [&[0x0f, 0x00, 0xd8][..], &[]] {
        // LTR AX or nothing; MOV EAX, EBX; CALL kind; STOSD; MOV EAX, TASK
        code.extend([what, &[0x89, 0xd8, 0xe8]].concat());
        code.extend(call(code.len() - 1));
        code.push(0xab);
        code.extend(load(0, TASK.into()));
    }
    // The code is made when the task is free, and then it becomes busy.
    let free = [&[0x80, 0x25][..], &kind.to_le_bytes(), &[0xfd, 0x89, 0xd8, 0xe8]].concat();
    code.extend(free);
    code.extend(call(code.len() - 1));
    code.push(0xab);
    code.extend([&load(0, TASK.into())[..], &[0x0f, 0x00, 0xd8, 0x89, 0xd8, 0xe8]].concat());
    code.extend(call(code.len() - 1));
    code.extend([0xab, 0x4d, 0x0f, 0x85]); // STOSD; DEC EBP; JNZ to the first one
    let back = (code.len() as u32 + 4).wrapping_neg();
    code.extend(back.to_le_bytes());
    code.push(0xf4);
    for is_paged in [false, true] {
        for slice in [1, 3, 50, LIMIT, LIMIT] {
            pair.each(|machine| {
                machine.reset_processor();
                if is_paged {
                    machine.enable_paging();
                }
                machine.set_descriptor(TASK, 0x0000_8900_0000_0067 | u64::from(TSS) << 16);
                machine.set_descriptor(TASK + 8, 0xc3c0); // With the byte before: ADD AL, AL; RET
                put_code(machine, CODE, &code);
                machine.put_dword(OPERAND, 0x1234_5678);
                machine.cpu.set_gpr(reg::BX, OPERAND.into());
                machine.cpu.set_gpr(reg::DI, LOG.into());
                machine.cpu.set_gpr(reg::BP, 40);
            });
            while pair.each(|machine| machine.run_for(slice)) != Exit::Halt {
                pair.compare_processors();
            }
            pair.compare();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}

/// The guest switches paging off and on again and again. While it is off, page tables change, and so does
/// code that is executed with paging.
#[test]
fn paging_that_is_off_for_a_while() {
    let Some(mut pair) = Pair::new() else { return };
    let (page, other) = (0x5_0000, 0x5_1000);
    let memory = |opcode: &[u8], digit: u8, address: u32, rest: &[u8]| {
        [&at(opcode, digit, address)[..], rest].concat()
    };
    let add_through = |register: u8| at(&[0x03], register, page + 0x800);
    let toggle = |bits: u32| {
        [&[0x0f, 0x20, 0xc0, 0x35][..], &bits.to_le_bytes(), &[0x0f, 0x22, 0xc0]].concat()
    };
    let pg = Cr0::PG.bits();
    let swap = memory(&[0x81], 6, Machine::pte(page), &0x1000_u32.to_le_bytes()); // XOR DWORD [pte], 1000h
    let changes: [&[Vec<u8>]; 7] = [
        &[],
        std::slice::from_ref(&swap),
        // INC BYTE: changes the immediate operand of the function's ADD.
        &[at(&[0xfe], 0, page + 2)],
        &[at(&[0xfe], 0, other + 2), swap.clone()],
        &[toggle(Cr0::WP.bits())],
        &[vec![0x0f, 0x20, 0xe0, 0x35, 0x10, 0, 0, 0, 0x0f, 0x22, 0xe0]], // XOR CR4, PSE
        // Clears the dirty and accessed bits.
        &[memory(&[0x81], 4, Machine::pte(page), &(!0x60_u32).to_le_bytes())],
    ];
    for (number, change) in changes.into_iter().enumerate() {
        // MOV EDI, page; CALL EDI: ADD EDX, number; RET
        let call = [&[0xbf][..], &page.to_le_bytes(), &[0xff, 0xd7]].concat();
        let write = at(&[0x89], 5, page + 0x804); // MOV [page + 804h], EBP
        let mut code =
            [add_through(3), call.clone(), write, toggle(pg), add_through(1), call].concat();
        code.extend(change.concat());
        code.extend(toggle(pg));
        code.extend([0x4d, 0x0f, 0x85]); // DEC EBP; JNZ to the first one
        code.extend((code.len() as u32 + 4).wrapping_neg().to_le_bytes());
        code.push(0xf4);
        for bits in [P | RW, P | RW | US, P | US] {
            for slice in [LIMIT, 1, 5, LIMIT] {
                pair.each(|machine| {
                    machine.reset_processor();
                    machine.enable_paging();
                    for page in (0..0x10_0000).step_by(0x1000) {
                        machine.map(page, page, P | RW);
                    }
                    machine.map(page, page, bits);
                    put_code(machine, CODE, &code);
                    for (page, number) in [(page, 1), (other, 0x10)] {
                        machine.put(page, &[0x83, 0xc2, number, 0xc3]);
                        machine.put_dword(page + 0x800, number.into());
                        machine.put_dword(page + 0x804, 0);
                    }
                    for register in [reg::BX, reg::CX, reg::DX] {
                        machine.cpu.set_gpr(register, 0);
                    }
                    machine.cpu.set_gpr(reg::BP, 40);
                });
                while pair.each(|machine| machine.run_for(slice)) != Exit::Halt {
                    pair.compare_processors();
                }
                pair.compare();
                let faults = !bits & RW != 0;
                let exception = pair.right.exception().map(|exception| exception.vector);
                assert_eq!(exception, faults.then_some(14), "{number}: {}", pair.reports());
            }
        }
    }
}

/// All in 16-bit code: real mode, then protected mode, into which MOV to CR0 leads and from which it leads
/// back.
#[test]
fn instructions_of_real_mode() {
    let Some(mut pair) = Pair::new() else { return };
    let operand = OPERAND as u16 & 0xf;
    let segment = (OPERAND >> 4) as u16;
    let memory = |second: u8, digit: u8| {
        [&[0x0f, second, digit << 3 | 6][..], &operand.to_le_bytes()].concat()
    };
    let load =
        |register: u8, number: u32| [&[0x66, 0xb8 + register][..], &number.to_le_bytes()].concat();
    let cr0 = |change: &[u8]| [&[0x0f, 0x20, 0xc0], change, &[0x0f, 0x22, 0xc0]].concat();
    let xor = |bits: u32| [&[0x66, 0x35][..], &bits.to_le_bytes()].concat();
    let mut steps = vec![
        vec![0x0f, 0x09],
        [load(0, 1), vec![0x0f, 0xa2]].concat(),
        [load(0, 7), vec![0x0f, 0xa2]].concat(),
        [load(1, 0x1b), vec![0x0f, 0x32]].concat(),
        [load(1, 0x10), vec![0x0f, 0x32]].concat(),
        [load(1, 0x175), vec![0x66, 0x89, 0xe8, 0x66, 0x31, 0xd2, 0x0f, 0x30, 0x0f, 0x32]].concat(),
        vec![0x0f, 0x01, 0xe0, 0x66, 0x0f, 0x01, 0xe3], // SMSW AX; SMSW EBX
        memory(1, 4),
        memory(1, 0),
        memory(1, 1),
        memory(1, 3), // LIDT of what SIDT has just stored
        cr0(&[]),
        cr0(&xor(8)),
        vec![0x0f, 0x06],
        vec![0xb8, 2, 0, 0x0f, 0x01, 0xf0], // MOV AX, 2; LMSW AX
        vec![0x0f, 0x22, 0xd4, 0x0f, 0x20, 0xd2],
        vec![0x0f, 0x23, 0xc5, 0x0f, 0x21, 0xc3],
        vec![0x0f, 0x21, 0xfb],
        vec![0x0f, 0x20, 0xe0, 0x0f, 0x22, 0xe0],
        memory(1, 7),
        // To protected mode, in which the segment registers keep their contents, and back.
        cr0(&xor(1)),
        vec![0x0f, 0x01, 0xe0],
        vec![0x0f, 0x00, 0xc8], // STR AX
        [load(2, KERNEL_DATA.into()), vec![0x0f, 0x02, 0xc2]].concat(), // LAR AX, DX
        vec![0x0f, 0x00, 0xe2], // VERR DX
        cr0(&xor(1)),
        // LMSW enters protected mode; it cannot leave it.
        vec![0xb8, 1, 0, 0x0f, 0x01, 0xf0, 0xb8, 0, 0, 0x0f, 0x01, 0xf0],
        cr0(&xor(1)),
    ];
    steps.push(memory(0, 0)); // SLDT, which is none of real mode
    let mut code = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let flags = [0_u16, 0x8d5, 0x400][number % 3] | 2;
        code.extend([&[0x68][..], &flags.to_le_bytes(), &[0x9d], step].concat()); // PUSH flags; POPF
        code.extend([0x9c, 0x26, 0x8f, 0x04]); // PUSHF; POP ES:[SI]
        for (register, offset) in [(0, 2), (3, 6), (1, 10), (2, 14)] {
            code.extend([0x66, 0x26, 0x89, 0x44 | register << 3, offset]); // MOV ES:[SI+offset], register
        }
        code.extend([0x8d, 0x74, 18]); // LEA SI, [SI+18]
        if number == steps.len() - 2 {
            code.extend([0x66, 0x4d, 0x0f, 0x85]); // DEC EBP; JNZ to the first one
            code.extend((code.len() as u16 + 2).wrapping_neg().to_le_bytes());
        }
    }
    for slice in [1, 3, 50, LIMIT, LIMIT] {
        pair.each(|machine| {
            machine.reset_processor();
            machine.cpu.set_cr0(Cr0::empty());
            machine.cpu.set_real_mode_entry((CODE >> 4) as u16, 0);
            put_code(machine, CODE, &code);
            // The handlers of real mode: HLT.
            machine.put(0x600, &[0xf4]);
            for vector in 0..32 {
                machine.put_dword(vector * 4, 0x600);
            }
            machine.cpu.idtr.base = 0;
            machine.cpu.idtr.limit = 0x3ff;
            let segments = [(sreg::DS, segment), (sreg::ES, 0x6000), (sreg::SS, 0x3000)];
            for (register, selector) in segments {
                machine.cpu.set_segment(register, ring3_x86::segment::Segment::real(selector, 0));
            }
            machine.cpu.clock = Some(Clock::new(1000));
            machine.cpu.set_gpr(reg::SP, 0x8000);
            machine.cpu.set_gpr(reg::SI, 0);
            machine.cpu.set_gpr(reg::BP, 8);
            machine.accesses.clear();
        });
        while pair.each(|machine| machine.run_for(slice)) != Exit::Halt {
            pair.compare_processors();
        }
        pair.compare();
        assert_eq!(pair.right.cpu.ip, 0x601, "{}", pair.reports());
        assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
    }
}
