use ring3_core::disk::Medium;
use ring3_devices::fw_cfg::FwCfg;
use ring3_devices::virtio::block::DiskModel;
use ring3_devices::virtio::pci::Interfaces;
use ring3_x86::cpuid::Model;

use super::*;
use crate::cards::{Card, Place};
use crate::config::{Config, VirtioDisk};

fn new_board() -> Board {
    let config = Config { memory_bytes: 1 << 20, rtc_base: 1_000_000_000, ..Config::default() };
    Board::new(&config, None, FwCfg::default(), None).unwrap()
}

#[test]
fn a_board_survives_saving() {
    let mut memory = Memory::new(1 << 20).unwrap();
    let mut board = new_board();
    board.reset(&mut memory, Time::ZERO);
    // The timer ticks at 100 Hz, the first interrupt controller is programmed.
    for (port, value) in [(0x43, 0x34), (0x40, 0x9c), (0x40, 0x2e)] {
        board.write_port(&mut memory, Time::ZERO, port, Width::Byte, value);
    }
    for (port, value) in [(0x20, 0x11), (0x21, 0x30), (0x21, 4), (0x21, 1), (0x21, 0xfe)] {
        board.write_port(&mut memory, Time::ZERO, port, Width::Byte, value);
    }
    let saved = board.save();
    let mut other = new_board();
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    let later = other.next_timer().unwrap();
    other.fire_timers(&mut memory, later);
    assert!(other.interrupt_requested());
    assert_eq!(other.acknowledge_interrupt(), 0x30);
}

/// The local APIC's timer belongs to no device of the bus.
#[test]
fn a_board_with_apics_survives_saving() {
    const APIC: u64 = 0xfee0_0000;
    let (mut memory, now) = (Memory::new(1 << 20).unwrap(), Time::ZERO);
    let mut board = new_board();
    board.reset(&mut memory, now);
    for (register, value) in [(0x320, 0x2_0040), (0x3e0, 0xb), (0x380, 1_000_000)] {
        board.write_memory(&mut memory, now, APIC + register, Width::Dword, value);
    }
    let saved = board.save();
    let mut other = new_board();
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    let later = Time::from_nanos(1_000_000);
    assert_eq!(other.next_tick(), Some(later));
    other.fire_timers(&mut memory, later);
    assert!(other.interrupt_requested());
    assert_eq!(other.acknowledge_interrupt(), 0x40);
    let config = Config { cpu: Model::I486, memory_bytes: 1 << 20, ..Config::default() };
    assert!(Board::new(&config, None, FwCfg::default(), None).unwrap().restore(&saved).is_err());
    // When it is switched off, it does not answer.
    other.set_apic_base(&mut memory, later, APIC | 0x100);
    let read = other.read_memory(&mut memory, later, APIC + 0x30, Width::Dword);
    assert_eq!((read, other.next_timer()), (u32::MAX, None));
}

fn read_config(board: &mut Board, memory: &mut Memory, address: u32) -> u32 {
    board.write_port(memory, Time::ZERO, 0xcf8, Width::Dword, 0x8000_0000 | address);
    board.read_port(memory, Time::ZERO, 0xcfc, Width::Dword)
}

fn write_config(board: &mut Board, memory: &mut Memory, address: u32, value: u32) {
    board.write_port(memory, Time::ZERO, 0xcf8, Width::Dword, 0x8000_0000 | address);
    board.write_port(memory, Time::ZERO, 0xcfc, Width::Dword, value);
}

/// Returns the four bytes at `offset` of the first file that software finds.
fn in_first_file(board: &mut Board, memory: &mut Memory, offset: usize) -> u32 {
    board.write_port(memory, Time::ZERO, 0x510, Width::Word, 0x20);
    let mut read = || board.read_port(memory, Time::ZERO, 0x511, Width::Byte) as u8;
    for _ in 0..offset {
        read();
    }
    u32::from_le_bytes([(); 4].map(|()| read()))
}

