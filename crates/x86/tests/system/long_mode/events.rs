//! Interrupts, exceptions and IRETQ (SDM vol. 3, 7.14).

use iced_x86::Register::{EAX, RAX, RBX, RSP};
use iced_x86::{Code, Instruction};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use super::*;
use crate::common::assembler::{hlt, plain};

fn interrupt(vector: u8) -> Instruction {
    Instruction::with1(Code::Int_imm8, u32::from(vector)).unwrap()
}

#[test]
fn the_frame_is_aligned_and_has_the_stack_always() {
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    machine.cpu.set_gpr(reg::SP, u64::from(STACK) + 5);
    machine.cpu.set_eflags(Eflags::IF | Eflags::CF);
    let exception = machine.run_to_long_exception();
    let expected = LongException {
        vector: 0x40,
        error_code: None,
        rip: u64::from(CODE) + 2,
        cs: KERNEL_CODE.into(),
        rflags: Eflags::IF | Eflags::CF,
        rsp: u64::from(STACK) + 5,
        ss: KERNEL_DATA.into(),
    };
    assert_eq!(exception, expected);
    assert_eq!(machine.cpu.gpr(reg::SP), u64::from(STACK) - 40);
    assert_eq!(machine.cpu.eflags(), Eflags::CF);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, KERNEL_DATA, "it does not change");
}

#[test]
fn inner_handlers_get_a_null_stack_segment() {
    let mut machine = LongMachine::new(&[]);
    machine.set_long_gate(0x40, TRAP_GATE | DPL3, 0, handler(0x40).into());
    machine.enter_long_user(&[interrupt(0x40)]);
    machine.cpu.set_eflags(Eflags::IF);
    let exception = machine.run_to_long_exception();
    assert_eq!((exception.cs, exception.ss), (LONG_USER_CS.into(), USER_DS.into()));
    assert_eq!(exception.rsp, u64::from(USER_STACK));
    assert_eq!(machine.cpu.gpr(reg::SP), u64::from(INNER_STACK) - 40);
    assert_eq!((machine.cpu.cpl(), machine.cpu.segment(sreg::SS).selector), (0, 0));
    assert_eq!(machine.cpu.eflags(), Eflags::IF, "it is a trap gate");
    // Without DPL 3 the gate is not for users.
    let mut machine = LongMachine::new(&[]);
    machine.enter_long_user(&[interrupt(0x40)]);
    assert_eq!(machine.raised(), (vector::GP, Some(0x40 * 8 + 2)));
}

#[test]
fn the_interrupt_stack_table_serves_any_privilege() {
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    machine.put_quadword(TSS + 0x24 + 8 * 2, 0x2_f000);
    machine.set_long_gate(0x40, INTERRUPT_GATE, 3, handler(0x40).into());
    let exception = machine.run_to_long_exception();
    assert_eq!((exception.rsp, exception.ss), (STACK.into(), KERNEL_DATA.into()));
    assert_eq!(machine.cpu.gpr(reg::SP), 0x2_f000 - 40);
    // A stack beyond the limit of the TSS, and one that is not canonical.
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    machine.set_long_gate(0x40, INTERRUPT_GATE, 7, handler(0x40).into());
    machine.cpu.tr.limit = 0x50;
    assert_eq!(machine.raised(), (vector::TS, Some(TASK.into())));
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    machine.put_quadword(TSS + 0x24, 1 << 47);
    machine.set_long_gate(0x40, INTERRUPT_GATE, 1, handler(0x40).into());
    assert_eq!(machine.raised(), (vector::SS, Some(0)));
}

#[test]
fn gates_that_are_refused() {
    let code = 0x40 * 8 + 2;
    // 16-bit and task gates do not exist, nor do handlers in compatibility mode or at no canonical address.
    for access in [0x86, 0x87, 0x85, 0x8c] {
        let mut machine = LongMachine::new(&[interrupt(0x40)]);
        machine.set_long_gate(0x40, access, 0, handler(0x40).into());
        assert_eq!(machine.raised(), (vector::GP, Some(code)), "{access:x}");
    }
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    machine.set_long_gate(0x40, INTERRUPT_GATE & !PRESENT, 0, 0);
    assert_eq!(machine.raised(), (vector::NP, Some(code)));
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    let (low, high) = long_gate(FREE, INTERRUPT_GATE, 0, handler(0x40).into());
    machine.set_descriptor(FREE, flat(CODE_SEGMENT));
    machine.put_quadword(IDT + 0x40 * 16, low);
    machine.put_quadword(IDT + 0x40 * 16 + 8, high);
    assert_eq!(machine.raised(), (vector::GP, Some(FREE.into())));
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    machine.set_long_gate(0x40, INTERRUPT_GATE, 0, 1 << 47);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
    let mut machine = LongMachine::new(&[interrupt(0x40)]);
    machine.cpu.idtr.limit = 0x40 * 16 + 14;
    assert_eq!(machine.raised(), (vector::GP, Some(code)));
}

