//! Model-specific registers: which exist, which values they accept, and that all others raise #GP (SDM vol.
//! 4).

use iced_x86::{Code, Instruction};
use ring3_core::clock::Clock;
use ring3_x86::cpu::{Cpu, Cr4, reg};
use ring3_x86::cpuid::{Features, Model};
use ring3_x86::exception::vector;

use crate::common::assembler::*;
use crate::machine::*;

/// Runs `code` on `model` at privilege 0. Returns EDX:EAX, or the exception that the code raises.
fn run(model: Model, code: &[Instruction]) -> Result<u64, u8> {
    let mut machine = Machine::with_code(&[code, &[hlt()]].concat());
    machine.cpu = Cpu::of_model(model);
    machine.reset_processor();
    machine.cpu.clock = Some(Clock::new(1000));
    machine.run();
    match machine.exception() {
        Some(exception) => Err(exception.vector),
        None => Ok(u64::from(machine.get(reg::DX)) << 32 | u64::from(machine.get(reg::AX))),
    }
}

fn rdmsr(number: u32) -> Vec<Instruction> {
    vec![mov(ECX, number), plain(Code::Rdmsr)]
}

fn wrmsr(number: u32, value: u64) -> Vec<Instruction> {
    let (low, high) = (value as u32, (value >> 32) as u32);
    vec![mov(ECX, number), mov(EAX, low), mov(EDX, high), plain(Code::Wrmsr)]
}

/// Returns code that writes a register and reads it back, with 0 in EDX:EAX in between.
fn back(number: u32, value: u64) -> Vec<Instruction> {
    let clear = [mov(EAX, 0), mov(EDX, 0)];
    [&wrmsr(number, value)[..], &clear, &rdmsr(number)].concat()
}

const GP: Result<u64, u8> = Err(vector::GP);

/// Every number that any processor of Intel or AMD has according to its manual, and some around them, is read
/// and written on all models. It has a value or raises #GP, and nothing else happens.
#[test]
fn any_number_is_a_register_or_a_fault() {
    let numbers = (0..0x2000).chain(0xc000_0000..0xc000_0400).chain(0xc001_0000..0xc001_0400);
    let edges = [0x4000_0000, 0x7fff_ffff, 0x8000_0000, 0xbfff_ffff, u32::MAX - 1, u32::MAX];
    for model in Model::ALL {
        let mut machine = Machine::new();
        let read = machine.code(CODE, &[plain(Code::Rdmsr), hlt()]);
        machine.code(CODE + 0x100, &[plain(Code::Wrmsr), hlt()]);
        machine.cpu = Cpu::of_model(model);
        let mut known = 0;
        for number in numbers.clone().chain(edges) {
            for (at, value) in [(read[0], 0), (CODE + 0x100, 0), (CODE + 0x100, u32::MAX)] {
                machine.reset_processor();
                machine.cpu.clock = Some(Clock::new(1000));
                machine.cpu.ip = at.into();
                machine.cpu.set_gpr(reg::CX, number.into());
                machine.cpu.set_gpr(reg::AX, value.into());
                machine.cpu.set_gpr(reg::DX, value.into());
                machine.run();
                let raised = machine.exception().map(|exception| exception.vector);
                let fault = if model == Model::I486 { vector::UD } else { vector::GP };
                assert!(
                    raised.is_none() || raised == Some(fault),
                    "{model}: {number:#x} {raised:?}"
                );
                known += u32::from(at == read[0] && raised.is_none());
            }
        }
        let expected = match model {
            Model::I486 => 0,
            // The time-stamp counter, and two registers of machine checks.
            Model::Pentium => 3,
            Model::Pentium3 => 57,
            Model::Pentium4 => 60,
            Model::Max => 86,
            // Those of system calls, and of the bases of FS and GS.
            Model::Qemu64 | Model::X86_64_V2 | Model::X86_64_V3 => 93,
        };
        assert_eq!(known, expected, "{model}");
    }
}

