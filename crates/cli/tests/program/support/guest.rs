//! A guest with a shell on its serial port, to work in.
//!
//! The guests' files are in `guests/` of the source tree, or in the directory `RING3_GUESTS`; `make guests`
//! fetches them.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use super::{PATIENCE, ring3, wait_until};

/// The prompt of the guest's shell (tests/guests/init).
pub(crate) const PROMPT: &str = "ring3:~# ";

/// Returns where a guest's file is, if it is there.
pub(crate) fn path(name: &str) -> PathBuf {
    let tree = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
    env::var_os("RING3_GUESTS").map_or_else(tree, PathBuf::from).join(name)
}

/// Returns the path of one of the guests' files.
pub(crate) fn file(name: &str) -> PathBuf {
    let path = path(name);
    assert!(path.exists(), "{} is missing: run make guests", path.display());
    path
}

/// Returns the path of a file that is not available everywhere. If it is missing, this prints a note, and the
/// test passes.
pub(crate) fn file_if_there(name: &str) -> Option<PathBuf> {
    let path = path(name);
    if path.exists() {
        return Some(path);
    }
    ring3_skipped::package(format_args!("{} is missing: run make guests", path.display()));
    None
}

/// The kernel's options for a console on the serial port. They leave out half of a boot: the search for cards of
/// ISA PnP, of which there are none, and the kernel's tests of its own cryptography. `boot_debian` boots with them.
pub(crate) const CONSOLE: &str = "console=ttyS0 quiet noisapnp cryptomgr.notests";

/// The archives with a root file system and with modules.
pub(crate) const WITH_MODULES: [&str; 2] = ["initramfs.cpio.gz", "modules.cpio.gz"];

/// Returns whether the guests' files have a module of this kernel, `linux-686` or `linux-amd64`.
pub(crate) fn has_module(kernel: &str, module: &str) -> bool {
    let releases = fs::read_dir(path(kernel).join("modules")).into_iter().flatten();
    let file = format!("{module}.ko");
    let has = releases.flatten().any(|release| release.path().join(&file).exists());
    if !has {
        ring3_skipped::package(format_args!("{kernel} has no {module}: run make guests"));
    }
    has
}

/// Returns the path of Debian's first kernel, which need not unpack itself (tests/guests/unpack). `boot_debian`
/// and the tests of boot loaders boot the one that does.
pub(crate) fn linux() -> PathBuf {
    file("linux-686/unpacked")
}

/// Adds this kernel with these archives, and with its console on the serial port.
pub(crate) fn add_linux(command: &mut Command, archives: &[&str]) {
    command.arg("--kernel").arg(linux()).args(["--append", CONSOLE]);
    for archive in archives {
        command.arg("--initrd").arg(file(archive));
    }
}

/// Adds the kernel of this directory, `linux-686` or `linux-amd64`, with its modules, and with its console on the serial
/// port.
pub(crate) fn add_kernel(command: &mut Command, kernel: &str) {
    if kernel == "linux-686" {
        return add_linux(command, &WITH_MODULES);
    }
    command.arg("--kernel").arg(file("linux-amd64/vmlinux")).args(["--append", CONSOLE]);
    for archive in ["initramfs-amd64.cpio.gz", "modules-amd64.cpio.gz"] {
        command.arg("--initrd").arg(file(archive));
    }
}

/// The console of a guest with a shell.
pub(crate) struct Console {
    keys: Box<dyn Write + Send>,
    screen: Receiver<Vec<u8>>,
    /// All output of the guest.
    shown: String,
    /// The position in `shown` at which the next search begins.
    seen: usize,
    commands: u32,
    deadline: Instant,
}

/// A running guest, and its console.
pub(crate) struct Guest {
    child: Child,
    console: Console,
}

impl Deref for Guest {
    type Target = Console;

    fn deref(&self) -> &Console {
        &self.console
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Console {
        &mut self.console
    }
}

impl Guest {
    /// Starts a guest, with the options that `add_options` adds.
    pub(crate) fn start(add_options: impl FnOnce(&mut Command)) -> Guest {
        let mut command = ring3();
        command.args(["run", "--memory", "128M", "--serial", "stdio"]);
        add_options(&mut command);
        Guest::of(command)
    }

    /// Starts a guest by a whole command, whose standard input and output are the guest's serial port.
    pub(crate) fn of(mut command: Command) -> Guest {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let keys = child.stdin.take().expect("it was asked for");
        let output = child.stdout.take().expect("it was asked for");
        Guest { child, console: Console::new(keys, output) }
    }

