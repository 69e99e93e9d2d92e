//! Two guests on a switch, whose drivers are these tests: good drivers, and one that writes random values.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use ring3_core::net::{MacAddress, Packet, PartialChecksum, Segmentation, SegmentationKind};
use ring3_vhost::queue::{Setting, feature};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::features::Features;
use super::receiver::{Copying, Receiver};
use super::ring::Ring;
use super::transmitter::Transmitter;
use crate::card::CardOwner;
use crate::switch::port::{Port, Switch, SwitchOptions};

/// Entries of a queue.
const SIZE: u16 = 16;
/// Addresses of the parts of the receive queue, and the distance to those of the transmit queue.
const PARTS: [u64; 3] = [0, 0x200, 0x300];
const TRANSMIT: u64 = 0x400;
/// Address of the buffers, which follow the queues.
const BUFFERS: u64 = 0x1000;
const MEMORY: usize = 1 << 20;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

const MERGEABLE: u64 = 1 << 15;

/// A guest, which is its own driver.
struct Guest {
    memory: Arc<GuestMemoryMmap>,
    port: Arc<Port>,
    receiver: Arc<Receiver>,
    transmitter: Transmitter,
    /// Descriptors that were used, and entries that were offered, of both queues.
    taken: [u16; 2],
    offered: [u16; 2],
}

impl Guest {
    fn new(switch: &Switch, features: Features) -> Guest {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        let memory = Arc::new(memory);
        let receiver = Arc::<Receiver>::default();
        let slot = Mutex::new(None);
        let (connection, _other) = UnixStream::pair().unwrap();
        let admitted = switch.admit(connection).unwrap().unwrap();
        switch
            .add_shared("guest", admitted, &receiver, |port| {
                *slot.lock().unwrap() = Some(port);
                Ok(Box::new(Copying(Arc::clone(&receiver))))
            })
            .unwrap();
        let port = slot.into_inner().unwrap().unwrap();
        let ring = |begin| {
            let [descriptors, available, used] = PARTS.map(|part| GuestAddress(begin + part));
            let setting = Setting {
                size: SIZE,
                descriptors,
                available,
                used,
                next: 0,
                has_event_index: features.0 & feature::EVENT_INDEX != 0,
                call: None,
                error: None,
                memory: Arc::clone(&memory),
            };
            Ring::new(setting).unwrap()
        };
        receiver.start(ring(0), features);
        let transmitter = Transmitter::new(ring(TRANSMIT), features, Arc::clone(&port));
        Guest { memory, port, receiver, transmitter, taken: [0; 2], offered: [0; 2] }
    }

    /// Makes a chain of buffers available in queue `queue`.
    fn offer(&mut self, queue: usize, buffers: &[(u64, u32)], flags: u16) {
        let begin = queue as u64 * TRANSMIT;
        let head = self.taken[queue] % SIZE;
        for (index, (at, len)) in buffers.iter().enumerate() {
            let here = self.taken[queue] % SIZE;
            self.taken[queue] += 1;
            let has_next = index + 1 < buffers.len();
            let flags = flags | if has_next { NEXT } else { 0 };
            let at_descriptor = GuestAddress(begin + u64::from(here) * 16);
            let next = self.taken[queue] % SIZE;
            self.memory.write_obj(*at, at_descriptor).unwrap();
            self.memory.write_obj(*len, GuestAddress(at_descriptor.0 + 8)).unwrap();
            let words = u32::from(flags) | u32::from(next) << 16;
            self.memory.write_obj(words, GuestAddress(at_descriptor.0 + 12)).unwrap();
        }
        let available = begin + PARTS[1];
        let entry = u64::from(self.offered[queue] % SIZE);
        self.memory.write_obj(head, GuestAddress(available + 4 + 2 * entry)).unwrap();
        self.offered[queue] += 1;
        self.memory.write_obj(self.offered[queue], GuestAddress(available + 2)).unwrap();
    }

    /// Sends a packet from two buffers.
    fn send(&mut self, packet: &Packet) {
        let bytes = [&packet.offload_header()[..], &[0; 2], &packet.bytes].concat();
        let at = BUFFERS + (MEMORY / 2) as u64;
        self.memory.write_slice(&bytes, GuestAddress(at)).unwrap();
        let (first, rest) = (40, bytes.len() as u32 - 40);
        self.offer(1, &[(at, first), (at + u64::from(first), rest)], 0);
        self.transmitter.work();
    }

    /// Returns the used entries of the receive queue: descriptor and length.
    fn used(&self) -> Vec<(u32, u32)> {
        let index: u16 = self.memory.read_obj(GuestAddress(PARTS[2] + 2)).unwrap();
        let entry = |index: u16| {
            let at = PARTS[2] + 4 + 8 * u64::from(index % SIZE);
            let read = |at| self.memory.read_obj(GuestAddress(at)).unwrap();
            (read(at), read(at + 4))
        };
        (0..index).map(entry).collect()
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }
}

