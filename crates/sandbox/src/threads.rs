//! Restricts every thread of the process.
//!
//! Landlock, capabilities and the bit against new privileges belong to threads, and a thread can restrict
//! only itself. So each thread gets a signal, whose handler makes the system calls. (From version 8,
//! Landlock can do it for all threads; kernels in use are older.) Threads that begin meanwhile take over
//! what their maker has, or are found when the list of threads is read again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, gettid, set_capabilities, set_no_new_privs,
};

/// The capabilities that a process keeps, if it has them: those over the owners and modes of files, since
/// root's machines may use files of other users.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// How long a thread may take until it has handled the signal.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two looks at whether it has.
const STEP: Duration = Duration::from_micros(50);

/// The descriptor of the rules; -1 for none.
static RULES: AtomicI32 = AtomicI32::new(-1);
/// How many threads have handled the signal.
static HANDLED: AtomicU32 = AtomicU32::new(0);
/// The error of a thread that could not be restricted; 0 for none.
static FAILED: AtomicI32 = AtomicI32::new(0);

/// Restricts all threads by these rules of Landlock, and takes capabilities and new privileges from them.
pub(crate) fn restrict_all(rules: Option<&OwnedFd>) -> io::Result<()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    RULES.store(rules.map_or(-1, AsRawFd::as_raw_fd), Ordering::SeqCst);
    FAILED.store(0, Ordering::SeqCst);
    let signal = libc::SIGRTMAX();
    let before = handle(signal)?;
    let restricted = signal_others(signal);
    // SAFETY: this is the action that was there before.
    unsafe { libc::sigaction(signal, &raw const before, ptr::null_mut()) };
    restricted?;
    restrict();
    match FAILED.load(Ordering::SeqCst) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Sends the signal to each other thread, and waits for it, until there is none that has not handled it.
fn signal_others(signal: c_int) -> io::Result<()> {
    let own = gettid().as_raw_pid();
    let process = rustix::process::getpid().as_raw_pid();
    let mut done = BTreeSet::from([own]);
    loop {
        let new: Vec<pid_t> =
            threads()?.into_iter().filter(|thread| done.insert(*thread)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in new {
            let handled = HANDLED.load(Ordering::SeqCst);
            // SAFETY: the signal has a handler, which may run at any time.
            let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
            if result < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    // The thread has ended.
                    Some(libc::ESRCH) => continue,
                    _ => return Err(error),
                }
            }
            wait_for(thread, handled)?;
        }
    }
}

/// Waits until `thread` has handled the signal, or has ended.
fn wait_for(thread: pid_t, handled: u32) -> io::Result<()> {
    let since = Instant::now();
    let directory = format!("/proc/self/task/{thread}");
    while HANDLED.load(Ordering::SeqCst) == handled {
        if !Path::new(&directory).exists() {
            break;
        }
        if since.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("thread {thread} takes no signal")));
        }
        thread::sleep(STEP);
    }
    Ok(())
}

fn threads() -> io::Result<Vec<pid_t>> {
    let entries = fs::read_dir("/proc/self/task")?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().parse().ok()));
    names.filter_map(io::Result::transpose).collect()
}

/// Installs the handler. Returns what was there before.
fn handle(signal: c_int) -> io::Result<libc::sigaction> {
    // SAFETY: all bits zero are a valid `sigaction`.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
    action.sa_sigaction = on_signal as *const () as usize;
    // System calls begin again, so that most threads notice nothing.
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler has this argument, and calls only what a handler may call.
    let result = unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
    if result == 0 { Ok(before) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_signal(_: c_int) {
    restrict();
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Restricts this thread. Calls only what the handler of a signal may call, and leaves errno alone.
fn restrict() {
    let noted = set_no_new_privs(true).and_then(|()| drop_capabilities());
    if let Err(error) = noted {
        FAILED.store(error.raw_os_error(), Ordering::SeqCst);
    }
    let rules = RULES.load(Ordering::SeqCst);
    if rules < 0 {
        return;
    }
    // SAFETY: the address is that of this thread's errno, which lives as long as the thread.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // The call takes a descriptor and flags, of which there are none.
        if libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) < 0 {
            FAILED.store(*errno, Ordering::SeqCst);
        }
        *errno = before;
    }
}

/// Gives up the capabilities of this thread that are not [`KEPT`].
fn drop_capabilities() -> rustix::io::Result<()> {
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let sets = CapabilitySets {
        effective: effective.intersection(KEPT),
        permitted: permitted.intersection(KEPT),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}
