//! Tests of a client's own socket, at which it learns of its devices and is connected with them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ring3_vblock::{Access, DeviceOptions, Server};
use ring3_vblock_client::lobby::{Event, Lobby};
use ring3_vblock_client::{Act, Disk};

const LEN: u64 = 1 << 20;

/// A server with the disks `a` and `b`, of which the client `me` may use the first.
fn server(directory: &Path) -> Arc<Server> {
    let server = Arc::new(Server::default());
    for name in ["a", "b"] {
        let file = directory.join(name);
        File::create(&file).unwrap().set_len(LEN).unwrap();
        let format = Some(ring3_block::Format::Raw);
        let options = DeviceOptions { file, format, read_only: false, no_external_files: false };
        server.add_device(name, &options).unwrap();
    }
    server.grant("me", "a", Access::ReadWrite, None).unwrap();
    server.start_lobby("me", &directory.join("me")).unwrap();
    server
}

fn next(lobby: &mut Lobby) -> Event {
    for _ in 0..1000 {
        if let Some(event) = lobby.event().unwrap() {
            return event;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("no event comes");
}

#[test]
fn a_client_learns_of_its_devices_and_of_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(directory.path());
    let mut lobby = Lobby::connect(&directory.path().join("me")).unwrap();
    let devices = lobby.devices().unwrap();
    let names: Vec<_> = devices.iter().map(|device| device.device.as_str()).collect();
    assert_eq!((names, devices[0].size, devices[0].access.as_str()), (vec!["a"], LEN, "rw"));
    for name in ["b", "c", "../a", ""] {
        let error = lobby.open(name, false).unwrap_err();
        assert!(error.to_string().contains("has no right"), "{error}");
    }
    server.grant("other", "b", Access::Read, None).unwrap();
    server.grant("me", "b", Access::Read, None).unwrap();
    assert!(matches!(next(&mut lobby), Event::Added(device) if device.device == "b"));
    server.resize_device("b", 2 * LEN, false).unwrap();
    assert!(matches!(next(&mut lobby), Event::Resized(device) if device.size == 2 * LEN));
    let place = directory.path().join("me");
    let disk = Disk::over(&place.clone(), move || {
        Ok(UnixStream::from(Lobby::connect(&place)?.open("b", false)?))
    });
    let disk = disk.unwrap();
    assert_eq!((disk.sectors(), disk.is_read_only()), (2 * LEN / 512, true));
    assert!(disk.execute(Act::Write(&[1; 512]), 0).is_err());
    // The right is taken: the connection ends, and there is no other one.
    server.revoke("me", "b").unwrap();
    assert_eq!(next(&mut lobby), Event::Removed("b".to_owned()));
    disk.give_up();
    assert!(disk.execute(Act::Read(512), 0).is_err());
    server.stop_lobby("me").unwrap();
    assert!(lobby.devices().is_err() && !directory.path().join("me").exists());
}

#[test]
fn clients_that_misbehave_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(directory.path());
    let place = directory.path().join("me");
    for garbage in [&b"\n"[..], b"{}\n", b"[[[[[[\n", b"\xff\xff\n", b"{\"execute\": \"quit\"}\n"] {
        let mut stream = UnixStream::connect(&place).unwrap();
        stream.write_all(garbage).unwrap();
        let mut answer = [0; 9];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"{\"error\":");
    }
    // One that takes connections without end.
    let mut lobby = Lobby::connect(&place).unwrap();
    let held: Vec<_> = (0..100).map_while(|_| lobby.open("a", false).ok()).collect();
    assert!((40..64).contains(&held.len()), "{}", held.len());
    drop((held, lobby));
    // One that does not read its events keeps nobody up, and is disconnected.
    let mut deaf = UnixStream::connect(&place).unwrap();
    deaf.write_all(b"{\"execute\": \"query-devices\"}\n").unwrap();
    deaf.read_exact(&mut [0; 10]).unwrap();
    for _ in 0..20_000 {
        server.grant("me", "b", Access::Read, None).unwrap();
        server.revoke("me", "b").unwrap();
    }
    let read = io::copy(&mut deaf, &mut io::sink()).unwrap();
    assert!(read < 20_000 * 40, "{read}");
    let mut lobby = Lobby::connect(&place).unwrap();
    assert_eq!(lobby.devices().unwrap().len(), 1);
}
