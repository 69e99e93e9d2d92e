//! The clock that ends endless loops.
//!
//! It counts the processor time of the runner's thread, so that a busy host or a waiting thread changes
//! nothing. It ticks as long as the runner lives, so a run costs no system call.

use std::mem::MaybeUninit;
use std::ptr;

use libc::{c_int, c_void, siginfo_t};

use super::system;
use crate::Unavailable;

/// The signal of a tick.
pub(super) const SIGNAL: c_int = libc::SIGVTALRM;

/// Time between ticks. A run ends at its second tick, so a loop lasts 50 to 100 ms.
const INTERVAL: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Its address marks a signal as a tick of ours.
static MARK: u8 = 0;

/// The timer, which runs as long as this lives.
pub(super) struct Timer {
    id: libc::timer_t,
}

impl Timer {
    /// Starts the timer for the calling thread.
    pub(super) fn start() -> Result<Self, Unavailable> {
        // SAFETY: all bits zero is a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        event.sigev_value.sival_ptr = mark();
        // SAFETY: no memory is involved.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut id = MaybeUninit::uninit();
        // SAFETY: there is room for the answer.
        let result = unsafe {
            libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, id.as_mut_ptr())
        };
        system("create a timer", result)?;
        // SAFETY: the call has filled it.
        let timer = Self { id: unsafe { id.assume_init() } };
        let times = libc::itimerspec { it_interval: INTERVAL, it_value: INTERVAL };
        // SAFETY: the timer exists.
        let result = unsafe { libc::timer_settime(timer.id, 0, &raw const times, ptr::null_mut()) };
        system("start a timer", result)?;
        Ok(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer exists, and nobody else knows it.
        unsafe { libc::timer_delete(self.id) };
    }
}

fn mark() -> *mut c_void {
    (&raw const MARK).cast_mut().cast()
}

/// Returns whether a signal is a tick of this timer.
pub(super) fn is_tick(signal: c_int, information: &siginfo_t) -> bool {
    signal == SIGNAL
        && information.si_code == libc::SI_TIMER
        // SAFETY: with this code the field holds a value.
        && unsafe { information.si_value().sival_ptr } == mark()
}
