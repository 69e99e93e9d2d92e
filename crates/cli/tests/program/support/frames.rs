//! Frames of a guest behind the NAT, valid ones and almost valid ones.

/// The guest's address, and the address that it has for the gateway.
const GUEST: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const GATEWAY: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];

/// The guest, 10.0.2.15, asks for the address of 10.0.2.2 (RFC 826).
pub(crate) const ARP_REQUEST: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 8, 6, 0, 1, 8, 0, 6, 4, 0,
    1, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2,
];

/// Pseudo-random numbers, always the same (xorshift64).
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Computes the checksum of the Internet (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let pairs =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = pairs.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns a frame from 10.0.2.15 with an IPv4 header, whose flags and offset are `fragment`.
pub(crate) fn ipv4(to: [u8; 4], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&GATEWAY, &GUEST[..], &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0x12, 0x34]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0, 10, 0, 2, 15]);
    frame.extend(to);
    frame.extend(payload);
    correct(&mut frame);
    frame
}

/// Returns a frame from fec0::15 with an IPv6 header.
fn ipv6(to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut frame = [&[0x33, 0x33, 0, 0, 0, 2], &GUEST[..], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([protocol, 255]);
    frame.extend(address("fec0::15"));
    frame.extend(address(to));
    frame.extend(payload);
    correct(&mut frame);
    frame
}

/// Returns a UDP datagram without a checksum.
pub(crate) fn udp(from: u16, to: u16, bytes: &[u8]) -> Vec<u8> {
    let header = [from, to, 8 + bytes.len() as u16, 0].map(u16::to_be_bytes);
    [header.as_flattened(), bytes].concat()
}

fn tcp(from: u16, to: u16, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let mut segment = [from, to].map(u16::to_be_bytes).concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x60, flags, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
    segment.extend(bytes);
    segment
}

/// Corrects the checksums of a frame, as far as its lengths tell where they are.
fn correct(frame: &mut [u8]) {
    let Some((ethernet, ip)) = frame.split_at_mut_checked(14) else { return };
    let (payload_at, protocol, pseudo) = match (ethernet[12], ethernet[13]) {
        (8, 0) if ip.len() >= 20 => {
            let header = (usize::from(ip[0] & 15) * 4).clamp(20, ip.len());
            ip[10..12].fill(0);
            let sum = checksum(&ip[..header]).to_be_bytes();
            ip[10..12].copy_from_slice(&sum);
            (header, ip[9], ip[12..20].to_vec())
        }
        (0x86, 0xdd) if ip.len() >= 40 => (40, ip[6], ip[8..40].to_vec()),
        _ => return,
    };
    let is_v6 = payload_at == 40 && pseudo.len() == 32;
    let payload = &mut ip[payload_at..];
    let at = match protocol {
        1 | 58 => 2,
        6 => 16,
        17 => 6,
        _ => return,
    };
    if payload.len() < at + 2 {
        return;
    }
    payload[at..at + 2].fill(0);
    let mut all = if protocol == 1 { Vec::new() } else { pseudo };
    if protocol != 1 {
        let len = payload.len() as u32;
        all.extend(if is_v6 {
            len.to_be_bytes().to_vec()
        } else {
            vec![0, protocol, (len >> 8) as u8, len as u8]
        });
        if is_v6 {
            all.extend([0, 0, 0, protocol]);
        }
    }
    all.extend(&*payload);
    payload[at..at + 2].copy_from_slice(&checksum(&all).to_be_bytes());
}

/// Returns valid frames of all protocols that the NAT knows.
fn model(noise: &mut Noise) -> Vec<u8> {
    let (port, len) = (1024 + noise.below(200) as u16, noise.below(1400));
    let bytes = noise.bytes(len);
    let gateway = [[10, 0, 2, 2], [10, 0, 2, 3], [10, 0, 2, 100], [127, 0, 0, 1]][noise.below(4)];
    match noise.below(16) {
        0 => ARP_REQUEST.to_vec(),
        1 => ipv4(gateway, 1, 0, &[&[8, 0, 0, 0, 1, 2, 0, 1], &bytes[..]].concat()),
        2 => ipv4(
            [10, 0, 2, 3],
            17,
            0,
            &udp(port, 53, &[&[1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0], &bytes[..]].concat()),
        ),
        3 => {
            // DHCP (RFC 2131): a discovery or a request, with options.
            let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4, 0, 0, 0, 0];
            message.extend([0; 16]);
            message.extend(GUEST);
            message.extend([0; 202]);
            message.extend([0x63, 0x82, 0x53, 0x63, 53, 1, 1 + noise.below(8) as u8]);
            message.extend([55, 3, 1, 3, 6, 12, 2, b'a', b'b', 50, 4, 10, 0, 2, 15, 255]);
            ipv4([255; 4], 17, 0, &udp(68, 67, &message))
        }
        4 => {
            // TFTP (RFC 1350, 2347): a request with options, an acknowledgement, or any bytes.
            let name: &[u8] = [&b"file"[..], b"../file", b"/", b""][noise.below(4)];
            let request = [&[0, 1], name, b"\0octet\0blksize\x001428\0tsize\x000\0"].concat();
            let message = vec![request, vec![0, 4, 0, noise.below(4) as u8], bytes]
                .swap_remove(noise.below(3));
            ipv4([10, 0, 2, 2], 17, 0, &udp(port, 69, &message))
        }
        5 | 6 => {
            let flags = [2, 0x10, 0x18, 0x11, 4, 0x12, 0x31, 0xff][noise.below(8)];
            let to = [7, 22, 80, 2222, 139][noise.below(5)];
            ipv4(gateway, 6, 0, &tcp(port, to, flags, &bytes))
        }
        7 => ipv4(gateway, 17, 0, &udp(port, port, &bytes)),
        8 => ipv4(gateway, [1, 6, 17][noise.below(3)], noise.next() as u16, &bytes),
        9 => {
            ipv6("ff02::2", 58, &[133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56])
        }
        10 => {
            let mut message = vec![135 + noise.below(2) as u8, 0, 0, 0, 0x60, 0, 0, 0];
            message.extend([0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            message.extend([
                1 + noise.below(2) as u8,
                noise.below(3) as u8,
                0x52,
                0x54,
                0,
                0x12,
                0x34,
                0x56,
            ]);
            ipv6("ff02::1:ff00:2", 58, &message)
        }
        11 => ipv6("fec0::2", 58, &[&[128, 0, 0, 0, 1, 2, 0, 1], &bytes[..]].concat()),
        12 => ipv6("fec0::2", 17, &udp(port, [69, 547, 53, 9][noise.below(4)], &bytes)),
        13 => ipv6("fec0::2", 6, &tcp(port, 80, [2, 0x10, 0x11][noise.below(3)], &bytes)),
        14 => ipv6(
            "ff02::1:2",
            17,
            &udp(546, 547, &[&[11, 1, 2, 3, 0, 6, 0, 4, 0, 23, 0, 59], &bytes[..]].concat()),
        ),
        _ => [&GATEWAY, &GUEST[..], &[0x88, [0xf8, 0xb5, 0xa8, 0x47][noise.below(4)]], &bytes]
            .concat(),
    }
}

/// Returns an almost valid frame.
pub(crate) fn fuzzed(noise: &mut Noise) -> Vec<u8> {
    let mut frame = model(noise);
    for _ in 0..noise.below(4) {
        // Mostly the headers are changed.
        let end = if noise.below(3) > 0 { frame.len().min(80) } else { frame.len() };
        let at = 12 + noise.below(end.saturating_sub(12).max(1));
        match noise.below(6) {
            0 => frame.truncate(at),
            1 => frame.extend(noise.bytes(at)),
            2 => drop(frame.drain(at.min(frame.len())..(at + 4).min(frame.len()))),
            _ => {
                let value = [0, 1, 0x7f, 0x80, 0xff, noise.next() as u8][noise.below(6)];
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
        }
    }
    // Packets with wrong checksums are not examined much further.
    if noise.below(8) > 0 {
        correct(&mut frame);
    }
    if frame.is_empty() {
        frame.push(0);
    }
    frame
}
