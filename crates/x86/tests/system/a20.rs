//! Address line 20, masked and not (SDM vol. 3, 21.1.1).

use iced_x86::Instruction;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr4, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::segment::{Segment, sreg};

use crate::common::assembler::*;
use crate::engine::engine;
use crate::machine::*;

const MIB: u32 = 1 << 20;
const OFF_AND_ON: [bool; 2] = [false, true];

/// The bit of a page-directory entry that maps a large page.
const LARGE: u32 = 0x80;

/// Executes real-mode instructions until the processor halts, with DS and ES at FFFFh.
fn run_real(engine: &mut dyn Engine, cpu: &mut Cpu, memory: &mut Memory, code: &[u8]) {
    memory.write(0x7c00, code);
    cpu.set_real_mode_entry(0, 0x7c00);
    cpu.set_segment(sreg::DS, Segment::real(0xffff, 0));
    assert_eq!(engine.run(cpu, memory, 100), Exit::Halt);
}

#[test]
fn addresses_of_real_mode_wrap_round_at_1_mib() {
    // MOV AX, [0010]; MOV [0012], AX; HLT
    const COPY: &[u8] = &[0xa1, 0x10, 0x00, 0xa3, 0x12, 0x00, 0xf4];
    for high in OFF_AND_ON {
        let (mut engine, mut memory) = engine(2 << 20);
        let mut cpu = Cpu::new();
        memory.write(0, &[0x11, 0x22]);
        memory.write(u64::from(MIB), &[0x33, 0x44]);
        cpu.set_a20(high);
        run_real(&mut *engine, &mut cpu, &mut memory, COPY);
        let (value, copied_to) = if high { (0x4433, MIB + 2) } else { (0x2211, 2) };
        assert_eq!(cpu.get::<u16>(reg::AX), value);
        for address in [2, MIB + 2] {
            let mut bytes = [0; 2];
            memory.read(address.into(), &mut bytes);
            let expected = if address == copied_to { value } else { 0 };
            assert_eq!(u16::from_le_bytes(bytes), expected, "at {address:#x}, {high}");
        }
    }
}

/// The second byte of the word is at 1 MiB.
#[test]
fn an_access_that_crosses_1_mib() {
    // MOV AX, [000F]; HLT
    const LOAD: &[u8] = &[0xa1, 0x0f, 0x00, 0xf4];
    for (high, expected) in [(false, 0x2211), (true, 0x3311)] {
        let (mut engine, mut memory) = engine(2 << 20);
        let mut cpu = Cpu::new();
        memory.write(u64::from(MIB) - 1, &[0x11, 0x33]);
        memory.write(0, &[0x22]);
        cpu.set_a20(high);
        run_real(&mut *engine, &mut cpu, &mut memory, LOAD);
        assert_eq!(cpu.get::<u16>(reg::AX), expected);
    }
}

/// Translations and decoded code belong to one position of the line.
#[test]
fn a_change_is_felt_at_once() {
    let mut machine = Machine::new();
    for (base, value) in [(0, 1), (MIB, 2)] {
        machine.put_dword(base + DATA, 10 * value);
        machine.code(base + CODE, &[mov(EAX, value), load(EBX, MIB + DATA)]);
    }
    for high in [true, false, true, false] {
        let value = if high { 2 } else { 1 };
        machine.cpu.set_a20(high);
        machine.cpu.ip = u64::from(MIB + CODE);
        assert_eq!(machine.run_for(2), Exit::Deadline);
        assert_eq!((machine.get(reg::AX), machine.get(reg::BX)), (value, 10 * value), "{high}");
    }
}

fn read_and_halt() -> [Instruction; 2] {
    [load(EBX, DATA), hlt()]
}

#[test]
fn addresses_that_come_from_page_tables_are_masked() {
    for (high, expected) in [(false, 1), (true, 2)] {
        let mut machine = Machine::with_code(&read_and_halt());
        machine.enable_paging();
        machine.put_dword(0x5_0000, 1);
        machine.put_dword(MIB + 0x5_0000, 2);
        machine.map(DATA, MIB + 0x5_0000, P | RW);
        machine.cpu.set_a20(high);
        machine.run_to_halt();
        assert_eq!(machine.get(reg::BX), expected);
        let probed = machine.cpu.probe(&machine.memory, DATA.into());
        assert_eq!(probed, Some(u64::from(if high { MIB } else { 0 } + 0x5_0000)));
    }
}

#[test]
fn addresses_of_page_tables_are_masked() {
    const OTHER_TABLE: u32 = 0xa000;
    for (high, expected) in [(false, 1), (true, 2)] {
        let mut machine = Machine::with_code(&read_and_halt());
        machine.enable_paging();
        machine.put_dword(0x5_0000, 1);
        machine.put_dword(0x6_0000, 2);
        // Both the directory and its table are 1 MiB higher, and only there is the other mapping.
        machine.put_dword(MIB + PAGE_DIRECTORY, (MIB + OTHER_TABLE) | P | RW | US);
        machine.put_dword(PAGE_DIRECTORY, (MIB + PAGE_TABLE) | P | RW | US);
        for page in 0..1024 {
            machine.put_dword(MIB + OTHER_TABLE + 4 * page, page << 12 | P | RW | US);
        }
        machine.map(DATA, 0x5_0000, P | RW);
        machine.put_dword(MIB + OTHER_TABLE + 4 * (DATA >> 12), 0x6_0000 | P | RW);
        machine.cpu.set_cr3(u64::from(MIB + PAGE_DIRECTORY));
        machine.cpu.set_a20(high);
        machine.run_to_halt();
        assert_eq!(machine.get(reg::BX), expected);
        // The accessed bit is set in the entry that was used.
        let used = if high { MIB + OTHER_TABLE + 4 * (DATA >> 12) } else { Machine::pte(DATA) };
        assert_eq!(machine.dword(used) & 0x20, 0x20);
    }
}

#[test]
fn a_large_page_is_masked_by_its_parts() {
    for (high, expected) in [(false, 1), (true, 2)] {
        let mut machine = Machine::with_code(&[load(EBX, 0x80_0000 + MIB + DATA), hlt()]);
        machine.enable_paging();
        machine.cpu.set_cr4(Cr4::PSE);
        machine.put_dword(PAGE_DIRECTORY + 8, P | RW | LARGE);
        machine.put_dword(DATA, 1);
        machine.put_dword(MIB + DATA, 2);
        machine.cpu.set_a20(high);
        machine.run_to_halt();
        assert_eq!(machine.get(reg::BX), expected);
    }
}

#[test]
fn it_is_part_of_the_state_and_no_reset_changes_it() {
    let mut cpu = Cpu::new();
    assert!(cpu.a20());
    cpu.set_a20(false);
    let mut other = Cpu::new();
    other.restore(&cpu.save()).unwrap();
    assert!(!other.a20());
    other.init();
    assert!(!other.a20());
    other.reset();
    assert!(!other.a20());
}
