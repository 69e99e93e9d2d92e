//! QMP adds network cards to a running Linux, and removes them.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::hotplug::{Recorded, add_machine};
use crate::support::guest::{Guest, PROMPT};
use crate::support::qmp::Qmp;
use crate::support::{Directory, ring3};
use crate::switch::{self, Switch};

const GENERIC: &str = "GenericError";

/// The NAT of a user network starts only without a sandbox.
const FREE: [&str; 2] = ["--sandbox", "off"];

fn start(directory: &Directory, options: &[&str]) -> (Guest, Qmp) {
    let socket = directory.path("qmp");
    let mut guest = Guest::start(|command| {
        add_machine(command, &socket);
        command.args(options);
    });
    guest.wait_for(PROMPT);
    guest
        .command("dmesg -n 1; for i in virtio_pci virtio_net e1000 ne2k-pci; do modprobe $i; done");
    (guest, Qmp::connect(&socket))
}

/// A port of this host that is free at this moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Gives the guest its usual address on card `eth0` once that is there, and asks the NAT for an answer. Returns the
/// card's hardware address.
fn ping(guest: &mut Guest) -> String {
    let lines = guest.command(
        "while ! test -e /sys/class/net/eth0; do sleep 1; done; ip link set eth0 up; \
         ip addr add 10.0.2.15/24 dev eth0; ping -c 3 10.0.2.2 | grep -c 'bytes from'; \
         cat /sys/class/net/eth0/address",
    );
    let (answers, address) = lines.split_once('\n').expect("two lines");
    assert_ne!(answers, "0");
    address.to_owned()
}

/// Waits for a line from the guest at a port of this host.
fn line_from(port: u16) -> String {
    let mut line = String::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the forward listens");
        line.clear();
        if stream.read_to_string(&mut line).is_ok() && !line.is_empty() {
            break;
        }
        // The guest does not listen yet.
        thread::sleep(Duration::from_millis(100));
    }
    line
}

/// Cards of all models for PCI, one after the other, on one network.
#[test]
fn network_cards_are_plugged_in_and_removed() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory, &FREE);
    let port = free_port();
    let forward = format!("tcp:127.0.0.1:{port}-:7");
    let network = json!({"type": "user", "id": "lan", "hostfwd": [{"str": forward}]});
    qmp.done("netdev_add", network.clone());
    for (driver, more, slot) in [
        ("virtio-net-pci", json!({"disable-legacy": "on", "host_mtu": 1400}), "03"),
        ("virtio-net-pci", json!({"disable-modern": true, "addr": "0x16"}), "16"),
        ("e1000", json!({"addr": 20}), "14"),
        ("ne2k_pci", json!({"romfile": ""}), "03"),
    ] {
        let mut card =
            json!({"driver": driver, "id": "card", "netdev": "lan", "mac": "52:54:00:00:00:99"});
        card.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        qmp.done("device_add", card.clone());
        assert_eq!(ping(&mut guest), "52:54:00:00:00:99");
        let path = guest.command("readlink -f /sys/class/net/eth0/device");
        assert!(path.contains(&format!("/0000:00:{slot}.0")), "{driver}: {path}");
        if more.get("host_mtu").is_some() {
            assert_eq!(guest.command("cat /sys/class/net/eth0/mtu"), "1400");
        }
        guest.command(
            "(while true; do echo hello | nc -l -p 7; done) >/dev/null 2>&1 & echo $! > /tmp/pid",
        );
        assert_eq!(line_from(port), "hello\n", "{driver}");
        guest.command("kill $(cat /tmp/pid); killall nc");

        qmp.refused("device_add", card, GENERIC, "in use");
        let other = json!({"driver": "e1000", "id": "other", "netdev": "lan"});
        qmp.refused("device_add", other, GENERIC, "it's in use");
        qmp.refused("netdev_del", json!({"id": "lan"}), GENERIC, "in use by the card 'card'");
        qmp.refused("netdev_add", network.clone(), GENERIC, "Duplicate ID 'lan'");
        let shown = qmp.done("human-monitor-command", json!({"command-line": "info network"}));
        assert!(shown.as_str().unwrap().contains("macaddr=52:54:00:00:00:99"), "{shown}");

        qmp.done("device_del", json!({"id": "card"}));
        let gone = json!({"device": "card", "path": "/machine/peripheral/card"});
        assert_eq!(qmp.event("DEVICE_DELETED"), gone);
        assert_eq!(guest.command("ls /sys/class/net | grep eth"), "");
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the network is closed");
    }
    qmp.done("netdev_del", json!({"id": "lan"}));
    qmp.refused("netdev_del", json!({"id": "lan"}), "DeviceNotFound", "'lan' not found");
    assert_eq!(guest.power_off(), Some(0));
}

