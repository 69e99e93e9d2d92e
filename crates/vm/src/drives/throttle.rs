//! Limits of a drive's rate: bytes and operations a second, in QEMU's words (QEMU, docs/throttle.txt).
//!
//! Each limit is a leaky bucket. A request pours its size into the bucket, and the bucket leaks at the rate
//! of the limit. A request that finds the bucket too full waits until the excess has leaked. So a drive that
//! was idle may be used at full speed for a moment.

use std::time::{Duration, Instant};

use ring3_core::disk::{DiskOperation, SECTOR_SIZE};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A limit. Both numbers are units a second, and 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The rate in the long run.
    pub average: u64,
    /// The rate for a second after a time with less.
    pub max: u64,
}

/// The limits of a drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of all operations.
    pub bytes_total: Limit,
    /// Bytes that are read.
    pub bytes_read: Limit,
    /// Bytes that are written.
    pub bytes_write: Limit,
    /// All operations.
    pub operations_total: Limit,
    /// Operations that read.
    pub operations_read: Limit,
    /// Operations that write.
    pub operations_write: Limit,
}

/// The reasons why limits are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadLimits {
    /// Limits for both kinds together, and for each kind, were given.
    #[error(
        "give a limit for all requests (total), or limits for reads and for writes, but not both"
    )]
    Both,
    /// A maximum without an average, or less than it.
    #[error("a limit for bursts (max) needs a lasting limit, and must not be below it")]
    Max,
    /// A limit that is too large.
    #[error("a limit is at most 1000000000000000 a second")]
    Large,
}

/// The largest limit, as in QEMU.
const RATE_MAX: u64 = 1_000_000_000_000_000;

impl Limits {
    /// Returns whether there are no limits.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// Checks that these limits are possible.
    pub fn check(&self) -> Result<(), BadLimits> {
        let both = |total: Limit, read: Limit, write: Limit| {
            total.average > 0 && (read.average > 0 || write.average > 0)
        };
        if both(self.bytes_total, self.bytes_read, self.bytes_write)
            || both(self.operations_total, self.operations_read, self.operations_write)
        {
            return Err(BadLimits::Both);
        }
        for Limit { average, max } in self.all() {
            if max > 0 && (max < average || average == 0) {
                return Err(BadLimits::Max);
            }
            if average.max(max) > RATE_MAX {
                return Err(BadLimits::Large);
            }
        }
        Ok(())
    }

    fn all(&self) -> [Limit; 6] {
        [
            self.bytes_total,
            self.bytes_read,
            self.bytes_write,
            self.operations_total,
            self.operations_read,
            self.operations_write,
        ]
    }
}

/// Delays operations so that they keep to limits.
#[derive(Debug, Clone)]
pub(super) struct Throttle {
    limits: Limits,
    /// A bucket for each of the limits, in their order.
    buckets: [Bucket; 6],
    /// When the buckets last leaked.
    seen: Instant,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    limit: Limit,
    /// Its contents, in billionths of a unit, so that the rate is the number that leaks in a nanosecond.
    level: u128,
}

/// Billionths in a unit.
const NANO: u128 = 1_000_000_000;

impl Bucket {
    /// Returns the size of the bucket: a second at the rate for bursts, or else a tenth of a second, as in
    /// QEMU.
    fn size(&self) -> u128 {
        let Limit { average, max } = self.limit;
        if max > 0 { u128::from(max) * NANO } else { u128::from(average) * NANO / 10 }
    }

    /// Returns how long it takes until the contents are down to the size, in nanoseconds.
    fn wait(&self) -> u64 {
        let rate = u128::from(self.limit.average);
        let rest = self.level.saturating_sub(self.size());
        if rate == 0 { 0 } else { u64::try_from(rest.div_ceil(rate)).unwrap_or(u64::MAX) }
    }

    fn run_out(&mut self, nanos: u128) {
        self.level = self.level.saturating_sub(nanos * u128::from(self.limit.average));
    }

    fn pour(&mut self, units: u64) {
        if self.limit.average > 0 {
            self.level += u128::from(units) * NANO;
        }
    }
}

