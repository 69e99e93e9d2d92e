//! GDB reaches a machine by TCP and by standard input and output, and interrupts a guest that runs.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::gdb::contains_in_order;
use crate::support::qmp::Qmp;
use crate::support::{Directory, kernel, listens, ring3, system_program, wait_until};

/// A kernel with paging, in which linear addresses are physical ones by large pages, and 400000h is 0; then it runs for
/// ever.
#[rustfmt::skip]
const PAGED: &[u8] = &[
    0xc7, 0x05, 0x00, 0x00, 0x18, 0x00, 0x83, 0x00, 0x00, 0x00, // 100000: MOV DWORD [180000h], 83h
    0xc7, 0x05, 0x04, 0x00, 0x18, 0x00, 0x03, 0x10, 0x18, 0x00, // 10000A: MOV DWORD [180004h], 181003h
    0xc7, 0x05, 0x00, 0x10, 0x18, 0x00, 0x05, 0x00, 0x00, 0x00, // 100014: MOV DWORD [181000h], 5
    0xb8, 0x10, 0x00, 0x00, 0x00, 0x0f, 0x22, 0xe0, //             10001E: MOV CR4, 10h
    0xb8, 0x00, 0x00, 0x18, 0x00, 0x0f, 0x22, 0xd8, //             100026: MOV CR3, 180000h
    0xb8, 0x11, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, //             10002E: MOV CR0, 80000011h
    0xeb, 0xfe, //                                                 100036: JMP to itself
];

fn image(directory: &Directory) -> PathBuf {
    directory.file("kernel", &kernel(PAGED))
}

/// The options of the machine, which needs no serial port.
fn machine(image: &Path, gdb: &str, engine: &str) -> Command {
    let mut machine = ring3();
    machine.args(["run", "--serial", "null", "--paused", "--engine", engine, "--gdb", gdb]);
    machine.arg("--kernel").arg(image).stdin(Stdio::null());
    machine
}

/// GDB with a script.
fn gdb(target: &str, script: &[&str]) -> Command {
    let mut gdb = system_program("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set pagination off", "-ex", "set architecture i386"]);
    gdb.args(["-ex", &format!("target remote {target}")]);
    for command in script {
        gdb.args(["-ex", command]);
    }
    gdb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    gdb
}

fn said(output: &Output) -> String {
    let [told, complained] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{told}{complained}")
}

const SCRIPT: [&str; 5] =
    ["p/x $eip", "hbreak *0x100036", "continue", "p/x $cr0", "monitor info tlb"];

#[track_caller]
fn assert_debugged(said: &str) {
    contains_in_order(said, &["= 0x100000", "Breakpoint 1", "0x00100036"]);
    let tlb = [
        "0000000000000000: 0000000000000000 --P-A---W",
        "0000000000400000: 0000000000000000 -------U-",
    ];
    contains_in_order(said, &tlb);
}

#[test]
fn gdb_reaches_a_machine_by_tcp() {
    let directory = Directory::new();
    let image = image(&directory);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = format!("127.0.0.1:{port}");
    let mut child = machine(&image, &format!("tcp:{place}"), "auto").spawn().unwrap();
    wait_until("nobody listens", || std::net::TcpStream::connect(&place).ok());
    let script = [&SCRIPT[..], &["kill"]].concat();
    assert_debugged(&said(&gdb(&place, &script).output().unwrap()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A machine of QEMU's options waits for GDB, and one that runs lets GDB in when a tool says so.
#[test]
fn gdb_is_let_in_by_qemus_options_and_later() {
    let directory = Directory::new();
    let image = image(&directory);
    let place = |name: &str| format!("unix:{}", directory.path(name).display());
    let mut waiting = ring3();
    waiting.args(["qemu", "-display", "none", "-serial", "null", "-S", "-gdb", &place("waiting")]);
    let mut running = ring3();
    running.args(["run", "--serial", "null", "--qmp", &place("qmp"), "--kernel"]);
    let machines = [waiting.arg("-kernel"), &mut running];
    let mut children = machines.map(|machine| machine.arg(&image).spawn().unwrap());
    let mut qmp = Qmp::connect(&directory.path("qmp"));
    let mut tell = |line: &str| {
        let said = qmp.done("human-monitor-command", json!({"command-line": line}));
        said.as_str().unwrap().to_owned()
    };
    let line = format!("gdbserver {}", place("running"));
    assert!(tell(&line).contains("Waiting for gdb"));
    wait_until("the guest is not in its loop", || {
        tell("info registers").contains("eip 00100036").then_some(())
    });
    tell("gdbserver none");
    assert!(!directory.path("running").exists());
    assert!(tell(&line).contains("Waiting for gdb"));
    let debug = |name: &str, script: &[&str]| {
        let socket = directory.path(name);
        wait_until("nobody listens for gdb", || listens(&socket).then_some(()));
        said(&gdb(&socket.display().to_string(), &[script, &["kill"]].concat()).output().unwrap())
    };
    assert_debugged(&debug("waiting", &SCRIPT));
    contains_in_order(&debug("running", &["p/x $eip"]), &["= 0x100036"]);
    for child in &mut children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn gdb_starts_a_machine_and_talks_to_it_by_its_standard_input() {
    let directory = Directory::new();
    let machine = machine(&image(&directory), "stdio", "auto");
    let words = std::iter::once(machine.get_program()).chain(machine.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let script = [&SCRIPT[..], &["kill"]].concat();
    let output = gdb(&format!("| {}", words.join(" ")), &script).output().unwrap();
    assert_debugged(&said(&output));
}

/// Ctrl-C in GDB, which is a signal to it, stops a guest that runs; it goes on afterwards, and can be stopped again.
fn is_interrupted(engine: &str) {
    let directory = Directory::new();
    let (socket, qmp) = (directory.path("gdb"), directory.path("qmp"));
    let mut machine = machine(&image(&directory), &format!("unix:{}", socket.display()), engine);
    machine.arg("--qmp").arg(format!("unix:{}", qmp.display()));
    let mut child = machine.spawn().unwrap();
    wait_until("nobody listens for gdb", || listens(&socket).then_some(()));
    let script = ["continue", "p/x $eip", "continue", "p/x $cr3", "kill"];
    let gdb: Child = gdb(&socket.display().to_string(), &script).spawn().unwrap();
    let id = Pid::from_child(&gdb);
    let mut qmp = Qmp::connect(&qmp);
    for _ in 0..2 {
        qmp.event("RESUME");
        // The guest has long come to its loop when GDB waits.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(qmp.done("query-status", json!({}))["status"], "running");
        kill_process(id, Signal::INT).unwrap();
        qmp.event("STOP");
    }
    let said = said(&gdb.wait_with_output().unwrap());
    contains_in_order(&said, &["SIGINT", "= 0x100036", "SIGINT", "= 0x180000"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn gdb_interrupts_a_guest_in_the_translator() {
    is_interrupted("translator");
}

#[test]
fn gdb_interrupts_a_guest_in_the_interpreter() {
    is_interrupted("interpreter");
}
