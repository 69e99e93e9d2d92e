//! Systems that start by firmware and a boot loader.

use std::path::Path;
use std::process::Command;

use crate::support::guest::{Guest, PROMPT, file};
use crate::support::{Directory, output, read_ext2, system_program};

/// SeaBIOS reads GRUB from the disc, and GRUB reads the kernel and its RAM disk by the BIOS's INT 13h.
#[test]
fn grub_boots_linux_from_a_disc() {
    let disc = file("grub.iso");
    let mut guest = Guest::start(|command| {
        command.args(["--boot", "d", "--cdrom"]).arg(disc);
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    let command_line = guest.command("cat /proc/cmdline");
    assert_eq!(command_line, "BOOT_IMAGE=/vmlinuz console=ttyS0");
    assert_eq!(guest.power_off(), Some(0));
}

/// Returns the contents of `file` in the FAT file system of the image `disk`.
fn read_fat(disk: &Path, file: &str) -> Vec<u8> {
    output(Command::new("mcopy").arg("-i").arg(disk).arg(format!("::{file}")).arg("-"))
}

/// GRUB, in front of the first partition, reads the kernel and its RAM disks from an ext2 file system. Linux
/// then writes to the file systems on two other disks.
#[test]
fn grub_boots_linux_from_a_hard_disk_and_the_host_reads_what_linux_writes_to_other_disks() {
    let directory = Directory::new();
    let [ext2, fat] = ["ext2", "fat"].map(|name| directory.file(name, &vec![0; 16 << 20]));
    output(system_program("mke2fs").args(["-q", "-t", "ext2"]).arg(&ext2));
    let sectors = (16 << 20) / 512;
    output(Command::new("mformat").arg("-i").arg(&fat).args(["-T", &sectors.to_string(), "::"]));
    let mut guest = Guest::start(|command| {
        let disk = |file: &Path, snapshot| format!("file={},snapshot={snapshot}", file.display());
        command.args(["--boot", "c", "--drive", &disk(&file("disk.img"), "on")]);
        command.args(["--drive", &disk(&ext2, "off"), "--drive", &disk(&fat, "off")]);
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    let command_line = guest.command("cat /proc/cmdline");
    assert_eq!(command_line, "BOOT_IMAGE=/vmlinuz console=ttyS0");
    guest.command("for i in ata_piix sd_mod crc32c_generic ext4 vfat nls_cp437 nls_ascii; do modprobe $i; done");
    assert_eq!(guest.command("echo /dev/sd?"), "/dev/sda /dev/sdb /dev/sdc");
    // Linux probes disks side by side and names them in the order in which it comes to them, so a disk is
    // known by its place: channel of the controller, and master or slave.
    let disk_at = |place| format!("/dev/$(ls /sys/bus/scsi/devices/{place}/block)");

    guest.command("seq 200000 > /tmp/numbers");
    let write = "mkdir -p /mnt && mount -t $1 $2 /mnt && cp /tmp/numbers /mnt && umount /mnt";
    for (kind, device) in [("ext4", disk_at("0:0:1:0")), ("vfat", disk_at("1:0:0:0"))] {
        let said = guest.command(&format!("set {kind} {device}; {write} 2>&1"));
        assert_eq!(said, "", "{kind}: {}", guest.command("dmesg | tail -n 30"));
    }
    assert_eq!(guest.power_off(), Some(0));

    let numbers: Vec<u8> = (1..=200_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    assert!(read_ext2(&ext2, "/numbers") == numbers, "ext2");
    assert!(read_fat(&fat, "/numbers") == numbers, "FAT");
}
