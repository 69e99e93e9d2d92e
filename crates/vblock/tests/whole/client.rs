//! Tests of a machine's disk that is behind a server, and then behind the next one.

use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::support::{Process, patiently};
use ring3_block::{CreateOptions, Format, Image, OpenOptions};
use ring3_vblock::{Access, DeviceOptions, Server, VhostUserOptions};
use ring3_vblock_client::{Act, ClientError, Disk};

const LEN: u64 = 16 << 20;

fn make(path: &Path, format: Format, size: u64) {
    let options = CreateOptions { format, size, backing: None, specific: Vec::new() };
    ring3_block::create(path, &options).unwrap().finish().unwrap();
}

fn serve(directory: &Path, format: Format, access: Access) -> Server {
    make(&directory.join("image"), format, LEN);
    serve_again(directory, format, access)
}

fn serve_again(directory: &Path, format: Format, access: Access) -> Server {
    let server = Server::default();
    let file = directory.join("image");
    let options =
        DeviceOptions { file, format: Some(format), read_only: false, no_external_files: false };
    patiently(|| server.add_device("disk", &options));
    let vhost_user = VhostUserOptions { socket: directory.join("vm"), queues: 1 };
    server.grant("vm", "disk", access, Some(&vhost_user)).unwrap();
    server
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (index * 5 + seed * 11 + (index >> 9)) as u8).collect()
}

fn begin(disk: &Disk, act: Act<'_>, sector: u64) -> Vec<u8> {
    let mut waiting = disk.begin(act, sector).expect("it is short").unwrap();
    // The answer is there at once, after a while, or later.
    let found = waiting.look().or_else(|| waiting.look_a_while());
    found.unwrap_or_else(|| waiting.wait()).unwrap()
}

#[test]
fn a_disk_is_read_and_written() {
    for format in [Format::Raw, Format::Qcow2] {
        let directory = tempfile::tempdir().unwrap();
        let _server = serve(directory.path(), format, Access::ReadWrite);
        let disk = Disk::connect(&directory.path().join("vm")).unwrap();
        assert_eq!((disk.sectors(), disk.is_read_only()), (LEN / 512, false));
        // These are more bytes than one request can have.
        let bytes = pattern(1, 1 << 20);
        disk.execute(Act::Write(&bytes), 100).unwrap();
        assert!(disk.execute(Act::Read(1 << 20), 100).unwrap() == bytes);
        assert!(begin(&disk, Act::Write(&pattern(2, 4096)), 8).is_empty());
        assert_eq!(begin(&disk, Act::Read(4096), 8), pattern(2, 4096));
        disk.execute(Act::Flush, 0).unwrap();
        disk.execute(Act::WriteZeroes { count: 1000, unmaps: false }, 100).unwrap();
        disk.execute(Act::WriteZeroes { count: 8, unmaps: true }, 1100).unwrap();
        disk.execute(Act::Discard(8), 1108).unwrap();
        let read = disk.execute(Act::Read(1016 * 512), 100).unwrap();
        assert!(read[..1008 * 512].iter().all(|byte| *byte == 0));
        for sector in [LEN / 512, u64::MAX / 512, u64::MAX] {
            let error = disk.execute(Act::Read(512), sector).unwrap_err();
            assert!(matches!(error, ClientError::Failed(_)));
        }
    }
}

/// Returns the size of the disk, in sectors, after the next change.
fn changed_size(disk: &Disk, change: impl FnOnce()) -> u64 {
    let (told, news) = mpsc::channel();
    disk.on_resize(move || told.send(()).unwrap_or_default());
    change();
    news.recv_timeout(Duration::from_secs(10)).expect("the client is told");
    disk.sectors()
}

