//! The program at a terminal: a pseudoterminal whose other end this test holds.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, Termios, tcgetattr};

use crate::support::{Directory, PATIENCE, kernel, pty, ring3, wait_until};

/// A guest that echoes its input on COM1 (3F8h, status at 3FDh).
pub(crate) const ECHO: &[u8] = &[
    0x66, 0xba, 0xfd, 0x03, // 00: MOV DX, 3FDh
    0xec, //                   04: IN AL, DX
    0xa8, 0x01, //             05: TEST AL, 1      (a byte has come)
    0x74, 0xf7, //             07: JZ 00
    0x66, 0xba, 0xf8, 0x03, // 09: MOV DX, 3F8h
    0xec, //                   0D: IN AL, DX
    0xee, //                   0E: OUT DX, AL
    0xeb, 0xef, //             0F: JMP 00
];

/// The program at a terminal of its own.
struct Session {
    ours: File,
    theirs: File,
    before: Termios,
    child: Child,
    _directory: Directory,
}

impl Session {
    fn start() -> Session {
        let (ours, theirs) = pty::open();
        let before = tcgetattr(&theirs).expect("it is a terminal");
        let directory = Directory::new();
        let kernel = directory.file("kernel", &kernel(ECHO));
        let at_terminal = || Stdio::from(theirs.try_clone().expect("descriptors are left"));
        let child = ring3()
            .args(["run", "--memory=2M", "--kernel"])
            .arg(kernel)
            .stdin(at_terminal())
            .stdout(at_terminal())
            .stderr(at_terminal())
            .spawn()
            .expect("the program starts");
        Session { ours, theirs, before, child, _directory: directory }
    }

    fn type_keys(&mut self, keys: &[u8]) {
        self.ours.write_all(keys).expect("the terminal takes keys");
    }

    /// Reads the output until `wanted` is on the screen, and returns all of it.
    fn wait_for(&mut self, wanted: &str) -> String {
        let patience = Timespec::try_from(PATIENCE).expect("minutes are a time");
        let mut shown = Vec::new();
        let mut buffer = [0; 256];
        while !String::from_utf8_lossy(&shown).contains(wanted) {
            let mut screen = [PollFd::new(&self.ours, PollFlags::IN)];
            let ready = poll(&mut screen, Some(&patience)).expect("the terminal is there");
            assert_eq!(ready, 1, "{wanted:?} is not shown, but {shown:?}");
            let length = self.ours.read(&mut buffer).expect("the terminal shows");
            shown.extend(&buffer[..length]);
        }
        String::from_utf8_lossy(&shown).into_owned()
    }

    fn wait_for_raw_mode(&self) {
        wait_until("the terminal is not put into raw mode", || {
            let echoes = self.attributes().local_modes.contains(LocalModes::ECHO);
            (!echoes).then_some(())
        });
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        let ended = || self.child.try_wait().expect("it is our child");
        wait_until("the program does not end", ended)
    }

    fn attributes(&self) -> Termios {
        tcgetattr(&self.theirs).expect("it is a terminal")
    }

    #[track_caller]
    fn assert_restored(&self) {
        let (now, before) = (self.attributes(), &self.before);
        assert_eq!(now.local_modes, before.local_modes);
        assert_eq!(now.input_modes, before.input_modes);
        assert_eq!(now.output_modes, before.output_modes);
        assert_eq!(now.control_modes, before.control_modes);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The program has ended already unless an assertion failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_reach_the_guest_and_the_escape_key_ends_the_run() {
    let mut session = Session::start();
    session.wait_for_raw_mode();
    session.type_keys(b"a\x03b\x01\x01c");
    session.wait_for("a\x03b\x01c");
    session.type_keys(b"\x01h");
    let help = session.wait_for("list these keys\r\n");
    assert!(help.contains("\r\n  Ctrl-A x "), "{help:?}");
    session.type_keys(b"\x01x");
    let status = session.wait_for_end();
    assert_eq!(status.code(), Some(0));
    session.assert_restored();
}

#[test]
fn signals_restore_the_terminal_and_end_the_program() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut session = Session::start();
        session.wait_for_raw_mode();
        kill_process(Pid::from_child(&session.child), signal).expect("the program runs");
        let status = session.wait_for_end();
        assert_eq!(status.signal(), Some(signal.as_raw()));
        session.assert_restored();
    }
}
