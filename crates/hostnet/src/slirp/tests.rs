use super::*;

fn options() -> SlirpOptions {
    let ipv4 = |last| Ipv4Addr::new(10, 0, 2, last);
    SlirpOptions {
        is_restricted: false,
        ipv4: Some(Ipv4Options {
            network: ipv4(0),
            netmask: Ipv4Addr::new(255, 255, 255, 0),
            host: ipv4(2),
            dhcp_start: ipv4(15),
            nameserver: ipv4(3),
        }),
        ipv6: None,
        hostname: Some("guest".into()),
        domain: None,
        search: vec!["example".into()],
        tftp: None,
        tftp_server_name: None,
        bootfile: None,
    }
}

/// An ARP request for the gateway's address is answered (RFC 826).
#[test]
fn the_gateway_is_there() {
    let mut slirp = Slirp::new(&options()).unwrap();
    let ours = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    let mut request = [&[0xff; 6][..], &ours, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &ours].concat();
    request.extend([10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    slirp.input(&request);
    let frames = slirp.take_frames();
    let [answer] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!((&answer[..6], &answer[12..22]), (&ours[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..]));
    assert_eq!(answer[28..32], [10, 0, 2, 2]);
    // Bytes that are not a frame are ignored.
    slirp.input(&[]);
    slirp.input(&vec![0; 70_000]);
    assert_eq!(slirp.take_frames(), Vec::<Vec<u8>>::new());
}

#[test]
fn ports_that_cannot_be_forwarded_are_reported() {
    let mut slirp = Slirp::new(&options()).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let std::net::SocketAddr::V4(host) = taken.local_addr().unwrap() else { panic!("IPv4") };
    let guest = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 22);
    let error = slirp.forward(&Forward { is_udp: false, host, guest }).unwrap_err();
    assert!(error.to_string().contains(&host.to_string()), "{error}");
    let outside = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80);
    let target = ForwardTarget::Command("cat".into());
    assert!(slirp.forward_guest(outside, &target).is_err());
    let inside = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 100), 80);
    slirp.forward_guest(inside, &target).unwrap();
}

const GUEST: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// Makes a frame of the guest with an IPv4 datagram or a fragment of one.
fn datagram(to: [u8; 4], protocol: u8, part: (usize, bool), payload: &[u8]) -> Vec<u8> {
    let mut frame = [&[0x52, 0x55, 10, 0, 2, 2], &GUEST[..], &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0x12, 0x34]);
    frame.extend(((part.0 / 8) as u16 | u16::from(part.1) << 13).to_be_bytes());
    frame.extend([64, protocol, 0, 0, 10, 0, 2, 15]);
    frame.extend(to);
    packet::set_checksum(&mut frame[ETHERNET_LEN..]);
    frame.extend(payload);
    frame
}

/// Sends `payload` from the guest, in as many frames as it needs.
fn send(slirp: &mut Slirp, to: [u8; 4], protocol: u8, payload: &[u8]) {
    for offset in (0..payload.len()).step_by(1480) {
        let end = payload.len().min(offset + 1480);
        let part = (offset, end < payload.len());
        slirp.input(&datagram(to, protocol, part, &payload[offset..end]));
    }
}

