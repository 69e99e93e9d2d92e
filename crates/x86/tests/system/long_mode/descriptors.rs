//! Descriptors of 16 bytes, far transfers, and segment registers in 64-bit mode.

use iced_x86::Register::{EAX, ECX, RAX, RBX, RCX, SS};
use iced_x86::{Code, Instruction, Register};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use super::*;
use crate::common::assembler::{binary, hlt, mov, nop, plain, unary};

const TARGET: u32 = 0x1_4000;
/// A base address in the upper half.
const BASE: u64 = 0xffff_9000_0012_3000;

/// Puts a descriptor of a system segment into the GDT.
fn set_system(machine: &mut LongMachine, selector: u16, access: u8, base: u64) {
    let low = 0x67 | (base & 0xff_ffff) << 16 | u64::from(access) << 40 | (base >> 24 & 0xff) << 56;
    machine.set_descriptor(selector, low);
    machine.set_descriptor(selector + 8, base >> 32);
}

#[test]
fn system_segments_have_bases_of_64_bits() {
    let code = [
        mov(EAX, FREE.into()),
        unary(Code::Ltr_r64m16, RAX),
        mov(ECX, u32::from(FREE) + 16),
        unary(Code::Lldt_r64m16, RCX),
        unary(Code::Str_r64m16, RBX),
        hlt(),
    ];
    let mut machine = LongMachine::new(&code);
    set_system(&mut machine, FREE, 0x89, BASE);
    set_system(&mut machine, FREE + 16, 0x82, BASE + 0x1000);
    machine.cpu.set_gpr(reg::BX, u64::MAX);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!((machine.cpu.tr.base, machine.cpu.ldtr.base), (BASE, BASE + 0x1000));
    assert_eq!(machine.descriptor(FREE) >> 40 & 0xff, 0x8b, "it is busy");
    assert_eq!(machine.cpu.gpr(reg::BX), FREE.into());
    // 16-bit TSSs do not exist, nor does a descriptor with a type in its upper half.
    let mut machine = LongMachine::new(&code);
    set_system(&mut machine, FREE, 0x81, 0);
    assert_eq!(machine.raised(), (vector::GP, Some(FREE.into())));
    let mut machine = LongMachine::new(&code);
    set_system(&mut machine, FREE, 0x89, 0);
    machine.set_descriptor(FREE + 8, 1 << 40);
    assert_eq!(machine.raised(), (vector::GP, Some(FREE.into())));
    let mut machine = LongMachine::new(&code);
    set_system(&mut machine, FREE, 0x89, 1 << 47);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
}

#[test]
fn table_registers_have_bases_of_64_bits() {
    let code = [
        mov64(RAX, DATA.into()),
        mov64(RCX, u64::from(DATA) + 16),
        at(Code::Lidt_m1664, RAX),
        at(Code::Sidt_m1664, RCX),
        at(Code::Lgdt_m1664, RAX),
        at(Code::Sgdt_m1664, RCX),
        unary(Code::Sldt_r64m16, RBX),
        unary(Code::Smsw_r64m16, RBX),
        hlt(),
    ];
    let mut machine = LongMachine::new(&code);
    machine.put(DATA, &[0x34, 0x12]);
    machine.put_quadword(DATA + 2, BASE);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!((machine.cpu.gdtr.base, machine.cpu.gdtr.limit), (BASE, 0x1234));
    assert_eq!(machine.cpu.idtr, machine.cpu.gdtr);
    assert_eq!(machine.quadword(DATA + 18), BASE);
    let mut machine = LongMachine::new(&code);
    machine.put_quadword(DATA + 2, 1 << 47);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
}

#[test]
fn far_transfers_and_their_returns() {
    for (call, size) in [(Code::Call_m1632, 4), (Code::Call_m1664, 8)] {
        let back = if size == 8 { plain(Code::Retfq) } else { plain(Code::Retfd) };
        let mut machine = LongMachine::new(&[at(call, RAX), hlt()]);
        machine.put_quadword(DATA, TARGET.into());
        machine.put(DATA + size, &KERNEL_CODE.to_le_bytes());
        machine.cpu.set_gpr(reg::AX, DATA.into());
        machine.code_of(64, TARGET, &[nop(), back]);
        assert_eq!(machine.run_for(2), Exit::Deadline);
        assert_eq!(machine.cpu.gpr(reg::SP), u64::from(STACK - 2 * size));
        assert_eq!(machine.run(), Exit::Halt);
        assert_eq!(machine.cpu.gpr(reg::SP), STACK.into());
    }
    // To a user in compatibility mode, with parameters.
    let mut machine = LongMachine::new(&[Instruction::with1(Code::Retfq_imm16, 16).unwrap()]);
    let frame = [USER_CODE.into(), USER_CS.into(), 0, 0, USER_STACK.into(), USER_DS.into()];
    for (at, value) in (STACK..).step_by(8).zip(frame) {
        machine.put_quadword(at, value);
    }
    machine.code(USER_CODE, &[crate::common::assembler::inc(EAX)]);
    assert_eq!(machine.run_for(2), Exit::Deadline);
    assert_eq!((machine.cpu.cpl(), machine.cpu.ip), (3, u64::from(USER_CODE) + 1));
    assert_eq!(machine.cpu.gpr(reg::SP), u64::from(USER_STACK) + 16);
    // No task, and no target that is not canonical.
    let mut machine = LongMachine::new(&[at(Code::Jmp_m1664, RAX)]);
    machine.put_quadword(DATA, 1 << 47);
    machine.put(DATA + 8, &KERNEL_CODE.to_le_bytes());
    machine.cpu.set_gpr(reg::AX, DATA.into());
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
    let mut machine = LongMachine::new(&[at(Code::Jmp_m1664, RAX)]);
    set_system(&mut machine, FREE, 0x89, 0);
    machine.put(DATA + 8, &FREE.to_le_bytes());
    machine.cpu.set_gpr(reg::AX, DATA.into());
    assert_eq!(machine.raised(), (vector::GP, Some(FREE.into())));
}

