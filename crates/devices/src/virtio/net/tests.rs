//! A driver with the queues of a card, and a network that keeps the sent packets.

use proptest::prelude::*;
use ring3_core::device::{Output, TestBench};
use ring3_core::net::{PartialChecksum, Segmentation, SegmentationKind};

use super::super::driver::{BUFFERS, Buffer, Ring};
use super::super::queue::Areas;
use super::*;

const RING_SIZE: u16 = 64;
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];
const CONTROL: usize = 2;

fn model(pairs: u16) -> NetModel {
    NetModel { mac: MAC, mtu: Some(9000), pairs }
}

struct Machine {
    bench: TestBench,
    net: Net,
    queues: Vec<Queue>,
    rings: Vec<Ring>,
    features: u64,
    sent: Vec<Packet>,
}

impl Machine {
    fn new() -> Machine {
        Machine::with_pairs(1)
    }

    fn with_pairs(pairs: u16) -> Machine {
        let bench = TestBench::default();
        let net = Net::new(DeviceId::NIC[0], model(pairs));
        let rings: Vec<_> = (0..u64::from(2 * pairs + 1))
            .map(|index| {
                let start = 0x1000 + 0x1000 * index;
                let (available, used) = (start + 0x400, start + 0x800);
                Ring::at(Areas { descriptors: start, available, used }, RING_SIZE)
            })
            .collect();
        let queues = rings.iter().map(|ring| ring.queue(&bench.memory, false, false)).collect();
        let features = net.features() | VERSION_1;
        Machine { bench, net, queues, rings, features, sent: Vec::new() }
    }

    fn work(&mut self, work: impl FnOnce(&mut Net, &mut Work<'_, '_>)) -> bool {
        let (context, queues) = (&mut self.bench.context(), &mut self.queues[..]);
        let mut all = Work { context, queues, features: self.features, config_changed: false };
        work(&mut self.net, &mut all);
        let changed = all.config_changed;
        for output in std::mem::take(&mut self.bench.outputs) {
            let Output::Packet { packet, .. } = output else { panic!("{output:?}") };
            self.sent.push(packet);
        }
        changed
    }

    fn input(&mut self, input: DeviceInput) -> bool {
        self.work(|net, work| net.input(work, input))
    }

    fn notify(&mut self, queue: u16) {
        self.work(|net, work| net.notify(work, queue));
    }

    /// Sends the packet that follows a header.
    fn send(&mut self, header: &[u8], bytes: &[u8]) {
        self.bench.memory.write(BUFFERS, &[header, bytes].concat());
        let len = (header.len() + bytes.len()) as u32;
        self.rings[1].add(&mut self.bench, &[(BUFFERS, len, false)]);
        self.notify(1);
    }

    /// A frame to `address` with `len` bytes comes.
    fn come(&mut self, address: [u8; 6], len: usize) {
        let mut bytes: Vec<u8> = (0..len).map(|index| (index * 3 + index / 256) as u8).collect();
        bytes[..6].copy_from_slice(&address);
        self.input(DeviceInput::Packet(Packet::frame(bytes)));
    }

    /// Buffers for what comes.
    fn offer(&mut self, buffers: &[Buffer]) {
        for buffer in buffers {
            self.rings[0].add(&mut self.bench, &[*buffer]);
        }
    }

    fn used(&mut self, ring: usize) -> Option<(u32, u32)> {
        self.rings[ring].used(&self.bench.memory)
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.bench.memory.read(address, &mut bytes);
        bytes
    }

    /// Has a command done: the answer.
    fn command(&mut self, command: &[u8]) -> u8 {
        self.bench.memory.write(BUFFERS, command);
        let answer = BUFFERS + 0x2000;
        self.bench.memory.write(answer, &[0xee]);
        let control = self.rings.len() - 1;
        let buffers = [(BUFFERS, command.len() as u32, false), (answer, 1, true)];
        self.rings[control].add(&mut self.bench, &buffers);
        self.notify(control as u16);
        assert_eq!(self.used(control).map(|used| used.1), Some(1));
        self.bytes(answer, 1)[0]
    }

    /// True when a frame to that address is taken.
    fn takes(&mut self, address: [u8; 6]) -> bool {
        self.offer(&[(BUFFERS + 0x4000, 2048, true)]);
        self.come(address, 60);
        self.used(0).is_some()
    }
}

