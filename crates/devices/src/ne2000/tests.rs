//! Cards with a driver at their ports.

use proptest::prelude::*;
use ring3_core::bus::{Decoded, PortRange};
use ring3_core::device::{Device, DeviceId, Output, TestBench};
use ring3_core::net::{PartialChecksum, Segmentation, SegmentationKind};

use super::*;
use crate::hammer::{blows_and_inputs, config_blows, hammer, hammer_config};

mod receive;
mod remote;
mod transmit;

const PORT: u16 = 0x300;
const IRQ: u8 = 9;
const OURS: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const OTHER: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x57];

// Registers of page 0.
const COMMAND: u16 = 0x0;
const PAGE_START: u16 = 0x1;
const PAGE_STOP: u16 = 0x2;
const BOUNDARY: u16 = 0x3;
const TRANSMIT_STATUS: u16 = 0x4;
const TRANSMIT_PAGE: u16 = 0x4;
const TRANSMIT_COUNT: u16 = 0x5;
const FIFO: u16 = 0x6;
const INTERRUPTS: u16 = 0x7;
const REMOTE_ADDRESS: u16 = 0x8;
const REMOTE_COUNT: u16 = 0xa;
const RECEIVE: u16 = 0xc;
const TRANSMIT: u16 = 0xd;
const COUNTERS: u16 = 0xd;
const DATA: u16 = 0xe;
const MASK: u16 = 0xf;
/// Of page 1.
const CURRENT: u16 = 0x7;

/// The ring of the driver.
const RING: (u8, u8) = (0x46, 0x80);

/// A card with the driver that has it.
struct Driven {
    bench: TestBench,
    card: Isa,
}

impl Driven {
    /// After a reset.
    fn new() -> Driven {
        let (mut bench, mut card) =
            (TestBench::default(), Isa::new(DeviceId::NIC[0], OURS, PORT, IRQ));
        card.reset(&mut bench.context());
        Driven { bench, card }
    }

    /// Set up to work: words, all packets for this card and for everyone, all interrupts.
    fn started() -> Driven {
        let mut driven = Driven::new();
        driven.write(COMMAND, 0x21);
        driven.write(DATA, 0x49);
        driven.write(RECEIVE, 0x04);
        driven.write(TRANSMIT, 0x00);
        driven.ring(RING.0, RING.1);
        driven.write(INTERRUPTS, 0xff);
        driven.write(MASK, 0x7f);
        driven.on_page(1, |driven| {
            for (register, byte) in (1..).zip(OURS.0) {
                driven.write(register, byte);
            }
        });
        driven.write(COMMAND, 0x22);
        driven
    }

    fn ring(&mut self, start: u8, stop: u8) {
        self.write(PAGE_START, start);
        self.write(PAGE_STOP, stop);
        self.write(BOUNDARY, start);
        self.on_page(1, |driven| driven.write(CURRENT, start + 1));
    }

    fn on_page<T>(&mut self, page: u8, access: impl FnOnce(&mut Driven) -> T) -> T {
        let before = self.read(COMMAND);
        self.write(COMMAND, page << 6 | before & 0x3f | 0x20);
        let result = access(self);
        self.write(COMMAND, before | 0x20);
        result
    }

    fn read(&mut self, register: u16) -> u8 {
        self.bench.read(&mut self.card, PORT + register)
    }

    fn write(&mut self, register: u16, value: u8) {
        self.bench.write(&mut self.card, PORT + register, value);
    }

    fn write_word(&mut self, register: u16, value: u16) {
        self.card.write_port(&mut self.bench.context(), PORT + register, Width::Word, value.into());
    }

    fn data(&mut self, width: Width) -> u32 {
        self.card.read_port(&mut self.bench.context(), PORT + DATA_PORT, width)
    }

    fn write_data(&mut self, width: Width, value: u32) {
        self.card.write_port(&mut self.bench.context(), PORT + DATA_PORT, width, value);
    }

