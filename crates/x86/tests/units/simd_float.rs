//! Unmasked exceptions of SSE instructions.

use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr4};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Engine;
use ring3_x86::exception::vector;
use ring3_x86::interpreter::Interpreter;

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
