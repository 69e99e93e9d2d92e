//! The timer's counter (SDM vol. 3, 12.5.4).

use ring3_core::clock::Time;
use serde::{Deserialize, Serialize};

use super::TIMER_HERTZ;

/// Bits 3, 1 and 0 of the divide configuration register (figure 12-10).
const DIVIDE_BITS: u32 = 0b1011;

/// A counter that counts down in virtual time, from the initial count to 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counter {
    /// The initial count register.
    initial: u32,
    /// The divide configuration register.
    divide: u32,
    /// What the count was at `since`; at 0 the counter stands.
    count: u32,
    since: Time,
}

impl Counter {
    /// The initial count register.
    pub(super) fn initial(&self) -> u32 {
        self.initial
    }

    /// The divide configuration register.
    pub(super) fn divide(&self) -> u32 {
        self.divide
    }

    /// Nanoseconds for each count. The divisor is 2 to 128 for the values 0 to 6 of bits 3, 1 and 0, and 1 for 7.
    fn nanos_per_count(&self) -> u64 {
        let value = self.divide & 0b11 | self.divide >> 1 & 0b100;
        let divisor = 1 << ((value + 1) & 7);
        divisor * (1_000_000_000 / TIMER_HERTZ)
    }

    /// When the count is 0; never, when the counter stands or that is after the end of time.
    pub(super) fn expiry(&self) -> Option<Time> {
        let end = self.since.plus_nanos(u64::from(self.count) * self.nanos_per_count());
        (self.count != 0 && end != Time::from_nanos(u64::MAX)).then_some(end)
    }

    /// The current count register, after [`Counter::catch_up`] to `now`.
    pub(super) fn current(&self, now: Time) -> u32 {
        let counted = now.nanos_since(self.since) / self.nanos_per_count();
        self.count.saturating_sub(u32::try_from(counted).unwrap_or(u32::MAX))
    }

    /// A write to the initial count register: the counter starts anew, or stops with 0.
    pub(super) fn start(&mut self, now: Time, initial: u32) {
        (self.initial, self.count, self.since) = (initial, initial, now);
    }

    /// A write to the divide configuration register: the count goes on from where it is. To be
    /// called after [`Counter::catch_up`] to `now`.
    pub(super) fn set_divide(&mut self, now: Time, value: u32) {
        (self.count, self.since) = (self.current(now), now);
        self.divide = value & DIVIDE_BITS;
    }

    /// Counts until `now`. True when the count has been 0, once or more: a `periodic` counter
    /// starts again each time.
    pub(super) fn catch_up(&mut self, now: Time, periodic: bool) -> bool {
        let Some(expiry) = self.expiry().filter(|expiry| *expiry <= now) else {
            return false;
        };
        if periodic {
            let period = u64::from(self.initial) * self.nanos_per_count();
            let late = now.nanos_since(expiry);
            self.since = expiry.plus_nanos(late - late % period);
            self.count = self.initial;
        } else {
            self.count = 0;
        }
        true
    }

    /// False when no counter can be in this state.
    pub(super) fn is_valid(&self) -> bool {
        self.divide & !DIVIDE_BITS == 0 && self.count <= self.initial
    }
}