/// Announces the guest's address, so that it can be answered.
fn announce(slirp: &mut Slirp) {
    let mut request = [&[0xff; 6][..], &GUEST, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &GUEST].concat();
    request.extend([10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    slirp.input(&request);
    assert_eq!(slirp.take_frames().len(), 1);
}

/// Makes an ICMP echo request of `len` bytes.
fn echo_request(len: usize) -> Vec<u8> {
    let mut message = vec![8, 0, 0, 0, 0x77, 0x77, 0, 1];
    message.extend((0..len).map(|byte| byte as u8));
    let sum = packet::checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Returns the payload of the datagram that `frames` carry.
fn received(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut fragments = Fragments::default();
    for frame in frames {
        let ip = Ipv4::of(frame).expect("a sound header");
        if let Some(whole) = fragments.take(frame, &ip, Duration::ZERO) {
            return Ipv4::of(&whole).expect("a sound header").payload().to_vec();
        }
    }
    panic!("{} frames, and no whole datagram", frames.len());
}

/// libslirp 4.7 does not survive a last fragment alone.
#[test]
fn fragments_do_not_reach_the_library() {
    let mut slirp = Slirp::new(&options()).unwrap();
    announce(&mut slirp);
    for offset in [8, 16, 1480, 65_000, 65_528] {
        for more in [false, true] {
            for len in [1, 7, 8, 1480] {
                for protocol in [1, 6, 17, 255] {
                    slirp.input(&datagram([10, 0, 2, 2], protocol, (offset, more), &vec![1; len]));
                }
            }
        }
    }
    // Fragments of IPv6 do not reach it either, even behind other headers.
    for before in [&[][..], &[0], &[60, 43]] {
        let kinds = [before, &[44, 17]].concat();
        let mut frame = [&[0x33; 6], &GUEST[..], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        let payload = kinds[1..].iter().flat_map(|next| [*next, 0, 0, 1, 0, 0, 0, 0]);
        let payload: Vec<u8> = payload.chain([0; 8]).collect();
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([kinds[0], 64]);
        frame.extend([0xfe; 32]);
        frame.extend(payload);
        assert!(Ipv6::of(&frame).unwrap().is_fragment(), "{kinds:?}");
        slirp.input(&frame);
    }
    send(&mut slirp, [10, 0, 2, 2], 1, &echo_request(16));
    assert_eq!(received(&slirp.take_frames())[..2], [0, 0]);
}

#[test]
fn large_datagrams_of_the_guest_arrive() {
    let mut slirp = Slirp::new(&options()).unwrap();
    announce(&mut slirp);
    for len in [16, 1472, 1473, 5000, 65_507] {
        // The gateway answers an echo request itself.
        let request = echo_request(len);
        send(&mut slirp, [10, 0, 2, 2], 1, &request);
        let answer = received(&slirp.take_frames());
        assert!(answer[0] == 0 && answer[4..] == request[4..], "{len}");
        // A server on the host receives a datagram by UDP, and the guest receives the answer.
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let sent: Vec<u8> = (0..len).map(|byte| (byte * 7) as u8).collect();
        let mut udp = [0x1234_u16, port, 8 + len as u16, 0].map(u16::to_be_bytes).concat();
        udp.extend(&sent);
        send(&mut slirp, [10, 0, 2, 2], 17, &udp);
        let mut bytes = vec![0; 70_000];
        let (count, from) = server.recv_from(&mut bytes).unwrap();
        assert!(bytes[..count] == sent, "{len}");
        server.send_to(&bytes[..count.min(9000)], from).unwrap();
        let (_end, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let watch = Watch { fd: std::os::fd::AsFd::as_fd(&other), reads: true, writes: false };
        let frames = loop {
            slirp.work(&watch, true, true).unwrap();
            let frames = slirp.take_frames();
            if !frames.is_empty() {
                break frames;
            }
        };
        assert!(received(&frames)[8..] == sent[..len.min(9000)], "{len}");
    }
}

/// A guest whose user may not send echo requests learns that they are prohibited, and by whom.
#[test]
fn echo_requests_that_may_not_be_sent_are_refused() {
    let ipv6 = Ipv6Options {
        prefix: "fec0::".parse().unwrap(),
        prefix_len: 64,
        host: "fec0::2".parse().unwrap(),
        nameserver: "fec0::3".parse().unwrap(),
    };
    let mut slirp = Slirp::new(&SlirpOptions { ipv6: Some(ipv6), ..options() }).unwrap();
    announce(&mut slirp);
    slirp.may_ping = false;
    let request = echo_request(3000);
    send(&mut slirp, [192, 0, 2, 1], 1, &request);
    let [answer] = slirp.take_frames().try_into().expect("one answer");
    let ip = Ipv4::of(&answer).expect("a sound header");
    assert_eq!((ip.source(), ip.destination(), ip.protocol()), ([10, 0, 2, 2], [10, 0, 2, 15], 1));
    let message = ip.payload();
    assert_eq!((&message[..2], packet::checksum(&[message])), (&[3, 13][..], 0));
    // The answer contains the header and the beginning of the refused request.
    assert_eq!(message[8 + 16..8 + 20], [192, 0, 2, 1]);
    assert_eq!(message[8 + 20..], request[..message.len() - 28]);
    assert_eq!(answer[..6], GUEST);
    // Requests to groups are refused silently, and hosts of the virtual network still answer.
    for silent in [[255; 4], [10, 0, 2, 255], [224, 0, 0, 1]] {
        send(&mut slirp, silent, 1, &echo_request(16));
        assert_eq!(slirp.take_frames(), Vec::<Vec<u8>>::new(), "{silent:?}");
    }
    send(&mut slirp, [10, 0, 2, 3], 1, &echo_request(16));
    assert_eq!(received(&slirp.take_frames())[..2], [0, 0]);

    let mut message = vec![128, 0, 0, 0, 1, 2, 3, 4];
    message.extend([0; 2000]);
    let mut frame = [&[0x52, 0x56, 0, 0, 0, 2], &GUEST[..], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, 64]);
    frame.extend("fec0::15".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    frame.extend(message);
    slirp.input(&frame);
    let [answer] = slirp.take_frames().try_into().expect("one answer");
    let ip = Ipv6::of(&answer).expect("a sound header");
    assert_eq!(ip.source(), ipv6.host);
    assert_eq!(ip.ip()[Ipv6::HEADER_LEN..][..2], [1, 1]);
    assert_eq!(ip.ip().len(), 1280);
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Makes a TCP segment of the guest's port 1000, with the options of none.
fn segment(port: u16, (sequence, acknowledged): (u32, u32), flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = [1000_u16.to_be_bytes(), port.to_be_bytes()].concat();
    segment.extend([sequence.to_be_bytes(), acknowledged.to_be_bytes()].concat());
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(data);
    let [high, low] = (segment.len() as u16).to_be_bytes();
    let sum = packet::checksum(&[&[10, 0, 2, 15, 10, 0, 2, 2, 0, 6, high, low], &segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// Returns the sequence number, the acknowledged one, and the length of the data of each segment in `frames`.
fn segments(frames: &[Vec<u8>]) -> Vec<(u32, u32, usize)> {
    let tcp = frames.iter().filter(|frame| frame[12..14] == [8, 0] && frame[23] == 6);
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let read = |frame: &Vec<u8>| {
        let payload = Ipv4::of(frame).expect("a sound header").payload().to_vec();
        let header = usize::from(payload[12] >> 4) * 4;
        (number(&payload[4..8]), number(&payload[8..12]), payload.len() - header)
    };
    tcp.map(read).collect()
}

/// Data of the guest are acknowledged when nothing else is to be done, even if they come with an acknowledgement; the library
/// alone would wait for 2 ms.
#[test]
fn acknowledgements_are_not_held_back() {
    let mut slirp = Slirp::new(&options()).unwrap();
    announce(&mut slirp);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::fs::File::open("/dev/null").unwrap();
    let watch = Watch { fd: std::os::fd::AsFd::as_fd(&other), reads: false, writes: false };
    let next = |slirp: &mut Slirp| loop {
        slirp.work(&watch, true, true).unwrap();
        if let [first, ..] = segments(&slirp.take_frames())[..] {
            return first;
        }
    };
    send(&mut slirp, [10, 0, 2, 2], 6, &segment(port, (1, 0), SYN, &[]));
    let (theirs, acknowledged, _) = next(&mut slirp);
    assert_eq!(acknowledged, 2);
    send(&mut slirp, [10, 0, 2, 2], 6, &segment(port, (2, theirs + 1), ACK, &[]));
    let (mut stream, _) = listener.accept().unwrap();
    let (mut data, mut at_once) = ([0; 3], 0);
    for round in 0..100 {
        io::Write::write_all(&mut stream, b"ask").unwrap();
        let (sequence, _, len) = next(&mut slirp);
        assert_eq!((sequence, len), (theirs + 1 + round * 3, 3));
        let (ours, theirs) = (2 + round * 3, sequence + 3);
        send(&mut slirp, [10, 0, 2, 2], 6, &segment(port, (ours, theirs), ACK, b"yes"));
        // The library learns that it has something to acknowledge, and then does so.
        slirp.work(&watch, true, false).unwrap();
        slirp.acknowledge();
        let said = segments(&slirp.take_frames());
        at_once += said.len();
        let said = said.first().copied().unwrap_or_else(|| next(&mut slirp));
        assert_eq!(said, (theirs, ours + 3, 0));
        io::Read::read_exact(&mut stream, &mut data).unwrap();
        assert_eq!(&data, b"yes");
    }
    assert!(at_once > 50, "{at_once}");
}
