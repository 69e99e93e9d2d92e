//! Linux and SeaBIOS work on virtio disks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux, file};
use crate::support::{Directory, output, read_ext2, ring3, system_program};

const SIZE: u64 = 64 << 20;

/// Adds the disk at `path`, with other properties.
fn add_disk(command: &mut Command, path: &Path, properties: &str) {
    command.args(["--drive", &format!("file={},if=virtio,{properties}", path.display())]);
}

fn start(disks: &[(&Path, &str)]) -> Guest {
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        for (path, properties) in disks {
            add_disk(command, path, properties);
        }
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; mkdir -p /mnt");
    guest.command("for i in virtio_pci virtio_blk crc32c_generic ext4; do modprobe $i; done");
    guest
}

fn create(directory: &Directory, name: &str, format: &str) -> PathBuf {
    let path = directory.path(name);
    let mut create = ring3();
    create.args(["img", "create", "-q", "-f", format]).arg(&path).arg(SIZE.to_string());
    output(&mut create);
    path
}

fn numbers(last: u32) -> Vec<u8> {
    (1..=last).flat_map(|i| format!("{i}\n").into_bytes()).collect()
}

/// Linux makes, fills and reads file systems on disks for drivers of either kind, on images of two formats,
/// all at once.
#[test]
fn linux_works_on_disks_of_every_kind() {
    let last = 300_000;
    let directory = Directory::new();
    let disks = [
        ("modern", "raw", "format=raw,disable-legacy=on,discard=on,serial=first"),
        ("legacy", "raw", "format=raw,disable-modern=on"),
        ("qcow2", "qcow2", "format=qcow2,num-queues=4"),
    ];
    let disks = disks.map(|(name, format, rest)| (create(&directory, name, format), format, rest));
    let attached = disks.each_ref().map(|(path, _, rest)| (path.as_path(), *rest));
    let mut guest = start(&attached);
    assert_eq!(guest.command("echo /dev/vd?"), "/dev/vda /dev/vdb /dev/vdc");
    assert_eq!(guest.command("cat /sys/block/vda/serial"), "first");
    // Bit 32 of the features: only drivers of version 1 have it.
    let features = "for i in 0 1 2; do cut -c33 /sys/bus/virtio/devices/virtio$i/features; done";
    assert_eq!(guest.command(features), "1\n0\n1");
    let work = "mke2fs $d >/tmp/log 2>&1 && mkdir -p /mnt/$n && mount -t ext4 $d /mnt/$n && \
                seq $last > /mnt/$n/numbers && sync && echo 3 > /proc/sys/vm/drop_caches && \
                md5sum < /mnt/$n/numbers && umount /mnt/$n";
    let all =
        format!("last={last}; for d in /dev/vd?; do n=$(basename $d); {{ {work}; }} & done; wait");
    let sums = guest.command(&all);
    let expected = guest.command(&format!("seq {last} | md5sum"));
    assert_eq!(sums.lines().collect::<Vec<_>>(), [expected.as_str(); 3]);
    assert_eq!(guest.power_off(), Some(0));

    for (path, format, _) in &disks {
        let raw = path.with_extension("raw");
        output(
            Command::new("qemu-img")
                .args(["convert", "-f", format, "-O", "raw"])
                .args([path, &raw]),
        );
        output(system_program("e2fsck").args(["-fn"]).arg(&raw));
        assert!(read_ext2(&raw, "/numbers") == numbers(last), "{}", path.display());
    }
}

