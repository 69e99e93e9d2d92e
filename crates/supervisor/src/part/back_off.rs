//! The pauses before a process is started again.

use std::time::Duration;

/// The first pause, and the longest one.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// A process that has worked for so long has recovered.
const RECOVERED: Duration = Duration::from_secs(30);

/// The pauses, each twice as long as the one before.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    last: Option<Duration>,
}

impl BackOff {
    /// Returns the pause after a process that has worked for `time`.
    pub(super) fn after(&mut self, time: Duration) -> Duration {
        let pause = match self.last {
            Some(last) if time < RECOVERED => (2 * last).min(LONGEST),
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
        let pauses = [0, 0, 1, 29, 0, 0, 0, 0, 0, 30, 0]
            .map(|seconds| back_off.after(Duration::from_secs(seconds)).as_millis());
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 100, 200]);
    }
}
