//! Far jumps, calls and returns within a privilege level, in all their forms (SDM vol. 3, 6.8.1).

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::reg;
use ring3_x86::exception::vector;
use ring3_x86::segment::sreg;

use crate::common::assembler::*;
use crate::machine::*;

/// The address of the code, which is low enough for 16-bit offsets.
const HERE: u32 = 0x6000;
const TARGET: u32 = 0x7000;
/// The code segment to which control is transferred.
const OTHER_CODE: u16 = FREE;

/// Makes an instruction that contains the far pointer to [`TARGET`].
fn direct(code: Code) -> Instruction {
    Instruction::with_far_branch(code, OTHER_CODE, TARGET).unwrap()
}

/// Makes a machine at [`HERE`] with `code`, and the far pointer at [`DATA`] with an offset of `offset_bytes`.
fn machine(code: &[Instruction], offset_bytes: u32) -> Machine {
    let mut machine = Machine::new();
    machine.set_descriptor(OTHER_CODE, flat(CODE_SEGMENT));
    machine.code(HERE, code);
    machine.put_dword(DATA, TARGET);
    machine.put(DATA + offset_bytes, &OTHER_CODE.to_le_bytes());
    machine.cpu.ip = HERE.into();
    machine
}

#[test]
fn jumps() {
    for (jump, offset_bytes) in [
        (direct(Code::Jmp_ptr1616), 2),
        (direct(Code::Jmp_ptr1632), 4),
        (memory(Code::Jmp_m1616, DATA), 2),
        (memory(Code::Jmp_m1632, DATA), 4),
    ] {
        let mut machine = machine(&[jump], offset_bytes);
        machine.code(TARGET, &[hlt()]);
        machine.run_to_halt();
        assert_eq!(machine.cpu.ip, u64::from(TARGET + 1), "{jump}");
        assert_eq!(machine.cpu.segment(sreg::CS).selector, OTHER_CODE, "{jump}");
        assert_eq!(machine.get(reg::SP), STACK, "{jump}");
    }
}

/// Calls leave the return address on the stack, and returns drop parameters or do not.
#[test]
fn calls_and_returns() {
    for (call, offset_bytes, ret, ret_dropping) in [
        (direct(Code::Call_ptr1616), 2, Code::Retfw, Code::Retfw_imm16),
        (memory(Code::Call_m1616, DATA), 2, Code::Retfw, Code::Retfw_imm16),
        (direct(Code::Call_ptr1632), 4, Code::Retfd, Code::Retfd_imm16),
        (memory(Code::Call_m1632, DATA), 4, Code::Retfd, Code::Retfd_imm16),
    ] {
        for (ret, parameters) in
            [(plain(ret), 0), (Instruction::with1(ret_dropping, 8_u32).unwrap(), 8)]
        {
            let mut machine = machine(&[call, hlt()], offset_bytes);
            machine.code(TARGET, &[ret]);
            machine.cpu.set_gpr(reg::SP, (STACK - parameters).into());
            let after = HERE + assemble(32, HERE, &[call])[0].len() as u32;
            machine.run_to_halt();
            assert_eq!(machine.cpu.ip, u64::from(after + 1), "{call}");
            assert_eq!(machine.cpu.segment(sreg::CS).selector, KERNEL_CODE, "{call}");
            assert_eq!(machine.get(reg::SP), STACK, "{call}, {ret}");
            let frame = STACK - parameters - 2 * offset_bytes;
            let (ip, cs) = (machine.dword(frame), machine.dword(frame + offset_bytes) as u16);
            assert_eq!((ip & 0xffff, cs), (after, KERNEL_CODE), "{call}");
        }
    }
}

/// A call that faults has pushed nothing.
#[test]
fn a_call_beyond_the_limit_changes_nothing() {
    let mut machine = machine(&[memory(Code::Call_m1632, DATA)], 4);
    machine.set_descriptor(OTHER_CODE, limited(CODE_SEGMENT, TARGET as u16 - 1));
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.error_code), (vector::GP, Some(0)));
    assert_eq!((exception.eip, exception.cs), (HERE, KERNEL_CODE));
    // The handler's frame: error code, EIP, CS, EFLAGS.
    assert_eq!(machine.get(reg::SP), STACK - 16);
}