#[test]
fn call_gates_lead_to_64_bit_code() {
    let mut machine = LongMachine::new(&[]);
    let (low, high) = long_gate(KERNEL_CODE, 0xec, 0, TARGET.into());
    machine.set_descriptor(FREE, low);
    machine.set_descriptor(FREE + 8, high);
    machine.put(DATA + 4, &FREE.to_le_bytes());
    machine.enter_long_user(&[at(Code::Call_m1632, RAX)]);
    machine.cpu.set_gpr(reg::AX, DATA.into());
    machine.code_of(64, TARGET, &[plain(Code::Retfq)]);
    let after = u64::from(USER_CODE) + 2;
    machine.code_of(64, USER_CODE + 2, &[nop()]);
    assert_eq!(machine.run_for(1), Exit::Deadline);
    assert_eq!((machine.cpu.cpl(), machine.cpu.ip), (0, TARGET.into()));
    assert_eq!(machine.cpu.segment(sreg::SS).selector, 0);
    let stack = machine.cpu.gpr(reg::SP) as u32;
    assert_eq!(stack, INNER_STACK - 32);
    let frame = [0, 8, 16, 24].map(|offset| machine.quadword(stack + offset));
    assert_eq!(frame, [after, LONG_USER_CS.into(), USER_STACK.into(), USER_DS.into()]);
    assert_eq!(machine.run_for(1), Exit::Deadline);
    assert_eq!((machine.cpu.cpl(), machine.cpu.ip), (3, after));
    // A gate to 32-bit code.
    machine.set_descriptor(KERNEL_CODE, flat(CODE_SEGMENT));
    machine.enter_long_user(&[at(Code::Call_m1632, RAX)]);
    machine.cpu.idtr.limit = 0;
    assert_eq!(machine.run(), Exit::Shutdown);
}

#[test]
fn segment_registers() {
    // A null selector in SS, and loads of FS and GS in every way.
    let pop = |code, register| Instruction::with1(code, register).unwrap();
    let push = Instruction::with1(Code::Push_r64, RAX).unwrap();
    let code = [
        mov(EAX, 0),
        binary(Code::Mov_Sreg_r64m16, SS, RAX),
        mov(EAX, FREE.into()),
        push,
        push,
        pop(Code::Popq_FS, Register::FS),
        pop(Code::Popq_GS, Register::GS),
        binary(Code::Mov_r64m16_Sreg, RCX, Register::FS),
        mov64(RBX, DATA.into()),
        Instruction::with2(Code::Lfs_r64_m1664, RAX, iced_x86::MemoryOperand::with_base(RBX))
            .unwrap(),
        Instruction::with2(Code::Lgs_r64_m1664, RAX, iced_x86::MemoryOperand::with_base(RBX))
            .unwrap(),
        hlt(),
    ];
    let mut machine = LongMachine::new(&code);
    machine.set_descriptor(FREE, 0x12cf_9334_5678_ffff);
    machine.put_quadword(DATA, 0x1122_3344_5566_7788);
    assert_eq!(machine.run_for(8), Exit::Deadline);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, 0);
    for register in [sreg::FS, sreg::GS] {
        assert_eq!(machine.cpu.segment(register).base, 0x1234_5678);
    }
    assert_eq!(machine.cpu.gpr(reg::CX), FREE.into());
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.gpr(reg::AX), 0x1122_3344_5566_7788);
    assert_eq!(machine.cpu.segment(sreg::GS).base, 0);
    // Bases and limits of the others do not count.
    let mut machine = LongMachine::new(&[
        mov(EAX, FREE.into()),
        binary(Code::Mov_Sreg_r32m16, Register::DS, EAX),
        mov64(RBX, DATA.into()),
        load64(RAX, RBX),
        hlt(),
    ]);
    machine.set_descriptor(FREE, 0x1240_9334_5678_0000);
    machine.put_quadword(DATA, 99);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.gpr(reg::AX), 99);
    // A null selector in SS is not for users, nor with another RPL.
    let load = [mov(EAX, 3), binary(Code::Mov_Sreg_r64m16, SS, RAX)];
    assert_eq!(LongMachine::new(&load).raised(), (vector::GP, Some(0)));
    let mut machine = LongMachine::new(&[]);
    machine.enter_long_user(&load);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
}
