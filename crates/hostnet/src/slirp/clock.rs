//! The time that libslirp sees, and the acknowledgements that it holds back.
//!
//! libslirp acknowledges data at once, but those in a segment that itself acknowledges something only after 2 ms, in the hope
//! that an answer goes along. A guest's program that answers by two writes, such as a server of disks that sends a header and
//! then data, waits for that: its kernel does not send the second, short segment before the first one is acknowledged (Nagle's
//! algorithm, RFC 896). So each answer takes 2 ms more. There is no option against it.
//!
//! But it is the caller who tells the library the time (`clock_get_ns`). When no answer is there that could take an acknowledgement
//! along, the library may look at its timers by a clock that is [`DELAY`] ahead. The other timers of TCP, which count periods of
//! 499 ms, must see nothing of that: none may end in this time, and a clock that goes back must not look like one that has gone
//! round. [`Clock::hears`] tells.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// For how long the library holds acknowledgements back (libslirp, `TIMEOUT_FAST`).
pub(super) const DELAY: Duration = Duration::from_millis(2);
/// The period of the other timers of TCP in milliseconds (libslirp, `TIMEOUT_SLOW`).
const PERIOD: u32 = 499;

/// See the module.
#[derive(Debug)]
pub(super) struct Clock {
    began: Instant,
    /// The time that the library sees, where that is not the present one.
    shown: Cell<Option<Duration>>,
    /// Whether the library counts periods at present.
    counts: Cell<bool>,
    /// When the library's present period began, in milliseconds, as it computes it.
    period: Cell<u32>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock {
            began: Instant::now(),
            shown: Cell::default(),
            counts: Cell::default(),
            period: Cell::default(),
        }
    }

    /// Returns the time since the network began.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the time that the library sees.
    pub(super) fn shown(&self) -> Duration {
        self.shown.get().unwrap_or_else(|| self.now())
    }

    /// Takes the number of milliseconds after which the library wants to be called again, by which it says which timers
    /// it has. Returns whether it holds acknowledgements back, and may see a clock that is [`DELAY`] ahead.
    pub(super) fn hears(&self, millis: u32) -> bool {
        self.counts.set(millis <= PERIOD);
        u128::from(millis) <= DELAY.as_millis() && self.may_be_ahead()
    }

    /// Shows the library a clock that is this much ahead while it looks at its timers.
    pub(super) fn show(&self, ahead: Duration, looks: impl FnOnce()) {
        let now = self.now() + ahead;
        self.shown.set(Some(now));
        looks();
        self.shown.set(None);
        let millis = now.as_millis() as u32;
        if self.counts.get() && millis.wrapping_sub(self.period.get()) >= PERIOD {
            self.period.set(millis);
        }
    }

    /// Returns whether no period ends before a clock that is [`DELAY`] ahead.
    fn may_be_ahead(&self) -> bool {
        let millis = (self.now() + DELAY).as_millis() as u32;
        // The time until it is shown is short, but not nothing.
        millis.wrapping_sub(self.period.get()) < PERIOD - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_not_ahead_of_the_end_of_a_period() {
        let clock = Clock::new();
        // The library has no timers, a period, and an acknowledgement.
        assert_eq!([1000, 499, 2].map(|millis| clock.hears(millis)), [false, false, true]);
        assert!(clock.may_be_ahead());
        let later = Duration::from_secs(5);
        clock.show(later, || assert!(clock.shown() >= later));
        assert!(clock.shown() < later);
        // The period that began at 5 s has not ended; for a clock that went back, it would have.
        assert!(clock.period.get() >= 5000);
        assert!(!clock.may_be_ahead());
        // Without connections no periods are counted.
        let clock = Clock::new();
        clock.hears(1000);
        clock.show(later, || {});
        assert_eq!(clock.period.get(), 0);
    }
}
