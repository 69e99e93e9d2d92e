//! Call gates (SDM vol. 3, 6.8.3 to 6.8.6).

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::common::assembler::*;
use crate::machine::*;

/// The selector of the gate.
const GATE: u16 = FREE;
const GATE_CODE: u32 = GATE as u32;
/// The address to which the gates lead.
const TARGET: u32 = 0x1_4000;
const GATE32: u8 = 0x8c;
const GATE16: u8 = 0x84;

fn far_call(selector: u16) -> Instruction {
    Instruction::with_far_branch(Code::Call_ptr1632, selector, 0xdead_beef).unwrap()
}

fn retf(parameters: u32) -> Instruction {
    Instruction::with1(Code::Retfd_imm16, parameters).unwrap()
}

/// Makes the descriptor of a call gate.
fn gate(access: u8, selector: u16, offset: u32, parameters: u8) -> u64 {
    let low = u64::from(selector) << 16 | u64::from(offset & 0xffff);
    let high = offset & 0xffff_0000 | u32::from(access) << 8 | u32::from(parameters);
    low | u64::from(high) << 32
}

/// Makes a machine at privilege 3 with two parameters on the stack, then `call`, then UD2.
fn user_calls(call: Instruction, gate: u64) -> Machine {
    let code = [push_value(0x1111_2222), push_value(0x3333_4444), call, plain(Code::Ud2)];
    let mut machine = Machine::with_user_code(&code);
    machine.set_descriptor(GATE, gate);
    machine.code(TARGET, &[hlt()]);
    machine
}

/// The address after two PUSH imm32 and CALL ptr16:32.
const AFTER: u32 = USER_CODE + 5 + 5 + 7;

#[test]
fn a_call_to_inner_privilege_switches_stacks_and_copies_parameters() {
    let mut machine = user_calls(far_call(GATE | 3), gate(GATE32 | DPL3, KERNEL_CODE, TARGET, 2));
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, u64::from(TARGET + 1));
    assert_eq!(machine.cpu.cpl(), 0);
    assert_eq!(machine.cpu.segment(sreg::SS).selector, KERNEL_DATA);
    assert_eq!(machine.get(reg::SP), INNER_STACK - 24);
    let frame: Vec<_> = (0..6).map(|slot| machine.dword(INNER_STACK - 24 + 4 * slot)).collect();
    let (cs, ss) = (USER_CS.into(), USER_DS.into());
    assert_eq!(frame, [AFTER, cs, 0x3333_4444, 0x1111_2222, USER_STACK - 8, ss]);
}

#[test]
fn retf_drops_the_parameters_from_both_stacks() {
    let mut machine = user_calls(far_call(GATE), gate(GATE32 | DPL3, KERNEL_CODE, TARGET, 2));
    machine.code(TARGET, &[retf(8)]);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip, exception.cs), (vector::UD, AFTER, USER_CS));
    assert_eq!(exception.outer, Some((USER_STACK, USER_DS)));
}

#[test]
fn a_16_bit_gate_copies_words() {
    let mut machine = user_calls(far_call(GATE), gate(GATE16 | DPL3, KERNEL_CODE, 0x7000, 3));
    machine.code(0x7000, &[hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, 0x7001);
    assert_eq!(machine.get(reg::SP), INNER_STACK - 14);
    assert_eq!(machine.dword(INNER_STACK - 14), u32::from(USER_CS) << 16 | AFTER & 0xffff);
    assert_eq!(machine.dword(INNER_STACK - 10), 0x3333_4444);
    assert_eq!(machine.dword(INNER_STACK - 6) & 0xffff, 0x2222);
    let outer = u32::from(USER_DS) << 16 | (USER_STACK - 8) & 0xffff;
    assert_eq!(machine.dword(INNER_STACK - 4), outer);
}

#[test]
fn at_the_same_privilege_the_stack_stays() {
    let mut machine = Machine::with_code(&[far_call(GATE)]);
    machine.set_descriptor(GATE, gate(GATE32, KERNEL_CODE, TARGET, 5));
    machine.code(TARGET, &[hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.get(reg::SP), STACK - 8, "no parameters are copied");
    assert_eq!(machine.dword(STACK - 8), CODE + 7);
}

/// The code of a conforming segment runs with the privilege of its caller.
#[test]
fn a_gate_to_a_conforming_segment_keeps_the_privilege() {
    for call in [far_call(GATE), far_jmp(GATE, 0)] {
        let mut machine = user_calls(call, gate(GATE32 | DPL3, FREE + 8, TARGET, 2));
        machine.set_descriptor(FREE + 8, flat(0x9f));
        machine.code(TARGET, &[plain(Code::Ud2)]);
        let exception = machine.run_to_exception();
        assert_eq!((exception.vector, exception.eip), (vector::UD, TARGET));
        assert_eq!(exception.cs, (FREE + 8) | 3);
    }
}

#[test]
fn jmp_goes_through_a_gate_to_the_same_privilege_only() {
    let mut machine = user_calls(far_jmp(GATE, 0), gate(GATE32 | DPL3, USER_CS, TARGET, 2));
    machine.code(TARGET, &[plain(Code::Ud2)]);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eip), (vector::UD, TARGET));
    assert_eq!(exception.outer, Some((USER_STACK - 8, USER_DS)));

    let inner = gate(GATE32 | DPL3, KERNEL_CODE, TARGET, 2);
    let exception = user_calls(far_jmp(GATE, 0), inner).run_to_exception();
    assert_eq!(exception.vector, vector::GP);
    assert_eq!(exception.error_code, Some(KERNEL_CODE.into()));
}

