//! How much of a benchmark is measured: a number of turns with the work of the suite's list, or turns for a given time
//! with as much work as fills a run.

use std::time::Duration;

use super::peer::Kind;
use super::suite::Benchmark;
use super::table::CALIBRATION;
use super::{BenchError, CpuArguments};

/// The divisor of the work of the interpreters, which would otherwise take tens of minutes.
const SLOW_SHARE: u32 = 10;
/// The processor time in seconds of a run whose count has been chosen for it.
const RUN: f64 = 0.25;
/// The least share of this time that a trial has to take, so that it says how long other counts take.
const TRIAL: f64 = 0.25;
/// The most by which the count of a trial grows to that of the next.
const GROWTH: f64 = 10.0;
/// A first trial does this share of the work of the suite's list.
const FIRST: u32 = 100;
/// No run does more than this many times the work of the suite's list, as a time that hardly grows with the count says
/// nothing.
const MOST: u32 = 100;
/// The fewest turns, so that there is a spread.
const FEWEST: u32 = 3;

/// How much of a benchmark is measured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    Turns(u32),
    /// The mean time that a benchmark has in each system.
    Time(Duration),
}

impl Extent {
    pub(super) fn of(arguments: &CpuArguments) -> Extent {
        match arguments.seconds {
            Some(seconds) => Extent::Time(Duration::from_secs(seconds.into())),
            None => Extent::Turns(arguments.settings.runs),
        }
    }

    /// Returns the line that explains how much work is done.
    pub(super) fn explanation(self) -> String {
        match self {
            Extent::Turns(_) => format!(
                "Interpreters do 1/{SLOW_SHARE} of the work; their times are multiplied by {SLOW_SHARE}."
            ),
            Extent::Time(_) => format!(
                "A run does as much of the work as takes about {RUN} s; the times are those of all of it."
            ),
        }
    }

    /// Returns whether there is another turn, after `turns` in which `places` were measured for `elapsed` in all.
    pub(super) fn goes_on(self, turns: u32, places: u32, elapsed: Duration) -> bool {
        match self {
            Extent::Turns(wanted) => turns < wanted,
            Extent::Time(time) => turns < FEWEST || elapsed < time * places,
        }
    }

    /// Returns how often `benchmark` does its work in a run in a system of `kind` (None: on the host itself). `run`
    /// returns the processor time of a run of so many times the work, or None if there is nothing to run.
    pub(super) fn count(
        self,
        benchmark: &Benchmark,
        kind: Option<Kind>,
        run: impl FnMut(u32) -> Result<Option<f64>, BenchError>,
    ) -> Result<u32, BenchError> {
        let is_slow = matches!(kind, Some(Kind::Interpreter | Kind::Bochs));
        match self {
            // What a calibration does takes a time that is known.
            Extent::Time(_) if benchmark.group != CALIBRATION => calibrated(benchmark.count, run),
            _ if is_slow => Ok((benchmark.count / SLOW_SHARE).max(1)),
            _ => Ok(benchmark.count),
        }
    }
}

/// Returns the count with which `run` takes about [`RUN`] more than with 0.
fn calibrated(
    usual: u32,
    mut run: impl FnMut(u32) -> Result<Option<f64>, BenchError>,
) -> Result<u32, BenchError> {
    let Some(start) = run(0)? else { return Ok(usual) };
    let most = f64::from(usual.saturating_mul(MOST));
    let mut count = (usual / FIRST).max(1);
    loop {
        let time = run(count)?.unwrap_or_default() - start;
        let growth = (RUN / time.max(RUN / GROWTH)).min(GROWTH);
        let next = (f64::from(count) * growth).clamp(1.0, most) as u32;
        if time >= RUN * TRIAL || next <= count {
            return Ok(next);
        }
        count = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::Needs;
    use super::*;

    fn benchmark(group: &str) -> Benchmark {
        Benchmark { name: "any".into(), group: group.into(), count: 1000, needs: Needs::Nothing }
    }

    /// Returns the count for a benchmark each of whose thousand times takes `each` seconds, and starting 0.5 s.
    fn count(each: f64) -> u32 {
        let run = |count: u32| Ok(Some(0.5 + each * f64::from(count)));
        Extent::Time(Duration::from_secs(1)).count(&benchmark("cpu"), None, run).unwrap()
    }

    #[test]
    fn counts_are_chosen_by_time() {
        assert_eq!(count(1e-4), 2500);
        assert_eq!(count(1e-5), 25_000);
        // A first trial that takes much longer is followed by less, but for something.
        assert_eq!(count(1.0), 1);
        // Nothing takes a time.
        assert_eq!(count(0.0), 100_000);
    }

    #[test]
    fn other_counts_are_those_of_the_list() {
        let of = |extent: Extent, kind, group: &str| {
            extent.count(&benchmark(group), kind, |_| Ok(None)).unwrap()
        };
        let (turns, time) = (Extent::Turns(3), Extent::Time(Duration::from_secs(1)));
        assert_eq!(of(turns, None, "cpu"), 1000);
        assert_eq!(of(turns, Some(Kind::Interpreter), "cpu"), 100);
        assert_eq!(of(time, Some(Kind::Translator), CALIBRATION), 1000);
        // The host cannot run it.
        assert_eq!(of(time, None, "io"), 1000);
    }

    #[test]
    fn turns_go_on_until_the_time_has_passed() {
        let time = Extent::Time(Duration::from_secs(2));
        let second = Duration::from_secs(1);
        assert!(time.goes_on(10, 4, 7 * second) && !time.goes_on(10, 4, 8 * second));
        assert!(time.goes_on(2, 4, 100 * second) && !time.goes_on(3, 4, 100 * second));
        let turns = Extent::Turns(5);
        assert!(turns.goes_on(4, 1, 100 * second) && !turns.goes_on(5, 1, second));
    }
}
