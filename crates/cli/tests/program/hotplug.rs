//! QMP adds disks to a running Linux, and removes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux};
use crate::support::qmp::Qmp;
use crate::support::{Directory, output, read_ext2, ring3, system_program};
use serde_json::{Value, json};

const GENERIC: &str = "GenericError";

/// Adds Linux with the modules for its disks, and QMP at `socket`.
pub(crate) fn add_machine(command: &mut Command, socket: &Path) {
    add_linux(command, &WITH_MODULES);
    command.arg("--qmp").arg(format!("unix:{}", socket.display()));
}

/// Waits until the guest has started and found its drivers.
fn prepare(guest: &mut Guest) {
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; mkdir -p /mnt");
    guest.command("for i in virtio_pci virtio_blk crc32c_generic ext4; do modprobe $i; done");
}

fn start(directory: &Directory) -> (Guest, Qmp) {
    let socket = directory.path("qmp");
    let mut guest = Guest::start(|command| add_machine(command, &socket));
    prepare(&mut guest);
    (guest, Qmp::connect(&socket))
}

fn create(directory: &Directory, name: &str, format: &str) -> PathBuf {
    let path = directory.path(name);
    let mut create = ring3();
    create.args(["img", "create", "-q", "-f", format]).arg(&path).arg("33554432");
    output(&mut create);
    path
}

/// Opens the image at `path` as node `name`.
fn add_node(qmp: &mut Qmp, name: &str, format: &str, path: &Path) {
    let file = json!({"driver": "file", "filename": path});
    qmp.done("blockdev-add", json!({"driver": format, "node-name": name, "file": file}));
}

/// Waits for the disk with this serial number, and returns its name.
fn wait_for_disk(guest: &mut Guest, serial: &str) -> String {
    let looks =
        format!("while ! grep -lx {serial} /sys/block/vd*/serial 2>/dev/null; do sleep 1; done");
    let found = guest.command(&looks);
    found.split('/').nth(3).expect("a path").to_owned()
}

fn numbers(last: u32) -> Vec<u8> {
    (1..=last).flat_map(|i| format!("{i}\n").into_bytes()).collect()
}

/// Disks for drivers of either kind, on images of two formats, one after the other: the guest makes a file
/// system and fills it.
#[test]
fn disks_are_plugged_in_and_removed() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory);
    for (round, (format, properties)) in [
        ("raw", json!({"disable-legacy": "on"})),
        ("qcow2", json!({"disable-modern": true, "num-queues": 2})),
        ("qcow2", json!({"addr": "0x9"})),
    ]
    .into_iter()
    .enumerate()
    {
        let serial = format!("S{round}");
        let path = create(&directory, &serial, format);
        add_node(&mut qmp, "image", format, &path);
        let mut card =
            json!({"driver": "virtio-blk-pci", "id": "disk", "drive": "image", "serial": serial});
        card.as_object_mut().unwrap().extend(properties.as_object().unwrap().clone());
        qmp.done("device_add", card.clone());
        let disk = wait_for_disk(&mut guest, &serial);
        let commands = format!(
            "mke2fs -q /dev/{disk} >/dev/null; mount -t ext4 /dev/{disk} /mnt && seq 200000 > /mnt/n; sync; \
             echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/n; umount /mnt"
        );
        let sum = guest.command(&commands);
        let expected = guest.command("seq 200000 | md5sum");
        assert_eq!(sum, expected);

        qmp.refused("device_add", card, GENERIC, "in use");
        qmp.refused("blockdev-del", json!({"node-name": "image"}), GENERIC, "Node image is in use");
        let block = qmp.done("query-block", json!({}));
        assert_eq!(
            (&block[0]["qdev"], &block[0]["inserted"]["node-name"]),
            (&json!("disk"), &json!("image"))
        );
        let path_of_slot = guest.command(&format!("readlink -f /sys/block/{disk}"));
        assert_eq!(path_of_slot.contains("/0000:00:09.0/"), round == 2, "{path_of_slot}");

        qmp.done("device_del", json!({"id": "disk"}));
        let gone = json!({"device": "disk", "path": "/machine/peripheral/disk"});
        assert_eq!(qmp.event("DEVICE_DELETED"), gone);
        assert_eq!(guest.command("ls /sys/block | grep vd"), "");
        assert_eq!(qmp.done("query-block", json!({})), json!([]));
        qmp.refused("device_del", json!({"id": "disk"}), "DeviceNotFound", "'disk' not found");
        assert_eq!(qmp.done("query-named-block-nodes", json!({}))[0]["node-name"], "image");
        qmp.done("blockdev-del", json!({"node-name": "image"}));
        assert_eq!(qmp.done("query-named-block-nodes", json!({})), json!([]));

        let raw = if format == "raw" { path } else { in_raw(&directory, &path) };
        output(system_program("e2fsck").args(["-fn"]).arg(&raw));
        assert!(read_ext2(&raw, "/n") == numbers(200_000), "round {round}");
    }
    assert_eq!(guest.power_off(), Some(0));
}

