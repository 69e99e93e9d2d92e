//! The last seconds of a run are written when the guest fails, or when somebody asks, and are repeated from there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::gdb::contains_in_order;
use crate::gdb_back::{counter, gdb, replay};
use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, kernel, ring3, wait_until};

/// The value of `--record-last` for the file `recording` of `directory`.
fn last(time: &str, directory: &Directory) -> String {
    format!("{time},file={}", directory.path("recording").display())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

/// Repeats the recording of `directory` on this engine.
fn repeated(directory: &Directory, engine: &str, more: &[&str]) -> Output {
    let mut replay = ring3();
    replay.args(["run", "--engine", engine]).args(more).arg("--replay");
    replay.arg(directory.path("recording")).stdin(Stdio::null()).output().unwrap()
}

/// Debian's own driver finds the device, and its panic is recorded: the replay ends there, and GDB goes back from
/// there.
#[test]
fn a_panic_of_debian_is_recorded_and_gdb_goes_back_from_it() {
    let directory = Directory::new();
    let script = directory.file(
        "script",
        b"modprobe pvpanic-mmio\nls /sys/bus/acpi/devices\nsleep 5\necho c > /proc/sysrq-trigger\n",
    );
    let mut run = ring3();
    run.args(["run", "--on-panic", "end", "--stats", "--record-last"]).arg(last("2s", &directory));
    add_linux(&mut run, &WITH_MODULES);
    let ran = run.stdin(fs::File::open(script).unwrap()).output().unwrap();
    let (stats, console) = (said(&ran), shown(&ran));
    assert_eq!(ran.status.code(), Some(3), "{stats}\n{console}");
    contains_in_order(
        &console,
        &["QEMU0001:00", "Kernel panic - not syncing: sysrq triggered crash"],
    );
    contains_in_order(
        &stats,
        &["the guest's system has failed (panic)", "s before the panic are recorded", "ring3: "],
    );
    assert_eq!(counter(&stats, " checkpoints kept"), 2, "{stats}");
    let memory = counter(&stats, " bytes of memory kept in them");
    assert!((8 << 20..=2 * (128 << 20) + (17 << 20)).contains(&memory), "{stats}");

    for engine in ["translator", "interpreter"] {
        let again = repeated(&directory, engine, &[]);
        assert_eq!(again.status.code(), Some(3), "{}", said(&again));
        let again = shown(&again);
        assert!(again.contains("Kernel panic - not syncing: sysrq triggered crash"), "{again}");
        assert!(console.ends_with(&again), "{again}");
        assert!(again.len() < console.len(), "the boot is long past");
    }
    let mut verify = ring3();
    verify.args(["run", "--verify", "--replay"]).arg(directory.path("recording"));
    let verified = verify.stdin(Stdio::null()).output().unwrap();
    if !said(&verified).contains("the translator cannot run on this host") {
        assert_eq!(verified.status.code(), Some(3), "{}", said(&verified));
    }

    let child = replay(&directory, "auto", &[]);
    let told = gdb(
        &directory,
        &[
            "reverse-continue",
            "continue",
            // It stands behind the OUT by which the kernel has said that it has failed.
            "reverse-stepi",
            "x/i $eip",
            "info registers edx",
            "reverse-stepi",
            "stepi",
            "x/i $eip",
            "detach",
        ],
    );
    let history = "No more reverse-execution history";
    contains_in_order(&told, &[history, history, "out ", "(%dx)", "0505", "out ", "detached"]);
    let (status, stats) = crate::gdb::end(child);
    assert_eq!(status, Some(3), "{stats}");
}

/// The guest reads a disk without an end, so that its requests are under way at checkpoints, and changes it; each signal
/// writes what has come last.
#[test]
fn a_signal_writes_the_last_seconds_of_a_guest_at_work() {
    let directory = Directory::new();
    let disk = directory.path("disk");
    let noise: Vec<u8> =
        (0..1_u32 << 21).flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    fs::write(&disk, noise).unwrap();
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.args(["--stats", "--record-last"]).arg(last("3s", &directory));
        command.arg("--drive").arg(format!("file={},if=virtio,snapshot=on", disk.display()));
        command.stderr(fs::File::create(directory.path("said")).unwrap());
    });
    guest.wait_for(PROMPT);
    guest.command("modprobe virtio_pci; modprobe virtio_blk");
    let id = Pid::from_raw(guest.id().cast_signed()).unwrap();
    guest.begin(
        "for n in 1 2 3 4 5 6 7 8; do echo 3 > /proc/sys/vm/drop_caches; \
         dd if=/dev/vda bs=64k 2>/dev/null | md5sum; \
         dd if=/dev/urandom of=/dev/vda bs=1k seek=$((n * 99)) count=300 conv=notrunc 2>/dev/null; date; sleep 0.3; done",
    );
    let recording = directory.path("recording");
    let mut repeated = Vec::new();
    for round in 0..3 {
        guest.wait_for("UTC");
        guest.wait_for("UTC");
        kill_process(id, Signal::USR2).unwrap();
        wait_until("no recording", || recording.exists().then_some(()));
        let kept = directory.path(&format!("kept{round}"));
        fs::rename(&recording, &kept).unwrap();
        for engine in ["translator", "interpreter"] {
            let mut replay = ring3();
            replay.args(["run", "--engine", engine, "--replay"]).arg(&kept);
            let again = replay.stdin(Stdio::null()).output().unwrap();
            assert_eq!(again.status.code(), Some(0), "{}", said(&again));
            repeated.push(shown(&again));
        }
    }
    guest.end();
    // What is repeated is what was said, on both engines.
    for pair in repeated.chunks(2) {
        assert!(pair[0] == pair[1] && guest.shown().contains(&pair[0]), "{pair:?}");
    }
    assert!(repeated.iter().any(|shown| shown.contains("UTC")), "{repeated:?}");
    assert_eq!(guest.power_off(), Some(0));
    let stats = fs::read_to_string(directory.path("said")).unwrap();
    assert_eq!(stats.matches("s before this moment are recorded").count(), 3, "{stats}");
    assert!(counter(&stats, " checkpoints for the last seconds") >= 3, "{stats}");
    assert!(counter(&stats, " checkpoints kept") <= 3, "{stats}");
    // The disk's eight megabytes were read eight times, and only what has changed since then is kept.
    let inputs = counter(&stats, " bytes of inputs kept at most");
    assert!((300 << 10..8 << 20).contains(&inputs), "{stats}");
}