/// Returns the exception that the call through the gate raises after `prepare`.
fn raised(selector: u16, gate: u64, prepare: impl Fn(&mut Machine)) -> (u8, u32) {
    let mut machine = user_calls(far_call(selector), gate);
    prepare(&mut machine);
    let exception = machine.run_to_exception();
    assert_eq!(exception.eip, AFTER - 7, "the instruction did not complete");
    (exception.vector, exception.error_code.unwrap())
}

#[test]
fn gates_are_checked() {
    let to_kernel = |access| gate(access, KERNEL_CODE, TARGET, 2);
    let check = |selector, gate| raised(selector, gate, |_| {});
    assert_eq!(check(GATE, to_kernel(GATE32)), (vector::GP, GATE_CODE), "DPL below CPL");
    assert_eq!(check(GATE, to_kernel(0x0c | DPL3)), (vector::NP, GATE_CODE), "not present");
    let access = GATE32 | DPL3;
    assert_eq!(check(GATE, gate(access, 0, TARGET, 0)), (vector::GP, 0), "null");
    assert_eq!(check(GATE, gate(access, 0x100, TARGET, 0)), (vector::GP, 0x100), "beyond the GDT");
    let data = u32::from(KERNEL_DATA);
    assert_eq!(check(GATE, gate(access, KERNEL_DATA, TARGET, 0)), (vector::GP, data), "no code");
    let absent = |machine: &mut Machine| {
        machine.set_descriptor(FREE + 8, flat(CODE_SEGMENT & !PRESENT));
    };
    let np = raised(GATE, gate(access, FREE + 8, TARGET, 0), absent);
    assert_eq!(np, (vector::NP, u32::from(FREE) + 8));
    let short = |machine: &mut Machine| {
        machine.set_descriptor(FREE + 8, limited(CODE_SEGMENT, 0xfff));
    };
    assert_eq!(raised(GATE, gate(access, FREE + 8, TARGET, 0), short), (vector::GP, 0));
}

#[test]
fn the_inner_stack_is_checked() {
    // The call goes to privilege 1, so that the fault's handler at privilege 0 has a good stack.
    let stack = |descriptor: u64, pointer, selector| {
        raised(GATE, gate(GATE32 | DPL3, FREE + 8, TARGET, 2), |machine| {
            machine.set_descriptor(FREE + 8, flat(CODE_SEGMENT | 0x20));
            machine.set_descriptor(FREE + 16, descriptor);
            machine.set_inner_stack(1, pointer, selector);
        })
    };
    let (selector, code) = ((FREE + 16) | 1, u32::from(FREE) + 16);
    let access = DATA_SEGMENT | 0x20;
    assert_eq!(stack(flat(access), DATA, 1), (vector::TS, 0), "null");
    assert_eq!(stack(flat(access), DATA, FREE + 16), (vector::TS, code), "RPL");
    assert_eq!(stack(flat(DATA_SEGMENT), DATA, selector), (vector::TS, code), "DPL");
    assert_eq!(stack(flat(access & !PRESENT), DATA, selector), (vector::SS, code), "not present");
    // There is room for the outer stack's pointer, but not for the parameters.
    assert_eq!(stack(limited(access, 0xfff), 11, selector), (vector::SS, code), "no room");
}

#[test]
fn parameters_beyond_the_outer_stack_are_ss() {
    let gate = gate(GATE32 | DPL3, KERNEL_CODE, TARGET, 31);
    let ss = raised(GATE, gate, |machine| {
        let small = Segment::new(USER_DS, 0, USER_STACK - 1, Attributes(0x40f3));
        machine.cpu.set_segment(sreg::SS, small);
    });
    assert_eq!(ss, (vector::SS, 0));
}
