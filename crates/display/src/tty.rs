//! The terminal in raw mode: every key comes at once and as it is, and what
//! the guest sends is shown as it is. Or, full screen, the terminal's second screen in that mode, so that
//! what was on it before is there again afterwards.
//!
//! Whoever leaves a terminal in raw mode leaves its owner with a shell that
//! does not echo. So it is restored on every way out: the end of the run (the
//! guard is dropped), a panic (before its message is printed), and the signals that
//! end a process.
//!
//! Whoever has something to finish when such a signal comes says so by [`end_in_order`].

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::termios::{self, OptionalActions, Termios};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// What it takes to restore the terminal.
struct Before {
    attributes: Termios,
    /// Messages for standard error while the guest's screen fills the terminal; they are shown afterwards.
    held_back: Option<Vec<u8>>,
}

/// How the terminal was before raw mode; nothing when it is not in raw mode.
static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

/// So many bytes of messages are held back; what comes after them is lost.
const MOST_HELD_BACK: usize = 64 * 1024;

/// Changes to the terminal's second screen, and clears it: the "alternate screen buffer" of xterm's control
/// sequences (private mode 1049).
const ENTER_FULL_SCREEN: &[u8] = b"\x1b[?1049h\x1b[2J";
/// Default colours, a visible cursor, and back to the first screen.
const LEAVE_FULL_SCREEN: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

fn before() -> MutexGuard<'static, Option<Before>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The terminal at standard input is in raw mode as long as this lives.
#[derive(Debug)]
#[must_use = "the terminal is restored when this is dropped"]
pub struct RawMode(());

impl RawMode {
    /// Puts the terminal at standard input into raw mode. When that is no terminal
    /// nothing changes and there is no guard.
    pub fn enter() -> io::Result<Option<RawMode>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        enter(None).map(Some)
    }

    /// Puts the terminal at standard input and output into raw mode and changes to its second screen. What is
    /// written to [`Stderr`] is held back until the end.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] when either is no terminal.
    pub fn enter_full_screen() -> io::Result<RawMode> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "standard input and output are not both a terminal",
            ));
        }
        let guard = enter(Some(Vec::new()))?;
        write_to_stdout(ENTER_FULL_SCREEN)?;
        Ok(guard)
    }
}

fn enter(held_back: Option<Vec<u8>>) -> io::Result<RawMode> {
    if !HANDLES_SIGNALS.swap(true, Ordering::Relaxed) {
        handle_signals(None)?;
    }
    let attributes = termios::tcgetattr(io::stdin())?;
    let mut raw = attributes.clone();
    raw.make_raw();
    *before() = Some(Before { attributes, held_back });
    let guard = RawMode(());
    termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
    Ok(guard)
}

/// Writes without [`io::stdout`], whose lock whoever is just drawing holds.
fn write_to_stdout(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(io::stdout(), bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it is in raw mode.
fn restore() {
    let Some(Before { attributes, held_back }) = before().take() else { return };
    // When any of this fails the terminal is gone, and there is nothing to restore.
    if held_back.is_some() {
        let _ = write_to_stdout(LEAVE_FULL_SCREEN);
    }
    let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &attributes);
    if let Some(messages) = held_back {
        let _ = io::stderr().write_all(&messages);
    }
}

/// A thread handles the signals that end a process.
static HANDLES_SIGNALS: AtomicBool = AtomicBool::new(false);

/// How long the process may take to end in order.
const PATIENCE: Duration = Duration::from_secs(10);

/// What has the process end when a signal has come, whose number it is given.
type Orderly = Box<dyn FnOnce(i32) + Send>;

/// Has SIGHUP, SIGINT and SIGTERM call `end` and not end the process, which then is to end soon, by [`die_of`] the signal perhaps. A second signal
/// ends it at once, and so does SIGQUIT; and after ten seconds it dies of the first one. What the process was started to ignore is
/// ignored. To be called once, and before a terminal is put into raw mode.
///
/// # Errors
///
/// Where the system has no thread or no descriptors for it.
pub fn end_in_order(end: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    HANDLES_SIGNALS.store(true, Ordering::Relaxed);
    handle_signals(Some(Box::new(end)))
}

/// Has a thread restore the terminal when a signal is about to end the process.
/// The process then dies of that signal, as its parent expects.
fn handle_signals(mut orderly: Option<Orderly>) -> io::Result<()> {
    let ignored = ignored_signals();
    let handled = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    let mut signals = Signals::new(handled.iter().filter(|signal| !is_in(ignored, **signal)))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            match orderly.take() {
                Some(end) if signal != SIGQUIT => {
                    end(signal);
                    let late = move || {
                        thread::sleep(PATIENCE);
                        die_of(signal);
                    };
                    // Without that thread a second signal is needed.
                    let _ = thread::Builder::new().name("late".into()).spawn(late);
                }
                _ => die_of(signal),
            }
        }
    })?;
    Ok(())
}

/// Restores the terminal and ends the process as `signal` does by itself, one of those that end a process.
pub fn die_of(signal: i32) {
    restore();
    // It fails for signals without a default action only.
    let _ = low_level::emulate_default_handler(signal);
}

/// The signals that are ignored (proc_pid_status(5), "SigIgn"), number 1 in bit 0: nohup ignores SIGHUP, and shells ignore SIGINT in
/// the background of scripts. None where that cannot be read.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 != 0
}

/// Makes panic messages readable: in raw mode their lines would run off the screen.
pub fn restore_before_panic_message() {
    let print_message = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print_message(panic);
    }));
}

/// Standard error, whose lines start at the left also while the terminal is in raw mode.
#[derive(Debug, Clone, Copy)]
pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut before = before();
        let raw = before.is_some();
        if let Some(Before { held_back: Some(held_back), .. }) = &mut *before
            && io::stderr().is_terminal()
        {
            hold_back(held_back, bytes);
            return Ok(bytes.len());
        }
        drop(before);
        let mut stderr = io::stderr().lock();
        if raw && stderr.is_terminal() {
            stderr.write_all(&with_carriage_returns(bytes))?;
        } else {
            stderr.write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// True when standard error is a terminal, so that colours can be shown.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

fn hold_back(held_back: &mut Vec<u8>, bytes: &[u8]) {
    let room = MOST_HELD_BACK.saturating_sub(held_back.len());
    held_back.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn with_carriage_returns(text: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(text.len() + 16);
    for byte in text {
        if *byte == b'\n' {
            lines.push(b'\r');
        }
        lines.push(*byte);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_held_back_up_to_a_limit() {
        let mut held_back = Vec::new();
        hold_back(&mut held_back, b"first\n");
        assert_eq!(held_back, b"first\n");
        for _ in 0..100 {
            hold_back(&mut held_back, &[b'x'; 1000]);
        }
        assert_eq!(held_back.len(), MOST_HELD_BACK);
    }

    #[test]
    fn lines_start_at_the_left() {
        assert_eq!(with_carriage_returns(b"a\nb\n"), b"a\r\nb\r\n");
        assert_eq!(with_carriage_returns(b""), b"");
    }
}
