//! Another machine is loaded into a running one: a debugger and a client of its screen stay connected to it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::json;

use crate::support::guest::Guest;
use crate::support::qmp::Qmp;
use crate::support::{
    Directory, PATIENCE, kernel, listens, output, ring3, system_program, wait_until,
};

/// A kernel that shows a letter, writes to memory, shows another letter, and halts for ever.
#[rustfmt::skip]
const LETTERS: &[u8] = &[
    0xc6, 0x05, 0x00, 0x80, 0x0b, 0x00, 0x41, //                   100000: MOV BYTE [B8000h], 'A'
    0x90, //                                                       100007: NOP
    0xc7, 0x05, 0x00, 0x00, 0x50, 0x00, 0x01, 0x00, 0x00, 0x00, // 100008: MOV DWORD [500000h], 1
    0xc6, 0x05, 0x00, 0x80, 0x0b, 0x00, 0x42, //                   100012: MOV BYTE [B8000h], 'B'
    0xf4, //                                                       100019: HLT
    0xeb, 0xfd, //                                                 10001A: JMP to the HLT
];

/// A client of the screen (RFC 6143).
struct Viewer(UnixStream);

impl Viewer {
    fn connect(socket: &Path) -> Viewer {
        let stream = wait_until("there is no screen", || UnixStream::connect(socket).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut viewer = Viewer(stream);
        assert_eq!(viewer.read(12), b"RFB 003.008\n");
        viewer.0.write_all(b"RFB 003.008\n").unwrap();
        let count = viewer.read(1)[0];
        assert!(viewer.read(count.into()).contains(&1), "it lets everyone in");
        viewer.0.write_all(&[1]).unwrap();
        assert_eq!(viewer.read(4), [0; 4]);
        viewer.0.write_all(&[1]).unwrap();
        let name = viewer.read(24)[20..].try_into().unwrap();
        viewer.read(u32::from_be_bytes(name) as usize);
        viewer
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns the upper left of the screen, with the first character: 16 by 16 pixels of 4 bytes.
    fn letter(&mut self) -> Vec<u8> {
        self.0.write_all(&[3, 0, 0, 0, 0, 0, 0, 16, 0, 16]).unwrap();
        let header = self.read(16);
        assert_eq!(header, [0, 0, 0, 1, 0, 0, 0, 0, 0, 16, 0, 16, 0, 0, 0, 0]);
        self.read(16 * 16 * 4)
    }
}

fn clients_stay(engine: &str) {
    let directory = Directory::new();
    let [gdb, qmp, vnc, saved] = ["gdb", "qmp", "vnc", "saved"].map(|name| directory.path(name));
    let mut machine = ring3();
    machine.args(["run", "--paused", "--engine", engine, "--gdb"]);
    machine.arg(format!("unix:{}", gdb.display()));
    machine.arg("--qmp").arg(format!("unix:{}", qmp.display()));
    machine.arg("--display").arg(format!("vnc:unix:{}", vnc.display()));
    machine.arg("--kernel").arg(directory.file("kernel", &kernel(LETTERS)));
    let machine = Guest::of(machine);
    let mut viewer = Viewer::connect(&vnc);
    wait_until("nobody listens for gdb", || listens(&gdb).then_some(()));
    let mut debugger = system_program("gdb");
    debugger.args(["-nx", "-q", "-ex", "set pagination off", "-ex", "set confirm off"]);
    debugger.args(["-ex", "set architecture i386", "-ex"]);
    debugger.arg(format!("target remote {}", gdb.display()));
    let mut debugger = Guest::of(debugger);
    let load = || output(ring3().args(["snapshot", "load"]).arg(&qmp).arg(&saved));
    debugger.type_line("hbreak *0x100007");
    debugger.type_line("continue");
    debugger.wait_for("Breakpoint 1, 0x00100007");
    let first = viewer.letter();
    output(ring3().args(["snapshot", "save"]).arg(&qmp).arg(&saved));
    // The saved machine stands at the breakpoint.
    debugger.type_line("continue");
    let second = wait_until("the other letter comes", || {
        let letter = viewer.letter();
        (letter != first).then_some(letter)
    });
    load();
    debugger.wait_for("Breakpoint 1, 0x00100007");
    assert!(viewer.letter() == first);
    // Saving does not disturb the debugger's run, and its watchpoint is there in the machine that is loaded.
    debugger.type_line("delete");
    debugger.type_line("awatch *(int *)0x500000");
    debugger.wait_for("watchpoint 2");
    debugger.type_line("set $eip = 0x100012");
    debugger.type_line("continue");
    wait_until("the other letter comes", || (viewer.letter() == second).then_some(()));
    output(ring3().args(["snapshot", "save"]).arg(&qmp).arg(directory.path("another")));
    load();
    debugger.wait_for("watchpoint 2: *(int *)0x500000");
    debugger.type_line("p/x $eip");
    debugger.wait_for("= 0x100012");
    // A step of a processor that halts ends in the other machine.
    debugger.type_line("delete");
    debugger.type_line("set $eip = 0x100019");
    debugger.type_line("stepi");
    debugger.wait_for("0x0010001a in");
    debugger.type_line("stepi");
    let mut client = Qmp::connect(&qmp);
    wait_until("it waits", || {
        (client.done("query-status", json!({}))["status"] == "running").then_some(())
    });
    load();
    debugger.wait_for("0x00100008 in");
    debugger.type_line("kill");
    assert_eq!(machine.wait_for_the_end(), Some(0));
    debugger.type_line("quit");
    assert_eq!(debugger.wait_for_the_end(), Some(0));
}

#[test]
fn clients_stay_when_another_machine_is_loaded_into_the_translator() {
    clients_stay("translator");
}

#[test]
fn clients_stay_when_another_machine_is_loaded_into_the_interpreter() {
    clients_stay("interpreter");
}
