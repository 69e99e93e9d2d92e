//! The ways into long mode and out of it (SDM vol. 3, 11.8.5).

use iced_x86::Register::{CR0, CR4, CR8, EAX, ECX, EDX, R8, R9, RAX, RBX};
use iced_x86::{Code, Instruction};
use ring3_core::device::Width;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;

use super::*;
use crate::common::assembler::{binary, hlt, mov, plain, to_control};

const EFER: u32 = 0xc000_0080;
const LME: u32 = 1 << 8;
const LMA: u64 = 1 << 10;

/// Code that sets IA32_EFER to `value`.
fn set_efer(value: u32) -> [Instruction; 4] {
    [mov(ECX, EFER), mov(EAX, value), mov(EDX, 0), plain(Code::Wrmsr)]
}

fn set_control(register: iced_x86::Register, value: u32) -> [Instruction; 2] {
    [mov(EAX, value), to_control(register, EAX)]
}

/// A machine in 32-bit protected mode without paging, with tables for 4-level paging.
fn in_32_bit_mode(code: &[Instruction]) -> LongMachine {
    let mut machine = LongMachine::new(&[]);
    machine.code(CODE, code);
    let (gdtr, idtr, tr) = (machine.cpu.gdtr, machine.cpu.idtr, machine.cpu.tr);
    machine.cpu = Cpu::of_model(Model::Qemu64);
    let cpu = &mut machine.cpu;
    cpu.set_flat_entry(USER_CS & !3, KERNEL_DATA, CODE);
    cpu.set_cr3(PML4.into());
    cpu.set_gpr(reg::SP, STACK.into());
    (cpu.gdtr, cpu.idtr, cpu.tr) = (gdtr, idtr, tr);
    machine
}

const PAGING: u32 = Cr0::PE.union(Cr0::PG).bits();

#[test]
fn the_way_in_and_out() {
    let target = 0x1_4000;
    let jump = Instruction::with_far_branch(Code::Jmp_ptr1632, KERNEL_CODE, target).unwrap();
    let code = [
        &set_control(CR4, Cr4::PAE.bits())[..],
        &set_efer(LME),
        &set_control(CR0, PAGING),
        &[plain(Code::Rdmsr), jump],
    ]
    .concat();
    let mut machine = in_32_bit_mode(&code);
    let out = [mov64(R8, 0x1122_3344_5566_7788), binary(Code::Mov_r64_rm64, R9, R8), hlt()];
    machine.code_of(64, target, &out);
    assert_eq!(machine.run_for(9), Exit::Deadline);
    assert!(machine.cpu.is_in_long_mode() && !machine.cpu.is_in_64_bit_mode());
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.gpr(reg::AX), u64::from(LME) | LMA);
    assert_eq!(machine.cpu.gpr(9), 0x1122_3344_5566_7788);
    assert!(machine.cpu.is_in_64_bit_mode());
    assert_eq!(machine.cpu.efer(), u64::from(LME) | LMA);

    // Back through compatibility mode.
    let mut machine = LongMachine::new(&[at(Code::Jmp_m1632, RAX)]);
    machine.set_descriptor(FREE, flat(CODE_SEGMENT));
    machine.put_dword(DATA, target);
    machine.put_dword(DATA + 4, FREE.into());
    machine.cpu.set_gpr(reg::AX, DATA.into());
    let out = [&set_control(CR0, Cr0::PE.bits())[..], &set_efer(0), &[hlt()]].concat();
    machine.code(target, &out);
    assert_eq!(machine.run(), Exit::Halt);
    assert!(!machine.cpu.is_in_long_mode());
    assert_eq!(machine.cpu.efer(), 0);
}

