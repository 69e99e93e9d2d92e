//! Tests of a machine that uses its disk over vhost-user-blk: each operation works, and its rights limit it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::support::*;
use proptest::prelude::*;
use ring3_block::{Backing, CreateOptions, Format, Image, OpenOptions};
use ring3_vblock::{Access, DeviceOptions, Error, Server, VhostUserOptions};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vm_memory::{Bytes, GuestAddress};

const LEN: u64 = 8 << 20;

struct Setup {
    directory: tempfile::TempDir,
    server: Server,
}

impl Setup {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a server with one device, and one client with the given right.
    fn new(format: Format, access: Access) -> Setup {
        let directory = tempfile::tempdir().unwrap();
        make(&directory.path().join("image"), format);
        let setup = Setup { directory, server: Server::default() };
        let file = setup.path("image");
        let options = DeviceOptions {
            file,
            format: Some(format),
            read_only: false,
            no_external_files: false,
        };
        patiently(|| setup.server.add_device("disk", &options));
        setup.grant("vm", access).unwrap();
        setup
    }

    fn grant(&self, client: &str, access: Access) -> Result<(), Error> {
        let vhost_user = VhostUserOptions { socket: self.path(client), queues: 2 };
        self.server.grant(client, "disk", access, Some(&vhost_user))
    }
}

fn make(path: &Path, format: Format) {
    let options = CreateOptions { format, size: LEN, backing: None, specific: Vec::new() };
    ring3_block::create(path, &options).unwrap().finish().unwrap();
}

fn read_image(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let options = OpenOptions { shares: true, backing: Backing::Follow, ..OpenOptions::default() };
    let mut bytes = vec![0; len];
    Image::open(path, &options).unwrap().read_at(&mut bytes, offset).unwrap();
    bytes
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (index * 7 + seed * 13 + (index >> 8)) as u8).collect()
}

