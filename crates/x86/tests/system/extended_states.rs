//! XSAVE and XRSTOR (SDM vol. 1, chapter 13): what a system sees of them, and what is initial. The comparison with
//! the real processor covers the rest.

use iced_x86::{Code, Instruction, Register};
use ring3_x86::cpu::{Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::common::assembler::*;
use crate::machine::*;

const X87: u32 = 1;
const SSE: u32 = 2;
const AVX: u32 = 4;

/// An area of XSAVE, and the offsets of XMM0 and of XSTATE_BV in it.
const AREA: u32 = DATA & !63;
const XMM0: u32 = AREA + 160;
const HEADER: u32 = AREA + 512;
/// The offset of the upper half of YMM0.
const UPPER: u32 = AREA + 576;

/// Makes a machine that executes `code` with CR4.OSXSAVE set.
fn machine(code: &[Instruction]) -> Machine {
    let mut machine = Machine::with_code(&[code, &[hlt()]].concat());
    machine.cpu.model = Model::X86_64_V2;
    machine.cpu.set_cr4(Cr4::OSFXSR | Cr4::OSXSAVE);
    machine
}

/// Returns the exception that `code` raises, if any.
fn raises(code: &[Instruction]) -> Option<u8> {
    let mut machine = machine(code);
    machine.run();
    machine.exception().map(|exception| exception.vector)
}

fn set_components(components: u32) -> [Instruction; 4] {
    [mov(ECX, 0), mov(EDX, 0), mov(EAX, components), plain(Code::Xsetbv)]
}

fn on_area(code: Code, components: u32) -> [Instruction; 3] {
    [mov(EAX, components), mov(EDX, 0), memory(code, AREA)]
}

#[test]
fn cpuid_tells_whether_the_system_has_enabled_them() {
    for (cr4, is_enabled) in [(Cr4::OSFXSR, false), (Cr4::OSFXSR | Cr4::OSXSAVE, true)] {
        let mut machine = machine(&[mov(EAX, 1), plain(Code::Cpuid)]);
        machine.cpu.set_cr4(cr4);
        machine.run_to_halt();
        assert_eq!(machine.get(reg::CX) >> 26 & 3, 1 | u32::from(is_enabled) << 1);
        let mut machine = Machine::with_code(&[mov(ECX, 0), plain(Code::Xgetbv), hlt()]);
        machine.cpu.model = Model::X86_64_V2;
        machine.cpu.set_cr4(cr4);
        machine.run();
        let raised = machine.exception().map(|exception| exception.vector);
        assert_eq!(raised, (!is_enabled).then_some(vector::UD));
    }
    for (sub_leaf, expected) in [(0, [3, 576, 576, 0]), (1, [0; 4]), (2, [0; 4])] {
        let mut machine = machine(&[mov(EAX, 13), mov(ECX, sub_leaf), plain(Code::Cpuid)]);
        machine.run_to_halt();
        let leaf = [reg::AX, reg::BX, reg::CX, reg::DX].map(|register| machine.get(register));
        assert_eq!(leaf, expected);
    }
}

#[test]
fn the_system_chooses_components() {
    for (components, expected) in
        [(X87, None), (X87 | SSE, None), (SSE, Some(vector::GP)), (7, Some(vector::GP))]
    {
        assert_eq!(raises(&set_components(components)), expected, "{components}");
    }
    let code = [&set_components(X87 | SSE)[..], &[plain(Code::Xgetbv)]].concat();
    let mut machine = machine(&code);
    machine.run_to_halt();
    assert_eq!((machine.get(reg::AX), machine.get(reg::DX)), (X87 | SSE, 0));
    // There are no other registers.
    assert_eq!(raises(&[mov(ECX, 1), plain(Code::Xgetbv)]), Some(vector::GP));
    let mut machine = Machine::with_user_code(&set_components(X87));
    machine.cpu.model = Model::X86_64_V2;
    machine.cpu.set_cr4(Cr4::OSXSAVE);
    assert_eq!(machine.run_to_exception().vector, vector::GP);
    assert_eq!(machine.cpu.msrs.xcr0, 1);
}

/// Makes a machine with AVX that executes `code`.
fn avx_machine(code: &[Instruction]) -> Machine {
    let mut machine = machine(code);
    machine.cpu.model = Model::X86_64_V3;
    machine
}

/// VADDPS of vectors of 256 bits, in registers.
fn add() -> Instruction {
    let [a, b, c] = [0, 1, 2].map(|number| Register::YMM0 + number);
    Instruction::with3(Code::VEX_Vaddps_ymm_ymm_ymmm256, a, b, c).unwrap()
}

#[test]
fn the_upper_halves_are_a_component() {
    for (components, expected) in [(7, None), (X87 | AVX, Some(vector::GP)), (15, Some(vector::GP))]
    {
        let mut machine = avx_machine(&set_components(components));
        machine.run();
        let raised = machine.exception().map(|exception| exception.vector);
        assert_eq!(raised, expected, "{components}");
    }
    for (components, size) in [(3, 576), (7, 832)] {
        for (sub_leaf, expected) in
            [(0, [7, size, 832, 0]), (1, [0; 4]), (2, [256, 576, 0, 0]), (3, [0; 4])]
        {
            let ask = [mov(EAX, 13), mov(ECX, sub_leaf), plain(Code::Cpuid)];
            let mut machine = avx_machine(&[&set_components(components)[..], &ask].concat());
            machine.run_to_halt();
            let leaf = [reg::AX, reg::BX, reg::CX, reg::DX].map(|register| machine.get(register));
            assert_eq!(leaf, expected, "{components} {sub_leaf}");
        }
    }
}

/// SDM vol. 2, table 2-17.
#[test]
fn avx_needs_the_system() {
    let enable = set_components(7);
    let with_add = [&enable[..], &[add()]].concat();
    let run = |code: &[Instruction], change: fn(&mut Machine)| {
        let mut machine = avx_machine(code);
        change(&mut machine);
        machine.run();
        machine.exception().map(|exception| exception.vector)
    };
    assert_eq!(run(&with_add, |_| {}), None);
    // Neither CR0.EM nor CR4.OSFXSR matters.
    assert_eq!(run(&with_add, |machine| machine.cpu.set_cr4(Cr4::OSXSAVE)), None);
    let emulated: fn(&mut Machine) = |machine| machine.cpu.set_cr0(machine.cpu.cr0() | Cr0::EM);
    assert_eq!(run(&with_add, emulated), None);
    assert_eq!(run(&[&set_components(3)[..], &[add()]].concat(), |_| {}), Some(vector::UD));
    let enabled: fn(&mut Machine) = |machine| machine.cpu.msrs.xcr0 = 7;
    assert_eq!(run(&[add()], enabled), None);
    let not_enabled: fn(&mut Machine) = |machine| {
        machine.cpu.msrs.xcr0 = 7;
        machine.cpu.set_cr4(Cr4::OSFXSR);
    };
    assert_eq!(run(&[add()], not_enabled), Some(vector::UD));
    let switched: fn(&mut Machine) = |machine| {
        machine.cpu.msrs.xcr0 = 7;
        machine.cpu.set_cr0(machine.cpu.cr0() | Cr0::TS);
    };
    assert_eq!(run(&[add()], switched), Some(vector::NM));
    // The model has not got it.
    let old: fn(&mut Machine) = |machine| machine.cpu.model = Model::X86_64_V2;
    assert_eq!(run(&[add()], old), Some(vector::UD));
}

/// In real mode and virtual-8086 mode, bytes with a VEX prefix are LES and LDS with a register as their operand.
#[test]
fn real_mode_has_no_vex() {
    // ANDN EAX, ECX, EDX
    let code = [0xc4, 0xe2, 0x70, 0xf2, 0xc2, 0xf4];
    let mut machine = Machine::with_code(&[hlt()]);
    machine.put(CODE, &code);
    machine.cpu.model = Model::X86_64_V3;
    machine.run_to_halt();
    assert_eq!(machine.exception().map(|exception| exception.vector), None);
    machine.cpu.reset();
    machine.cpu.model = Model::X86_64_V3;
    machine.cpu.set_segment(sreg::CS, Segment::new(0, 0, 0xffff, Attributes(0x9b)));
    machine.cpu.ip = 0x7000;
    machine.put(0x7000, &code);
    // The handler of #UD is at 0:7100.
    machine.put(0x7100, &[0xf4]);
    machine.put_dword(4 * u32::from(vector::UD), 0x7100);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.ip, 0x7101);
}

