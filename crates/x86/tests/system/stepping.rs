//! The single-step trap (SDM vol. 3, 19.3.1.4).

use iced_x86::{Code, Instruction, MemoryOperand};
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::common::assembler::*;
use crate::machine::*;

const VECTOR: u8 = 0x40;

/// Runs `code`, then PUSH 0, POPFD, which clears TF, and HLT. If `trap` is true, TF is set from the start.
/// EAX holds it. Returns the indices of the next instructions at each trap.
fn trapped_before(code: &[Instruction], trap: bool) -> (Machine, Vec<usize>) {
    let mut machine = Machine::new();
    let end = [push_value(0), plain(Code::Popfd), hlt()];
    let addresses = machine.code(CODE, &[code, &end].concat());
    let pushed_eip = MemoryOperand::with_base_displ(ESP, 4);
    let handler_code = [
        push(EAX),
        Instruction::with2(Code::Mov_r32_rm32, EAX, pushed_eip).unwrap(),
        Instruction::with2(Code::Out_imm8_EAX, 0x80_u32, EAX).unwrap(),
        pop(EAX),
        plain(Code::Iretd),
    ];
    machine.code(handler(vector::DB), &handler_code);
    machine.cpu.set_gpr(reg::AX, Eflags::TF.bits().into());
    machine.cpu.set_eflags(if trap { Eflags::TF } else { Eflags::empty() });
    machine.run_to_halt();
    let index = |exit: &Exit| match exit {
        Exit::PortWrite { value, .. } => addresses.iter().position(|address| address == value),
        _ => None,
    };
    let indices = machine.accesses.iter().map(|exit| index(exit).unwrap()).collect();
    (machine, indices)
}

#[test]
fn every_instruction_traps_after_it() {
    let code = [nop(), inc(EBX), nop()];
    let (machine, trapped) = trapped_before(&code, true);
    // TF was set at the beginning of the POPFD that clears it.
    assert_eq!(trapped, [1, 2, 3, 4, 5]);
    assert_eq!(machine.get(reg::BX), 1);
}

#[test]
fn the_instruction_that_sets_tf_does_not_trap() {
    let code = [push(EAX), plain(Code::Popfd), nop(), nop()];
    let (_, trapped) = trapped_before(&code, false);
    assert_eq!(trapped, [3, 4, 5, 6]);
}

#[test]
fn a_branch_traps_at_its_target() {
    let skip = jmp(CODE + 5 + 1);
    let code = [skip, nop(), nop()];
    let (_, trapped) = trapped_before(&code, true);
    assert_eq!(trapped, [2, 3, 4, 5]);
}

#[test]
fn each_iteration_of_a_repeated_instruction_traps() {
    let code = [mov(EDI, DATA), mov(ECX, 4), rep_stosb()];
    let (machine, trapped) = trapped_before(&code, true);
    assert_eq!(trapped, [1, 2, 2, 2, 2, 3, 4, 5]);
    assert_eq!(machine.dword(DATA), 0);
    assert_eq!(machine.get(reg::DI), DATA + 4);
}

#[test]
fn the_trap_is_noted_in_dr6_and_clears_tf() {
    let mut machine = Machine::with_code(&[nop(), hlt()]);
    machine.cpu.set_eflags(Eflags::TF | Eflags::CF);
    let read_dr6 = Instruction::with2(Code::Mov_r32_dr, EBX, DR6).unwrap();
    machine.code(handler(vector::DB), &[read_dr6, hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.get(reg::BX), 0xffff_4ff0, "BS");
    assert!(!machine.cpu.eflags().contains(Eflags::TF));
    assert_eq!(machine.dword(STACK - 4) & 0x101, 0x101, "but not in what was pushed");
}

/// An instruction that faults has not been executed: only its exception is delivered.
#[test]
fn a_fault_comes_without_a_trap() {
    let mut machine = Machine::with_code(&[plain(Code::Ud2)]);
    machine.cpu.set_eflags(Eflags::TF);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (vector::UD, CODE));
    assert!(exception.eflags.contains(Eflags::TF));
}

/// INT n clears TF, so that its handler is not single-stepped.
#[test]
fn int_n_is_not_trapped() {
    let mut machine = Machine::with_code(&[int(VECTOR)]);
    machine.cpu.set_eflags(Eflags::TF);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (VECTOR, CODE + 2));
    assert!(exception.eflags.contains(Eflags::TF));
}

/// MOV SS and POP SS hold the trap back, just as they hold interrupts back (SDM vol. 3, 7.8.3).
#[test]
fn loading_ss_holds_the_trap_back() {
    let code = [mov(EBX, KERNEL_DATA.into()), to_segment(SS, EBX), nop()];
    let (_, trapped) = trapped_before(&code, true);
    assert_eq!(trapped, [1, 3, 4, 5]);
}

/// The trap after HLT wakes the processor.
#[test]
fn hlt_traps() {
    let mut machine = Machine::with_code(&[hlt()]);
    machine.code(handler(vector::DB), &[inc(EBX), hlt()]);
    machine.cpu.set_eflags(Eflags::TF);
    machine.run();
    assert_eq!(machine.get(reg::BX), 1);
    assert_eq!(machine.dword(STACK - 12), CODE + 1);
}

/// INT1 goes to #DB's handler from any privilege, returns to the next instruction, and sets no condition in
/// DR6.
#[test]
fn int1_is_a_debug_trap() {
    let read_dr6 = Instruction::with2(Code::Mov_r32_dr, EAX, DR6).unwrap();
    let mut machine = Machine::with_user_code(&[plain(Code::Int1)]);
    machine.code(handler(vector::DB), &[read_dr6, hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.cpl(), 0);
    assert_eq!(machine.dword(INNER_STACK - 20), USER_CODE + 1);
    assert_eq!(machine.get(reg::AX), 0xffff_0ff0);
}
