//! Tests with files of the host: who may open them, and the error messages.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::support::*;
use ring3_block::{Error, Format, Image, OpenOptions};

#[test]
fn one_process_writes_or_many_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(&path, &options(Format::Qcow2, 1 << 20, &[]));
    let reads = OpenOptions::default();
    let writes = OpenOptions { writes: true, ..OpenOptions::default() };
    let shares = OpenOptions { shares: true, ..OpenOptions::default() };
    let first = open_as(&path, &reads).unwrap();
    let second = open_as(&path, &reads).unwrap();
    assert!(matches!(Image::open(&path, &writes), Err(Error::InUse { writes: true, .. })));
    drop((first, second));
    let _writer = open(&path, Format::Qcow2, true);
    assert!(matches!(Image::open(&path, &reads), Err(Error::InUse { writes: false, .. })));
    Image::open(&path, &shares).unwrap();
    // QEMU respects the locks too.
    let output = qemu_img_output(&["resize", text(&path), "2M"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("lock"), "{said}");
}

#[test]
fn an_image_that_qemu_writes_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(&path, &options(Format::Qcow2, 1 << 20, &[]));
    let socket = directory.path().join("socket");
    let mut server = Command::new("qemu-nbd")
        .args(["-f", "qcow2", "-k", text(&socket), text(&path)])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut client = loop {
        match UnixStream::connect(&socket) {
            Ok(client) => break client,
            Err(_) => assert!(server.try_wait().unwrap().is_none(), "qemu-nbd has ended"),
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    // The server opens the socket first, then the image, and answers only after that.
    let mut greeting = [0; 8];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    let opened = Image::open(&path, &OpenOptions { writes: true, ..OpenOptions::default() });
    server.kill().unwrap();
    server.wait().unwrap();
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("is in use by another process"), "{error}");
}

#[test]
fn a_raw_image_does_not_change_its_format_unasked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(&path, &options(Format::Raw, 1 << 20, &[]));
    let writes = OpenOptions { writes: true, ..OpenOptions::default() };
    let image = open_as(&path, &writes).unwrap();
    let mut header = vec![0; 512];
    header[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    let error = image.write_at(&header, 0).unwrap_err().to_string();
    assert!(error.contains("would make it a qcow2 image"), "{error}");
    // The header cannot be written in two steps either.
    image.write_at(&header[..3], 0).unwrap();
    image.write_at(&header[3..], 3).unwrap_err();
    image.write_at(&header, 512).unwrap();
    drop(image);
    let image = open(&path, Format::Raw, true);
    image.write_at(&header, 0).unwrap();
}

#[test]
fn a_file_that_is_not_an_image_is_named_and_refused() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let says = open_as(&missing, &OpenOptions::default()).unwrap_err().to_string();
    assert_eq!(says, format!("there is no image {}", missing.display()));
    let says = open_as(directory.path(), &OpenOptions::default()).unwrap_err().to_string();
    assert!(says.ends_with("is neither a file nor a block device"), "{says}");
    let path = directory.path().join("image");
    make(&path, &options(Format::Raw, 4096, &[]));
    let image = open(&path, Format::Raw, false);
    let says = image.write_at(&[0], 0).unwrap_err().to_string();
    assert!(says.ends_with("it is open for reading only"), "{says}");
    let says = image.read_at(&mut [0; 2], 4095).unwrap_err().to_string();
    assert!(
        says.ends_with("a request for bytes 4095 to 4097 exceeds the image's 4096 bytes"),
        "{says}"
    );
}

#[test]
fn several_threads_use_an_image_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    make(&path, &options(Format::Qcow2, 8 << 20, &[("cluster_size", "4k")]));
    let image = open(&path, Format::Qcow2, true);
    let mut model = vec![0; 8 << 20];
    std::thread::scope(|scope| {
        for (thread, part) in model.chunks_mut(1 << 20).enumerate() {
            let image = &image;
            scope.spawn(move || {
                let start = thread as u64 * (1 << 20);
                let mut random = power::Random(thread as u64 + 1);
                for round in 0..100 {
                    let offset = random.below((1 << 20) - 20_000);
                    let bytes = pattern(offset, 1 + random.below(20_000) as usize, round);
                    image.write_at(&bytes, start + offset).unwrap();
                    part[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                    if round % 10 == 0 {
                        let zero = random.below((1 << 20) - 30_000);
                        image.write_zeroes(start + zero, 30_000).unwrap();
                        part[zero as usize..][..30_000].fill(0);
                        image.flush().unwrap();
                    }
                    let mut read = vec![0; bytes.len()];
                    image.read_at(&mut read, start + offset).unwrap();
                    assert!(read == part[offset as usize..][..read.len()]);
                }
            });
        }
    });
    assert!(read_all(&image) == model);
    image.close().unwrap();
    check_with_qemu(&path, Format::Qcow2, &model, true);
}