    /// Begins a remote DMA, by `command`, of `count` bytes at `address`.
    fn begin(&mut self, command: u8, address: u16, count: u16) {
        self.write_word(REMOTE_ADDRESS, address);
        self.write_word(REMOTE_COUNT, count);
        self.write(COMMAND, command);
    }

    /// Reads `len` bytes, which are whole words.
    fn get(&mut self, address: u16, len: usize) -> Vec<u8> {
        self.begin(0x0a, address, len as u16);
        let words = (0..len / 2).map(|_| self.data(Width::Word) as u16);
        words.flat_map(u16::to_le_bytes).collect()
    }

    /// Writes whole words.
    fn put(&mut self, address: u16, bytes: &[u8]) {
        self.begin(0x12, address, bytes.len() as u16);
        for word in bytes.chunks_exact(2) {
            self.write_data(Width::Word, u16::from_le_bytes([word[0], word[1]]).into());
        }
    }

    /// Transmits the packet at page 40h.
    fn transmit(&mut self, len: u16) {
        self.write(TRANSMIT_PAGE, 0x40);
        self.write_word(TRANSMIT_COUNT, len);
        self.write(COMMAND, 0x26);
    }

    /// The packets that went out.
    fn sent(&mut self) -> Vec<Packet> {
        let packet = |output| match output {
            Output::Packet { packet, .. } => packet,
            other => panic!("{other:?}"),
        };
        self.bench.outputs.drain(..).map(packet).collect()
    }

    fn input(&mut self, input: DeviceInput) {
        self.card.input(&mut self.bench.context(), input);
    }

    fn receive(&mut self, frame: Vec<u8>) {
        self.input(DeviceInput::Packet(Packet::frame(frame)));
    }

    /// The interrupts that there are, which are cleared, packets or not.
    fn interrupts(&mut self) -> u8 {
        let interrupts = self.read(INTERRUPTS);
        self.write(INTERRUPTS, interrupts);
        self.write(INTERRUPTS, interrupts);
        interrupts
    }

    fn current(&mut self) -> u8 {
        self.on_page(1, |driven| driven.read(CURRENT))
    }

    fn line(&self) -> bool {
        self.bench.irq.is_high(IRQ)
    }
}

/// A frame of `len` bytes for `destination`.
fn frame(destination: [u8; 6], len: usize) -> Vec<u8> {
    let payload = (0..len - 12).map(|n| (n * 7 + len) as u8);
    destination.into_iter().chain(OTHER).chain(payload).collect()
}

#[test]
fn the_prom_contains_the_address() {
    let mut driven = Driven::new();
    driven.write(DATA, 0x48);
    driven.begin(0x0a, 0, 32);
    let prom: Vec<_> = (0..32).map(|_| driven.data(Width::Byte) as u8).collect();
    assert!(prom.chunks(2).all(|pair| pair[0] == pair[1]));
    let bytes: Vec<_> = prom.into_iter().step_by(2).collect();
    assert_eq!((&bytes[..6], &bytes[14..]), (&OURS.0[..], &b"WW"[..]));
    assert_eq!(driven.read(INTERRUPTS), 0x40, "it has come to its end");
    assert_eq!(driven.data(Width::Byte) as u8, 0xff, "there is no more");
}

#[test]
fn a_reset_stops_the_chip() {
    for stop in [
        |driven: &mut Driven| {
            driven.read(0x1f);
        },
        |driven: &mut Driven| driven.write(0x18, 0),
    ] {
        let mut driven = Driven::started();
        driven.receive(frame(OURS.0, 60));
        assert!(driven.line());
        stop(&mut driven);
        assert_eq!((driven.read(COMMAND), driven.line()), (0x21, false));
        assert_eq!(driven.read(INTERRUPTS), 0x81);
        driven.write(INTERRUPTS, 0xff);
        assert_eq!(driven.read(INTERRUPTS), 0x80, "only a start clears that");
        driven.write(COMMAND, 0x20);
        assert_eq!(driven.read(INTERRUPTS), 0x80);
        driven.write(COMMAND, 0x22);
        assert_eq!(driven.read(INTERRUPTS), 0x00);
    }
}