/// A kernel that says that it has failed when a byte comes from COM1, and then waits for the next one.
#[rustfmt::skip]
const PANICS: &[u8] = &[
    0x66, 0xba, 0xfd, 0x03, 0xec, // MOV DX, 3FDh; IN AL, DX
    0xa8, 0x01, 0x74, 0xf7, //       TEST AL, 1; JZ to the MOV
    0x66, 0xba, 0xf8, 0x03, 0xec, // MOV DX, 3F8h; IN AL, DX
    0xee, //                         OUT DX, AL
    0x66, 0xba, 0x05, 0x05, 0xee, // MOV DX, 505h; OUT DX, AL
    0xeb, 0xea, //                   JMP to the first MOV
];

/// The kernel under QEMU's command line, with more options.
fn panics(directory: &Directory, more: &str) -> Child {
    let image = directory.file("kernel", &kernel(PANICS));
    let mut qemu: Command = ring3();
    qemu.args(["qemu", "-nodefaults", "-display", "none", "-serial", "stdio", "-qmp"]);
    qemu.arg(format!("unix:{},server=on,wait=off", directory.path("qmp").display()));
    qemu.args(more.split_whitespace()).arg("-kernel").arg(image);
    qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Types a byte, which the guest tells the device.
fn tell(child: &mut Child, byte: u8) {
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), &[byte]).unwrap();
}

