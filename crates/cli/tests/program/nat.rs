//! `ring3 nat` as a process of its own: it has no rights that it does not need, and withstands all packets of
//! a guest.
//!
//! The tests send frames over the connection that a machine would use. If users may create no namespaces,
//! tests that could reach other hosts are skipped with a note.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::support::frames::{ARP_REQUEST, Noise, fuzzed, ipv4, udp};
use crate::support::namespace::{has_namespaces, in_namespace};
use crate::support::{Directory, PATIENCE, ring3, wait_until};

/// The process, and the connection to it.
struct Nat {
    child: Child,
    socket: UnixStream,
    answers: Receiver<Vec<u8>>,
}

impl Nat {
    /// Connects to the process that `command` starts.
    fn of(mut command: Command) -> Nat {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let child = command.stdin(OwnedFd::from(theirs)).spawn().expect("the program starts");
        let mut reader = socket.try_clone().unwrap();
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            let mut length = [0; 4];
            while reader.read_exact(&mut length).is_ok() {
                let mut frame = vec![0; u32::from_be_bytes(length) as usize];
                if reader.read_exact(&mut frame).is_err() || sender.send(frame).is_err() {
                    return;
                }
            }
        });
        let nat = Nat { child, socket, answers };
        // The NAT says that it is ready.
        nat.answer(|frame| frame.starts_with(b"\x02ring3"));
        nat
    }

    fn start(properties: &str) -> Nat {
        let mut command = ring3();
        command.args(["nat", properties]);
        Nat::of(command)
    }

    fn send(&mut self, frame: &[u8]) {
        let message = [&(frame.len() as u32).to_be_bytes(), frame].concat();
        if let Err(error) = self.socket.write_all(&message) {
            panic!("the NAT has ended with {}: {error}", self.child.wait().unwrap());
        }
    }

    /// Returns the next frame from the NAT for which `is_it` returns true.
    #[track_caller]
    fn answer(&self, is_it: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        loop {
            let frame = self.answers.recv_timeout(PATIENCE).expect("the NAT does not answer");
            if is_it(&frame) {
                return frame;
            }
        }
    }

    /// Checks that the NAT works: the gateway answers an ARP request.
    #[track_caller]
    fn answers(&mut self) {
        self.send(&ARP_REQUEST);
        self.answer(|frame| frame[12..14] == [8, 6] && frame[20..22] == [0, 2]);
        assert!(self.child.try_wait().unwrap().is_none());
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the value of `key` in a file of /proc with lines `key: value`.
fn value(file: &str, key: &str) -> String {
    let line = file.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key} in {file}")).trim().to_owned()
}

#[test]
fn the_nat_has_given_up_the_rights_that_it_does_not_need() {
    let directory = Directory::new();
    directory.file("file", b"x");
    let mut command = Command::new("sh");
    // The NAT must not keep the open descriptors of its parent.
    command.arg("-c").arg(format!(
        "exec {} nat tftp={} 7< {}",
        env!("CARGO_BIN_EXE_ring3"),
        directory.path("").display(),
        directory.path("file").display()
    ));
    let mut nat = Nat::of(command);
    nat.answers();
    let proc = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", nat.child.id())).unwrap();
    let status = proc("status");
    assert_eq!(value(&status, "NoNewPrivs:"), "1");
    assert_eq!(value(&status, "Threads:"), "1");
    for set in ["CapInh:", "CapPrm:", "CapEff:"] {
        assert_eq!(u64::from_str_radix(&value(&status, set), 16), Ok(0), "{set}");
    }
    let limits = proc("limits");
    assert!(value(&limits, "Max core file size").starts_with("0 "), "{limits}");
    assert!(value(&limits, "Max processes").starts_with("0 "), "{limits}");
    let doctor = String::from_utf8(ring3().arg("doctor").output().unwrap().stdout).unwrap();
    if doctor.contains("ok       seccomp") {
        assert_eq!(value(&status, "Seccomp:"), "2");
    } else {
        ring3_skipped::host("this host has no seccomp");
    }
    // Only root may look at its memory and descriptors.
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", nat.child.id())) else {
        return ring3_skipped::host("only root can look at its descriptors");
    };
    let open: Vec<_> = open
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), fs::read_link(entry.path()).unwrap()))
        .collect();
    let is_expected =
        |name: &str, path: &str| ["0", "1", "2"].contains(&name) || path.starts_with("socket:");
    for (name, path) in &open {
        assert!(is_expected(&name.to_string_lossy(), &path.to_string_lossy()), "{open:?}");
    }
}

