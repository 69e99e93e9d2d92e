//! Virtual time, and the timers that run on it.
//!
//! Virtual time is a function of the instructions that the guest has executed: a base, plus a number of
//! picoseconds for each instruction. In a deterministic run base and rate change only at halts, which skip to
//! the next timer. In a normal run host time enters through the input door, and the clock then takes a new
//! base and rate that keep it close to the host's clock without ever going back. Either way the time at an
//! instruction is known exactly, and repeating a run's inputs repeats the run.

use serde::{Deserialize, Serialize};

use crate::device::DeviceId;

/// A point in virtual time: nanoseconds since the machine was switched on.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(u64);

impl Time {
    /// The moment when the machine was switched on.
    pub const ZERO: Time = Time(0);

    /// Makes the time `nanos` nanoseconds after switch-on; the largest is 584 years.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Returns the nanoseconds since switch-on.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time `nanos` nanoseconds later, or the last one that can be represented.
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Time {
        Time(self.0.saturating_add(nanos))
    }

    /// Returns the nanoseconds from `earlier` to this time, or 0 if `earlier` is later.
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns how many whole periods of a signal of `hertz` have passed since switch-on.
    pub const fn ticks(self, hertz: u64) -> u64 {
        let (seconds, nanos) = (self.0 / NANOS_PER_SECOND, self.0 % NANOS_PER_SECOND);
        // A division of 128 bits takes longer than all else that most devices do in an access.
        let in_second = match nanos.checked_mul(hertz) {
            Some(ticks) => ticks / NANOS_PER_SECOND,
            None => (nanos as u128 * hertz as u128 / NANOS_PER_SECOND as u128) as u64,
        };
        seconds.wrapping_mul(hertz).wrapping_add(in_second)
    }

    /// Returns the first time at which [`Time::ticks`] of `hertz` is at least `ticks`. `hertz` must not be 0.
    pub const fn of_tick(ticks: u64, hertz: u64) -> Time {
        let nanos = (ticks as u128 * NANOS_PER_SECOND as u128).div_ceil(hertz as u128);
        Time(if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 })
    }
}

/// Nanoseconds in a second.
const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Picoseconds in a nanosecond.
pub const PICOS_PER_NANO: u64 = 1000;

/// Converts instructions executed to virtual time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    base: Time,
    base_instructions: u64,
    /// The rate, at least 1.
    picos_per_instruction: u64,
}

impl Clock {
    /// Makes a clock that starts at [`Time::ZERO`] with no instruction executed, at the rate
    /// `picos_per_instruction` (0 counts as 1).
    pub fn new(picos_per_instruction: u64) -> Clock {
        let picos_per_instruction = picos_per_instruction.max(1);
        Clock { base: Time::ZERO, base_instructions: 0, picos_per_instruction }
    }

    /// Returns the time after `instructions` instructions.
    pub fn now(&self, instructions: u64) -> Time {
        let executed = instructions.saturating_sub(self.base_instructions);
        let nanos = if let Some(picos) = executed.checked_mul(self.picos_per_instruction) {
            // The usual case, and much quicker; only times that are months away overflow.
            picos / PICOS_PER_NANO
        } else {
            let picos = u128::from(executed) * u128::from(self.picos_per_instruction);
            u64::try_from(picos / u128::from(PICOS_PER_NANO)).unwrap_or(u64::MAX)
        };
        self.base.plus_nanos(nanos)
    }

    /// Returns the first instruction count, not before `instructions`, at which the time is `time` or later.
    pub fn instructions_at(&self, time: Time, instructions: u64) -> u64 {
        let nanos = time.nanos_since(self.base);
        let executed = if let Some(picos) = nanos.checked_mul(PICOS_PER_NANO) {
            picos.div_ceil(self.picos_per_instruction)
        } else {
            let picos = u128::from(nanos) * u128::from(PICOS_PER_NANO);
            let executed = picos.div_ceil(u128::from(self.picos_per_instruction));
            u64::try_from(executed).unwrap_or(u64::MAX)
        };
        self.base_instructions.saturating_add(executed).max(instructions)
    }

    /// Sets the time to `time` at instruction count `instructions`, or keeps it if it is later, since time
    /// never goes back. The rate is `picos_per_instruction` from there on.
    pub fn set(&mut self, instructions: u64, time: Time, picos_per_instruction: u64) {
        self.skip_to(instructions, time);
        self.picos_per_instruction = picos_per_instruction.max(1);
    }

    /// Sets the time to `time` at instruction count `instructions`, if that is later than the time then. A
    /// halt skips to its next timer in this way.
    pub fn skip_to(&mut self, instructions: u64, time: Time) {
        self.base = self.now(instructions).max(time);
        self.base_instructions = instructions;
    }

    /// Returns the instruction count and the time from which the present rate applies.
    pub fn base(&self) -> (u64, Time) {
        (self.base_instructions, self.base)
    }

    /// Returns the rate in picoseconds for each instruction.
    pub fn picos_per_instruction(&self) -> u64 {
        self.picos_per_instruction
    }
}

/// Identifies one of a device's timers, by a number that the device chooses.
pub type Tag = u32;

