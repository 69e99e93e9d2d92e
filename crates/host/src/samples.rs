//! How long frequent pieces of work take the host, by samples.

use std::time::{Duration, Instant};

/// Chooses the pieces of work of a kind that are timed.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Pieces since the last one that was timed.
    untimed: u32,
    /// Pieces that were timed.
    timed: u64,
}

impl Samples {
    /// One piece in this many is timed, and counts for all, as two looks at the host's clock can take as long as the
    /// work itself. The number is prime, so that a guest's repetitions are not always met at the same place.
    pub const TIMED: u32 = 127;

    /// A piece that takes longer than this is an exception: mostly the host has executed something else meanwhile. It
    /// counts for itself alone, or one on a busy host would outweigh all that the others take.
    const LONGEST: Duration = Duration::from_millis(1);

    /// Notes that a piece of work begins. Returns the present time if it is timed.
    #[inline]
    pub fn begin(&mut self) -> Option<Instant> {
        self.untimed += 1;
        if self.untimed < Samples::TIMED {
            return None;
        }
        self.untimed = 0;
        self.timed += 1;
        Some(Instant::now())
    }

    /// Returns how many pieces have begun.
    pub fn count(&self) -> u64 {
        self.timed * u64::from(Samples::TIMED) + u64::from(self.untimed)
    }

    /// Returns the time in nanoseconds of the piece that began at `began` and has ended, and of all for which it counts.
    pub fn nanos_of_all(began: Instant) -> u64 {
        Samples::nanos_for(began.elapsed())
    }

    fn nanos_for(elapsed: Duration) -> u64 {
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let count = if elapsed > Samples::LONGEST { 1 } else { Samples::TIMED };
        nanos.saturating_mul(count.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_counts_for_all_unless_it_is_an_exception() {
        assert_eq!(Samples::nanos_for(Duration::from_micros(3)), 127 * 3000);
        assert_eq!(Samples::nanos_for(Samples::LONGEST), 127_000_000);
        assert_eq!(Samples::nanos_for(Duration::from_millis(4)), 4_000_000);
        assert_eq!(Samples::nanos_for(Duration::MAX), u64::MAX);
    }
}
