//! Values of which those outside are told when they change, but not too often.

use ring3_core::clock::{Tag, Time};
use ring3_core::device::Context;
use serde::{Deserialize, Serialize};

/// The shortest time between two messages, in nanoseconds, as QEMU's: while a balloon grows, its size changes with each
/// MiB.
const BETWEEN: u64 = 1_000_000_000;

/// What those outside were told last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Telling<T> {
    told: T,
    /// When that was.
    told_at: Option<Time>,
}

impl<T: Copy + PartialEq> Telling<T> {
    /// Returns whether they are to be told of `value` now, and notes that they are. If that is too early, it sets `timer`,
    /// at which this is to be asked again.
    pub(super) fn is_due(&mut self, context: &mut Context<'_>, timer: Tag, value: T) -> bool {
        if self.told == value {
            return false;
        }
        let now = context.now;
        let next = self.told_at.map(|at| at.plus_nanos(BETWEEN)).filter(|next| *next > now);
        if let Some(next) = next {
            context.set_timer(timer, next);
            return false;
        }
        (self.told, self.told_at) = (value, Some(now));
        true
    }
}
