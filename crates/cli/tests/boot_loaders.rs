//! Systems that firmware and a boot loader start.

mod support;

use support::guest::{Guest, PROMPT, file};

/// SeaBIOS reads GRUB from the disc, GRUB in turn the kernel and its RAM disk by the BIOS's INT 13h.
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