#[test]
fn frames_of_every_size_are_sent() {
    let mut machine = Machine::new();
    for len in (0..200).chain([1514, 9014, 65535, PACKET_MAX]) {
        let bytes: Vec<u8> = (0..len).map(|index| index as u8).collect();
        machine.send(&[0; 12], &bytes);
        assert!(machine.used(1).is_some());
        assert_eq!(machine.sent.pop(), Some(Packet::frame(bytes)));
    }
    machine.send(&[0; 12], &vec![0; PACKET_MAX + 1]);
    assert!(machine.used(1).is_some(), "it is given back and lost");
    machine.send(&[0; 11], &[]);
    assert!(machine.used(1).is_some(), "there is no header");
    assert_eq!(machine.sent, []);
}

#[test]
fn unfinished_packets_are_passed_on_unchanged() {
    let mut machine = Machine::new();
    machine.send(&[1, 0x81, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0], &{
        let mut bytes = vec![0; 9000];
        bytes[46] = 0x50;
        bytes
    });
    let packet = machine.sent.pop().unwrap();
    assert_eq!(packet.checksum, Some(PartialChecksum { start: 34, offset: 16 }));
    let kind = SegmentationKind::TcpV4;
    assert_eq!(packet.segmentation, Some(Segmentation { kind, size: 1460, congestion: true }));
    // A checksum behind the end.
    machine.send(&[1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0], &[0; 51]);
    assert_eq!(machine.sent, []);
}

#[test]
fn a_frame_fills_as_many_buffers_as_it_takes() {
    let mut machine = Machine::new();
    let place = BUFFERS + 0x1_0000;
    machine.offer(&[(place, 5, true), (place + 0x1000, 100, true), (place + 0x2000, 2000, true)]);
    machine.come(MAC.0, 1000);
    let used: Vec<_> = std::iter::from_fn(|| machine.used(0)).collect();
    assert_eq!(used, [(0, 5), (1, 100), (2, 907)]);
    let all = [
        machine.bytes(place, 5),
        machine.bytes(place + 0x1000, 100),
        machine.bytes(place + 0x2000, 907),
    ];
    let all = all.concat();
    assert_eq!(all[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0]);
    assert_eq!(all[12..18], MAC.0);
    assert!(
        all[18..].iter().zip(6..).all(|(byte, index)| *byte == (index * 3 + index / 256) as u8)
    );
}

#[test]
fn a_frame_waits_for_buffers_and_others_wait_behind_it() {
    let mut machine = Machine::new();
    let place = BUFFERS + 0x1_0000;
    machine.offer(&[(place, 500, true)]);
    machine.come(MAC.0, 1000);
    assert_eq!(machine.used(0), None);
    assert!(!machine.net.takes_input());
    machine.offer(&[(place + 0x1000, 500, true)]);
    machine.notify(0);
    assert_eq!(machine.used(0), None, "12 bytes of header do not fit");
    machine.offer(&[(place + 0x2000, 500, true)]);
    machine.notify(0);
    let used: Vec<_> = std::iter::from_fn(|| machine.used(0)).collect();
    assert_eq!(used, [(0, 500), (1, 500), (2, 12)]);
    assert!(machine.net.takes_input());
}

#[test]
fn a_driver_that_does_not_merge_has_one_buffer_for_a_frame() {
    let mut machine = Machine::new();
    machine.features &= !features::MERGEABLE_BUFFERS;
    let place = BUFFERS + 0x1_0000;
    machine.offer(&[(place, 1011, true)]);
    machine.come(MAC.0, 1000);
    assert_eq!(machine.used(0), None, "it is lost");
    assert!(machine.net.takes_input());
    machine.come(MAC.0, 999);
    assert_eq!(machine.used(0), Some((0, 1011)), "the buffer was kept");
    // One of version 0.9.5 has a shorter header.
    machine.features &= !VERSION_1;
    machine.offer(&[(place, 1010, true)]);
    machine.come(MAC.0, 1000);
    assert_eq!(machine.used(0), Some((1, 1010)));
    assert_eq!(machine.bytes(place + 10, 6), MAC.0);
}

