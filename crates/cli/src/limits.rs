//! The host's limits on this process (setrlimit(2)). The program reports in time a limit that would end it
//! without a word.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;
use thiserror::Error;

/// The least address space that the program needs, and the least part of it for data, in bytes.
const LEAST_ADDRESSES: u64 = 160 * MIB;
const LEAST_DATA: u64 = 24 * MIB;
/// The address space and data, beside the memory of a machine, that a run needs: tables, decoded code, the
/// screen's memory, threads and images.
const BESIDE: u64 = 128 * MIB;
const BESIDE_DATA: u64 = 64 * MIB;

const MIB: u64 = 1 << 20;

/// The size of the stack of the thread that does the work. It depends neither on the limit for the first
/// thread nor on the run.
const STACK: usize = 8 << 20;

/// A limit that keeps the program from starting.
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

/// Checks the limits that hold for every command.
pub(crate) fn check() -> Result<(), TooLow> {
    compare("the program", "", LEAST_ADDRESSES, LEAST_DATA)
}

/// Checks the limits for a machine with `memory_bytes` of memory, which is mapped twice for a moment.
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

/// Makes writes past the limit of a file's size fail, as writes to a full disk do. Without this they would
/// end the process.
pub(crate) fn let_large_writes_fail() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Calls `work` on a thread with a large stack, and returns its result. A panic continues here.
pub(crate) fn with_stack<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    // Lists of threads show the same name for this thread as for the first one.
    let worker = thread::Builder::new().name("ring3".into()).stack_size(STACK).spawn(work)?;
    Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
