//! What parts use of the host in a second.

use std::time::Instant;

use ring3_supervisor::command::Usage;
use serde::Serialize;

/// What all parts have used up to a moment.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) parts: Vec<Usage>,
}

/// What a part uses in a second. None if that is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Rates {
    /// Nanoseconds of processors.
    pub(crate) processor: Option<u64>,
    /// Bytes that come from disks.
    pub(crate) read: Option<u64>,
    /// Bytes that go to disks.
    pub(crate) written: Option<u64>,
    /// Bytes that come from networks.
    pub(crate) received: Option<u64>,
    /// Bytes that go to networks.
    pub(crate) sent: Option<u64>,
}

impl Sample {
    /// Returns what the parts use, in their order. Rates are those since the sample `before`.
    pub(crate) fn rates(&self, before: &Sample) -> impl Iterator<Item = (&Usage, Rates)> {
        let millis = self.at.saturating_duration_since(before.at).as_millis();
        self.parts.iter().map(move |part| {
            let same = before.parts.iter().find(|other| {
                // Counters of another process say nothing.
                other.status.name == part.status.name && other.status.pid == part.status.pid
            });
            (part, same.map_or(Rates::default(), |same| rates(same, part, millis)))
        })
    }
}

fn rates(before: &Usage, now: &Usage, millis: u128) -> Rates {
    let rate = |count: fn(&Usage) -> Option<u64>| {
        let difference = count(now)?.saturating_sub(count(before)?);
        (u128::from(difference) * 1000).checked_div(millis).map(|rate| rate as u64)
    };
    let runs = now.status.pid.is_some();
    Rates {
        processor: rate(|part| Some(part.processor_nanos)).filter(|_| runs),
        read: rate(|part| part.disk_read),
        written: rate(|part| part.disk_written),
        received: rate(|part| part.network_received),
        sent: rate(|part| part.network_sent),
    }
}
