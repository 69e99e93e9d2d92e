use proptest::prelude::*;

use super::*;
use crate::hammer::{blows, hammer};
use ring3_core::device::{DeviceId, TestBench};

/// A device that has so many bytes to give or to take: 1, 2, 3 and so on.
struct Partner {
    left: usize,
    taken: Vec<u8>,
}

impl Partner {
    fn new(left: usize) -> Partner {
        Partner { left, taken: Vec::new() }
    }
}

impl Device for Partner {
    fn id(&self) -> DeviceId {
        DeviceId::FLOPPY
    }

    fn reset(&mut self, _: &mut Context<'_>) {}

    fn dma(&mut self, _: &mut Context<'_>, _: u8, bytes: DmaBytes<'_>) -> usize {
        let moved = match bytes {
            DmaBytes::FromDevice(bytes) => {
                let moved = self.left.min(bytes.len());
                for (index, byte) in bytes[..moved].iter_mut().enumerate() {
                    *byte = (index as u8).wrapping_add(1);
                }
                moved
            }
            DmaBytes::ToDevice(bytes) => {
                let moved = self.left.min(bytes.len());
                self.taken.extend(&bytes[..moved]);
                moved
            }
        };
        self.left -= moved;
        moved
    }

    fn save(&self) -> SavedState {
        SavedState::new("partner", 1, &0)
    }

    fn restore(&mut self, _: &SavedState) -> Result<(), RestoreError> {
        Ok(())
    }
}

struct Machine {
    bench: TestBench,
    dma: Dma8237,
}

impl Machine {
    /// One whose channel 2 (page 1, address `address`, `bytes` bytes) has `mode` and is not masked.
    fn of_channel_2(mode: u8, address: u16, bytes: u16) -> Machine {
        let mut machine = Machine { bench: TestBench::default(), dma: Dma8237::default() };
        let [address_low, address_high] = address.to_le_bytes();
        let [count_low, count_high] = (bytes - 1).to_le_bytes();
        machine.write(&[(0x0b, mode | 2), (0x0c, 0), (0x04, address_low), (0x04, address_high)]);
        machine.write(&[(0x05, count_low), (0x05, count_high), (0x81, 1), (0x0a, 2)]);
        machine
    }

    fn write(&mut self, writes: &[(u16, u8)]) {
        for (port, value) in writes {
            self.bench.write(&mut self.dma, *port, *value);
        }
    }

    fn read(&mut self, port: u16) -> u8 {
        self.bench.read(&mut self.dma, port)
    }

    /// An address or a count.
    fn read_pair(&mut self, port: u16) -> u16 {
        self.write(&[(0x0c, 0)]);
        u16::from_le_bytes([self.read(port), self.read(port)])
    }

    /// What the board does after a call.
    fn serve(&mut self, partner: &mut Partner, channel: u8) -> bool {
        self.bench.dma.set(TestBench::DEVICE, channel, partner.left > 0);
        let ready = self.dma.ready(&self.bench.dma).any(|ready| ready == channel);
        if ready {
            self.dma.serve(&mut self.bench.context(), channel, Some(partner));
            self.bench.dma.set(TestBench::DEVICE, channel, partner.left > 0);
        }
        ready
    }

    fn memory<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.bench.memory.read(address, &mut bytes);
        bytes
    }
}

#[test]
fn a_write_transfer_ends_with_terminal_count_and_a_mask() {
    let mut machine = Machine::of_channel_2(0x44, 0x1234, 4);
    let mut partner = Partner::new(3);
    assert!(machine.serve(&mut partner, 2));
    assert_eq!(machine.memory(0x11233), [0, 1, 2, 3, 0]);
    assert_eq!((machine.read_pair(4), machine.read_pair(5)), (0x1237, 0));
    assert_eq!(machine.read(0x08), 0, "no terminal count yet");
    partner.left = 5;
    assert!(machine.serve(&mut partner, 2));
    assert_eq!(partner.left, 4);
    assert_eq!((machine.read_pair(4), machine.read_pair(5)), (0x1238, 0xffff));
    assert_eq!(machine.read(0x08), 0x44, "the request and the terminal count");
    assert_eq!(machine.read(0x08), 0x40, "reading clears the terminal count");
    assert!(!machine.serve(&mut partner, 2));
    assert_eq!(machine.read(0x0f), 0xff);
}

#[test]
fn a_read_transfer_reads_memory() {
    let mut machine = Machine::of_channel_2(0x48, 0x0010, 4);
    machine.bench.memory.write(0x10010, &[9, 8, 7, 6, 5]);
    let mut partner = Partner::new(10);
    machine.serve(&mut partner, 2);
    assert_eq!(partner.taken, [9, 8, 7, 6]);
}

#[test]
fn a_verify_transfer_moves_addresses_alone() {
    let mut machine = Machine::of_channel_2(0x40, 0x0010, 4);
    machine.serve(&mut Partner::new(4), 2);
    assert_eq!(machine.memory(0x10010), [0; 4]);
    assert_eq!((machine.read_pair(4), machine.read(0x08)), (0x0014, 0x04));
}

#[test]
fn addresses_wrap_within_their_page_and_go_down_too() {
    let mut machine = Machine::of_channel_2(0x44, 0xfffe, 4);
    machine.serve(&mut Partner::new(4), 2);
    assert_eq!((machine.memory(0x1fffe), machine.memory(0x10000)), ([1, 2, 0, 0], [3, 4]));
    let mut machine = Machine::of_channel_2(0x64, 0x0001, 4);
    machine.serve(&mut Partner::new(4), 2);
    assert_eq!((machine.memory(0x1fffe), machine.memory(0x10000)), ([4, 3], [2, 1]));
    assert_eq!(machine.read_pair(4), 0xfffd);
}

