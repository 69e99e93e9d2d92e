//! Results that the manuals leave undefined.

use iced_x86::{Decoder, DecoderOptions};
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Engine;
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::undefined::{Vendor, undefined_after};

const CF: Eflags = Eflags::CF;
const PF: Eflags = Eflags::PF;
const AF: Eflags = Eflags::AF;
const ZF: Eflags = Eflags::ZF;
const SF: Eflags = Eflags::SF;
const OF: Eflags = Eflags::OF;

/// Returns the status flags after `instructions` instructions of `code`, on a processor of vendor
/// `vendor`.
fn left(vendor: Vendor, code: &[u8], instructions: u64) -> Eflags {
    let mut memory = Memory::new(1 << 20).unwrap();
    memory.load_image(0x7c00, code).unwrap();
    let mut cpu = Cpu::new();
    cpu.vendor = vendor;
    cpu.set_real_mode_entry(0, 0x7c00);
    for (register, value) in [(reg::AX, 0x00f0), (reg::CX, 3), (reg::DX, 0)] {
        cpu.set_gpr(register, value);
    }
    Interpreter::new().run(&mut cpu, &mut memory, instructions);
    cpu.eflags() & Eflags::STATUS
}

/// The expected values were read on processors of both vendors.
#[test]
fn undefined_results_are_those_of_the_makers() {
    let (intel, amd) = (Vendor::Intel, Vendor::Amd);
    let shr = [0xd1, 0xe8];
    assert_eq!((left(intel, &shr, 1), left(amd, &shr, 1)), (PF, PF | AF));
    // CMP AL, AL; SHLD AX, AX, 10: C003h; bit 6 was shifted out last.
    let shld = [0x38, 0xc0, 0x0f, 0xa4, 0xc0, 10];
    let same = CF | PF | SF;
    assert_eq!((left(intel, &shld, 2), left(amd, &shld, 2)), (same, same | AF));
    // CMP AL, AL; MUL CX: 02D0h.
    let mul = [0x38, 0xc0, 0xf7, 0xe1];
    assert_eq!((left(intel, &mul, 2), left(amd, &mul, 2)), (Eflags::empty(), ZF | PF));
    // CMP AL, AL; DIV CX.
    let div = [0x38, 0xc0, 0xf7, 0xf1];
    assert_eq!((left(intel, &div, 2), left(amd, &div, 2)), (ZF | PF, AF));
    // MOV AX, 4000h; ROL AX, CL: 2h.
    let rol = [0xb8, 0x00, 0x40, 0xd3, 0xc0];
    assert_eq!((left(intel, &rol, 2), left(amd, &rol, 2)), (OF, Eflags::empty()));
    // STC; BSF AX, CX: 0.
    let bsf = [0xf9, 0x0f, 0xbc, 0xc1];
    let zen4 = Vendor::AmdZen4;
    assert_eq!([intel, amd, zen4].map(|vendor| left(vendor, &bsf, 2)), [PF, CF, PF]);
    // But multiplications leave what all of AMD's processors do.
    assert_eq!(left(zen4, &mul, 2), ZF | PF);
}

/// Returns the status flags after an instruction of 32-bit code on a processor of vendor `vendor`. They were all set, EAX
/// was F0h, ECX 3 and EDX 16h.
fn left_by_bits(vendor: Vendor, code: &[u8]) -> Eflags {
    let mut memory = Memory::new(1 << 20).unwrap();
    memory.load_image(0x7c00, code).unwrap();
    let mut cpu = Cpu::of_model(Model::X86_64_V3);
    cpu.vendor = vendor;
    cpu.set_flat_entry(8, 16, 0x7c00);
    for (register, value) in [(reg::AX, 0xf0), (reg::CX, 3), (reg::DX, 0x16)] {
        cpu.set_gpr(register, value);
    }
    cpu.set_eflags(Eflags::STATUS);
    Interpreter::new().run(&mut cpu, &mut memory, 1);
    assert_eq!(cpu.ip, 0x7c00 + code.len() as u64);
    cpu.eflags() & Eflags::STATUS
}

/// The expected values for AMD were read on a processor of family 19h, and those for Intel on one with AVX2.
#[test]
fn undefined_flags_of_bit_instructions_are_those_of_the_makers() {
    let none = Eflags::empty();
    for (name, code, intel, amd) in [
        ("ANDN EAX, ECX, EAX: F0h", &[0xc4, 0xe2, 0x70, 0xf2, 0xc0][..], none, PF),
        ("BLSR EAX, EDX: 14h", &[0xc4, 0xe2, 0x78, 0xf3, 0xca], none, PF),
        ("BLSMSK EAX, EDX: 3", &[0xc4, 0xe2, 0x78, 0xf3, 0xd2], none, PF),
        ("BLSI EAX, EDX: 2", &[0xc4, 0xe2, 0x78, 0xf3, 0xda], CF, CF),
        ("BZHI EAX, EAX, ECX: 0", &[0xc4, 0xe2, 0x70, 0xf5, 0xc0], ZF, ZF | PF),
        ("BEXTR EAX, EAX, ECX: 0", &[0xc4, 0xe2, 0x70, 0xf7, 0xc0], ZF, ZF | PF | AF),
        ("TZCNT EAX, EAX: 4", &[0xf3, 0x0f, 0xbc, 0xc0], none, OF),
        ("LZCNT EAX, EAX: 24", &[0xf3, 0x0f, 0xbd, 0xc0], none, OF),
    ] {
        assert_eq!(left_by_bits(Vendor::Intel, code), intel, "{name}");
        assert_eq!(left_by_bits(Vendor::Amd, code), amd, "{name}");
    }
}

/// Returns the flags that are undefined after the instructions of `code`, each of which continues with
/// the next one.
fn after_all(code: &[u8], cl: u8) -> Eflags {
    let decoder = Decoder::with_ip(32, code, 0x1000, DecoderOptions::NONE);
    decoder.into_iter().fold(Eflags::empty(), |before, instruction| {
        undefined_after(&instruction, cl, instruction.next_ip32(), before)
    })
}

#[test]
fn written_registers_are_defined_again() {
    let others = Eflags::SF | Eflags::ZF | Eflags::AF | Eflags::PF;
    assert_eq!(after_all(&[0x0f, 0xaf, 0xc3], 0), others, "IMUL");
    assert_eq!(after_all(&[0x0f, 0xaf, 0xc3, 0x89, 0xc3], 0), others, "IMUL, MOV");
    assert_eq!(after_all(&[0x0f, 0xaf, 0xc3, 0x01, 0xc3], 0), Eflags::empty(), "IMUL, ADD");
    assert_eq!(after_all(&[0x0f, 0xaf, 0xc3, 0xd3, 0xe0], 32), others, "SHL by nothing");
    assert_eq!(after_all(&[0x0f, 0xaf, 0xc3, 0xd3, 0xe0], 1), Eflags::AF, "SHL by 1");
    assert_eq!(after_all(&[0x0f, 0xaf, 0xc3, 0x40], 0), Eflags::empty(), "INC keeps CF");
}

#[test]
fn after_an_exception_all_is_defined() {
    let multiply = Decoder::with_ip(32, &[0x0f, 0xaf, 0x03], 0x1000, DecoderOptions::NONE).decode();
    assert_eq!(undefined_after(&multiply, 0, 0x5000, Eflags::OF), Eflags::empty());
}
