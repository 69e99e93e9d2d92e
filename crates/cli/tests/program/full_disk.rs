//! The host's disk is full: the machine is paused, and when there is space again it continues as if nothing
//! had happened. Tools learn of this while the machine runs.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux};
use crate::support::{Directory, output, read_ext2, ring3, system_program, wait_until};
use serde_json::Value;

/// The room on the host's disk, and the part of it that another file takes at first.
const ROOM: &str = "28M";
const BALLAST: &str = "20M";

/// A machine whose disk is on a file system of the host that is almost full. The file system is in memory, in
/// a mount namespace of its own.
struct Machine {
    guest: Guest,
    /// That file system, as the host sees it.
    room: PathBuf,
    qmp: BufReader<UnixStream>,
    /// Messages that no caller has taken yet.
    messages: Vec<Value>,
}

/// Starts a machine with a disk of this format and with these properties. Returns None, with a note, if the
/// host permits no namespaces.
fn start(directory: &Directory, format: &str, properties: &str) -> Option<Machine> {
    let place = directory.path("room");
    std::fs::create_dir(&place).expect("the directory is new");
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script]);
        command.arg(ring3().get_program()).env_remove("RING3_LOG").current_dir(&place);
        command
    };
    let mount = format!("mount -t tmpfs -o size={ROOM} tmpfs . && cd \"$PWD\"");
    if !in_namespace(&mount).status().is_ok_and(|status| status.success()) {
        ring3_skipped::host("users may not mount file systems in namespaces");
        return None;
    }
    let socket = directory.path("qmp");
    let mut command = in_namespace(&format!(
        "{mount}; \"$0\" img create -q -f {format} disk 64M; fallocate -l {BALLAST} ballast; exec \"$0\" \"$@\""
    ));
    command.args(["run", "--memory", "128M", "--serial", "stdio"]);
    add_linux(&mut command, &WITH_MODULES);
    command.args(["--drive", &format!("file=disk,format={format}{properties}")]);
    command.arg("--qmp").arg(format!("unix:{}", socket.display()));
    let mut guest = Guest::of(command);
    let stream = wait_until("there is no socket", || UnixStream::connect(&socket).ok());
    let mut qmp = BufReader::new(stream);
    qmp.get_mut().write_all(b"{\"execute\": \"qmp_capabilities\"}").expect("it is there");
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; mkdir -p /mnt");
    guest.command(
        "for i in ata_piix sd_mod virtio_pci virtio_blk crc32c_generic ext4; do modprobe $i; done",
    );
    let root = PathBuf::from(format!("/proc/{}/root", guest.id()));
    let inside = place.strip_prefix("/").expect("it is a whole path");
    Some(Machine { guest, room: root.join(inside), qmp, messages: Vec::new() })
}

impl Machine {
    /// Returns the next message with the member `name` that was not returned before.
    fn next(&mut self, name: &str) -> Value {
        loop {
            let has_it = |message: &Value| message.get(name).is_some();
            if let Some(index) = self.messages.iter().position(has_it) {
                return self.messages.remove(index);
            }
            let mut line = String::new();
            self.qmp.read_line(&mut line).expect("the machine is there");
            self.messages.push(serde_json::from_str(&line).expect("it is a message"));
        }
    }

    /// Waits until the machine is paused.
    fn stopped(&mut self) {
        loop {
            let event = self.next("event")["event"].take();
            if event == "STOP" {
                return;
            }
            // Several requests may be under way, so there may be several such events.
            assert_eq!(event, "BLOCK_IO_ERROR");
        }
    }

    /// Makes the machine execute the command `name`.
    fn execute(&mut self, command: &str) -> Value {
        self.execute_with(command, "{}")
    }

    fn execute_with(&mut self, command: &str, arguments: &str) -> Value {
        let command = format!("{{\"execute\": \"{command}\", \"arguments\": {arguments}}}");
        self.qmp.get_mut().write_all(command.as_bytes()).expect("the machine is there");
        self.next("return")["return"].take()
    }
}

/// Copies the contents of `disk`, which disappears with the machine, to a file.
fn copy(mut disk: File, path: &Path) {
    let mut copy = File::create(path).expect("the target directory is writable");
    io::copy(&mut disk, &mut copy).expect("it can be read");
}

#[test]
fn the_machine_is_paused_until_there_is_space() {
    pauses(&[("raw", "ide"), ("qcow2", "virtio")]);
}

