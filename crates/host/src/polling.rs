//! Polling for messages of another process, for a short while before sleeping.
//!
//! Waking a thread takes longer than reading 4 KiB that the host has in memory, or a packet. A process that
//! sends one request after another sends the next one some microseconds after it gets the last answer, so it
//! pays to poll for that long. The time is learned: it grows as long as sleeps turn out to be short, and
//! drops to zero when polling was in vain, so an idle connection costs nothing.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// The time to poll after the first short sleep. It doubles with each further one.
const MIN: Duration = Duration::from_micros(5);
/// A sleep counts as short if it is shorter than this multiple of the longest time of polling. A sleep
/// includes the time of waking up, which polling saves.
const SHORT: u32 = 4;
/// Number of polls between two looks at the clock.
const LOOKS: u32 = 16;

/// How long to poll, as learned from the sleeps so far.
#[derive(Debug, Clone, Copy)]
pub struct Polling {
    window: Duration,
    max: Duration,
}

impl Polling {
    /// Returns a `Polling` that polls for `max` at most. It does not poll before the first short sleep.
    pub fn up_to(max: Duration) -> Polling {
        Polling { window: Duration::ZERO, max }
    }

    /// Polls until `found` returns true, or for as long as it pays. Returns the last answer of `found`.
    pub fn wait(&mut self, mut found: impl FnMut() -> bool) -> bool {
        if self.window.is_zero() {
            return found();
        }
        let end = Instant::now() + self.window;
        loop {
            for _ in 0..LOOKS {
                if found() {
                    return true;
                }
                spin_loop();
            }
            if Instant::now() >= end {
                return false;
            }
            // If there are fewer processors than processes, the other process needs this one.
            thread::yield_now();
        }
    }

    /// Notes that the caller has slept for `time`.
    pub fn slept(&mut self, time: Duration) {
        let is_short = time < self.max * SHORT;
        self.window =
            if is_short { (self.window * 2).clamp(MIN, self.max) } else { Duration::ZERO };
    }

    /// Notes that the caller has slept and no message has come.
    pub fn slept_in_vain(&mut self) {
        self.window = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);

    #[test]
    fn polling_grows_while_sleeps_are_short_and_ends_with_a_long_one() {
        let mut polling = Polling::up_to(MAX);
        let mut looks = 0;
        assert!(!polling.wait(|| {
            looks += 1;
            false
        }));
        assert_eq!(looks, 1);
        for _ in 0..10 {
            polling.slept(MIN);
        }
        assert_eq!(polling.window, MAX);
        assert!(polling.wait(|| true));
        polling.slept(Duration::from_millis(1));
        assert_eq!(polling.window, Duration::ZERO);
    }
}
