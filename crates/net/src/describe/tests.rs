use etherparse::{PacketBuilder, VlanId};
use proptest::prelude::*;

use super::*;

const CARD: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// A UDP datagram in a frame.
fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(CARD, [0xff; 6]).ipv4([10, 0, 2, 15], [10, 0, 2, 3], 64);
    let mut frame = Vec::new();
    builder.udp(from, to).write(&mut frame, payload).unwrap();
    frame
}

/// A DHCP message with these options.
fn dhcp_message(operation: u8, yours: [u8; 4], options: &[u8]) -> Vec<u8> {
    let mut message = vec![operation, 1, 6, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0];
    message.extend([0; 4]);
    message.extend(yours);
    message.extend([0; 8]);
    message.extend(CARD);
    message.extend([0; 10 + 192]);
    message.extend([99, 130, 83, 99]);
    message.extend(options);
    message
}

/// A question for the address of host.example, and the beginning of its answer.
fn question(flags: u16, answers: u16) -> Vec<u8> {
    let mut message: Vec<u8> =
        [7, flags, 1, answers, 0, 0].into_iter().flat_map(u16::to_be_bytes).collect();
    message.extend(b"\x04host\x07example\x00\x00\x01\x00\x01");
    message
}

#[test]
fn tcp_in_both_protocols() {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(CARD, CARD).ipv4([10, 0, 2, 15], [10, 0, 2, 2], 64);
    builder.tcp(4000, 80, 100, 5000).psh().ack(7).write(&mut frame, b"hello").unwrap();
    assert_eq!(
        describe(&frame),
        "IP 10.0.2.15.4000 > 10.0.2.2.80: Flags [P.], seq 100:105, ack 7, win 5000, length 5"
    );
    let mut frame = Vec::new();
    let ends = [1, 2].map(|last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last).octets());
    let builder = PacketBuilder::ethernet2(CARD, CARD).single_vlan(VlanId::try_new(100).unwrap());
    let builder = builder.ipv6(ends[0], ends[1], 64).tcp(1, 2, u32::MAX, 0).syn();
    builder.write(&mut frame, &[]).unwrap();
    assert_eq!(
        describe(&frame),
        "vlan 100, IP6 fe80::1.1 > fe80::2.2: Flags [S], seq 4294967295, win 0, length 0"
    );
}

#[test]
fn control_messages() {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(CARD, CARD).ipv4([10, 0, 2, 15], [10, 0, 2, 2], 64);
    builder.icmpv4_echo_request(5, 6).write(&mut frame, &[0; 56]).unwrap();
    assert_eq!(
        describe(&frame),
        "IP 10.0.2.15 > 10.0.2.2: ICMP echo request, id 5, seq 6, length 64"
    );
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(CARD, CARD).ipv6([0; 16], [1; 16], 64);
    builder.icmpv6_raw(135, 0, [0; 4]).write(&mut frame, &[2; 16]).unwrap();
    let said = describe(&frame);
    assert!(said.contains("ICMP6, neighbor solicitation, who has 202:202:202"), "{said}");
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(CARD, CARD).ipv4([1; 4], [2; 4], 64);
    builder.write(&mut frame, IpNumber(89), &[0; 20]).unwrap();
    assert_eq!(describe(&frame), "IP 1.1.1.1 > 2.2.2.2: protocol 89, length 20");
}

#[test]
fn dhcp_and_dns() {
    let discover = dhcp_message(1, [0; 4], &[53, 1, 1, 50, 4, 10, 0, 2, 15, 255]);
    assert_eq!(
        describe(&udp(68, 67, &discover)),
        "IP 10.0.2.15.68 > 10.0.2.3.67: DHCP discover from 52:54:00:12:34:56, xid 0x12345678, \
         requested 10.0.2.15, length 250"
    );
    let ack = dhcp_message(2, [10, 0, 2, 15], &[0, 0, 53, 1, 5, 255]);
    assert!(
        describe(&udp(67, 68, &ack))
            .contains("DHCP ack from 52:54:00:12:34:56, xid 0x12345678, your 10.0.2.15")
    );

    let asked = describe(&udp(4000, 53, &question(0x0100, 0)));
    assert_eq!(asked, "IP 10.0.2.15.4000 > 10.0.2.3.53: DNS 7 A host.example.?, length 30");
    let mut answer = question(0x8180, 2);
    answer.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 4, 1, b'x', 0xc0, 17]);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
    let said = describe(&udp(53, 4000, &answer));
    assert!(
        said.contains("DNS 7 A host.example., CNAME x.example., A 192.0.2.1, length"),
        "{said}"
    );
    let said = describe(&udp(53, 4000, &question(0x8183, 0)));
    assert!(said.contains("DNS 7 A host.example., no such name"), "{said}");
    assert!(describe(&udp(5000, 5001, b"anything")).ends_with("5001: UDP, length 8"));
}

#[test]
fn what_is_hostile_stays_a_short_line() {
    // A name that leads to itself, and one with control characters.
    let mut endless = question(0, 0);
    endless.truncate(12);
    endless.extend([0xc0, 12, 0, 1]);
    assert!(describe(&udp(4000, 53, &endless)).ends_with("UDP, length 16"));
    let mut strange = question(0, 0);
    strange[13..17].copy_from_slice(b"\x1b[2\n");
    let said = describe(&udp(4000, 53, &strange));
    assert!(said.contains("A \\x1b[2\\n.example.?"), "{said}");
    assert_eq!(describe(&[1, 2, 3]), "a packet of 3 bytes, which is cut");
    let other = [&[0xff; 6][..], &CARD, &[0x88, 0xcc, 1, 2]].concat();
    assert_eq!(describe(&other), "52:54:00:12:34:56 > ff:ff:ff:ff:ff:ff, type 0x88cc, length 16");
}

fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let said = describe(bytes);
    prop_assert!(said.len() < 3000 && !said.contains(char::is_control), "{said:?}");
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_described(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        check(&bytes)?;
    }

    /// Packets that are right at first, cut and changed.
    #[test]
    fn damaged_packets_are_described(
        kind in 0..4_usize,
        len in 0..400_usize,
        changes in proptest::collection::vec((0..400_usize, any::<u8>()), 0..8),
    ) {
        let mut packet = match kind {
            0 => udp(68, 67, &dhcp_message(1, [0; 4], &[53, 1, 1, 50, 4, 1, 2, 3, 4, 255])),
            1 => udp(4000, 53, &question(0x8180, 3)),
            2 => {
                let builder = PacketBuilder::ethernet2(CARD, CARD).ipv6([1; 16], [2; 16], 64);
                let mut packet = Vec::new();
                builder.tcp(1, 2, 3, 4).write(&mut packet, &[0; 50]).unwrap();
                packet
            }
            _ => [&[0xff; 6][..], &CARD, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[5; 20]].concat(),
        };
        for (at, byte) in changes {
            if let Some(place) = packet.get_mut(at) {
                *place = byte;
            }
        }
        packet.truncate(len);
        check(&packet)?;
    }
}
