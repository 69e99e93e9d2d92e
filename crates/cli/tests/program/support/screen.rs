//! A machine whose screen is in a terminal (`--display terminal`), to read and type at.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{PATIENCE, pty, ring3};

/// The terminal has the size of a PC's text screen.
const ROWS: u16 = 25;
const COLUMNS: u16 = 80;

/// A running machine, and its screen.
pub(crate) struct Screen {
    child: Child,
    terminal: File,
    emulator: vt100::Parser,
    /// All that the program has written.
    written: Vec<u8>,
    deadline: Instant,
}

impl Screen {
    /// Starts a machine, with the options that `add_options` adds.
    pub(crate) fn start(add_options: impl FnOnce(&mut Command)) -> Screen {
        let mut command = ring3();
        command.args(["run", "--display", "terminal"]);
        add_options(&mut command);
        Screen::of(command)
    }

    /// Starts a program in a terminal of its own.
    pub(crate) fn of(mut command: Command) -> Screen {
        let (terminal, theirs) = pty::open();
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).expect("a terminal has a size");
        command.env("TERM", "xterm");
        let at_terminal = || Stdio::from(theirs.try_clone().expect("descriptors are left"));
        let child = command
            .stdin(at_terminal())
            .stdout(at_terminal())
            .stderr(at_terminal())
            .spawn()
            .expect("the program starts");
        let cells = |count| NonZero::new(count).expect("a terminal has some");
        let emulator = vt100::Parser::new(cells(ROWS), cells(COLUMNS), 0);
        Screen {
            child,
            terminal,
            emulator,
            written: Vec::new(),
            deadline: Instant::now() + PATIENCE,
        }
    }

    /// Is patient for `time` more: the guest itself waits so long.
    pub(crate) fn allow(&mut self, time: Duration) {
        self.deadline += time;
    }

    /// Waits until `wanted` is on the screen, and returns the whole screen.
    pub(crate) fn wait_for(&mut self, wanted: &str) -> String {
        self.wait_until(wanted, |shown| shown.contains(wanted))
    }

    /// Waits until `wanted` returns true for the screen, and returns the screen. `what` names the condition.
    pub(crate) fn wait_until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut buffer = [0; 4096];
        loop {
            let shown = self.emulator.screen().contents();
            if wanted(&shown) {
                return shown;
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("minutes are a time");
            let mut ready = [PollFd::new(&self.terminal, PollFlags::IN)];
            let count = poll(&mut ready, Some(&left)).expect("the terminal is there");
            assert_eq!(count, 1, "{what:?} does not come; the screen is\n{shown}");
            // Reading fails when the program has ended.
            let length = self.terminal.read(&mut buffer).unwrap_or_default();
            assert_ne!(length, 0, "{what:?} has not come when the program ended:\n{shown}");
            self.emulator.process(&buffer[..length]);
            self.written.extend(&buffer[..length]);
        }
    }

    /// Takes what the program has written until now: one whose terminal is full waits.
    pub(crate) fn look(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            let mut ready = [PollFd::new(&self.terminal, PollFlags::IN)];
            let count =
                poll(&mut ready, Some(&Timespec::default())).expect("the terminal is there");
            // Reading fails when the program has ended.
            let length = if count == 1 { self.terminal.read(&mut buffer).unwrap_or(0) } else { 0 };
            if length == 0 {
                return;
            }
            self.emulator.process(&buffer[..length]);
            self.written.extend(&buffer[..length]);
        }
    }

    /// Returns all that the program has written to the terminal.
    pub(crate) fn written(&self) -> &[u8] {
        &self.written
    }

    /// Returns the last line of the screen.
    pub(crate) fn last_line(&self) -> String {
        self.emulator.screen().rows(0, COLUMNS).last().unwrap_or_default()
    }

    /// Waits until the program has ended, and returns its status.
    pub(crate) fn status(&mut self) -> Option<i32> {
        let ended = || self.child.try_wait().expect("it is our child");
        let status = super::wait_until("the program does not end", ended);
        let mut buffer = [0; 4096];
        // Reading fails when all has been read.
        while let Ok(length @ 1..) = self.terminal.read(&mut buffer) {
            self.written.extend(&buffer[..length]);
        }
        status.code()
    }

    /// Types `keys`, as a terminal sends them. A keyboard forgets keys while its buffer, of 16 bytes, is full.
    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Types `keys` until the screen shows `wanted`: a terminal that has just found another server may lose the first ones.
    pub(crate) fn type_until(&mut self, keys: &str, wanted: &str) {
        super::wait_until(&format!("{wanted:?} does not come"), || {
            self.type_keys(keys);
            std::thread::sleep(Duration::from_millis(300));
            self.look();
            self.emulator.screen().contents().contains(wanted).then_some(())
        });
    }

    /// Types `line` behind `prompt`, each character when those before it are shown, and Enter.
    pub(crate) fn type_line(&mut self, prompt: &str, line: &str) {
        let mut shown = prompt.to_owned();
        let mut typed = String::new();
        for key in line.chars() {
            // A space cannot be told from what is on an empty screen.
            typed.push(key);
            if key != ' ' {
                self.type_keys(&typed);
                shown += &typed;
                typed.clear();
                self.wait_for(&shown);
            }
        }
        self.type_keys("\r");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The program has ended already if an assertion says so.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
