//! Accesses that leave the engine, to ports and devices' memory, and the permission to use a port.

use iced_x86::{Code, Instruction, MemoryOperand};
use ring3_core::device::Width;
use ring3_core::memory::Backing;
use ring3_x86::cpu::{Cr4, reg};
use ring3_x86::engine::Exit;
use ring3_x86::exception::vector;
use ring3_x86::flags::Eflags;

use crate::common::assembler::*;
use crate::machine::*;

/// A page that belongs to a device.
const DEVICE: u32 = 0x7_0000;

fn with_device(code: &[Instruction]) -> Machine {
    let mut machine = Machine::with_code(code);
    machine.memory.map(DEVICE.into(), 0x1000, Backing::Device, Backing::Device).unwrap();
    machine
}

fn mmio_read(address: u32, width: Width) -> Exit {
    Exit::MmioRead { address: address.into(), width }
}

fn mmio_write(address: u32, width: Width, value: u32) -> Exit {
    Exit::MmioWrite { address: address.into(), width, value }
}

#[test]
fn a_port_is_read_with_the_answer() {
    let mut machine = Machine::with_code(&[in_al(0x60), hlt()]);
    machine.cpu.set_gpr(reg::AX, 0x1111_1111);
    machine.answers.push_back(0xffff_ffab);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::AX), 0x1111_11ab);
    assert_eq!(machine.accesses, [Exit::PortRead { port: 0x60, width: Width::Byte }]);
    assert_eq!(machine.cpu.instructions, 2, "a repeated start is no instruction");
}

/// Until the answer the state is that before the instruction, and the engine repeats its question.
#[test]
fn an_exit_leaves_the_state_alone() {
    let mut machine = with_device(&[add_to_memory(DEVICE, EBX), hlt()]);
    let before = machine.cpu.save();
    for _ in 0..3 {
        let exit = machine.engine.run(&mut machine.cpu, &mut machine.memory, 10);
        assert_eq!(exit, mmio_read(DEVICE, Width::Dword));
        assert_eq!(machine.cpu.save(), before);
    }
}

#[test]
fn a_read_modify_write_reads_once_and_writes_once() {
    let mut machine = with_device(&[mov(EBX, 5), add_to_memory(DEVICE + 4, EBX), hlt()]);
    machine.answers.push_back(0xffff_fffe);
    machine.run_to_halt();
    let expected = [mmio_read(DEVICE + 4, Width::Dword), mmio_write(DEVICE + 4, Width::Dword, 3)];
    assert_eq!(machine.accesses, expected);
    assert!(machine.cpu.eflags().contains(Eflags::CF));
}

#[test]
fn an_exchange_returns_the_old_value() {
    let at = MemoryOperand::with_displ(DEVICE.into(), 4);
    let exchange = Instruction::with2(Code::Xchg_rm32_r32, at, EBX).unwrap();
    let mut machine = with_device(&[mov(EBX, 5), exchange, hlt()]);
    machine.answers.push_back(7);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 7);
    let expected = [mmio_read(DEVICE, Width::Dword), mmio_write(DEVICE, Width::Dword, 5)];
    assert_eq!(machine.accesses, expected);
}

#[test]
fn an_access_across_the_boundary_of_a_device_is_made_in_bytes() {
    let mut machine = with_device(&[load(EBX, DEVICE - 2), hlt()]);
    machine.put(DEVICE - 2, &[0x11, 0x22]);
    machine.answers.extend([0x33, 0x44]);
    machine.run_to_halt();
    assert_eq!(machine.get(reg::BX), 0x4433_2211);
    let expected = [mmio_read(DEVICE, Width::Byte), mmio_read(DEVICE + 1, Width::Byte)];
    assert_eq!(machine.accesses, expected);
}

#[test]
fn each_iteration_asks_for_itself() {
    let code = [mov(ESI, DEVICE), mov(EDI, DATA), mov(ECX, 3), rep_movsb(), hlt()];
    let mut machine = with_device(&code);
    machine.answers.extend([1, 2, 3]);
    machine.run_to_halt();
    assert_eq!(machine.dword(DATA), 0x0003_0201);
    assert_eq!(machine.accesses.len(), 3);
    assert_eq!(machine.cpu.instructions, 7);
}

/// A page that begins to belong to a device does so for earlier translations, too.
#[test]
fn a_page_changes_hands() {
    let mut machine = Machine::with_code(&[load(EBX, DEVICE), load(ECX, DEVICE), hlt()]);
    assert_eq!(machine.run_for(1), Exit::Deadline);
    machine.memory.map(DEVICE.into(), 0x1000, Backing::Device, Backing::Device).unwrap();
    machine.answers.push_back(9);
    machine.run_to_halt();
    assert_eq!((machine.get(reg::BX), machine.get(reg::CX)), (0, 9));
}

