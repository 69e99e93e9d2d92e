//! x87 errors by FERR# and IGNNE#, as in a PC with CR0.NE clear (SDM vol. 1, 8.7.2 and D.2.1).

use iced_x86::{Code, Instruction, Register};
use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::common::assembler::*;
use crate::machine::*;

/// The control word that unmasks division by zero.
const CONTROL: u32 = 0x037b;
/// The vector of IRQ 13.
const VECTOR: u8 = 0x75;

/// Makes the instruction that divides ST(1) by ST(0).
fn divide() -> Instruction {
    binary(Code::Fdivp_sti_st0, Register::ST1, Register::ST0)
}

/// Makes a machine that divides by zero with that exception unmasked, and then executes `code`.
fn divides(code: &[Instruction]) -> Machine {
    let divides =
        [memory(Code::Fldcw_m2byte, DATA), plain(Code::Fld1), plain(Code::Fldz), divide()];
    let mut machine = Machine::with_code(&[&divides, code].concat());
    machine.put_dword(DATA, CONTROL);
    machine
}

/// EIP of the first instruction of `code` after the division.
const AFTER: u32 = CODE + 6 + 2 + 2 + 2;

fn run_once(machine: &mut Machine) -> Exit {
    machine.engine.run(&mut machine.cpu, &mut machine.memory, 100)
}

#[test]
fn in_native_mode_it_is_an_exception() {
    let mut machine = divides(&[plain(Code::Wait)]);
    machine.cpu.set_cr0(Cr0::PE | Cr0::NE);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (vector::MF, AFTER));
}

#[test]
fn a_waiting_instruction_waits_for_the_interrupt() {
    for waiting in [plain(Code::Wait), plain(Code::Fld1), plain(Code::Emms)] {
        let mut machine = divides(&[waiting, hlt()]);
        machine.cpu.set_eflags(Eflags::IF);
        assert_eq!(machine.run(), Exit::NumericError, "{waiting}");
        assert_eq!(machine.cpu.ip, u64::from(AFTER));
        assert!(machine.cpu.is_halted());
        let waited = machine.cpu.instructions;
        for _ in 0..3 {
            assert_eq!(run_once(&mut machine), Exit::Halt, "{waiting}");
        }
        assert_eq!(machine.cpu.instructions, waited);
        machine.interrupt = Some(VECTOR);
        let exception = machine.run_to_exception();
        assert_eq!((exception.vector, exception.eip), (VECTOR, AFTER), "{waiting}");
    }
}

/// Runs until the processor waits in `machine`, then the handler `code` until its OUT to port F0h, and then
/// with IGNNE# to the next exit.
fn handles(machine: &mut Machine, code: &[Instruction]) -> Exit {
    machine.code(handler(VECTOR), &[&[out_al(0xf0)], code].concat());
    machine.cpu.set_eflags(Eflags::IF);
    assert_eq!(machine.run(), Exit::NumericError);
    machine.cpu.inject(VECTOR);
    assert!(matches!(run_once(machine), Exit::PortWrite { port: 0xf0, .. }));
    machine.cpu.ignore_numeric_error();
    machine.cpu.answer(0);
    run_once(machine)
}

/// After IGNNE# the handler can use the x87.
#[test]
fn the_handler_clears_the_error() {
    let mut machine = divides(&[plain(Code::Wait), hlt()]);
    let code = [plain(Code::Fld1), plain(Code::Wait), plain(Code::Fnclex), plain(Code::Iretd)];
    assert_eq!(handles(&mut machine, &code), Exit::Halt);
    assert_eq!(machine.cpu.ip, u64::from(AFTER + 2));
    assert_eq!(machine.get(reg::SP), STACK);
}

/// IGNNE# ends together with the error for which it was activated.
#[test]
fn the_next_error_counts_again() {
    let mut machine = divides(&[plain(Code::Wait)]);
    let [one, zero] = [plain(Code::Fld1), plain(Code::Fldz)];
    let code = [plain(Code::Fnclex), one, zero, divide(), plain(Code::Wait)];
    assert_eq!(handles(&mut machine, &code), Exit::NumericError);
}

#[test]
fn without_an_error_there_is_nothing_to_ignore() {
    let mut machine = divides(&[plain(Code::Wait)]);
    machine.cpu.ignore_numeric_error();
    assert_eq!(machine.run(), Exit::NumericError);
}

/// The shadow of STI ends when the processor begins to wait.
#[test]
fn sti_before_it_lets_the_interrupt_in() {
    let mut machine = divides(&[plain(Code::Sti), plain(Code::Wait)]);
    assert_eq!(machine.run(), Exit::NumericError);
    machine.interrupt = Some(VECTOR);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (VECTOR, AFTER + 1));
}

#[test]
fn instructions_that_do_not_wait_go_on() {
    let mut machine =
        divides(&[unary(Code::Fnstsw_AX, AX), plain(Code::Fnclex), plain(Code::Wait), hlt()]);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::AX) & 0x8084, 0x8084);
}

/// The waiting is part of the saved state.
#[test]
fn waiting_survives_saving() {
    let mut machine = divides(&[plain(Code::Wait)]);
    assert_eq!(machine.run(), Exit::NumericError);
    machine.cpu.ignore_numeric_error();
    let saved = machine.cpu.save();
    machine.cpu.restore(&saved).unwrap();
    assert_eq!(machine.cpu.save(), saved);
    assert_eq!(run_once(&mut machine), Exit::Halt);
}