/// Firmware chooses the ports of power management, and then finds them in the tables; without firmware they are where
/// the board has them.
#[test]
fn tables_name_the_ports_of_power_management() {
    let mut memory = Memory::new(1 << 20).unwrap();
    let rom = memory.add_area(64 << 10).unwrap();
    for (rom, first) in [(None, 0x600), (Some(rom), 0)] {
        let mut fw_cfg = FwCfg::default();
        fw_cfg.add_file_with_ports("table", vec![0, 0, 4, 0, 0, 0], vec![2]);
        let config = Config { memory_bytes: 1 << 20, ..Config::default() };
        let mut board = Board::new(&config, rom, fw_cfg, None).unwrap();
        for _ in 0..2 {
            board.reset(&mut memory, Time::ZERO);
            assert_eq!(in_first_file(&mut board, &mut memory, 2), first + 4);
            write_config(&mut board, &mut memory, 0x0b40, 0xb001);
            assert_eq!(in_first_file(&mut board, &mut memory, 2), 0xb004);
        }
    }
}

#[test]
fn a_bus_scan_finds_the_chipset() {
    let mut memory = Memory::new(1 << 20).unwrap();
    let mut board = new_board();
    board.reset(&mut memory, Time::ZERO);
    let mut found = Vec::new();
    for address in (0..1 << 16).step_by(1 << 8) {
        let id = read_config(&mut board, &mut memory, address);
        if id != 0xffff_ffff {
            let class = read_config(&mut board, &mut memory, address | 8) >> 8;
            found.push((address >> 11, address >> 8 & 7, id, class));
        }
    }
    let expected = [
        (0, 0, 0x1237_8086, 0x060000),
        (1, 0, 0x7000_8086, 0x060100),
        (1, 1, 0x7010_8086, 0x010180),
        (1, 3, 0x7113_8086, 0x068000),
    ];
    assert_eq!(found, expected);
    assert_eq!(read_config(&mut board, &mut memory, 1 << 16), 0xffff_ffff, "another bus");
}

#[test]
fn the_reset_control_register_lies_within_the_pci_address_register() {
    let mut memory = Memory::new(1 << 20).unwrap();
    let mut board = new_board();
    board.write_port(&mut memory, Time::ZERO, 0xcf8, Width::Dword, 0x8000_0600);
    assert_eq!(board.take_outputs(), []);
    board.write_port(&mut memory, Time::ZERO, 0xcf9, Width::Byte, 0x06);
    assert_eq!(board.take_outputs(), [Output::Reset]);
    assert_eq!(board.read_port(&mut memory, Time::ZERO, 0xcf8, Width::Dword), 0x8000_0600);
}

#[test]
fn an_x87_error_is_irq_13() {
    let (mut memory, now) = (Memory::new(1 << 20).unwrap(), Time::ZERO);
    let mut board = new_board();
    board.reset(&mut memory, now);
    for (port, values) in [(0x20, [0x11, 0x20, 4, 1, 0]), (0xa0, [0x11, 0x28, 2, 1, 0])] {
        board.write_port(&mut memory, now, port, Width::Byte, values[0]);
        for value in &values[1..] {
            board.write_port(&mut memory, now, port + 1, Width::Byte, *value);
        }
    }
    board.assert_ferr(&mut memory, now);
    assert!(board.interrupt_requested());
    assert_eq!(board.acknowledge_interrupt(), 0x2d);
    assert!(!board.take_ignne());
    board.write_port(&mut memory, now, 0xf0, Width::Byte, 0);
    assert!(board.take_ignne());
}

#[test]
fn dma_is_served_after_the_access_that_asks_for_it() {
    let mut memory = Memory::new(1 << 20).unwrap();
    let mut board = new_board();
    board.reset(&mut memory, Time::ZERO);
    // Channel 3: four bytes to 21000h, requested by software, from a bus that no device drives.
    for (port, value) in [(0x0b, 0x87), (0x82, 0x02), (0x06, 0x00), (0x06, 0x10), (0x07, 0x03)]
        .into_iter()
        .chain([(0x07, 0x00), (0x09, 0x07)])
    {
        board.write_port(&mut memory, Time::ZERO, port, Width::Byte, value);
    }
    let mut bytes = [0; 6];
    memory.read(0x20fff, &mut bytes);
    assert_eq!(bytes, [0, 0xff, 0xff, 0xff, 0xff, 0]);
    let status = board.read_port(&mut memory, Time::ZERO, 0x08, Width::Byte);
    assert_eq!(status, 0x08, "terminal count of channel 3");
}