fn switch() -> Switch {
    Switch::new(SwitchOptions::default())
}

fn address(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

/// Returns a packet of `len` bytes from one address to another, which are given by their last bytes.
fn packet(from: u8, to: u8, len: usize) -> Packet {
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0];
    bytes.extend((bytes.len()..len).map(|at| (at % 251) as u8));
    Packet::frame(bytes)
}

/// Returns a packet that must be cut.
fn large(from: u8, to: u8, len: usize) -> Packet {
    let mut packet = packet(from, to, len);
    packet.bytes[14 + 20 + 12] = 0x50;
    packet.checksum = Some(PartialChecksum { start: 34, offset: 16 });
    let kind = SegmentationKind::TcpV4;
    packet.segmentation = Some(Segmentation { kind, size: 1448, congestion: false });
    packet
}

/// Returns two guests that know of each other.
fn pair(features: Features) -> (Switch, Guest, Guest) {
    let switch = switch();
    let guests = [1, 2].map(|number| {
        let guest = Guest::new(&switch, features);
        guest.port.told_address(address(number));
        guest
    });
    let [first, second] = guests;
    (switch, first, second)
}

#[test]
fn a_packet_is_copied_unchanged_from_one_memory_to_the_other() {
    let (switch, mut first, mut second) = pair(Features::OFFERED);
    let sent = large(1, 2, 9000);
    for index in 0..10 {
        second.offer(0, &[(BUFFERS + index * 2048, 1500)], WRITE);
    }
    first.send(&sent);
    // All but the last are full.
    let used = second.used();
    assert_eq!(
        used.iter().map(|(_, len)| *len).collect::<Vec<_>>(),
        [1500, 1500, 1500, 1500, 1500, 1500, 12]
    );
    let chunks = used
        .iter()
        .map(|(index, len)| second.bytes(BUFFERS + u64::from(*index) * 2048, *len as usize));
    let received: Vec<u8> = chunks.flatten().collect();
    let expected = [&sent.offload_header()[..], &7_u16.to_le_bytes(), &sent.bytes].concat();
    assert!(received == expected);
    let ports = switch.status().ports;
    assert_eq!((ports[0].received, ports[0].received_bytes), (1, 9000));
    assert_eq!((ports[1].sent, ports[1].sent_bytes), (1, 9000));
}

