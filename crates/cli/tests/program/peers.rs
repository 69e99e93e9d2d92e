//! Misbehaving peers, at each place where ring3 listens: they send nothing, send nonsense, stop in the
//! middle, read nothing, or connect and disconnect. The next client is served nevertheless, and the costs are
//! bounded: threads, memory, and lines in the log.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::frames::Noise;
use crate::support::{Directory, kernel, ring3, wait_until};

/// Bounds for a process, whatever its clients do.
const THREADS: u64 = 300;
const MEMORY_KIB: u64 = 400 << 10;
const LOG: u64 = 32 << 10;

/// A place where a process listens.
struct Place {
    name: &'static str,
    socket: PathBuf,
    /// The message of a well-behaved client, and the beginning of the answer.
    says: Vec<u8>,
    hears: &'static [u8],
    /// Whether clients are served one after the other, so that misbehaving ones must leave before another one
    /// is served.
    is_for_one: bool,
}

/// Code that waits forever with interrupts on: STI; HLT; JMP to the HLT.
const WAIT_FOR_EVER: &[u8] = &[0xfb, 0xf4, 0xeb, 0xfd];

/// GET_FEATURES (docs/interop/vhost-user).
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
/// The beginning of the answer.
const FEATURES: &[u8] = &[1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0];
/// The length of the first notice in a stream of frames, and the notice's beginning.
const HELLO: &[u8] = b"\0\0\0\x3c\x02ring3";

/// Returns the processes, with all the places where each of them listens.
fn processes(directory: &Directory) -> Vec<(Command, Vec<Place>)> {
    let path = |name: &str| directory.path(name);
    let place = |name: &'static str, says: &[u8], hears: &'static [u8], is_for_one: bool| Place {
        name,
        socket: path(name),
        says: says.to_vec(),
        hears,
        is_for_one,
    };
    directory.file("disk", &vec![0; 1 << 20]);
    let code = directory.file("kernel", &kernel(WAIT_FOR_EVER));
    let command = |arguments: &str| {
        let mut command = ring3();
        command.args(arguments.split(' ')).current_dir(directory.path(""));
        command
    };
    let vblock = command(
        "vblock --device disk,file=disk,format=raw --client c=disk:rw,socket=blk --nbd c=./nbd --control ctl",
    );
    let switch = command("switch --listen unix:switch --vhost-user net --status-socket status");
    let nat = command("nat --listen unix:nat restrict=on");
    let mut machine = command(
        "run --memory 16M --display vnc:unix:vnc --qmp unix:qmp --serial unix:serial --nic stream,server=on,addr=unix:stream --kernel",
    );
    machine.arg(code);
    vec![
        (
            vblock,
            vec![
                place("nbd", b"", b"NBDMAGICIHAVEOPT", false),
                place("ctl", b"{\"execute\": \"query-devices\"}\n", b"{\"QMP\"", false),
                place("blk", &GET_FEATURES, FEATURES, true),
            ],
        ),
        (
            switch,
            vec![
                place("switch", b"", HELLO, false),
                place("net", &GET_FEATURES, FEATURES, false),
                place("status", b"", b"{\"ports\"", false),
            ],
        ),
        (nat, vec![place("nat", b"", HELLO, true)]),
        (
            machine,
            vec![
                place("vnc", b"", b"RFB 003.008\n", false),
                place("qmp", b"{\"execute\": \"qmp_capabilities\"}\n", b"{\"QMP\"", true),
                place("serial", b"x", b"", true),
                place("stream", b"", HELLO, true),
            ],
        ),
    ]
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Returns the value of a line of the process's status in /proc.
    fn value(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("it is there");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[track_caller]
    fn is_bounded(&mut self, log: &Path, when: &str) {
        assert!(self.0.try_wait().unwrap().is_none(), "{when}: it has ended: {:?}", fs::read(log));
        let (threads, memory) = (self.value("Threads:"), self.value("VmRSS:"));
        assert!(threads <= THREADS, "{when}: {threads} threads");
        assert!(memory <= MEMORY_KIB, "{when}: {memory} KiB");
        let log = fs::metadata(log).unwrap().len();
        assert!(log <= LOG, "{when}: {log} bytes of log");
    }
}

/// Connects, if there is room for one more waiting connection.
fn connect(socket: &Path) -> Option<UnixStream> {
    // If too many connections wait, the kernel blocks the caller.
    let (sender, receiver) = std::sync::mpsc::channel();
    let socket = socket.to_owned();
    std::thread::spawn(move || sender.send(UnixStream::connect(socket)));
    receiver.recv_timeout(Duration::from_secs(1)).ok()?.ok()
}

/// Checks that a well-behaved client is served, at the latest after others have timed out.
fn serves(place: &Place, when: &str) {
    let attempt = || {
        let mut stream = connect(&place.socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.write_all(&place.says).ok()?;
        let mut heard = vec![0; place.hears.len()];
        stream.read_exact(&mut heard).ok()?;
        (heard == place.hears).then_some(())
    };
    wait_until(&format!("{when}: nobody is served"), attempt);
}

/// Misbehaves in way `kind`. Returns the connections that stay open.
fn misbehave(place: &Place, noise: &mut Noise, kind: usize) -> Vec<UnixStream> {
    let mut all = Vec::new();
    let count = if place.is_for_one { 4 } else { 150 };
    for _ in 0..count {
        let Some(mut stream) = connect(&place.socket) else { continue };
        stream.set_nonblocking(true).unwrap();
        let bytes = match kind {
            0 => Vec::new(),
            1 => {
                let len = 1 + noise.below(2000);
                noise.bytes(len)
            }
            // The beginning of a valid message.
            2 => place.says.iter().take(3).copied().chain([0]).collect(),
            // Valid messages, again and again, whose answers are not read.
            3 => place.says.repeat(1 + (1 << 20) / (1 + place.says.len())),
            _ => vec![noise.below(256) as u8; 300_000],
        };
        // The server may have hung up meanwhile, or may have no room.
        let _ = stream.write(&bytes);
        if kind < 4 {
            all.push(stream);
        }
    }
    all
}

#[test]
fn clients_are_served_after_one_that_misbehaves() {
    let directory = Directory::new();
    let log = directory.path("log");
    for (mut command, places) in processes(&directory) {
        let file = fs::File::create(&log).unwrap();
        command.env("RING3_LOG", "info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut process = Process(command.spawn().unwrap());
        for place in &places {
            serves(place, place.name);
            let mut noise = Noise::new(place.name.len() as u64);
            for kind in 0..5 {
                let when = format!("{}, kind {kind}", place.name);
                let peers = misbehave(place, &mut noise, kind);
                if place.is_for_one {
                    drop(peers);
                    serves(place, &when);
                } else {
                    serves(place, &when);
                    process.is_bounded(&log, &when);
                    drop(peers);
                }
                process.is_bounded(&log, &when);
            }
        }
        // All other places still work.
        for place in &places {
            serves(place, place.name);
        }
    }
}