/// The upper halves of RAX to RDI are undefined after the change (SDM vol. 1, 3.4.1.1), and zero here.
#[test]
fn compatibility_mode_has_no_upper_halves() {
    let target = 0x1_4000;
    let stack = u64::from(STACK) | 0x7777 << 32;
    let code = [mov64(RBX, 0x1122_3344_5566_7788), mov64(R9, stack), at(Code::Jmp_m1632, RAX)];
    let mut machine = LongMachine::new(&code);
    machine.set_descriptor(FREE, flat(CODE_SEGMENT));
    machine.put_dword(DATA, target);
    machine.put_dword(DATA + 4, FREE.into());
    machine.cpu.set_gpr(reg::AX, DATA.into());
    machine.code(target, &[hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert!(!machine.cpu.is_in_64_bit_mode());
    assert_eq!(machine.cpu.gpr(reg::BX), 0x5566_7788);
    assert_eq!(machine.cpu.gpr(9), stack);

    // IRETQ loads RSP.
    let mut machine = LongMachine::new(&[plain(Code::Iretq)]);
    machine.set_descriptor(FREE, flat(CODE_SEGMENT));
    let frame = [target.into(), FREE.into(), 2, stack, KERNEL_DATA.into()];
    for (slot, value) in (0..).zip(frame) {
        machine.put_dword(DATA + 8 * slot, value as u32);
        machine.put_dword(DATA + 8 * slot + 4, (value >> 32) as u32);
    }
    machine.cpu.set_gpr(reg::SP, DATA.into());
    machine.code(target, &[hlt()]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.gpr(reg::SP), STACK.into());
}

#[test]
fn transitions_that_are_refused() {
    let general_protection = (vector::GP, Some(0));
    // Paging without PAE.
    let code = [&set_efer(LME)[..], &set_control(CR0, PAGING)].concat();
    let mut machine = in_32_bit_mode(&code);
    machine.cpu.idtr.limit = 0xffff;
    assert_eq!(machine.run_for(5), Exit::Deadline);
    assert!(!machine.cpu.is_in_long_mode());
    // Paging while CS has the L flag, or with a 16-bit TSS.
    for breaks in [
        |cpu: &mut Cpu| {
            let code = Segment::new(KERNEL_CODE, 0, u32::MAX, Attributes(0xe09b));
            cpu.set_segment(sreg::CS, code);
        },
        |cpu: &mut Cpu| cpu.tr = Segment::new(TASK, TSS.into(), 0x67, Attributes(0x83)),
    ] {
        let mut machine = in_32_bit_mode(&set_control(CR0, PAGING));
        machine.cpu.msrs.long.enabled = true;
        machine.cpu.set_cr4(Cr4::PAE);
        breaks(&mut machine.cpu);
        machine.run_for(2);
        assert!(!machine.cpu.cr0().contains(Cr0::PG));
    }
    // A change of LME while paging is on; the end of PAE and, in 64-bit code, of paging.
    for code in [
        &set_efer(0)[..],
        &set_efer(1 << 3),
        &set_control(CR4, 0),
        &set_control(CR0, Cr0::PE.bits()),
    ] {
        let code: Vec<_> = code
            .iter()
            .map(|instruction| match instruction.code() {
                Code::Mov_cr_r32 => binary(Code::Mov_cr_r64, instruction.op0_register(), RAX),
                _ => *instruction,
            })
            .collect();
        assert_eq!(LongMachine::new(&code).raised(), general_protection, "{code:?}");
    }
    // Bits beyond those of physical addresses, and upper halves of control registers.
    for (register, value) in [
        (iced_x86::Register::CR3, 1 << 40),
        (CR0, 1 << 32 | u64::from(PAGING)),
        (CR4, 1 << 32 | u64::from(Cr4::PAE.bits())),
        (CR8, 16),
    ] {
        let code = [mov64(RAX, value), binary(Code::Mov_cr_r64, register, RAX)];
        assert_eq!(LongMachine::new(&code).raised(), general_protection, "{register:?}");
    }
}

#[test]
fn models_without_long_mode_refuse_it() {
    let mut machine = Machine::with_code(&set_efer(LME));
    assert_eq!(machine.run_to_exception().vector, vector::GP);
    let mut machine = Machine::with_code(&[mov(ECX, 0xc000_0082), plain(Code::Rdmsr)]);
    assert_eq!(machine.run_to_exception().vector, vector::GP);
}

#[test]
fn the_task_priority_is_the_local_apics() {
    let code = [
        mov64(RAX, 0xb),
        binary(Code::Mov_cr_r64, CR8, RAX),
        binary(Code::Mov_r64_cr, RBX, CR8),
        hlt(),
    ];
    let mut machine = LongMachine::new(&code);
    machine.answers.extend([0, 0x9f]);
    assert_eq!(machine.run(), Exit::Halt);
    assert_eq!(machine.cpu.gpr(reg::BX), 9);
    let address = 0xfee0_0080;
    let expected = [
        Exit::MmioWrite { address, width: Width::Dword, value: 0xb0 },
        Exit::MmioRead { address, width: Width::Dword },
    ];
    assert_eq!(machine.accesses, expected);
}

#[test]
fn debug_registers_have_64_bits() {
    use iced_x86::Register::{DR0, DR7};
    let code = [
        mov64(RAX, 0xffff_8000_1234_5678),
        binary(Code::Mov_dr_r64, DR0, RAX),
        binary(Code::Mov_r64_dr, RBX, DR0),
        binary(Code::Mov_dr_r64, DR7, RAX),
    ];
    let mut machine = LongMachine::new(&code);
    assert_eq!(machine.raised(), (vector::GP, Some(0)));
    assert_eq!(machine.cpu.gpr(reg::BX), 0xffff_8000_1234_5678);
}

#[test]
fn the_state_survives_saving() {
    let mut machine = LongMachine::new(&[]);
    let long = &mut machine.cpu.msrs.long;
    (long.lstar, long.kernel_gs_base, long.system_calls) = (0xffff_8000_0000_1234, 77, true);
    let saved = machine.cpu.save();
    let mut other = Cpu::new();
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    assert!(other.is_in_64_bit_mode());
    assert_eq!(other.efer(), machine.cpu.efer());
}
