//! Tests with NBD clients that misbehave: they hang up, send nothing, read nothing, send slowly, or send
//! garbage. Other clients are served nevertheless, and the threads, memory and wake-ups that the server
//! spends on such clients are bounded.
//!
//! Clients that misbehave connect from 127.0.0.2, and the others from 127.0.0.1, so they are different peers.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ring3_block::nbd::protocol::*;
use ring3_block::{Format, Image, OpenOptions};
use ring3_vblock::{Access, DeviceOptions, MEMORY_MAX, MEMORY_OF_A_CONNECTION, NbdAddress, Server};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// How long a step may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(300);
const SIZE: u64 = 64 << 20;
/// Number of threads of a server with one device and one NBD server, without those of connections.
const THREADS: usize = 8;
/// Upper bound of the connections of an NBD server.
const CONNECTIONS: usize = 128;

/// A server with one disk for one client, and the address of its NBD server.
struct Served {
    server: Server,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Served {
    /// Starts the server for the client `name`, by which its threads are named too.
    fn start(name: &str) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("disk");
        fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
        let server = Server::default();
        let options = DeviceOptions {
            file,
            format: Some(Format::Raw),
            read_only: false,
            no_external_files: false,
        };
        server.add_device("disk", &options).unwrap();
        server.grant(name, "disk", Access::ReadWrite, None).unwrap();
        let any = NbdAddress::Tcp(([127, 0, 0, 1], 0).into());
        let address = server.start_nbd(name, &any).unwrap();
        let NbdAddress::Tcp(address) = address else { panic!("{address}") };
        Served { server, address, _directory: directory }
    }

    fn connections(&self) -> usize {
        self.server.clients()[0].nbd_connections
    }

    /// Returns a connection from 127.0.0.2.
    fn peer(&self) -> TcpStream {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        connect(&socket, &self.address).unwrap();
        socket.into()
    }

    /// Returns a connection from 127.0.0.2 that has chosen the export.
    fn connected(&self) -> TcpStream {
        let mut peer = self.peer();
        peer.read_exact(&mut [0; 18]).unwrap();
        let mut option = u32::from(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes().to_vec();
        option.extend(&MAGIC[8..]);
        option.extend(EXPORT_NAME.to_be_bytes());
        option.extend(4_u32.to_be_bytes());
        option.extend(b"disk");
        peer.write_all(&option).unwrap();
        peer.read_exact(&mut [0; 10]).unwrap();
        peer
    }

    /// Tests that a client that behaves can read and write.
    #[track_caller]
    fn serves(&self) {
        let path = format!("nbd://{}/disk", self.address);
        let options =
            OpenOptions { format: Some(Format::Raw), writes: true, ..OpenOptions::default() };
        let mut bytes = vec![7; 1 << 20];
        // If clients of the same peer are in the way, it must wait until one of them has had enough time.
        let end = Instant::now() + PATIENCE;
        let image = loop {
            match Image::open(Path::new(&path), &options) {
                Ok(image) => break image,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            sleep(Duration::from_millis(10));
        };
        image.write_at(&bytes, 4096).unwrap();
        image.flush().unwrap();
        bytes.fill(0);
        image.read_at(&mut bytes, 4096).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        self.is_bounded();
    }

    #[track_caller]
    fn is_bounded(&self) {
        assert!(self.connections() <= CONNECTIONS);
        assert!(self.server.memory() <= MEMORY_MAX + CONNECTIONS * MEMORY_OF_A_CONNECTION);
    }
}

fn request(kind: Command, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST.to_be_bytes().to_vec();
    bytes.extend(0_u16.to_be_bytes());
    bytes.extend((kind as u16).to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

#[track_caller]
fn wait_until(complaint: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < end, "{complaint}");
        sleep(Duration::from_millis(5));
    }
}

/// Returns the threads of this process whose names begin with `name`.
fn threads(name: &str) -> Vec<std::path::PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let is_named = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    tasks.filter(is_named).collect()
}

#[test]
fn half_open_connections_do_not_keep_clients_out() {
    let served = Served::start("half");
    let peers: Vec<_> = (0..200).map(|_| served.peer()).collect();
    served.serves();
    drop(peers);
    wait_until("they stay", || served.connections() == 0);
}

#[test]
fn idle_connections_do_not_keep_clients_out() {
    let served = Served::start("idle");
    let peers: Vec<_> = (0..60).map(|_| served.connected()).collect();
    let halves: Vec<_> = (0..60).map(|_| served.peer()).collect();
    served.serves();
    // Each connection has one thread, which sleeps.
    let threads = threads("nbd idle");
    assert!(threads.len() <= CONNECTIONS + THREADS, "{}", threads.len());
    drop((peers, halves));
    wait_until("they stay", || served.connections() == 0);
}

#[test]
fn a_client_that_reads_nothing_holds_little_memory() {
    let served = Served::start("nothing");
    // They ask for more memory than there is: each of them, in turn, must have accepted nothing for long enough.
    let mut peers: Vec<_> = (0..10).map(|_| served.connected()).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        for index in 0..64 {
            let len = if number % 2 == 0 { 1 << 20 } else { 32 << 20 };
            peer.write_all(&request(Command::Read, index * 4096, len)).unwrap();
        }
    }
    served.serves();
    // A client that wants much memory gets it once the others have had their time.
    let mut large = served.connected();
    large.write_all(&request(Command::Read, 0, 32 << 20)).unwrap();
    let mut reply = vec![0; 16 + (32 << 20)];
    large.read_exact(&mut reply).unwrap();
    served.is_bounded();
    drop((peers, large));
    wait_until("they stay", || served.connections() == 0 && served.server.memory() == 0);
}

