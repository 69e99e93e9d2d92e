//! Linux works on disks with images of any format, and the host's programs find its data in the images
//! afterwards.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux};
use crate::support::{Directory, output, read_ext2, ring3, system_program};

/// Formats of images to which a guest can write, as many as there are IDE drives.
const FORMATS: [&str; 4] = ["qcow2", "vdi", "vpc", "vmdk"];
const SIZE: &str = "64M";

fn create(directory: &Directory, format: &str) -> PathBuf {
    let path = directory.path(&format!("disk.{format}"));
    output(ring3().args(["img", "create", "-q", "-f", format]).arg(&path).arg(SIZE));
    path
}

/// Checks an image with ring3 and with qemu-img, and returns both exit statuses.
fn checks(image: &Path, format: &str) -> [ExitStatus; 2] {
    let qemu = Command::new("qemu-img");
    [ring3(), qemu].map(|mut program| {
        if !program.get_program().eq("qemu-img") {
            program.arg("img");
        }
        program.args(["check", "-q", "-f", format]).arg(image).status().expect("it is installed")
    })
}

/// Converts the image to a raw one with qemu-img.
fn raw(image: &Path, format: &str) -> PathBuf {
    let raw = image.with_extension(format!("{format}.raw"));
    output(
        Command::new("qemu-img").args(["convert", "-f", format, "-O", "raw"]).arg(image).arg(&raw),
    );
    raw
}

/// Starts Linux with these images as the first IDE drives.
fn start(disks: &[(&Path, &str)]) -> Guest {
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        for (path, format) in disks {
            command.args(["--drive", &format!("file={},format={format}", path.display())]);
        }
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1; mkdir -p /mnt");
    guest.command("for i in ata_piix sd_mod crc32c_generic ext4; do modprobe $i; done");
    guest
}

fn numbers(last: u32) -> Vec<u8> {
    (1..=last).flat_map(|i| format!("{i}\n").into_bytes()).collect()
}

#[test]
fn data_that_linux_writes_are_in_images_of_every_format() {
    let directory = Directory::new();
    let images = FORMATS.map(|format| (create(&directory, format), format));
    let disks = images.each_ref().map(|(path, format)| (path.as_path(), *format));
    let mut guest = start(&disks);
    assert_eq!(guest.command("echo /dev/sd?"), "/dev/sda /dev/sdb /dev/sdc /dev/sdd");
    // The guest works on all disks at once. Deleted files leave holes for later ones.
    let work = "mke2fs $d >/tmp/log 2>&1 && mkdir -p /mnt/$n && mount -t ext4 $d /mnt/$n && \
                dd if=/dev/zero of=/mnt/$n/zeros bs=64k count=50 2>/dev/null && seq 200000 > /mnt/$n/numbers && sync && \
                rm /mnt/$n/zeros && seq 100000 > /mnt/$n/more && umount /mnt/$n && echo $n done";
    let all = format!("for d in /dev/sd?; do n=$(basename $d); {{ {work}; }} & done; wait");
    let mut said: Vec<_> = guest.command(&all).lines().map(str::to_owned).collect();
    said.sort();
    assert_eq!(said, ["sda done", "sdb done", "sdc done", "sdd done"]);
    assert_eq!(guest.power_off(), Some(0));

    for (path, format) in &images {
        for status in checks(path, format) {
            // qemu-img has no check for some formats, and says so with status 63.
            assert!(matches!(status.code(), Some(0 | 63)), "{format}: {status}");
        }
        let raw = raw(path, format);
        output(system_program("e2fsck").args(["-fn"]).arg(&raw));
        assert!(read_ext2(&raw, "/numbers") == numbers(200_000), "{format}");
        assert!(read_ext2(&raw, "/more") == numbers(100_000), "{format}");
        output(
            ring3().args(["img", "compare", "-q", "-f", format, "-F", "raw"]).arg(path).arg(&raw),
        );
    }
}

#[test]
fn sectors_that_linux_discards_take_no_space() {
    let directory = Directory::new();
    for (properties, gives_back) in [("raw", false), ("raw,discard=on", true)] {
        let image = directory.file("disk", &[]);
        output(Command::new("truncate").args(["-s", SIZE]).arg(&image));
        let mut guest = start(&[(&image, properties)]);
        guest.command("mke2fs /dev/sda >/tmp/log 2>&1 && mount -t ext4 -o discard /dev/sda /mnt");
        guest.command("seq 200000 > /tmp/numbers");
        guest.command("for i in $(seq 9); do cat /tmp/numbers; done > /mnt/numbers; sync; sync");
        let room = || std::fs::metadata(&image).expect("it is there").blocks() * 512;
        let before = room();
        assert!(before > 10 << 20, "{before} bytes");
        guest.command("rm /mnt/numbers; sync; umount /mnt; sync");
        assert_eq!(guest.power_off(), Some(0));
        assert_eq!(room() < 5 << 20, gives_back, "{properties}: {} of {before} bytes", room());
        output(system_program("e2fsck").args(["-fn"]).arg(&image));
    }
}

#[test]
fn a_killed_machine_leaves_all_flushed_data() {
    let directory = Directory::new();
    let image = create(&directory, "qcow2");
    let mut guest = start(&[(&image, "qcow2")]);
    guest.command("mke2fs /dev/sda >/tmp/log 2>&1 && mount -t ext4 /dev/sda /mnt");
    // The first sync makes Linux write the file system's own data, too, and the second makes the disk keep
    // them: on ext2, one alone does not suffice.
    guest.command("seq 100000 > /mnt/numbers; sync; sync");
    guest.command("(while true; do seq 200000 > /mnt/more; rm /mnt/more; done) & true");
    guest.command("sleep 1");
    // Kills the machine.
    drop(guest);
    for status in checks(&image, "qcow2") {
        // Clusters without a reference may be left (3), but there must be no error (2).
        assert!(matches!(status.code(), Some(0 | 3)), "{status}");
    }
    let (found, expected) = (read_ext2(&raw(&image, "qcow2"), "/numbers"), numbers(100_000));
    let other = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert!(found == expected, "{} bytes, another one at {other:?}", found.len());
}