#[test]
#[ignore = "the other pairs of the formats and interfaces above; make test-long runs it"]
fn the_machine_is_paused_with_other_disks() {
    pauses(&[("qcow2", "ide"), ("raw", "virtio")]);
}

/// Fills the host's room for a disk, with each of these formats and interfaces.
fn pauses(disks: &[(&str, &str)]) {
    for (format, interface) in disks {
        let is_ide = *interface == "ide";
        let (device, name) = if is_ide { ("sda", "ide-0") } else { ("vda", "virtio-blk0-0") };
        let directory = Directory::new();
        let Some(mut machine) = start(&directory, format, &format!(",if={interface}")) else {
            return;
        };
        machine.next("return");
        machine.guest.command(&format!(
            "mke2fs -q /dev/{device} >/tmp/log 2>&1 && mount -t ext4 /dev/{device} /mnt"
        ));
        // To count that far takes longer than to copy.
        machine.guest.command("seq 200000 > /tmp/numbers");
        machine.guest.begin(
            "for i in $(seq 8); do cat /tmp/numbers; done > /mnt/numbers; sync; umount /mnt; sync",
        );

        let failed = machine.next("event");
        assert_eq!(failed["event"], "BLOCK_IO_ERROR", "{failed}");
        let data = &failed["data"];
        assert_eq!(data["device"], name);
        assert_eq!(data["operation"], "write");
        assert_eq!((&data["action"], &data["nospace"]), (&"stop".into(), &true.into()));
        machine.stopped();
        assert_eq!(machine.execute("query-status")["status"], "io-error");
        assert_eq!(machine.execute("query-block")[0]["io-status"], "nospace");
        // Without room, the machine stops again.
        machine.execute("cont");
        while machine.next("event")["event"] != "RESUME" {}
        machine.stopped();

        std::fs::remove_file(machine.room.join("ballast")).expect("it is there");
        let disk = File::open(machine.room.join("disk")).expect("it is there");
        machine.execute("cont");
        machine.guest.end();
        assert_eq!(machine.execute("query-block")[0]["io-status"], "ok");
        assert_eq!(machine.guest.power_off(), Some(0));

        let image = directory.path("image");
        copy(disk, &image);
        let raw = directory.path("raw");
        if *format == "qcow2" {
            output(ring3().args(["img", "check", "-q", "-f", format]).arg(&image));
        }
        output(ring3().args(["img", "convert", "-f", format, "-O", "raw"]).arg(&image).arg(&raw));
        output(system_program("e2fsck").args(["-fn"]).arg(&raw));
        let numbers: Vec<u8> = (1..=200_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
        assert!(read_ext2(&raw, "/numbers") == numbers.repeat(8), "{format}");
    }
}

#[test]
fn the_guest_receives_the_error_on_request() {
    let directory = Directory::new();
    let Some(mut machine) = start(&directory, "raw", ",werror=report") else { return };
    machine.next("return");
    let write = "dd if=/dev/urandom of=/dev/sda bs=1M count=30 conv=fsync 2>/dev/null; echo $?";
    assert_eq!(machine.guest.command(write), "1");
    let failed = machine.next("event");
    assert_eq!(failed["event"], "BLOCK_IO_ERROR", "{failed}");
    assert_eq!(failed["data"]["action"], "report");
    assert_eq!(machine.execute("query-status")["status"], "running");
    assert_eq!(machine.guest.power_off(), Some(0));
}

#[test]
fn a_virtio_disk_gets_another_size() {
    let directory = Directory::new();
    let properties = ",if=virtio,throttling.iops-total=2000";
    let Some(mut machine) = start(&directory, "qcow2", properties) else { return };
    machine.next("return");
    assert_eq!(machine.guest.command("cat /sys/block/vda/size"), "131072");
    let resize = "{\"device\": \"virtio-blk0-0\", \"size\": 134217728}";
    machine.execute_with("block_resize", resize);
    assert_eq!(machine.guest.command("cat /sys/block/vda/size"), "262144");
    let write = "echo written | dd of=/dev/vda bs=512 seek=262143 conv=fsync 2>/dev/null; \
                 dd if=/dev/vda bs=512 skip=262143 2>/dev/null | head -1";
    assert_eq!(machine.guest.command(write), "written");
    assert_eq!(machine.execute("query-block")[0]["inserted"]["iops"], 2000);
    assert_eq!(machine.guest.power_off(), Some(0));
}
