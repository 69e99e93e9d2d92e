//! Fast system calls, SWAPGS, and the bases of FS and GS (SDM vol. 3, 6.8.7, 6.8.8; vol. 2).

use iced_x86::Register::{EAX, RAX, RBX, RCX};
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use super::*;
use crate::common::assembler::{hlt, mov, nop, plain, unary};

const ENTRY: u32 = 0x1_4000;
const R11: u8 = 11;

/// A machine with SYSCALL enabled, and a user with this code.
fn with_system_calls(code: &[Instruction]) -> LongMachine {
    let mut machine = LongMachine::new(&[]);
    let long = &mut machine.cpu.msrs.long;
    long.system_calls = true;
    long.star = u64::from(USER_CS) << 48 | u64::from(KERNEL_CODE) << 32;
    long.lstar = ENTRY.into();
    long.flag_mask = (Eflags::IF | Eflags::TF | Eflags::DF).bits().into();
    machine.enter_long_user(code);
    machine
}

#[test]
fn syscall_and_back() {
    let mut machine = with_system_calls(&[plain(Code::Syscall), nop()]);
    machine.code_of(64, ENTRY, &[plain(Code::Nopd), plain(Code::Sysretq)]);
    machine.cpu.set_eflags(Eflags::IF | Eflags::DF | Eflags::CF);
    assert_eq!(machine.run_for(1), Exit::Deadline);
    assert_eq!((machine.cpu.cpl(), machine.cpu.ip), (0, ENTRY.into()));
    assert_eq!(machine.cpu.gpr(reg::CX), u64::from(USER_CODE) + 2);
    let flags = (Eflags::IF | Eflags::DF | Eflags::CF).bits() | 2;
    assert_eq!(machine.cpu.gpr(R11), flags.into());
    assert_eq!(machine.cpu.eflags(), Eflags::CF);
    assert_eq!(machine.cpu.segment(sreg::CS).selector, KERNEL_CODE);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, KERNEL_DATA);
    assert_eq!(machine.cpu.gpr(reg::SP), u64::from(USER_STACK), "the stack does not change");
    assert!(machine.cpu.is_in_64_bit_mode());
    assert_eq!(machine.run_for(2), Exit::Deadline);
    assert_eq!((machine.cpu.cpl(), machine.cpu.ip), (3, u64::from(USER_CODE) + 2));
    assert_eq!(machine.cpu.eflags().bits() | 2, flags);
    assert_eq!(machine.cpu.segment(sreg::CS).selector, (USER_CS + 16) | 3);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, (USER_CS + 8) | 3);
    assert!(machine.cpu.is_in_64_bit_mode());
}

#[test]
fn sysret_to_compatibility_mode() {
    let mut machine = with_system_calls(&[plain(Code::Syscall)]);
    machine.code_of(
        64,
        ENTRY,
        &[mov64(RCX, 0x77_0000_0000 | u64::from(CODE)), plain(Code::Sysretd)],
    );
    machine.code(CODE, &[crate::common::assembler::inc(EAX)]);
    assert_eq!(machine.run_for(4), Exit::Deadline);
    assert_eq!(machine.cpu.ip, u64::from(CODE) + 1);
    assert!(!machine.cpu.is_in_64_bit_mode() && machine.cpu.cpl() == 3);
    assert_eq!(machine.cpu.segment(sreg::CS).selector, USER_CS);
    // SYSCALL is for 64-bit code only.
    machine.code(CODE, &[plain(Code::Syscall)]);
    machine.cpu.ip = CODE.into();
    assert_eq!(machine.raised(), (vector::UD, None));
}

#[test]
fn system_calls_that_are_refused() {
    let mut machine = with_system_calls(&[plain(Code::Syscall)]);
    machine.cpu.msrs.long.system_calls = false;
    assert_eq!(machine.raised(), (vector::UD, None));
    assert_eq!(with_system_calls(&[plain(Code::Sysretq)]).raised(), (vector::GP, Some(0)));
    let mut machine = with_system_calls(&[plain(Code::Syscall)]);
    machine.code_of(64, ENTRY, &[mov64(RCX, 1 << 47), plain(Code::Sysretq)]);
    let exception = machine.run_to_long_exception();
    assert_eq!((exception.vector, exception.cs), (vector::GP, KERNEL_CODE.into()));
}