#[test]
fn offloads_that_a_driver_has_not_accepted_are_done_for_it() {
    let mut bytes = vec![0; 54 + 2000];
    bytes[..6].copy_from_slice(&MAC.0);
    bytes[46] = 0x50;
    let kind = SegmentationKind::TcpV4;
    let packet = Packet {
        bytes,
        checksum: Some(PartialChecksum { start: 34, offset: 16 }),
        segmentation: Some(Segmentation { kind, size: 1000, congestion: false }),
    };
    for (features, lens) in [
        (features::GUEST_CHECKSUM | features::GUEST_TSO4, vec![2066]),
        (features::GUEST_CHECKSUM, vec![1066, 1066]),
        (0, vec![1066, 1066]),
    ] {
        let mut machine = Machine::new();
        machine.features &= !features::GUEST_OFFLOADS;
        machine.features |= features;
        let place = BUFFERS + 0x1_0000;
        machine.offer(&[(place, 4096, true), (place + 0x1000, 4096, true)]);
        machine.input(DeviceInput::Packet(packet.clone()));
        let used: Vec<_> = std::iter::from_fn(|| machine.used(0)).map(|used| used.1).collect();
        assert_eq!(used, lens);
    }
    // The driver may switch it off later.
    let mut machine = Machine::new();
    machine.offer(&[(BUFFERS + 0x1_0000, 4096, true), (BUFFERS + 0x1_1000, 4096, true)]);
    assert_eq!(machine.command(&[5, 0, 2, 0, 0, 0, 0, 0, 0, 0]), 0);
    machine.input(DeviceInput::Packet(packet));
    assert_eq!(machine.used(0).map(|used| used.1), Some(1066));
    assert_eq!(machine.command(&[5, 0, 0, 4, 0, 0, 0, 0, 0, 0]), 1, "it was never offered");
}

#[test]
fn a_packet_is_not_copied_before_the_driver_has_it() {
    let mut machine = Machine::new();
    let mut bytes = vec![0; 60_000];
    bytes[..6].copy_from_slice(&[0xff; 6]);
    let place = bytes.as_ptr();
    machine.input(DeviceInput::Packet(Packet::frame(bytes)));
    assert_eq!(machine.net.state.waiting[0].bytes.as_ptr(), place);
}