#[test]
fn a_client_that_sends_slowly_holds_little_memory() {
    let served = Served::start("slow");
    let mut peers: Vec<_> = (0..32).map(|_| served.connected()).collect();
    for peer in &mut peers {
        // The rest of the data never comes.
        peer.write_all(&request(Command::Write, 0, 32 << 20)).unwrap();
        peer.write_all(&[1; 1000]).unwrap();
    }
    // This message never gets beyond its first byte.
    let mut slow = served.peer();
    slow.write_all(&[0]).unwrap();
    served.serves();
    drop(peers);
    wait_until("they stay", || served.server.memory() == 0);
}

/// A client that hangs up while its requests are in flight is removed at once. Its thread, which waits for
/// memory or for the client, does not poll.
#[test]
fn a_client_that_hangs_up_is_removed() {
    let served = Served::start("gone");
    for rounds in 0..20 {
        let mut peer = served.connected();
        for index in 0..64 {
            let kind = [Command::Read, Command::WriteZeroes, Command::Flush][rounds % 3];
            peer.write_all(&request(kind, index * 4096, 1 << 20)).unwrap();
        }
        drop(peer);
    }
    wait_until("they stay", || served.connections() == 0 && served.server.memory() == 0);
    // If a client announces that it disconnects, all its requests are executed.
    let mut peer = served.connected();
    peer.write_all(&request(Command::Write, 8192, 4096)).unwrap();
    peer.write_all(&[9; 4096]).unwrap();
    peer.write_all(&request(Command::Disconnect, 0, 0)).unwrap();
    drop(peer);
    wait_until("it stays", || served.connections() == 0);
    let mut bytes = vec![0; 4096];
    let path = format!("nbd://{}/disk", served.address);
    Image::open(Path::new(&path), &OpenOptions::default())
        .unwrap()
        .read_at(&mut bytes, 8192)
        .unwrap();
    assert!(bytes.iter().all(|byte| *byte == 9));
}

/// Bounds the wake-ups of the threads of clients that read nothing, have shut down one direction, or do
/// nothing.
#[test]
fn waiting_for_clients_takes_no_processor_time() {
    let served = Served::start("rest");
    let idle = served.connected();
    let mut deaf = served.connected();
    for index in 0..64 {
        deaf.write_all(&request(Command::Read, index * 4096, 32 << 20)).unwrap();
    }
    let half = served.connected();
    half.shutdown(std::net::Shutdown::Read).unwrap();
    let switches = || {
        let count = |task: &std::path::PathBuf| {
            let status = fs::read_to_string(task.join("status")).unwrap_or_default();
            let value = |key: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(key));
                line.map_or(0, |value| value.trim().parse::<u64>().unwrap())
            };
            value("voluntary_ctxt_switches:") + value("nonvoluntary_ctxt_switches:")
        };
        threads("nbd rest").iter().map(count).sum::<u64>()
    };
    // First everything must settle.
    let mut before = switches();
    wait_until("there is no rest", || {
        sleep(Duration::from_millis(300));
        let now = switches();
        std::mem::replace(&mut before, now) == now
    });
    sleep(Duration::from_secs(3));
    let during = switches() - before;
    assert!(during <= 100, "{during}");
    drop((idle, deaf, half));
}

/// Sends invalid handshakes and invalid requests.
#[test]
fn garbage_does_not_disturb_other_clients() {
    let served = Served::start("noise");
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..len).map(|_| next()).collect()
    };
    for round in 0..200 {
        let mut peer = if round % 2 == 0 { served.peer() } else { served.connected() };
        let mut bytes = noise(300);
        if round % 4 == 3 {
            // This looks like a request, with arbitrary fields.
            bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
            bytes[4..6].fill(0);
            bytes[6] = 0;
            bytes[7] %= 8;
            bytes[16..20].fill(0);
        }
        // The server may cut the connection in the middle of the message.
        let _ = peer.write_all(&bytes);
    }
    served.serves();
    wait_until("they stay", || served.connections() == 0 && served.server.memory() == 0);
}

/// Ends a server while connections in all states are open.
#[test]
fn a_server_ends_while_clients_are_connected() {
    let served = Served::start("end");
    let half = served.peer();
    let idle = served.connected();
    let mut deaf = served.connected();
    for index in 0..64 {
        deaf.write_all(&request(Command::Read, index * 4096, 32 << 20)).unwrap();
    }
    let served = Arc::new(served);
    served.server.close();
    assert_eq!(served.server.clients(), []);
    drop((half, idle, deaf));
}
