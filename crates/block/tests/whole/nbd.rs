//! Tests with exports of qemu-nbd and nbdkit, which go and come back, and with servers that break the
//! protocol.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::power::Random;
use crate::support::*;
use proptest::prelude::*;
use ring3_block::{Format, Image, OpenOptions};
use rustix::process::Signal;

/// A server process that ends with the test.
struct Server(Child);

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let child = Command::new("qemu-nbd").args(arguments).stdout(Stdio::null()).spawn();
        Server(child.expect("qemu-nbd runs: Debian package qemu-utils"))
    }

    /// Starts nbdkit, which also ends with this process.
    fn nbdkit(socket: &Path, arguments: &[&str]) -> Server {
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.args(["--exit-with-parent", "-f", "-U", text(socket)]).args(arguments);
        Server(nbdkit.stdout(Stdio::null()).spawn().expect("nbdkit runs: Debian package nbdkit"))
    }

    fn signal(&self, signal: Signal) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Opens the export as soon as the server listens.
    fn open(&mut self, address: &str, options: &OpenOptions) -> Image {
        loop {
            match Image::open(Path::new(address), options) {
                Ok(image) => return image,
                Err(error) => {
                    assert!(self.0.try_wait().unwrap().is_none(), "the server has ended: {error}");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn raw(writes: bool) -> OpenOptions {
    OpenOptions { format: Some(Format::Raw), writes, ..OpenOptions::default() }
}

const SIZE: u64 = (2 << 20) + 1536;

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn operations_agree_with_a_model(is_qcow2 in any::<bool>(), operations in operations(SIZE, 30)) {
        let directory = tempfile::tempdir().unwrap();
        let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
        let format = if is_qcow2 { Format::Qcow2 } else { Format::Raw };
        make(&path, &options(format, SIZE, &[]));
        // The server knows the format, so its export is the disk itself.
        let mut server = Server::start(&["-t", "-e", "4", "-f", format.name(), "--discard=unmap", "-x", "disk", "-k", text(&socket), text(&path)]);
        let address = format!("nbd+unix:///disk?socket={}", text(&socket));
        let mut model = vec![0; SIZE as usize];
        let first = server.open(&address, &raw(true));
        let reopen = || Image::open(Path::new(&address), &raw(true)).unwrap();
        let image = act(first, &mut model, &operations, &reopen);
        prop_assert!(read_all(&image) == model);
        check_map(&image);
        image.close().unwrap();
        drop(server);
        check_with_qemu(&path, format, &model, is_qcow2);
    }
}

#[test]
fn formats_are_within_exports() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(&path, &options(Format::Qcow2, 1 << 20, &[]));
    // An export does not grow, so the file needs room for the clusters.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4 << 20).unwrap();
    // A port that is free at this moment.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Server::start(&[
        "-t",
        "-f",
        "raw",
        "-b",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        text(&path),
    ]);
    let address = format!("nbd://127.0.0.1:{port}");
    let image = server.open(&address, &OpenOptions { writes: true, ..OpenOptions::default() });
    assert_eq!(image.format(), Format::Qcow2);
    let bytes = pattern(0, 200_000, 1);
    image.write_at(&bytes, 100).unwrap();
    image.close().unwrap();
    // The export can also be a backing image.
    let above = directory.path().join("above");
    let mut options = options(Format::Qcow2, 1 << 20, &[]);
    options.backing =
        Some(ring3_block::BackingName { name: address, format: Some("qcow2".to_owned()) });
    make(&above, &options);
    let mut read = vec![0; bytes.len()];
    open_as(&above, &OpenOptions::default()).unwrap().read_at(&mut read, 100).unwrap();
    assert!(read == bytes);
}

#[test]
fn the_reason_of_a_refusing_server_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&path, &options(Format::Raw, 1 << 20, &[]));
    let mut server =
        Server::start(&["-t", "-r", "-f", "raw", "-x", "disk", "-k", text(&socket), text(&path)]);
    let address =
        |export: &str| format!("nbd+unix:///{export}?reconnect-delay=0&socket={}", text(&socket));
    server.open(&address("disk"), &raw(false));
    let error = Image::open(Path::new(&address("other")), &raw(false)).unwrap_err().to_string();
    assert!(error.contains("refuses the export"), "{error}");
    let error = Image::open(Path::new(&address("disk")), &raw(true)).unwrap_err().to_string();
    assert!(error.contains("exports it for reading only"), "{error}");
    let error = Image::open(Path::new("nbd+unix:///x"), &raw(true)).unwrap_err().to_string();
    assert!(error.contains("give an address as nbd://"), "{error}");
    let image = server.open(&address("disk"), &raw(false));
    drop(server);
    image.read_at(&mut [0; 512], 0).unwrap_err();
    let error = image.read_at(&mut [0; 512], 0).unwrap_err().to_string();
    assert!(error.contains("was lost before"), "{error}");
}