#[test]
fn the_upper_halves_are_saved_and_become_initial() {
    let code = [
        &set_components(7)[..],
        &on_area(Code::Xsave_mem, 7),
        &[plain(Code::VEX_Vzeroupper)],
        &on_area(Code::Xrstor_mem, AVX),
    ]
    .concat();
    let mut machine = avx_machine(&code);
    machine.cpu.sse.set_ymm(0, [77, 78]);
    // 32-bit code does not reach it.
    machine.cpu.sse.set_ymm(8, [79, 80]);
    machine.run_to_halt();
    assert_eq!((machine.dword(HEADER), machine.dword(UPPER)), (7, 78));
    assert_eq!([0, 8].map(|number| machine.cpu.sse.ymm(number)), [[77, 78], [79, 80]]);
    // XSTATE_BV says that they are initial.
    let mut machine =
        avx_machine(&[&set_components(7)[..], &on_area(Code::Xrstor_mem, AVX)].concat());
    machine.put_dword(AREA + 24, 0x1fa0);
    machine.cpu.sse.set_ymm(0, [77, 78]);
    machine.run_to_halt();
    assert_eq!((machine.cpu.sse.ymm(0), machine.cpu.sse.mxcsr()), ([77, 0], 0x1fa0));
}

#[test]
fn saved_states_have_the_upper_halves() {
    let mut machine = avx_machine(&[]);
    machine.cpu.sse.set_ymm(15, [77, 78]);
    let mut other = ring3_x86::cpu::Cpu::new();
    other.restore(&machine.cpu.save()).unwrap();
    assert_eq!((other.sse.ymm(15), other.model), ([77, 78], Model::X86_64_V3));
}

