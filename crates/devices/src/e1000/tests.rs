//! The card beside a driver that has a ring of each kind in a megabyte of memory.

use proptest::prelude::*;
use ring3_core::device::{Device, Output, TestBench, Width};
use ring3_core::net::{Offloads, PartialChecksum, SegmentationKind};

use super::registers as r;
use super::*;
use crate::pci::base_register;

const OURS: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const SLOT: u8 = 3;
/// Rings of so many descriptors, and the first of the buffers of 2 KiB for what comes.
const DESCRIPTORS: u32 = 8;
const SEND_RING: u32 = 0x1000;
const RECEIVE_RING: u32 = 0x2000;
const RECEIVE_BUFFERS: u32 = 0x10000;
const SEND_BUFFER: u32 = 0x40000;
const BUFFER: u32 = 2048;

// Commands of descriptors.
const END: u32 = 1 << 24;
const SEGMENTATION: u32 = 1 << 26;
const REPORT: u32 = 1 << 27;
const EXTENDED: u32 = 1 << 29;
const TYPE_DATA: u32 = 1 << 20;
const CONTEXT_TCP: u32 = 1 << 24;
const CONTEXT_IPV4: u32 = 1 << 25;
// And options.
const OPTION_IP_CHECKSUM: u32 = 1 << 8;
const OPTION_TCP_CHECKSUM: u32 = 1 << 9;

struct Driven {
    bench: TestBench,
    card: E1000,
}

impl Driven {
    fn new() -> Driven {
        let (mut bench, mut card) =
            (TestBench::default(), E1000::new(DeviceId::NIC[0], OURS, SLOT));
        card.reset(&mut bench.context());
        Driven { bench, card }
    }

    /// Both rings are there, all buffers but one are the card's, and all causes interrupt.
    fn started() -> Driven {
        let mut driven = Driven::new();
        for number in 0..DESCRIPTORS {
            let buffer = u64::from(RECEIVE_BUFFERS + number * BUFFER).to_le_bytes();
            let at = RECEIVE_RING + 16 * number;
            driven.bench.memory.write(at.into(), &buffer);
        }
        driven.write(r::TDBAL, SEND_RING);
        driven.write(r::TDLEN, 16 * DESCRIPTORS);
        driven.write(r::TCTL, tctl::ENABLE);
        driven.write(r::RDBAL, RECEIVE_RING);
        driven.write(r::RDLEN, 16 * DESCRIPTORS);
        driven.write(r::RDT, DESCRIPTORS - 1);
        driven.write(r::RCTL, rctl::ENABLE | rctl::BROADCASTS);
        driven.write(r::IMS, u32::MAX);
        driven
    }

    fn read(&mut self, offset: u32) -> u32 {
        self.card.read_memory(&mut self.bench.context(), 0, offset.into(), Width::Dword)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.card.write_memory(&mut self.bench.context(), 0, offset.into(), Width::Dword, value);
    }

    /// Puts a descriptor where the driver is.
    fn describe(&mut self, address: u32, length: u32, command: u32, options: u32) {
        let at = SEND_RING + 16 * self.read(r::TDT);
        let words = [address, 0, length | command, options].map(u32::to_le_bytes);
        self.bench.memory.write(at.into(), words.as_flattened());
        let next = (self.read(r::TDT) + 1) % DESCRIPTORS;
        self.card.chip.file.set(r::TDT, next);
    }

    /// Has the card look at its ring.
    fn kick(&mut self) {
        let tail = self.read(r::TDT);
        self.write(r::TDT, tail);
    }

    fn sent(&mut self) -> Vec<Packet> {
        let packet = |output| match output {
            Output::Packet { packet, .. } => Some(packet),
            _ => None,
        };
        self.bench.outputs.drain(..).filter_map(packet).collect()
    }

    fn come(&mut self, packet: Packet) {
        self.card.input(&mut self.bench.context(), DeviceInput::Packet(packet));
    }

