//! GDB debugs Tern's kernel: both engines stop at the same places, and a run is not disturbed.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::support::{Directory, listens, output, ring3, system_program, wait_until};
use crate::tern::has_tern;

/// Tern with names and lines, and a machine that waits for a debugger before its first instruction.
pub(crate) struct Debugged {
    pub(crate) directory: Directory,
    engine: &'static str,
    /// The folder of the kernel.
    build: PathBuf,
}

/// Returns the folder with Tern's kernel and its names and lines, which the first test builds.
pub(crate) fn kernel_with_names() -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let build = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tern-with-names");
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest");
    let _alone = BUILDING.lock().unwrap();
    let mut make = system_program("make");
    make.env_remove("MAKEFLAGS").env_remove("MFLAGS").args(["-s", "-j2", "-C"]).arg(guest);
    output(make.arg(format!("BUILD={}", build.display())).arg(build.join("tern")));
    build
}

impl Debugged {
    pub(crate) fn new(engine: &'static str) -> Debugged {
        let directory = Directory::new();
        let archive = ring3_tern::TERN.expect("it is there").archive;
        fs::write(directory.path("tern.img"), archive).unwrap();
        Debugged { directory, engine, build: kernel_with_names() }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path("gdb")
    }

    /// Returns a deterministic machine that ends by itself, with its event log in file `log`.
    pub(crate) fn machine(&self, log: &str) -> Command {
        let mut machine = ring3();
        machine.args(["run", "--deterministic", "--debug-exit", "0xf4", "--engine", self.engine]);
        machine.args([
            "--memory",
            "64M",
            "--serial",
            "null",
            "--append",
            "debug run=ls",
            "--stats",
        ]);
        machine.arg("--kernel").arg(self.build.join("tern"));
        machine.arg("--initrd").arg(self.directory.path("tern.img"));
        machine.arg("--event-log").arg(self.directory.path(log)).args(["--checkpoint", "1000000"]);
        machine.stdin(Stdio::null()).stderr(Stdio::piped());
        machine
    }

    /// Starts a machine that waits for a debugger.
    fn start(&self) -> Child {
        let mut machine = self.machine("debugged");
        let place = format!("unix:{}", self.socket().display());
        let child = machine.args(["--paused", "--gdb", &place]).spawn().unwrap();
        wait_until("nobody listens for gdb", || listens(&self.socket()).then_some(()));
        child
    }

    /// Executes the commands of a script in gdb, and returns what it says.
    pub(crate) fn gdb(&self, script: &[&str]) -> String {
        let mut gdb = system_program("gdb");
        gdb.args(["-nx", "-batch", "-ex", "set pagination off", "-ex"]);
        gdb.arg(format!("file {}", self.build.join("tern.debug").display()));
        gdb.arg("-ex").arg(format!("target remote {}", self.socket().display()));
        for command in script {
            gdb.args(["-ex", command]);
        }
        let said = gdb.output().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        String::from_utf8_lossy(&said.stdout).into_owned() + &errors
    }
}

/// Returns how a machine has ended, and what it has written.
pub(crate) fn end(machine: Child) -> (Option<i32>, String) {
    let output = machine.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[track_caller]
pub(crate) fn contains_in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} is missing in {text}"));
        rest = &rest[at + part.len()..];
    }
}

