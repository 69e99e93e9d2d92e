//! The processes that a measurement starts. They end with it, also when a signal ends it.

use std::io;
use std::mem;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ring3_display::tty;
use rustix::process::{Pid, Signal, kill_process};

use super::peer::children;

/// Held while a process is started and, for ever, while all are ended.
static STARTING: Mutex<()> = Mutex::new(());

fn starting() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process.
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _starting = starting();
    command.spawn()
}

/// Lets the signals that end this process end all that it has started first, from now on.
pub(super) fn end_with_this_process() -> io::Result<()> {
    tty::end_in_order(|signal| {
        // What failed because of its end must not be tried again.
        mem::forget(starting());
        end_descendants(std::process::id());
        tty::die_of(signal);
    })
}

/// Ends what the process `id` has started. A group of processes of its own would end at once, but no longer
/// by keys of the user's terminal.
pub(super) fn end_descendants(id: u32) {
    for child in children(id).unwrap_or_default() {
        end_descendants(child);
        if let Some(child) = Pid::from_raw(child as i32) {
            // It may have ended by itself.
            let _ = kill_process(child, Signal::KILL);
        }
    }
}
