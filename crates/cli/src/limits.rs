//! The host's limits on this process (setrlimit(2)): what would end it without a word is told in time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;
use thiserror::Error;

/// What the program takes of addresses at least, and of them for data, in bytes.
const LEAST_ADDRESSES: u64 = 160 * MIB;
const LEAST_DATA: u64 = 24 * MIB;
/// The same beside the memory of a machine: tables, decoded code, the screen's memory, threads and images.
const BESIDE: u64 = 128 * MIB;
const BESIDE_DATA: u64 = 64 * MIB;

const MIB: u64 = 1 << 20;

/// The stack of the thread that does the work: whatever limit is set for the first one, and as much in each run.
const STACK: usize = 8 << 20;

/// Why the program does not start.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the limit of {what} ({command}) is {has} MiB, and {who} needs {needs} MiB: raise it{advice}",
    has = .has / MIB,
    needs = .needs.div_ceil(MIB)
)]
pub(crate) struct TooLow {
    what: &'static str,
    command: &'static str,
    who: &'static str,
    advice: &'static str,
    has: u64,
    needs: u64,
}

/// Looks at the limits for any command.
pub(crate) fn check() -> Result<(), TooLow> {
    compare("the program", "", LEAST_ADDRESSES, LEAST_DATA)
}

/// Looks at those for a machine with so many bytes of memory, which is mapped twice for a moment.
pub(crate) fn check_for_machine(memory_bytes: u64) -> Result<(), TooLow> {
    let addresses = 2 * memory_bytes + BESIDE;
    compare("this machine", ", or give it less memory (-m)", addresses, BESIDE_DATA)
}

fn compare(
    who: &'static str,
    advice: &'static str,
    addresses: u64,
    data: u64,
) -> Result<(), TooLow> {
    for (resource, what, command, needs) in [
        (Resource::As, "addresses", "ulimit -v", addresses),
        (Resource::Data, "data", "ulimit -d", data),
    ] {
        if let Some(has) = getrlimit(resource).current.filter(|has| *has < needs) {
            return Err(TooLow { what, command, who, advice, has, needs });
        }
    }
    Ok(())
}

/// Has writes past the limit of a file's size fail, as those to a full disk do; else they would end the process.
pub(crate) fn let_large_writes_fail() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Does `work` with a stack of its own, and returns what it returns. A panic goes on here.
pub(crate) fn with_stack<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    // The name is that of the first thread, for those who list threads.
    let worker = thread::Builder::new().name("ring3".into()).stack_size(STACK).spawn(work)?;
    Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
