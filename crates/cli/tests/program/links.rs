//! QMP unplugs cables of network cards and plugs them in, and guests notice.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, ring3};
use serde_json::{Value, json};

/// Adds Linux with the modules for its cards, and QMP at `socket`.
fn add_machine(command: &mut Command, socket: &Path) {
    add_linux(command, &WITH_MODULES);
    command.arg("--qmp").arg(format!("unix:{}", socket.display()));
}

fn link(name: &str, up: bool) -> Value {
    json!({"name": name, "up": up})
}

/// Drivers, the names of the networks of their cards, and whether the card reports its cable. An NE2000 does
/// not.
const CARDS: [(&str, &str, bool); 3] =
    [("virtio_net", "fast", true), ("e1000", "intel", true), ("ne2k-pci", "old", false)];

/// Returns whether the gateway of network `index` answers.
fn answers(guest: &mut Guest, index: usize) -> bool {
    let ping = format!("ping -c 2 -W 2 10.1.{index}.2 | grep -q 'bytes from' && echo yes");
    guest.command(&ping) == "yes"
}

#[test]
fn a_guest_notices_its_cables() {
    let directory = Directory::new();
    let socket = directory.path("qmp");
    let mut guest = Guest::start(|command| {
        add_machine(command, &socket);
        for (index, (model, (_, id, _))) in
            ["virtio", "e1000", "ne2k_pci"].into_iter().zip(CARDS).enumerate()
        {
            let nic = format!("user,id={id},model={model},net=10.1.{index}.0/24,ipv6=off");
            command.args(["--nic", &nic]);
        }
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; modprobe virtio_pci");
    let mut qmp = Qmp::connect(&socket);
    for (index, (driver, id, notices)) in CARDS.into_iter().enumerate() {
        // Each driver finds its card when it is loaded, so the interfaces have the order of the cards.
        let up = format!(
            "modprobe {driver}; ip link set eth{index} up; ip addr add 10.1.{index}.15/24 dev eth{index}"
        );
        guest.command(&up);
        let carrier = format!("cat /sys/class/net/eth{index}/carrier");
        let wait_for = |value: u8| {
            format!(
                "for i in $(seq 100); do [ $({carrier}) = {value} ] && break; sleep 0.1; done; {carrier}"
            )
        };
        assert_eq!(guest.command(&wait_for(1)), "1", "{driver}");
        assert!(answers(&mut guest, index), "{driver}");
        // By the name of the network and by that of the card's device.
        for name in [id.to_owned(), format!("nic{index}")] {
            qmp.done("set_link", link(&name, false));
            let expected = if notices { "0" } else { "1" };
            assert_eq!(guest.command(&wait_for(u8::from(!notices))), expected, "{driver}");
            assert!(!answers(&mut guest, index), "{driver}");
            qmp.done("set_link", link(&name, true));
            assert_eq!(guest.command(&wait_for(1)), "1", "{driver}");
            assert!(answers(&mut guest, index), "{driver}");
        }
    }
    for name in ["none", "nic3", ""] {
        qmp.refused("set_link", link(name, false), "DeviceNotFound", "not found");
    }
    assert_eq!(guest.power_off(), Some(0));
}

/// The user's input to Linux: it waits until the cable is out, and until it is in again.
const SCRIPT: &[u8] = b"dmesg -n 1\n\
    for i in virtio_pci virtio_net; do modprobe $i; done; ip link set eth0 up\n\
    c=/sys/class/net/eth0/carrier; while [ $(cat $c) = 0 ]; do sleep 1; done; echo is''in\n\
    while [ $(cat $c) = 1 ]; do sleep 1; done; echo is''out\n\
    while [ $(cat $c) = 0 ]; do sleep 1; done; echo is''back; poweroff -f\n";

/// A recording of either kind of run contains the cables, and a replay unplugs them by itself.
#[test]
fn a_recording_repeats_the_run() {
    for deterministic in [true, false] {
        let directory = Directory::new();
        let script = directory.file("script", SCRIPT);
        let [log, recording, socket, serial] =
            ["log", "recording", "qmp", "serial"].map(|name| directory.path(name));
        let mut command = ring3();
        command.args(["run", "--memory", "128M", "--serial", "stdio"]);
        let lan = directory.path("lan");
        command.arg("--nic");
        command.arg(format!("stream,id=lan,server=on,addr=unix:{}", lan.display()));
        add_machine(&mut command, &socket);
        if deterministic {
            command.args(["--deterministic", "--checkpoint", "500000000"]);
        }
        command.arg("--record").arg(&recording).arg("--event-log").arg(&log);
        command.stdin(fs::File::open(&script).unwrap());
        command.stdout(fs::File::create(&serial).unwrap());
        let mut machine = command.spawn().expect("the program starts");
        let mut qmp = Qmp::connect(&socket);
        for (text, up) in [("isin", false), ("isout", true)] {
            crate::support::wait_until("the guest does not notice", || {
                let shown = String::from_utf8_lossy(&fs::read(&serial).unwrap()).into_owned();
                shown.lines().any(|line| line.trim_end() == text).then_some(())
            });
            qmp.done("set_link", link("lan", up));
        }
        assert_eq!(machine.wait().unwrap().code(), Some(0));
        let told = fs::read_to_string(&log).unwrap();
        for part in ["link down", "link up"] {
            assert!(told.contains(part), "{part}");
        }
        let mut replay = ring3();
        replay.arg("run").arg("--replay").arg(&recording).args(["--serial", "stdio"]);
        if deterministic {
            replay.args(["--checkpoint", "500000000"]);
        }
        let again = output(replay.arg("--event-log").arg(&log).stdin(Stdio::null()));
        assert!(again == fs::read(&serial).unwrap(), "deterministic: {deterministic}");
        let differs = fs::read_to_string(&log).unwrap();
        let differs = differs.lines().zip(told.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None);
    }
}
