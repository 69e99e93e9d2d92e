//! Alignment checking (SDM vol. 3, 7.15, "Interrupt 17"): CR0.AM, EFLAGS.AC and privilege 3.

use iced_x86::{Code, Instruction, MemoryOperand, Register, RepPrefixKind};
use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::common::assembler::*;
use crate::machine::*;

/// Returns the vector that `code` raises at privilege 3 with alignment checking on, or #UD at its end.
fn raises(code: &[Instruction]) -> u8 {
    let mut machine = checking(code);
    machine.cpu.set_gpr(reg::SI, DATA.into());
    machine.cpu.set_gpr(reg::DI, u64::from(DATA) + 0x100);
    let exception = machine.run_to_exception();
    if exception.vector == vector::AC {
        assert_eq!(exception.error_code, Some(0));
    }
    exception.vector
}

fn checking(code: &[Instruction]) -> Machine {
    let mut machine = Machine::with_user_code(&[code, &[plain(Code::Ud2)]].concat());
    machine.enable_paging();
    machine.cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::AM);
    machine.cpu.set_eflags(Eflags::AC);
    machine
}

#[test]
fn accesses_must_be_aligned_to_their_size() {
    for offset in 0..8 {
        let at = DATA + offset;
        let operand = MemoryOperand::with_displ(at.into(), 4);
        let word = Instruction::with2(Code::Mov_r16_rm16, AX, operand).unwrap();
        let byte = store_byte(at, 1);
        let quadword = memory(Code::Fld_m64fp, at);
        for (code, size) in [
            (byte, 1),
            (word, 2),
            (load(EAX, at), 4),
            (store(at, EAX), 4),
            (add_to_memory(at, EAX), 4),
            (quadword, 8),
        ] {
            // The access is made twice, so that the TLB has the page.
            let expected = if offset % size == 0 { vector::UD } else { vector::AC };
            assert_eq!(raises(&[load(EBX, DATA), code]), expected, "{code} at +{offset}");
        }
    }
}

#[test]
fn the_stack_and_strings_are_checked_too() {
    let misalign = |register| Instruction::with2(Code::Add_rm32_imm8, register, 2).unwrap();
    assert_eq!(raises(&[push(EAX), misalign(ESP), push(EAX)]), vector::AC);
    let movsd = Instruction::with_movsd(32, Register::None, RepPrefixKind::None).unwrap();
    assert_eq!(raises(&[movsd, movsd]), vector::UD);
    assert_eq!(raises(&[movsd, misalign(ESI), movsd]), vector::AC);
    assert_eq!(raises(&[movsd, misalign(EDI), movsd]), vector::AC);
}

#[test]
fn all_three_conditions_are_needed() {
    let code = [load(EAX, DATA), load(EAX, DATA + 1)];
    assert_eq!(raises(&code), vector::AC);
    let mut machine = checking(&code);
    machine.cpu.set_cr0(Cr0::PE | Cr0::PG);
    assert_eq!(machine.run_to_exception().vector, vector::UD);
    let mut machine = checking(&code);
    machine.cpu.set_eflags(Eflags::empty());
    assert_eq!(machine.run_to_exception().vector, vector::UD);
    let mut machine = Machine::with_code(&[&code[..], &[hlt()]].concat());
    machine.enable_paging();
    machine.cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::AM);
    machine.cpu.set_eflags(Eflags::AC);
    machine.run_to_halt();
}

/// TLB entries from before AC was set do not hide an access from the check, and the other way round.
#[test]
fn the_program_turns_it_on_and_off() {
    let popf = |flags: Eflags| [push_value(flags.bits()), plain(Code::Popfd)];
    let known = [load(EAX, DATA + 1), store(DATA + 1, EAX)];
    let on = popf(Eflags::AC);
    let off = popf(Eflags::empty());
    let code = [&off[..], &known, &on, &[load(EAX, DATA)], &off, &known].concat();
    assert_eq!(raises(&code), vector::UD);
    assert_eq!(raises(&[&off[..], &known, &on, &known[..1]].concat()), vector::AC);
    assert_eq!(raises(&[&off[..], &known, &on, &known[1..]].concat()), vector::AC);
}

/// A handler at privilege 3 uses the program's stack. If that is not aligned, the check cannot be delivered
/// and raises itself. The engine still returns, exactly at the deadline.
#[test]
fn a_check_that_raises_itself_ends_at_the_deadline() {
    let mut machine = checking(&[load(EAX, DATA + 1)]);
    machine.set_gate(vector::AC, USER_CS, INTERRUPT_GATE);
    machine.cpu.set_gpr(reg::SP, u64::from(USER_STACK) + 2);
    let begin = machine.cpu.instructions;
    for end in [1, 2, 3, 500] {
        let left = begin + end - machine.cpu.instructions;
        let exit = machine.engine.run(&mut machine.cpu, &mut machine.memory, left);
        assert_eq!((exit, machine.cpu.instructions), (Exit::Deadline, begin + end));
    }
    assert_eq!(machine.get(reg::SP), USER_STACK + 2);
}

/// Reads by the processor itself do not count as the program's accesses: a descriptor table may be anywhere.
#[test]
fn descriptors_are_not_checked() {
    let mut machine = checking(&[mov(EAX, USER_DS.into()), to_segment(ES, EAX)]);
    let table: Vec<u8> = (0..0x100).map(|at| machine.dword(GDT + at) as u8).collect();
    machine.put(DATA + 3, &table);
    machine.cpu.gdtr.base = u64::from(DATA) + 3;
    assert_eq!(machine.run_to_exception().vector, vector::UD);
}