/// The card of the command line leaves, and eight others come beside it.
#[test]
fn all_places_are_filled() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory, &["--nic", "user"]);
    qmp.done("device_del", json!({"id": "nic0"}));
    assert_eq!(qmp.event("DEVICE_DELETED")["path"], "/machine/peripheral-anon/nic0");
    let socket = directory.path("stream");
    for number in 0..9 {
        let (id, network) = (format!("c{number}"), format!("n{number}"));
        let address = json!({"type": "unix", "path": format!("{}{number}", socket.display())});
        qmp.done(
            "netdev_add",
            json!({"type": "stream", "id": network, "addr": address, "server": true}),
        );
        let card = json!({"driver": "virtio-net-pci", "id": id, "netdev": network});
        if number == 8 {
            qmp.refused("device_add", card, GENERIC, "at most 8 network cards");
        } else {
            qmp.done("device_add", card);
        }
    }
    let count = "while [ $(ls /sys/class/net | grep -c eth) != 8 ]; do sleep 1; done; \
                 cat /sys/class/net/eth*/address | sort -u | wc -l";
    assert_eq!(guest.command(count), "8");
    qmp.done("device_del", json!({"id": "c3"}));
    assert_eq!(qmp.event("DEVICE_DELETED")["device"], "c3");
    // The cards that stay are named as before.
    qmp.done("set_link", json!({"name": "c4", "up": false}));
    qmp.refused("set_link", json!({"name": "c3", "up": false}), "DeviceNotFound", "c3");
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn impossible_networks_and_cards_are_refused() {
    let directory = Directory::new();
    let (guest, mut qmp) = start(&directory, &[FREE[0], FREE[1], "--nic", "user"]);
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = format!("tcp:127.0.0.1:{}-:7", busy.local_addr().unwrap().port());
    for (network, part) in [
        (json!({"type": "user"}), "'id' is missing"),
        (json!({"id": "a"}), "'type' is missing"),
        (json!({"type": "user", "id": 7}), "'id'"),
        (json!({"type": 7, "id": "a"}), "must be user"),
        (json!({"type": "vde", "id": "a"}), "must be user"),
        (json!({"type": "user", "id": "a", "colour": "red"}), "colour"),
    ] {
        qmp.refused("netdev_add", network, GENERIC, part);
    }
    qmp.done("netdev_add", json!({"type": "user", "id": "busy", "hostfwd": [{"str": forward}]}));
    let line = json!({"command-line": "netdev_add dgram,id=far,remote.type=inet,remote.host=127.0.0.1,\
        remote.port=9,local.type=inet,local.host=127.0.0.1,local.port=0"});
    assert_eq!(qmp.done("human-monitor-command", line), "");
    let card = |more: Value| {
        let mut card = json!({"driver": "virtio-net-pci", "netdev": "far"});
        card.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        card
    };
    for (more, part) in [
        (json!({"netdev": "none"}), "can't find value 'none'"),
        (json!({"netdev": "busy"}), "7"),
        (json!({"driver": "ne2k_isa"}), "not a valid device model name"),
        (json!({"driver": "e1000", "host_mtu": 1400}), "'e1000.host_mtu' not found"),
        (json!({"mac": "01:00:5e:00:00:01"}), "mac' doesn't take value"),
        (json!({"mac": "7"}), "mac' doesn't take value"),
        (json!({"host_mtu": 67}), "host_mtu"),
        (json!({"disable-legacy": "on", "disable-modern": "on"}), "neither modern nor legacy"),
        (json!({"bus": "pci.1"}), "Bus 'pci.1' not found"),
        (json!({"addr": "0x3"}), "PCI slot 3"),
        (json!({"addr": "0x4"}), "PCI slot 4"),
        (json!({"serial": "7"}), "serial"),
    ] {
        qmp.refused("device_add", card(more), GENERIC, part);
    }
    assert_eq!(guest.power_off(), Some(0));
}

