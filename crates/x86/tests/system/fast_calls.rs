//! SYSENTER and SYSEXIT (SDM vol. 3, 6.8.7).

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::{Msrs, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Segment, sreg};

use crate::common::assembler::*;
use crate::machine::*;

/// The selector in the MSRs. Its descriptors are not read, and do not exist.
const SELECTOR: u16 = 0x4320;
const TARGET: u32 = 0x1_4000;
const TARGET_STACK: u32 = 0x2_8000;

fn set_msrs(machine: &mut Machine, selector: u16) {
    machine.cpu.msrs = Msrs {
        sysenter_cs: selector.into(),
        sysenter_esp: TARGET_STACK.into(),
        sysenter_eip: TARGET.into(),
        ..machine.cpu.msrs
    };
}

/// Returns the selectors of CS and SS, after checking that these are flat segments of 32 bits and usable.
fn selectors(machine: &Machine) -> (u16, u16) {
    let [cs, ss] = [sreg::CS, sreg::SS].map(|register| *machine.cpu.segment(register));
    let cpl = machine.cpu.cpl();
    for (segment, kind) in [(cs, 0xb), (ss, 0x3)] {
        let Segment { base, limit, attributes, .. } = segment;
        assert_eq!((base, limit), (0, u32::MAX));
        assert_eq!(attributes.0 & 0xf0ff, 0xc090 | u16::from(cpl) << 5 | kind);
    }
    (cs.selector, ss.selector)
}

#[test]
fn sysenter_goes_to_privilege_0() {
    let mut machine = Machine::with_user_code(&[plain(Code::Sysenter)]);
    set_msrs(&mut machine, SELECTOR | 3);
    machine.cpu.set_eflags(Eflags::IF | Eflags::CF | Eflags::IOPL);
    machine.code(TARGET, &[hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, u64::from(TARGET + 1));
    assert_eq!(machine.cpu.cpl(), 0);
    assert_eq!(selectors(&machine), (SELECTOR, SELECTOR + 8));
    assert_eq!(machine.get(reg::SP), TARGET_STACK);
    assert_eq!(machine.cpu.eflags(), Eflags::CF | Eflags::IOPL, "only IF is cleared");
}

#[test]
fn sysenter_leaves_virtual_8086_mode() {
    let mut machine = Machine::new();
    set_msrs(&mut machine, SELECTOR);
    machine.code_of(16, CODE, &[plain(Code::Sysenter)]);
    machine.code(TARGET, &[hlt()]);
    machine.cpu.set_eflags(Eflags::VM);
    for register in 0..6 {
        machine.cpu.set_segment(register, Segment::real((CODE >> 4) as u16, 3));
    }
    machine.cpu.ip = 0;
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, u64::from(TARGET + 1));
    assert!(machine.cpu.in_protected_mode());
    assert_eq!(selectors(&machine), (SELECTOR, SELECTOR + 8));
}

#[test]
fn sysexit_goes_to_privilege_3() {
    let code = [mov(ECX, USER_STACK), mov(EDX, USER_CODE), plain(Code::Sysexitd)];
    let mut machine = Machine::with_code(&code);
    set_msrs(&mut machine, SELECTOR);
    machine.code(USER_CODE, &[nop()]);
    machine.cpu.set_eflags(Eflags::IF);
    assert_eq!(machine.run_for(4), Exit::Deadline);
    assert_eq!(machine.cpu.ip, u64::from(USER_CODE + 1));
    assert_eq!(machine.cpu.cpl(), 3);
    assert_eq!(selectors(&machine), ((SELECTOR + 16) | 3, (SELECTOR + 24) | 3));
    assert_eq!(machine.get(reg::SP), USER_STACK);
    assert_eq!(machine.cpu.eflags(), Eflags::IF);
}

/// Returns the exception that `instruction` raises with `selector` in IA32_SYSENTER_CS, at privilege 3 or 0.
fn raised(instruction: Code, user: bool, selector: u16) -> (u8, Option<u32>) {
    let code: [Instruction; 1] = [plain(instruction)];
    let mut machine = if user { Machine::with_user_code(&code) } else { Machine::with_code(&code) };
    set_msrs(&mut machine, selector);
    let exception = machine.run_to_exception();
    (exception.vector, exception.error_code)
}

#[test]
fn null_selectors_and_users_are_refused() {
    let general_protection = (vector::GP, Some(0));
    // The RPL is ignored.
    for selector in [0, 3] {
        assert_eq!(raised(Code::Sysenter, true, selector), general_protection);
        assert_eq!(raised(Code::Sysexitd, false, selector), general_protection);
    }
    assert_eq!(raised(Code::Sysexitd, true, SELECTOR), general_protection, "privileged");
}

#[test]
fn models_without_them() {
    for model in [Model::I486, Model::Pentium] {
        for code in [Code::Sysenter, Code::Sysexitd] {
            let mut machine = Machine::with_code(&[plain(code)]);
            machine.cpu.model = model;
            assert_eq!(machine.run_to_exception().vector, vector::UD, "{model}");
        }
    }
}
