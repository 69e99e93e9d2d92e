//! Serial cards on PCI: those of the command line, and those that QMP gives to a running Linux and takes away.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::hotplug::{Recorded, add_machine};
use crate::support::guest::{Guest, PROMPT};
use crate::support::qmp::Qmp;
use crate::support::{Directory, ring3, wait_until};

const GENERIC: &str = "GenericError";

fn start(directory: &Directory, options: &[&str]) -> (Guest, Qmp) {
    let socket = directory.path("qmp");
    let mut guest = Guest::start(|command| {
        add_machine(command, &socket);
        command.args(options);
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    (guest, Qmp::connect(&socket))
}

/// Waits for the serial port of the card in PCI slot `slot`, and returns its file.
fn tty(guest: &mut Guest, slot: u8) -> String {
    let name = guest.command(&format!(
        "cd /sys/bus/pci/devices; while ! ls 0000:00:{slot:02x}.0/tty 2>/dev/null; do sleep 1; done; cd"
    ));
    let file = format!("/dev/{name}");
    guest.command(&format!("stty -F {file} 115200 raw -echo"));
    file
}

/// Sends lines both ways between the guest's `file` and its other end. `wake` waits until the guest reads.
fn talk(guest: &mut Guest, file: &str, client: &mut (impl Read + Write)) {
    guest.begin(&format!("echo ready > {file}; head -n 1 {file} | tr a-z A-Z | tee {file}"));
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    lines.get_mut().write_all(b"from outside\n").unwrap();
    assert_eq!(guest.end(), "FROM OUTSIDE");
    line.clear();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "FROM OUTSIDE\n");
}

fn unix(path: &Path) -> Value {
    let address = json!({"type": "unix", "data": {"path": path}});
    json!({"type": "socket", "data": {"addr": address, "server": true, "wait": false}})
}

/// One card after the other, at a socket and with a file; the usual sandbox is around the machine.
#[test]
fn serial_cards_are_plugged_in_and_removed() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory, &[]);
    let [socket, file] = ["line", "file"].map(|name| directory.path(name));
    let card = |chardev: &str| json!({"driver": "pci-serial", "id": "card", "chardev": chardev});
    qmp.done("chardev-add", json!({"id": "line", "backend": unix(&socket)}));
    let mut client = UnixStream::connect(&socket).unwrap();
    for slot in [30, 31] {
        let mut wanted = card("line");
        wanted["addr"] = json!(slot);
        qmp.done("device_add", wanted.clone());
        let device = tty(&mut guest, slot);
        talk(&mut guest, &device, &mut client);
        qmp.refused("device_add", wanted, GENERIC, "Duplicate device ID");
        let there = json!({"driver": "pci-serial", "chardev": "line", "addr": slot});
        qmp.refused("device_add", there, GENERIC, "is taken");
        let other = json!({"driver": "pci-serial", "chardev": "line"});
        qmp.refused("device_add", other, GENERIC, "it's in use");
        qmp.refused("chardev-remove", json!({"id": "line"}), GENERIC, "'line' is busy");
        let shown = qmp.done("query-chardev", json!({}));
        let shown = shown.as_array().unwrap().iter().find(|one| one["label"] == "line").unwrap();
        assert_eq!(shown["filename"], format!("unix:{},server=on", socket.display()));
        qmp.done("device_del", json!({"id": "card"}));
        let gone = json!({"device": "card", "path": "/machine/peripheral/card"});
        assert_eq!(qmp.event("DEVICE_DELETED"), gone);
        assert_eq!(guest.command("ls /sys/bus/pci/devices | grep -c 1[ef].0"), "0");
    }
    qmp.done("chardev-remove", json!({"id": "line"}));
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "the client is disconnected");
    assert!(!socket.exists());

    let pty = json!({"id": "pty", "backend": {"type": "pty", "data": {}}});
    qmp.refused("chardev-add", pty, GENERIC, "--sandbox off");
    let add = format!("chardev-add file,id=file,path={}", file.display());
    assert_eq!(monitor(&mut qmp, &add), "");
    assert_eq!(monitor(&mut qmp, "device_add pci-serial,chardev=file"), "");
    let device = tty(&mut guest, 30);
    guest.command(&format!("seq 2000 > {device}"));
    let numbers = |text: &str| text.lines().map(str::parse).collect::<Result<Vec<u32>, _>>();
    wait_until("the file lacks lines", || {
        let there = numbers(&fs::read_to_string(&file).unwrap());
        (there == Ok((1..=2000).collect())).then_some(())
    });
    qmp.done("device_del", json!({"id": "pci-serial0"}));
    assert_eq!(qmp.event("DEVICE_DELETED")["path"], "/machine/peripheral-anon/pci-serial0");
    assert_eq!(monitor(&mut qmp, "chardev-remove file"), "");
    assert_eq!(guest.power_off(), Some(0));
}