/// Converts the image at `path` to a raw one.
fn in_raw(directory: &Directory, path: &Path) -> PathBuf {
    let mut check = ring3();
    output(check.args(["img", "check", "-q"]).arg(path));
    let raw = directory.path("raw");
    let mut convert = ring3();
    output(convert.args(["img", "convert", "-q", "-O", "raw"]).args([path, &raw]));
    raw
}

/// The guest releases a disk that is in use, too, as when somebody pulls it out. A node outlives its device,
/// and another device can use it.
#[test]
fn a_busy_disk_is_removed_when_the_guest_releases_it() {
    let directory = Directory::new();
    let (mut guest, mut qmp) = start(&directory);
    let path = create(&directory, "image", "raw");
    add_node(&mut qmp, "image", "raw", &path);
    for round in ["A", "B"] {
        let card =
            json!({"driver": "virtio-blk-pci", "id": round, "drive": "image", "serial": round});
        qmp.done("device_add", card);
        let disk = wait_for_disk(&mut guest, round);
        if round == "A" {
            guest.command(&format!(
                "mke2fs -q /dev/{disk} >/dev/null; mount -t ext4 /dev/{disk} /mnt"
            ));
            guest.command("(while true; do dd if=/dev/zero of=/mnt/z bs=1M count=4 conv=fsync 2>/dev/null; done) & sleep 2");
        }
        qmp.done("device_del", json!({"id": round}));
        assert_eq!(qmp.event("DEVICE_DELETED")["device"], round);
        guest.command("kill $! 2>/dev/null; wait; umount -l /mnt");
    }
    qmp.done("blockdev-del", json!({"node-name": "image"}));
    assert_eq!(guest.command("echo $((6 * 7))"), "42");
    assert_eq!(guest.power_off(), Some(0));
}

