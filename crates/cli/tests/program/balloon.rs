//! Linux gives memory back to the host by the balloon: what it does not use, and what it is asked for.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::moving::{awaited, memory_of, moves, quit};
use crate::support::guest::{Guest, PROMPT, add_kernel, has_module};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3, wait_until};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 512 * MIB;
/// What the guest is asked to do with.
const SMALL: u64 = 192 * MIB;

/// The guest makes a file, and fills memory with many copies of it that it deletes again. The first line is the sum
/// of the file.
const FILL: &str = "for i in $(seq 20); do cat /files/one >> /files/all; done; \
    tail -c 16777216 /files/all | md5sum; rm /files/all";

/// The directories of Debian's kernels.
const KERNELS: [&str; 2] = ["linux-686", "linux-amd64"];

/// Starts a guest with a balloon, its driver, and QMP at `socket`.
fn start(kernel: &str, socket: &Path, options: &[&str]) -> Guest {
    let mut command = ring3();
    command.args(["run", "--memory", "512M", "--serial", "stdio"]);
    add_kernel(&mut command, kernel);
    command.arg("--qmp").arg(format!("unix:{}", socket.display())).args(options);
    let mut guest = Guest::of(command);
    guest.wait_for(PROMPT);
    guest.command(
        "dmesg -n 1; modprobe virtio_pci; modprobe virtio_balloon; mkdir /files; \
         mount -t tmpfs -o size=400m none /files; dd if=/dev/urandom of=/files/one bs=1M count=16 2>/dev/null",
    );
    guest
}

/// Returns what the guest has of memory, in KiB.
fn total(guest: &mut Guest) -> u64 {
    guest.command("awk '/MemTotal/ { print $2 }' /proc/meminfo").parse().expect("a number")
}

fn resize(qmp: &mut Qmp, bytes: u64) {
    qmp.done("balloon", json!({"value": bytes}));
    wait_until("the balloon has its size", || {
        (qmp.done("query-balloon", json!({})) == json!({"actual": bytes})).then_some(())
    });
}

/// Returns a number of the device's state.
fn number(qmp: &mut Qmp, name: &str) -> u64 {
    let path = format!("devices/balloon/device_type/status/{name}");
    let part = qmp.done("x-ring3-inspect", json!({"path": path}));
    part["value"].as_u64().unwrap_or_else(|| panic!("{part}"))
}

fn counter(qmp: &mut Qmp, name: &str) -> u64 {
    let stats = qmp.done("query-stats", json!({"target": "vm"}));
    let counters = stats[0]["stats"].as_array().expect("a list");
    let found = counters.iter().find(|counter| counter["name"] == name);
    found.map_or(0, |counter| counter["value"].as_u64().expect("a number"))
}

