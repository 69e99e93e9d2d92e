use super::super::{Segmentation, SegmentationKind};
use super::*;

const MSS: u16 = 1000;

/// Makes a TCP segment with `payload` bytes, as a system leaves it to its card, behind `tags` VLAN tags.
fn large(kind: SegmentationKind, tags: usize, payload: usize) -> Packet {
    let mut bytes = vec![2; 12];
    for _ in 0..tags {
        bytes.extend([0x81, 0x00, 0x00, 0x05]);
    }
    let ip = match kind {
        SegmentationKind::TcpV4 => {
            bytes.extend([0x08, 0x00]);
            let mut ip = vec![0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, 6, 0, 0];
            ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            ip
        }
        SegmentationKind::TcpV6 => {
            bytes.extend([0x86, 0xdd]);
            let mut ip = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
            ip.extend((0..32).map(|byte| byte * 7));
            ip
        }
    };
    bytes.extend(ip);
    let start = bytes.len() as u16;
    // Ports, sequence number FFFFFF00h, 32 bytes of header, CWR, PSH, ACK and FIN.
    bytes.extend([0, 80, 0, 81, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0x80, 0x99, 1, 1, 0, 0, 0, 0]);
    bytes.extend([1; 12]);
    bytes.extend((0..payload).map(|index| (index * 7 + index / 251) as u8));
    Packet {
        bytes,
        checksum: Some(PartialChecksum { start, offset: 16 }),
        segmentation: Some(Segmentation { kind, size: MSS, congestion: false }),
    }
}

fn without(packet: Packet, offloads: Offloads) -> Vec<Packet> {
    let mut all = Vec::new();
    packet.without_offloads(offloads, |packet| all.push(packet));
    all
}

/// Checks what the receiver of a segment checks: the sums of the IPv4 header and of TCP with its pseudo
/// header.
fn check_sums(kind: SegmentationKind, ip: usize, frame: &[u8]) {
    let (addresses, tcp) = match kind {
        SegmentationKind::TcpV4 => {
            assert_eq!(folded(sum(&frame[ip..ip + 20])), 0xffff);
            assert_eq!(usize::from(read_u16(frame, ip + 2)), frame.len() - ip);
            (&frame[ip + 12..ip + 20], ip + 20)
        }
        SegmentationKind::TcpV6 => {
            assert_eq!(usize::from(read_u16(frame, ip + 4)), frame.len() - ip - 40);
            (&frame[ip + 8..ip + 40], ip + 40)
        }
    };
    let pseudo = [addresses, &[0, 6], &((frame.len() - tcp) as u16).to_be_bytes()].concat();
    assert_eq!(folded(sum(&pseudo) + sum(&frame[tcp..])), 0xffff);
}

#[test]
fn large_packets_are_cut_into_segments_that_a_receiver_accepts() {
    for kind in [SegmentationKind::TcpV4, SegmentationKind::TcpV6] {
        for (tags, payload) in [(0, 3500), (1, 3000), (2, 1), (0, 0), (0, 60000)] {
            let packet = large(kind, tags, payload);
            let ip = 14 + 4 * tags;
            let headers_len = packet.headers_len().unwrap();
            let segments =
                without(packet.clone(), Offloads { checksum: true, ..Offloads::default() });
            assert_eq!(segments.len(), payload.div_ceil(MSS.into()).max(1));
            let mut joined = Vec::new();
            for (index, segment) in segments.iter().enumerate() {
                assert_eq!((segment.checksum, segment.segmentation), (None, None));
                let bytes = &segment.bytes;
                check_sums(kind, ip, bytes);
                let tcp = headers_len - 32;
                let number = read_u32(bytes, tcp + 4);
                assert_eq!(number, 0xffff_ff00_u32.wrapping_add(index as u32 * u32::from(MSS)));
                let is_last = index + 1 == segments.len();
                let expected =
                    0x10 | if index == 0 { 0x80 } else { 0 } | if is_last { 9 } else { 0 };
                assert_eq!(bytes[tcp + 13], expected);
                if kind == SegmentationKind::TcpV4 {
                    assert_eq!(read_u16(bytes, ip + 4), 0xfffe_u16.wrapping_add(index as u16));
                }
                joined.extend_from_slice(&bytes[headers_len..]);
            }
            assert_eq!(joined, packet.bytes[headers_len..]);
        }
    }
}

#[test]
fn work_that_the_other_side_does_is_left_to_it() {
    let packet = large(SegmentationKind::TcpV4, 0, 5000);
    assert_eq!(without(packet.clone(), Offloads::ALL), std::slice::from_ref(&packet));
    let other = Offloads { tcp_v4: false, ..Offloads::ALL };
    assert_eq!(without(packet.clone(), other).len(), 5);
    let mut congested = packet;
    congested.segmentation.as_mut().unwrap().congestion = true;
    let other = Offloads { congestion: false, ..Offloads::ALL };
    assert_eq!(without(congested, other).len(), 5);
}

#[test]
fn a_checksum_is_computed_where_it_is_to_be() {
    // A datagram of five bytes, whose checksum field has the sum of its pseudo header.
    let mut bytes = vec![0; 34];
    bytes.extend([0x10, 0, 0x20, 0, 0, 13, 0x14, 0x1f, 1, 2, 3, 4, 5]);
    let checksum = Some(PartialChecksum { start: 34, offset: 6 });
    let packet = Packet { bytes, checksum, segmentation: None };
    let [Packet { bytes, checksum: None, .. }] = &without(packet, Offloads::default())[..] else {
        panic!("it is one frame");
    };
    let expected = !(0x1000 + 0x2000 + 13 + 0x141f + 0x0102 + 0x0304 + 0x0500_u16);
    assert_eq!(read_u16(bytes, 40), expected);
    // The sum of these is FFFFh.
    let bytes = vec![0xff, 0xff, 0, 0];
    let checksum = Some(PartialChecksum { start: 0, offset: 2 });
    let packet = Packet { bytes, checksum, segmentation: None };
    let all = without(packet, Offloads::default());
    assert_eq!(all[0].bytes, [0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn invalid_packets_are_lost() {
    let sound = large(SegmentationKind::TcpV4, 0, 5000);
    let mut no_size = sound.clone();
    no_size.segmentation.as_mut().unwrap().size = 0;
    let mut no_checksum = sound.clone();
    no_checksum.checksum = None;
    let mut late = sound.clone();
    late.checksum.as_mut().unwrap().start = 5090;
    let mut early = sound.clone();
    early.checksum.as_mut().unwrap().start = 20;
    early.bytes[20 + 12] = 0x50;
    let mut long = sound.clone();
    long.bytes.resize(PACKET_MAX + 1, 0);
    for packet in [no_size, no_checksum, late, early, long] {
        assert_eq!(without(packet, Offloads::default()), []);
    }
}

#[test]
fn any_packet_comes_to_an_end() {
    // The numbers of a generator with a fixed seed.
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        state >> 8
    };
    for _ in 0..20_000 {
        let len = (next() % 300) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        let header = std::array::from_fn(|index| {
            let most = [2, 6, 255, 2, 255, 1, 120, 1, 30, 1][index];
            (next() % (most + 1)) as u8
        });
        let Some(packet) = Packet::with_offload_header(header, bytes) else { continue };
        let most = packet.bytes.len().max(1);
        assert!(without(packet, Offloads::default()).len() <= most);
    }
}
