//! A switch and its machines, each of which is only a network and the door in front of it: packets that one
//! of them sends come out of the doors of others.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::net::{MacAddress, Offloads, Packet, PartialChecksum};
use ring3_net::switch::{PortStatus, take_commands, tell_status};
use ring3_net::{Backend, Card, StreamAddress, StreamOptions, Switch, SwitchOptions, SwitchServer};
use ring3_vm::networks::Network;
use ring3_vm::{Door, door};
use tempfile::TempDir;

/// How long a test waits for a packet.
const PATIENCE: Duration = Duration::from_secs(60);

const BROADCAST: [u8; 6] = [0xff; 6];

/// A switch that listens at a socket.
struct Running {
    switch: Switch,
    directory: TempDir,
}

impl Running {
    fn start(options: SwitchOptions) -> Running {
        let directory = tempfile::tempdir().unwrap();
        let running = Running { switch: Switch::new(options), directory };
        let address = StreamAddress::Unix(running.socket());
        let server = SwitchServer::listen(&address, running.switch.clone()).unwrap();
        // For as long as the tests run.
        thread::spawn(move || server.serve());
        running
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("switch")
    }

    /// Returns a machine whose card has the address number `number`, and is known to the switch.
    fn machine(&self, number: u8) -> Machine {
        let mut machine = Machine::new(number, &self.socket());
        let is_known = |port: &PortStatus| port.address == Some(address(number).to_string());
        self.wait_until(|ports| ports.iter().any(is_known));
        // The switch has sent its notices before.
        machine.door.fetch();
        machine
    }

