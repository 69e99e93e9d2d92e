//! Counts the system calls that the filter denies.
//!
//! The filter answers them with the signal SIGSYS (`SECCOMP_RET_TRAP`, seccomp(2)), whose handler counts
//! the call and makes it fail with EPERM. A process that has no handler any more is ended by the signal.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// An upper bound of the numbers of system calls. Higher ones are counted as the last.
const CALLS: usize = 512;

static COUNTS: [AtomicU32; CALLS] = [const { AtomicU32::new(0) }; CALLS];

/// A system call that was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// Its number on this host's architecture.
    pub call: usize,
    /// How often it was denied.
    pub times: u32,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denial { call, times } = self;
        let times = match times {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        write!(f, "number {call} {times}")
    }
}

/// Returns the system calls that this process has been denied.
pub fn denials() -> Vec<Denial> {
    let counts = COUNTS.iter().enumerate();
    let all = counts.map(|(call, count)| Denial { call, times: count.load(Ordering::Relaxed) });
    all.filter(|denial| denial.times > 0).collect()
}

/// Makes denied calls be counted from now on. The filter must not send SIGSYS before.
#[cfg(target_arch = "x86_64")]
pub(crate) fn count() -> io::Result<()> {
    // SAFETY: all bits zero are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_denied as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler has these arguments, and calls nothing.
    let result = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets a denied call fail.
///
/// # Safety
/// Only the kernel may call it, as the handler of SIGSYS.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn on_denied(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the saved registers, which nobody else has.
    let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
    // RAX holds the number of a call that was not made, and is its result.
    let result = &mut registers[libc::REG_RAX as usize];
    let call = usize::try_from(*result).unwrap_or(CALLS).min(CALLS - 1);
    COUNTS[call].fetch_add(1, Ordering::Relaxed);
    *result = i64::from(-libc::EPERM);
}