    /// Length, status and bytes of the packet that was written by descriptor `number`.
    fn received(&self, number: u32) -> (usize, u8, Vec<u8>) {
        let mut descriptor = [0; 16];
        self.bench.memory.read((RECEIVE_RING + 16 * number).into(), &mut descriptor);
        let len = usize::from(u16::from_le_bytes([descriptor[8], descriptor[9]]));
        let mut bytes = vec![0; len];
        self.bench.memory.read((RECEIVE_BUFFERS + number * BUFFER).into(), &mut bytes);
        (len, descriptor[12], bytes)
    }

    fn interrupts(&self) -> bool {
        self.card.chip.interrupts.is_asserted()
    }
}

/// A frame for that card, of so many bytes.
fn frame(destination: MacAddress, len: usize) -> Vec<u8> {
    let mut bytes = destination.0.to_vec();
    bytes.extend((6..len).map(|index| index as u8));
    bytes
}

/// Ethernet, IPv4 and TCP without options, with lengths and sums that are left out, and so many bytes of
/// payload.
fn tcp(payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; 54];
    bytes[12] = 8;
    bytes[14] = 0x45;
    bytes[23] = 6;
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[46] = 0x50;
    // The sum of the pseudo header but for the length.
    bytes[50..52].copy_from_slice(&0x1409_u16.to_be_bytes());
    bytes.extend((0..payload).map(|index| index as u8));
    bytes
}

#[test]
fn a_driver_finds_the_card_and_reads_its_address() {
    let mut driven = Driven::new();
    let id = driven.card.read_config(&mut driven.bench.context(), 0, 0, Width::Dword);
    assert_eq!(id, 0x100e_8086);
    assert_eq!(driven.read(r::RAL), 0x1200_5452);
    assert_eq!(driven.read(r::RAH), 0x8000_5634);
    assert_eq!(driven.read(r::STATUS), 0x83);
    driven.write(r::RAL, 1);
    driven.write(r::CTRL, ctrl::RESET);
    assert_eq!(driven.read(r::RAL), 0x1200_5452);
    // By its ports.
    let ports = base_register(PORTS_REGION);
    driven.card.write_config(&mut driven.bench.context(), 0, ports, Width::Dword, 0xc001);
    driven.card.write_port(&mut driven.bench.context(), 0xc000, Width::Dword, r::RAL);
    let value = driven.card.read_port(&mut driven.bench.context(), 0xc004, Width::Dword);
    assert_eq!(value, 0x1200_5452);
}

#[test]
fn packets_go_out_and_are_reported() {
    let mut driven = Driven::started();
    let bytes = frame(MacAddress::BROADCAST, 100);
    driven.bench.memory.write(SEND_BUFFER.into(), &bytes);
    driven.describe(SEND_BUFFER, 40, 0, 0);
    driven.describe(SEND_BUFFER + 40, 60, END | REPORT, 0);
    driven.kick();
    assert_eq!(driven.sent(), [Packet::frame(bytes)]);
    assert_eq!(driven.read(r::TDH), 2);
    let mut status = [0];
    driven.bench.memory.read((SEND_RING + 16 + 12).into(), &mut status);
    assert_eq!(status, [1]);
    assert!(driven.interrupts());
    assert_eq!(driven.read(r::ICR), cause::SENT | cause::QUEUE_EMPTY);
    assert!(!driven.interrupts());
    assert_eq!((driven.read(statistics::SENT), driven.read(statistics::SENT)), (1, 0));
}