#[test]
fn a_state_of_another_machine_is_refused() {
    let mut board = new_board();
    let saved = SavedState::new("cpu", 1, &0);
    assert!(board.restore(&saved).is_err());
}

#[test]
fn address_line_20_is_low_while_both_ports_hold_it_low() {
    const PORT_92: u16 = 0x92;
    const KEYBOARD_COMMAND: u16 = 0x64;
    let (mut memory, now) = (Memory::new(1 << 20).unwrap(), Time::ZERO);
    let mut board = new_board();
    board.reset(&mut memory, now);
    assert!(board.a20());
    let steps = [
        (PORT_92, 0x00, true),
        (KEYBOARD_COMMAND, 0xdd, false),
        (PORT_92, 0x02, true),
        (KEYBOARD_COMMAND, 0xdf, true),
        (PORT_92, 0x00, true),
        (KEYBOARD_COMMAND, 0xdd, false),
    ];
    for (port, value, expected) in steps {
        board.write_port(&mut memory, now, port, Width::Byte, value);
        assert_eq!(board.a20(), expected, "{value:#x} to {port:#x}");
    }
    let mut other = new_board();
    other.restore(&board.save()).unwrap();
    assert!(!other.a20());
    // The processor's INIT leaves the gate alone; a reset of the machine does not.
    board.init_processor(&mut memory, now);
    assert!(!board.a20());
    board.reset(&mut memory, now);
    assert!(board.a20());
}

fn virtio_disk(sectors: u64) -> VirtioDisk {
    let medium = Medium { sectors, read_only: false };
    let model = DiskModel { medium, serial: "S".to_owned(), queues: 1 };
    VirtioDisk { model, interfaces: Interfaces::default() }
}

#[test]
fn virtio_disks_are_devices_one_after_the_other() {
    let mut memory = Memory::new(1 << 20).unwrap();
    let virtio_disks = vec![Some(virtio_disk(0x1234)), Some(virtio_disk(0x5678))];
    let config = Config { memory_bytes: 1 << 20, virtio_disks, ..Config::default() };
    let mut board = Board::new(&config, None, FwCfg::default(), None).unwrap();
    board.reset(&mut memory, Time::ZERO);
    for (slot, id) in [(4, 0x1001_1af4), (5, 0x1001_1af4), (6, u32::MAX)] {
        assert_eq!(read_config(&mut board, &mut memory, slot << 11), id, "slot {slot}");
    }
    // Without firmware they have addresses and an interrupt already.
    for (slot, capacity, line) in [(4, 0x1234, 11), (5, 0x5678, 10)] {
        let ports = read_config(&mut board, &mut memory, slot << 11 | 0x10) as u16 & !1;
        let legacy = board.read_port(&mut memory, Time::ZERO, ports + 20, Width::Dword);
        let base = read_config(&mut board, &mut memory, slot << 11 | 0x20);
        let address = u64::from(base & !0xf) + 0x2000;
        let modern = board.read_memory(&mut memory, Time::ZERO, address, Width::Dword);
        assert_eq!((legacy, modern), (capacity, capacity), "slot {slot}");
        assert_eq!(read_config(&mut board, &mut memory, slot << 11 | 0x3c) & 0xff, line);
    }
    let saved = board.save();
    let mut other = Board::new(&config, None, FwCfg::default(), None).unwrap();
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    let fewer = Config { memory_bytes: 1 << 20, ..Config::default() };
    assert!(Board::new(&fewer, None, FwCfg::default(), None).unwrap().restore(&saved).is_err());
}