#[test]
fn a_guest_without_offloads_gets_frames() {
    let none = Features(Features::OFFERED.0 & !0x7fff & !MERGEABLE);
    let (_switch, mut first, mut second) = pair(none);
    for index in 0..10 {
        second.offer(0, &[(BUFFERS + index * 2048, 2000)], WRITE);
    }
    let sent = large(1, 2, 54 + 3 * 1448);
    first.send(&sent);
    assert_eq!(second.used().iter().map(|(_, len)| *len).collect::<Vec<_>>(), [12 + 54 + 1448; 3]);
    assert_eq!(second.bytes(BUFFERS, 12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(second.bytes(BUFFERS + 12 + 54, 1448), sent.bytes[54..54 + 1448]);
}

#[test]
fn packets_wait_for_buffers_in_their_order() {
    let (_switch, mut first, mut second) = pair(Features::OFFERED);
    let sender = thread::spawn(move || {
        for len in 100..105 {
            first.send(&packet(1, 2, len));
        }
        first
    });
    for index in 0..5 {
        second.offer(0, &[(BUFFERS + index * 2048, 2000)], WRITE);
        // This is the work of the thread that a kick wakes.
        while second.used().len() <= index as usize {
            if second.receiver.resume() {
                second.port.relieve();
            }
            thread::yield_now();
        }
    }
    drop(sender.join().unwrap());
    let lens: Vec<_> = second.used().iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [112, 113, 114, 115, 116]);
}

/// A packet waits for more buffers than there are. The guest gives one more, and must have been asked to tell so: with an
/// event index it kicks only if the index is that of the new entry (virtio 1.2, 2.7.10.1).
#[test]
fn a_guest_with_too_few_buffers_is_asked_for_more() {
    let (_switch, first, mut second) = pair(Features::OFFERED);
    let avail_event = |guest: &Guest| -> u16 {
        guest.memory.read_obj(GuestAddress(PARTS[2] + 4 + 8 * u64::from(SIZE))).unwrap()
    };
    for index in 0..3 {
        second.offer(0, &[(BUFFERS + index * 2048, 1500)], WRITE);
    }
    // Without a flush, which would wait.
    first.port.take(large(1, 2, 9000));
    for index in 3..7 {
        assert_eq!(avail_event(&second), second.offered[0]);
        assert_eq!(second.used(), []);
        second.offer(0, &[(BUFFERS + index * 2048, 1500)], WRITE);
        assert_eq!(second.receiver.resume(), index == 6);
    }
    assert_eq!(second.used().len(), 7);
}

/// A guest gives no buffers for so long that packets for it are given up. After that nobody waits for it any more.
#[test]
fn senders_do_not_wait_for_a_guest_that_has_been_given_up() {
    let (_switch, mut first, mut second) = pair(Features::OFFERED);
    // One waits for the guest until it is given up. The next one finds it so.
    for _ in 0..2 {
        first.send(&packet(1, 2, 100));
    }
    for index in 0..4 {
        second.offer(0, &[(BUFFERS + index * 2048, 2000)], WRITE);
        assert!(!second.port.is_slow());
        first.send(&packet(1, 2, 100));
    }
    assert_eq!(second.used().len(), 4);
}

#[test]
fn spoofed_packets_and_bad_headers_are_dropped() {
    let (switch, mut first, mut second) = pair(Features::OFFERED);
    second.offer(0, &[(BUFFERS, 2000)], WRITE);
    first.send(&packet(7, 2, 60));
    let mut bad = packet(1, 2, 60);
    bad.checksum = Some(PartialChecksum { start: 59, offset: 2 });
    first.send(&bad);
    assert_eq!(second.used(), []);
    let refused = switch.status().ports[0].refused.clone();
    assert_eq!((refused.get("spoofed"), refused.get("malformed")), (Some(&1), Some(&1)));
}

/// Returns a value that sometimes has a meaning in a ring.
fn word() -> impl Strategy<Value = u16> {
    prop_oneof![0..SIZE * 2, any::<u16>(), (0_u16..16).prop_map(|bit| 1 << bit)]
}

proptest! {
    /// A guest writes random values to its queues while others send to it: nothing panics or hangs, and the
    /// others continue.
    #[test]
    fn a_hostile_guest_does_not_disturb_the_others(
        steps in prop::collection::vec((0_u64..0x400, word(), 0_u8..4), 1..200),
        features in any::<u64>(),
    ) {
        let (switch, mut first, mut second) = pair(Features::OFFERED);
        let features = Features(features & Features::OFFERED.0);
        let mut hostile = Guest::new(&switch, features);
        hostile.port.told_address(address(3));
        for index in 0..4 {
            hostile.offer(0, &[(BUFFERS + index * 4096, 3000)], WRITE);
        }
        for (at, value, act) in steps {
            hostile.memory.write_obj(value, GuestAddress(at * 2)).unwrap();
            match act {
                0 => hostile.transmitter.work(),
                1 => { hostile.receiver.resume(); }
                // Without a flush: if there are no buffers, nothing waits for them here.
                2 => first.port.take(packet(1, 3, 2000)),
                _ => {}
            }
        }
        hostile.receiver.stop();
        second.offer(0, &[(BUFFERS, 2000)], WRITE);
        first.send(&packet(1, 2, 600));
        prop_assert_eq!(second.used().last().map(|(_, len)| *len), Some(612));
    }
}

/// Changes that a guest makes while a packet is copied never reach its addresses.
#[test]
fn a_guest_cannot_evade_the_filter_by_changing_its_memory() {
    let (switch, mut first, mut second) = pair(Features::OFFERED);
    let is_over = Arc::new(AtomicBool::new(false));
    let (memory, ends) = (Arc::clone(&first.memory), Arc::clone(&is_over));
    let source = BUFFERS + (MEMORY / 2) as u64 + 12 + 11;
    let changing = thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            for value in [1_u8, 9] {
                memory.write_obj(value, GuestAddress(source)).unwrap();
            }
        }
    });
    let mut seen = 0;
    for _ in 0..5000 {
        second.offer(0, &[(BUFFERS, 2000)], WRITE);
        first.send(&packet(1, 2, 1500));
        let all: u16 = second.memory.read_obj(GuestAddress(PARTS[2] + 2)).unwrap();
        if all == seen {
            // The buffer remains for the next packet.
            second.offered[0] -= 1;
            second.taken[0] -= 1;
        } else {
            seen = all;
            assert_eq!(second.bytes(BUFFERS + 12 + 11, 1), [1]);
        }
    }
    is_over.store(true, Ordering::Relaxed);
    changing.join().unwrap();
    // On a busy host the other thread may not have run at all.
    let refused = switch.status().ports[0].refused.get("spoofed").copied().unwrap_or(0);
    assert_eq!(u64::from(seen) + refused, 5000);
}
