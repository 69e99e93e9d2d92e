//! The pauses before a process is started again.

use std::time::Duration;

/// The first pause, and the longest ones: after a process that has answered once, and after one that never has.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST_OF_WORKING: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);
/// A process that has worked for so long has recovered.
const RECOVERED: Duration = Duration::from_secs(30);

/// The pauses, each twice as long as the one before.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    last: Option<Duration>,
}

impl BackOff {
    /// Returns the pause after a process that was there for `time`, and has answered or not.
    pub(super) fn after(&mut self, time: Duration, has_answered: bool) -> Duration {
        let longest = if has_answered { LONGEST_OF_WORKING } else { LONGEST };
        let pause = match self.last {
            Some(last) if time < RECOVERED => (2 * last).min(longest),
            _ => FIRST,
        };
        *self.last.insert(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_process_works() {
        let mut back_off = BackOff::default();
        let mut pause = |seconds, has_answered| {
            back_off.after(Duration::from_secs(seconds), has_answered).as_millis()
        };
        let never = [0, 0, 1, 29, 0, 0, 0, 0, 0].map(|seconds| pause(seconds, false));
        assert_eq!(never, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        let working = [30, 0, 29, 0, 0, 0].map(|seconds| pause(seconds, true));
        assert_eq!(working, [100, 200, 400, 800, 1000, 1000]);
    }
}
