//! A limit of the host's processor time: the machine runs some of the time and sleeps the rest.

use ring3_core::clock::Time;
use rustix::time::{ClockId, clock_gettime};

use crate::control::{Control, Ended};
use crate::door::Door;
use crate::machine::Vm;

/// A machine that has slept may run without a pause for at most so long, in nanoseconds.
const BURST_NANOS: u64 = 10_000_000;
/// What it has used beyond that is forgotten, in nanoseconds: other threads of the process may have used it.
const DEBT_NANOS: i64 = 100_000_000;
/// More than a processor is no limit for a machine with one.
pub const CPU_PERCENT_MAX: u32 = 100;
/// The parts of the time of a processor of which a limit is a whole number.
const PARTS: u32 = 10_000;

/// What a machine has used of the host's processor time, and may use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuTime {
    /// The time that the process has used, in nanoseconds.
    pub used_nanos: u64,
    /// How often the machine had to rest because of its limit.
    pub rests: u64,
    /// The limit, in hundredths of the time of one processor; None for no limit.
    pub percent: Option<f64>,
}

/// The limit of a machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuLimit {
    /// It may use so many of the [`PARTS`] of the time of one processor.
    parts: u32,
    /// Nanoseconds of processor time that it may use now. It is negative after it has used more.
    credit: i64,
    /// When this was so, and the time that the process had used by then.
    last: Option<(Time, u64)>,
}

impl CpuLimit {
    /// Limits the time to so many hundredths of a processor.
    pub(super) fn to(percent: f64) -> CpuLimit {
        let parts = (percent * f64::from(PARTS) / 100.0).round() as u32;
        CpuLimit { parts: parts.clamp(1, PARTS), credit: 0, last: None }
    }

    fn part_of(&self, nanos: u64) -> i64 {
        let part = u128::from(nanos) * u128::from(self.parts) / u128::from(PARTS);
        i64::try_from(part).unwrap_or(i64::MAX)
    }

    /// Returns until when the machine must sleep that has used `used` nanoseconds of processor time until `now`. None if
    /// it may run.
    fn sleeps_until(&mut self, now: Time, used: u64) -> Option<Time> {
        let (last, before) = self.last.replace((now, used)).unwrap_or((now, used));
        let earned = self.part_of(now.nanos_since(last));
        let spent = i64::try_from(used.saturating_sub(before)).unwrap_or(i64::MAX);
        let credit = self.credit.saturating_add(earned).saturating_sub(spent);
        self.credit = credit.clamp(-DEBT_NANOS, self.part_of(BURST_NANOS));
        let debt = self.credit.min(0).unsigned_abs();
        let rest = (debt * u64::from(PARTS)).div_ceil(self.parts.into());
        (debt > 0).then(|| now.plus_nanos(rest))
    }
}

/// Returns the processor time that this process has used, in nanoseconds.
fn used() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec
        .unsigned_abs()
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec.unsigned_abs())
}

impl Vm {
    /// Limits the processor time that the process uses from now on, to so many hundredths of the time of one processor.
    /// None is no limit.
    pub fn limit_cpu(&mut self, percent: Option<f64>) {
        // The first call looks for the kernel's code for this, which a sandbox forbids later.
        used();
        let new = percent.filter(|percent| *percent < CPU_PERCENT_MAX.into()).map(CpuLimit::to);
        // A machine does not get more by changes of its limit.
        let before = self.cpu_limit.take();
        self.cpu_limit = new.map(|new| match before {
            Some(CpuLimit { credit, last, .. }) => CpuLimit { credit, last, ..new },
            None => new,
        });
    }

    /// Returns what the machine has used of the host's processor time, and may use.
    pub fn cpu_time(&self) -> CpuTime {
        let percent = self.cpu_limit.map(|limit| f64::from(limit.parts) * 100.0 / f64::from(PARTS));
        CpuTime { used_nanos: used(), rests: self.cpu_rests, percent }
    }

    /// Returns until when the machine must sleep, since it has used more time of the host's processor than it may.
    pub(super) fn rests_until(&mut self, door: &Door) -> Option<Time> {
        let until = self.cpu_limit.as_mut()?.sleeps_until(door.host_time(), used())?;
        self.cpu_rests += 1;
        Some(until)
    }
}

impl Control {
    /// Limits the processor time that the process uses from now on, to so many hundredths of the time of one processor.
    /// None is no limit.
    pub fn limit_cpu(&self, percent: Option<f64>) -> Result<(), Ended> {
        self.visit(move |vm, _| vm.limit_cpu(percent))
    }

    /// Returns what the machine has used of the host's processor time, and may use.
    pub fn cpu_time(&self) -> Result<CpuTime, Ended> {
        self.visit(|vm, _| vm.cpu_time())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// Returns how long a machine has run of `nanos` nanoseconds that always wants to run, in slices of 2 ms, on a
    /// processor that it has to itself.
    fn runs(percent: f64, nanos: u64) -> u64 {
        let mut limit = CpuLimit::to(percent);
        let (mut now, mut used) = (0, 0);
        while now < nanos {
            if let Some(until) = limit.sleeps_until(Time::from_nanos(now), used) {
                let until = until.as_nanos();
                let is_soon = until > now && until <= now + 200 * MILLISECOND;
                assert!(is_soon, "{percent}: {now} {until}");
                now = until;
            } else {
                (now, used) = (now + 2 * MILLISECOND, used + 2 * MILLISECOND);
            }
        }
        used
    }

    #[test]
    fn a_busy_machine_gets_its_part() {
        for percent in [1.0, 10.0, 12.5, 50.0, 99.0] {
            let expected = (percent * 100.0) as u64 * MILLISECOND;
            let found = runs(percent, 10_000 * MILLISECOND);
            assert!(found.abs_diff(expected) <= 4 * MILLISECOND, "{percent}: {found}");
        }
    }

    #[test]
    fn who_has_slept_may_run_a_little_longer() {
        let mut limit = CpuLimit::to(50.0);
        let at = |milliseconds: u64| Time::from_nanos(milliseconds * MILLISECOND);
        assert_eq!(limit.sleeps_until(at(0), 7), None);
        assert_eq!(limit.sleeps_until(at(60_000), 7), None);
        assert_eq!(limit.sleeps_until(at(60_005), 7 + 5 * MILLISECOND), None);
        // Of a minute, 5 ms were kept, and half of these 5 ms were earned.
        let until = limit.sleeps_until(at(60_010), 7 + 10 * MILLISECOND);
        assert_eq!(until, None);
        let until = limit.sleeps_until(at(60_014), 7 + 14 * MILLISECOND);
        assert_eq!(until, Some(at(60_018)));
        // A clock that stands still, and time that was used by others of the process.
        assert!(limit.sleeps_until(at(60_014), u64::MAX).is_some());
    }
}
