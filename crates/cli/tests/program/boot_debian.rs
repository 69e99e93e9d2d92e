//! Debian's i386 kernel with a busybox root file system: it boots, works and switches off.

use std::path::PathBuf;

use crate::support::Directory;
use crate::support::guest::{Guest, PROMPT, WITH_MODULES, add_linux, file, file_if_there};

/// Starts a kernel without firmware, with all that it does at its start.
fn boot(kernel: PathBuf) -> Guest {
    let initrd = file("initramfs.cpio.gz");
    Guest::start(|command| {
        command.args(["--append", "console=ttyS0"]);
        command.arg("--kernel").arg(kernel).arg("--initrd").arg(initrd);
    })
}

/// Returns the numbers that the guest computes in `awk`, in floating point: the generator of Park and Miller
/// (Communications of the ACM 31, 1988).
fn random_numbers() -> Vec<u64> {
    let next = |x: &u64| Some(x * 16807 % 2_147_483_647);
    std::iter::successors(Some(1), next).skip(1).take(20_000).collect()
}

/// Formats numbers as `sort`, `head` and `tail` print them.
fn lines(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn debian_boots_works_and_switches_off() {
    let mut guest = boot(file("linux-686/vmlinuz"));
    guest.wait_for(PROMPT);
    // From here on the kernel's messages stay out of the output of commands.
    guest.command("dmesg -n 1");

    assert_eq!(guest.command("uname -sm"), "Linux i686");
    let root = guest.command("ls -1 /");
    for name in ["bin", "dev", "init", "proc", "sys", "tmp"] {
        assert!(root.lines().any(|line| line == name), "no {name} in:\n{root}");
    }
    assert_eq!(
        guest
            .command("i=0; s=0; while [ $i -lt 1000 ]; do i=$((i+1)); s=$((s+i*i)); done; echo $s"),
        "333833500"
    );

    guest.command("dd if=/dev/zero of=/tmp/zeros bs=1M count=1 2>/dev/null");
    assert_eq!(
        guest.command("sha256sum < /tmp/zeros"),
        "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58  -"
    );

    let numbers = random_numbers();
    guest.command(
        "awk 'BEGIN { x = 1; for (i = 0; i < 20000; i++) { x = x * 16807 % 2147483647; print x } }' \
         > /tmp/numbers",
    );
    assert_eq!(guest.command("tail -n 2 /tmp/numbers"), lines(&numbers[19_998..]));
    // The hash of the numbers, each on a line, computed by sha256sum on another machine.
    assert_eq!(
        guest.command("sha256sum < /tmp/numbers"),
        "43a5f84aac340b9de0faa89c330da7ddcc3e173367d3291d7f6cbc52743a0950  -"
    );
    let mut sorted = numbers;
    sorted.sort_unstable();
    guest.command("sort -n /tmp/numbers > /tmp/sorted");
    assert_eq!(guest.command("head -n 3 /tmp/sorted"), lines(&sorted[..3]));
    assert_eq!(guest.command("tail -n 3 /tmp/sorted"), lines(&sorted[19_997..]));
    assert_eq!(
        guest.command("gzip -c /tmp/numbers | gunzip -c | cmp - /tmp/numbers && echo same"),
        "same"
    );

    assert_eq!(guest.command("sleep 1; echo awake"), "awake");
    // The shell ignores SIGTERM, and so does its child until it has become `sleep`, which may take a second.
    // 143 is 128 plus the number of SIGTERM.
    for process in ["$!", "%1"] {
        let output = guest
            .command(&format!("sleep 1000 & sleep 1; kill {process}; wait $!; echo status $?"));
        assert!(output.lines().any(|line| line == "status 143"), "{output}");
    }

    assert_eq!(guest.power_off(), Some(0));
}

/// The Pentium III is the oldest processor for which this kernel is made. The kernel must find its features
/// and no later ones.
#[test]
fn debian_boots_on_a_pentium_iii() {
    let mut guest = Guest::start(|command| {
        add_linux(command, &["initramfs.cpio.gz"]);
        command.args(["--cpu", "pentium3"]);
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    let cpu = guest.command("cat /proc/cpuinfo");
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(": ").map_or("", |(_, value)| value)
    };
    assert_eq!((field("vendor_id"), field("cpu family")), ("GenuineIntel", "6"), "{cpu}");
    let flags: Vec<_> = field("flags").split(' ').collect();
    for (flag, expected) in [("cmov", true), ("sse", true), ("sse2", false), ("nx", false)] {
        assert_eq!(flags.contains(&flag), expected, "{flag} in:\n{cpu}");
    }
    assert_eq!(guest.power_off(), Some(0));
}

/// The kernel for processors with physical address extensions.
#[test]
fn debian_with_pae_boots_works_and_switches_off() {
    let Some(kernel) = file_if_there("linux-686-pae/vmlinuz") else { return };
    let mut guest = boot(kernel);
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    assert!(guest.command("uname -r").ends_with("-686-pae"));
    guest.command("seq 100000 | sort -r -n | gzip > /tmp/numbers.gz");
    assert_eq!(guest.command("gunzip -c /tmp/numbers.gz | sort -n | tail -n 1"), "100000");
    assert_eq!(guest.power_off(), Some(0));
}

/// The drives must be set up as firmware leaves them.
#[test]
fn debian_finds_its_drives_without_firmware() {
    let directory = Directory::new();
    // Sectors that differ from each other, all of them full.
    let image: Vec<u8> =
        (0..1u32 << 16).flat_map(|number| format!("line{number:11}\n").into_bytes()).collect();
    let image = directory.file("image", &image).display().to_string();
    let disk = format!("file={image},index=0,readonly=on");
    let disc = format!("file={image},index=2,media=cdrom");
    let mut guest = Guest::start(|command| {
        add_linux(command, &WITH_MODULES);
        command.args(["--drive", &disk, "--drive", &disc]);
    });
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    guest.command("for i in ata_piix sd_mod sr_mod; do modprobe $i; done");
    assert_eq!(guest.command("tail -n 1 /dev/sda"), "line      65535");
    assert_eq!(guest.command("cmp /dev/sda /dev/sr0 && echo same"), "same");
    let lines = guest.command("dmesg | grep -i -e 'exception emask' -e 'lost interrupt' -e 'PIO4'");
    assert_eq!(lines, "", "they are driven by DMA and interrupts");
    assert_eq!(guest.power_off(), Some(0));
}