#[test]
fn a_buffer_to_be_segmented_is_sent_whole() {
    let mut driven = Driven::started();
    driven.bench.memory.write(SEND_BUFFER.into(), &tcp(3000));
    // IPv4 header at 14, its sum at 24, to 33; TCP at 34, its sum at 50, to the end; headers of 54 bytes,
    // segments of 1000.
    let ip = u32::from_le_bytes([14, 24, 33, 0]);
    let segments = 1000 << 16 | 0x36 << 8;
    driven.describe(ip, 3000, EXTENDED | CONTEXT_TCP | CONTEXT_IPV4, segments);
    driven.bench.memory.write((SEND_RING + 4).into(), &[34, 50, 0, 0]);
    let command = EXTENDED | TYPE_DATA | SEGMENTATION | END;
    driven.describe(SEND_BUFFER, 3054, command, OPTION_IP_CHECKSUM | OPTION_TCP_CHECKSUM);
    driven.kick();
    let [packet] = driven.sent().try_into().unwrap();
    assert_eq!(packet.checksum, Some(PartialChecksum { start: 34, offset: 16 }));
    let cut = packet.segmentation.unwrap();
    assert_eq!((cut.kind, cut.size), (SegmentationKind::TcpV4, 1000));
    assert_eq!(packet.bytes[16..18], 3040_u16.to_be_bytes());
    assert_eq!(packet.bytes[50..52], (0x1409_u16 + 3020).to_be_bytes());
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16)
    };
    assert_eq!(sum(&packet.bytes[14..34]), 0xffff);
    let mut pieces = Vec::new();
    packet.without_offloads(Offloads::default(), |piece| pieces.push(piece.bytes.len()));
    assert_eq!(pieces, [1054, 1054, 1054]);
}

#[test]
fn packets_come_into_buffers_and_wait_for_them() {
    let mut driven = Driven::started();
    driven.come(Packet::frame(frame(OURS, 100)));
    let (len, status, bytes) = driven.received(0);
    assert_eq!((len, status), (104, 0x07));
    assert_eq!(bytes[..100], frame(OURS, 100));
    assert_eq!(bytes[100..], crc32fast::hash(&bytes[..100]).to_le_bytes());
    assert_eq!(driven.read(r::ICR), cause::RECEIVED);
    // Those for others do not come, nor those that are too long.
    driven.come(Packet::frame(frame(MacAddress([2, 0, 0, 0, 0, 9]), 100)));
    driven.come(Packet::frame(frame(OURS, 1519)));
    assert_eq!(driven.read(r::RDH), 1);
    driven.write(r::RCTL, rctl::ENABLE | rctl::LONG_PACKETS);
    driven.come(Packet::frame(frame(OURS, 5000)));
    assert_eq!(driven.read(r::RDH), 4);
    assert_eq!([1, 2, 3].map(|number| driven.received(number).1), [1, 1, 0x07]);
    assert_eq!(driven.received(3).0, 5004 - 4096);
    for _ in 0..4 {
        assert!(driven.card.takes_input());
        driven.come(Packet::frame(frame(OURS, 60)));
    }
    assert!(!driven.card.takes_input());
    assert_eq!(driven.read(r::RDH), 7);
    driven.write(r::RDT, 1);
    assert!(driven.card.takes_input());
    assert_eq!(driven.read(r::RDH), 0);
}

#[test]
fn interrupts_are_held_back() {
    let mut driven = Driven::started();
    driven.write(r::IMC, cause::FEW_BUFFERS);
    // 100 us between two of them.
    driven.write(r::ITR, 391);
    driven.come(Packet::frame(frame(OURS, 60)));
    assert!(driven.interrupts());
    driven.read(r::ICR);
    driven.come(Packet::frame(frame(OURS, 60)));
    assert!(!driven.interrupts());
    driven.bench.advance(&mut driven.card, 101_000);
    assert!(driven.interrupts());
    driven.read(r::ICR);
    driven.write(r::ITR, 0);
    // 10 us after the last, but 20 after the first.
    driven.write(r::RDTR, 10);
    driven.write(r::RADV, 20);
    for _ in 0..3 {
        assert!(!driven.interrupts());
        driven.come(Packet::frame(frame(OURS, 60)));
        driven.bench.advance(&mut driven.card, 8_000);
    }
    assert!(driven.interrupts());
    driven.read(r::ICR);
    driven.write(r::RDT, 0);
    driven.come(Packet::frame(frame(OURS, 60)));
    assert!(!driven.interrupts());
    driven.bench.advance(&mut driven.card, 10_300);
    assert!(driven.interrupts());
}

