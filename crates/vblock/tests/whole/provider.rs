//! Tests of providers: programs that bring their own disks, and take them back, or die.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ring3_vblock::{
    Access, DeviceOptions, NbdAddress, ProviderOptions, Right, Server, VhostUserOptions,
};
use ring3_vblock_client::lobby::Lobby;
use ring3_vblock_client::{Act, Disk};

const LEN: u64 = 4 << 20;
/// How long a step may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that has an image, and an NBD server for it at `nbd`.
fn image_server(directory: &Path) -> Server {
    let file = directory.join("image");
    File::create(&file).unwrap().set_len(LEN).unwrap();
    let server = Server::default();
    let options = DeviceOptions {
        file,
        format: Some(ring3_block::Format::Raw),
        read_only: false,
        no_external_files: false,
    };
    server.add_device("disk", &options).unwrap();
    server.grant("me", "disk", Access::ReadWrite, None).unwrap();
    server.start_nbd("me", &NbdAddress::Unix(directory.join("nbd"))).unwrap();
    server
}

fn say(stream: &mut UnixStream, command: &str, arguments: &str) {
    let message = format!("{{\"execute\": \"{command}\", \"arguments\": {{{arguments}}}}}\n");
    stream.write_all(message.as_bytes()).unwrap();
}

/// Sends a command on a connection of its own, and returns the answer.
fn tell(directory: &Path, command: &str, arguments: &str) -> String {
    let mut stream = UnixStream::connect(directory.join("provider")).unwrap();
    say(&mut stream, command, arguments);
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

/// A connection by which the program serves its image.
struct Serves([UnixStream; 2]);

impl Serves {
    fn begin(directory: &Path) -> Serves {
        let mut outside = UnixStream::connect(directory.join("provider")).unwrap();
        let inside = UnixStream::connect(directory.join("nbd")).unwrap();
        say(&mut outside, "serve", "\"device\": \"disk\"");
        let streams = [outside, inside];
        for (from, to) in [(0, 1), (1, 0)] {
            let mut from = streams[from].try_clone().unwrap();
            let mut to = streams[to].try_clone().unwrap();
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        Serves(streams)
    }
}

/// The program dies.
impl Drop for Serves {
    fn drop(&mut self) {
        let _ = self.0[0].shutdown(Shutdown::Both);
    }
}

/// A server with a provider `p`, whose disk `vm` may use at a socket.
fn server(directory: &Path) -> Arc<Server> {
    let server = Arc::new(Server::default());
    let vhost_user = Some(VhostUserOptions { socket: directory.join("vm"), queues: 1 });
    let (client, device) = ("vm".to_owned(), "p.disk".to_owned());
    let right = Right { client, device, access: Access::ReadWrite, vhost_user };
    let options = ProviderOptions::new("p".to_owned(), directory.join("provider"), "a:b", None);
    server.start_provider(&ProviderOptions { rights: vec![right], ..options }).unwrap();
    server
}

fn names(server: &Server) -> Vec<String> {
    server.devices().into_iter().map(|device| device.name).collect()
}

fn wait_for(mut ready: impl FnMut() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < PATIENCE, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the disk when its socket is there.
fn connected(directory: &Path) -> Disk {
    wait_for(|| directory.join("vm").exists());
    Disk::connect(&directory.join("vm")).unwrap()
}

#[test]
fn a_provider_adds_a_disk_dies_comes_back_and_takes_the_disk_back() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let _images = image_server(directory);
    let server = server(directory);
    let first = Serves::begin(directory);
    let disk = connected(directory);
    assert_eq!((disk.sectors(), disk.is_read_only()), (LEN / 512, false));
    assert_eq!(names(&server), ["p.disk"]);
    disk.execute(Act::Write(&[1; 4096]), 0).unwrap();
    // It dies, and what is not flushed with it; requests wait for the next one.
    drop(first);
    let second = thread::scope(|scope| {
        let waits = scope.spawn(|| disk.execute(Act::Write(&[2; 4096]), 8));
        let second = Serves::begin(directory);
        waits.join().unwrap().unwrap();
        second
    });
    // Further connections wait until one is lost.
    let spare = Serves::begin(directory);
    drop(second);
    disk.execute(Act::Flush, 0).unwrap();
    let mut there = [0; 8192];
    File::open(directory.join("image")).unwrap().read_exact(&mut there).unwrap();
    assert_eq!((there[0], there[4095], there[4096], there[8191]), (1, 1, 2, 2));
    // It takes the disk back while a request waits.
    drop(spare);
    thread::scope(|scope| {
        let waits = scope.spawn(|| disk.execute(Act::Read(4096), 0));
        assert!(tell(directory, "device-del", "\"device\": \"disk\"").contains("return"));
        wait_for(|| names(&server).is_empty());
        disk.give_up();
        assert!(waits.join().unwrap().is_err());
    });
    assert!(server.clients().is_empty());
    // It brings the disk again.
    let _again = Serves::begin(directory);
    let disk = connected(directory);
    assert_eq!(disk.execute(Act::Read(4096), 8).unwrap(), [2; 4096]);
    server.stop_provider("p").unwrap();
    assert!(names(&server).is_empty() && !directory.join("provider").exists());
}

#[test]
fn a_provider_has_rights_over_its_own_disks_alone() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let images = image_server(directory);
    let server = server(directory);
    let _serves = Serves::begin(directory);
    wait_for(|| names(&server) == ["p.disk"]);
    for (command, arguments, reason) in [
        ("grant", "\"client\": \"a\", \"device\": \"disk\", \"access\": \"rw\"", "return"),
        ("grant", "\"client\": \"vm\", \"device\": \"disk\", \"access\": \"r\"", "may not give"),
        ("grant", "\"client\": \"b\", \"device\": \"other\", \"access\": \"r\"", "no device"),
        ("grant", "\"client\": \"b\", \"device\": \"p.disk\", \"access\": \"r\"", "no device"),
        ("revoke", "\"client\": \"vm\", \"device\": \"disk\"", "may not give"),
        ("revoke", "\"client\": \"a\", \"device\": \"disk\"", "return"),
        ("device-del", "\"device\": \"../x\"", "no device"),
        ("serve", "\"device\": \"a/b\"", "not a valid name"),
        ("serve", "\"device\": \"b.disk\"", "has a dot"),
        ("device-add", "\"name\": \"x\", \"file\": \"/etc/passwd\"", "not a command"),
        ("quit", "", "not a command"),
    ] {
        let answer = tell(directory, command, arguments);
        assert!(answer.contains(reason), "{command} {arguments}: {answer}");
    }
    assert_eq!(names(&server), ["p.disk"]);
    drop(images);
}

/// Rights to a provider's disk are there before the disk, and after it was taken back.
#[test]
fn rights_can_come_before_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let _images = image_server(directory);
    let server = server(directory);
    let grant = |device| server.grant("early", device, Access::Read, None);
    grant("p.disk").unwrap();
    assert!(grant("p.disk").unwrap_err().to_string().contains("already has a right"));
    for other in ["q.disk", "p.x.disk", "disk"] {
        assert!(grant(other).unwrap_err().to_string().contains("no device"), "{other}");
    }
    assert!(server.clients().is_empty());
    let has_rights = |clients: &[&str]| {
        let there = server.clients().into_iter().map(|client| client.name);
        there.collect::<Vec<_>>() == clients
    };
    for _ in 0..2 {
        let _serves = Serves::begin(directory);
        wait_for(|| has_rights(&["early", "vm"]));
        assert!(tell(directory, "device-del", "\"device\": \"disk\"").contains("return"));
        wait_for(|| has_rights(&[]));
    }
    let [status] = &server.provider_states()[..] else { panic!("there is one provider") };
    let rights = status.rights.iter().map(|right| (right.client.as_str(), right.access));
    let both = [("vm", Access::ReadWrite), ("early", Access::Read)];
    assert_eq!(rights.collect::<Vec<_>>(), both);
    server.revoke("vm", "p.disk").unwrap();
    assert!(server.revoke("vm", "p.disk").is_err());
    let _serves = Serves::begin(directory);
    wait_for(|| has_rights(&["early"]));
    server.revoke("early", "p.disk").unwrap();
    assert!(server.clients().is_empty() && server.provider_states()[0].rights.is_empty());
}

