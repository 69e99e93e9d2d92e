//! Ports that code may use by its privilege or by the I/O permission bit map of the TSS (SDM vol. 1, 19.5).
//! The map changes between accesses, and may lie at the end of the TSS or beyond it.

use ring3_core::clock::{Clock, Time};
use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::common::random::Random;
use crate::common::series::Series;
use crate::devices::{Board, KNOWN_PORT, run_in_pieces};
use crate::machine::*;
use crate::pair::Pair;

/// Number of programs.
const CASES: u64 = 40;
/// Instructions of each that are executed.
const INSTRUCTIONS: u64 = 4000;
/// Number of accesses in a program.
const ACCESSES: u32 = 24;
/// Bytes of each access with the NOPs after it. The handler of #GP skips as many.
const ACCESS_SIZE: u8 = 3;
/// The programs' handlers of #GP and of interrupts.
const PROTECTION_HANDLER: u32 = 0x6000;
const INTERRUPT_HANDLER: u32 = 0x6800;
const EXTERNAL: u8 = 0x40;
/// The first of the ports, and their number. Their bits are in two bytes of the map.
const PORT: u8 = 0x10;
const PORTS: u32 = 16;
/// A port that does nothing.
const QUIET_PORT: u8 = 0x18;
/// The offset of the map in the TSS.
const MAP: u32 = 0x68;
/// The address of the map's bits for the ports.
const BITS: u32 = TSS + MAP + PORT as u32 / 8;
/// The attributes of an 80286's TSS, and SP for privilege 0 there.
const OF_80286: Attributes = Attributes(0x83);
const STACK_OF_80286: u32 = 0x7f00;

/// Who executes a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    User,
    Virtual8086,
    Supervisor,
    RealMode,
}

impl Runner {
    const ALL: [Runner; 4] =
        [Runner::User, Runner::Virtual8086, Runner::Supervisor, Runner::RealMode];
}

/// Returns an access to a port with NOPs up to [`ACCESS_SIZE`].
fn access(random: &mut Random) -> Vec<u8> {
    let port = PORT + random.below(PORTS) as u8;
    let mut code = match random.below(9) {
        0 => vec![0xe4, port],       // IN AL, imm8
        1 => vec![0xe5, port],       // IN eAX, imm8
        2 => vec![0x66, 0xe5, port], // IN eAX, imm8 of the other width
        3 => vec![0xe6, port],       // OUT imm8, AL
        4 => vec![0x66, 0xe7, port], // OUT imm8, eAX of the other width
        5 => vec![0xb2, port, 0x90], // MOV DL, imm8
        6 => vec![0xed],             // IN eAX, DX
        7 => vec![0xe4, KNOWN_PORT], // IN AL, imm8
        _ => vec![0xee],             // OUT DX, AL
    };
    code.resize(ACCESS_SIZE.into(), 0x90);
    code
}

/// Returns a program that never ends.
fn program(random: &mut Random) -> Vec<u8> {
    let mut code: Vec<u8> = (0..ACCESSES).flat_map(|_| access(random)).collect();
    let back = (code.len() as u8 + 2).wrapping_neg();
    code.extend([0xeb, back]); // JMP to the beginning
    code
}

/// Returns the handler of #GP, which changes the map and skips the instruction.
fn protection_handler() -> Vec<u8> {
    [
        // DS is null after virtual-8086 mode.
        &[0x36, 0x81, 0x05][..], // ADD DWORD SS:[the map], imm32
        &BITS.to_le_bytes(),
        &0x9e37_79b1_u32.to_le_bytes(),
        &[0x83, 0x44, 0x24, 4, ACCESS_SIZE], // ADD DWORD [ESP+4], imm8
        &[0x83, 0xc4, 4, 0xcf],              // ADD ESP, 4; IRETD
    ]
    .concat()
}

