//! The features that models have and lack: CPUID, instructions, CR4, MSRs and performance counters.

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::{Cpu, Cr4, reg};
use ring3_x86::cpuid::{Features, Model};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use crate::common::assembler::*;
use crate::machine::*;

/// Returns the exception that `code` raises on `model` at privilege 0, if any.
fn raises(model: Model, code: &[Instruction]) -> Option<u8> {
    let mut machine = Machine::with_code(&[code, &[hlt()]].concat());
    machine.cpu.model = model;
    machine.run();
    machine.exception().map(|exception| exception.vector)
}

fn rdmsr(number: u32) -> [Instruction; 2] {
    [mov(ECX, number), plain(Code::Rdmsr)]
}

fn wrmsr(number: u32, value: u64) -> [Instruction; 4] {
    [mov(ECX, number), mov(EAX, value as u32), mov(EDX, (value >> 32) as u32), plain(Code::Wrmsr)]
}

#[test]
fn cpuid_tells_the_model() {
    for model in Model::ALL {
        let mut machine = Machine::with_code(&[mov(EAX, 1), plain(Code::Cpuid), hlt()]);
        machine.cpu.model = model;
        machine.run_to_halt();
        assert_eq!(machine.get(reg::AX), model.signature());
        assert_eq!(machine.get(reg::DX), model.features().bits() as u32);
        assert_eq!(Cpu::of_model(model).gpr(reg::DX), model.signature().into());
    }
}

#[test]
fn instructions_that_a_model_lacks_are_undefined() {
    let cmov = [binary(Code::Cmove_r32_rm32, EAX, EBX)];
    let long_nop = [unary(Code::Nop_rm32, EAX)];
    let cx8 = [memory(Code::Cmpxchg8b_m64, DATA)];
    let all = [rdmsr(0x10).to_vec(), cmov.to_vec(), long_nop.to_vec(), cx8.to_vec()];
    for (model, expected) in [
        (Model::I486, [false, false, false, false]),
        (Model::Pentium, [true, false, false, true]),
        (Model::Pentium3, [true; 4]),
        (Model::Max, [true; 4]),
    ] {
        let exists: Vec<bool> =
            all.iter().map(|code| raises(model, code) != Some(vector::UD)).collect();
        assert_eq!(exists, expected, "{model}");
    }
}

#[test]
fn cr4_has_the_bits_of_the_features() {
    let set = |bits: Cr4| [mov(EAX, bits.bits()), to_control(CR4, EAX)];
    for model in Model::ALL {
        for (bit, feature) in [
            (Cr4::TSD, Features::TSC),
            (Cr4::DE, Features::DE),
            (Cr4::PSE, Features::PSE),
            (Cr4::PAE, Features::PAE),
            (Cr4::MCE, Features::MCE),
            (Cr4::PGE, Features::PGE),
            (Cr4::OSFXSR, Features::FXSR),
        ] {
            let offered = model.features().contains(feature);
            assert_eq!(raises(model, &set(bit)).is_none(), offered, "{model}: {bit:?}");
        }
    }
}

#[test]
fn msrs_belong_to_features() {
    for model in Model::ALL.into_iter().filter(|model| *model != Model::I486) {
        let features = model.features();
        for (number, exists) in [
            (0x174, features.contains(Features::SEP)),
            (0x277, features.contains(Features::PAT)),
            (0xc000_0080, features.contains(Features::NX)),
            (0x8b, model != Model::Pentium),
            (0x1b, model != Model::Pentium),
            (0xffff_ffff, false),
        ] {
            let expected = (!exists).then_some(vector::GP);
            assert_eq!(raises(model, &rdmsr(number)), expected, "{model}: {number:#x}");
        }
    }
}

#[test]
fn the_attribute_table_takes_memory_types_only() {
    let code = [&wrmsr(0x277, 0x0706_0504_0100_0000)[..], &rdmsr(0x277), &[hlt()]].concat();
    let mut machine = Machine::with_code(&code);
    machine.run_to_halt();
    assert_eq!((machine.get(reg::DX), machine.get(reg::AX)), (0x0706_0504, 0x0100_0000));
    for bad in [2, 3, 8, 0x80] {
        assert_eq!(raises(Model::Max, &wrmsr(0x277, bad << 40)), Some(vector::GP));
    }
}

/// A write goes to the machine's local APIC too, and CPUID says whether the APIC is on (SDM vol. 3, 12.4.3).
#[test]
fn the_apic_base_moves_and_switches() {
    const ON: u64 = 0xfee0_0900;
    const OFF: u64 = 0xf_ffff_f100;
    let cpuid = [mov(EAX, 1), plain(Code::Cpuid)];
    for (value, is_on) in [(ON, true), (OFF, false)] {
        let code = [&rdmsr(0x1b)[..], &wrmsr(0x1b, value), &cpuid, &[hlt()]].concat();
        let mut machine = Machine::with_code(&code);
        machine.run_to_halt();
        assert_eq!(machine.accesses, [Exit::ApicBase { value }]);
        assert_eq!(machine.cpu.msrs.apic_base, value);
        assert_eq!(machine.get(reg::DX) >> 9 & 1 != 0, is_on);
    }
    let mut machine = Machine::with_code(&[&rdmsr(0x1b)[..], &[hlt()]].concat());
    machine.run_to_halt();
    assert_eq!((machine.get(reg::DX), machine.get(reg::AX)), (0, ON as u32));
    // Reserved bits, including that of the x2APIC.
    for bit in [0, 9, 10, 36, 63] {
        assert_eq!(raises(Model::Max, &wrmsr(0x1b, ON | 1 << bit)), Some(vector::GP), "{bit}");
    }
}

#[test]
fn misc_enable_can_be_written_back() {
    let back = [&rdmsr(0x1a0)[..], &[plain(Code::Wrmsr)]].concat();
    assert_eq!(raises(Model::Pentium4, &back), None);
    assert_eq!(raises(Model::Pentium4, &wrmsr(0x1a0, 1 << 34)), Some(vector::GP));
}

#[test]
fn performance_counters() {
    let read = |counter| [mov(ECX, counter), plain(Code::Rdpmc)];
    assert_eq!(raises(Model::I486, &read(0)), Some(vector::UD));
    for (model, count) in
        [(Model::Pentium, 2), (Model::Pentium3, 2), (Model::Pentium4, 18), (Model::Max, 0)]
    {
        if count > 0 {
            assert_eq!(raises(model, &read(count - 1)), None, "{model}");
        }
        assert_eq!(raises(model, &read(count)), Some(vector::GP), "{model}");
    }
    assert_eq!(raises(Model::Pentium4, &read(1 << 31)), None);
    // A user may execute it only with CR4.PCE.
    for (cr4, expected) in [(Cr4::empty(), Some(vector::GP)), (Cr4::PCE, Some(vector::UD))] {
        let mut machine =
            Machine::with_user_code(&[mov(ECX, 0), plain(Code::Rdpmc), plain(Code::Ud2)]);
        machine.cpu.model = Model::Pentium3;
        machine.cpu.set_cr4(cr4);
        assert_eq!(Some(machine.run_to_exception().vector), expected);
    }
}