    /// Starts a guest of QEMU by a command that `make` returns, and waits for its prompt. Where the kernel panics
    /// before, starts it again, twice at most: on a busy host QEMU's translator has the kernel jump to address
    /// 0 now and then, before any driver of ours has begun.
    pub(crate) fn of_qemu(make: impl Fn() -> Command) -> Guest {
        let starts = || {
            let mut guest = Guest::of(make());
            let (found, before) = guest.wait_for_one_of([PROMPT, "Kernel panic"]);
            if found > 0 {
                eprintln!("the kernel panics in QEMU, which is started again:\n{before}");
            }
            (found == 0).then_some(guest)
        };
        (0..3).find_map(|_| starts()).expect("the kernel starts in QEMU")
    }

    /// Returns the number of the program's process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Switches the guest off, and returns the exit status of the program.
    pub(crate) fn power_off(mut self) -> Option<i32> {
        self.type_line("poweroff -f");
        self.wait_for_the_end()
    }

    /// Waits until the run has ended, and returns the exit status of the program and all output of the guest.
    pub(crate) fn end_of_run(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("it is our child").code();
        // The thread that reads ends with the program.
        let rest: Vec<u8> = self.screen.iter().flatten().filter(|byte| *byte != b'\r').collect();
        self.shown.extend(rest.into_iter().map(char::from));
        (status, std::mem::take(&mut self.shown))
    }

    /// Waits until the guest has switched itself off, and returns the exit status of the program.
    pub(crate) fn wait_for_the_end(mut self) -> Option<i32> {
        let complaint = format!("poweroff hangs:\n{}", self.shown);
        wait_until(&complaint, || self.child.try_wait().expect("it is our child")).code()
    }
}

impl Console {
    /// Makes a console of its two directions.
    pub(crate) fn new(
        keys: impl Write + Send + 'static,
        mut output: impl Read + Send + 'static,
    ) -> Console {
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
        let (keys, shown) = (Box::new(keys), String::new());
        Console { keys, screen, shown, seen: 0, commands: 0, deadline }
    }

    /// Has as much patience with what comes from now on as with a new guest.
    pub(crate) fn be_patient(&mut self) {
        self.deadline = Instant::now() + PATIENCE;
    }

    /// Waits until the guest shows `wanted`, and returns its output before that.
    pub(crate) fn wait_for(&mut self, wanted: &str) -> String {
        self.wait_for_one_of([wanted]).1
    }

    /// Waits until the guest shows one of `wanted`, and returns the number of that one and the output before it.
    fn wait_for_one_of<const N: usize>(&mut self, wanted: [&str; N]) -> (usize, String) {
        loop {
            for (number, wanted) in wanted.iter().enumerate() {
                if let Some(at) = self.shown[self.seen..].find(wanted) {
                    let before = self.shown[self.seen..][..at].to_owned();
                    self.seen += at + wanted.len();
                    return (number, before);
                }
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                // The guest writes ASCII; carriage returns are only for terminals.
                Ok(bytes) => self
                    .shown
                    .extend(bytes.iter().filter(|byte| **byte != b'\r').map(|byte| *byte as char)),
                Err(error) => panic!("{wanted:?} does not come ({error}):\n{}", self.shown),
            }
        }
    }

    /// Types a line.
    pub(crate) fn type_line(&mut self, line: &str) {
        writeln!(self.keys, "{line}").expect("the guest takes keys");
    }

    /// Types keys, without the end of a line.
    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the guest takes keys");
    }

    /// Executes `command` in the shell and returns its output.
    pub(crate) fn command(&mut self, command: &str) -> String {
        self.begin(command);
        self.end()
    }

    /// Begins to execute `command` in the shell, without waiting for its end.
    ///
    /// Its output is between two words that the shell puts together. So the echo of the typed line, which may
    /// be broken into lines anywhere, cannot be taken for it.
    pub(crate) fn begin(&mut self, command: &str) {
        self.commands += 1;
        let number = self.commands;
        self.type_line(&format!("echo begin-$(({number})); {command}; echo end-$(({number}))"));
        self.wait_for(&format!("begin-{number}\n"));
    }

    /// Waits for the end of the command that has [begun](Console::begin) and returns its output.
    pub(crate) fn end(&mut self) -> String {
        let output = self.wait_for(&format!("end-{}\n", self.commands));
        self.wait_for(PROMPT);
        output.trim_end().to_owned()
    }

    /// Returns all output of the guest so far.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The program has ended already unless an assertion failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