/// Returns whether the provider at the other end of `stream` begins as an NBD server.
fn is_nbd(stream: OwnedFd) -> bool {
    let mut stream = UnixStream::from(stream);
    let mut magic = [0; 8];
    stream.read_exact(&mut magic).is_ok() && &magic == b"NBDMAGIC"
}

#[test]
fn clients_are_introduced_to_the_provider() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let _images = image_server(directory);
    let server = server(directory);
    let _serves = Serves::begin(directory);
    wait_for(|| server.clients().len() == 1);
    server.start_lobby("vm", &directory.join("near")).unwrap();
    server.start_lobby("r", &directory.join("reader")).unwrap();
    server.grant("r", "p.disk", Access::Read, None).unwrap();
    let mut lobby = Lobby::connect(&directory.join("near")).unwrap();
    let error = lobby.open("p.disk", true).unwrap_err().to_string();
    assert!(error.contains("must make more connections"), "{error}");
    let _spares = [Serves::begin(directory), Serves::begin(directory), Serves::begin(directory)];
    let mut reader = Lobby::connect(&directory.join("reader")).unwrap();
    let error = reader.open("p.disk", true).unwrap_err().to_string();
    assert!(error.contains("only a client with the right rw"), "{error}");
    let mut first = None;
    wait_for(|| {
        first = lobby.open("p.disk", true).ok();
        first.is_some()
    });
    assert!(is_nbd(first.unwrap()));
    // The next introduction ends the one before, and so does the end of the right.
    let second = UnixStream::from(lobby.open("p.disk", true).unwrap());
    let mut copy = second.try_clone().unwrap();
    assert!(is_nbd(second.into()));
    server.revoke("vm", "p.disk").unwrap();
    copy.read_to_end(&mut Vec::new()).unwrap();
    let error = lobby.open("p.disk", true).unwrap_err().to_string();
    assert!(error.contains("has no right"), "{error}");
}

