//! Progress in qemu-img's form, `    (12.34/100%)`, for people and for programs that read it.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// A count of bytes that is shown on standard output.
pub(super) struct Bar {
    all: u64,
    shown: bool,
    /// The hundredths of a percent that were shown last.
    last: AtomicU64,
}

/// Returns a bar for `bytes`, which is visible if `shown` says so.
pub(super) fn bar(bytes: u64, shown: bool) -> Bar {
    Bar { all: bytes, shown, last: AtomicU64::new(u64::MAX) }
}

impl Bar {
    /// Shows that `done` bytes are done.
    pub(super) fn set_position(&self, done: u64) {
        let part = u128::from(done) * 10_000 / u128::from(self.all.max(1));
        self.show(part.min(10_000) as u64);
    }

    /// Shows that all bytes are done.
    pub(super) fn finish(&self) {
        self.show(10_000);
        if self.shown {
            // If standard output is closed, nobody wants to see the progress.
            let _ = writeln!(std::io::stdout());
        }
    }

    fn show(&self, part: u64) {
        // In a file, a line for each percent is enough; on a terminal, each hundredth of a percent would be
        // too many.
        let step = if std::io::stdout().is_terminal() { 10 } else { 100 };
        let part = if part == 10_000 { part } else { part / step * step };
        if self.shown && self.last.swap(part, Ordering::Relaxed) != part {
            let _ = write!(std::io::stdout(), "    ({}.{:02}/100%)\r", part / 100, part % 100);
            let _ = std::io::stdout().flush();
        }
    }
}