/// Executes a command for people.
fn monitor(qmp: &mut Qmp, line: &str) -> String {
    let answer = qmp.done("human-monitor-command", json!({"command-line": line}));
    answer.as_str().unwrap().to_owned()
}

/// Programs that open pseudoterminals are at the other ends; only without a sandbox can more of these be made.
#[test]
fn cards_are_at_pseudoterminals() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory, &["--serial-card", "pty", "--sandbox", "off"]);
    let listed = monitor(&mut qmp, "info chardev");
    let name = |line: &str| line.strip_prefix("pci-serial0: filename=pty:").map(str::to_owned);
    let first = listed.lines().find_map(name).expect("it is listed");
    let added = monitor(&mut qmp, "chardev-add pty,id=pty");
    let second = added.trim().strip_prefix("char device redirected to ").unwrap();
    assert_eq!(monitor(&mut qmp, "device_add pci-serial,id=card,chardev=pty"), "");
    for (slot, path) in [(30, first.as_str()), (31, second)] {
        let device = tty(&mut guest, slot);
        talk(&mut guest, &device, &mut terminal(path));
    }
    let tree = monitor(&mut qmp, "info qtree");
    assert!(tree.contains("dev: pci-serial, id \"card\", chardev = \"pty\""), "{tree}");
    let full = json!({"driver": "pci-serial", "chardev": "pty"});
    qmp.refused("device_add", full, GENERIC, "at most 2 serial cards");
    assert_eq!(guest.power_off(), Some(0));
}

fn terminal(path: &str) -> fs::File {
    fs::File::options().read(true).write(true).open(path).unwrap()
}