#[test]
fn the_driver_says_which_frames_the_card_takes() {
    let mut machine = Machine::new();
    let broadcast = MacAddress::BROADCAST.0;
    assert!(machine.takes(OTHER), "nobody has told it anything");
    let set = |machine: &mut Machine, number, value| machine.command(&[0, number, value]);
    assert_eq!(set(&mut machine, 0, 0), 0);
    let taken =
        |machine: &mut Machine| [MAC.0, OTHER, GROUP, broadcast].map(|to| machine.takes(to));
    assert_eq!(taken(&mut machine), [true, false, false, true]);
    let table = |addresses: &[[u8; 6]]| {
        [&(addresses.len() as u32).to_le_bytes(), addresses.as_flattened()].concat()
    };
    let tables = |cards: &[[u8; 6]], groups: &[[u8; 6]]| {
        [&[1, 0][..], &table(cards), &table(groups)].concat()
    };
    assert_eq!(machine.command(&tables(&[OTHER], &[GROUP])), 0);
    assert_eq!(taken(&mut machine), [true, true, true, true]);
    assert_eq!(machine.command(&tables(&[], &vec![[1; 6]; filter::TABLE_MAX + 1])), 0);
    assert_eq!(taken(&mut machine), [true, false, true, true]);
    assert_eq!(machine.command(&tables(&[], &[])), 0);
    for (number, expected) in [
        (1, [true, false, true, true]),
        (2, [true, true, false, true]),
        (5, [true, false, false, false]),
        (0, [true, true, true, true]),
    ] {
        assert_eq!(set(&mut machine, number, 1), 0);
        assert_eq!(taken(&mut machine), expected, "mode {number}");
        assert_eq!(set(&mut machine, number, 0), 0);
    }
    assert_eq!(machine.command(&[1, 1, 2, 0, 0, 0, 0, 9]), 0);
    assert_eq!(taken(&mut machine), [false, true, false, true], "it has another address");
    assert_eq!(machine.net.config()[..6], OTHER);
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let mut machine = Machine::new();
    for command in [
        &[][..],
        &[0],
        &[0, 0],
        &[0, 6, 1],
        &[0, 0, 1, 1],
        &[1, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6],
        &[1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[1, 1, 2, 3, 4, 5, 6],
        &[2, 0, 0, 0],
        &[4, 0, 1, 0],
        &[5, 0, 0],
    ] {
        assert_eq!(machine.command(command), 1, "{command:?}");
    }
    assert_eq!(machine.rings.len(), CONTROL + 1);
}

#[test]
fn no_packet_is_taken_while_the_network_is_congested() {
    let mut machine = Machine::new();
    machine.input(DeviceInput::Congestion(true));
    machine.send(&[0; 12], &[1; 60]);
    assert_eq!((machine.sent.len(), machine.used(1)), (0, None));
    assert_eq!(machine.rings[1].used_flags(&machine.bench.memory), 1, "no need to notify");
    machine.input(DeviceInput::Congestion(false));
    assert_eq!((machine.sent.len(), machine.used(1)), (1, Some((0, 0))));
    assert_eq!(machine.rings[1].used_flags(&machine.bench.memory), 0);
}

#[test]
fn a_cable_that_leads_nowhere_carries_nothing() {
    let mut machine = Machine::new();
    assert!(machine.input(DeviceInput::Link(false)), "the driver hears of it");
    assert!(!machine.input(DeviceInput::Link(false)));
    assert_eq!(machine.net.config()[6..8], [0, 0]);
    assert!(!machine.takes(MAC.0));
    machine.send(&[0; 12], &[1; 60]);
    assert_eq!((machine.sent.len(), machine.used(1).is_some()), (0, true));
    machine.input(DeviceInput::Link(true));
    assert!(machine.takes(MAC.0));
}

#[test]
fn streams_are_spread_over_pairs_and_keep_to_theirs() {
    let mut machine = Machine::with_pairs(4);
    for ring in [0, 2, 4, 6] {
        for buffer in 0..RING_SIZE {
            let place = BUFFERS + 0x1_0000 + 128 * u64::from(buffer);
            machine.rings[ring].add(&mut machine.bench, &[(place, 128, true)]);
        }
    }
    let mut packet = vec![0; 60];
    packet[..6].copy_from_slice(&MAC.0);
    packet[12] = 0x08;
    let mut to = |machine: &mut Machine, port: u8| {
        packet[35] = port;
        machine.input(DeviceInput::Packet(Packet::frame(packet.clone())));
        [0, 2, 4, 6].into_iter().find(|ring| machine.used(*ring).is_some()).unwrap()
    };
    assert_eq!(to(&mut machine, 1), 0, "the driver uses one");
    assert_eq!(machine.command(&[4, 0, 4, 0]), 0);
    assert_eq!(machine.command(&[4, 0, 5, 0]), 1);
    assert_eq!(machine.command(&[4, 0, 0, 0]), 1);
    let first: Vec<_> = (0..20).map(|port| to(&mut machine, port)).collect();
    let again: Vec<_> = (0..20).map(|port| to(&mut machine, port)).collect();
    assert_eq!(first, again);
    assert!([0, 2, 4, 6].iter().all(|ring| first.contains(ring)), "{first:?}");
}

#[test]
fn a_saved_card_continues() {
    let mut machine = Machine::new();
    machine.come(MAC.0, 1000);
    machine.command(&[0, 0, 0]);
    let saved = machine.net.save();
    let mut other = Net::new(DeviceId::NIC[0], model(1));
    other.restore(&saved).unwrap();
    assert_eq!(other.state, machine.net.state);
    assert!(!other.takes_input());
    let mut state = machine.net.state.clone();
    state.pairs = 2;
    let damaged = SavedState::new(DeviceId::NIC[0].name(), VERSION, &state);
    assert!(other.restore(&damaged).is_err());
}

proptest! {
    #[test]
    fn whatever_a_driver_does_the_card_survives(
        steps in prop::collection::vec(
            (0_u8..8, any::<u16>(), 0_u64..0x10_1000, any::<u32>(), any::<[u8; 16]>()),
            1..80,
        ),
        features: u64,
    ) {
        let mut machine = Machine::new();
        machine.features &= features;
        for (step, number, address, len, bytes) in steps {
            let ring = usize::from(number % 3);
            match step {
                0 => machine.bench.memory.write(address, &bytes),
                1 => {
                    let buffer = (address, len % 0x2_0000, number & 0x8000 != 0);
                    machine.rings[ring].add(&mut machine.bench, &[buffer]);
                }
                2 => {
                    let second = (address, len % 100, true);
                    let all = [(BUFFERS, u32::from(number), false), second];
                    machine.rings[ring].add(&mut machine.bench, &all);
                }
                3 => {
                    let bytes = vec![bytes[0]; usize::from(number)];
                    let header = *bytes.first_chunk().unwrap_or(&[0; OFFLOAD_HEADER_LEN]);
                    if let Some(packet) = Packet::with_offload_header(header, bytes) {
                        machine.input(DeviceInput::Packet(packet));
                    }
                }
                4 => drop(machine.input(DeviceInput::Congestion(number & 1 != 0))),
                5 => {
                    let ring = &machine.rings[ring];
                    ring.set_available_flags(&mut machine.bench.memory, number);
                }
                6 => drop(machine.work(|net, work| net.write_config(work, address as usize, 7))),
                _ => machine.notify(number % 4),
            }
            prop_assert!(machine.net.state.waiting.len() <= PACKET_MAX);
            machine.sent.clear();
        }
    }
}