/// The guest gives up 320 MiB and gets them back. It is saved meanwhile, and goes on from the file on either engine.
#[test]
fn a_guest_becomes_smaller_and_larger_and_is_saved_meanwhile() {
    for kernel in KERNELS.into_iter().filter(|kernel| has_module(kernel, "virtio_balloon")) {
        let directory = Directory::new();
        let socket = directory.path("qmp");
        let mut guest = start(kernel, &socket, &["--balloon", "free-page-reporting=off"]);
        let mut qmp = Qmp::connect(&socket);
        let sum = guest.command("md5sum < /files/one");
        assert_eq!(guest.command(FILL), sum);
        let (large, all) = (memory_of(&guest), total(&mut guest));
        assert_eq!(qmp.done("query-balloon", json!({})), json!({"actual": MEMORY}));

        let signals = counter(&mut qmp, "engine-signals");
        resize(&mut qmp, SMALL);
        let given = (MEMORY - SMALL) / MIB;
        let signals = counter(&mut qmp, "engine-signals") - signals;
        let runs = number(&mut qmp, "runs");
        eprintln!("{kernel}: {runs} requests to the host and {signals} signals for {given} MiB");
        assert_eq!(number(&mut qmp, "released"), given * 256);
        // Linux takes pages from its lists mostly in their order.
        assert!(runs <= 4 * given && signals <= 2 * given, "{runs} runs, {signals} signals");
        assert_eq!(all - total(&mut guest), given * 1024);
        let small = memory_of(&guest);
        assert!(large == 0 || (large > 320 * MIB && small <= SMALL + 8 * MIB), "{large} {small}");
        assert_eq!(qmp.event("BALLOON_CHANGE")["actual"], MEMORY - MIB);
        wait_until("an event tells the size", || {
            (qmp.event("BALLOON_CHANGE")["actual"] == SMALL).then_some(())
        });
        has_statistics(&mut qmp, SMALL);

        // What is in the balloon is not in the file either.
        let saved = directory.path("saved");
        let size = qmp.done("snapshot-save", json!({"file": saved}));
        assert!(size["memory-bytes"].as_u64().unwrap() <= SMALL, "{size}");
        assert!(memory_of(&guest) <= small + 8 * MIB, "saving has touched pages");

        resize(&mut qmp, MEMORY);
        assert_eq!(total(&mut guest), all);
        assert_eq!(guest.command(FILL), sum);
        assert_eq!(guest.power_off(), Some(0));

        for engine in ["auto", "interpreter"] {
            let socket = directory.path(engine);
            let mut command = ring3();
            command.args(["run", "--serial", "stdio", "--engine", engine, "--restore"]).arg(&saved);
            command.arg("--qmp").arg(format!("unix:{}", socket.display()));
            let mut guest = Guest::of(command);
            let mut qmp = Qmp::connect(&socket);
            assert_eq!(qmp.done("query-balloon", json!({})), json!({"actual": SMALL}));
            assert_eq!(total(&mut guest), all - given * 1024);
            resize(&mut qmp, SMALL - 16 * MIB);
            resize(&mut qmp, MEMORY);
            assert_eq!(guest.command("md5sum < /files/one"), sum);
            if engine == "auto" {
                assert_eq!(guest.command(FILL), sum);
            }
            assert_eq!(guest.power_off(), Some(0));
        }
    }
}

/// The guest says how much memory it has, and keeps saying so.
fn has_statistics(qmp: &mut Qmp, total: u64) {
    let path = "/machine/peripheral/balloon0";
    let interval =
        |value| json!({"path": path, "property": "guest-stats-polling-interval", "value": value});
    qmp.done("qom-set", interval(json!(1)));
    qmp.refused("qom-set", interval(json!(-1)), "GenericError", "not negative");
    let mut told = Vec::new();
    wait_until("statistics come again and again", || {
        let stats = qmp.done("qom-get", json!({"path": path, "property": "guest-stats"}));
        let of_guest = stats["stats"]["stat-total-memory"].as_u64().unwrap_or(0);
        if (1..=total).contains(&of_guest) && !told.contains(&stats["last-update"]) {
            told.push(stats["last-update"].clone());
        }
        (told.len() == 3).then_some(())
    });
    qmp.done("qom-set", interval(json!(0)));
}

/// Nobody asks the guest for anything.
#[test]
fn a_guest_reports_the_pages_that_it_does_not_use() {
    for kernel in KERNELS.into_iter().filter(|kernel| has_module(kernel, "virtio_balloon")) {
        let directory = Directory::new();
        let socket = directory.path("qmp");
        // The last seconds are kept, too, which touches no pages.
        let options = ["--balloon", "on", "--record-last", "2s"];
        let mut guest = start(kernel, &socket, &options);
        let mut qmp = Qmp::connect(&socket);
        let sum = guest.command("md5sum < /files/one");
        for _ in 0..2 {
            let before = number(&mut qmp, "released");
            assert_eq!(guest.command(FILL), sum);
            wait_until("the guest reports what it has freed, and the host has it", || {
                let has_reported = number(&mut qmp, "released") >= before + 280 * 256;
                (has_reported && memory_of(&guest) <= 160 * MIB).then_some(())
            });
        }
        let (released, runs) = (number(&mut qmp, "released"), number(&mut qmp, "runs"));
        eprintln!("{kernel}: {runs} requests to the host for {} MiB", released / 256);
        assert!(runs <= released / 256, "{runs} {released}");
        assert_eq!(guest.command("md5sum < /files/one"), sum);
        assert_eq!(guest.power_off(), Some(0));
    }
}

