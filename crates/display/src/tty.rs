//! The terminal in raw mode, in which every key arrives at once and unchanged, and the guest's output is
//! shown unchanged. For the full screen it is the terminal's second screen in that mode, so that the first
//! one is intact afterwards.
//!
//! A program that leaves a terminal in raw mode leaves its owner with a shell that does not echo. So the
//! terminal is restored on every way out: the end of the run (the guard is dropped), a panic (before its
//! message is printed), and the signals that end a process.
//!
//! A program that must finish some work when such a signal arrives calls [`end_in_order`].

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

/// The state to which the terminal is restored.
struct Before {
    attributes: Termios,
    /// Messages for standard error that wait while the guest's screen fills the terminal; they are shown
    /// afterwards.
    held_back: Option<Vec<u8>>,
}

/// The state of the terminal before raw mode, or None when it is not in raw mode.
static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

/// The most bytes of messages that are held back; later messages are lost.
const MOST_HELD_BACK: usize = 64 * 1024;

/// Changes to the terminal's second screen and clears it: the "alternate screen buffer" of xterm's control
/// sequences (private mode 1049).
const ENTER_FULL_SCREEN: &[u8] = b"\x1b[?1049h\x1b[2J";
/// Restores the default colours, the cursor and the first screen.
const LEAVE_FULL_SCREEN: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

fn before() -> MutexGuard<'static, Option<Before>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the terminal at standard input in raw mode as long as it lives.
#[derive(Debug)]
#[must_use = "the terminal is restored when this is dropped"]
pub struct RawMode(());

impl RawMode {
    /// Puts the terminal at standard input into raw mode. If standard input is no terminal, nothing changes
    /// and there is no guard.
    pub fn enter() -> io::Result<Option<RawMode>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        enter(None).map(Some)
    }

    /// Puts the terminal at standard input and output into raw mode and changes to its second screen. Output
    /// to [`Stderr`] is held back until the end.
    ///
    /// # Errors
    ///
    /// Returns [`io::ErrorKind::NotFound`] if either is no terminal.
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

/// Writes to standard output without [`io::stdout`], since a thread that is drawing may hold its lock.
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
    // If any of this fails, the terminal is gone and there is nothing to restore.
    if held_back.is_some() {
        let _ = write_to_stdout(LEAVE_FULL_SCREEN);
    }
    let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &attributes);
    if let Some(messages) = held_back {
        let _ = io::stderr().write_all(&messages);
    }
}

/// Whether a thread handles the signals that end a process.
static HANDLES_SIGNALS: AtomicBool = AtomicBool::new(false);

/// How long the process may take to end in order.
const PATIENCE: Duration = Duration::from_secs(10);

/// Signals that arrive within this time of the first one belong to the same request: timeout(1) signals its
/// command and then the command's process group, and a terminal that is closed does so by way of the shell and
/// of the kernel.
const ONE_REQUEST: Duration = Duration::from_millis(50);

/// The function that makes the process end after a signal, whose number is its argument.
type Orderly = Box<dyn FnOnce(i32) + Send>;

/// Makes SIGHUP, SIGINT and SIGTERM call `end` instead of ending the process, which should then end soon, for
/// example with [`die_of`]. A later signal ends the process at once, and so does SIGQUIT; after ten seconds it
/// dies of the first signal. Signals that the process was started to ignore stay ignored. Call this once,
/// before a terminal is put into raw mode.
///
/// # Errors
///
/// Fails if the system has no thread or no descriptors for it.
pub fn end_in_order(end: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    HANDLES_SIGNALS.store(true, Ordering::Relaxed);
    handle_signals(Some(Box::new(end)))
}

/// Starts a thread that restores the terminal when a signal is about to end the process. The process then
/// dies of that signal, as its parent expects.
fn handle_signals(mut orderly: Option<Orderly>) -> io::Result<()> {
    let ignored = ignored_signals();
    let handled = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    let mut signals = Signals::new(handled.iter().filter(|signal| !is_in(ignored, **signal)))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        while let Some(signal) = signals.wait().next() {
            match orderly.take() {
                Some(end) if signal != SIGQUIT => {
                    end(signal);
                    let late = move || {
                        thread::sleep(PATIENCE);
                        die_of(signal);
                    };
                    // Without that thread the process needs a second signal.
                    let _ = thread::Builder::new().name("late".into()).spawn(late);
                    thread::sleep(ONE_REQUEST);
                    if signals.pending().any(|signal| signal == SIGQUIT) {
                        die_of(SIGQUIT);
                    }
                }
                _ => die_of(signal),
            }
        }
    })?;
    Ok(())
}

/// Restores the terminal and ends the process as `signal` does by default. It must be a signal that ends a
/// process.
pub fn die_of(signal: i32) {
    restore();
    // This fails only for signals without a default action.
    let _ = low_level::emulate_default_handler(signal);
}

/// Returns the signals that are ignored (proc_pid_status(5), "SigIgn"), number 1 in bit 0. nohup ignores
/// SIGHUP, and shells ignore SIGINT in the background of scripts. Returns none if the file cannot be read.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 != 0
}

/// Makes panic messages readable, whose lines would run off the screen in raw mode.
pub fn restore_before_panic_message() {
    let print_message = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print_message(panic);
    }));
}

/// Standard error, whose lines start at the left even while the terminal is in raw mode.
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

/// Returns whether standard error is a terminal, so that colours can be shown.
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