const MTRRCAP: u32 = 0xfe;
const DEF_TYPE: u32 = 0x2ff;

#[test]
fn memory_type_range_registers() {
    for model in Model::ALL.into_iter().skip(1) {
        let has = model.features().contains(Features::MTRR);
        assert_eq!(has, model >= Model::Pentium3);
        assert_eq!(run(model, &rdmsr(MTRRCAP)), if has { Ok(0x508) } else { GP });
        for number in [0x200, 0x20f, 0x250, 0x258, 0x259, 0x268, 0x26f, DEF_TYPE] {
            // All are off after power-on.
            assert_eq!(run(model, &rdmsr(number)), if has { Ok(0) } else { GP }, "{number:#x}");
        }
    }
    let model = Model::Max;
    for number in [0x210, 0x24f, 0x251, 0x257, 0x25a, 0x267, 0x270] {
        assert_eq!(run(model, &rdmsr(number)), GP, "{number:#x}");
    }
    assert_eq!(run(model, &wrmsr(MTRRCAP, 0x508)), GP);
    assert_eq!(run(model, &back(DEF_TYPE, 0xc06)), Ok(0xc06));
    assert_eq!(run(model, &back(0x250, 0x0006_0504_0106_0504)), Ok(0x0006_0504_0106_0504));
    assert_eq!(run(model, &back(0x20e, 0xf_ffff_f006)), Ok(0xf_ffff_f006));
    assert_eq!(run(model, &back(0x20f, 0xf_c000_0800)), Ok(0xf_c000_0800));
    // Types that do not exist, including UC-, and reserved bits.
    for kind in [2, 3, 7, 8, 0xff] {
        for number in [DEF_TYPE, 0x250, 0x26f, 0x200] {
            assert_eq!(run(model, &wrmsr(number, kind)), GP, "{number:#x}: {kind}");
        }
        assert_eq!(run(model, &wrmsr(0x268, kind << 56)), GP);
    }
    for bit in [8, 9, 12, 35, 36, 63] {
        assert_eq!(run(model, &wrmsr(DEF_TYPE, 1 << bit)), GP, "{bit}");
    }
    for bit in 0..64 {
        let (base, mask) = ((12..36).contains(&bit), (11..36).contains(&bit));
        if bit > 7 {
            assert_eq!(run(model, &wrmsr(0x200, 1 << bit)).is_ok(), base, "{bit}");
        }
        assert_eq!(run(model, &wrmsr(0x201, 1 << bit)).is_ok(), mask, "{bit}");
    }
}

#[test]
fn machine_check_registers() {
    for (model, expected) in [
        (Model::Pentium, GP),
        (Model::Pentium3, Ok(0x105)),
        (Model::Pentium4, Ok(0x104)),
        (Model::Max, Ok(0x10a)),
    ] {
        assert_eq!(run(model, &rdmsr(0x179)), expected, "{model}");
        let banks = expected.map_or(0, |value| value as u32 & 0xff);
        for bank in 0..=banks {
            let first = 0x400 + 4 * bank;
            let exists = bank < banks;
            assert_eq!(run(model, &back(first, u64::MAX)), if exists { Ok(u64::MAX) } else { GP });
            for report in first + 1..first + 4 {
                let exists = exists && !(model == Model::Pentium3 && report == first + 3);
                // Software can only clear them.
                assert_eq!(run(model, &back(report, 0)), if exists { Ok(0) } else { GP });
                assert_eq!(run(model, &wrmsr(report, 1)), GP);
            }
        }
        // The registers of the Pentium.
        assert_eq!(run(model, &rdmsr(0)), Ok(0));
        assert_eq!(run(model, &rdmsr(1)), Ok(0));
        // CR4.MCE.
        assert_eq!(run(model, &[mov(EAX, 0x40), to_control(CR4, EAX), mov(EDX, 0)]), Ok(0x40));
    }
    assert_eq!(run(Model::Max, &wrmsr(0x179, 0)), GP);
    assert_eq!(run(Model::Max, &back(0x17a, 4)), Ok(4));
    assert_eq!(run(Model::Max, &wrmsr(0x17a, 8)), GP);
    assert_eq!(run(Model::Max, &back(0x17b, u64::MAX)), Ok(u64::MAX));
}

