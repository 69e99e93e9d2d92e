//! From real mode to protected mode and back (SDM vol. 3, 10.9).

use iced_x86::{Code, Instruction, MemoryOperand};
use ring3_x86::cpu::{Cr0, reg};
use ring3_x86::engine::Exit;
use ring3_x86::segment::sreg;

use crate::common::assembler::*;
use crate::machine::*;

/// The address of a boot sector.
const BOOT: u32 = 0x7c00;
/// The address of the operand of LGDT: limit and base.
const PSEUDO_DESCRIPTOR: u32 = 0x600;

fn lgdt(address: u32) -> Instruction {
    let operand = MemoryOperand::with_displ(address.into(), 2);
    Instruction::with1(Code::Lgdt_m1632_16, operand).unwrap()
}

fn or_al(value: u32) -> Instruction {
    Instruction::with2(Code::Or_AL_imm8, AL, value).unwrap()
}

/// Makes a machine in real mode at [`BOOT`] with CS and all other segments `segment`, and code that sets
/// CR0.PE, followed by `then`.
fn entering(segment: u16, then: &[Instruction]) -> Machine {
    let mut machine = Machine::new();
    machine.put(PSEUDO_DESCRIPTOR, &[0xff, 0]);
    machine.put_dword(PSEUDO_DESCRIPTOR + 2, GDT);
    let base = u32::from(segment) << 4;
    let mut code = vec![
        lgdt(PSEUDO_DESCRIPTOR - base),
        from_control(EAX, CR0),
        or_al(1),
        to_control(CR0, EAX),
    ];
    code.extend(then);
    machine.code_of(16, BOOT, &code);
    machine.cpu.set_cr0(Cr0::empty());
    machine.cpu.gdtr.limit = 0;
    machine.cpu.set_real_mode_entry(segment, (BOOT - base) as u16);
    machine
}

#[test]
fn a_far_jump_enters_32_bit_code() {
    let mut machine = entering(0, &[plain(Code::Nopw), far_jmp(KERNEL_CODE, CODE)]);
    let data = [
        mov(EAX, KERNEL_DATA.into()),
        to_segment(DS, EAX),
        to_segment(SS, EAX),
        mov(ESP, STACK),
        mov(EAX, 0x1234_5678),
        store(DATA, EAX),
        push(EAX),
        hlt(),
    ];
    machine.code(CODE, &data);
    machine.run_to_halt();
    assert!(machine.cpu.in_protected_mode());
    assert_eq!(machine.cpu.cpl(), 0);
    assert_eq!(machine.cpu.segment(sreg::CS).selector, KERNEL_CODE);
    assert_eq!(machine.dword(DATA), 0x1234_5678);
    assert_eq!(machine.dword(STACK - 4), 0x1234_5678);
}

/// Between MOV CR0 and the far jump the privilege is 0, whatever the low bits of CS are: a real-mode segment
/// has no RPL.
#[test]
fn setting_pe_does_not_change_the_privilege() {
    for segment in [0x40, 0x41, 0x42, 0x43] {
        let mut machine = entering(segment, &[from_control(EAX, CR0), plain(Code::Hlt)]);
        // CS is 16-bit, with the old base and limit.
        assert_eq!(machine.run(), Exit::Halt);
        assert_eq!(machine.cpu.cpl(), 0);
        assert_eq!(machine.cpu.segment(sreg::CS).base, u64::from(segment) << 4);
    }
}

/// Back in real mode the segments keep their limits ("unreal mode").
#[test]
fn limits_survive_the_way_back() {
    let mut machine = Machine::new();
    // The code that returns is 16-bit, with a limit of 64 KiB.
    machine.set_descriptor(FREE, 0x0000_9b00_0000_ffff);
    machine.code(CODE, &[far_jmp(FREE, BOOT)]);
    let and_al = Instruction::with2(Code::And_AL_imm8, AL, 0xfe_u32).unwrap();
    let to_real = Instruction::with_far_branch(Code::Jmp_ptr1616, 0x7c0, 0x100).unwrap();
    machine.code_of(16, BOOT, &[from_control(EAX, CR0), and_al, to_control(CR0, EAX), to_real]);
    let far = MemoryOperand::with_displ(0x20_0000, 4);
    let load = Instruction::with2(Code::Mov_r32_rm32, EBX, far).unwrap();
    machine.code_of(16, 0x7d00, &[load, hlt()]);
    machine.put_dword(0x20_0000, 0x5555_aaaa);
    machine.run_to_halt();
    assert!(!machine.cpu.in_protected_mode());
    assert_eq!(machine.get(reg::BX), 0x5555_aaaa);
    assert_eq!(machine.cpu.segment(sreg::CS).base, 0x7c00);
}

#[test]
fn lmsw_sets_pe_and_cannot_clear_it() {
    let lmsw = |from| unary(Code::Lmsw_r32m16, from);
    let mut machine = Machine::with_code(&[mov(EAX, 0xa), lmsw(EAX), hlt()]);
    machine.run_to_halt();
    assert!(machine.cpu.cr0().contains(Cr0::PE | Cr0::MP | Cr0::TS));
    assert!(!machine.cpu.cr0().contains(Cr0::EM));
}

#[test]
fn an_interrupt_in_real_mode_goes_through_the_vector_table() {
    let mut machine = Machine::new();
    machine.cpu.set_cr0(Cr0::empty());
    machine.cpu.set_real_mode_entry(0, BOOT as u16);
    machine.cpu.idtr.base = 0;
    machine.cpu.idtr.limit = 0x3ff;
    machine.cpu.set_gpr(reg::SP, 0x7000);
    machine.put_dword(4 * 0x21, 0x0100_0010); // 0100:0010
    let end = machine.code_of(16, BOOT, &[plain(Code::Sti), int(0x21), hlt()]);
    machine.code_of(16, 0x1010, &[plain(Code::Iretw)]);
    assert_eq!(machine.run_for(2), Exit::Deadline);
    assert_eq!(machine.cpu.ip, 0x10);
    assert_eq!(machine.cpu.segment(sreg::CS).selector, 0x100);
    // IP, CS and FLAGS with IF set; IF is clear in the handler.
    assert_eq!(machine.dword(0x6ffa), end[2]);
    assert_eq!(machine.dword(0x6ffc) >> 16, 0x0202);
    assert!(!machine.cpu.is_interruptible());
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, u64::from(end[3]));
    assert!(machine.cpu.is_interruptible());
}