#[test]
fn addresses_without_ram_belong_to_devices() {
    let mut machine = Machine::with_code(&[load(EBX, 0xfee0_0020), hlt()]);
    machine.run_to_halt();
    assert_eq!(machine.accesses, [mmio_read(0xfee0_0020, Width::Dword)]);
}

/// Executes `instruction` with a bit map at 68h of the TSS, whose limit is `limit`. Returns the error code of
/// the fault, if any.
fn user_port(instruction: Instruction, bit_map: &[u8], limit: u32, eflags: Eflags) -> Option<u32> {
    let mut machine = Machine::with_user_code(&[instruction, plain(Code::Ud2)]);
    machine.put(TSS + 0x66, &0x68_u16.to_le_bytes());
    machine.put(TSS + 0x68, bit_map);
    machine.cpu.tr.limit = limit;
    machine.cpu.set_eflags(eflags);
    let exception = machine.run_to_exception();
    if exception.vector == vector::UD {
        assert_eq!(machine.accesses.len(), 1);
        return None;
    }
    assert_eq!(exception.vector, vector::GP);
    assert!(machine.accesses.is_empty());
    exception.error_code
}

/// SDM vol. 1, 19.5.2.
#[test]
fn the_io_permission_bit_map() {
    let none = Eflags::empty();
    let whole = 0x68 + 32;
    let mut open = [0xff; 33];
    open[0x60 / 8] = !0b11; // ports 60h and 61h
    assert_eq!(user_port(in_al(0x60), &open, whole, none), None);
    assert_eq!(user_port(out_al(0x61), &open, whole, none), None);
    assert_eq!(user_port(in_al(0x62), &open, whole, none), Some(0));
    assert_eq!(user_port(in_ax(0x60), &open, whole, none), None);
    assert_eq!(user_port(in_ax(0x61), &open, whole, none), Some(0), "the second port is closed");
    // A word whose bits are in two bytes.
    let mut two_bytes = [0xff; 33];
    two_bytes[0x60 / 8] = 0x7f;
    assert_eq!(user_port(in_ax(0x67), &two_bytes, whole, none), Some(0));
    two_bytes[0x68 / 8] = 0xfe;
    assert_eq!(user_port(in_ax(0x67), &two_bytes, whole, none), None);
    // Both bytes that are read must be inside the TSS.
    assert_eq!(user_port(in_al(0x60), &open, 0x68 + 0x60 / 8 + 1, none), None);
    assert_eq!(user_port(in_al(0x60), &open, 0x68 + 0x60 / 8, none), Some(0));
    assert_eq!(user_port(in_al(0x60), &open, 0x67, none), Some(0), "there is no map");
    // IOPL 3 needs no map.
    assert_eq!(user_port(in_al(0x62), &open, 0x67, Eflags::IOPL), None);
}

/// The machine provides the time; the value that WRMSR wrote to the counter is added to it (SDM vol. 3,
/// 19.17).
#[test]
fn the_time_stamp_is_the_machines() {
    let set = [mov(ECX, 0x10), mov(EAX, 0x100), mov(EDX, 0), plain(Code::Wrmsr)];
    let mut machine = Machine::with_code(&[&set[..], &[plain(Code::Rdtsc), hlt()]].concat());
    assert_eq!(machine.run(), Exit::TimeStamp);
    machine.cpu.answer(0x5_0000_0000);
    assert_eq!(machine.run(), Exit::TimeStamp);
    machine.cpu.answer(0x7_0000_0005);
    machine.run_to_halt();
    assert_eq!((machine.get(reg::DX), machine.get(reg::AX)), (2, 0x105));
}

#[test]
fn rdtsc_may_be_privileged() {
    for (cr4, allowed) in [(Cr4::empty(), true), (Cr4::TSD, false)] {
        let mut machine = Machine::with_user_code(&[plain(Code::Rdtsc)]);
        machine.cpu.set_cr4(cr4);
        if allowed {
            assert_eq!(machine.run(), Exit::TimeStamp);
        } else {
            assert_eq!(machine.run_to_exception().vector, vector::GP);
        }
    }
}

/// The bytes in memory are written after the device has taken its own, or the sum would be computed twice.
#[test]
fn a_read_modify_write_across_memory_and_a_device_adds_once() {
    let mut machine = with_device(&[mov(EBX, 5), add_to_memory(DEVICE - 3, EBX), hlt()]);
    machine.run_to_halt();
    assert_eq!(machine.dword(DEVICE - 4) >> 8, 5);
    let expected = [mmio_read(DEVICE, Width::Byte), mmio_write(DEVICE, Width::Byte, 0)];
    assert_eq!(machine.accesses, expected);
}