#[test]
fn hostile_providers_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let server = server(directory);
    // A line without an end.
    let mut stream = UnixStream::connect(directory.join("provider")).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let endless = (0..1000).try_for_each(|_| stream.write_all(&[b'x'; 4096]));
    assert!(endless.is_err());
    // Servers that say nothing that makes sense, and nothing at all.
    for greeting in [&b"220 smtp.example ESMTP and more than eighteen bytes\r\n"[..], b""] {
        let mut stream = UnixStream::connect(directory.join("provider")).unwrap();
        say(&mut stream, "serve", "\"device\": \"disk\"");
        stream.write_all(greeting).unwrap();
        // It learns of the end of the connection.
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap_or_default();
    }
    // More disks than it may have.
    let mut held = Vec::new();
    for number in 0..24 {
        let mut stream = UnixStream::connect(directory.join("provider")).unwrap();
        say(&mut stream, "serve", &format!("\"device\": \"d{number}\""));
        stream.set_nonblocking(true).unwrap();
        held.push(stream);
    }
    let mut refused = 0;
    wait_for(|| {
        for stream in &mut held {
            let mut answer = [0; 512];
            let len = stream.read(&mut answer).unwrap_or(0);
            refused += usize::from(String::from_utf8_lossy(&answer[..len]).contains("16 devices"));
        }
        // The one from before may still be there.
        (8..10).contains(&refused)
    });
    assert!(names(&server).is_empty());
    drop(held);
    // The server serves on.
    let _images = image_server(directory);
    wait_for(|| {
        let _serves = Serves::begin(directory);
        thread::sleep(Duration::from_millis(50));
        names(&server) == ["p.disk"]
    });
}
