//! The terminal in raw mode: every key comes at once and as it is, and what
//! the guest sends is shown as it is.
//!
//! Whoever leaves a terminal in raw mode leaves its owner with a shell that
//! does not echo. So it is restored on every way out: the end of the run (the
//! guard is dropped), a panic (before its message is printed), and the signals that
//! end a process.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::termios::{self, OptionalActions, Termios};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// How the terminal was before raw mode; nothing when it is not in raw mode.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The terminal at standard input is in raw mode as long as this lives.
#[derive(Debug)]
pub(crate) struct RawMode(());

impl RawMode {
    /// Puts the terminal at standard input into raw mode. When that is no terminal
    /// nothing changes and there is no guard.
    pub(crate) fn enter() -> io::Result<Option<RawMode>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        restore_at_signals()?;
        let attributes = termios::tcgetattr(io::stdin())?;
        let mut raw = attributes.clone();
        raw.make_raw();
        *before() = Some(attributes);
        let guard = RawMode(());
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Some(guard))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it is in raw mode.
fn restore() {
    if let Some(attributes) = before().take() {
        // When this fails the terminal is gone, and there is nothing to restore.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &attributes);
    }
}

/// Has a thread restore the terminal when a signal is about to end the process.
/// The process then dies of that signal, as its parent expects.
fn restore_at_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            restore();
            // It fails for signals without a default action only; these four have one.
            let _ = low_level::emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

/// Makes panic messages readable: in raw mode their lines would run off the screen.
pub(crate) fn restore_before_panic_message() {
    let print_message = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print_message(panic);
    }));
}

/// Standard error, whose lines start at the left also while the terminal is in raw mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let raw = before().is_some();
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
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
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
    fn lines_start_at_the_left() {
        assert_eq!(with_carriage_returns(b"a\nb\n"), b"a\r\nb\r\n");
        assert_eq!(with_carriage_returns(b""), b"");
    }
}