/// A guest that does not listen yet, a reset, and a disk of the command line.
#[test]
fn a_removal_that_comes_too_early_is_requested_again() {
    let directory = Directory::new();
    let socket = directory.path("qmp");
    let disks = ["one", "two"].map(|name| create(&directory, name, "raw"));
    let mut guest = Guest::start(|command| {
        add_machine(command, &socket);
        command.arg("--paused");
        for (disk, name) in disks.iter().zip(["one", "two"]) {
            let drive =
                format!("file={},if=virtio,format=raw,id={name},serial={name}", disk.display());
            command.args(["--drive", &drive]);
        }
    });
    let mut qmp = Qmp::connect(&socket);
    for _ in 0..2 {
        qmp.done("device_del", json!({"id": "one"}));
    }
    qmp.done("cont", json!({}));
    prepare(&mut guest);
    let disk = wait_for_disk(&mut guest, "one");
    assert_eq!(
        guest.command(&format!("dd if=/dev/{disk} of=/dev/null bs=1M 2>&1 | head -n 1")),
        "32+0 records in"
    );
    assert!(!qmp.has_event("DEVICE_DELETED"));
    for _ in 0..2 {
        // Asked twice, the guest answers once.
        qmp.ask("device_del", json!({"id": "one"}));
    }
    assert_eq!(qmp.event("DEVICE_DELETED")["device"], "one");
    wait_for_disk(&mut guest, "two");

    // A guest without the driver for slots releases the disk at a reset at the latest.
    qmp.done("stop", json!({}));
    qmp.done("device_del", json!({"id": "two"}));
    qmp.done("system_reset", json!({}));
    qmp.done("cont", json!({}));
    assert_eq!(qmp.event("DEVICE_DELETED")["device"], "two");
    prepare(&mut guest);
    assert_eq!(guest.command("ls /sys/block | grep vd"), "");
    assert_eq!(qmp.done("query-block", json!({})), json!([]));
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn impossible_requests_are_refused() {
    let directory = Directory::new();
    let (guest, mut qmp) = start(&directory);
    let path = create(&directory, "image", "qcow2");
    let card = |more: Value| {
        let mut card = json!({"driver": "virtio-blk-pci", "drive": "image"});
        card.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        card
    };
    for (arguments, part) in [
        (
            json!({"driver": "raw", "file": {"driver": "file", "filename": path}}),
            "'node-name' must be",
        ),
        (json!({"driver": "file", "node-name": "a", "filename": "/no/such"}), "/no/such"),
        (json!({"driver": "qcow9", "node-name": "a"}), "Unknown driver 'qcow9'"),
        (json!({"driver": "qcow2", "node-name": "a", "file": "b"}), "node-name='b'"),
        (json!({"driver": "qcow2", "node-name": "#a", "file": "b"}), "Invalid node-name"),
        (json!({"driver": "file", "node-name": "a", "filename": path, "size": 1}), "unknown field"),
    ] {
        qmp.refused("blockdev-add", arguments, GENERIC, part);
    }
    // First the file alone, then the format in it.
    qmp.done("blockdev-add", json!({"driver": "file", "node-name": "file", "filename": path}));
    qmp.refused(
        "blockdev-add",
        json!({"driver": "vmdk", "node-name": "image", "file": "file"}),
        GENERIC,
        "image",
    );
    let format =
        json!({"driver": "qcow2", "node-name": "image", "file": "file", "discard": "unmap"});
    qmp.done("blockdev-add", format.clone());
    qmp.refused("blockdev-add", format, GENERIC, "Duplicate nodes");
    qmp.refused("blockdev-del", json!({"node-name": "file"}), GENERIC, "in use");
    qmp.refused("device_add", card(json!({"drive": "file"})), GENERIC, "in use");
    qmp.refused("device_add", json!({"drive": "image"}), GENERIC, "'driver' is missing");
    for (more, part) in [
        (json!({"driver": "e1000e"}), "not a valid device model name"),
        (json!({"drive": "none"}), "can't find value 'none'"),
        (json!({"bus": "pci.1"}), "Bus 'pci.1' not found"),
        (json!({"addr": "2"}), "PCI slot 2"),
        (json!({"addr": "20"}), "doesn't take value '20'"),
        (json!({"num-queues": 17}), "num-queues"),
        (json!({"disable-legacy": "on", "disable-modern": "on"}), "neither modern nor legacy"),
        (json!({"rerror": "enospc"}), "'rerror' does not accept"),
        (json!({"bootindex": 1}), "bootindex"),
    ] {
        qmp.refused("device_add", card(more), GENERIC, part);
    }
    qmp.done("device_add", card(json!({"id": "disk", "werror": "report", "addr": 6})));
    qmp.refused("device_del", json!({"id": "image"}), "DeviceNotFound", "'image' not found");
    qmp.done("block_resize", json!({"node-name": "image", "size": 64 << 20}));
    let size = &qmp.done("query-named-block-nodes", json!({}))[0]["image"]["virtual-size"];
    assert_eq!(*size, 64 << 20);
    assert_eq!(guest.power_off(), Some(0));
}

/// The user's input to Linux: it waits until the disk is there, and until it has gone.
const SCRIPT: &[u8] = b"dmesg -n 1\n\
    for i in virtio_pci virtio_blk; do modprobe $i; done\n\
    while ! test -e /dev/vda; do sleep 1; done; seq 9999 > /dev/vda; sync\n\
    echo 3 > /proc/sys/vm/drop_caches; md5sum /dev/vda; echo done | dd of=/dev/vda seek=9999; sync\n\
    while test -e /dev/vda; do sleep 1; done; sleep 3; poweroff -f\n";

/// A recording contains the cards that were added and removed: both kinds of run repeat without the images.
#[test]
fn a_recording_repeats_the_run() {
    for deterministic in [true, false] {
        let directory = Directory::new();
        let path = create(&directory, "image", "raw");
        let mut recorded = Recorded::begin(&directory, SCRIPT, deterministic, &[]);
        let qmp = &mut recorded.qmp;
        add_node(qmp, "image", "raw", &path);
        let card = json!({"driver": "virtio-blk-pci", "id": "disk", "drive": "image"});
        qmp.done("device_add", card);
        crate::support::wait_until("the disk is not written", || {
            let bytes = fs::read(&path).unwrap();
            (bytes.starts_with(&numbers(9999)) && bytes[9999 * 512..].starts_with(b"done"))
                .then_some(())
        });
        qmp.done("device_del", json!({"id": "disk"}));
        assert_eq!(qmp.event("DEVICE_DELETED")["device"], "disk");
        let told = [
            "input virtio-blk0 is inserted",
            "request to remove the card in slot 4",
            "virtio-blk0 is removed",
        ];
        recorded.assert_repeats(&told, &[&path]);
    }
}

/// A run with cards that come and go, which is recorded.
pub(crate) struct Recorded {
    pub(crate) qmp: Qmp,
    machine: Child,
    deterministic: bool,
    recording: PathBuf,
    log: PathBuf,
}

impl Recorded {
    /// Starts Linux with its modules and these options; its user types `script`.
    pub(crate) fn begin(
        directory: &Directory,
        script: &[u8],
        deterministic: bool,
        options: &[&str],
    ) -> Recorded {
        let mut command = ring3();
        command.args(["run", "--memory", "128M", "--serial", "stdio"]).args(options);
        add_machine(&mut command, &directory.path("qmp"));
        Recorded::of(command, directory, script, deterministic)
    }

    /// Starts the machine of `command`, which has QMP at `qmp` in `directory`; its user types `script`.
    pub(crate) fn of(
        mut command: Command,
        directory: &Directory,
        script: &[u8],
        deterministic: bool,
    ) -> Recorded {
        let script = directory.file("script", script);
        let [log, recording, socket] = ["log", "recording", "qmp"].map(|name| directory.path(name));
        if deterministic {
            command.args(["--deterministic", "--checkpoint", "500000000"]);
        }
        command.arg("--record").arg(&recording).arg("--event-log").arg(&log);
        command.stdin(fs::File::open(&script).unwrap()).stdout(Stdio::piped());
        let machine = command.spawn().expect("the program starts");
        Recorded { qmp: Qmp::connect(&socket), machine, deterministic, recording, log }
    }

    /// Waits for the guest to switch off, and repeats the run without the files `without`. Panics if the log of its
    /// events lacks one of `told`, or if the guest shows something else, or the log differs, when it is repeated.
    pub(crate) fn assert_repeats(self, told: &[&str], without: &[&Path]) {
        let Recorded { machine, deterministic, recording, log, .. } = self;
        let shown = machine.wait_with_output().unwrap();
        assert_eq!(shown.status.code(), Some(0));
        let events = fs::read_to_string(&log).unwrap();
        for part in told {
            assert!(events.contains(part), "{part}");
        }
        for path in without {
            fs::remove_file(path).unwrap();
        }
        let mut replay = ring3();
        replay.arg("run").arg("--replay").arg(&recording).args(["--serial", "stdio"]);
        if deterministic {
            replay.args(["--checkpoint", "500000000"]);
        }
        let again = output(replay.arg("--event-log").arg(&log).stdin(Stdio::null()));
        assert!(again == shown.stdout, "what the guest shows, deterministic: {deterministic}");
        let differs = fs::read_to_string(&log).unwrap();
        let differs = differs.lines().zip(events.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None);
    }
}
