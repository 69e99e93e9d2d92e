//! Signals that end a run: the machine ends in good order first, so that counters are printed, a recording is whole, and clients
//! are told.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use ring3_display::tty;
use ring3_vm::Control;

/// The signal that has ended the run, once one has.
#[derive(Debug, Default)]
pub(crate) struct Signals(Arc<AtomicI32>);

impl Signals {
    /// Has the signals that end a process end the machine behind `control` from now on.
    pub(crate) fn end(control: Control) -> io::Result<Signals> {
        let signals = Signals::default();
        let came = signals.0.clone();
        tty::end_in_order(move |signal| {
            came.store(signal, Ordering::Relaxed);
            control.quit_by_signal();
        })?;
        Ok(signals)
    }

    /// The signal that has come.
    pub(crate) fn come(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}
