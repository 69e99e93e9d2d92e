//! Systems with which a user works by screen and keyboard.

use std::time::Duration;

use crate::support::guest::{PROMPT, file, file_if_there, linux};
use crate::support::screen::Screen;
use crate::support::{Directory, seabios};

const ESCAPE: &str = "\x1b";
const CONTROL_B: &str = "\x02";

#[test]
fn the_boot_menu_of_seabios_lists_the_drives() {
    let Some(bios) = seabios() else { return };
    let directory = Directory::new();
    let disk = directory.file("disk", &vec![0; 3 << 20]);
    let diskette = directory.file("diskette", &vec![0; 1440 << 10]);
    let mut screen = Screen::start(|command| {
        command.args(["-m", "8M", "--boot", "menu=on", "--bios"]).arg(bios);
        command.arg("--hdb").arg(disk).arg("--fda").arg(diskette);
    });
    let banner = screen.wait_for("Press ESC for boot menu.");
    assert!(banner.starts_with("SeaBIOS (version "), "{banner}");
    screen.type_keys(ESCAPE);
    screen.wait_for("Select boot device:");
    screen.wait_for("ata0-1: RING3 HARDDISK ATA-6 Hard-Disk (3 MiBytes)");
    let menu = screen.wait_for("Floppy [drive A]");
    let (number, _) = menu.split_once(". Floppy").expect("choices have numbers");
    let number = number.chars().last().expect("choices have numbers");
    screen.type_keys(&number.to_string());
    screen.wait_for("Booting from Floppy...");
    screen.wait_for("not a bootable disk");
}

#[test]
fn ipxe_reaches_its_prompt_and_accepts_keys() {
    let Some(disc) = file_if_there("ipxe.iso") else { return };
    let mut screen = Screen::start(|command| {
        command.args(["-m", "16M", "--boot", "d", "--cdrom"]).arg(disc);
    });
    screen.wait_for("Press Ctrl-B for the iPXE command line...");
    screen.type_keys(CONTROL_B);
    screen.wait_for("iPXE> ");
    // The result is different from the typed text.
    screen.type_line("iPXE> ", "set words typed keys && echo ${words} Are Shown");
    screen.wait_for("\ntyped keys Are Shown");
}

/// Starts Memtest86+ from its disc on 8 MiB.
fn memtest() -> Option<Screen> {
    let disc = file_if_there("memtest.iso")?;
    Some(Screen::start(|command| {
        command.args(["-m", "8M", "--boot", "d", "--cdrom"]).arg(disc);
    }))
}

/// A part of Memtest86+'s screen.
const NO_ERRORS: &str = "Errors: 0 ";

/// The tests of addresses and the first moving inversions; the rest of a pass takes minutes.
#[test]
fn memtest_finds_no_error_in_its_first_tests() {
    let Some(mut screen) = memtest() else { return };
    screen.wait_for("Memtest86+ v");
    // The lines of the screen come one after the other, and which part is tested last.
    let wanted = ["Test #6", "MB of 7.61MB]", "Pass:  0        Errors: 0 "];
    screen.wait_until("test 6 without an error", |shown| {
        wanted.iter().all(|part| shown.contains(part))
    });
}

#[test]
#[ignore = "takes minutes; make test-long runs it"]
fn memtest_finds_no_error_in_a_whole_pass() {
    let Some(mut screen) = memtest() else { return };
    // Its last test waits twice, to see whether bits fade.
    screen.allow(Duration::from_secs(2 * 80));
    let shown = screen.wait_for("Pass:  1 ");
    assert!(shown.contains(NO_ERRORS), "{shown}");
}

/// The oldest processors, for which Debian has no kernels. On the 486, which has no time-stamp counter,
/// Memtest86+ waits for a key, as it does under QEMU.
#[test]
fn memtest_works_on_a_486_and_on_a_pentium() {
    let Some(disc) = file_if_there("memtest.iso") else { return };
    let start = |model| {
        Screen::start(|command| {
            command.args(["-m", "8M", "--cpu", model, "--boot", "d", "--cdrom"]).arg(&disc);
        })
    };
    let mut screen = start("486");
    screen.wait_for("<Enter> to start testing");
    screen.type_keys("\r");
    let shown = screen.wait_for("Status: Testing");
    assert!(shown.contains("Intel 486"), "{shown}");
    let shown = start("pentium").wait_for("Status: Testing");
    assert!(shown.contains("Pentium"), "{shown}");
}

/// There is no firmware that could set a text mode.
#[test]
fn memtest_has_a_screen_when_it_is_the_kernel() {
    let Some(kernel) = file_if_there("memtest.bin") else { return };
    let mut screen = Screen::start(|command| {
        command.args(["-m", "8M", "--kernel"]).arg(kernel);
    });
    let shown = screen.wait_for("Status: Testing");
    assert!(shown.contains("Memtest86+ v"), "{shown}");
}

#[test]
fn debian_has_its_console_on_the_screen_without_firmware() {
    let mut screen = Screen::start(|command| {
        command.args(["-m", "128M", "--append", "console=tty0 quiet"]);
        command.arg("--kernel").arg(linux());
        command.arg("--initrd").arg(file("initramfs.cpio.gz"));
    });
    screen.wait_for(PROMPT);
    screen.type_line(PROMPT, "clear; dmesg | grep Console:");
    screen.wait_for("Console: colour VGA+ 80x25");
}