/// A guest is asked for memory while it moves, and has what it has not given up at the other end.
#[test]
fn a_guest_with_a_balloon_moves() {
    let kernel = "linux-686";
    if !has_module(kernel, "virtio_balloon") {
        return;
    }
    let directory = Directory::new();
    let (socket, other) = (directory.path("qmp"), directory.path("other"));
    let place = format!("unix:{}", directory.path("move").display());
    let mut guest = start(kernel, &socket, &["--balloon", "free-page-reporting=off"]);
    let mut qmp = Qmp::connect(&socket);
    let sum = guest.command("md5sum < /files/one");
    assert_eq!(guest.command(FILL), sum);
    resize(&mut qmp, SMALL + 64 * MIB);
    let waiting = awaited(&place, &other, &[]);
    let mut there = Qmp::connect(&other);
    qmp.done("balloon", json!({"value": SMALL}));
    moves(&mut qmp, &place);
    quit(qmp, guest);
    let mut guest = waiting;
    wait_until("the balloon grows on", || {
        (there.done("query-balloon", json!({})) == json!({"actual": SMALL})).then_some(())
    });
    assert_eq!(guest.command("md5sum < /files/one"), sum);
    let memory = memory_of(&guest);
    assert!(memory <= SMALL + 8 * MIB, "{memory}");
    resize(&mut there, MEMORY);
    assert_eq!(guest.command(FILL), sum);
    assert_eq!(guest.power_off(), Some(0));
}

/// Records a run in which the balloon grows and shrinks, while the driver is there and while it is loaded anew.
fn record(kernel: &str, directory: &Directory) -> (PathBuf, String) {
    let (socket, recording) = (directory.path("qmp"), directory.path("recording"));
    let record = recording.to_str().expect("the path is plain");
    let mut guest = start(kernel, &socket, &["--balloon", "on", "--record", record]);
    let mut qmp = Qmp::connect(&socket);
    let sum = guest.command("md5sum < /files/one");
    let before = number(&mut qmp, "released");
    wait_until("the guest reports what it does not use", || {
        (number(&mut qmp, "released") > before).then_some(())
    });
    resize(&mut qmp, SMALL);
    let path = "/machine/peripheral/balloon0";
    let poll = json!({"path": path, "property": "guest-stats-polling-interval", "value": 1});
    qmp.done("qom-set", poll);
    guest.command("modprobe -r virtio_balloon; free; modprobe virtio_balloon");
    resize(&mut qmp, MEMORY);
    assert_eq!(
        guest.command("md5sum < /files/one; cat /proc/interrupts").lines().next(),
        Some(&*sum)
    );
    guest.type_line("poweroff -f");
    let (status, shown) = guest.end_of_run();
    assert_eq!(status, Some(0));
    (recording, shown)
}

/// Repeats a recorded run, and returns what it shows.
fn replayed(recording: &Path, options: &[&str]) -> String {
    let mut replay = ring3();
    replay.args(["run", "--replay"]).arg(recording).args(options);
    String::from_utf8(output(&mut replay)).expect("ASCII").replace('\r', "")
}

#[test]
fn a_recording_repeats_what_the_balloon_does() {
    let kernel = "linux-686";
    if has_module(kernel, "virtio_balloon") {
        let directory = Directory::new();
        let (recording, shown) = record(kernel, &directory);
        assert_eq!(replayed(&recording, &[]), shown);
    }
}

#[test]
#[ignore = "executes two boots in the interpreter, too; make test-long runs it"]
fn both_engines_do_alike_with_a_balloon() {
    for kernel in KERNELS.into_iter().filter(|kernel| has_module(kernel, "virtio_balloon")) {
        let directory = Directory::new();
        let (recording, shown) = record(kernel, &directory);
        assert_eq!(replayed(&recording, &["--verify"]), shown);
    }
}
