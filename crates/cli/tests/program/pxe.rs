//! Machines that boot from a network: SeaBIOS starts iPXE from a card's ROM, which gets an address by DHCP
//! and files by TFTP from the NAT.

use std::fs;

use crate::support::guest::{Guest, PROMPT, file};
use crate::support::{Directory, ring3};

/// Makes a directory with the files that a machine boots: Debian's kernel, the tests' RAM disk, and a script
/// for iPXE.
fn network() -> Directory {
    let directory = Directory::new();
    let script = b"#!ipxe\n\
        kernel vmlinuz console=ttyS0 from=${net0/mac}\n\
        initrd initramfs.cpio.gz\n\
        boot\n";
    directory.file("boot.ipxe", script);
    let copy = |from, name| fs::copy(from, directory.path(name)).unwrap();
    copy(file("linux-686").join("vmlinuz"), "vmlinuz");
    copy(file("initramfs.cpio.gz"), "initramfs.cpio.gz");
    directory
}

/// Starts a machine without disks, with such a card.
fn start(network: &Directory, card: &str) -> Guest {
    let tftp = network.path("").display().to_string();
    Guest::start(|command| {
        command.args(["--boot", "n", "--nic"]);
        command.arg(format!("user,tftp={tftp},bootfile=boot.ipxe,{card}"));
    })
}

/// Checks that the machine reaches the prompt of a system that only the network has.
fn boots(card: &str) {
    let network = network();
    let mut guest = start(&network, card);
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    let line = guest.command("cat /proc/cmdline");
    assert!(line.ends_with("console=ttyS0 from=52:54:00:12:34:56"), "{line}");
    assert_eq!(guest.power_off(), Some(0));
}

#[test]
fn a_virtio_card_boots_linux() {
    boots("model=virtio");
}

/// Its device ID is not the one for which the ROM was made.
#[test]
fn a_virtio_card_for_drivers_of_version_0_9_boots_linux() {
    boots("model=virtio,disable-modern=on");
}

#[test]
fn an_e1000_boots_linux() {
    boots("model=e1000");
}

#[test]
fn an_rtl8029_boots_linux() {
    boots("model=ne2k_pci");
}

/// Firmware cannot boot from the network by a card without a ROM, even with `--boot n`.
#[test]
fn a_card_without_a_rom_boots_nothing() {
    let network = network();
    let tftp = network.path("").display().to_string();
    let mut command = ring3();
    command.args(["run", "--serial", "null", "--debugcon", "stdio", "--boot", "n", "--nic"]);
    command.arg(format!("user,tftp={tftp},bootfile=boot.ipxe,romfile="));
    let mut firmware = Guest::of(command);
    let before = firmware.wait_for("No bootable device");
    assert!(before.contains("Booting from Hard Disk") && !before.contains("ethernet"), "{before}");
}
