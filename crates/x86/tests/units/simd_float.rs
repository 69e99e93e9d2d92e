//! Exceptions of SSE and AVX instructions.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr4};
use ring3_x86::cpuid::Model;
use ring3_x86::decode::decode;
use ring3_x86::engine::Engine;
use ring3_x86::exception::{Stop, vector};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Segment, sreg};
use ring3_x86::undefined::Vendor;

/// Divides by zero in real mode with that exception unmasked. Returns the processor afterwards, halted in
/// the handler at 100h times the vector.
fn divide_by_zero(cr4: Cr4) -> Cpu {
    let mut memory = Memory::new(1 << 20).unwrap();
    for vector in [vector::UD, vector::XM].map(u16::from) {
        memory.load_image(u64::from(vector) * 4, &(vector * 0x100).to_le_bytes()).unwrap();
        memory.load_image(u64::from(vector) * 0x100, &[0xf4]).unwrap();
    }
    memory.load_image(0x7c00, &[0x0f, 0x5e, 0xc1]).unwrap(); // divps xmm0, xmm1
    let mut cpu = Cpu::new();
    cpu.model = Model::Max;
    cpu.set_real_mode_entry(0, 0x7c00);
    cpu.set_cr4(cr4);
    cpu.sse.set_mxcsr(0x1d80);
    cpu.sse.set_xmm(0, 0x3f80_0000);
    Interpreter::new().run(&mut cpu, &mut memory, 10);
    cpu
}

#[test]
fn unmasked_exceptions_are_xm_if_the_system_knows_it() {
    let cpu = divide_by_zero(Cr4::OSFXSR | Cr4::OSXMMEXCPT);
    assert_eq!(cpu.ip, 0x100 * u64::from(vector::XM) + 1);
    // The divisions of zero by zero in the other elements are invalid, and masked.
    assert_eq!(cpu.sse.mxcsr(), 0x1d85);
    assert_eq!(cpu.sse.xmm(0), 0x3f80_0000);
}

#[test]
fn unmasked_exceptions_are_ud_if_the_system_knows_no_xm() {
    let cpu = divide_by_zero(Cr4::OSFXSR);
    assert_eq!(cpu.ip, 0x100 * u64::from(vector::UD) + 1);
    assert_eq!(cpu.sse.xmm(0), 0x3f80_0000);
}

/// Executes `code`, a VCVTPS2PH of XMM0 with four denormals, on a processor of vendor `vendor`. Returns the vector of its
/// exception, if there was one, and MXCSR, which was `mxcsr`.
fn narrow_denormals(vendor: Vendor, mxcsr: u32, code: &[u8]) -> (Option<u8>, u32) {
    let mut memory = Memory::new(1 << 20).unwrap();
    let mut cpu = Cpu::of_model(Model::X86_64_V3);
    cpu.vendor = vendor;
    cpu.set_flat_entry(8, 16, 0x1000);
    cpu.set_segment(sreg::DS, Segment::null(0));
    cpu.set_cr4(Cr4::OSFXSR | Cr4::OSXMMEXCPT | Cr4::OSXSAVE);
    cpu.msrs.xcr0 = 7;
    cpu.sse.set_mxcsr(mxcsr);
    cpu.sse.set_xmm(0, 0x0000_0001_0000_0001_0000_0001_0000_0001);
    let op = decode(code, cpu.code_mode(), cpu.model).unwrap();
    let result = (op.exec)(&mut cpu, &mut memory, &op, &[], 0);
    let vector = result.err().map(|_| match cpu.stop() {
        Stop::Fault(fault) => fault.vector,
        other => panic!("{other:?}"),
    });
    (vector, cpu.sse.mxcsr())
}

/// The expected values were seen on processors of both vendors.
#[test]
fn conversions_to_half_precision_raise_what_those_of_the_makers_do() {
    const DENORMAL: u32 = 1 << 1;
    const UNDERFLOW: u32 = 1 << 4;
    const PRECISION: u32 = 1 << 5;
    let (intel, amd) = (Vendor::Intel, Vendor::Amd);
    let flags = DENORMAL | UNDERFLOW | PRECISION;
    let (masked, unmasked) = (0x1f80, 0x1f80 & !(UNDERFLOW << 7));

    // VCVTPS2PH XMM1, XMM0, 0
    let to_register = [0xc4, 0xe3, 0x79, 0x1d, 0xc1, 0];
    let xm = Some(vector::XM);
    for vendor in [intel, amd] {
        assert_eq!(narrow_denormals(vendor, masked, &to_register), (None, masked | flags));
    }
    let with_unmasked = |vendor| narrow_denormals(vendor, unmasked, &to_register);
    assert_eq!(with_unmasked(intel), (xm, unmasked | flags));
    assert_eq!(with_unmasked(amd), (xm, unmasked | DENORMAL | UNDERFLOW));

    // VCVTPS2PH [EBX], XMM0, 0, where DS is null
    let to_memory = [0xc4, 0xe3, 0x79, 0x1d, 0x03, 0];
    let gp = Some(vector::GP);
    assert_eq!(narrow_denormals(intel, masked, &to_memory), (gp, masked | flags));
    assert_eq!(narrow_denormals(amd, masked, &to_memory), (gp, masked));
    assert_eq!(narrow_denormals(intel, unmasked, &to_memory), (xm, unmasked | flags));
    assert_eq!(narrow_denormals(amd, unmasked, &to_memory), (gp, unmasked));
}
