//! The moments at which interrupts are taken (SDM vol. 3, 7.8), and HLT.

use iced_x86::{Code, Instruction};
use ring3_core::memory::Backing;
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;

use crate::common::assembler::*;
use crate::machine::*;

const VECTOR: u8 = 0x40;

fn sti() -> Instruction {
    plain(Code::Sti)
}

/// Returns the index of the instruction before which an interrupt is taken that is pending from the start of
/// `code`.
fn taken_before(code: &[Instruction], eflags: Eflags) -> usize {
    let mut machine = Machine::new();
    let addresses = machine.code(CODE, code);
    machine.cpu.set_eflags(eflags);
    machine.interrupt = Some(VECTOR);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (VECTOR, None));
    addresses.iter().position(|address| *address == exception.eip).unwrap()
}

#[test]
fn sti_takes_effect_after_one_more_instruction() {
    assert_eq!(taken_before(&[sti(), nop(), nop(), nop()], Eflags::empty()), 2);
    assert_eq!(taken_before(&[nop(), sti(), sti(), nop(), nop()], Eflags::empty()), 3);
    assert_eq!(taken_before(&[sti(), nop()], Eflags::IF), 0, "nothing to wait for");
}

#[test]
fn sti_and_cli_leave_no_window() {
    let mut machine = Machine::with_code(&[sti(), plain(Code::Cli), nop(), nop(), hlt()]);
    machine.interrupt = Some(VECTOR);
    machine.run_to_halt();
    assert_eq!(machine.interrupt, Some(VECTOR));
}

/// This allows SS and ESP to be changed together (SDM vol. 3, 7.8.3).
#[test]
fn no_interrupt_comes_between_ss_and_esp() {
    let by_mov = [mov(EAX, KERNEL_DATA.into()), to_segment(SS, EAX), mov(ESP, STACK), nop()];
    let by_pop = [push_value(KERNEL_DATA.into()), unary(Code::Popd_SS, SS), mov(ESP, STACK), nop()];
    for code in [by_mov, by_pop] {
        let mut machine = Machine::new();
        let addresses = machine.code(CODE, &code);
        machine.cpu.set_gpr(reg::SP, (STACK - 0x100).into());
        machine.cpu.set_eflags(Eflags::IF);
        assert_eq!(machine.run_for(2), Exit::Deadline);
        assert!(!machine.cpu.is_interruptible());
        machine.interrupt = Some(VECTOR);
        let exception = machine.run_to_exception();
        assert_eq!((exception.vector, exception.eip), (VECTOR, addresses[3]));
        assert_eq!(machine.get(reg::SP), STACK - 12, "on the new stack");
    }
}

#[test]
fn hlt_waits_for_an_interrupt() {
    let mut machine = Machine::new();
    let addresses = machine.code(CODE, &[sti(), hlt(), nop()]);
    machine.run_to_halt();
    assert!(machine.cpu.is_halted());
    assert_eq!(machine.run(), Exit::Halt, "it still waits");
    machine.interrupt = Some(VECTOR);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (VECTOR, addresses[2]));
}

#[test]
fn hlt_without_interrupts_waits_for_ever() {
    let mut machine = Machine::with_code(&[hlt()]);
    machine.interrupt = Some(VECTOR);
    machine.run_to_halt();
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.interrupt, Some(VECTOR));
}

/// Between two iterations EIP is that of the instruction, and the registers show its progress.
#[test]
fn a_repeated_instruction_is_interrupted_and_goes_on() {
    let mut machine = Machine::new();
    let addresses = machine
        .code(CODE, &[mov(ESI, DATA), mov(EDI, DATA + 0x800), mov(ECX, 1000), rep_movsb(), hlt()]);
    let pattern: Vec<u8> = (0..1000_u32).map(|n| (n * 7) as u8).collect();
    machine.put(DATA, &pattern);
    machine.cpu.set_eflags(Eflags::IF);
    machine.code(handler(VECTOR), &[inc(EBX), plain(Code::Iretd)]);
    for interrupts in 1..20 {
        assert_eq!(machine.run_for(17), Exit::Deadline);
        assert_eq!(machine.cpu.ip, u64::from(addresses[3]));
        machine.interrupt = Some(VECTOR);
        // The handler's two instructions.
        assert_eq!(machine.run_for(2), Exit::Deadline);
        assert_eq!(machine.get(reg::BX), interrupts);
        let done = 17 * interrupts - 3;
        assert_eq!(machine.get(reg::CX), 1000 - done);
        assert_eq!(machine.get(reg::SI), DATA + done);
    }
    machine.run_to_halt();
    let mut copy = vec![0; 1000];
    machine.memory.read((DATA + 0x800).into(), &mut copy);
    assert_eq!(copy, pattern);
}

/// The IDT is in a device's memory: the delivery makes each of its accesses once, and the interrupt is not
/// lost.
#[test]
fn delivery_goes_on_after_an_exit() {
    let mut machine = Machine::with_code(&[nop(), nop()]);
    let device = 0x7_0000_u32;
    machine.memory.map(device.into(), 0x1000, Backing::Device, Backing::Device).unwrap();
    machine.cpu.idtr.base = device.into();
    machine.cpu.set_eflags(Eflags::IF);
    let low = u32::from(KERNEL_CODE) << 16 | handler(VECTOR);
    machine.answers.extend([low.into(), u64::from(INTERRUPT_GATE) << 8]);
    machine.interrupt = Some(VECTOR);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (VECTOR, CODE));
    assert_eq!(machine.accesses.len(), 2, "{:?}", machine.accesses);
}
