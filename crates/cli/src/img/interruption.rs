//! What a signal leaves: nothing that is not whole.

use std::fs;
use std::thread;

use ring3_block::abandon_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Has images that are not whole removed when a signal ends this process, which it does all the same.
pub(super) fn prepare() -> Result<(), String> {
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals =
        Signals::new(wanted).map_err(|error| format!("signals cannot be taken: {error}"))?;
    let wait = move || {
        for signal in signals.forever() {
            abandon_unfinished();
            // It comes back for signals alone that end nothing.
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map(|_| ())
        .map_err(|error| format!("no thread can be started: {error}"))
}

/// Who has started this process wants it to outlive the signal: nohup(1).
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}