#[test]
fn registers_are_read_where_the_data_sheet_says() {
    let mut driven = Driven::new();
    for (register, value) in [(PAGE_START, 0x46), (PAGE_STOP, 0x60), (BOUNDARY, 0x47)] {
        driven.write(register, value);
    }
    for (register, value) in [(TRANSMIT_PAGE, 0x41), (RECEIVE, 0x1f), (TRANSMIT, 0x02)] {
        driven.write(register, value);
    }
    for (register, value) in [(DATA, 0x49), (MASK, 0x55), (0x8, 0x34), (0x9, 0x12)] {
        driven.write(register, value);
    }
    assert_eq!([BOUNDARY, 0x8, 0x9, 0x5].map(|at| driven.read(at)), [0x47, 0x34, 0x12, 0]);
    driven.on_page(2, |driven| {
        let seen = [0x1, 0x2, 0x4, 0xc, 0xd, 0xe, 0xf].map(|at| driven.read(at));
        assert_eq!(seen, [0x46, 0x60, 0x41, 0xdf, 0xe2, 0xc9, 0xd5]);
        for (register, value) in [(0x1, 0x78), (0x2, 0x56), (0x3, 0x9a), (0x5, 0xbc)] {
            driven.write(register, value);
        }
        assert_eq!([0x3, 0x5, 0x6, 0x7].map(|at| driven.read(at)), [0x9a, 0xbc, 0x56, 0x78]);
    });
    assert_eq!([0x1, 0x2].map(|at| driven.read(at)), [0x78, 0x56]);
    driven.on_page(1, |driven| {
        for register in 1..16 {
            driven.write(register, 0xa0 | register as u8);
        }
        for register in 1..16 {
            assert_eq!(driven.read(register), 0xa0 | register as u8);
        }
    });
    driven.on_page(3, |driven| assert_eq!(driven.read(0x5), 0xff));
    assert_eq!(driven.read(COMMAND), 0x21);
}

fn inputs() -> impl Strategy<Value = DeviceInput> {
    let address = prop_oneof![Just(OURS.0), Just([0xff; 6]), any::<[u8; 6]>()];
    let bytes = (address, proptest::collection::vec(any::<u8>(), 0..3000))
        .prop_map(|(address, rest)| [&address[..], &rest].concat());
    let checksum = (any::<u16>(), 0..40_u16)
        .prop_map(|(start, offset)| PartialChecksum { start: start % 2000, offset });
    let cut = (1..2000_u16).prop_map(|size| Segmentation {
        kind: SegmentationKind::TcpV4,
        size,
        congestion: false,
    });
    let packet = (bytes, proptest::option::of(checksum), proptest::option::of(cut));
    prop_oneof![
        8 => packet.prop_map(|(bytes, checksum, segmentation)| {
            DeviceInput::Packet(Packet { bytes, checksum, segmentation })
        }),
        1 => any::<bool>().prop_map(DeviceInput::Link),
        1 => any::<bool>().prop_map(DeviceInput::Congestion),
    ]
}

/// All ports; those that matter most, the command register and the data port, more than once.
const PORTS_TO_HIT: &[u16] = &[
    0x300, 0x300, 0x300, 0x300, 0x301, 0x302, 0x303, 0x303, 0x304, 0x305, 0x306, 0x307, 0x307,
    0x308, 0x309, 0x30a, 0x30b, 0x30c, 0x30c, 0x30d, 0x30e, 0x30f, 0x310, 0x310, 0x310, 0x317,
    0x31f,
];

