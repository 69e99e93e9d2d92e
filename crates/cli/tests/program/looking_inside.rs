//! Looking inside a guest from outside: the system calls of its programs, and the registers of its machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::guest::{Guest, add_linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3, system_program};
use crate::tern::has_tern;

/// What Debian's shell does: a file that is there and one that is not, a pipe and a pause.
const SCRIPT: &[u8] = b"dmesg -n 1\n\
    echo text >/file; cat /file /no-such-file\n\
    echo through a pipe | cat\n\
    usleep 50000\n\
    poweroff -f\n";

/// Returns the command of a deterministic Debian, or of the replay of one, that writes its trace to `trace`.
fn traced(trace: &Path) -> Command {
    let mut command = ring3();
    command.args(["run", "--trace", "syscalls", "--trace-file"]).arg(trace);
    command
}

fn run(command: &mut Command, script: &Path) {
    let stdin = fs::File::open(script).unwrap();
    let ended = command.stdin(stdin).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{said}");
}

#[track_caller]
fn same(one: &str, other: &str) {
    let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!(one.len(), other.len());
}

/// Both engines, and a replay, tell of the same calls at the same instructions.
#[test]
fn the_system_calls_of_debian_are_traced() {
    let directory = Directory::new();
    let script = directory.file("script", SCRIPT);
    let (trace, recording) = (directory.path("trace"), directory.path("recording"));
    let debian = |engine: &str| {
        let mut command = traced(&trace);
        command.args(["--deterministic", "--engine", engine]);
        add_linux(&mut command, &["initramfs.cpio.gz"]);
        command
    };
    let read = || fs::read_to_string(&trace).expect("there is a trace");
    run(debian("auto").arg("--record").arg(&recording), &script);
    let first = read();
    let call = |parts: &[&str]| {
        let mut lines = first.lines();
        let found = lines.find(|line| parts.iter().all(|part| line.contains(part)));
        found.unwrap_or_else(|| panic!("no call with {parts:?}"))
    };
    call(&["execve(\"/", "\", 0x"]);
    call(&["open", "\"/no-such-file\"", " = -2 ENOENT <0.0"]);
    let opened = call(&["open", "\"/file\"", " = 3 <0.0"]);
    call(&["write(1, \"text\\n\", 5) = 5 <"]);
    let mut slept = call(&["nanosleep", "(", " = 0 <0.05"]).split_whitespace();
    // The first column is the count of instructions, the second the time, the third CR3.
    let count: u64 = slept.next().unwrap().parse().unwrap();
    let nanos: f64 = slept.next().unwrap().parse().unwrap();
    assert!(count > 1_000_000 && nanos > 0.05);
    let cr3 = opened.split_whitespace().nth(2).unwrap();
    assert!(cr3.len() == 8 && u32::from_str_radix(cr3, 16).unwrap() % 32 == 0, "{cr3}");
    call(&["exit_group(0)"]);
    call(&["clone(", ") = ", " <0.0"]);

    run(&mut debian("interpreter"), &script);
    same(&first, &read());
    run(traced(&trace).arg("--replay").arg(&recording), &script);
    same(&first, &read());

    // A limit, and standard error.
    let mut command = ring3();
    command.args(["run", "--replay"]).arg(&recording);
    command.args(["--trace", "syscalls", "--trace-limit", "3"]);
    let ended = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    let expected: Vec<_> = first.lines().take(3).collect();
    let shown: Vec<_> = said.lines().collect();
    assert_eq!(shown[..3], expected);
    assert_eq!(shown[3..], ["the trace is at its limit, and ends here"]);
}

