//! Virtual-8086 mode, with and without its extensions (SDM vol. 3, chapter 21).

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::{Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::common::assembler::*;
use crate::machine::*;

/// CS and the stack.
const SEGMENT: u16 = (CODE >> 4) as u16;
const STACK_SEGMENT: u16 = (STACK >> 4) as u16;
const POINTER: u32 = 0x1000;
/// The program's own handler of [`VECTOR`].
const OWN_HANDLER: u32 = 0x800;
const VECTOR: u8 = 0x21;
/// The offsets of the TSS's bit maps.
const REDIRECTION: u32 = 0x68;
const PORTS: u32 = REDIRECTION + 32;

/// Makes a machine in virtual-8086 mode with `flags` and VM, and with 16-bit `code`, followed by HLT, which
/// raises #GP. The gate of [`VECTOR`] may be used.
fn v86(code: &[Instruction], flags: Eflags, extensions: Cr4) -> Machine {
    let mut machine = Machine::new();
    machine.code_of(16, CODE, &[code, &[hlt()]].concat());
    machine.code_of(16, CODE + OWN_HANDLER, &[unary(Code::Inc_r16, iced_x86::Register::DI), hlt()]);
    machine.put_dword(u32::from(VECTOR) * 4, u32::from(SEGMENT) << 16 | OWN_HANDLER);
    machine.put_dword(TSS + 0x64, PORTS << 16);
    machine.cpu.tr = Segment::new(0x28, TSS.into(), PORTS + 0x20, Attributes(0x8b));
    machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    machine.cpu.set_cr4(extensions);
    machine.cpu.set_eflags(flags | Eflags::VM);
    for register in 0..6 {
        machine.cpu.set_segment(register, Segment::real(SEGMENT, 3));
    }
    machine.cpu.set_segment(sreg::SS, Segment::real(STACK_SEGMENT, 3));
    machine.cpu.set_gpr(reg::SP, POINTER.into());
    machine.cpu.ip = 0;
    machine
}

/// Returns the exception that ends `code`: vector, offset and flags.
fn end(machine: &mut Machine) -> (u8, u32, Eflags) {
    let exception = machine.run_to_exception();
    (exception.vector, exception.eip, exception.eflags - Eflags::RF - Eflags::VM)
}

/// Returns the word at `offset` of the program's stack.
fn stack_word(machine: &Machine, offset: u32) -> u16 {
    machine.dword(STACK + offset) as u16
}

const NO: Cr4 = Cr4::empty();
const VME: Cr4 = Cr4::VME;

fn popf() -> Instruction {
    plain(Code::Popfw)
}

fn push_word(value: u16) -> Instruction {
    Instruction::with1(Code::Push_imm16, u32::from(value)).unwrap()
}

#[test]
fn without_iopl_3_the_monitor_is_asked() {
    let code = [plain(Code::Cli), plain(Code::Sti), plain(Code::Pushfw), popf(), int(VECTOR)];
    for instruction in code.into_iter().chain([plain(Code::Iretw)]) {
        let mut machine = v86(&[instruction], Eflags::CF, NO);
        assert_eq!(end(&mut machine), (vector::GP, 0, Eflags::CF), "{instruction}");
    }
    // INT3 and INTO use their gates.
    let mut machine = v86(&[plain(Code::Int3)], Eflags::empty(), NO);
    machine.set_gate(vector::BP, KERNEL_CODE, INTERRUPT_GATE | DPL3);
    assert_eq!(end(&mut machine).0, vector::BP);
}

#[test]
fn with_iopl_3_the_program_owns_if() {
    let mut machine = v86(&[plain(Code::Sti), nop16()], Eflags::IOPL, NO);
    assert_eq!(end(&mut machine), (vector::GP, 2, Eflags::IOPL | Eflags::IF));
    let mut machine = v86(&[int(VECTOR)], Eflags::IOPL | Eflags::CF, NO);
    assert_eq!(end(&mut machine), (VECTOR, 2, Eflags::IOPL | Eflags::CF));
    assert!(!machine.cpu.in_virtual_8086_mode());
    assert_eq!(machine.cpu.segment(sreg::DS).selector, 0);
    assert_eq!(machine.dword(INNER_STACK - 4), u32::from(SEGMENT), "GS");
}

fn nop16() -> Instruction {
    plain(Code::Nopw)
}

#[test]
fn vif_stands_for_if() {
    let mut machine = v86(&[plain(Code::Sti)], Eflags::IF, VME);
    assert_eq!(end(&mut machine), (vector::GP, 1, Eflags::IF | Eflags::VIF));
    let mut machine = v86(&[plain(Code::Cli)], Eflags::IF | Eflags::VIF, VME);
    assert_eq!(end(&mut machine), (vector::GP, 1, Eflags::IF));
    let mut machine = v86(&[plain(Code::Pushfw)], Eflags::VIF | Eflags::CF, VME);
    assert_eq!(end(&mut machine).1, 1);
    assert_eq!(stack_word(&machine, POINTER - 2), 0x3203, "IOPL 3, IF");
    let mut machine = v86(&[push_word(0x0201), popf()], Eflags::empty(), VME);
    assert_eq!(end(&mut machine), (vector::GP, 4, Eflags::CF | Eflags::VIF));
    // The monitor must handle doublewords.
    let mut machine = v86(&[plain(Code::Pushfd)], Eflags::empty(), VME);
    assert_eq!(end(&mut machine).1, 0);
}

#[test]
fn a_pending_virtual_interrupt_is_the_monitors() {
    for code in [&[plain(Code::Sti)][..], &[push_word(0x0200), popf()]] {
        let mut machine = v86(code, Eflags::VIP, VME);
        let (vector, eip, flags) = end(&mut machine);
        assert_eq!((vector, flags), (vector::GP, Eflags::VIP));
        assert_eq!(eip, 3 * (code.len() as u32 - 1), "the instruction did not complete");
    }
    let mut machine = v86(&[push_word(0x0100), popf()], Eflags::empty(), VME);
    assert_eq!(end(&mut machine).1, 3, "TF");
}

#[test]
fn int_n_is_redirected_to_the_program() {
    for (iopl, image) in [(Eflags::empty(), 0x3203), (Eflags::IOPL, 0x3003)] {
        let flags = Eflags::CF | Eflags::VIF | iopl;
        let mut machine = v86(&[int(VECTOR)], flags, VME);
        let (vector, eip, after) = end(&mut machine);
        assert_eq!((vector, eip), (vector::GP, OWN_HANDLER + 1));
        assert_eq!(machine.get(reg::DI), 1);
        let frame = [POINTER - 6, POINTER - 4, POINTER - 2].map(|at| stack_word(&machine, at));
        assert_eq!(frame, [2, SEGMENT, image]);
        assert_eq!(after.contains(Eflags::VIF), iopl == Eflags::IOPL);
    }
}

#[test]
fn the_redirection_bit_sends_int_n_to_the_gate() {
    let with = |flags| {
        let mut machine = v86(&[int(VECTOR)], flags, VME);
        machine.put(TSS + REDIRECTION + u32::from(VECTOR) / 8, &[1 << (VECTOR & 7)]);
        let (vector, eip, _) = end(&mut machine);
        (vector, eip)
    };
    assert_eq!(with(Eflags::IOPL), (VECTOR, 2));
    assert_eq!(with(Eflags::empty()), (vector::GP, 0));
}

#[test]
fn iret_of_words_loads_vif() {
    let code = [push_word(0x0201), push_word(SEGMENT), push_word(0x20), plain(Code::Iretw)];
    let mut machine = v86(&code, Eflags::empty(), VME);
    machine.code_of(16, CODE + 0x20, &[hlt()]);
    assert_eq!(end(&mut machine), (vector::GP, 0x20, Eflags::CF | Eflags::VIF));
}

/// The bit map decides about ports at any IOPL.
#[test]
fn ports_go_by_the_bit_map() {
    for (bits, vector, eip) in [(0, vector::GP, 2), (1, vector::GP, 0)] {
        let mut machine = v86(&[in_al(0x80)], Eflags::IOPL, NO);
        machine.put(TSS + PORTS + 16, &[bits]);
        let (raised, at, _) = end(&mut machine);
        assert_eq!((raised, at), (vector, eip));
        assert_eq!(machine.accesses.len(), usize::from(bits == 0));
    }
}

#[test]
fn instructions_about_selectors_do_not_exist() {
    let verr = Instruction::with1(Code::Verr_rm16, AX).unwrap();
    let mut machine = v86(&[verr], Eflags::IOPL, VME);
    assert_eq!(end(&mut machine).0, vector::UD);
}

#[test]
fn iretd_of_the_monitor_goes_back() {
    let mut machine = v86(&[int(VECTOR)], Eflags::IOPL | Eflags::CF, NO);
    machine.code(handler(VECTOR), &[plain(Code::Iretd)]);
    assert_eq!(end(&mut machine), (vector::GP, 2, Eflags::IOPL | Eflags::CF));
    assert_eq!(machine.exception().unwrap().cs, SEGMENT);
    assert_eq!(machine.dword(INNER_STACK - 20), u32::from(STACK_SEGMENT), "SS");
}

/// PVI has the same effect on CLI and STI at privilege 3 as VME in virtual-8086 mode.
#[test]
fn protected_mode_has_virtual_interrupts_too() {
    let code = [plain(Code::Sti), plain(Code::Ud2)];
    let mut machine = Machine::with_user_code(&code);
    machine.cpu.set_cr4(Cr4::PVI);
    let exception = machine.run_to_exception();
    assert_eq!((exception.vector, exception.eflags - Eflags::RF), (vector::UD, Eflags::VIF));
    assert_eq!(Machine::with_user_code(&code).run_to_exception().vector, vector::GP);
}

#[test]
fn an_interrupt_leaves_virtual_8086_mode() {
    let mut machine = v86(&[nop16(), nop16()], Eflags::IF, VME);
    machine.interrupt = Some(0x50);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.exception().unwrap().vector, 0x50);
    assert_eq!(machine.cpu.cpl(), 0);
}
