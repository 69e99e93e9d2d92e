//! Signals: those that end a run, and the one at which its last seconds are written. The machine ends in good order
//! first, so that counters are printed, a recording is complete, and clients are told.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use ring3_display::tty;
use ring3_vm::{Control, Occasion};
use signal_hook::consts::SIGUSR2;
use tracing::error;

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

/// Makes SIGUSR2 write the last seconds of the run of the machine behind `control` from now on.
pub(crate) fn write_last(control: Control) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGUSR2])?;
    thread::Builder::new().name("last-seconds".into()).spawn(move || {
        for _ in signals.forever() {
            match control.keep_last(None) {
                Ok(kept) => kept.say(&Occasion::Asked(None)),
                Err(error) => error!("{error}"),
            }
        }
    })?;
    Ok(())
}
