//! Exports of qemu-nbd, and of servers that do not keep to the protocol.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use ring3_block::{Format, Image, OpenOptions};
use support::power::Random;
use support::*;

/// A server that ends with the test.
struct Server(Child);

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let child = Command::new("qemu-nbd").args(arguments).stdout(Stdio::null()).spawn();
        Server(child.expect("qemu-nbd runs: Debian package qemu-utils"))
    }

    /// Opens the export, as soon as the server listens.
    fn open(&mut self, address: &str, options: &OpenOptions) -> Image {
        loop {
            match Image::open(Path::new(address), options) {
                Ok(image) => return image,
                Err(error) => {
                    assert!(self.0.try_wait().unwrap().is_none(), "qemu-nbd has ended: {error}");
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
    fn operations_do_what_they_do_to_a_model(is_qcow2 in any::<bool>(), operations in operations(SIZE, 30)) {
        let directory = tempfile::tempdir().unwrap();
        let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
        let format = if is_qcow2 { Format::Qcow2 } else { Format::Raw };
        make(&path, &options(format, SIZE, &[]));
        // The server has the format, or it is within the export.
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
    // Room for clusters: an export does not grow.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4 << 20).unwrap();
    // A port that is free now.
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
    // As the file below another image too.
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
fn what_a_server_refuses_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&path, &options(Format::Raw, 1 << 20, &[]));
    let mut server =
        Server::start(&["-t", "-r", "-f", "raw", "-x", "disk", "-k", text(&socket), text(&path)]);
    let address = |export: &str| format!("nbd+unix:///{export}?socket={}", text(&socket));
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

/// A server that says `bytes`, whatever it is asked, and closes the connection.
fn babble(socket: PathBuf, all: Vec<Vec<u8>>) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for bytes in all {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            // What it is asked is thrown away, so that nobody is told of it.
            let mut asked = [0; 4096];
            while stream.read(&mut asked).is_ok_and(|len| len > 0) {}
        }
    })
}

#[test]
fn servers_that_say_anything_are_left() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    // A handshake as it should be: no structured replies, an export of 1 MiB, and the reply to the first read.
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
    let address = format!("nbd+unix:///?socket={}", text(&socket));
    let mut has_read = 0;
    for index in 0..count {
        // Probing is the first read.
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