#[test]
fn clients_are_told_that_a_disk_has_another_size() {
    for format in [Format::Raw, Format::Qcow2] {
        let directory = tempfile::tempdir().unwrap();
        let server = serve(directory.path(), format, Access::ReadWrite);
        let disk = Disk::connect(&directory.path().join("vm")).unwrap();
        let size = changed_size(&disk, || server.resize_device("disk", 2 * LEN, false).unwrap());
        assert_eq!(size, 2 * LEN / 512);
        disk.execute(Act::Write(&pattern(1, 512)), size - 1).unwrap();
        assert_eq!(begin(&disk, Act::Read(512), size - 1), pattern(1, 512));
        for (name, size, shrinks, reason) in [
            ("disk", LEN, false, "give shrink=on"),
            ("disk", 0, true, "a multiple of 512"),
            ("disk", 700, true, "a multiple of 512"),
            ("none", LEN, false, "there is no device"),
        ] {
            let error = server.resize_device(name, size, shrinks).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        if format == Format::Raw {
            // Writes that are under way are within the disk when they are executed, or fail.
            let writes = thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    (0..2000)
                        .map(|_| disk.execute(Act::Write(&[7; 4096]), size - 8))
                        .collect::<Vec<_>>()
                });
                let size = changed_size(&disk, || server.resize_device("disk", LEN, true).unwrap());
                assert_eq!(size, LEN / 512);
                writer.join().unwrap()
            });
            assert!(writes.last().unwrap().is_err());
            assert_eq!(fs::metadata(directory.path().join("image")).unwrap().len(), LEN);
        }
        // The next server has another image.
        drop(server);
        let image = directory.path().join("image");
        fs::remove_file(&image).unwrap();
        make(&image, format, LEN / 2);
        let mut next = None;
        let size = changed_size(&disk, || {
            next = Some(serve_again(directory.path(), format, Access::ReadWrite));
        });
        assert_eq!(size, LEN / 1024);
    }
}

#[test]
fn threads_share_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let _server = serve(directory.path(), Format::Qcow2, Access::ReadWrite);
    let disk = Arc::new(Disk::connect(&directory.path().join("vm")).unwrap());
    let threads = (0..8_u64).map(|number| {
        let disk = Arc::clone(&disk);
        thread::spawn(move || {
            for round in 0..40 {
                let sector = (round * 8 + number) * 64;
                let bytes = pattern(sector, 32 << 10);
                disk.execute(Act::Write(&bytes), sector).unwrap();
                assert!(begin(&disk, Act::Read(bytes.len()), sector) == bytes);
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
}

#[test]
fn the_reason_of_a_refusing_server_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("vm");
    let error = Disk::connect(&socket).unwrap_err().to_string();
    assert!(
        error.contains("cannot connect to a vblock server") && error.contains("ring3 vblock"),
        "{error}"
    );
    let server = serve(directory.path(), Format::Raw, Access::Read);
    let disk = Disk::connect(&socket).unwrap();
    assert!(disk.is_read_only());
    assert!(disk.execute(Act::Write(&[1; 512]), 0).is_err());
    assert_eq!(disk.execute(Act::Read(512), 0).unwrap(), [0; 512]);
    server.revoke("vm", "disk").unwrap();
    disk.give_up();
    assert!(disk.execute(Act::Read(512), 0).is_err());
}

#[test]
fn a_new_server_executes_the_requests_that_the_last_one_left() {
    for format in [Format::Raw, Format::Qcow2] {
        let directory = tempfile::tempdir().unwrap();
        let (image, socket) = (directory.path().join("image"), directory.path().join("socket"));
        make(&image, format, LEN);
        let mut process = Process::start(&image, &socket);
        let disk = loop {
            match Disk::connect(&socket) {
                Ok(disk) => break Arc::new(disk),
                Err(_) => thread::sleep(std::time::Duration::from_millis(10)),
            }
        };
        let threads = (0..4_u64).map(|number| {
            let disk = Arc::clone(&disk);
            thread::spawn(move || {
                for round in 0..500 {
                    let sector = (round % 100 * 4 + number) * 64;
                    let bytes = pattern(sector + round, 32 << 10);
                    disk.execute(Act::Write(&bytes), sector).unwrap();
                    assert!(disk.execute(Act::Read(bytes.len()), sector).unwrap() == bytes);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut kills = 0;
        while threads.iter().any(|thread| !thread.is_finished()) || kills == 0 {
            thread::sleep(std::time::Duration::from_millis(100));
            process.kill();
            kills += 1;
            process = Process::start(&image, &socket);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        drop(disk);
        process.kill();
        let options = OpenOptions { format: Some(format), ..OpenOptions::default() };
        let image = patiently(|| Image::open(&image, &options));
        for place in 0..400 {
            let mut bytes = vec![0; 32 << 10];
            image.read_at(&mut bytes, place * 64 * 512).unwrap();
            assert!(bytes == pattern(place * 64 + 400 + place / 4, 32 << 10), "{format}: {place}");
        }
    }
}