    fn wait_until(&self, ready: impl Fn(&[PortStatus]) -> bool) -> Vec<PortStatus> {
        let until = Instant::now() + PATIENCE;
        loop {
            let ports = self.switch.status().ports;
            if ready(&ports) {
                return ports;
            }
            assert!(Instant::now() < until, "{ports:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn address(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

/// A machine without a guest.
struct Machine {
    number: u8,
    network: Box<dyn Network>,
    door: Door,
}

impl Machine {
    fn new(number: u8, socket: &Path) -> Machine {
        let (sender, door) = door();
        let card = Card::new(DeviceId::NIC[0], sender, None).with_address(address(number));
        let address = StreamAddress::Unix(socket.to_owned());
        let options = StreamOptions { address, is_server: false, reconnect: None, headers: true };
        let network = ring3_net::open(&Backend::Stream(options), &card).unwrap();
        Machine { number, network, door }
    }

    /// Returns a frame of `len` bytes to `to` with the number `mark`.
    fn frame(&self, to: [u8; 6], mark: u32, len: usize) -> Packet {
        let mut bytes = [&to[..], &address(self.number).0, &[8, 0], &mark.to_be_bytes()].concat();
        bytes.resize(len, 0x5a);
        Packet::frame(bytes)
    }

    /// Sends a packet, and waits while the network is congested.
    fn send(&mut self, packet: Packet) {
        self.network.send(packet);
        self.network.flush();
        if self.network.is_congested() {
            assert_eq!(self.next(), DeviceInput::Congestion(false));
        }
    }

    fn next(&mut self) -> DeviceInput {
        let until = self.door.host_time().plus_nanos(PATIENCE.as_nanos() as u64);
        self.door.wait(Some(until), |_| true);
        match self.door.take(|_| true) {
            Some(Input::Device { input, .. }) => input,
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

#[test]
fn packets_reach_only_their_receiver_and_unchanged() {
    let running = Running::start(SwitchOptions::default());
    let [mut first, mut second, mut third] = [1, 2, 3].map(|number| running.machine(number));
    let checksum = Some(PartialChecksum { start: 34, offset: 6 });
    let unfinished = Packet { checksum, ..first.frame(address(2).0, 7, 64) };
    // Before the greeting of the switch, the other side may be a machine of QEMU, which gets whole frames.
    let mut whole = None;
    unfinished.clone().without_offloads(Offloads::default(), |frame| whole = Some(frame));
    let until = Instant::now() + PATIENCE;
    let mut sent = 0;
    loop {
        first.door.fetch();
        first.send(unfinished.clone());
        sent += 1;
        let came = second.packet();
        if came == unfinished {
            break;
        }
        assert_eq!(Some(came), whole);
        assert!(Instant::now() < until, "the other one is one of ring3 too");
    }
    first.send(first.frame(BROADCAST, 8, 60));
    assert_eq!(second.packet(), first.frame(BROADCAST, 8, 60));
    assert_eq!(third.packet(), first.frame(BROADCAST, 8, 60), "it has not seen the one before");
    // Packets that a machine sends from the address of another one are dropped.
    second.number = 3;
    second.send(second.frame(address(1).0, 9, 60));
    second.number = 2;
    second.send(second.frame(address(1).0, 10, 60));
    assert_eq!(first.packet(), second.frame(address(1).0, 10, 60));
    let ports = running.wait_until(|_| true);
    assert_eq!(ports[1].refused.get("spoofed"), Some(&1));
    assert_eq!((ports[1].received, ports[1].sent), (2, sent + 1));
    drop(second);
    running.wait_until(|ports| ports.len() == 2);
}

#[test]
fn a_machine_of_qemu_gets_whole_frames() {
    let running = Running::start(SwitchOptions::default());
    let mut first = running.machine(1);
    let mut qemu = UnixStream::connect(running.socket()).unwrap();
    qemu.set_read_timeout(Some(PATIENCE)).unwrap();
    let hello = [&BROADCAST[..], &address(5).0, &[8, 0], &[0; 46]].concat();
    qemu.write_all(&[&60_u32.to_be_bytes()[..], &hello].concat()).unwrap();
    assert_eq!(first.packet(), Packet::frame(hello));
    let checksum = Some(PartialChecksum { start: 34, offset: 6 });
    let packet = Packet { checksum, ..first.frame(address(5).0, 7, 64) };
    first.send(packet.clone());
    let mut finished = None;
    packet.without_offloads(Offloads::default(), |frame| finished = Some(frame.bytes));
    // The switch first sends its greeting, a frame to an address that no machine has.
    let received = loop {
        let mut length = [0; 4];
        qemu.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        qemu.read_exact(&mut frame).unwrap();
        if frame[..6] == address(5).0 {
            break frame;
        }
    };
    assert_eq!(Some(received), finished);
}

#[test]
fn nothing_is_lost_between_two_guests() {
    const COUNT: u32 = 20_000;
    let running = Running::start(SwitchOptions::default());
    let [mut first, mut second] = [1, 2].map(|number| running.machine(number));
    let expected = first.frame(address(2).0, 0, 1500);
    let sending = thread::spawn(move || {
        for mark in 0..COUNT {
            first.send(first.frame(address(2).0, mark, 1500));
        }
        first
    });
    // The receiver begins late, when all buffers in between are full.
    thread::sleep(Duration::from_millis(300));
    for mark in 0..COUNT {
        let packet = second.packet();
        assert_eq!(packet.bytes[14..18], mark.to_be_bytes());
        assert_eq!(packet.bytes.len(), expected.bytes.len());
    }
    drop(sending.join().unwrap());
}

/// Sends packets there and back until neither machine needs the switch. Returns the mark of the last packet.
fn cut_short(running: &Running, first: &mut Machine, second: &mut Machine) -> u32 {
    for mark in 0.. {
        first.send(first.frame(address(2).0, mark, 60));
        assert_eq!(second.packet(), first.frame(address(2).0, mark, 60));
        second.send(second.frame(address(1).0, mark, 60));
        assert_eq!(first.packet(), second.frame(address(1).0, mark, 60));
        // Packets through the short cut are reported and counted from time to time.
        let passed = |port: &PortStatus| port.received + port.sent;
        let ports = running.switch.status().ports;
        if mark > 20 && passed(&ports[0]) < u64::from(mark) {
            return mark;
        }
        assert!(mark < 1_000_000, "all goes through the switch: {ports:?}");
    }
    unreachable!("numbers end");
}

#[test]
fn packets_between_two_guests_take_a_direct_connection() {
    let running = Running::start(SwitchOptions::default());
    let [mut first, mut second, mut third] = [1, 2, 3].map(|number| running.machine(number));
    let last = cut_short(&running, &mut first, &mut second);
    // Large and unfinished packets pass through it unchanged.
    let checksum = Some(PartialChecksum { start: 34, offset: 6 });
    let large = Packet { checksum, ..first.frame(address(2).0, last + 1, 60_000) };
    first.send(large.clone());
    assert_eq!(second.packet(), large);
    // Other machines get none of these packets, and all get those to everyone.
    first.send(first.frame(BROADCAST, last + 2, 60));
    assert_eq!(second.packet(), first.frame(BROADCAST, last + 2, 60));
    assert_eq!(third.packet(), first.frame(BROADCAST, last + 2, 60));
    // Packets from the address of another machine are dropped here, too.
    second.number = 3;
    second.send(second.frame(address(1).0, 9, 60));
    second.number = 2;
    second.send(second.frame(address(1).0, 10, 60));
    assert_eq!(first.packet(), second.frame(address(1).0, 10, 60));
    // Each receiving machine reports its packets from the short cut, and the reports arrive in any order.
    thread::sleep(Duration::from_millis(20));
    for machine in [&mut first, &mut second] {
        machine.door.fetch();
    }
    let sent = u64::from(last) + 1;
    let ports = running.wait_until(|ports| {
        ports[1].refused.get("spoofed") == Some(&1)
            && (ports[0].received, ports[0].sent) == (sent + 2, sent + 1)
            && (ports[1].received, ports[1].sent) == (sent + 2, sent + 2)
    });
    assert!(ports[0].received_bytes > 60_000 && ports[1].sent_bytes > 60_000, "{ports:?}");
}

#[test]
fn a_direct_connection_ends_with_either_machine() {
    let running = Running::start(SwitchOptions::default());
    let [mut first, mut second] = [1, 2].map(|number| running.machine(number));
    cut_short(&running, &mut first, &mut second);
    drop(second);
    running.wait_until(|ports| ports.len() == 1);
    first.door.fetch();
    let mut second = running.machine(2);
    first.send(first.frame(address(2).0, 7, 60));
    assert_eq!(second.packet(), first.frame(address(2).0, 7, 60));
    cut_short(&running, &mut first, &mut second);
}

#[test]
fn without_direct_connections_all_packets_go_through_the_switch() {
    for options in [
        SwitchOptions { short_cuts: false, ..SwitchOptions::default() },
        // The switch could not check the addresses of packets that do not go through it.
        SwitchOptions { filtered: false, ..SwitchOptions::default() },
    ] {
        let running = Running::start(options);
        let [mut first, mut second] = [1, 2].map(|number| running.machine(number));
        for mark in 0..200 {
            first.send(first.frame(address(2).0, mark, 60));
            assert_eq!(second.packet(), first.frame(address(2).0, mark, 60));
            assert_eq!(running.switch.status().ports[0].received, u64::from(mark) + 1);
        }
    }
}

#[test]
fn a_receiver_that_reads_nothing_does_not_block_the_others() {
    let running = Running::start(SwitchOptions { broadcasts: 0, ..SwitchOptions::default() });
    let [mut first, asleep, mut third] = [1, 2, 3].map(|number| running.machine(number));
    let to_all = |mark| first.frame(BROADCAST, mark, 1500);
    let frames: Vec<_> = (0..5000).map(to_all).collect();
    let last = first.frame(address(3).0, 99_999, 60);
    let sending = thread::spawn(move || {
        for frame in frames {
            first.send(frame);
        }
        for mark in 0..2000 {
            first.send(first.frame(address(2).0, mark, 1500));
        }
        first.send(first.frame(address(3).0, 99_999, 60));
        first
    });
    while third.packet() != last {}
    drop((sending.join().unwrap(), asleep));
}

#[test]
fn guests_reach_the_host_through_an_uplink() {
    let running = Running::start(SwitchOptions::default());
    let mut first = running.machine(1);
    let outside = running.directory.path().join("outside");
    let stream = |is_server| {
        Backend::Stream(StreamOptions {
            address: StreamAddress::Unix(outside.clone()),
            is_server,
            reconnect: None,
            headers: true,
        })
    };
    let (sender, door) = door();
    let network =
        ring3_net::open(&stream(true), &Card::new(DeviceId::NIC[0], sender, None)).unwrap();
    let mut router = Machine { number: 9, network, door };
    let uplink = running.switch.add_uplink("out", |card| ring3_net::open(&stream(false), &card));
    uplink.unwrap();
    first.send(first.frame(address(77).0, 1, 60));
    assert_eq!(router.packet(), first.frame(address(77).0, 1, 60), "nobody knows that one here");
    // Many addresses can be behind it, but none that belongs to a guest.
    for number in [77, 78, 1] {
        router.number = number;
        router.send(router.frame(address(1).0, number.into(), 60));
    }
    for number in [77_u32, 78] {
        assert_eq!(first.packet().bytes[14..18], number.to_be_bytes());
    }
    let ports = running.wait_until(|ports| ports.iter().any(|port| !port.refused.is_empty()));
    assert!(ports[1].uplink && ports[1].refused.get("spoofed") == Some(&1), "{ports:?}");
}

#[test]
fn an_answer_to_the_first_packet_of_a_port_is_not_lost() {
    let running = Running::start(SwitchOptions::default());
    let mut first = running.machine(1);
    let outside = running.directory.path().join("outside");
    let listener = UnixListener::bind(&outside).unwrap();
    let hello = [&BROADCAST[..], &address(77).0, &[8, 0], &[0; 46]].concat();
    let sending = thread::spawn(move || {
        let (mut router, _) = listener.accept().unwrap();
        router.set_read_timeout(Some(PATIENCE)).unwrap();
        router.write_all(&[&60_u32.to_be_bytes()[..], &hello].concat()).unwrap();
        router
    });
    let address_of_outside = StreamAddress::Unix(outside);
    let options = StreamOptions {
        address: address_of_outside,
        is_server: false,
        reconnect: None,
        headers: false,
    };
    let answering = thread::spawn(move || {
        assert_eq!(first.packet().source(), Some(address(77)));
        let answer = first.frame(address(77).0, 7, 60);
        first.send(answer.clone());
        (first, answer)
    });
    let uplink = running.switch.add_uplink("out", |card| {
        let network = ring3_net::open(&Backend::Stream(options), &card);
        // The packet arrives before the switch has attached the network.
        thread::sleep(Duration::from_millis(100));
        network
    });
    uplink.unwrap();
    let mut router = sending.join().unwrap();
    let (_first, answer) = answering.join().unwrap();
    let mut received = [0; 64];
    router.read_exact(&mut received).unwrap();
    assert_eq!(received[4..], answer.bytes);
}

#[test]
fn the_status_is_sent_to_a_client() {
    let running = Running::start(SwitchOptions::default());
    let _first = running.machine(1);
    let path = running.directory.path().join("status");
    let _file = tell_status(&path, running.switch.clone()).unwrap();
    let mut text = String::new();
    UnixStream::connect(&path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(
        serde_json::from_str::<ring3_net::switch::SwitchStatus>(&text).unwrap(),
        running.switch.status()
    );
    assert!(text.contains(&address(1).to_string()), "{text}");
}

#[test]
fn commands_are_answered() {
    let bandwidth = std::num::NonZero::new(1 << 20);
    let limited = Running::start(SwitchOptions { bandwidth, ..SwitchOptions::default() });
    let free = Running::start(SwitchOptions::default());
    for (running, answers_to_share) in [
        (&limited, r#"{"id":3,"return":{}}"#),
        (&free, "there is nothing to share: start the switch with --bandwidth"),
    ] {
        let _first = running.machine(1);
        let path = running.directory.path().join("control");
        let _file = take_commands(&path, running.switch.clone()).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut next = || lines.next().unwrap().unwrap();
        assert!(next().starts_with(r#"{"QMP":"#));
        let mut ask = |line: &str| {
            (&stream).write_all(format!("{line}\n").as_bytes()).unwrap();
            next()
        };
        assert_eq!(ask(r#"{"execute":"qmp_capabilities","id":1}"#), r#"{"id":1,"return":{}}"#);
        let ports = ask(r#"{"execute":"query-ports"}"#);
        assert!(ports.contains(&address(1).to_string()), "{ports}");
        let share = r#"{"execute":"share","id":3,"arguments":{"machines":[{"pid":1,"weight":0,"bandwidth":9}]}}"#;
        assert!(ask(share).contains(answers_to_share));
        for wrong in [
            "1",
            "[",
            r#"{"execute":"quit"}"#,
            r#"{"execute":"share","arguments":{"machines":[{"weight":1}]}}"#,
            r#"{"execute":"share","arguments":{"machines":[{"pid":1,"bandwidth":0}]}}"#,
            r#"{"execute":"share","arguments":{"machines":[{"pid":1,"weight":-1}]}}"#,
        ] {
            let answer = ask(wrong);
            assert!(answer.contains("the message is not a command: "), "{wrong}: {answer}");
        }
    }
}