#[test]
fn a_trace_that_cannot_be_written_ends_the_run() {
    let directory = Directory::new();
    let script = directory.file("script", b"");
    let mut command = traced(Path::new("/dev/full"));
    add_linux(&mut command, &["initramfs.cpio.gz"]);
    let ended = command.stdin(fs::File::open(script).unwrap()).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write the trace of system calls: No space left"), "{said}");
    let refused = traced(&directory.path("no/such")).args(["--tern"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write the trace to "), "{said}");
}

fn shows_its_registers(engine: &str) {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (socket, disk) = (directory.path("qmp"), directory.file("disk", &vec![0; 1 << 20]));
    let mut command = ring3();
    command.args(["run", "--engine", engine, "--memory", "64M", "--tern", "--qmp"]);
    command.arg(format!("unix:{}", socket.display()));
    command.args(["--nic", "user,model=e1000,id=lan", "--hda"]).arg(&disk);
    let other = directory.file("other", &vec![0; 1 << 20]);
    command.arg("--drive").arg(format!("file={},if=virtio", other.display()));
    let mut guest = Guest::of(command);
    guest.wait_for("# ");
    let inspect = |arguments: &[&str]| {
        let mut command = ring3();
        command.arg("inspect").arg(&socket).args(arguments);
        command
    };
    let shown = |arguments: &[&str]| String::from_utf8(output(&mut inspect(arguments))).unwrap();
    // While it runs: all of it, and the same part twice.
    let all = shown(&[]);
    for part in [
        "processor/general_registers/EAX 0x",
        "processor/control_registers/CR0 0x8",
        "devices/pit/counters/0/CW 0x",
        "devices/rtc/cmos/register_B 0x",
        "devices/nic0/chip/file/CTRL 0x",
        "devices/nic0/config/vendor_id 0x8086\n",
        "devices/virtio-blk0/transport/device_status 0x",
        "devices/virtio-blk0/transport/queues/0/size 0x",
        "devices/ide/channels/0/master/BMICX 0x",
        "devices/interrupts/apics/local_apic/",
        "timers/pending/0/device ",
        "drives/ide-0/sectors 0x800\n",
        "networks/nic0/network lan\n",
        "counters/instructions 0x",
    ] {
        assert!(all.contains(part), "{part} is missing in {all}");
    }
    let count = || u64::from_str_radix(shown(&["time/instructions"]).trim()[2..].as_ref(), 16);
    let before = count().unwrap();
    guest.type_line("ls");
    guest.wait_for("# ");
    assert!(count().unwrap() > before);
    // It agrees with the monitor when the machine stands still.
    let mut qmp = Qmp::connect(&socket);
    qmp.done("stop", json!({}));
    let of_monitor = qmp.done("human-monitor-command", json!({"command-line": "print $eip"}));
    assert_eq!(shown(&["processor/eip"]).trim(), of_monitor.as_str().unwrap().trim());
    let part = qmp.done("human-monitor-command", json!({"command-line": "inspect processor/EIP"}));
    assert_eq!(part.as_str().unwrap().trim(), of_monitor.as_str().unwrap().trim());
    let tree: Value = serde_json::from_str(&shown(&["--json"])).unwrap();
    let counters = tree["devices"]["pit"]["counters"].as_array().unwrap();
    assert_eq!(counters.len(), 3);
    assert_eq!(tree["drives"]["ide-0"]["file"], disk.to_str().unwrap());
    let counter: Value =
        serde_json::from_str(&shown(&["--json", "devices/pit/counters/0"])).unwrap();
    assert_eq!(counter, counters[0]);
    qmp.done("cont", json!({}));

    let wrong = inspect(&["devices/pit/counters/3"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(said, "ring3: there is no 3 in devices/pit/counters: it has 0 to 2\n");
    // Changes are shown until Ctrl-C, or until the machine ends.
    let watch = |arguments: &[&str]| {
        Guest::of({
            let mut command = inspect(arguments);
            command.args(["--watch", "0.02"]);
            command
        })
    };
    let mut watched = watch(&["time"]);
    watched.wait_for("\ninstructions 0x");
    guest.type_line("ls");
    watched.wait_for("after ");
    watched.wait_for("\ninstructions 0x");
    let changed = watched.wait_for("\n");
    assert!(changed.contains(" -> 0x"), "{changed}");
    let id = Pid::from_raw(watched.id().cast_signed()).unwrap();
    kill_process(id, Signal::INT).unwrap();
    assert_eq!(watched.wait_for_the_end(), Some(0));
    let wrong = inspect(&["--watch", "never"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let mut watched = watch(&["--json", "time"]);
    watched.wait_for("{\"value\":{\"instructions\":");
    guest.type_line("ls");
    watched.wait_for("\"changes\":{\"instructions\":");
    guest.type_line("poweroff");
    assert_eq!(guest.wait_for_the_end(), Some(0));
    assert_eq!(watched.wait_for_the_end(), Some(0));
    let gone = inspect(&[]).output().unwrap();
    let said = String::from_utf8(gone.stderr).unwrap();
    assert!(gone.status.code() == Some(1) && said.contains("must run with --qmp"), "{said}");
}

#[test]
fn the_registers_are_shown_beside_the_translator() {
    shows_its_registers("translator");
}

#[test]
fn the_registers_are_shown_beside_the_interpreter() {
    shows_its_registers("interpreter");
}

/// A guest's packets as text, while it runs and from a file, of which tshark reads as many.
#[test]
fn packets_are_shown_as_text() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let (socket, file) = (directory.path("qmp"), directory.path("pcap"));
    let mut command = ring3();
    command.args(["run", "--memory", "64M", "--tern", "--qmp"]);
    command.arg(format!("unix:{}", socket.display()));
    command.arg("--nic").arg(format!("user,model=virtio,id=lan,pcap={}", file.display()));
    let mut guest = Guest::of(command);
    guest.wait_for("# ");
    let tell = |guest: &mut Guest, line: &str| {
        guest.type_line(&format!("{line}; echo do''ne"));
        guest.wait_for("done\n")
    };
    tell(
        &mut guest,
        "for i in $(seq 100); do ifconfig virtio_net | grep 'by DHCP' && break; sleep 0.1; done",
    );
    let capture = |arguments: &[&str]| {
        let mut command = ring3();
        command.arg("capture").args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let place = socket.to_str().unwrap();
    let mut live = capture(&[place, "--card", "lan", "--count", "8"]).spawn().unwrap();
    while live.try_wait().unwrap().is_none() {
        tell(&mut guest, "ping -c 1 10.0.2.2");
    }
    let shown = String::from_utf8(live.wait_with_output().unwrap().stdout).unwrap();
    // ARP may come in between.
    assert_eq!(shown.lines().count(), 8, "{shown}");
    assert!(shown.contains(" IP 10.0.2.15 > 10.0.2.2: ICMP echo request, id "), "{shown}");
    assert!(shown.contains(" IP 10.0.2.2 > 10.0.2.15: ICMP echo reply, id "), "{shown}");

    let refused = |arguments: &[&str], part: &str| {
        let ended = capture(arguments).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    };
    refused(&[place, "--card", "wan"], "Device 'wan' not found");
    guest.type_line("poweroff");
    assert_eq!(guest.wait_for_the_end(), Some(0));

    let file = file.to_str().unwrap();
    refused(&[file, "--card", "lan"], "--card is for a running machine");
    refused(&["/dev/null"], "it is no file of packets");
    refused(&["/no/such"], "cannot read /no/such: No such file");
    let shown = String::from_utf8(output(&mut capture(&[file]))).unwrap();
    for part in [
        "IP 0.0.0.0.68 > 255.255.255.255.67: DHCP discover from 52:54:",
        ": DHCP ack from 52:54:",
        "ARP, who-has 10.0.2.",
        "is-at ",
        "ICMP echo reply",
    ] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    let listed = output(system_program("tshark").args(["-r", file]));
    let listed = String::from_utf8(listed).unwrap();
    assert_eq!(listed.lines().count(), shown.lines().count(), "{listed}\n{shown}");
}