#[test]
fn autoinitialization_starts_over() {
    let mut machine = Machine::of_channel_2(0x54, 0x2000, 2);
    for _ in 0..3 {
        assert!(machine.serve(&mut Partner::new(2), 2));
        assert_eq!((machine.read_pair(4), machine.read_pair(5)), (0x2000, 1));
        assert_eq!(machine.read(0x08), 0x04);
    }
}

#[test]
fn words_move_on_the_second_controller() {
    let mut machine = Machine { bench: TestBench::default(), dma: Dma8237::default() };
    // Channel 5: page 03h of which bit 0 does not count, word address 8001h, 2 words.
    machine.write(&[(0xd6, 0x45), (0xd8, 0), (0xc4, 0x01), (0xc4, 0x80)]);
    machine.write(&[(0xc6, 0x01), (0xc6, 0x00), (0x8b, 3), (0xd4, 1)]);
    machine.serve(&mut Partner::new(4), 5);
    assert_eq!(machine.memory(0x30002), [1, 2, 3, 4]);
    assert_eq!(machine.read(0xd0), 0x02);
    machine.write(&[(0xd8, 0)]);
    assert_eq!([machine.read(0xc4), machine.read(0xc5)], [0x03, 0x80]);
}

#[test]
fn masks_the_cascade_and_the_command_hold_requests_back() {
    let mut machine = Machine::of_channel_2(0x54, 0, 1);
    for (held, released) in [
        ((0x0a, 0x06), (0x0a, 0x02)),
        ((0x0f, 0x04), (0x0f, 0x00)),
        ((0x0f, 0x04), (0x0e, 0x00)),
        ((0x08, 0x04), (0x08, 0x00)),
        ((0xd4, 0x04), (0xd4, 0x00)),
        ((0xd0, 0x04), (0xd0, 0x00)),
        ((0xd6, 0x00), (0xd6, 0xc0)),
        ((0x0d, 0x00), (0x0e, 0x00)),
    ] {
        machine.write(&[held]);
        assert!(!machine.serve(&mut Partner::new(1), 2), "{held:x?}");
        assert_eq!(machine.read(0x08) & 0x40, 0x40, "the request shows");
        machine.write(&[released]);
        assert!(machine.serve(&mut Partner::new(1), 2), "{released:x?}");
    }
}

#[test]
fn software_may_request_a_transfer_without_a_device() {
    let mut machine = Machine::of_channel_2(0x84, 0x0100, 3);
    machine.write(&[(0x0f, 0x0f), (0x09, 0x06)]);
    assert_eq!(machine.dma.ready(&machine.bench.dma).collect::<Vec<_>>(), [2]);
    machine.dma.serve(&mut machine.bench.context(), 2, None);
    assert_eq!(machine.memory(0x10100), [0xff, 0xff, 0xff, 0]);
    assert_eq!(machine.dma.ready(&machine.bench.dma).count(), 0);
    assert_eq!(machine.read(0x08), 0x04);
    machine.write(&[(0x09, 0x06), (0x09, 0x02)]);
    assert_eq!(machine.dma.ready(&machine.bench.dma).count(), 0);
}

#[test]
fn a_write_sets_base_and_current_by_bytes() {
    let mut machine = Machine { bench: TestBench::default(), dma: Dma8237::default() };
    machine.write(&[(0x0c, 0), (0x06, 0x34), (0x06, 0x12), (0x07, 0x78)]);
    machine.write(&[(0x0d, 0)]);
    assert_eq!(machine.read_pair(6), 0x1234, "master clear keeps addresses");
    assert_eq!(machine.read_pair(7), 0x0078);
    for page in 0x80..0x90 {
        machine.write(&[(page, page as u8)]);
        assert_eq!(machine.read(page), page as u8);
    }
}

#[test]
fn a_saved_controller_continues_and_damage_is_refused() {
    let machine = Machine::of_channel_2(0x54, 0x2000, 2);
    let mut fresh = Dma8237::default();
    fresh.restore(&machine.dma.save()).unwrap();
    assert_eq!(fresh, machine.dma);
    let mut damaged = machine.dma;
    damaged.controllers[0].mask = 0x10;
    let refused = fresh.restore(&damaged.save());
    assert!(matches!(refused, Err(RestoreError::Damaged { .. })));
}

/// A port of each kind of register, of both controllers.
const PORTS: [u16; 22] = [
    0x00, 0x01, 0x04, 0x05, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x81, 0x8b, 0xc0, 0xc4,
    0xc6, 0xd0, 0xd4, 0xd6, 0xd8, 0xde,
];

proptest! {
    #[test]
    fn any_accesses_leave_a_state_that_can_be_saved(blows in blows(&PORTS)) {
        hammer(&mut Dma8237::default(), &mut Dma8237::default(), blows);
    }

    #[test]
    fn any_set_up_transfers_within_bounds(
        writes in prop::collection::vec((prop::sample::select(&PORTS[..]), any::<u8>()), 0..60),
        left in 0..100_000_usize,
        lines in any::<u8>(),
    ) {
        let mut machine = Machine { bench: TestBench::default(), dma: Dma8237::default() };
        machine.write(&writes);
        for channel in 0..8 {
            machine.bench.dma.set(TestBench::DEVICE, channel, lines >> channel & 1 != 0);
        }
        for channel in machine.dma.ready(&machine.bench.dma) {
            let mut partner = Partner::new(left);
            machine.dma.serve(&mut machine.bench.context(), channel, Some(&mut partner));
        }
        let saved = machine.dma.save();
        prop_assert!(Dma8237::default().restore(&saved).is_ok());
    }
}