#[test]
fn the_cable_is_pulled() {
    let mut driven = Driven::started();
    driven.card.input(&mut driven.bench.context(), DeviceInput::Link(false));
    assert_eq!(driven.read(r::ICR), cause::LINK_CHANGED);
    assert_eq!(driven.read(r::STATUS) & status::LINK_UP, 0);
    driven.come(Packet::frame(frame(OURS, 60)));
    assert_eq!(driven.read(r::RDH), 0);
}

#[test]
fn a_congested_network_stops_the_card() {
    let mut driven = Driven::started();
    driven.card.input(&mut driven.bench.context(), DeviceInput::Congestion(true));
    driven.describe(SEND_BUFFER, 60, END, 0);
    driven.kick();
    assert_eq!(driven.read(r::TDH), 0);
    driven.card.input(&mut driven.bench.context(), DeviceInput::Congestion(false));
    assert_eq!((driven.read(r::TDH), driven.sent().len()), (1, 1));
}

#[test]
fn a_state_survives_saving() {
    let mut driven = Driven::started();
    driven.come(Packet::frame(frame(OURS, 60)));
    driven.describe(SEND_BUFFER, 40, 0, 0);
    driven.kick();
    let saved = driven.card.save();
    let mut other = E1000::new(DeviceId::NIC[0], OURS, SLOT);
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    assert_eq!(other.chip, driven.card.chip);
}

/// What a hostile guest and network may do.
#[derive(Debug, Clone)]
enum Step {
    Write(u32, u32),
    Memory(u32, Vec<u8>),
    Come(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let rings = [r::RDBAL, r::RDLEN, r::RDH, r::RDT, r::TDBAL, r::TDLEN, r::TDH, r::TDT];
    let others = [r::CTRL, r::EECD, r::EERD, r::MDIC, r::ICR, r::ITR, r::ICS, r::IMS, r::RDTR];
    let control = [r::RCTL, r::TCTL, r::RXCSUM, r::VET, r::RDBAH, r::TDBAH, r::RADV, r::TIDV];
    let registers = [&rings[..], &others, &control].concat();
    prop_oneof![
        4 => (prop::sample::select(registers), any::<u32>(), 0..32_u32)
            .prop_map(|(register, value, shift)| Step::Write(register, value >> shift)),
        2 => (0..0x3000_u32, prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(at, bytes)| Step::Memory(at, bytes)),
        2 => (0..70_000_usize).prop_map(Step::Come),
        1 => (0..1_000_000_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn any_accesses_leave_a_working_card(steps in prop::collection::vec(step(), 1..80)) {
        let mut driven = Driven::started();
        for step in steps {
            match step {
                Step::Write(register, value) => driven.write(register, value),
                Step::Memory(at, bytes) => driven.bench.memory.write(at.into(), &bytes),
                Step::Come(len) if driven.card.takes_input() => {
                    driven.come(Packet::frame(frame(OURS, len.max(6))));
                }
                Step::Come(_) => {}
                Step::Wait(nanos) => driven.bench.advance(&mut driven.card, nanos),
            }
            prop_assert!(driven.sent().iter().all(Packet::is_sound));
        }
        let saved = driven.card.save();
        E1000::new(DeviceId::NIC[0], OURS, SLOT).restore(&saved).unwrap();
    }
}

#[test]
fn a_packet_is_not_copied_before_the_driver_has_it() {
    let mut driven = Driven::started();
    // There is no buffer for it.
    driven.write(r::RDT, driven.card.chip.file.get(r::RDH));
    // With room for the frame check sequence, which the card appends.
    let mut bytes = Vec::with_capacity(1514 + 4);
    bytes.resize(1514, 0);
    bytes[..6].copy_from_slice(&OURS.0);
    let place = bytes.as_ptr();
    driven.come(Packet::frame(bytes));
    assert_eq!(driven.card.chip.waiting[0].bytes().as_ptr(), place);
}