/// Prepares the machine to run `program`.
fn begin(machine: &mut Machine, runner: Runner, program: &[u8], tss: Segment, iopl: Eflags) {
    machine.reset_processor();
    machine.put(USER_CODE, program);
    machine.put(PROTECTION_HANDLER, &protection_handler());
    // IN AL, a port that does nothing; IRETD
    machine.put(INTERRUPT_HANDLER, &[0xe4, QUIET_PORT, 0xcf]);
    for (vector, handler) in [(vector::GP, PROTECTION_HANDLER), (EXTERNAL, INTERRUPT_HANDLER)] {
        let gate = IDT + u32::from(vector) * 8;
        machine.put_dword(gate, u32::from(KERNEL_CODE) << 16 | handler);
        machine.put_dword(gate + 4, u32::from(INTERRUPT_GATE) << 8);
    }
    machine.put_dword(TSS + 0x64, MAP << 16);
    machine.set_inner_stack(0, INNER_STACK, KERNEL_DATA);
    if tss.attributes == OF_80286 {
        // SP and SS for privilege 0 have 16 bits each (SDM vol. 3, figure 9-10).
        machine.put_dword(TSS + 2, u32::from(KERNEL_DATA) << 16 | STACK_OF_80286);
    }
    let cpu = &mut machine.cpu;
    cpu.set_cr0(Cr0::PE | Cr0::NE | Cr0::MP);
    cpu.tr = tss;
    let mut clock = Clock::new(1000);
    clock.set(cpu.instructions, Time::ZERO, 1000);
    cpu.clock = Some(clock);
    match runner {
        Runner::User => machine.enter_user(),
        Runner::Supervisor => machine.cpu.ip = USER_CODE.into(),
        Runner::Virtual8086 | Runner::RealMode => {
            let access = if runner == Runner::RealMode { 0x93 } else { 0xf3 };
            if runner == Runner::RealMode {
                machine.cpu.set_cr0(Cr0::empty());
                // The handler of interrupts is for 32-bit code; none comes.
                machine.cpu.set_eflags(Eflags::empty());
            }
            for register in sreg::ES..=sreg::GS {
                let selector = (USER_CODE >> 4) as u16;
                let base = u64::from(USER_CODE);
                let segment = Segment::new(selector, base, 0xffff, Attributes(access));
                machine.cpu.set_segment(register, segment);
            }
            machine.cpu.ip = 0;
            machine.cpu.set_gpr(reg::SP, 0x1000);
        }
    }
    let flags = match runner {
        Runner::User => Eflags::IF | iopl,
        Runner::Virtual8086 => Eflags::VM | Eflags::IF | iopl,
        Runner::Supervisor => Eflags::IF,
        Runner::RealMode => Eflags::empty(),
    };
    machine.cpu.set_eflags(flags);
    machine.cpu.set_gpr(reg::DX, PORT.into());
}

/// Returns the TSS of `limit`.
fn tss(limit: u32) -> Segment {
    Segment::new(TASK, TSS.into(), limit, Attributes(0x8b))
}

/// Runs both machines for [`INSTRUCTIONS`] instructions, in pieces of at most `longest`, and compares all
/// that they do.
fn compare(pair: &mut Pair, random: &mut Random, longest: u32) -> Vec<(u64, Exit, u32)> {
    run_in_pieces(pair, random, INSTRUCTIONS, longest)
}

#[test]
fn the_bit_map_is_read_at_each_access_to_a_port() {
    let Some(mut pair) = Pair::new() else { return };
    let series = Series::from_environment(CASES);
    let mut numbers = [0; 4];
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let program = program(&mut random);
        let runner = Runner::ALL[random.below(4) as usize];
        let iopl = if random.below(6) == 0 { Eflags::IOPL } else { Eflags::empty() };
        let bits = random.bits() & random.bits();
        // Up to the last byte that a check reads, up to the one before, and others; and an 80286's.
        let tss = match random.below(8) {
            0 => tss(MAP + 3),
            1 => tss(MAP + 2),
            2 => tss(0x66),
            3 => Segment::new(TASK, TSS.into(), MAP + 0x20, OF_80286),
            _ => tss(MAP + 0x20),
        };
        for longest in [4, 70, 10_000] {
            pair.each(|machine| {
                machine.put_dword(BITS, bits);
                begin(machine, runner, &program, tss, iopl);
            });
            numbers[runner as usize] += compare(&mut pair, &mut random, longest).len();
        }
    }
    assert!(numbers.iter().all(|number| *number > 1000), "{numbers:?}");
}

