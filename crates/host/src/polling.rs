//! Looking for what another process sends, for a short while before sleeping.
//!
//! To wake a thread takes longer than to read four KiB that the host has in memory, or a packet. Who does one request after the
//! other sends the next one some microseconds after it knows of the last; so it is looked for that long. How long is
//! learned: it grows while sleeps turn out to be short, and ends when looking was in vain, so what is idle costs nothing.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// What it begins with.
const MIN: Duration = Duration::from_micros(5);
/// Sleeps that are shorter than so many times the longest time of looking count as short: that is with the time that it took to wake up, which
/// looking saves.
const SHORT: u32 = 4;
/// How often it looks before it looks at the clock.
const LOOKS: u32 = 16;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct Polling {
    window: Duration,
    max: Duration,
}

impl Polling {
    /// Looks for `max` at most.
    pub fn up_to(max: Duration) -> Polling {
        Polling { window: Duration::ZERO, max }
    }

    /// Looks until `found`, or for the time that is worth it; whether it was found.
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
            // Where there are fewer processors than processes, the other one needs this one.
            thread::yield_now();
        }
    }

    /// It has slept for so long.
    pub fn slept(&mut self, time: Duration) {
        let is_short = time < self.max * SHORT;
        self.window =
            if is_short { (self.window * 2).clamp(MIN, self.max) } else { Duration::ZERO };
    }

    /// It has slept, and nothing has come.
    pub fn slept_in_vain(&mut self) {
        self.window = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);

    #[test]
    fn it_grows_while_sleeps_are_short_and_ends_with_a_long_one() {
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
