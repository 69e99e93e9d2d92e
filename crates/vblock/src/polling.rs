//! Looking for requests, or for answers, for a short while before sleeping.
//!
//! To wake a thread takes longer than to read four KiB that the host has in memory. A guest that does one request after the
//! other sends the next one some microseconds after it knows of the last; so its queue is looked at for that long. How long is
//! learned: it grows while sleeps turn out to be short, and ends when looking was in vain, so an idle guest costs nothing.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

/// The longest time that is worth it.
const MAX: Duration = Duration::from_micros(50);
/// Sleeps that are shorter count as short: with the time that it took to wake up, which looking saves.
const SHORT: Duration = Duration::from_micros(200);
/// What it begins with.
const MIN: Duration = Duration::from_micros(5);
/// How often it looks at the ring before it looks at the clock.
const LOOKS: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    window: Duration,
}

impl Polling {
    /// Looks until `found`, or for the time that is worth it; whether it was found.
    pub(crate) fn wait(&mut self, mut found: impl FnMut() -> bool) -> bool {
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
        }
    }

    /// It has slept for so long.
    pub(crate) fn slept(&mut self, time: Duration) {
        self.window = if time < SHORT { (self.window * 2).clamp(MIN, MAX) } else { Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_sleeps_are_short_and_ends_with_a_long_one() {
        let mut polling = Polling::default();
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
