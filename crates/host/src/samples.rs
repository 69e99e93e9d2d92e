//! How long frequent pieces of work take the host, by samples.

use std::time::Instant;

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
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        nanos.saturating_mul(Samples::TIMED.into())
    }
}
