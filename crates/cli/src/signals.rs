//! Signals that end a run. The machine ends in good order first, so that counters are printed, a recording is
//! complete, and clients are told.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use ring3_display::tty;
use ring3_vm::Control;

/// The signal that has ended the run, if one has.
#[derive(Debug, Default)]
pub(crate) struct Signals(Arc<AtomicI32>);

impl Signals {
    /// Makes the signals that end a process end the machine behind `control` from now on.
    pub(crate) fn end(control: Control) -> io::Result<Signals> {
        let signals = Signals::default();
        let came = signals.0.clone();
        tty::end_in_order(move |signal| {
            came.store(signal, Ordering::Relaxed);
            control.quit_by_signal();
        })?;
        Ok(signals)
    }

    /// Returns the signal that has arrived, if any.
    pub(crate) fn come(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}