/// No microcode update fits this processor; systems that try one find that none was loaded.
#[test]
fn updates_of_microcode_are_not_loaded() {
    let load = [&wrmsr(0x79, 0x1234)[..], &wrmsr(0x8b, 0), &[mov(EDX, 9)], &rdmsr(0x8b)].concat();
    for model in [Model::Pentium3, Model::Pentium4, Model::Max] {
        assert_eq!(run(model, &load), Ok(0), "{model}");
        assert_eq!(run(model, &rdmsr(0x79)), GP, "{model}");
    }
    assert_eq!(run(Model::Pentium, &wrmsr(0x79, 0)), GP);
}

/// RDTSCP reads the counter and IA32_TSC_AUX.
#[test]
fn rdtscp() {
    const TSC_AUX: u32 = 0xc000_0103;
    assert_eq!(run(Model::Max, &back(TSC_AUX, 0x1234_5678)), Ok(0x1234_5678));
    assert_eq!(run(Model::Max, &wrmsr(TSC_AUX, 1 << 32)), GP);
    assert_eq!(run(Model::Pentium4, &rdmsr(TSC_AUX)), GP);
    assert_eq!(run(Model::Pentium4, &[plain(Code::Rdtscp)]), Err(vector::UD));
    // This runs often enough for engines to translate it, and reads a later time in each round.
    let mut machine = Machine::new();
    let read = [plain(Code::Rdtscp), binary(Code::Sub_r32_rm32, EBX, EAX), mov(EBX, 0)];
    let code: Vec<_> = (0..200).flat_map(|_| read).chain([plain(Code::Rdtsc), hlt()]).collect();
    machine.code(CODE, &code);
    machine.cpu.clock = Some(Clock::new(1_000_000));
    machine.cpu.msrs.tsc_aux = 0xfedc_ba98;
    machine.run_to_halt();
    assert_eq!(machine.get(reg::CX), 0xfedc_ba98);
    // Each instruction takes a microsecond.
    assert_eq!(machine.get(reg::AX), 600_000);
    for (cr4, expected) in [(Cr4::empty(), vector::UD), (Cr4::TSD, vector::GP)] {
        let mut machine = Machine::with_user_code(&[plain(Code::Rdtscp), plain(Code::Ud2)]);
        machine.cpu.clock = Some(Clock::new(1000));
        machine.cpu.msrs.tsc_aux = 7;
        machine.cpu.set_cr4(cr4);
        assert_eq!(machine.run_to_exception().vector, expected);
        assert_eq!(machine.get(reg::CX), if expected == vector::UD { 7 } else { 0 });
    }
}

/// All of them are saved, and INIT does not change them while RESET does (SDM vol. 3, table 10-1).
#[test]
fn they_are_saved_and_survive_init() {
    let numbers =
        [(0x201, 0x800), (0x250, 6), (DEF_TYPE, 0xc00), (0x400, 5), (0x17b, 9), (0xc000_0103, 3)];
    let code: Vec<_> = numbers.iter().flat_map(|(number, value)| wrmsr(*number, *value)).collect();
    let mut machine = Machine::with_code(&[&code[..], &[hlt()]].concat());
    machine.run_to_halt();
    let mut other = Cpu::new();
    assert_ne!(other.msrs, machine.cpu.msrs);
    other.restore(&machine.cpu.save()).unwrap();
    assert_eq!(other.msrs, machine.cpu.msrs);
    other.init();
    assert_eq!(other.msrs, machine.cpu.msrs);
    other.reset();
    assert_eq!(other.msrs, Cpu::new().msrs);
}