impl Throttle {
    /// Returns a throttle with empty buckets at `now`, or None if there are no limits.
    pub(super) fn new(limits: Limits, now: Instant) -> Option<Throttle> {
        let buckets = limits.all().map(|limit| Bucket { limit, level: 0 });
        (!limits.is_none()).then_some(Throttle { limits, buckets, seen: now })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns when `operation`, which is requested at `now`, may be executed.
    pub(super) fn ask(&mut self, operation: &DiskOperation, now: Instant) -> Instant {
        let (bytes, is_read) = match operation {
            DiskOperation::Read { count, .. } => (u64::from(*count) * SECTOR_SIZE as u64, true),
            DiskOperation::Write { data, .. } => (data.len() as u64, false),
            DiskOperation::WriteZeroes { count, .. } => {
                (u64::from(*count) * SECTOR_SIZE as u64, false)
            }
            // Flushes and discards use no more of the disk's rate.
            DiskOperation::Flush | DiskOperation::Discard { .. } | DiskOperation::Eject => {
                return now;
            }
        };
        let nanos = now.saturating_duration_since(self.seen).as_nanos();
        self.seen = now.max(self.seen);
        let units = if is_read { [bytes, bytes, 0, 1, 1, 0] } else { [bytes, 0, bytes, 1, 0, 1] };
        let mut wait = 0;
        for (bucket, units) in self.buckets.iter_mut().zip(units) {
            bucket.run_out(nanos);
            if units > 0 {
                wait = wait.max(bucket.wait());
                bucket.pour(units);
            }
        }
        now + Duration::from_nanos(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: DiskOperation = DiskOperation::Read { sector: 0, count: 8 };

    /// Returns the delay, in milliseconds, of the last of `count` requests that are made together.
    fn last_of(limits: Limits, count: u32, operation: &DiskOperation) -> u128 {
        let start = Instant::now();
        let mut throttle = Throttle::new(limits, start).unwrap();
        let done = (0..count).map(|_| throttle.ask(operation, start)).last();
        done.unwrap().duration_since(start).as_millis()
    }

    fn limit(average: u64, max: u64) -> Limit {
        Limit { average, max }
    }

    #[test]
    fn requests_wait_for_earlier_ones() {
        let operations = Limits { operations_total: limit(100, 0), ..Limits::default() };
        // 10 of them take a tenth of a second; one more fits before the bucket is too full.
        assert_eq!(last_of(operations, 11, &READ), 0);
        assert_eq!(last_of(operations, 12, &READ), 10);
        assert_eq!(last_of(operations, 111, &READ), 1000);
        let bytes = Limits { bytes_read: limit(40960, 0), ..Limits::default() };
        assert_eq!(last_of(bytes, 12, &READ), 1000);
        assert_eq!(last_of(bytes, 12, &DiskOperation::Write { sector: 0, data: vec![0; 4096] }), 0);
        assert_eq!(last_of(operations, 500, &DiskOperation::Flush), 0);
    }

    #[test]
    fn the_largest_request_of_the_lowest_limit_goes_through() {
        let limits = Limits { bytes_total: limit(1, 0), ..Limits::default() };
        let large = DiskOperation::Read { sector: 0, count: u32::MAX };
        assert_eq!(last_of(limits, 1, &large), 0);
        assert!(last_of(limits, 2, &large) > 1_000_000_000);
    }

    #[test]
    fn bursts_are_allowed_after_a_rest() {
        let limits = Limits { operations_total: limit(10, 1000), ..Limits::default() };
        let start = Instant::now();
        let mut throttle = Throttle::new(limits, start).unwrap();
        let mut ask = |count, now| (0..count).map(|_| throttle.ask(&READ, now)).last().unwrap();
        assert_eq!(ask(1001, start), start);
        assert_eq!(ask(10, start), start + Duration::from_secs(1));
        // The bucket is empty after 101.1 seconds.
        let later = start + Duration::from_secs(102);
        assert_eq!(ask(1001, later), later);
    }

    #[test]
    fn limits_that_contradict_each_other_are_refused() {
        let some = limit(10, 0);
        for (limits, error) in [
            (Limits { bytes_total: some, bytes_write: some, ..Limits::default() }, BadLimits::Both),
            (
                Limits { operations_total: some, operations_read: some, ..Limits::default() },
                BadLimits::Both,
            ),
            (Limits { bytes_read: limit(10, 9), ..Limits::default() }, BadLimits::Max),
            (Limits { bytes_read: limit(0, 9), ..Limits::default() }, BadLimits::Max),
            (Limits { bytes_read: limit(RATE_MAX + 1, 0), ..Limits::default() }, BadLimits::Large),
        ] {
            assert_eq!(limits.check(), Err(error));
        }
        let limits = Limits { bytes_total: some, operations_write: some, ..Limits::default() };
        assert_eq!(limits.check(), Ok(()));
    }
}
