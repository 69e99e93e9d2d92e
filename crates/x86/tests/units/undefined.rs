//! Results that the manuals leave undefined.

use iced_x86::{Decoder, DecoderOptions};
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
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
    assert_eq!(left(intel, &bsf, 2), PF);
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