/// Starts a server that sends `all`, one element to each client, whatever they ask, and closes the
/// connections.
fn babble(socket: PathBuf, all: Vec<Vec<u8>>) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for bytes in all {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            // Requests are read and dropped until the client closes the connection, however long a busy
            // host lets it wait: it must not see a reset connection.
            let mut asked = [0; 4096];
            while stream.read(&mut asked).is_ok_and(|len| len > 0) {}
        }
    })
}

#[test]
fn a_server_that_sends_garbage_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    // A valid handshake: no structured replies, an export of 1 MiB, and the reply to the first read.
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let head = [
            0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec(),
            option.to_be_bytes().to_vec(),
            kind.to_be_bytes().to_vec(),
        ]
        .concat();
        [head, (data.len() as u32).to_be_bytes().to_vec(), data.to_vec()].concat()
    };
    let info = [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[0, 5]].concat();
    let read =
        [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &1_u64.to_be_bytes(), &[7; 512]].concat();
    let good = [
        b"NBDMAGICIHAVEOPT\0\x03".to_vec(),
        reply(8, 1 << 31 | 1, b""),
        reply(7, 3, &info),
        reply(7, 1, b""),
        read,
    ]
    .concat();
    let mut random = Random(5);
    let mut all = vec![good.clone()];
    for _ in 0..200 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        bytes.truncate(random.below(good.len() as u64 * 2) as usize + 1);
        all.push(bytes);
    }
    let count = all.len();
    let server = babble(socket.clone(), all);
    let address = format!("nbd+unix:///?reconnect-delay=0&socket={}", text(&socket));
    let mut has_read = 0;
    for index in 0..count {
        // Opening an image reads its first 512 bytes, for which the reply was prepared.
        if let Ok(image) = Image::open(Path::new(&address), &raw(false)) {
            has_read += 1;
            let _ = image.map(0, 100);
            let _ = image.read_at(&mut [0; 100], 0);
        } else {
            assert!(index > 0, "the handshake as it should be is refused");
        }
    }
    assert!(has_read > 0);
    server.join().unwrap();
}

/// Reads and writes 4 KiB pieces of the part of the disk that belongs to this thread, and compares them with
/// the values that it wrote, as long as `goes_on` returns true for a round. Flushes every hundredth time.
fn work(image: &Image, thread: u64, goes_on: impl Fn(u64) -> bool) {
    const PIECES: u64 = 64;
    let mut random = Random(thread + 1);
    let mut model = vec![0_u8; PIECES as usize];
    for round in (0..).take_while(|round| goes_on(*round)) {
        let piece = random.below(PIECES);
        let at = (thread * PIECES + piece) * 4096;
        if random.below(2) == 0 {
            let value = random.below(255) as u8 + 1;
            image.write_at(&[value; 4096], at).unwrap();
            model[piece as usize] = value;
        } else {
            let mut bytes = [0; 4096];
            image.read_at(&mut bytes, at).unwrap();
            assert!(bytes == [model[piece as usize]; 4096], "thread {thread}, round {round}");
        }
        if round % 100 == 99 {
            image.flush().unwrap();
        }
    }
}

#[test]
fn answers_come_in_any_order() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    // Reads take 1 ms longer, and writes 3 ms, so answers overtake each other.
    let mut server = Server::nbdkit(
        &socket,
        &[
            "--filter=error",
            "--filter=delay",
            "memory",
            "64M",
            "rdelay=1ms",
            "wdelay=3ms",
            "error-rate=0",
        ],
    );
    let image = server.open(&format!("nbd+unix:///?socket={}", text(&socket)), &raw(true));
    std::thread::scope(|scope| {
        for thread in 0..24 {
            let image = &image;
            scope.spawn(move || work(image, thread, |round| round < 200));
        }
    });
    // A large request is divided, and so is one that does not begin and end with blocks.
    let bytes = pattern(3, 3 << 20, 1);
    image.write_at(&bytes, 12345).unwrap();
    let mut read = vec![0; bytes.len()];
    image.read_at(&mut read, 12345).unwrap();
    assert!(read == bytes);
}

#[test]
fn a_file_behind_nbdkit_has_the_written_data() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&path, &options(Format::Raw, 8 << 20, &[]));
    let mut server = Server::nbdkit(&socket, &["file", text(&path)]);
    let image = server.open(&format!("nbd+unix:///?socket={}", text(&socket)), &raw(true));
    let bytes = pattern(1, 1 << 20, 1);
    image.write_at(&bytes, 4 << 20).unwrap();
    image.write_zeroes(4 << 20, 4096).unwrap();
    let data = image.map(0, 8 << 20).unwrap();
    assert!(data.is_zero() && data.len >= 4 << 20, "{data:?}");
    image.close().unwrap();
    let file = std::fs::read(&path).unwrap();
    assert!(file[4 << 20..][..4096].iter().all(|byte| *byte == 0));
    assert!(file[(4 << 20) + 4096..5 << 20] == bytes[4096..]);
}

