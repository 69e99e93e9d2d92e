//! Tests that the comparison with a real processor (`tests/host_cpu`) cannot make: control bits of the
//! system, and models that lack an extension.

use ring3_core::memory::Memory;

use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::decode::decode;
use ring3_x86::exception::{Stop, vector};
use ring3_x86::softfloat::F80;

struct Machine {
    cpu: Cpu,
    memory: Memory,
}

impl Machine {
    /// Makes a machine in 32-bit protected mode, with everything allowed.
    fn new() -> Machine {
        let mut cpu = Cpu::new();
        cpu.model = Model::Max;
        cpu.set_flat_entry(8, 16, 0x1000);
        cpu.set_cr4(Cr4::OSFXSR | Cr4::OSXMMEXCPT);
        Machine { cpu, memory: Memory::new(1 << 20).unwrap() }
    }

    /// Executes an instruction. Returns the vector if it faults.
    fn run(&mut self, code: &[u8]) -> Option<u8> {
        let op = decode(code, self.cpu.code_mode(), self.cpu.model).unwrap();
        match (op.exec)(&mut self.cpu, &mut self.memory, &op, &[], 0) {
            Ok(()) => None,
            Err(_) => match self.cpu.stop() {
                Stop::Fault(fault) => Some(fault.vector),
                other => panic!("{other:?}"),
            },
        }
    }
}

const PADDB_MM: [u8; 3] = [0x0f, 0xfc, 0xc1];
const PADDB_XMM: [u8; 4] = [0x66, 0x0f, 0xfc, 0xc1];
const MOVNTI: [u8; 3] = [0x0f, 0xc3, 0x03];
const FXSAVE: [u8; 3] = [0x0f, 0xae, 0x03];
const FXRSTOR: [u8; 3] = [0x0f, 0xae, 0x0b];
const LDMXCSR: [u8; 3] = [0x0f, 0xae, 0x13];
const EMMS: [u8; 2] = [0x0f, 0x77];

#[test]
fn control_bits_forbid() {
    let both = Cr4::OSFXSR | Cr4::OSXMMEXCPT;
    let on = Cr0::PE;
    for (cr0, cr4, mm, xmm, fxsave) in [
        (on, both, None, None, None),
        (on, Cr4::empty(), None, Some(vector::UD), None),
        (on | Cr0::TS, both, Some(vector::NM), Some(vector::NM), Some(vector::NM)),
        (on | Cr0::EM, both, Some(vector::UD), Some(vector::UD), Some(vector::NM)),
        (on | Cr0::EM | Cr0::TS, both, Some(vector::UD), Some(vector::UD), Some(vector::NM)),
    ] {
        let mut machine = Machine::new();
        machine.cpu.set_cr0(cr0);
        machine.cpu.set_cr4(cr4);
        assert_eq!(machine.run(&PADDB_MM), mm, "{cr0:?} {cr4:?}");
        assert_eq!(machine.run(&EMMS), mm, "{cr0:?} {cr4:?}");
        assert_eq!(machine.run(&PADDB_XMM), xmm, "{cr0:?} {cr4:?}");
        assert_eq!(machine.run(&LDMXCSR), xmm, "{cr0:?} {cr4:?}");
        assert_eq!(machine.run(&FXSAVE), fxsave, "{cr0:?} {cr4:?}");
        assert_eq!(machine.run(&MOVNTI), None, "{cr0:?} {cr4:?}");
    }
}

#[test]
fn a_model_without_an_extension_has_no_such_instruction() {
    let mut machine = Machine::new();
    machine.cpu.model = Model::Pentium;
    assert_eq!(machine.run(&PADDB_MM), None);
    assert_eq!(machine.run(&PADDB_XMM), Some(vector::UD));
}

#[test]
fn mmx_takes_the_x87_over() {
    let mut machine = Machine::new();
    machine.cpu.fpu.push(F80::ONE);
    machine.cpu.fpu.set_mm(1, 0x01ff);
    assert_eq!(machine.run(&PADDB_MM), None);
    assert_eq!(machine.cpu.fpu.top(), 0);
    assert_eq!(machine.cpu.fpu.st(0), Some(F80 { sign_exponent: 0xffff, significand: 0x01ff }));
    assert!((0..8).all(|number| machine.cpu.fpu.st(number).is_some()));
    assert_eq!(machine.run(&EMMS), None);
    assert_eq!(machine.cpu.fpu.tag_word(), 0xffff);
}

#[test]
fn without_osfxsr_the_image_has_no_sse() {
    let mut machine = Machine::new();
    machine.cpu.set_gpr(reg::BX, 0x2000);
    machine.cpu.sse.set_xmm(0, u128::MAX);
    machine.cpu.set_cr4(Cr4::empty());
    assert_eq!(machine.run(&FXSAVE), None);
    assert_eq!(machine.memory.load::<4>(0x2000), [0x7f, 0x03, 0, 0]);
    assert_eq!(machine.memory.load::<4>(0x2018), [0; 4]);
    assert_eq!(machine.memory.load::<4>(0x20a0), [0; 4]);
    machine.cpu.set_cr4(Cr4::OSFXSR);
    assert_eq!(machine.run(&FXSAVE), None);
    assert_eq!(machine.memory.load::<4>(0x2018), [0x80, 0x1f, 0, 0]);
    assert_eq!(machine.memory.load::<4>(0x20a0), [0xff; 4]);
    machine.cpu.sse.set_xmm(0, 0);
    assert_eq!(machine.run(&FXRSTOR), None);
    assert_eq!(machine.cpu.sse.xmm(0), u128::MAX);
}

#[test]
fn unaligned_and_reserved_values_are_refused() {
    let mut machine = Machine::new();
    machine.cpu.set_gpr(reg::BX, 0x2008);
    assert_eq!(machine.run(&FXSAVE), Some(vector::GP));
    assert_eq!(machine.run(&FXRSTOR), Some(vector::GP));
    machine.memory.write(0x2008, &0x1_0000_u32.to_le_bytes());
    assert_eq!(machine.run(&LDMXCSR), Some(vector::GP));
    assert_eq!(machine.cpu.sse.mxcsr(), 0x1f80);
}