fn range(sector: u64, count: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

#[test]
fn each_kind_of_request_is_executed() {
    for format in [Format::Raw, Format::Qcow2] {
        let setup = Setup::new(format, Access::ReadWrite);
        let mut machine = Machine::new(2);
        let mut frontend = machine.connect(&setup.path("vm")).unwrap();
        let config = configuration(&mut frontend);
        assert_eq!(u64::from_le_bytes(config[..8].try_into().unwrap()), LEN / 512);
        assert_eq!(u16::from_le_bytes(config[34..36].try_into().unwrap()), 2);
        assert_eq!(machine.features() & FEATURE_READ_ONLY, 0);

        let bytes = pattern(1, 8192);
        assert_eq!(machine.act(WRITE, 16, &bytes, 0).0, 0);
        assert_eq!(machine.act(READ, 16, &[], 8192), (0, bytes.clone()));
        // The data survive the end of the server, though they were not flushed.
        assert!(read_image(&setup.path("image"), 8192, 8192) == bytes, "{format}");
        assert_eq!(machine.act(FLUSH, 0, &[], 0).0, 0);
        let (status, id) = machine.act(GET_ID, 0, &[], 20);
        assert_eq!((status, &id[..5]), (0, &b"disk\0"[..]));
        assert_eq!(machine.act(WRITE_ZEROES, 0, &range(16, 8, 0), 0).0, 0);
        assert_eq!(machine.act(WRITE_ZEROES, 0, &range(24, 4, 1), 0).0, 0);
        let (status, read) = machine.act(READ, 16, &[], 8192);
        assert_eq!((status, &read[..6144], &read[6144..]), (0, &[0; 6144][..], &bytes[6144..]));
        assert_eq!(machine.act(DISCARD, 0, &range(0, 64, 0), 0).0, 0);

        // Requests that reach beyond the disk, have no whole number of sectors, or have unknown types or
        // flags.
        let end = LEN / 512;
        assert_eq!(machine.act(READ, end, &[], 512).0, 1);
        assert_eq!(machine.act(READ, u64::MAX / 512, &[], 512).0, 1);
        assert_eq!(machine.act(READ, u64::MAX, &[], 512).0, 1);
        assert_eq!(machine.act(WRITE, end - 1, &[0; 1024], 0).0, 1);
        assert_eq!(machine.act(READ, 0, &[], 513).0, 1);
        assert_eq!(machine.act(77, 0, &[], 512).0, 2);
        assert_eq!(machine.act(DISCARD, 0, &range(0, 8, 1), 0).0, 2);
        assert_eq!(machine.act(DISCARD, 0, &range(end, 1, 0), 0).0, 1);
        assert_eq!(machine.act(WRITE_ZEROES, 0, &range(0, u32::MAX, 0), 0).0, 1);
        assert_eq!(machine.act(WRITE_ZEROES, 0, &range(0, 8, 0)[..15], 0).0, 1);
    }
}

#[test]
fn many_requests_are_in_flight_on_several_queues() {
    let setup = Setup::new(Format::Qcow2, Access::ReadWrite);
    let mut machine = Machine::new(2);
    let _frontend = machine.connect(&setup.path("vm")).unwrap();
    let place = |queue: usize, index: u64| (queue as u64 * 64 + index) * 32;
    for queue in 0..2 {
        for index in 0..u64::from(SIZE / 4) {
            let bytes = pattern(place(queue, index), DATA as usize);
            machine.submit(queue, WRITE, place(queue, index), &bytes, 0);
        }
        machine.kick(queue);
    }
    for queue in 0..2 {
        for _ in 0..SIZE / 4 {
            assert_eq!(machine.wait(queue).1, 0);
        }
    }
    for queue in 0..2 {
        for index in 0..u64::from(SIZE / 4) {
            let head = machine.submit(queue, READ, place(queue, index), &[], DATA as u32);
            machine.kick(queue);
            assert_eq!(machine.wait(queue), (head, 0, DATA as u32 + 1));
            let expected = pattern(place(queue, index), DATA as usize);
            assert!(machine.data(queue, head, DATA as usize) == expected);
        }
    }
}

#[test]
fn a_client_with_the_right_to_read_cannot_write() {
    let setup = Setup::new(Format::Raw, Access::Read);
    let mut machine = Machine::new(1);
    let _frontend = machine.connect(&setup.path("vm")).unwrap();
    assert_ne!(machine.features() & FEATURE_READ_ONLY, 0);
    for (kind, data) in
        [(WRITE, vec![1; 512]), (DISCARD, range(0, 8, 0)), (WRITE_ZEROES, range(0, 8, 0))]
    {
        assert_eq!(machine.act(kind, 0, &data, 0).0, 1);
    }
    assert_eq!(machine.act(READ, 0, &[], 512), (0, vec![0; 512]));
    assert_eq!(read_image(&setup.path("image"), 0, 512), [0; 512]);
}

#[test]
fn rights_come_and_go_while_the_server_runs() {
    let setup = Setup::new(Format::Raw, Access::Read);
    let server = &setup.server;
    assert!(matches!(setup.grant("vm", Access::Read), Err(Error::GrantThere { .. })));
    assert!(matches!(server.remove_device("disk"), Err(Error::Granted { .. })));
    assert!(matches!(server.revoke("other", "disk"), Err(Error::NoClient(_))));
    assert!(matches!(server.grant("a/b", "disk", Access::Read, None), Err(Error::Name(_))));
    assert!(matches!(server.grant("a", "none", Access::Read, None), Err(Error::NoDevice(_))));
    let mut machine = Machine::new(1);
    let frontend = machine.connect(&setup.path("vm")).unwrap();
    assert_eq!(machine.act(READ, 0, &[], 512).0, 0);
    assert!(server.clients()[0].grants[0].connected);
    server.revoke("vm", "disk").unwrap();
    assert!(frontend.get_features().is_err());
    assert!(UnixStream::connect(setup.path("vm")).is_err());
    assert_eq!(server.clients(), []);

    setup.grant("vm", Access::ReadWrite).unwrap();
    let mut machine = Machine::new(1);
    let frontend = machine.connect(&setup.path("vm")).unwrap();
    assert_eq!(machine.act(WRITE, 0, &[7; 512], 0).0, 0);
    drop(frontend);
    server.revoke("vm", "disk").unwrap();
    server.remove_device("disk").unwrap();
    assert_eq!(server.devices(), []);
    // The image is closed.
    let options = OpenOptions { writes: true, ..OpenOptions::default() };
    patiently(|| Image::open(&setup.path("image"), &options));
}

#[test]
fn an_image_in_use_is_refused() {
    let setup = Setup::new(Format::Raw, Access::Read);
    let options = DeviceOptions {
        file: setup.path("image"),
        format: None,
        read_only: false,
        no_external_files: false,
    };
    let error = Server::default().add_device("disk", &options).unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
    let read_only = DeviceOptions { read_only: true, ..options };
    assert!(Server::default().add_device("disk", &read_only).is_err());
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let setup = Setup::new(Format::Raw, Access::ReadWrite);
    let mut machine = Machine::new(1);
    let frontend = machine.connect(&setup.path("vm")).unwrap();
    assert!(frontend.set_mem_table(&[machine.region(&memory_file(MEMORY, false))]).is_err());
    // Memory that ends too early, and a file that is not in memory.
    let mut machine = Machine::new(1);
    let frontend = machine.connect(&setup.path("vm")).unwrap();
    assert!(frontend.set_mem_table(&[machine.region(&memory_file(4096, true))]).is_err());
    let mut machine = Machine::new(1);
    let frontend = machine.connect(&setup.path("vm")).unwrap();
    let other = File::from(other_descriptor());
    assert!(frontend.set_mem_table(&[machine.region(&other)]).is_err());
    // The next client is served as usual.
    let mut machine = Machine::new(1);
    let _frontend = machine.connect(&setup.path("vm")).unwrap();
    assert_eq!(machine.act(READ, 0, &[], 512).0, 0);
}

#[test]
fn memory_comes_and_goes_in_pieces() {
    let setup = Setup::new(Format::Raw, Access::ReadWrite);
    let mut machine = Machine::new(1);
    let mut frontend = machine.connect(&setup.path("vm")).unwrap();
    let more = memory_file(0x1000, true);
    let mut region = machine.region(&more);
    (region.guest_phys_addr, region.memory_size) = (BASE + MEMORY, 0x1000);
    region.userspace_addr = 0x1000;
    frontend.add_mem_region(&region).unwrap();
    more.write_all_at(&pattern(3, 512), 0x800).unwrap();
    // The machine's own mapping does not contain this piece, so the data descriptor is made by hand. Header
    // and status are where they always are.
    let head = machine.submit(0, WRITE, 8, &[0; 512], 0);
    let descriptor =
        virtio_queue::desc::split::Descriptor::new(BASE + MEMORY + 0x800, 512, 1, head + 3);
    let rings = machine.queues[0].rings();
    let first = GuestAddress(rings + u64::from(head) * 16);
    let table: virtio_queue::desc::split::Descriptor = machine.memory.read_obj(first).unwrap();
    let indirect = table.refers_to_indirect_table();
    let at = if indirect { table.addr().0 } else { first.0 };
    let next = if indirect { 3 } else { head + 3 };
    let descriptor = if indirect {
        virtio_queue::desc::split::Descriptor::new(BASE + MEMORY + 0x800, 512, 1, next)
    } else {
        descriptor
    };
    machine.memory.write_obj(descriptor, GuestAddress(at + 16)).unwrap();
    machine.kick(0);
    assert_eq!(machine.wait(0).1, 0);
    assert_eq!(read_image(&setup.path("image"), 4096, 512), pattern(3, 512));
    frontend.remove_mem_region(&region).unwrap();
    assert_eq!(machine.act(READ, 8, &[], 512).1, pattern(3, 512));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever is in the rings, the server continues, and other clients do not notice.
    #[test]
    fn rings_with_any_contents_are_harmless(
        writes in prop::collection::vec((0..0x4000_u64, prop::collection::vec(any::<u8>(), 1..64)), 1..40),
        chains in prop::collection::vec((0..64_u16, 0..5_u64, 0..0x600_u32, 0..8_u16, 0..66_u16), 0..64),
        index in any::<u16>(),
    ) {
        let setup = FUZZED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut machine = Machine::new(1);
        let _frontend = machine.connect(&setup.path("vm")).unwrap();
        for (at, bytes) in &writes {
            machine.memory.write_slice(bytes, GuestAddress(BASE + at)).unwrap();
        }
        // Descriptors that are almost valid.
        for (entry, place, len, flags, next) in &chains {
            let at = [0, BASE, BASE + 0x2000, BASE + MEMORY - 8, u64::MAX - 16][*place as usize];
            let descriptor = virtio_queue::desc::split::Descriptor::new(at, *len, *flags, *next);
            machine.memory.write_obj(descriptor, GuestAddress(BASE + u64::from(*entry) * 16)).unwrap();
        }
        let available = if index % 2 == 0 { index % 64 } else { index };
        machine.memory.write_obj(available, GuestAddress(BASE + 0x1002)).unwrap();
        machine.kick(0);
        let mut other = Machine::new(1);
        let _other = other.connect(&setup.path("other")).unwrap();
        assert_eq!(other.act(READ, 0, &[], 512).0, 0);
    }

    /// Whatever the messages contain, the server continues.
    #[test]
    fn messages_with_any_contents_are_harmless(
        messages in prop::collection::vec((0..45_u32, any::<bool>(), prop::collection::vec(any::<u8>(), 0..80)), 0..12),
        small in any::<bool>(),
    ) {
        let setup = FUZZED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut stream = UnixStream::connect(setup.path("vm")).unwrap();
        for (kind, wants_reply, body) in &messages {
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend((1 | u32::from(*wants_reply) << 3).to_le_bytes());
            bytes.extend((body.len() as u32).to_le_bytes());
            bytes.extend(body.iter().map(|byte| if small { byte & 1 } else { *byte }));
            if stream.write_all(&bytes).is_err() {
                break;
            }
        }
        drop(stream);
        let mut machine = Machine::new(1);
        let _frontend = machine.connect(&setup.path("vm")).unwrap();
        assert_eq!(machine.act(READ, 0, &[], 512).0, 0);
    }
}

/// The server for the clients of the property tests.
static FUZZED: std::sync::LazyLock<std::sync::Mutex<Setup>> = std::sync::LazyLock::new(|| {
    let setup = Setup::new(Format::Raw, Access::ReadWrite);
    setup.grant("other", Access::Read).unwrap();
    std::sync::Mutex::new(setup)
});

/// Kills a server again and again while requests are in flight. Each request is answered once, and all
/// written data are in the image.
fn survives_kills(format: Format) {
    let directory = tempfile::tempdir().unwrap();
    let (image, socket) = (directory.path().join("image"), directory.path().join("socket"));
    make(&image, format);
    let mut machine = Machine::new(2);
    let mut process = Process::start(&image, &socket);
    let mut frontend = machine.connect(&socket).unwrap();
    let places = LEN / DATA;
    // The value that was last written to each place.
    let mut written: Vec<Option<u64>> = vec![None; places as usize];
    let mut in_flight = std::collections::HashMap::new();
    let mut next = 0_u64;
    let (mut kills, mut completed) = (0, 0);
    while kills < 10 || !in_flight.is_empty() {
        for queue in 0..2 {
            let mut submitted = false;
            while kills < 10 && machine.has_room(queue) {
                // Two requests for one place at a time would have no order.
                let place = next * 7 % places;
                if in_flight.values().any(|(other, _)| *other == place) {
                    break;
                }
                let bytes = pattern(next, DATA as usize);
                let head = machine.submit(queue, WRITE, place * DATA / 512, &bytes, 0);
                assert!(in_flight.insert((queue, head), (place, next)).is_none());
                next += 1;
                submitted = true;
            }
            if submitted {
                machine.kick(queue);
            }
            while let Some((head, status, _)) = machine.completed(queue) {
                assert_eq!(status, 0);
                let (place, value) = in_flight.remove(&(queue, head)).expect("it was asked for");
                written[place as usize] = Some(value);
                completed += 1;
            }
        }
        if kills < 10 && completed >= (kills + 1) * 50 {
            process.kill();
            kills += 1;
            drop(frontend);
            process = Process::start(&image, &socket);
            frontend = machine.connect(&socket).unwrap();
        }
    }
    drop(frontend);
    // No request has asked for a flush.
    process.kill();
    for (place, value) in written.iter().enumerate() {
        let Some(value) = value else { continue };
        let bytes = read_image(&image, place as u64 * DATA, DATA as usize);
        assert!(bytes == pattern(*value, DATA as usize), "{format}: {place} of {value}");
    }
}

#[test]
fn a_raw_image_survives_kills_of_its_server() {
    survives_kills(Format::Raw);
}

#[test]
fn a_qcow2_image_survives_kills_of_its_server() {
    survives_kills(Format::Qcow2);
}