/// A machine in the usual sandbox says what it has no right to, joins a switch, and finds the next one.
#[test]
fn a_sandbox_leaves_networks_without_programs() {
    let directory = Directory::new();
    let lan = directory.path("switch");
    let running = Switch::start(&lan, &[]);
    let mut other = switch::guest(&lan, 2);
    let (mut guest, mut qmp) = start(&directory, &[]);
    let user = json!({"type": "user", "id": "lan"});
    let advice = "give switch, stream or dgram, or start the machine with --sandbox off";
    qmp.refused("netdev_add", user, GENERIC, advice);
    qmp.done("netdev_add", json!({"type": "switch", "id": "lan", "path": lan}));
    qmp.done("device_add", json!({"driver": "virtio-net-pci", "netdev": "lan"}));
    let answers = guest.command(
        "while ! test -e /sys/class/net/eth0; do sleep 1; done; ip link set eth0 up; \
         ip addr add 10.0.0.1/24 dev eth0; ping -c 3 10.0.0.2 | grep -c 'bytes from'",
    );
    assert_ne!(answers, "0");
    drop(running);
    let _next = Switch::start(&lan, &[]);
    let answers = guest.command("ping -c 10 10.0.0.2 | grep -c 'bytes from'");
    assert_ne!(answers, "0");
    other.command("true");
    assert_eq!([guest.power_off(), other.power_off()], [Some(0), Some(0)]);
}

/// A machine is saved with a card that it was given while it ran, and continues with it on another network.
#[test]
fn a_saved_machine_has_its_new_cards() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory, &FREE);
    qmp.done("netdev_add", json!({"type": "user", "id": "lan"}));
    qmp.done("device_add", json!({"driver": "virtio-net-pci", "id": "card", "netdev": "lan"}));
    let address = ping(&mut guest);
    let saved = directory.path("saved");
    qmp.done("snapshot-save", json!({"file": saved}));
    assert_eq!(guest.power_off(), Some(0));
    for engine in ["translator", "interpreter"] {
        let mut command = ring3();
        command.args(["run", "--engine", engine, "--restore"]).arg(&saved).args(["--nic", "user"]);
        let mut guest = Guest::of(command);
        let pinged = "ping -c 3 10.0.2.2 | grep -c 'bytes from'; cat /sys/class/net/eth0/address";
        let lines = guest.command(pinged);
        let (answers, found) = lines.split_once('\n').expect("two lines");
        assert_ne!(answers, "0");
        assert_eq!(found, address);
        assert_eq!(guest.power_off(), Some(0));
    }
}

/// The user's input to Linux: it waits until the card is there, and until it has gone.
const SCRIPT: &[u8] = b"dmesg -n 1\n\
    for i in virtio_pci virtio_net; do modprobe $i; done\n\
    while ! test -e /sys/class/net/eth0; do sleep 1; done\n\
    ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ping -c 3 10.0.2.2\n\
    while test -e /sys/class/net/eth0; do sleep 1; done; sleep 3; poweroff -f\n";

/// A recording contains the cards that were added and removed: both kinds of run repeat without the network.
#[test]
fn a_recording_repeats_the_run() {
    for deterministic in [true, false] {
        let directory = Directory::new();
        let mut recorded = Recorded::begin(&directory, SCRIPT, deterministic, &FREE);
        let qmp = &mut recorded.qmp;
        qmp.done("netdev_add", json!({"type": "user", "id": "lan"}));
        qmp.done("device_add", json!({"driver": "virtio-net-pci", "id": "card", "netdev": "lan"}));
        crate::support::wait_until("the guest sends nothing", || {
            let usage = qmp.done("x-ring3-usage", json!({}));
            (usage["network-received"].as_u64() > Some(300)).then_some(())
        });
        qmp.done("device_del", json!({"id": "card"}));
        assert_eq!(qmp.event("DEVICE_DELETED")["device"], "card");
        let told =
            ["input nic0 is inserted", "request to remove the card in slot 3", "nic0 is removed"];
        recorded.assert_repeats(&told, &[]);
    }
}