#[test]
fn a_server_that_is_killed_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&path, &options(Format::Raw, 4 << 20, &[]));
    let start = || Server::start(&["-t", "-f", "raw", "-k", text(&socket), text(&path)]);
    let mut server = start();
    let image = server.open(&format!("nbd+unix:///?socket={}", text(&socket)), &raw(true));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (image, is_over) = (&image, &is_over);
            scope.spawn(move || work(image, thread, |_| !is_over.load(Ordering::Relaxed)));
        }
        for _ in 0..8 {
            // On a busy host it takes a while until the server is there.
            while !socket.exists() {
                assert_eq!(server.0.try_wait().unwrap(), None, "the server runs");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(300));
            server.signal(Signal::KILL);
            server.0.wait().unwrap();
            std::fs::remove_file(&socket).unwrap();
            server = start();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    image.close().unwrap();
}

#[test]
fn writes_that_a_server_lost_are_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&path, &options(Format::Raw, 4 << 20, &[]));
    let mut server = Server::start(&["-t", "-f", "raw", "-k", text(&socket), text(&path)]);
    let image = server.open(&format!("nbd+unix:///?socket={}", text(&socket)), &raw(true));
    image.write_at(&pattern(0, 1 << 20, 1), 0).unwrap();
    image.flush().unwrap();
    let flushed = std::fs::read(&path).unwrap();
    // These changes are never flushed. They overlap with flushed ones, and with each other.
    let last = pattern(0, 1 << 20, 2);
    image.write_at(&[9; 8192], 4096).unwrap();
    image.write_at(&last, 100).unwrap();
    image.write_zeroes(65536, 65536).unwrap();
    let mut model = vec![0; 4 << 20];
    model[..1 << 20].copy_from_slice(&flushed[..1 << 20]);
    model[100..][..1 << 20].copy_from_slice(&last);
    model[65536..][..65536].fill(0);
    drop(server);
    // The server's host has died, and only flushed data are left.
    std::fs::write(&path, &flushed).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let server = Server::start(&["-t", "-f", "raw", "-k", text(&socket), text(&path)]);
    assert!(read_all(&image) == model);
    image.close().unwrap();
    drop(server);
    assert!(std::fs::read(&path).unwrap() == model);
}

#[test]
fn requests_wait_for_a_server_that_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&path, &options(Format::Raw, 1 << 20, &[]));
    let mut server =
        Server::start(&["-t", "-e", "8", "-f", "raw", "-k", text(&socket), text(&path)]);
    let address = format!("nbd+unix:///?socket={}", text(&socket));
    let waits = server.open(&address, &raw(true));
    let leaves = server.open(&format!("{address}&timeout=1"), &raw(false));
    let fails = server.open(&format!("{address}&timeout=1&reconnect-delay=0"), &raw(false));
    let ends = server.open(&address, &raw(false));
    server.signal(Signal::STOP);
    let error = fails.read_at(&mut [0; 512], 0).unwrap_err().to_string();
    assert!(error.contains("has not answered for 1 s"), "{error}");
    std::thread::scope(|scope| {
        let last = scope.spawn(|| ends.read_at(&mut [0; 512], 0));
        let waiting = scope.spawn(|| waits.write_at(&[5; 512], 512));
        let leaving = scope.spawn(|| leaves.read_at(&mut [0; 512], 0));
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!waiting.is_finished() && !leaving.is_finished() && !last.is_finished());
        // Then this request is no longer waited for.
        ends.give_up();
        last.join().unwrap().unwrap_err();
        server.signal(Signal::CONT);
        waiting.join().unwrap().unwrap();
        leaving.join().unwrap().unwrap();
    });
    let mut read = [0; 512];
    leaves.read_at(&mut read, 512).unwrap();
    assert_eq!(read, [5; 512]);
}

#[test]
fn a_server_that_does_not_come_back_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&path, &options(Format::Raw, 1 << 20, &[]));
    let start = || Server::start(&["-t", "-f", "raw", "-k", text(&socket), text(&path)]);
    let address =
        format!("nbd+unix:///?reconnect-delay=1&open-timeout=60&socket={}", text(&socket));
    std::thread::scope(|scope| {
        // The image can be opened before the server is there.
        let opened = scope.spawn(|| Image::open(Path::new(&address), &raw(true)).unwrap());
        std::thread::sleep(Duration::from_millis(200));
        let server = start();
        let image = opened.join().unwrap();
        image.write_at(&[3; 512], 0).unwrap();
        drop(server);
        std::fs::remove_file(&socket).unwrap();
        image.read_at(&mut [0; 512], 0).unwrap_err();
        image.read_at(&mut [0; 512], 0).unwrap_err();
        // A server that comes later with a disk of another size is refused.
        make(&path, &options(Format::Raw, 2 << 20, &[]));
        let mut server = start();
        server.open(&address, &raw(false));
        let error = image.read_at(&mut [0; 512], 0).unwrap_err().to_string();
        assert!(error.contains("a different export"), "{error}");
        drop(server);
        std::fs::remove_file(&socket).unwrap();
        make(&path, &options(Format::Raw, 1 << 20, &[]));
        let mut server = start();
        server.open(&address, &raw(false));
        let mut read = [0; 512];
        image.read_at(&mut read, 0).unwrap();
        assert_eq!(read, [3; 512]);
    });
}