/// Sectors that Linux discards take no room on the host.
#[test]
fn discarded_sectors_free_their_space() {
    let directory = Directory::new();
    let disk = directory.file("disk", &vec![0xaa; SIZE as usize]);
    let room = || fs::metadata(&disk).unwrap().blocks() * 512;
    assert!(room() >= SIZE);
    let mut guest = start(&[(&disk, "format=raw,discard=on")]);
    guest.command("blkdiscard -o 33554432 -l 16777216 /dev/vda");
    assert!(room() <= SIZE * 3 / 4, "{} bytes", room());
    let command = "seq 200000 > /tmp/n; mke2fs /dev/vda >/tmp/log && mount -t ext4 -o discard /dev/vda /mnt && \
                   for i in $(seq 12); do cat /tmp/n; done > /mnt/n && sync";
    assert_eq!(guest.command(command), "");
    let filled = room();
    guest.command("rm /mnt/n; sync; umount /mnt");
    assert!(room() + (10 << 20) < filled, "{} of {filled} bytes", room());
    assert_eq!(guest.power_off(), Some(0));
    output(system_program("e2fsck").args(["-fn"]).arg(&disk));
}

/// SeaBIOS finds GRUB on a virtio disk by its own driver, on either kind of device.
#[test]
fn firmware_boots_from_virtio_disks() {
    for properties in ["disable-modern=on", "disable-legacy=on"] {
        let mut guest = Guest::start(|command| {
            command.args(["--boot", "c"]);
            add_disk(command, &file("disk.img"), &format!("snapshot=on,{properties}"));
        });
        guest.wait_for(PROMPT);
        guest.command("dmesg -n 1");
        let command_line = guest.command("cat /proc/cmdline");
        assert_eq!(command_line, "BOOT_IMAGE=/vmlinuz console=ttyS0");
        assert_eq!(guest.power_off(), Some(0));
    }
}

/// The user's input to Linux.
const SCRIPT: &[u8] = b"dmesg -n 1\n\
    for i in virtio_pci virtio_blk crc32c_generic ext4; do modprobe $i; done\n\
    mke2fs /dev/vda | tail -n 1; mkdir -p /mnt; mount -t ext4 /dev/vda /mnt\n\
    seq 50000 > /mnt/n; sync; echo 3 > /proc/sys/vm/drop_caches; md5sum /mnt/n; umount /mnt\n\
    cat /proc/interrupts\n\
    poweroff -f\n";

#[test]
fn a_recording_repeats_the_run() {
    repeats(&[]);
}

#[test]
#[ignore = "the same on the interpreter, in many times the time; make test-long runs it"]
fn the_run_is_the_same_in_the_interpreter() {
    repeats(&["interpreter"]);
}

/// Asserts that a run with a virtio disk is the same on these engines as on the default one, and when its
/// recording is repeated without the disk.
fn repeats(engines: &[&str]) {
    let directory = Directory::new();
    let script = directory.file("script", SCRIPT);
    let log = directory.path("log");
    let recording = directory.path("recording");
    let run = |command: &mut Command| {
        let stdin = fs::File::open(&script).unwrap();
        command.args(["--checkpoint", "500000000", "--event-log"]).arg(&log).stdin(stdin);
        let output = command.stderr(Stdio::piped()).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), fs::read_to_string(&log).unwrap())
    };
    let linux = |engine: &str| {
        let disk = directory.file("disk", &vec![0; 16 << 20]);
        let mut command = ring3();
        command.args(["run", "--deterministic", "--engine", engine]);
        add_linux(&mut command, &WITH_MODULES);
        add_disk(&mut command, &disk, "format=raw");
        command
    };
    let (shown, first_log) = run(linux("auto").arg("--record").arg(&recording));
    assert!(shown.contains("virtio0-req.0"), "{shown}");
    assert!(first_log.contains("input virtio-blk0: request"), "the disk's answers are in the log");
    let mut replay = ring3();
    replay.arg("run").arg("--replay").arg(&recording);
    let others = engines.iter().map(|engine| linux(engine));
    for mut again in others.chain([replay]) {
        let (shown_again, log) = run(&mut again);
        assert_eq!(shown_again, shown);
        let differs = first_log.lines().zip(log.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None);
        assert_eq!(first_log.len(), log.len());
    }
}