/// The map's bits are in pages that come and go.
#[test]
fn the_bit_map_is_read_through_the_page_tables() {
    let Some(mut pair) = Pair::new() else { return };
    let mut random = Random::new(1, 1);
    // IN AL, imm8; three times NOP; JMP to the beginning
    let program = [0xe4, QUIET_PORT, 0x90, 0xeb, 0xfb];
    let at = |offset: u32| {
        let limit = offset + 0x2001;
        move |machine: &mut Machine| {
            begin(machine, Runner::User, &program, tss(limit), Eflags::empty());
            machine.put_dword(TSS + 0x64, offset << 16);
            machine.enable_paging();
            machine.cpu.set_gpr(reg::DX, 0);
        }
    };
    // The bits are in the page after that of the TSS, which is mapped to others in turn.
    let offset = 0x1000 - u32::from(QUIET_PORT) / 8;
    for (frame, bits, is_allowed) in
        [(0x5_0000, 0, true), (0x5_1000, 1, false), (0x5_2000, 0, true), (0x5_3000, 0xfe, true)]
    {
        pair.each(at(offset));
        pair.each(|machine| {
            machine.put(frame, &[bits, 0]);
            machine.map(TSS + 0x1000, frame, P);
        });
        let log = compare(&mut pair, &mut random, 500);
        assert_eq!(!log.is_empty(), is_allowed, "{bits:#x}");
    }
}

#[test]
fn translated_code_is_not_left_for_ports_that_may_be_used() {
    let Some(mut pair) = Pair::new() else { return };
    // IN AL, imm8; OUT imm8, AL; JMP to the beginning
    let program = [0xe4, QUIET_PORT, 0xe6, QUIET_PORT, 0xeb, 0xfa];
    for runner in Runner::ALL {
        for iopl in [Eflags::empty(), Eflags::IOPL] {
            pair.each(|machine| {
                machine.put_dword(BITS, 0);
                begin(machine, runner, &program, tss(MAP + 0x20), iopl);
            });
            let before = pair.counted("entries to translated code");
            let log = compare(&mut pair, &mut Random::new(1, 1), 1_000_000);
            let entries = pair.counted("entries to translated code") - before;
            assert!(log.len() > INSTRUCTIONS as usize / 2, "{runner:?}: {} accesses", log.len());
            assert!(entries < 100, "{runner:?}: {entries} entries");
        }
    }
}

#[test]
fn translated_code_is_not_left_for_ports_that_may_not_be_used() {
    let Some(mut pair) = Pair::new() else { return };
    // IN AL, imm8; NOP; OUT imm8, AL; NOP; JMP to the beginning
    let program = [0xe4, QUIET_PORT, 0x90, 0xe6, QUIET_PORT, 0x90, 0xeb, 0xf8];
    for runner in [Runner::User, Runner::Virtual8086] {
        // The map is beyond the limit.
        let tss = tss(0x67);
        pair.each(|machine| begin(machine, runner, &program, tss, Eflags::empty()));
        let counted = ["entries to translated code", "instructions left to the interpreter"];
        let before = counted.map(|name| pair.counted(name));
        let log = compare(&mut pair, &mut Random::new(1, 1), 1_000_000);
        assert!(log.is_empty(), "{runner:?}: {} accesses", log.len());
        for (name, before) in counted.into_iter().zip(before) {
            let number = pair.counted(name) - before;
            assert!(number < 100, "{runner:?}: {number} {name}");
        }
    }
}

#[test]
fn ports_that_are_known_are_read_without_the_engine() {
    let Some(mut pair) = Pair::new() else { return };
    // IN AL, imm8; ADD EBX, EAX; JMP to the beginning
    let program = [0xe4, KNOWN_PORT, 0x01, 0xc3, 0xeb, 0xfa];
    for runner in [Runner::Supervisor, Runner::RealMode] {
        pair.each(|machine| begin(machine, runner, &program, tss(MAP + 0x20), Eflags::empty()));
        let mut board = Board::default();
        board.end = pair.tested.cpu.instructions + INSTRUCTIONS;
        assert_eq!(board.run(&mut pair.tested), Exit::Deadline);
        assert!(board.peeked.get() < 100, "{runner:?}: {}", board.peeked.get());
        assert_eq!(pair.tested.get(reg::AX), 0x5a, "{runner:?}");
    }
}
