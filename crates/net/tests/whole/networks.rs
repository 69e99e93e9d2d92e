//! Networks without machines: packets that are sent at one end come out of the door at the other.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::net::{Packet, PartialChecksum};
use ring3_net::{Backend, Capture, Card, DgramOptions, NetError, StreamAddress, StreamOptions};
use ring3_vm::networks::Network;
use ring3_vm::{Door, door};

const CARD: DeviceId = DeviceId::NIC[0];

/// One end: a network, and the door of the machine in front of it.
struct End {
    network: Box<dyn Network>,
    door: Door,
}

/// How long a test waits for a packet.
const PATIENCE: Duration = Duration::from_secs(60);

impl End {
    fn open(backend: &Backend) -> Result<End, NetError> {
        let (sender, door) = door();
        let network = ring3_net::open(backend, &Card::new(CARD, sender, None))?;
        Ok(End { network, door })
    }

    fn send(&mut self, packet: Packet) {
        self.network.send(packet);
        self.network.flush();
    }

    /// Returns the next input for the card.
    fn next(&mut self) -> DeviceInput {
        let until = self.door.host_time().plus_nanos(PATIENCE.as_nanos() as u64);
        self.door.wait(Some(until), |_| true);
        match self.door.take(|_| true) {
            Some(Input::Device { device: CARD, input }) => input,
            other => panic!("{other:?}"),
        }
    }

    fn packet(&mut self) -> Packet {
        match self.next() {
            DeviceInput::Packet(packet) => packet,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a frame that contains `number`.
fn frame(number: u32, len: usize) -> Packet {
    let mut bytes = vec![0x5a; len];
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    Packet::frame(bytes)
}

/// Returns a frame whose checksum has yet to be computed.
fn unfinished() -> Packet {
    let checksum = Some(PartialChecksum { start: 34, offset: 6 });
    Packet { bytes: vec![3; 64], checksum, segmentation: None }
}

fn stream(address: StreamAddress, is_server: bool) -> Backend {
    let reconnect = (!is_server).then_some(Duration::from_millis(10));
    Backend::Stream(StreamOptions { address, is_server, reconnect, headers: false })
}

fn unix(path: &Path) -> StreamAddress {
    StreamAddress::Unix(path.to_owned())
}

/// Waits until two ends are connected: the first packet has come from one to the other.
fn connected(from: &mut End, to: &mut End) {
    let deadline = Instant::now() + PATIENCE;
    while !to.door.has_input(|_| true) {
        from.door.fetch();
        to.door.fetch();
        assert!(Instant::now() < deadline, "nothing comes");
        from.send(frame(u32::MAX, 60));
        thread::sleep(Duration::from_millis(5));
    }
    // Frames that were sent again meanwhile.
    from.send(frame(0, 60));
    while to.packet() != frame(0, 60) {}
}

fn frames_go_both_ways(mut one: End, mut other: End) {
    connected(&mut one, &mut other);
    connected(&mut other, &mut one);
    for (number, len) in [(1, 18), (2, 60), (3, 1514), (4, 9000), (5, 60_000)] {
        one.send(frame(number, len));
        assert_eq!(other.packet(), frame(number, len));
        other.send(frame(number, len));
        assert_eq!(one.packet(), frame(number, len));
    }
}

#[test]
fn frames_go_over_unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = End::open(&stream(unix(&path), true)).unwrap();
    frames_go_both_ways(server, End::open(&stream(unix(&path), false)).unwrap());
    assert!(!path.exists());
}

#[test]
fn frames_go_over_tcp() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = StreamAddress::Tcp(free.to_string());
    let server = End::open(&stream(address.clone(), true)).unwrap();
    frames_go_both_ways(server, End::open(&stream(address, false)).unwrap());
}

/// Returns two free UDP addresses.
fn free_ports() -> [SocketAddr; 2] {
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap())
}

#[test]
fn frames_go_as_datagrams() {
    let [one, other] = free_ports();
    let udp = |local, remote| Backend::Dgram(DgramOptions::Udp { local: Some(local), remote });
    frames_go_both_ways(End::open(&udp(one, other)).unwrap(), End::open(&udp(other, one)).unwrap());

    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
    let unix = |local: &Path, remote: &Path| {
        Backend::Dgram(DgramOptions::Unix { local: local.into(), remote: remote.into() })
    };
    let ends = (End::open(&unix(&one, &other)).unwrap(), End::open(&unix(&other, &one)).unwrap());
    frames_go_both_ways(ends.0, ends.1);
    assert!(!one.exists() && !other.exists());
}

/// Every member of a group receives the packets of all others, and not its own.
#[test]
fn frames_go_to_a_group() {
    let [free, _] = free_ports();
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 192, 0, 73), free.port());
    let options = DgramOptions::Multicast { group, interface: Some(Ipv4Addr::LOCALHOST) };
    let backend = Backend::Dgram(options);
    let mut ends = [(); 3].map(|()| End::open(&backend).unwrap());
    ends[0].send(frame(7, 60));
    ends[1].send(frame(8, 60));
    assert_eq!(ends[0].packet(), frame(8, 60));
    assert_eq!(ends[1].packet(), frame(7, 60));
    assert_eq!([ends[2].packet(), ends[2].packet()], [frame(7, 60), frame(8, 60)]);
    let no_group = DgramOptions::Multicast {
        group: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1),
        interface: None,
    };
    assert!(End::open(&Backend::Dgram(no_group)).is_err());
}