/// Cards of both command lines are there from the start, with and without firmware's help, and leave like others.
#[test]
fn cards_of_the_command_line_are_found() {
    let directory = Directory::new();
    let [file, line] = ["file", "line"].map(|name| directory.path(name));
    let [to_file, to_socket] =
        [format!("file:{}", file.display()), format!("unix:{}", line.display())];
    let options = ["--serial-card", &to_file, "--serial-card", &to_socket];
    let (mut guest, mut qmp) = start(&directory, &options);
    let first = tty(&mut guest, 30);
    let second = tty(&mut guest, 31);
    talk(&mut guest, &second, &mut UnixStream::connect(&line).unwrap());
    guest.command(&format!("echo hello > {first}"));
    wait_until("the file is empty", || {
        (fs::read_to_string(&file).unwrap() == "hello\n").then_some(())
    });
    qmp.done("device_del", json!({"id": "pci-serial0"}));
    assert_eq!(qmp.event("DEVICE_DELETED")["path"], "/machine/peripheral-anon/pci-serial0");
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn impossible_character_devices_and_cards_are_refused() {
    let directory = Directory::new();
    let (guest, mut qmp) = start(&directory, &[]);
    let taken = directory.file("taken", b"");
    for (backend, part) in [
        (json!({"type": "stdio"}), "command line"),
        (json!({"type": "udp", "data": {}}), "datagrams"),
        (json!({"type": "serial", "data": {"device": "/dev/ttyS0"}}), "passed through"),
        (json!({"type": "file", "data": {}}), "path=FILE"),
        (json!({"type": "file", "data": {"out": "/no/such/file"}}), "/no/such/file"),
        (unix(&taken), "is not a socket"),
        (json!({"type": "null", "data": {"colour": "red"}}), "colour"),
    ] {
        qmp.refused("chardev-add", json!({"id": "a", "backend": backend}), GENERIC, part);
    }
    let nowhere = json!({"type": "null", "data": {}});
    qmp.refused("chardev-add", json!({"id": "serial0", "backend": nowhere}), GENERIC, "exists");
    qmp.done("chardev-add", json!({"id": "a", "backend": nowhere}));
    qmp.refused("chardev-add", json!({"id": "a", "backend": nowhere}), GENERIC, "exists");
    qmp.refused("chardev-remove", json!({"id": "b"}), GENERIC, "'b' not found");
    for (card, part) in [
        (json!({"driver": "pci-serial"}), "empty char device"),
        (json!({"driver": "pci-serial", "chardev": "b"}), "can't find value 'b'"),
        (json!({"driver": "pci-serial", "chardev": "a", "addr": "0x5"}), "PCI slot 5"),
        (json!({"driver": "pci-serial", "chardev": "a", "netdev": "n"}), "netdev"),
        (json!({"driver": "pci-serial-2x", "chardev": "a"}), "not a valid device model name"),
    ] {
        qmp.refused("device_add", card, GENERIC, part);
    }
    assert_eq!(guest.power_off(), Some(0));
}

/// A machine is saved with a card that it was given while it ran, and continues with it on both engines.
#[test]
fn a_saved_machine_has_its_new_card() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory, &[]);
    qmp.done("chardev-add", json!({"id": "line", "backend": {"type": "null"}}));
    qmp.done("device_add", json!({"driver": "pci-serial", "id": "card", "chardev": "line"}));
    let device = tty(&mut guest, 30);
    let saved = directory.path("saved");
    qmp.done("snapshot-save", json!({"file": saved}));
    assert_eq!(guest.power_off(), Some(0));
    for engine in ["translator", "interpreter"] {
        let socket = directory.path(engine);
        let mut command = ring3();
        command.args(["run", "--engine", engine, "--restore"]).arg(&saved);
        command.arg("--serial-card").arg(format!("unix:{}", socket.display()));
        let mut guest = Guest::of(command);
        // The file is open again, and so the port is set up by its driver.
        guest.command(&format!("stty -F {device} raw -echo"));
        talk(&mut guest, &device, &mut UnixStream::connect(&socket).unwrap());
        assert_eq!(guest.power_off(), Some(0));
    }
}

/// The user's input to Linux: it waits until the card is there, and until it has gone.
const SCRIPT: &[u8] = b"dmesg -n 1; d=/sys/bus/pci/devices/0000:00:1e.0\n\
    while ! test -e $d/tty; do sleep 1; done; t=/dev/$(ls $d/tty); stty -F $t raw -echo\n\
    echo ready > $t; head -n 1 $t | tr a-z A-Z\n\
    while test -e $d; do sleep 1; done; sleep 3; poweroff -f\n";

/// A recording contains the cards that were added and removed, and what came by their lines.
#[test]
fn a_recording_repeats_the_run() {
    for deterministic in [true, false] {
        let directory = Directory::new();
        let socket = directory.path("line");
        let mut recorded = Recorded::begin(&directory, SCRIPT, deterministic, &[]);
        let qmp = &mut recorded.qmp;
        qmp.done("chardev-add", json!({"id": "line", "backend": unix(&socket)}));
        qmp.done("device_add", json!({"driver": "pci-serial", "id": "card", "chardev": "line"}));
        let mut client = BufReader::new(UnixStream::connect(&socket).unwrap());
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        client.get_mut().write_all(b"from outside\n").unwrap();
        qmp.done("device_del", json!({"id": "card"}));
        assert_eq!(qmp.event("DEVICE_DELETED")["device"], "card");
        let told = [
            "input pci-serial0 is inserted",
            "request to remove the card in slot 30",
            "pci-serial0 is removed",
        ];
        recorded.assert_repeats(&told, &[]);
    }
}
