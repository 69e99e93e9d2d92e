//! Decides how often to look at a screen.

use std::time::Duration;

/// The time from one picture to the next while the screen changes: 30 a second.
const SHORTEST: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// The time from one picture to the next when nothing has changed for about a second.
const LONGEST: Duration = Duration::from_millis(250);

/// The time to wait between two looks at a screen. It grows while nothing changes, so that a guest which
/// waits for a person costs little.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    interval: Duration,
}

impl Default for Rate {
    fn default() -> Rate {
        Rate { interval: SHORTEST }
    }
}

impl Rate {
    /// Returns the time from the last look to the next one.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Notes a look, and whether the screen had changed.
    pub(crate) fn looked(&mut self, changed: bool) {
        self.interval = if changed { SHORTEST } else { (self.interval * 5 / 4).min(LONGEST) };
    }

    /// Notes that the screen is likely to change soon because a key was pressed.
    pub(crate) fn hurry(&mut self) {
        self.interval = SHORTEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanging_screen_is_compared_less_and_less_often() {
        let mut rate = Rate::default();
        assert_eq!(rate.interval(), SHORTEST);
        rate.looked(false);
        assert!(rate.interval() > SHORTEST);
        for _ in 0..100 {
            rate.looked(false);
        }
        assert_eq!(rate.interval(), LONGEST);
        rate.looked(true);
        assert_eq!(rate.interval(), SHORTEST);
    }

    #[test]
    fn a_key_ends_the_wait() {
        let mut rate = Rate::default();
        for _ in 0..100 {
            rate.looked(false);
        }
        rate.hurry();
        assert_eq!(rate.interval(), SHORTEST);
    }
}
