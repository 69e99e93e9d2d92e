//! Packets that come in.

use super::*;

/// The place of a group in the hash table, as the data sheet has it: the highest bits of the check sequence
/// after the address, whose bits come in the order of the wire.
fn hash(address: [u8; 6]) -> u8 {
    let bits = address.into_iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
    let check = bits.fold(u32::MAX, |check, bit| {
        let feedback = check >> 31 != u32::from(bit);
        check << 1 ^ if feedback { 0x04c1_1db7 } else { 0 }
    });
    (check >> 26) as u8
}

#[test]
fn a_packet_is_stored_with_a_header() {
    let mut driven = Driven::started();
    let frame = frame(OURS.0, 100);
    driven.receive(frame.clone());
    assert!(driven.line());
    assert_eq!((driven.interrupts(), driven.read(RECEIVE), driven.current()), (0x01, 0x01, 0x48));
    let check = crc32fast::hash(&frame).to_le_bytes();
    let stored = [&[0x01, 0x48, 104, 0][..], &frame, &check].concat();
    assert_eq!(driven.get(0x4700, 108), stored);
    // The next one takes two pages, with a byte in the second one.
    driven.receive(super::frame([0xff; 6], 249));
    assert_eq!((driven.read(RECEIVE), driven.current()), (0x21, 0x4a));
    assert_eq!(driven.get(0x4800, 4), [0x21, 0x4a, 253, 0]);
    assert_eq!([0x1, 0x2].map(|register| driven.read(register)), [0x01, 0x49]);
}

#[test]
fn packets_interrupt_until_they_are_read() {
    let mut driven = Driven::started();
    let mut page = driven.read(BOUNDARY);
    for _ in 0..3 {
        driven.receive(frame(OURS.0, 60));
    }
    // A driver that clears it before it reads: it is clear when all is read.
    driven.write(INTERRUPTS, 0x01);
    for is_left in [true, true, false] {
        assert!(driven.line());
        page += 1;
        driven.write(BOUNDARY, page);
        assert_eq!(driven.line(), is_left);
    }
    // One that clears it after it has read some.
    for _ in 0..2 {
        driven.receive(frame(OURS.0, 60));
    }
    driven.write(BOUNDARY, page + 1);
    driven.write(INTERRUPTS, 0x01);
    assert!(driven.line());
    driven.write(BOUNDARY, page + 2);
    driven.write(INTERRUPTS, 0x01);
    assert!(!driven.line());
    // A driver that clears it and reads nothing is not interrupted forever.
    driven.receive(frame(OURS.0, 60));
    driven.write(INTERRUPTS, 0x01);
    assert!(driven.line());
    driven.write(INTERRUPTS, 0x01);
    assert!(!driven.line());
    driven.receive(frame(OURS.0, 60));
    assert!(driven.line());
}

#[test]
fn short_frames_are_filled_up() {
    let mut driven = Driven::started();
    driven.receive(frame(OURS.0, 42));
    let stored = driven.get(0x4700, 68);
    assert_eq!(stored[..4], [0x01, 0x48, 64, 0]);
    assert_eq!(stored[4 + 42..4 + 60], [0; 18]);
    // What has no header is no frame, and taken only where runts are.
    driven.receive(OURS.0.to_vec());
    assert_eq!(driven.current(), 0x48);
    driven.write(RECEIVE, 0x06);
    driven.receive(OURS.0.to_vec());
    assert_eq!(driven.get(0x4800, 4), [0x01, 0x49, 10, 0]);
    driven.receive(vec![0x52]);
    driven.receive(frame(OURS.0, 1519));
    assert_eq!(driven.current(), 0x49);
}

#[test]
fn the_ring_goes_round() {
    let mut driven = Driven::started();
    let mut page = RING.0 + 1;
    for turn in 0..30 {
        let frame = frame(OURS.0, 1500 + turn % 15);
        driven.receive(frame.clone());
        let header = driven.get(u16::from(page) << 8, 4);
        assert_eq!(header[2..], (frame.len() as u16 + 4).to_le_bytes());
        let next = header[1];
        assert_eq!(next, if page + 6 < RING.1 { page + 6 } else { page + 6 - RING.1 + RING.0 });
        let stored = driven.get((u16::from(page) << 8) + 4, (frame.len() + 1) & !1);
        assert!(stored[..frame.len()] == frame, "{turn}");
        page = next;
        driven.write(BOUNDARY, if page == RING.0 { RING.1 - 1 } else { page - 1 });
    }
}