/// Packets that one end leaves unfinished stay so for another end of ring3, and are finished for others.
#[test]
fn packets_stay_unfinished_between_ends_that_allow_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let with_headers = |headers, is_server| {
        let Backend::Stream(options) = stream(unix(&path), is_server) else { unreachable!() };
        End::open(&Backend::Stream(StreamOptions { headers, ..options })).unwrap()
    };
    for both in [true, false] {
        let (mut one, mut other) = (with_headers(true, true), with_headers(both, false));
        connected(&mut one, &mut other);
        connected(&mut other, &mut one);
        // Each end has received the other's notice before its first frame.
        one.send(unfinished());
        other.send(unfinished());
        let (here, there) = (one.packet(), other.packet());
        assert_eq!((here == unfinished(), there == unfinished()), (both, both));
        if !both {
            assert_eq!((here.checksum, here.bytes.len()), (None, 64));
        }
    }
}

#[test]
fn a_server_takes_one_client_after_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut server = End::open(&stream(unix(&path), true)).unwrap();
    for number in 0..3 {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(&[0, 0, 0, 60]).unwrap();
        client.write_all(&frame(number, 60).bytes).unwrap();
        assert_eq!(server.packet(), frame(number, 60));
        server.send(frame(number, 70));
        let mut bytes = [0; 74];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(
            (&bytes[..4], &bytes[4..]),
            (&[0, 0, 0, 70][..], frame(number, 70).bytes.as_slice())
        );
        // An invalid message ends the connection.
        client.write_all(&[0xff; 4]).unwrap();
        server.door.fetch();
        assert_eq!(client.read(&mut bytes).unwrap(), 0);
    }
}

#[test]
fn a_client_finds_its_server_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut client = End::open(&stream(unix(&path), false)).unwrap();
    for _ in 0..2 {
        let mut server = End::open(&stream(unix(&path), true)).unwrap();
        connected(&mut client, &mut server);
    }
    let once =
        StreamOptions { address: unix(&path), is_server: false, reconnect: None, headers: false };
    let error = End::open(&Backend::Stream(once)).err().unwrap().to_string();
    assert!(error.contains("cannot connect to") && error.contains("reconnect"), "{error}");
}

/// No packet is lost between ends that receive their packets, however many are sent at once: the card waits
/// while the network is congested.
#[test]
fn a_card_waits_for_a_slow_receiver() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut server = End::open(&stream(unix(&path), true)).unwrap();
    let mut client = End::open(&stream(unix(&path), false)).unwrap();
    connected(&mut client, &mut server);
    let count = 20_000;
    let receiving = thread::spawn(move || {
        for number in 1..=count {
            assert_eq!(server.packet(), frame(number, 1514));
            if number % 1000 == 0 {
                thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let mut pauses = 0;
    for number in 1..=count {
        client.network.send(frame(number, 1514));
        if number % 16 == 0 {
            client.network.flush();
            if client.network.is_congested() {
                assert_eq!(client.next(), DeviceInput::Congestion(false));
                pauses += 1;
            }
        }
    }
    receiving.join().unwrap();
    assert!(pauses > 0);
}

/// An end that receives nothing does not delay others, and takes a bounded amount of memory.
#[test]
fn a_card_does_not_wait_forever_for_its_receiver() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut server = End::open(&stream(unix(&path), true)).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut pauses = 0;
    while pauses < 2 {
        assert!(Instant::now() < deadline, "the card is not told to wait");
        server.send(frame(1, 60_000));
        if server.network.is_congested() {
            assert_eq!(server.next(), DeviceInput::Congestion(false));
            pauses += 1;
            // From now on packets that cannot be sent at once are lost, until one can.
            for _ in 0..1000 {
                server.send(frame(2, 60_000));
                assert!(!server.network.is_congested());
            }
            pauses += 1;
        }
    }
    // A packet whose first part has arrived arrives completely.
    let reading = thread::spawn(move || {
        let mut client = client;
        let mut last = 0;
        while last != 3 {
            let mut length = [0; 4];
            client.read_exact(&mut length).unwrap();
            let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
            client.read_exact(&mut bytes).unwrap();
            last = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
            assert_eq!(bytes, frame(last, bytes.len()).bytes);
        }
    });
    while !reading.is_finished() {
        assert!(Instant::now() < deadline, "nothing goes on");
        server.send(frame(3, 60));
        thread::sleep(Duration::from_millis(1));
    }
    reading.join().unwrap();
}

#[test]
fn both_directions_are_captured() {
    let directory = tempfile::tempdir().unwrap();
    let [path, pcap] = ["socket", "pcap"].map(|name| directory.path().join(name));
    let capture = Capture::create(&pcap, Some("ether[14:4] != 9")).unwrap();
    let (sender, door) = door();
    let card = Card::new(CARD, sender, Some(capture.into()));
    let network = ring3_net::open(&stream(unix(&path), true), &card).unwrap();
    let mut server = End { network, door };
    let mut client = End::open(&stream(unix(&path), false)).unwrap();
    connected(&mut client, &mut server);
    let before = fs::metadata(&pcap).unwrap().len();
    for number in [1, 9] {
        server.send(frame(number, 60));
        client.send(frame(number, 70));
        assert_eq!((server.packet(), client.packet()), (frame(number, 70), frame(number, 60)));
    }
    assert_eq!(fs::metadata(&pcap).unwrap().len(), before + 16 + 60 + 16 + 70);
    assert!(Capture::create(&pcap, Some("no filter")).is_err());
}