fn looks_without_disturbing(engine: &'static str) {
    if !has_tern() {
        return;
    }
    let debugged = Debugged::new(engine);
    let machine = debugged.start();
    let said = debugged.gdb(&[
        "hbreak kernel_main",
        "continue",
        "bt",
        "x/1i $pc",
        "stepi",
        "p/x $pc - (unsigned)kernel_main",
        "delete",
        "break make_ready",
        "continue",
        "bt",
        // Breakpoints do not change what is read.
        "p/x *(unsigned char *)make_ready != 0xcc",
        "delete",
        "rwatch tsc_khz",
        "continue",
        "delete",
        "p $cr0",
        "p $mxcsr",
        "p $st0",
        "maintenance packet Qqemu.PhyMemMode:1",
        "p/x *(unsigned *)0x100000",
        "maintenance packet Qqemu.PhyMemMode:0",
        "p/x *(unsigned *)0xc0100000",
        "p *(int *)0x40",
        "monitor info status",
        "detach",
    ]);
    contains_in_order(
        &said,
        &[
            "kernel_main (magic=732803074",
            "#1  0xc",
            "in start ()",
            "push   %ebp",
            "= 0x1\n",
            "make_ready (",
            "processes_start ()",
            "kernel_main (",
            "= 0x1\n",
            "Hardware read watchpoint",
            "Value = ",
            "PG",
            "= [",
            "sending: Qqemu.PhyMemMode:1",
            "received: \"OK\"",
            "= 0x1badb002",
            "= 0x1badb002",
            "detached",
        ],
    );
    // What goes to standard error.
    contains_in_order(&said, &["Cannot access memory at address 0x40", "VM status: paused"]);
    let (status, stats) = end(machine);
    assert_eq!(status, Some(1), "{stats}");
    assert!(output(&mut alone(&debugged)).is_empty());
    let log = |name| fs::read_to_string(debugged.directory.path(name)).unwrap();
    assert_eq!(log("debugged"), log("alone"));
}

/// Returns the same machine without a debugger, in a shell that expects its status.
fn alone(debugged: &Debugged) -> Command {
    let machine = debugged.machine("alone");
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" 2>/dev/null; test $? = 1", "sh"]).arg(machine.get_program());
    shell.args(machine.get_args()).stdin(Stdio::null());
    shell
}

#[test]
fn a_debugger_of_the_translator_looks_without_disturbing() {
    looks_without_disturbing("translator");
}

#[test]
fn a_debugger_of_the_interpreter_looks_without_disturbing() {
    looks_without_disturbing("interpreter");
}

/// A debugger changes registers and memory, and ends the machine.
#[test]
fn a_debugger_changes_the_guest_and_ends_it() {
    if !has_tern() {
        return;
    }
    let debugged = Debugged::new("translator");
    let machine = debugged.start();
    let said = debugged.gdb(&[
        "tbreak processes_start",
        "continue",
        "set var clock_ticks = 77",
        "p clock_ticks",
        "set $eax = 0x1234",
        "p/x $eax",
        "set $cr0 = 0",
        "watch clock_ticks",
        "stepi",
        "p $eip != (unsigned)processes_start",
        "kill",
    ]);
    contains_in_order(&said, &["processes_start", "= 77\n", "= 0x1234\n", "= 1\n"]);
    assert!(said.contains("Could not write registers"), "{said}");
    assert_eq!(end(machine).0, Some(0));
}

/// Bytes that are no protocol end the connection and not the machine, and the next debugger is served.
#[test]
fn broken_debuggers_lose_only_their_connection() {
    if !has_tern() {
        return;
    }
    let debugged = Debugged::new("translator");
    let machine = debugged.start();
    let huge = [&b"$m"[..], &b"0".repeat(100_000)].concat();
    let attacks: [&[u8]; 9] = [
        b"$g#00",
        b"$#",
        b"$mffffffffffffffffffff,1#00",
        b"\xff\x00$\xff\xfe#zz$\x80#80",
        b"$Z0,c0100000,1#00$Z9,0,0#03",
        b"$vCont;x#00",
        b"$m0,ffffffff#2b$M0,4:zz#00",
        b"-------",
        &huge,
    ];
    for attack in attacks {
        let mut stream = UnixStream::connect(debugged.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The connection may be closed before everything is sent.
        let _ = stream.write_all(attack);
        stream.shutdown(std::net::Shutdown::Write).ok();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let said = debugged.gdb(&["p/x $eip", "detach"]);
    contains_in_order(&said, &["= 0x10000c", "detached"]);
    let (status, stats) = end(machine);
    assert_eq!(status, Some(1), "{stats}");
}
