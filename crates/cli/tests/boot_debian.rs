//! Debian's i386 kernel with a busybox root file system: booted, worked in, switched off.
//!
//! The guest's files are in `guests/` of the tree, or where `RING3_GUESTS` says;
//! `make test` gets them.

mod support;

use std::env;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use support::ring3;

/// The whole test has this time, and more than it needs; a guest that hangs must not hang
/// those who test.
const PATIENCE: Duration = Duration::from_secs(180);

/// What the guest's shell shows when it waits for a command (tests/guests/init).
const PROMPT: &str = "ring3:~# ";

/// A file of the guest.
fn guest_file(name: &str) -> PathBuf {
    let tree = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
    let path = env::var_os("RING3_GUESTS").map_or_else(tree, PathBuf::from).join(name);
    assert!(
        path.exists(),
        "{} is missing: run tests/guests/fetch and tests/guests/initramfs, or make test",
        path.display()
    );
    path
}

/// A running guest, and its console.
struct Guest {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    /// All that the guest has shown.
    shown: String,
    /// Where in `shown` the next search begins.
    seen: usize,
    commands: u32,
    deadline: Instant,
}

impl Guest {
    /// Starts it with the further options `options`.
    fn boot(options: &[&str]) -> Guest {
        let mut child = ring3()
            .args(["run", "--append", "console=ttyS0", "--memory", "128M", "--serial", "stdio"])
            .args(options)
            .arg("--kernel")
            .arg(guest_file("linux-686/vmlinuz"))
            .arg("--initrd")
            .arg(guest_file("initramfs.cpio.gz"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let keys = child.stdin.take().expect("it was asked for");
        let mut output = child.stdout.take().expect("it was asked for");
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let deadline = Instant::now() + PATIENCE;
        Guest { child, keys, screen, shown: String::new(), seen: 0, commands: 0, deadline }
    }

    /// Waits until the guest shows `wanted`, and returns what it has shown before that.
    fn wait_for(&mut self, wanted: &str) -> String {
        loop {
            if let Some(at) = self.shown[self.seen..].find(wanted) {
                let before = self.shown[self.seen..][..at].to_owned();
                self.seen += at + wanted.len();
                return before;
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                // The guest speaks ASCII; carriage returns are the terminal's matter.
                Ok(bytes) => self
                    .shown
                    .extend(bytes.iter().filter(|byte| **byte != b'\r').map(|byte| *byte as char)),
                Err(error) => panic!("{wanted:?} does not come ({error}):\n{}", self.shown),
            }
        }
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.keys, "{line}").expect("the guest takes keys");
    }

    /// Has the shell execute `command` and returns what it shows.
    ///
    /// Its output is found between two words which the shell puts together, so that the
    /// echo of what was typed, which may be broken into lines anywhere, is not taken for it.
    fn command(&mut self, command: &str) -> String {
        self.commands += 1;
        let number = self.commands;
        self.type_line(&format!("echo begin-$(({number})); {command}; echo end-$(({number}))"));
        self.wait_for(&format!("begin-{number}\n"));
        let output = self.wait_for(&format!("end-{number}\n"));
        self.wait_for(PROMPT);
        output.trim_end().to_owned()
    }

    /// Switches the guest off, and returns the exit status of the program.
    fn power_off(mut self) -> Option<i32> {
        self.type_line("poweroff -f");
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status.code();
            }
            assert!(Instant::now() < self.deadline, "poweroff hangs:\n{}", self.shown);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It has ended already unless an assertion failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers that the guest computes in `awk`, in floating point: the generator of
/// Park and Miller (Communications of the ACM 31, 1988).
fn random_numbers() -> Vec<u64> {
    let next = |x: &u64| Some(x * 16807 % 2_147_483_647);
    std::iter::successors(Some(1), next).skip(1).take(20_000).collect()
}

/// Lines as `sort`, `head` and `tail` print numbers.
fn lines(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn debian_boots_works_and_switches_off() {
    let mut guest = Guest::boot(&[]);
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
    // The hash of the numbers, each on a line, as sha256sum gives it on another machine.
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
    // The shell ignores SIGTERM, and so does its child until it has become `sleep`: it is
    // given a second for that. 143 is 128 and the number of SIGTERM.
    for process in ["$!", "%1"] {
        let output = guest
            .command(&format!("sleep 1000 & sleep 1; kill {process}; wait $!; echo status $?"));
        assert!(output.lines().any(|line| line == "status 143"), "{output}");
    }

    assert_eq!(guest.power_off(), Some(0));
}

/// The oldest of the processors that this kernel is made for: it finds what that one had and nothing later.
#[test]
fn debian_boots_on_a_pentium_iii() {
    let mut guest = Guest::boot(&["--cpu", "pentium3"]);
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