proptest! {
    #[test]
    fn any_accesses_are_handled_without_a_panic(blows in blows_and_inputs(PORTS_TO_HIT, inputs()), starts: bool) {
        let mut card = if starts { Driven::started().card } else { Driven::new().card };
        hammer(&mut card, &mut Isa::new(DeviceId::NIC[0], OURS, PORT, IRQ), blows);
    }

    #[test]
    fn any_configuration_is_handled_without_a_panic(blows in config_blows()) {
        let mut bench = TestBench::default();
        let mut card = Rtl8029::new(DeviceId::NIC[0], OURS, 3);
        card.reset(&mut bench.context());
        hammer_config(&mut card, &mut bench, 0, blows);
        let state = card.save();
        let mut fresh = Rtl8029::new(DeviceId::NIC[0], OURS, 3);
        fresh.restore(&state).unwrap();
        prop_assert_eq!(fresh.save(), state);
    }
}

#[test]
fn the_state_of_another_kind_of_card_is_refused_and_an_address_stays() {
    let state = Driven::started().card.save();
    let other = || Isa::new(DeviceId::NIC[0], MacAddress(OTHER), PORT, IRQ);
    let (mut first, mut second) = (other(), other());
    first.restore(&state).unwrap();
    assert_ne!(first.save(), state, "the PROM has another address");
    second.restore(&first.save()).unwrap();
    assert_eq!(second.save(), first.save());
    assert!(Isa::new(DeviceId::NIC[0], OURS, 0x320, 5).restore(&state).is_ok());
    assert!(Rtl8029::new(DeviceId::NIC[0], OURS, 3).restore(&state).is_err());
}

#[test]
fn on_pci_it_is_an_rtl8029() {
    let mut bench = TestBench::default();
    let mut card = Rtl8029::new(DeviceId::NIC[0], OURS, 3);
    card.reset(&mut bench.context());
    bench.irq.route(2, Some(11));
    assert_eq!(card.read_config(&mut bench.context(), 0, 0, Width::Dword), 0x8029_10ec);
    card.write_config(&mut bench.context(), 0, 0x10, Width::Dword, 0xffff_ffff);
    assert_eq!(card.read_config(&mut bench.context(), 0, 0x10, Width::Dword), 0xffff_ffe1);
    card.write_config(&mut bench.context(), 0, 0x10, Width::Dword, 0xc020);
    card.write_config(&mut bench.context(), 0, 4, Width::Word, 1);
    let claimed = bench.claims.last().unwrap().decoded;
    assert_eq!(claimed, Decoded::Ports(PortRange::new(0xc020, 32)));
    let port = |register| 0xc020 + register;
    assert_eq!([0xa, 0xb].map(|register| bench.read(&mut card, port(register))), *b"PC");

    // Page 3: the configuration is written only where software says that it wants to.
    bench.write(&mut card, port(0), 0xe1);
    let page3 = |bench: &mut TestBench, card: &mut Rtl8029| {
        [0x1, 0x3, 0x5, 0x6, 0xe, 0xf].map(|register| bench.read(card, port(register)))
    };
    assert_eq!(page3(&mut bench, &mut card), [0, 0, 0x40, 0x40, 0x29, 0x80]);
    bench.write(&mut card, port(6), 0x06);
    assert_eq!(bench.read(&mut card, port(6)), 0x40);
    bench.write(&mut card, port(1), 0xc0);
    bench.write(&mut card, port(5), 0x80);
    bench.write(&mut card, port(6), 0x06);
    assert_eq!(page3(&mut bench, &mut card), [0xc0, 0, 0x80, 0x06, 0x29, 0x80]);

    // A remote DMA of no bytes is complete, and its interrupt goes by INTA#.
    bench.write(&mut card, port(0), 0x21);
    bench.write(&mut card, port(MASK), 0x40);
    bench.write(&mut card, port(0), 0x0a);
    assert!(bench.irq.is_high(11));
    bench.write(&mut card, port(INTERRUPTS), 0x40);
    assert!(!bench.irq.is_high(11));
}
