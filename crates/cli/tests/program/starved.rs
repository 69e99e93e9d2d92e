//! The host has no memory left for a guest: the machine stands still, says why, and goes on when there is some.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::support::guest::{CONSOLE, Guest, PROMPT, WITH_MODULES, add_kernel, file, linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, ring3, wait_until};

const MIB: u64 = 1 << 20;
/// The room in the file system of the guest's memory, and the part of it that another file takes at first.
const ROOM: &str = "size=288M";
const BALLAST: &str = "136M";

/// The guest writes 100 MiB, of which the last line is the sum.
const FILL: &str = "for i in $(seq 25); do cat /files/one; done > /files/all; md5sum < /files/all";

/// Runs the arguments as a script in a file system of its own, which is in memory.
fn in_file_system(directory: &Directory, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
    command.arg(format!("mount -t tmpfs -o {ROOM} tmpfs . && cd \"$PWD\" && {script}"));
    command.arg(ring3().get_program()).env_remove("RING3_LOG").current_dir(directory.path("room"));
    command
}

/// Starts a guest whose memory is in such a file system, with a file that it will fill memory with. None, with a note, if
/// the host permits no namespaces. The path is that of the file system, as the host sees it.
fn start(directory: &Directory, kernel: &str, engine: &str) -> Option<(Guest, Qmp, PathBuf)> {
    let room = directory.path("room");
    fs::create_dir(&room).expect("the directory is new");
    if !in_file_system(directory, "true").status().is_ok_and(|status| status.success()) {
        ring3_skipped::host("users may not mount file systems in namespaces");
        return None;
    }
    let socket = directory.path("qmp");
    let script = format!("fallocate -l {BALLAST} ballast; exec \"$0\" \"$@\"");
    let mut command = in_file_system(directory, &script);
    command.args(["run", "--memory", "256M", "--memory-path", ".", "--serial", "stdio"]);
    command.args(["--engine", engine]);
    add_kernel(&mut command, kernel);
    command.arg("--qmp").arg(format!("unix:{}", socket.display()));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    guest.command(
        "dmesg -n 1; mkdir -p /files; mount -t tmpfs -o size=200m none /files; \
         dd if=/dev/urandom of=/files/one bs=1M count=4 2>/dev/null",
    );
    let root = PathBuf::from(format!("/proc/{}/root", guest.id()));
    let inside = room.strip_prefix("/").expect("it is a whole path").to_owned();
    Some((guest, Qmp::connect(&socket), root.join(inside)))
}

/// A full file system stops the guest, and the guest goes on with all it had.
fn stops_and_goes_on(kernel: &str, engine: &str) {
    let directory = Directory::new();
    let Some((mut guest, mut qmp, room)) = start(&directory, kernel, engine) else { return };
    guest.begin(FILL);
    let short = qmp.event("X_RING3_MEMORY_SHORT");
    assert_eq!(short["scarce"], "file-system", "{short}");
    assert!(short["left"].as_u64().unwrap() < 16 * MIB, "{short}");
    assert_eq!(
        qmp.done("query-status", json!({})),
        json!({"running": false, "status": "io-error"})
    );
    let memory = qmp.done("x-ring3-memory", json!({}));
    assert_eq!(memory["shortage"]["advice"], "remove files there, or make it larger");
    let held = memory["held"].as_u64().unwrap();
    assert!((100 * MIB..152 * MIB).contains(&held), "{memory}");
    // Whoever lets it go on without memory stops it again.
    qmp.done("cont", json!({}));
    qmp.event("X_RING3_MEMORY_SHORT");
    fs::remove_file(room.join("ballast")).expect("it is there");
    let sum = guest.end();
    let expected = guest.command("for i in $(seq 25); do cat /files/one; done | md5sum");
    assert_eq!(sum, expected);
    assert!(qmp.done("x-ring3-memory", json!({})).get("shortage").is_none());
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn a_guest_without_memory_stops_and_goes_on() {
    stops_and_goes_on("linux-686", "translator");
}

#[test]
#[ignore = "boots the interpreter and a 64-bit guest; make test-long runs it"]
fn any_guest_without_memory_stops_and_goes_on() {
    stops_and_goes_on("linux-686", "interpreter");
    stops_and_goes_on("linux-amd64", "translator");
}

/// A limit of its own stops a machine, too, and a higher one lets it go on.
#[test]
fn a_machine_holds_no_more_memory_than_it_may() {
    let directory = Directory::new();
    let socket = directory.path("qmp");
    let mut command = ring3();
    command.args(["run", "--memory", "1G", "--serial", "stdio", "--append", CONSOLE]);
    command.arg("--kernel").arg(linux()).arg("--initrd").arg(file(WITH_MODULES[0]));
    command.arg("--qmp").arg(format!("unix:{}", socket.display()));
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    let mut qmp = Qmp::connect(&socket);
    let memory = qmp.done("x-ring3-memory", json!({}));
    let Some(held) = memory["held"].as_u64() else { return };
    qmp.done("x-ring3-limit-memory", json!({"value": held + 64 * MIB}));
    guest.command("mkdir -p /mnt; mount -t tmpfs -o size=500m none /mnt");
    guest.begin("dd if=/dev/zero of=/mnt/zeros bs=1M count=100 2>/dev/null; md5sum < /mnt/zeros");
    assert_eq!(qmp.event("X_RING3_MEMORY_SHORT")["scarce"], "machine");
    let stopped = qmp.done("x-ring3-memory", json!({}));
    let more = stopped["held"].as_u64().unwrap() - held;
    // It holds what it has touched between two looks beside that.
    assert!((64 * MIB..80 * MIB).contains(&more), "{stopped}");
    qmp.done("x-ring3-limit-memory", json!({}));
    wait_until("the machine goes on by itself", || {
        (qmp.done("query-status", json!({}))["running"] == true).then_some(())
    });
    assert_eq!(guest.end(), "2f282b84e7e608d5852449ed940bfc51  -");
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn a_machine_without_memory_at_the_start_says_so() {
    let directory = Directory::new();
    fs::create_dir(directory.path("room")).expect("the directory is new");
    let script = "fallocate -l 287M ballast; exec \"$0\" \"$@\"";
    if !in_file_system(&directory, "true").status().is_ok_and(|status| status.success()) {
        ring3_skipped::host("users may not mount file systems in namespaces");
        return;
    }
    for engine in ["translator", "interpreter"] {
        let mut command = in_file_system(&directory, script);
        command.args(["run", "--memory", "64M", "--memory-path", ".", "--engine", engine]);
        command.arg("--kernel").arg(linux()).arg("--initrd").arg(file(WITH_MODULES[0]));
        let output = command.output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.starts_with("ring3: the host has no memory for this machine: "), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let mut refused = ring3();
    refused.args(["run", "--memory-path", "/proc", "--kernel"]).arg(linux());
    let refused = refused.output().expect("it starts");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("ring3: cannot use /proc for the machine's memory: "), "{errors}");
}