/// A last fragment alone, which crashes libslirp.
#[test]
fn the_nat_survives_fragments() {
    let mut nat = Nat::start("restrict=on");
    nat.answers();
    for offset in [1, 185, 8190, 8191] {
        for protocol in [1, 6, 17] {
            for len in [1, 8, 1480] {
                nat.send(&ipv4([10, 0, 2, 2], protocol, offset, &vec![1; len]));
                nat.send(&ipv4([10, 0, 2, 2], protocol, offset | 0x2000, &vec![1; len]));
            }
        }
    }
    nat.answers();
}

/// TFTP and the host's name server need files that the NAT can still read, but it must serve no others.
#[test]
fn the_nat_serves_only_files_of_its_directory() {
    let directory = Directory::new();
    fs::create_dir(directory.path("served")).unwrap();
    directory.file("served/file", b"served bytes");
    directory.file("secret", b"secret bytes");
    std::os::unix::fs::symlink("../secret", directory.path("served/link")).unwrap();
    let mut nat = Nat::start(&format!("tftp={}", directory.path("served").display()));
    nat.answers();
    let has_landlock = {
        let doctor = ring3().arg("doctor").output().unwrap().stdout;
        String::from_utf8(doctor).unwrap().contains("ok       Landlock")
    };
    let mut ask = |name: &str, port: u16| {
        let request = [&[0, 1], name.as_bytes(), b"\0octet\0"].concat();
        nat.send(&ipv4([10, 0, 2, 2], 17, 0, &udp(port, 69, &request)));
        let to = port.to_be_bytes();
        nat.answer(|frame| frame.len() > 46 && frame[23] == 17 && frame[36..38] == to)[42..]
            .to_vec()
    };
    assert_eq!(ask("file", 2000), [&[0, 3, 0, 1][..], b"served bytes"].concat());
    let is_error = |answer: Vec<u8>| assert_eq!(answer[..2], [0, 5], "{answer:?}");
    is_error(ask("missing", 2001));
    is_error(ask("../secret", 2002));
    if has_landlock {
        is_error(ask("link", 2003));
    } else {
        ring3_skipped::host("this host has no Landlock");
    }
}

/// Thousands of almost valid frames, of all protocols that it knows.
#[test]
fn the_nat_survives_any_packets_of_a_guest() {
    if !has_namespaces() {
        return;
    }
    let directory = Directory::new();
    directory.file("file", &[7; 3000]);
    for seed in 1..=3 {
        let script = format!(
            "exec {} nat tftp={},hostfwd=tcp:127.0.0.1:2222-:22,guestfwd=tcp:10.0.2.100:7-cmd:cat",
            env!("CARGO_BIN_EXE_ring3"),
            directory.path("").display(),
        );
        let mut nat = Nat::of(in_namespace(&script));
        let mut noise = Noise::new(seed);
        for round in 0..40 {
            for _ in 0..500 {
                nat.send(&fuzzed(&mut noise));
            }
            nat.answers();
            assert!(nat.child.try_wait().unwrap().is_none(), "seed {seed}, round {round}");
        }
    }
}

/// Processes that a command has started end with the NAT, and leave nothing behind.
#[test]
fn commands_end_with_the_nat() {
    let named = || {
        let entries = fs::read_dir(std::env::temp_dir()).unwrap();
        entries.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with("ring3-nat-")
        })
    };
    let mut nat = Nat::start("guestfwd=tcp:10.0.2.100:7-cmd:cat");
    nat.answers();
    let directory = format!("ring3-nat-{}-0", nat.child.id());
    let is_there = || named().any(|entry| entry.unwrap().file_name() == *directory);
    assert!(is_there());
    drop(nat);
    wait_until("its commands stay", || (!is_there()).then_some(()));
}

#[test]
fn the_nat_listens_for_this_host_only() {
    let output = ring3().args(["nat", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("a NAT must not be reachable from other hosts") && said.lines().count() == 1,
        "{said}"
    );
}