/// What was not saved becomes initial, but for MXCSR.
#[test]
fn components_become_initial() {
    let code = [
        &set_components(X87 | SSE)[..],
        &[plain(Code::Fld1)],
        &on_area(Code::Xsave_mem, SSE),
        &on_area(Code::Xrstor_mem, X87 | SSE),
    ]
    .concat();
    let mut machine = machine(&code);
    machine.cpu.sse.set_xmm(0, 77);
    machine.cpu.sse.set_mxcsr(0x1fa0);
    machine.run_to_halt();
    assert_eq!((machine.dword(HEADER), machine.dword(XMM0)), (SSE, 77));
    assert_eq!(machine.cpu.fpu.tag_word(), 0xffff);
    assert_eq!((machine.cpu.sse.xmm(0), machine.cpu.sse.mxcsr()), (77, 0x1fa0));
    let mut machine =
        self::machine(&[&set_components(3)[..], &on_area(Code::Xrstor_mem, SSE)].concat());
    machine.put_dword(AREA + 24, 0x1fa0);
    machine.cpu.sse.set_xmm(0, 77);
    machine.run_to_halt();
    assert_eq!((machine.cpu.sse.xmm(0), machine.cpu.sse.mxcsr()), (0, 0x1fa0));
}

#[test]
fn what_is_not_enabled_cannot_be_restored() {
    for (header, expected) in
        [([X87, 0, 0], None), ([SSE, 0, 0], Some(vector::GP)), ([0, 0, 1], Some(vector::GP))]
    {
        let mut machine = machine(&on_area(Code::Xrstor_mem, X87 | SSE));
        for (at, value) in (HEADER..).step_by(4).zip(header) {
            machine.put_dword(at, value);
        }
        machine.run();
        let raised = machine.exception().map(|exception| exception.vector);
        assert_eq!(raised, expected, "{header:?}");
    }
    // The area is not aligned.
    assert_eq!(raises(&[memory(Code::Xsave_mem, AREA + 32)]), Some(vector::GP));
    let mut machine = machine(&on_area(Code::Xsave_mem, X87));
    machine.cpu.set_cr0(machine.cpu.cr0() | Cr0::TS);
    assert_eq!(machine.run_to_exception().vector, vector::NM);
}