/// The timers that devices have set: at most one for each device and tag.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Timers {
    pending: Vec<Timer>,
    /// Orders timers that are due at the same time by the order in which they were set.
    serial: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Timer {
    at: Time,
    #[serde(default)]
    ticks: bool,
    serial: u64,
    device: DeviceId,
    tag: Tag,
}

impl Timers {
    /// Sets timer `tag` of `device` to `at`, and drops its earlier setting. `ticks` says that software counts
    /// the ticks of this timer; see [`Timers::next_tick`].
    pub fn set(&mut self, device: DeviceId, tag: Tag, at: Time, ticks: bool) {
        self.cancel(device, tag);
        self.serial += 1;
        self.pending.push(Timer { at, ticks, serial: self.serial, device, tag });
    }

    /// Cancels timer `tag` of `device`, if it is set.
    pub fn cancel(&mut self, device: DeviceId, tag: Tag) {
        self.pending.retain(|timer| timer.device != device || timer.tag != tag);
    }

    /// Cancels all timers of `device`.
    pub fn cancel_all(&mut self, device: DeviceId) {
        self.pending.retain(|timer| timer.device != device);
    }

    /// Returns the number of timers that are set.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether no timer is set.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the devices that have set timers, one entry for each timer.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.pending.iter().map(|timer| timer.device)
    }

    /// Returns when the next timer is due.
    #[inline]
    pub fn next(&self) -> Option<Time> {
        self.pending.iter().map(|timer| timer.at).min()
    }

    /// Returns when the next timer is due whose every tick counts. Virtual time must not be set forward over
    /// it, whereas other timers may be late.
    pub fn next_tick(&self) -> Option<Time> {
        self.pending.iter().filter(|timer| timer.ticks).map(|timer| timer.at).min()
    }

    /// Removes and returns the timer that is due first, if one is due at `now`.
    pub fn take_due(&mut self, now: Time) -> Option<(DeviceId, Tag)> {
        let (index, timer) = self
            .pending
            .iter()
            .enumerate()
            .min_by_key(|(_, timer)| (timer.at, timer.serial))
            .filter(|(_, timer)| timer.at <= now)?;
        let due = (timer.device, timer.tag);
        self.pending.swap_remove(index);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_times_agree() {
        for hertz in [1, 1_193_182, 3_579_545, 32_768] {
            for tick in [0, 1, 2, 1000, 123_456_789] {
                let time = Time::of_tick(tick, hertz);
                assert_eq!(time.ticks(hertz), tick);
                if tick > 0 {
                    assert_eq!(Time::from_nanos(time.as_nanos() - 1).ticks(hertz), tick - 1);
                }
            }
        }
    }

    #[test]
    fn ticks_are_those_of_all_nanoseconds() {
        for hertz in [0, 1, 32_768, 25_175_000, 1_000_000_000, 1 << 40, u64::MAX] {
            for nanos in [0, 999_999_999, 1_000_000_000, 123_456_789_012_345, u64::MAX] {
                let all = u128::from(nanos) * u128::from(hertz) / 1_000_000_000;
                assert_eq!(Time::from_nanos(nanos).ticks(hertz), all as u64, "{nanos} {hertz}");
            }
        }
    }

    #[test]
    fn instruction_counts_are_the_inverse_of_time() {
        let mut clock = Clock::new(3700);
        clock.set(1000, Time::from_nanos(5000), 300);
        for nanos in [5000, 5001, 7777, 1_000_000] {
            let at = clock.instructions_at(Time::from_nanos(nanos), 1000);
            assert!(clock.now(at).as_nanos() >= nanos);
            assert!(at == 1000 || clock.now(at - 1).as_nanos() < nanos);
        }
    }

    #[test]
    fn time_never_goes_back() {
        let mut clock = Clock::new(1000);
        clock.set(100, Time::from_nanos(20), 2000);
        assert_eq!(clock.now(100).as_nanos(), 100);
        assert_eq!(clock.now(101).as_nanos(), 102);
        clock.skip_to(101, Time::from_nanos(1000));
        assert_eq!(clock.now(101).as_nanos(), 1000);
        assert_eq!(clock.instructions_at(Time::ZERO, 101), 101);
        assert!(clock.instructions_at(Time::from_nanos(u64::MAX), 0) > 1 << 60);
    }

    #[test]
    fn timers_fire_in_order_and_once() {
        let (a, b) = (DeviceId::PIT, DeviceId::RTC);
        let mut timers = Timers::default();
        timers.set(a, 0, Time::from_nanos(30), false);
        timers.set(b, 0, Time::from_nanos(10), true);
        timers.set(a, 1, Time::from_nanos(10), false);
        timers.set(a, 0, Time::from_nanos(20), false);
        timers.set(b, 7, Time::from_nanos(5), true);
        timers.cancel(b, 7);
        assert_eq!(timers.next(), Some(Time::from_nanos(10)));
        assert_eq!(timers.next_tick(), Some(Time::from_nanos(10)));
        assert_eq!(timers.take_due(Time::from_nanos(9)), None);
        let now = Time::from_nanos(20);
        assert_eq!(timers.take_due(now), Some((b, 0)));
        assert_eq!(timers.next_tick(), None);
        assert_eq!(timers.take_due(now), Some((a, 1)));
        assert_eq!(timers.take_due(now), Some((a, 0)));
        assert_eq!(timers.take_due(now), None);
        assert_eq!(timers.next(), None);
    }
}
