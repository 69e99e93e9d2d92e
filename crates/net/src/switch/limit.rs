//! Limits the rate of events.

use std::time::{Duration, Instant};

/// A number of events in a second. After a pause that many can happen at once.
#[derive(Debug)]
pub(super) struct Limit {
    /// Events in a second; 0 is no limit.
    per_second: u32,
    /// The time when all events so far would have been used up at an even pace.
    used_until: Instant,
}

impl Limit {
    /// Returns a limit of `per_second` events from `now` on; 0 is no limit.
    pub(super) fn new(per_second: u32, now: Instant) -> Limit {
        Limit { per_second, used_until: now }
    }

    /// Counts an event if one more is allowed, and returns whether it is.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if self.per_second == 0 {
            return true;
        }
        let each = Duration::from_secs(1) / self.per_second;
        let next = self.used_until.max(now) + each;
        if next > now + Duration::from_secs(1) {
            return false;
        }
        self.used_until = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_an_even_pace() {
        let start = Instant::now();
        let mut limit = Limit::new(10, start);
        let mut allowed = |at: Duration| (0..20).filter(|_| limit.allows(start + at)).count();
        assert_eq!(allowed(Duration::ZERO), 10);
        assert_eq!(allowed(Duration::from_millis(50)), 0);
        assert_eq!(allowed(Duration::from_millis(300)), 3);
        assert_eq!(allowed(Duration::from_secs(60)), 10);
        let mut limit = Limit::new(0, start);
        assert!((0..1000).all(|_| limit.allows(start)));
    }
}
