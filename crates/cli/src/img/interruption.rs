//! Signals: the program leaves no incomplete image behind.

use std::fs;
use std::thread;

use ring3_block::abandon_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Makes a signal that ends the process remove its incomplete images first.
pub(super) fn prepare() -> Result<(), String> {
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals =
        Signals::new(wanted).map_err(|error| format!("cannot handle signals: {error}"))?;
    let wait = move || {
        for signal in signals.forever() {
            abandon_unfinished();
            // This returns only for signals that do not end the process.
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map(|_| ())
        .map_err(|error| format!("cannot start a thread: {error}"))
}

/// Returns whether the process ignores the signal, since its parent wants it to survive it: nohup(1).
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}