/// Returns a machine that executes IRETQ with this frame.
fn returning(frame: [u64; 5]) -> LongMachine {
    let mut machine = LongMachine::new(&[plain(Code::Iretq)]);
    let at = STACK - 40;
    for (address, value) in (at..).step_by(8).zip(frame) {
        machine.put_quadword(address, value);
    }
    machine.cpu.set_gpr(reg::SP, at.into());
    machine
}

#[test]
fn iretq_pops_the_stack_at_any_privilege() {
    let flags = u64::from((Eflags::CF | Eflags::NT).bits());
    let mut machine = returning([USER_CODE.into(), KERNEL_CODE.into(), flags, 0x7777, 0]);
    machine.code_of(64, USER_CODE, &[hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.gpr(reg::SP), 0x7777);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, 0, "null is allowed");
    assert_eq!(machine.cpu.eflags(), Eflags::CF | Eflags::NT);
    // It returns to no task.
    let mut machine = LongMachine::new(&[plain(Code::Iretq)]);
    machine.cpu.set_eflags(Eflags::NT);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
}

#[test]
fn iretq_goes_to_users_of_both_kinds() {
    let stack = 0x1_2345_6789_0000;
    let frame = [USER_CODE.into(), LONG_USER_CS.into(), 2, stack, USER_DS.into()];
    let mut machine = returning(frame);
    let base = 0x7f00_0000_1000;
    machine.cpu.set_segment(sreg::FS, Segment::new(0, base, 0, Attributes(0)));
    machine.code_of(64, USER_CODE, &[mov64(RAX, 5)]);
    assert_eq!(machine.run_for(2), Exit::Deadline);
    assert_eq!((machine.cpu.cpl(), machine.cpu.gpr(reg::SP)), (3, stack));
    assert!(machine.cpu.is_in_64_bit_mode());
    assert_eq!(machine.cpu.segment(sreg::FS).base, base, "a null segment stays");

    let frame = [USER_CODE.into(), USER_CS.into(), 2, USER_STACK.into(), USER_DS.into()];
    let mut machine = returning(frame);
    machine.cpu.set_gpr(reg::AX, u64::MAX);
    machine.code(USER_CODE, &[crate::common::assembler::inc(EAX), interrupt(0x41)]);
    machine.set_long_gate(0x41, INTERRUPT_GATE | DPL3, 0, handler(0x41).into());
    let exception = machine.run_to_long_exception();
    assert_eq!((exception.cs, exception.rsp), (USER_CS.into(), USER_STACK.into()));
    assert_eq!(machine.cpu.gpr(reg::AX), 0);
    assert!(machine.cpu.is_in_64_bit_mode());
}

#[test]
fn iretq_refuses_wrong_frames() {
    let kernel = u64::from(KERNEL_CODE);
    let (user, data) = (u64::from(LONG_USER_CS), u64::from(USER_DS));
    let code = u64::from(USER_CODE);
    for (frame, error_code) in [
        ([1 << 47, kernel, 2, 0, 0], 0),
        ([code, 0, 2, 0, 0], 0),
        ([code, user, 2, 0, 0], 0),
        ([code, user, 2, 0, 3], 0),
        ([code, user, 2, 0, KERNEL_DATA.into()], KERNEL_DATA.into()),
        ([code, data, 2, 0, data], data & !3),
    ] {
        let raised = returning(frame).raised();
        assert_eq!(raised, (vector::GP, Some(error_code)), "{frame:x?}");
    }
    // Code of both sizes.
    let mut machine = returning([code, FREE.into(), 2, 0, 0]);
    machine.set_descriptor(FREE, LONG_CODE | 1 << 54);
    assert_eq!(machine.raised(), (vector::GP, Some(FREE.into())));
}

#[test]
fn addresses_that_are_not_canonical_fault_without_paging() {
    let mut machine = LongMachine::new(&[mov64(RBX, (1 << 47) - 4), load64(RAX, RBX)]);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
    let push = Instruction::with1(Code::Push_r64, RAX).unwrap();
    let mut machine = LongMachine::new(&[mov64(RSP, 1 << 50), push]);
    machine.set_long_gate(vector::SS, INTERRUPT_GATE, 1, handler(vector::SS).into());
    machine.put_quadword(TSS + 0x24, 0x2_f000);
    assert_eq!(machine.raised(), (vector::SS, Some(0)));
    let jump = Instruction::with1(Code::Jmp_rm64, RAX).unwrap();
    let mut machine = LongMachine::new(&[mov64(RAX, 1 << 47), jump]);
    let exception = machine.run_to_long_exception();
    assert_eq!((exception.vector, exception.rip), (vector::GP, u64::from(CODE) + 10));
}