#[test]
fn tools_hear_of_panics_as_from_qemu() {
    let directory = Directory::new();
    for (more, action, state) in [
        ("-device pvpanic -action panic=none", "run", "running"),
        ("-device pvpanic -action panic=pause", "pause", "guest-panicked"),
        ("-device pvpanic -no-shutdown", "pause", "guest-panicked"),
    ] {
        let mut child = panics(&directory, more);
        let mut qmp = Qmp::connect(&directory.path("qmp"));
        tell(&mut child, 2);
        assert_eq!(qmp.event("GUEST_CRASHLOADED"), json!({"action": "run"}));
        tell(&mut child, 1);
        assert_eq!(qmp.event("GUEST_PANICKED"), json!({"action": action}));
        let status = qmp.done("query-status", json!({}));
        assert_eq!(status, json!({"running": state == "running", "status": state}));
        qmp.done("cont", json!({}));
        assert_eq!(qmp.done("query-status", json!({}))["status"], "running");
        qmp.refused("record-save", json!({}), "GenericError", "--record-last");
        qmp.done("quit", json!({}));
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    for (more, status) in [("", 0), ("-action panic=exit-failure", 1)] {
        let mut child = panics(&directory, &format!("-device pvpanic {more}"));
        let mut qmp = Qmp::connect(&directory.path("qmp"));
        tell(&mut child, 1);
        assert_eq!(qmp.event("GUEST_PANICKED"), json!({"action": "poweroff"}));
        assert_eq!(qmp.event("SHUTDOWN"), json!({"guest": true, "reason": "guest-panic"}));
        assert_eq!(child.wait().unwrap().code(), Some(status));
    }
    // Without the device nobody hears.
    let mut child = panics(&directory, "");
    let mut qmp = Qmp::connect(&directory.path("qmp"));
    tell(&mut child, 1);
    let mut echo = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut echo).unwrap();
    qmp.done("quit", json!({}));
    assert!(!qmp.has_event("GUEST_PANICKED"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A tool writes the last seconds to a file of its choice, deterministic or not.
#[test]
fn a_tool_writes_the_last_seconds() {
    for more in [&[][..], &["--deterministic"]] {
        let directory = Directory::new();
        let image = directory.file("kernel", &kernel(PANICS));
        let mut run = ring3();
        run.args(["run", "--record-last"]).arg(last("1s", &directory)).args(more);
        run.arg("--qmp").arg(format!("unix:{}", directory.path("qmp").display()));
        run.args(["--kernel"]).arg(image).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = run.stderr(Stdio::piped()).spawn().unwrap();
        let mut qmp = Qmp::connect(&directory.path("qmp"));
        let file = directory.path("by hand");
        let saved = qmp.done("record-save", json!({"file": file}));
        assert_eq!(saved["file"], json!(file));
        assert_eq!(saved["first-instruction"], 0);
        let shown = repeated_file(&file);
        assert_eq!((shown.status.code(), shown.stdout.as_slice()), (Some(0), &b""[..]));
        if more.is_empty() {
            tell(&mut child, b'A');
            qmp.event("GUEST_PANICKED");
            wait_until("no recording", || directory.path("recording").exists().then_some(()));
            let shown = repeated_file(&directory.path("recording"));
            assert_eq!((shown.status.code(), shown.stdout.as_slice()), (Some(0), &b"A"[..]));
        }
        let nowhere = json!({"file": directory.path("none/recording")});
        qmp.refused("record-save", nowhere, "GenericError", "No such file");
        qmp.done("record-save", json!({}));
        qmp.done("quit", json!({}));
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(
            more.is_empty() == lines.any(|line| line.unwrap().contains("the panic are recorded"))
        );
        assert_eq!(repeated_file(&directory.path("recording")).status.code(), Some(0));
    }
}

fn repeated_file(file: &Path) -> Output {
    let mut replay = ring3();
    replay.args(["run", "--replay"]).arg(file).stdin(Stdio::null()).output().unwrap()
}

/// A triple fault on the way, for which the machine starts again: LIDT of no bytes; UD2.
const FAULTS: &[u8] = &[
    0xb9, 0x00, 0x00, 0x40, 0x00, 0xe2, 0xfe, // MOV ECX, 400000h; LOOP to itself
    0x0f, 0x01, 0x1d, 0x12, 0x00, 0x10, 0x00, // LIDT [100012h]
    0x0f, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn a_triple_fault_is_recorded() {
    let directory = Directory::new();
    let image = directory.file("kernel", &kernel(FAULTS));
    let mut run = ring3();
    run.args(["run", "--no-reboot", "--record-last"]).arg(last("1s", &directory));
    let ran = run.arg("--kernel").arg(image).stdin(Stdio::null()).output().unwrap();
    assert_eq!(ran.status.code(), Some(3), "{}", said(&ran));
    assert!(said(&ran).contains("s before the guest's end are recorded"), "{}", said(&ran));
    let again = repeated(&directory, "interpreter", &[]);
    assert_eq!(again.status.code(), Some(3));
    let report = said(&ran).split_once("ring3: ").unwrap().1.to_owned();
    assert_eq!(said(&again).split_once("ring3: ").unwrap().1, report);
    let early = repeated(&directory, "auto", &["--to", "0"]);
    assert_eq!(early.status.code(), Some(0), "{}", said(&early));
}

#[test]
fn wrong_ways_to_record_the_last_seconds_are_refused() {
    let directory = Directory::new();
    let image = directory.file("kernel", &kernel(crate::support::HALT_FOR_EVER));
    let refused = |arguments: &[&str]| {
        let mut run = ring3();
        run.args(["run", "--kernel"]).arg(&image).args(arguments).stdin(Stdio::null());
        let output = run.output().unwrap();
        (output.status.code(), said(&output))
    };
    for (arguments, part) in [
        (&["--record-last", "soon"][..], "30s, 2m or 1h"),
        (&["--record-last", "1s,inputs=0"], "from 1M to 32G"),
        (&["--record-last", "1s", "--record", "r"], "cannot be used with"),
        (&["--record-last", "1s", "--replay", "r"], "cannot be used with"),
        (&["--record-last", "1s", "--verify"], "cannot be used with"),
        (&["--on-panic", "scream"], "continue"),
    ] {
        let (status, said) = refused(arguments);
        assert!(status == Some(2) && said.contains(part), "{arguments:?}: {status:?} {said}");
    }
    let nowhere = format!("1s,file={}", directory.path("none/recording").display());
    let (status, said) = refused(&["--record-last", &nowhere]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.starts_with("ring3: cannot record to ") && said.lines().count() == 1, "{said}");
}
