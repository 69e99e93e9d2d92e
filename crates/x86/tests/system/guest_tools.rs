//! Tools that software calls by CPUID.

use iced_x86::{Code, Instruction};
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::guest_tools::{Call, GuestTools};

use crate::common::assembler::*;
use crate::machine::*;

const HOST_TIME: GuestTools = GuestTools { host_time: true, histogram: false };

/// Returns the word `letters` with the first letter in the lowest byte.
const fn word(letters: [u8; 4]) -> u32 {
    u32::from_le_bytes(letters)
}

const QEMU: u32 = word(*b"QEMU");
const TIME: u32 = word(*b"time");

/// Executes CPUID with these values of EAX, EBX, ECX and EDX.
fn asks([eax, ebx, ecx, edx]: [u32; 4]) -> [Instruction; 7] {
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

const HISTOGRAM: GuestTools = GuestTools { host_time: false, histogram: true };

/// Calls the histogram's function `function`.
fn histogram(function: [u8; 4], operand: u32) -> Vec<Instruction> {
    asks([QEMU, operand, word(function), word(*b"hist")])[..6].to_vec()
}

/// Runs until the code halts, and answers the calls of the histogram. Returns the number of instructions that
/// were executed when it was started and stopped.
fn run_with_histogram(machine: &mut Machine) -> Vec<u64> {
    let mut calls = Vec::new();
    loop {
        match machine.run() {
            Exit::GuestTool(call) => {
                calls.push(machine.cpu.instructions);
                machine.engine.complete_counts(&mut machine.cpu);
                let answer = machine.cpu.execute_histogram(call).expect("it is of this tool");
                machine.cpu.answer_guest_tool(answer);
            }
            exit => {
                assert_eq!(exit, Exit::Halt);
                return calls;
            }
        }
    }
}

/// Returns what the guest would fetch: names and counts that are not zero.
fn measured(machine: &mut Machine) -> Vec<(String, u64)> {
    let [_, counters, size, _] = machine.cpu.execute_histogram(Call::StopHistogram).unwrap();
    let mut words = |index| machine.cpu.execute_histogram(Call::FetchHistogram { index }).unwrap();
    let buffer: Vec<u8> = (0..size)
        .step_by(16)
        .flat_map(|index| words(index).map(u32::to_le_bytes))
        .flatten()
        .collect();
    let (counts, names) = buffer[..size as usize].split_at(8 * counters as usize);
    let counts = counts.chunks_exact(8).map(|count| u64::from_le_bytes(count.try_into().unwrap()));
    let names =
        names.split(|byte| *byte == 0).map(|name| String::from_utf8(name.to_vec()).unwrap());
    names.zip(counts).filter(|(_, count)| *count != 0).collect()
}

/// A loop, a repeated instruction, an exception with its handler, and the call that starts.
#[test]
fn the_guest_counts_instructions_by_form() {
    let mut machine = Machine::new();
    let mut begin = histogram(*b"star", u32::MAX);
    begin.extend([mov(ECX, 1000), mov(EDI, DATA), Instruction::with_rep_stosd(32).unwrap()]);
    begin.extend([mov(ECX, 50), mov(EBX, 0)]);
    let after = *machine.code(CODE, &begin).last().unwrap();
    let back = Instruction::with_branch(Code::Loop_rel8_32_ECX, after.into()).unwrap();
    let mut rest = vec![binary(Code::Add_rm32_r32, EBX, ECX), plain(Code::Nopd), back];
    rest.extend(histogram(*b"stop", u32::MAX));
    rest.push(hlt());
    machine.code(after, &rest);
    machine.cpu.guest_tools = HISTOGRAM;
    let calls = run_with_histogram(&mut machine);
    assert!(!machine.cpu.eflags().contains(Eflags::CF) && !machine.cpu.counts_forms());
    let [started, stopped] = calls[..] else { panic!("{calls:?}") };
    let measured = measured(&mut machine);
    let expected = [
        ("s MOV r32, imm32", 4 + 4),
        ("s NOP (o32 90)", 50),
        ("s ADD r/m32, r32", 50),
        ("s LOOP rel8 (a32 o32 E2 cb)", 50),
        ("s STOSD", 1000),
        ("s STC", 1),
        ("s CPUID", 1),
    ];
    assert_eq!(measured.iter().map(|(_, count)| count).sum::<u64>(), stopped - started);
    for (name, count) in expected {
        assert!(measured.contains(&(name.to_owned(), count)), "{name}: {measured:?}");
    }
}