#[test]
fn sysenter_and_sysexit() {
    let mut machine = LongMachine::new(&[]);
    machine.cpu.msrs.sysenter_cs = 0x20;
    machine.cpu.msrs.sysenter_eip = ENTRY.into();
    machine.cpu.msrs.sysenter_esp = 0xffff_8000_0000_1000;
    machine.enter_user();
    machine.code(USER_CODE, &[plain(Code::Sysenter)]);
    let stack = 0x7fff_1234_5678;
    let code = [
        mov64(RCX, stack),
        mov64(Register::RDX, u64::from(USER_CODE) + 0x100),
        plain(Code::Sysexitq),
    ];
    machine.code_of(64, ENTRY, &code);
    assert_eq!(machine.run_for(1), Exit::Deadline);
    assert!(machine.cpu.is_in_64_bit_mode() && machine.cpu.cpl() == 0);
    assert_eq!(machine.cpu.gpr(reg::SP), 0xffff_8000_0000_1000);
    machine.code_of(64, USER_CODE + 0x100, &[nop()]);
    assert_eq!(machine.run_for(4), Exit::Deadline);
    assert!(machine.cpu.is_in_64_bit_mode() && machine.cpu.cpl() == 3);
    assert_eq!(machine.cpu.gpr(reg::SP), stack);
    assert_eq!(machine.cpu.segment(sreg::CS).selector, 0x43);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, 0x4b);
    for code in [
        [mov64(RCX, 1 << 47), mov64(Register::RDX, 0)],
        [mov64(RCX, 0), mov64(Register::RDX, 1 << 47)],
    ] {
        let mut machine = LongMachine::new(&[code[0], code[1], plain(Code::Sysexitq)]);
        machine.cpu.msrs.sysenter_cs = 0x20;
        assert_eq!(machine.raised(), (vector::GP, Some(0)));
    }
}

/// MOV RAX, GS:[0].
fn load_from(segment: Register) -> Instruction {
    let operand = MemoryOperand::new(Register::None, Register::None, 1, 0, 8, false, segment);
    Instruction::with2(Code::Mov_r64_rm64, RAX, operand).unwrap()
}

#[test]
fn swapgs_exchanges_the_bases() {
    let code = [plain(Code::Swapgs), load_from(Register::GS), plain(Code::Swapgs), hlt()];
    let mut machine = LongMachine::new(&code);
    machine.cpu.msrs.long.kernel_gs_base = DATA.into();
    machine.put_quadword(DATA, 0x1234_5678_9abc_def0);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.gpr(reg::AX), 0x1234_5678_9abc_def0);
    assert_eq!(machine.cpu.segment(sreg::GS).base, 0);
    assert_eq!(machine.cpu.msrs.long.kernel_gs_base, DATA.into());
}

#[test]
fn users_access_bases_if_the_system_lets_them() {
    use Code as C;
    let base = 0x7f12_3456_0000_u64;
    for (write, read, wide) in [
        (C::Wrfsbase_r64, C::Rdfsbase_r64, true),
        (C::Wrgsbase_r64, C::Rdgsbase_r64, true),
        (C::Wrfsbase_r32, C::Rdfsbase_r32, false),
        (C::Wrgsbase_r32, C::Rdgsbase_r32, false),
    ] {
        let (from, to) = if wide { (RAX, RBX) } else { (EAX, Register::EBX) };
        let code = [mov64(RAX, base), unary(write, from), unary(read, to)];
        let mut machine = LongMachine::new(&[]);
        machine.enter_long_user(&code);
        assert_eq!(machine.raised(), (vector::UD, None), "CR4.FSGSBASE is clear");
        let mut machine = LongMachine::new(&[]);
        machine.cpu.set_cr4(Cr4::PAE | Cr4::FSGSBASE);
        machine.enter_long_user(&code);
        assert_eq!(machine.run_for(3), Exit::Deadline);
        let expected = if wide { base } else { base & 0xffff_ffff };
        assert_eq!(machine.cpu.gpr(reg::BX), expected);
    }
    let mut machine = LongMachine::new(&[mov64(RAX, 1 << 47), unary(C::Wrgsbase_r64, RAX)]);
    machine.cpu.set_cr4(Cr4::PAE | Cr4::FSGSBASE);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
}

#[test]
fn registers_of_long_mode_hold_canonical_addresses() {
    let write = |number: u32, value: u64| {
        [
            mov(Register::ECX, number),
            mov(EAX, value as u32),
            mov(Register::EDX, (value >> 32) as u32),
            plain(Code::Wrmsr),
        ]
    };
    for number in [0xc000_0082, 0xc000_0083, 0xc000_0100, 0xc000_0101, 0xc000_0102, 0x175, 0x176] {
        let value = 0xffff_8765_4321_0000;
        let code = [&write(number, value)[..], &[plain(Code::Rdmsr), hlt()]].concat();
        let mut machine = LongMachine::new(&code);
        assert_eq!(machine.run(), Exit::Halt);
        let read = machine.cpu.gpr(reg::DX) << 32 | machine.cpu.gpr(reg::AX);
        assert_eq!(read, value, "{number:x}");
        let mut machine = LongMachine::new(&write(number, 1 << 47));
        assert_eq!(machine.raised(), (vector::GP, Some(0)), "{number:x}");
    }
    let mut machine = LongMachine::new(&write(0xc000_0084, 1 << 32));
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
    let code = [&write(0xc000_0081, 0x1234_5678_9abc_def0)[..], &[plain(Code::Rdmsr), hlt()]];
    let mut machine = LongMachine::new(&code.concat());
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.msrs.long.star, 0x1234_5678_9abc_def0);
}