#[test]
fn a_card_is_plugged_in_and_removed() {
    const SLOT: u32 = 6 << 11;
    let (mut memory, now) = (Memory::new(1 << 20).unwrap(), Time::ZERO);
    let mut board = new_board();
    board.reset(&mut memory, now);
    let empty = board.save();
    let place = Place::of_slot(6).unwrap();
    for sectors in [0x1234, 0x5678] {
        assert_eq!(read_config(&mut board, &mut memory, SLOT), u32::MAX);
        board.plug(&mut memory, now, place, Card::Disk(virtio_disk(sectors)));
        // Another card has no room, and changes nothing.
        board.plug(&mut memory, now, place, Card::Disk(virtio_disk(1)));
        assert_eq!(board.read_port(&mut memory, now, 0xae00, Width::Dword), 1 << 6);
        // The guest gives it ports, at which it answers until it is gone.
        for (register, value) in [(0x10, 0xd000), (0x04, 1)] {
            board.write_port(&mut memory, now, 0xcf8, Width::Dword, 1 << 31 | SLOT | register);
            board.write_port(&mut memory, now, 0xcfc, Width::Dword, value);
        }
        let capacity = board.read_port(&mut memory, now, 0xd014, Width::Dword);
        assert_eq!(u64::from(capacity), sectors);

        // A board that has the card from the start accepts the state; one without it does not.
        let saved = board.save();
        let mut config = Config { memory_bytes: 1 << 20, ..Config::default() };
        assert!(
            Board::new(&config, None, FwCfg::default(), None).unwrap().restore(&saved).is_err()
        );
        place.put(&mut config, Card::Disk(virtio_disk(sectors)));
        let mut other = Board::new(&config, None, FwCfg::default(), None).unwrap();
        other.restore(&saved).unwrap();
        assert_eq!(other.save(), saved);

        board.write_port(&mut memory, now, 0xae08, Width::Dword, 1 << 6);
        assert_eq!(board.take_outputs(), [Output::Eject { slot: 6 }]);
        assert!(board.unplug(&mut memory, now, place) && !board.unplug(&mut memory, now, place));
        assert_eq!(board.read_port(&mut memory, now, 0xd014, Width::Dword), u32::MAX);
    }
    // What remains is the address that was selected last, and the event.
    board.write_port(&mut memory, now, 0xafe0, Width::Byte, 2);
    board.write_port(&mut memory, now, 0xcf8, Width::Dword, 0);
    let mut other = new_board();
    other.restore(&empty).unwrap();
    other.write_port(&mut memory, now, 0xcf8, Width::Dword, 0);
    assert_eq!(board.save(), other.save());
}

/// Of a port whose byte is known without an access, a read finds this byte and changes nothing.
#[test]
fn ports_that_can_be_known_are_read_without_effect() {
    let mut memory = Memory::new(1 << 20).unwrap();
    let mut board = new_board();
    board.reset(&mut memory, Time::ZERO);
    // A byte for the keyboard's output, memory of the real-time clock, and a character that is being sent.
    for (port, value) in [(0x64, 0xd2), (0x60, 0x5a), (0x70, 0x10), (0x3f8, 0x41)] {
        board.write_port(&mut memory, Time::ZERO, port, Width::Byte, value);
    }
    let is_known = |board: &Board, port| board.peek_port(port).is_some();
    for (port, expected) in
        [(0x64, true), (0x60, false), (0x71, true), (0x3fd, true), (0x3f8, false)]
    {
        assert_eq!(is_known(&board, port), expected, "{port:#x}");
    }
    for (port, expected) in [(0x5000, true), (0xcfc, false), (0x20, true), (0x0, false)] {
        assert_eq!(is_known(&board, port), expected, "{port:#x}");
    }
    for port in 0..0x1000 {
        let Some(known) = board.peek_port(port) else { continue };
        let before = board.save();
        let read = board.read_port(&mut memory, Time::from_nanos(1), port, Width::Byte);
        assert_eq!(read, known.into(), "{port:#x}");
        assert!(board.save() == before, "{port:#x}");
    }
    board.write_port(&mut memory, Time::ZERO, 0x70, Width::Byte, 0x0a);
    assert!(!is_known(&board, 0x71), "the clock's register A changes with time");
    board.write_port(&mut memory, Time::ZERO, 0x20, Width::Byte, 0x0c);
    assert!(!is_known(&board, 0x20), "the read is the acknowledge of a poll");
}
