//! The processor's state.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::sreg;
use ring3_x86::undefined::Vendor;

#[test]
fn partial_registers() {
    let mut cpu = Cpu::new();
    cpu.set(reg::BX, 0x1122_3344u32);
    cpu.set(reg::BX | reg::HIGH_BYTE, 0xaau8);
    assert_eq!(cpu.get::<u32>(reg::BX), 0x1122_aa44);
    cpu.set(reg::BX, 0xbbu8);
    assert_eq!(cpu.get::<u16>(reg::BX), 0xaabb);
    cpu.set(reg::BX, 0x5566u16);
    assert_eq!(cpu.get::<u32>(reg::BX), 0x1122_5566);
    assert_eq!(cpu.get::<u8>(reg::BX | reg::HIGH_BYTE), 0x55);
    assert_eq!(cpu.gpr(reg::NONE), 0);
}

#[test]
fn the_state_survives_saving() {
    let mut cpu = Cpu::new();
    cpu.set_flat_entry(0x10, 0x18, 0x8_0000);
    cpu.set_eflags(Eflags::CF | Eflags::IF | Eflags::ID);
    cpu.instructions = 12345;
    let mut memory = Memory::new(1 << 20).unwrap();
    memory.write(0x8_0000, &[0xf4]); // HLT
    assert_eq!(Interpreter::new().run(&mut cpu, &mut memory, 10), Exit::Halt);
    let saved = cpu.save();
    let mut other = Cpu::new();
    assert_ne!(other.save(), saved);
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    assert!(other.in_protected_mode());
    assert!(other.segment(sreg::DS).is_free());
}

#[test]
fn init_keeps_registers_that_reset_clears() {
    let mut cpu = Cpu::new();
    cpu.set_flat_entry(8, 16, 0x1000);
    cpu.set_gpr(reg::SP, 0x8000);
    cpu.set_cr0(Cr0::PE | Cr0::ET);
    cpu.msrs.sysenter_eip = 0x1234;
    cpu.instructions = 77;
    cpu.vendor = Vendor::Amd;
    cpu.init();
    assert!(!cpu.in_protected_mode());
    assert_eq!((cpu.ip, cpu.segment(1).base), (0xfff0, 0xffff_0000));
    assert_eq!((cpu.gpr(reg::SP), cpu.msrs.sysenter_eip, cpu.instructions), (0, 0x1234, 77));
    assert_eq!(cpu.cr0(), Cr0::ET);
    cpu.reset();
    assert_eq!(cpu.cr0(), Cr0::ET | Cr0::CD | Cr0::NW);
    assert_eq!((cpu.msrs.sysenter_eip, cpu.instructions), (0, 77));
    assert_eq!(cpu.vendor, Vendor::Amd);
}
