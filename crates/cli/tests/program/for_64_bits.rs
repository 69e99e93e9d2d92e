//! Systems for 64-bit processors on a 32-bit one: the user learns the reason, wherever it is detected.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::guest::file_if_there;
use crate::support::{Directory, ring3};

const KERNEL: &str = "linux-amd64/vmlinuz";

/// The words of every such message.
const SAYS: &str = "is for 64-bit processors: use --cpu x86-64-v2, or a 32-bit system";

#[test]
fn debians_kernel_is_refused_by_its_header() {
    let Some(kernel) = file_if_there(KERNEL) else { return };
    for before in [&["run", "--cpu", "max", "--kernel"][..], &["qemu", "-nographic", "-kernel"]] {
        let output = ring3().args(before).arg(&kernel).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(SAYS) && errors.contains("linux-image-686"), "{errors}");
    }
}

/// Makes a disc on which GRUB starts `kernel` with `command`.
fn disc(directory: &Directory, kernel: &Path, command: &str) -> PathBuf {
    let root = directory.path(command);
    std::fs::create_dir_all(root.join("boot/grub")).unwrap();
    std::fs::copy(kernel, root.join("vmlinuz")).unwrap();
    std::fs::write(root.join("boot/grub/grub.cfg"), format!("{command} /vmlinuz\nboot\n")).unwrap();
    let disc = directory.path(&format!("{command}.iso"));
    let mut make = Command::new("grub-mkrescue");
    make.args(["--directory=/usr/lib/grub/i386-pc", "--output"]).arg(&disc).arg(&root);
    let made = make.output().expect("grub-mkrescue is there: install grub-common");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    disc
}

/// The kernel looks for long mode itself, in protected mode and with interrupts disabled, and halts without a
/// message.
#[test]
fn a_kernel_that_grub_has_started_ends_the_run() {
    let Some(kernel) = file_if_there(KERNEL) else { return };
    let directory = Directory::new();
    let disc = disc(&directory, &kernel, "linux");
    for before in [&["run", "--cpu", "max", "--cdrom"][..], &["qemu", "-nographic", "-cdrom"]] {
        let output = ring3().args(before).arg(&disc).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(SAYS), "{errors}");
    }
}

/// The kernel's own code for real mode complains on the screen and halts with interrupts enabled.
#[test]
fn a_kernel_that_complains_on_an_invisible_screen_is_reported() {
    let Some(kernel) = file_if_there(KERNEL) else { return };
    let directory = Directory::new();
    let disc = disc(&directory, &kernel, "linux16");
    let mut child = ring3()
        .args(["run", "--cpu", "max", "--cdrom"])
        .arg(disc)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next().expect("something is said").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("the guest has given up") && line.contains(SAYS), "{line}");
}

/// Small kernels whose check is `code`: the code after CPUID, and what they do then.
#[test]
fn small_kernels_that_find_no_long_mode_are_reported() {
    let directory = Directory::new();
    let cpuid = [
        0xb8, 0x01, 0x00, 0x00, 0x80, //       MOV EAX, 80000001h
        0x0f, 0xa2, //                         CPUID
        0x0f, 0xba, 0xe2, 0x1d, //             BT EDX, 29
        0x72, 0x02, //                         JC over the next two
        0xfa, 0xf4, //                         CLI; HLT
    ];
    // No check: setting IA32_EFER.LME at once is #GP, and there is no IDT.
    let wrmsr = [
        0xb9, 0x80, 0x00, 0x00, 0xc0, //       MOV ECX, C0000080h
        0x0f, 0x32, //                         RDMSR
        0x0d, 0x00, 0x01, 0x00, 0x00, //       OR EAX, 100h
        0x0f, 0x30, //                         WRMSR
    ];
    for (code, status) in [(&cpuid[..], 4), (&wrmsr[..], 3)] {
        for cpu in ["max", "486"] {
            let kernel = directory.file("kernel", &crate::support::kernel(code));
            let mut command = ring3();
            command.args(["run", "--no-reboot", "--cpu", cpu, "--kernel"]).arg(kernel);
            let output = command.stdin(Stdio::null()).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            // The 486 has no RDMSR either.
            let status = Some(status);
            assert_eq!(output.status.code(), status, "{cpu}: {errors}");
            let is_told = errors.contains(SAYS);
            assert!(is_told || cpu == "486" && status == Some(3), "{cpu}: {errors}");
        }
    }
}

/// A 32-bit system looks for long mode, too, in order to use no-execute pages, and stops for another reason
/// long after that.
#[test]
fn a_guest_that_halts_long_after_it_looked_for_long_mode_is_not_reported() {
    let directory = Directory::new();
    let code = [
        0xb8, 0x01, 0x00, 0x00, 0x80, 0x0f, 0xa2, // MOV EAX, 80000001h; CPUID
        0xb9, 0x00, 0x2d, 0x31, 0x01, //             MOV ECX, 20000000
        0xe2, 0xfe, //                               LOOP to itself
        0xfa, 0xf4, //                               CLI; HLT
    ];
    let kernel = directory.file("kernel", &crate::support::kernel(&code));
    let mut command = ring3();
    let output = command
        .args(["run", "--cpu", "max", "--kernel"])
        .arg(kernel)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(
        errors.contains("halted with interrupts disabled") && !errors.contains("64"),
        "{errors}"
    );
}
