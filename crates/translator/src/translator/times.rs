//! The host time that the engine takes besides translated code, by samples.

use std::time::Instant;

use ring3_host::samples::Samples;

/// A kind of work.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// Blocks are made.
    Translating,
    /// Blocks that exist are found.
    Finding,
    /// Faults of translated code are handled, and pages mapped.
    Faults,
    /// Changes of page tables, modes and memory are taken over.
    Changes,
    /// The interpreter executes what is not translated.
    Interpreting,
}

/// All kinds, with their names.
const WORK: [(Work, &str); 5] = [
    (Work::Translating, "translating"),
    (Work::Finding, "finding translated code"),
    (Work::Faults, "handling faults and mapping pages"),
    (Work::Changes, "taking over changes of page tables and modes"),
    (Work::Interpreting, "interpreting what is not translated"),
];

/// The times of all kinds.
#[derive(Debug, Default)]
pub(crate) struct Times {
    samples: [Samples; WORK.len()],
    nanos: [u64; WORK.len()],
}

impl Times {
    /// Notes that a piece of work begins. Returns the present time if it is timed.
    #[inline]
    pub(crate) fn begin(&mut self, work: Work) -> Option<Instant> {
        self.samples[work as usize].begin()
    }

    /// Notes that the piece that began at `began` has ended, and what it was.
    #[inline]
    pub(crate) fn end(&mut self, work: Work, began: Option<Instant>) {
        if let Some(began) = began {
            let all = &mut self.nanos[work as usize];
            *all = all.saturating_add(Samples::nanos_of_all(began));
        }
    }

    /// Returns how many pieces have begun.
    pub(crate) fn count(&self) -> u64 {
        self.samples.iter().map(Samples::count).sum()
    }

    /// Returns the names of all kinds, and their times in nanoseconds.
    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        WORK.map(|(work, name)| (name, self.nanos[work as usize])).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_piece_in_many_is_timed() {
        let mut times = Times::default();
        let timed = (0..10 * Samples::TIMED).filter(|_| {
            let began = times.begin(Work::Faults);
            times.end(Work::Translating, began);
            began.is_some()
        });
        assert_eq!(timed.count(), 10);
        let _ = times.begin(Work::Finding);
        assert_eq!(times.count(), u64::from(10 * Samples::TIMED + 1));
        let all = times.all();
        assert_eq!(all[2], ("handling faults and mapping pages", 0));
        assert!(all[0].1 > 0, "{all:?}");
    }
}
