//! Tools that software calls by CPUID.

use iced_x86::Code;
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::guest_tools::{Call, GuestTools};

use crate::common::assembler::*;
use crate::machine::*;

const HOST_TIME: GuestTools = GuestTools { host_time: true };

/// Returns the word `letters` with the first letter in the lowest byte.
const fn word(letters: [u8; 4]) -> u32 {
    u32::from_le_bytes(letters)
}

const QEMU: u32 = word(*b"QEMU");
const TIME: u32 = word(*b"time");

/// Executes CPUID with these values of EAX, EBX, ECX and EDX.
fn asks([eax, ebx, ecx, edx]: [u32; 4]) -> [iced_x86::Instruction; 7] {
    [
        mov(EAX, eax),
        mov(EBX, ebx),
        mov(ECX, ecx),
        mov(EDX, edx),
        plain(Code::Stc),
        plain(Code::Cpuid),
        hlt(),
    ]
}

fn registers(machine: &Machine) -> [u32; 4] {
    [reg::AX, reg::BX, reg::CX, reg::DX].map(|register| machine.get(register))
}

#[test]
fn the_host_time_comes_in_all_registers_and_clears_the_carry_flag() {
    let as_it_is: fn(u32) -> u32 = |word| word;
    for order in [as_it_is, u32::swap_bytes] {
        let mut machine = Machine::with_code(&asks([order(QEMU), 0, 0, order(TIME)]));
        machine.cpu.guest_tools = HOST_TIME;
        assert_eq!(machine.run(), Exit::GuestTool(Call::HostTime));
        assert!(machine.cpu.eflags().contains(Eflags::CF), "the instruction is not complete");
        let before = machine.cpu.instructions;
        machine.cpu.answer_guest_tool([1, 2, 3, 0xffff_ffff]);
        machine.run_to_halt();
        assert_eq!(registers(&machine), [1, 2, 3, 0xffff_ffff]);
        assert!(!machine.cpu.eflags().contains(Eflags::CF));
        assert_eq!(machine.cpu.instructions, before + 2, "CPUID and HLT");
    }
}

#[test]
fn users_have_the_host_time_too() {
    let mut machine = Machine::with_user_code(&asks([QEMU, 0, 0, TIME]));
    machine.cpu.guest_tools = HOST_TIME;
    assert_eq!(machine.run(), Exit::GuestTool(Call::HostTime));
}

/// Then the result is that of a leaf past the last one, and CPUID changes no flag.
#[test]
fn other_registers_call_no_tool() {
    let reversed = u32::swap_bytes;
    for (tools, called) in [
        (GuestTools::default(), [QEMU, 0, 0, TIME]),
        (HOST_TIME, [QEMU, 1, 0, TIME]),
        (HOST_TIME, [QEMU, 0, 1, TIME]),
        (HOST_TIME, [QEMU, 0, 0, word(*b"hist")]),
        (HOST_TIME, [QEMU, 0, 0, 0]),
        (HOST_TIME, [QEMU + 1, 0, 0, TIME]),
        (HOST_TIME, [QEMU, 0, 0, reversed(TIME)]),
        (HOST_TIME, [reversed(QEMU), 0, 0, TIME]),
    ] {
        let mut machine = Machine::with_code(&asks(called));
        machine.cpu.guest_tools = tools;
        machine.run_to_halt();
        let expected = machine.cpu.model.leaf(called[0], true);
        assert_eq!(registers(&machine), expected, "{called:x?}");
        assert!(machine.cpu.eflags().contains(Eflags::CF), "{called:x?}");
    }
}

/// An engine may remember what CPUID has answered to a leaf, but not here, where other registers matter.
#[test]
fn a_call_after_one_that_was_not_heard_is_heard() {
    let not_heard = asks([QEMU, 0, 0, 0]);
    let code = [&not_heard[..6], &not_heard[..6], &asks([QEMU, 0, 0, TIME])].concat();
    let mut machine = Machine::with_code(&code);
    machine.cpu.guest_tools = HOST_TIME;
    assert_eq!(machine.run(), Exit::GuestTool(Call::HostTime));
}

#[test]
fn the_tools_outlast_a_reset_and_a_restored_state() {
    let mut machine = Machine::new();
    machine.cpu.guest_tools = HOST_TIME;
    machine.cpu.reset();
    assert_eq!(machine.cpu.guest_tools, HOST_TIME);
    let saved = machine.cpu.save();
    machine.cpu.restore(&saved).unwrap();
    assert_eq!(machine.cpu.guest_tools, HOST_TIME);
}
