//! Somebody outside is told of system calls, and the guest does not notice it.

use std::sync::{Arc, Mutex};

use iced_x86::{Code, Instruction};
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Msrs, reg};
use ring3_x86::engine::Exit;
use ring3_x86::system_calls::{Caller, Gate, Listener, VECTOR};

use crate::common::assembler::*;
use crate::machine::*;

/// Where SYSENTER leads.
const SYSTEM: u32 = 0x1_4000;
/// Where SYSEXIT returns to.
const BEHIND: u32 = USER_CODE + 0x100;

/// What a listener is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// A call: its gate, EBX, EIP behind it, and the instructions before it.
    Called(Gate, u32, u32, u64),
    /// A return: EAX, EIP, and the instructions before it.
    Returned(u32, u32, u64),
}

#[derive(Debug, Default)]
struct Log(Vec<Told>);

impl Listener for Log {
    fn called(&mut self, cpu: &Cpu, _: &Memory, caller: &Caller) {
        assert_eq!((cpu.cpl(), caller.stack()), (0, u64::from(USER_STACK)));
        let Caller { gate, general, next, instructions, .. } = *caller;
        let number = general[usize::from(reg::BX)] as u32;
        self.0.push(Told::Called(gate, number, next as u32, instructions));
    }

    fn returned(&mut self, cpu: &Cpu, _: &Memory) {
        assert_eq!(cpu.cpl(), 3);
        self.0.push(Told::Returned(cpu.gpr(reg::AX) as u32, cpu.ip as u32, cpu.instructions));
    }
}

/// A program that makes three calls by INT 80h, in a loop, and one by SYSENTER.
fn program() -> (Machine, Vec<u32>) {
    let mut machine = Machine::new();
    let code = |back| {
        let back = Instruction::with_branch(Code::Loop_rel8_32_ECX, back).unwrap();
        [mov(ECX, 3), inc(EBX), int(VECTOR), back, plain(Code::Sysenter)]
    };
    let at = machine.code(USER_CODE, &code(USER_CODE.into()));
    machine.code(USER_CODE, &code(at[1].into()));
    machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    machine.code(handler(VECTOR), &[inc(EAX), plain(Code::Iretd)]);
    machine.code(SYSTEM, &[mov(ECX, USER_STACK), mov(EDX, BEHIND), plain(Code::Sysexitd)]);
    machine.code(BEHIND, &[hlt()]);
    machine.cpu.msrs = Msrs {
        sysenter_cs: 0x4320,
        sysenter_esp: INNER_STACK.into(),
        sysenter_eip: SYSTEM.into(),
        ..machine.cpu.msrs
    };
    machine.enter_user();
    (machine, at)
}

#[test]
fn calls_and_returns_are_told_of() {
    let (mut machine, at) = program();
    let log = Arc::new(Mutex::new(Log::default()));
    machine.cpu.set_system_call_listener(Some(log.clone()));
    assert_eq!(machine.run(), Exit::Halt);
    let by_interrupt = (0..3).flat_map(|turn| {
        let before = 2 + 5 * turn;
        [
            Told::Called(Gate::Interrupt, turn as u32 + 1, at[3], before),
            Told::Returned(turn as u32 + 1, at[3], before + 2),
        ]
    });
    let by_fast_call = [Told::Called(Gate::FastCall, 3, at[5], 16), Told::Returned(3, BEHIND, 19)];
    let expected: Vec<_> = by_interrupt.chain(by_fast_call).collect();
    assert_eq!(log.lock().unwrap().0, expected);
}

#[test]
fn the_guest_does_not_notice() {
    let (mut alone, _) = program();
    assert_eq!(alone.run(), Exit::Halt);
    let (mut told, _) = program();
    told.cpu.set_system_call_listener(Some(Arc::new(Mutex::new(Log::default()))));
    assert_eq!(told.run(), Exit::Halt);
    assert!(told.cpu.has_state_of(&alone.cpu));
}

#[test]
fn a_refused_call_is_none() {
    let (mut machine, _) = program();
    machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE);
    let log = Arc::new(Mutex::new(Log::default()));
    machine.cpu.set_system_call_listener(Some(log.clone()));
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(log.lock().unwrap().0, []);
}