#[test]
fn a_boundary_before_the_ring_is_its_end() {
    let mut driven = Driven::started();
    driven.on_page(1, |driven| driven.write(CURRENT, RING.0));
    driven.write(BOUNDARY, RING.0 - 1);
    for _ in 0..57 {
        driven.receive(frame(OURS.0, 60));
    }
    assert_eq!((driven.current(), driven.read(BOUNDARY)), (RING.1 - 1, RING.0 - 1));
    driven.receive(frame(OURS.0, 61));
    assert_eq!(driven.current(), RING.1 - 1);
    assert_eq!(driven.get(u16::from(RING.0) << 8, 4), [0x01, RING.0 + 1, 64, 0]);
    driven.write(BOUNDARY, RING.0);
    assert_eq!(driven.current(), RING.0, "what has waited has come");
}

#[test]
fn addresses_are_filtered() {
    assert_eq!(hash([0x01, 0, 0x5e, 0, 0, 0x01]), 31);
    let group = [0x01, 0, 0x5e, 0, 0, 0xfb];
    let all = [OURS.0, OTHER, [0xff; 6], group];
    for (configuration, taken) in [
        (0x00, [true, false, false, false]),
        (0x04, [true, false, true, false]),
        (0x08, [true, false, false, true]),
        (0x10, [true, true, false, false]),
        (0x1c, [true; 4]),
    ] {
        let mut driven = Driven::started();
        driven.write(RECEIVE, configuration);
        driven.on_page(1, |driven| {
            driven.write(8 + u16::from(hash(group) / 8), 1 << (hash(group) % 8));
        });
        let seen = all.map(|address| {
            driven.receive(frame(address, 60));
            driven.interrupts() == 0x01
        });
        assert_eq!(seen, taken, "{configuration:02x}");
    }
}

proptest! {
    #[test]
    fn a_group_is_heard_by_its_place_in_the_hash_table(mut group: [u8; 6], others: [u8; 8]) {
        group[0] |= 1;
        prop_assume!(group != [0xff; 6]);
        let mut driven = Driven::started();
        driven.write(RECEIVE, 0x08);
        driven.on_page(1, |driven| {
            (8..).zip(others).for_each(|(register, byte)| driven.write(register, byte));
        });
        driven.receive(frame(group, 60));
        let place = hash(group);
        let is_member = others[usize::from(place / 8)] >> (place % 8) & 1 != 0;
        prop_assert_eq!(driven.interrupts() == 0x01, is_member);
    }
}

#[test]
fn a_stopped_chip_hears_nothing() {
    let mut driven = Driven::started();
    driven.write(COMMAND, 0x21);
    assert!(driven.card.takes_input(), "what comes is lost");
    driven.receive(frame(OURS.0, 60));
    assert_eq!(driven.interrupts(), 0x80);
    driven.write(COMMAND, 0x22);
    assert_eq!(driven.interrupts(), 0x00);
}

#[test]
fn a_monitor_counts_and_keeps_nothing() {
    let mut driven = Driven::started();
    driven.write(RECEIVE, 0x24);
    for address in [OURS.0, OTHER, [0xff; 6]] {
        driven.receive(frame(address, 60));
    }
    assert_eq!((driven.interrupts(), driven.read(RECEIVE), driven.current()), (0, 0x61, 0x47));
    assert_eq!([driven.read(COUNTERS + 2), driven.read(COUNTERS + 2)], [2, 0], "a read clears it");
}

#[test]
fn counters_ask_to_be_read_and_stop() {
    let mut driven = Driven::started();
    driven.write(RECEIVE, 0x20);
    for count in 1..=250 {
        driven.receive(frame(OURS.0, 60));
        assert_eq!(driven.interrupts(), if count >= 128 { 0x20 } else { 0 }, "{count}");
    }
    assert_eq!(driven.read(COUNTERS + 2), 192);
}

