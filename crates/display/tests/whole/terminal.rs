//! Tests the terminal display in a pseudoterminal, by the screen that a terminal emulator shows.
//!
//! The display uses the standard input and output of its process, so it runs in a process of its own: this
//! test program once more, as [`the_display`].

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::display::{Picture, Pixels};
use ring3_core::input::DeviceInput;
use ring3_display::terminal::{self, Ending};
use ring3_display::{Ended, Machine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{PATIENCE, text};

/// An environment variable that is set for the display's process.
const IS_DISPLAY: &str = "RING3_TEST_TERMINAL_DISPLAY";

/// A machine that shows the keys it was sent. F1 selects its graphics mode, F2 ends it, and F3 makes it
/// panic.
#[derive(Default)]
struct Echo {
    codes: Mutex<Vec<String>>,
}

impl Machine for Echo {
    fn picture(&self) -> Result<Option<Picture>, Ended> {
        let codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        match codes.last().map(String::as_str) {
            Some("3b") => {
                let colours = vec![0x00ff00; 640 * 480];
                Ok(Some(Picture::Pixels(Pixels { width: 640, height: 480, colours })))
            }
            Some("3c") => Err(Ended),
            Some("3d") => panic!("this was wanted"),
            _ => {
                let mut screen = text(&["\x01 ring3", &codes.join(" ")]);
                screen.cells[2].character = 0xe1;
                screen.cells[24 * 80].character = b'Z';
                Ok(Some(Picture::Text(screen)))
            }
        }
    }

    fn send(&self, input: DeviceInput) {
        if let DeviceInput::Key { key, pressed: true } = input {
            let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
            codes.push(format!("{:x}", key.0));
        }
    }
}

/// Tests nothing by itself: it is the display that the other tests examine.
#[test]
fn the_display() {
    if std::env::var_os(IS_DISPLAY).is_none() {
        return;
    }
    ring3_display::tty::restore_before_panic_message();
    let ending = terminal::run(&Echo::default()).expect("there is a terminal");
    std::process::exit(if ending == Ending::Quit { 10 } else { 11 });
}

/// A display at a terminal of its own, and our end of that terminal.
struct Session {
    ours: File,
    theirs: File,
    before: Termios,
    child: Child,
    emulator: vt100::Parser,
}

impl Session {
    fn start(rows: u16, columns: u16, environment: &[(&str, &str)]) -> Session {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudoterminal");
        grantpt(&ours).expect("a terminal of our own");
        unlockpt(&ours).expect("a terminal of our own");
        let name = ptsname(&ours, Vec::new()).expect("a terminal has a name");
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
            .expect("the terminal opens");
        let theirs = File::from(theirs);
        let before = tcgetattr(&theirs).expect("it is a terminal");
        let at_terminal = || Stdio::from(theirs.try_clone().expect("descriptors are left"));
        let program = std::env::current_exe().expect("this program has a path");
        set_size(&theirs, rows, columns);
        let child = Command::new(program)
            .args(["--exact", "terminal::the_display", "--nocapture"])
            .env(IS_DISPLAY, "1")
            .env("TERM", "xterm-256color")
            .env_remove("COLORTERM")
            .env_remove("RUST_BACKTRACE")
            .envs(environment.iter().copied())
            .stdin(at_terminal())
            .stdout(at_terminal())
            .stderr(at_terminal())
            .spawn()
            .expect("the program starts");
        let emulator = vt100::Parser::new(cells(rows), cells(columns), 0);
        Session { ours: File::from(ours), theirs, before, child, emulator }
    }

    fn type_keys(&mut self, keys: &[u8]) {
        self.ours.write_all(keys).expect("the terminal takes keys");
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        set_size(&self.theirs, rows, columns);
        self.emulator.screen_mut().set_size(cells(rows), cells(columns));
        // The terminal does not control the process, so its signal is not sent by itself.
        kill_process(Pid::from_child(&self.child), Signal::WINCH).expect("the program runs");
    }

    /// Processes the display's output until the screen is as `wanted`.
    fn wait_until(&mut self, what: &str, wanted: impl Fn(&vt100::Screen) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = [0; 4096];
        while !wanted(self.emulator.screen()) {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("a minute is a time");
            let mut screen = [PollFd::new(&self.ours, PollFlags::IN)];
            let ready = poll(&mut screen, Some(&left)).expect("the terminal is there");
            assert_eq!(ready, 1, "{what} is not shown, but\n{}", self.emulator.screen().contents());
            let length = self.ours.read(&mut buffer).expect("the terminal shows");
            self.emulator.process(&buffer[..length]);
        }
    }

    fn wait_for(&mut self, text: &str) {
        self.wait_until(text, |screen| screen.contents().contains(text));
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that the terminal has its modes, its first screen and its cursor again.
    fn assert_restored(&mut self) {
        self.wait_until("the first screen", |screen| !screen.alternate_screen());
        assert!(!self.emulator.screen().hide_cursor());
        let now = tcgetattr(&self.theirs).expect("it is a terminal");
        assert_eq!(now.local_modes, self.before.local_modes);
        assert_eq!(now.input_modes, self.before.input_modes);
        assert_eq!(now.output_modes, self.before.output_modes);
        assert!(now.local_modes.contains(LocalModes::ECHO));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The process has already ended unless an assertion failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a terminal has some")
}

fn set_size(terminal: &File, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a terminal has a size");
}

fn row(screen: &vt100::Screen, row: u16) -> String {
    let (_, columns) = screen.size();
    screen.contents_between(row, 0, row, columns.into())
}

#[test]
fn the_screen_of_the_machine_is_that_of_the_terminal() {
    let mut session = Session::start(25, 80, &[]);
    session.wait_for("☺ ßing3");
    session.wait_until("the cursor", |screen| screen.cursor_position() == (1, 0));
    let screen = session.emulator.screen();
    assert!(screen.alternate_screen());
    assert!(!screen.hide_cursor());
    assert_eq!(row(screen, 24).trim_end(), "Z");
    let cell = screen.cell(0, 3).expect("it is on the screen");
    assert_eq!(cell.fgcolor(), vt100::Color::Idx(11), "bright yellow");
    assert_eq!(cell.bgcolor(), vt100::Color::Idx(4), "blue");
    let corner = screen.cell(24, 79).expect("it is on the screen");
    assert_eq!(corner.bgcolor(), vt100::Color::Idx(4), "the guest's background, everywhere");

    session.type_keys(b"\x01x");
    assert_eq!(session.wait_for_end().code(), Some(10));
    session.assert_restored();
}

#[test]
fn colours_are_the_guests_own_where_the_terminal_has_them() {
    let mut session = Session::start(25, 80, &[("COLORTERM", "truecolor")]);
    session.wait_for("☺ ßing3");
    let cell = session.emulator.screen().cell(0, 3).expect("it is on the screen");
    assert_eq!(cell.fgcolor(), vt100::Color::Rgb(0xff, 0xff, 0x55));
    assert_eq!(cell.bgcolor(), vt100::Color::Rgb(0, 0, 0xaa));
}

#[test]
fn keys_go_to_the_machine() {
    let mut session = Session::start(25, 80, &[]);
    session.wait_for("☺");
    session.type_keys(b"aB");
    session.wait_for("1e 2a 30");
    // Cursor up, F10, Ctrl-C, Alt-b, Enter.
    session.type_keys(b"\x1b[A\x1b[21~\x03\x1bb\r");
    session.wait_for("e048 44 1d 2e 38 30 1c");
    // Ctrl-A twice sends one to the guest; Ctrl-A d is Ctrl-Alt-Delete.
    session.type_keys(b"\x01\x01");
    session.wait_for("1c 1d 1e");
    session.type_keys(b"\x01d");
    session.wait_for("1e 1d 38 e053");
}

#[test]
fn help_is_shown_until_the_next_key() {
    let mut session = Session::start(25, 80, &[]);
    session.wait_for("☺");
    session.type_keys(b"\x01h");
    session.wait_for("end the run");
    session.wait_for("Ctrl-Alt-Delete");
    session.type_keys(b"a");
    session.wait_for("1e");
    session.wait_until("no help", |screen| !screen.contents().contains("Ctrl-Alt-Delete"));
}

#[test]
fn a_small_terminal_shows_a_part_and_a_note() {
    let mut session = Session::start(10, 40, &[]);
    session.wait_for("80x25 characters in 40x10");
    assert!(row(session.emulator.screen(), 0).contains("☺"));
    // Ctrl-A and cursor down moves over the screen.
    for _ in 0..5 {
        session.type_keys(b"\x01\x1b[B");
    }
    session.wait_until("the last row", |screen| row(screen, 9).contains('Z'));
    session.resize(25, 80);
    session.wait_until("all of it", |screen| {
        row(screen, 24).contains('Z') && row(screen, 0).contains("☺")
    });
}

#[test]
fn graphics_are_blocks_of_colour() {
    let mut session = Session::start(24, 80, &[("COLORTERM", "truecolor")]);
    session.wait_for("☺");
    session.type_keys(b"\x1bOP");
    session.wait_for("graphics mode 640x480");
    session.wait_until("green", |screen| {
        let cell = screen.cell(0, 0).expect("it is on the screen");
        cell.contents() == "▀" && cell.fgcolor() == vt100::Color::Rgb(0, 0xff, 0)
    });
    let beside = session.emulator.screen().cell(0, 79).expect("it is on the screen");
    assert_ne!(beside.contents(), "▀", "80 by 48 blocks have room for 64 by 48");
}

#[test]
fn the_display_ends_with_the_machine() {
    let mut session = Session::start(25, 80, &[]);
    session.wait_for("☺");
    session.type_keys(b"\x1bOQ");
    assert_eq!(session.wait_for_end().code(), Some(11));
    session.assert_restored();
}

#[test]
fn signals_and_panics_restore_the_terminal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut session = Session::start(25, 80, &[]);
        session.wait_for("☺");
        kill_process(Pid::from_child(&session.child), signal).expect("the program runs");
        assert_eq!(session.wait_for_end().signal(), Some(signal.as_raw()));
        session.assert_restored();
    }
    let mut session = Session::start(25, 80, &[]);
    session.wait_for("☺");
    session.type_keys(b"\x1bOR");
    session.wait_for_end();
    session.assert_restored();
    session.wait_for("this was wanted");
}

#[test]
fn without_a_terminal_there_is_an_error() {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new(program)
        .args(["--exact", "terminal::the_display", "--nocapture"])
        .env(IS_DISPLAY, "1")
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("standard input and output are not both a terminal"), "{message}");
}