#[test]
fn packets_wait_for_room_in_the_ring() {
    let mut driven = Driven::started();
    let mut taken = 0;
    while driven.card.takes_input() {
        driven.receive(frame(OURS.0, 1514));
        taken += 1;
    }
    // 58 pages, of which one is the boundary.
    assert_eq!((taken, driven.interrupts()), (9, 0x01));
    driven.write(BOUNDARY, RING.0 + 6);
    assert!(driven.card.takes_input());
    driven.receive(frame(OURS.0, 1514));
    assert!(!driven.card.takes_input());
    driven.write(BOUNDARY, RING.0 + 7);
    assert!(!driven.card.takes_input());
    driven.write(COMMAND, 0x21);
    assert!(driven.card.takes_input());
}

#[test]
fn a_ring_that_is_full_is_not_an_empty_one() {
    let mut driven = Driven::started();
    // Page 46h is the first one to be read, and the next packet goes there.
    driven.on_page(1, |driven| driven.write(CURRENT, RING.0));
    for _ in 0..58 {
        driven.receive(frame(OURS.0, 60));
    }
    assert_eq!((driven.current(), driven.read(INTERRUPTS)), (RING.0, 0x01));
    assert!(!driven.card.takes_input());
    driven.write(BOUNDARY, RING.0);
    assert!(driven.card.takes_input(), "all was read");
}

/// In a ring that can have no room for a packet, packets are missed as on a network without flow control.
#[test]
fn a_packet_that_can_never_fit_is_counted_as_missed() {
    let mut driven = Driven::started();
    driven.ring(0x46, 0x4a);
    driven.receive(frame(OURS.0, 240));
    assert_eq!(driven.interrupts(), 0x01);
    assert!(driven.card.takes_input());
    driven.receive(frame(OURS.0, 1000));
    assert!(driven.line());
    assert_eq!((driven.read(INTERRUPTS), driven.read(RECEIVE)), (0x94, 0x10));
    assert_eq!((driven.read(COUNTERS + 2), driven.current()), (1, 0x48));
    driven.write(INTERRUPTS, 0xff);
    assert_eq!(driven.read(INTERRUPTS), 0x80, "until there is room");
    driven.write(BOUNDARY, 0x47);
    assert_eq!(driven.read(INTERRUPTS), 0x00);
    driven.receive(frame([0xff; 6], 240));
    assert_eq!(driven.interrupts(), 0x01);
}

/// A packet of TCP over IPv4 with `len` bytes of payload, whose checksum is not computed and which is to be
/// cut.
fn large(len: usize) -> Packet {
    let mut bytes = frame(OURS.0, 14);
    bytes[12..].copy_from_slice(&[0x08, 0x00]);
    bytes.extend([0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    bytes.extend((0..len).map(|n| (n % 251) as u8));
    Packet {
        bytes,
        checksum: Some(PartialChecksum { start: 34, offset: 16 }),
        segmentation: Some(Segmentation {
            kind: SegmentationKind::TcpV4,
            size: 1460,
            congestion: false,
        }),
    }
}

#[test]
fn a_large_packet_arrives_in_frames_as_room_permits() {
    let mut driven = Driven::started();
    let packet = large(30_000);
    driven.input(DeviceInput::Packet(packet.clone()));
    assert!(!driven.card.takes_input());
    let mut payload = Vec::new();
    let mut page = RING.0 + 1;
    loop {
        assert_eq!(driven.card.save(), {
            let mut other = Isa::new(DeviceId::NIC[0], OURS, PORT, IRQ);
            other.restore(&driven.card.save()).unwrap();
            other.save()
        });
        if page == driven.current() {
            break;
        }
        let header = driven.get(u16::from(page) << 8, 4);
        let len = usize::from(u16::from_le_bytes([header[2], header[3]])) - 4;
        let frame = driven.get((u16::from(page) << 8) + 4, (len + 1) & !1);
        payload.extend_from_slice(&frame[54..len]);
        page = header[1];
        driven.write(BOUNDARY, if page == RING.0 { RING.1 - 1 } else { page - 1 });
    }
    assert!(payload == packet.bytes[54..]);
    assert!(driven.card.takes_input());
    // A stop loses what waits.
    driven.input(DeviceInput::Packet(packet));
    driven.write(COMMAND, 0x21);
    driven.write(COMMAND, 0x22);
    let current = driven.current();
    driven.write(BOUNDARY, current - 1);
    assert_eq!((driven.current(), driven.card.takes_input()), (current, true));
}
