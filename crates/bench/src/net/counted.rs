//! Counts the events of a transfer.
//!
//! The counters of both machines are read before and after the transfer. The counts of a transfer of nothing
//! are subtracted, since typing commands and starting programs count as well.

use std::collections::BTreeMap;

use super::super::BenchError;
use super::super::statistics::median;
use super::pair::Pair;
use super::traffic::Traffic;

/// Counts for each packet or record; each is the median of all runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counted {
    /// Seconds until the next packet or record.
    pub(super) time: f64,
    /// Accesses to ports and device memory by both guests.
    pub(super) exits: f64,
    /// Interrupts of both cards, as the guests count them.
    pub(super) interrupts: f64,
    /// How often threads of both machines and the switch slept and were woken.
    pub(super) wake_ups: f64,
    /// Processor time in seconds of both machines and the switch.
    pub(super) work: f64,
}

/// The command that makes a guest print the number of its card's interrupts: the sum of its lines in
/// `/proc/interrupts`.
const INTERRUPTS: &str =
    "awk '/eth0|virtio/ {n += $2} END {print \"interrupts\", n + 0}' /proc/interrupts";

impl Counted {
    /// Sends `traffic` `runs` times, and counts.
    pub(super) fn new(
        runs: u32,
        pair: &mut Pair,
        traffic: &Traffic,
    ) -> Result<Counted, BenchError> {
        let mut all = Vec::new();
        for _ in 0..runs {
            let none = Counted::of(pair, traffic, 0)?;
            let count = pair.count(traffic);
            let some = Counted::of(pair, traffic, count)?;
            let each = |field: fn(&Counted) -> f64| {
                (field(&some) - field(&none)).max(0.0) / f64::from(count)
            };
            all.push(Counted::by(each));
        }
        Ok(Counted::by(|field| median(all.iter().map(field))))
    }

    /// Makes counts by computing each field in the same way.
    fn by(make: impl Fn(fn(&Counted) -> f64) -> f64) -> Counted {
        Counted {
            time: make(|counted| counted.time),
            exits: make(|counted| counted.exits),
            interrupts: make(|counted| counted.interrupts),
            wake_ups: make(|counted| counted.wake_ups),
            work: make(|counted| counted.work),
        }
    }

    /// Counts while `count` packets or records are sent.
    fn of(pair: &mut Pair, traffic: &Traffic, count: u32) -> Result<Counted, BenchError> {
        // Asking the guests causes exits and wake-ups, too, so this comes before and after all the rest.
        let interrupts = interrupts(pair)?;
        let before = Counted::now(pair)?;
        let (time, _) = pair.send(traffic, count)?;
        let after = Counted::now(pair)?;
        let more = Counted::by(|field| field(&after) - field(&before));
        Ok(Counted { time, interrupts: self::interrupts(pair)? - interrupts, ..more })
    }

    /// Reads the counters that are visible from outside.
    fn now(pair: &mut Pair) -> Result<Counted, BenchError> {
        let (wake_ups, work) = pair.switch()?;
        let mut counted = Counted { wake_ups: number(wake_ups), work, ..Counted::default() };
        for machine in &mut pair.machines {
            counted.wake_ups += number(machine.peer.wake_ups()?);
            counted.work += machine.peer.time()?;
            let Some(monitor) = &mut machine.monitor else { continue };
            counted.exits += exits(&monitor.counters()?);
        }
        Ok(counted)
    }
}

/// Returns the number of interrupts of both cards.
fn interrupts(pair: &mut Pair) -> Result<f64, BenchError> {
    let mut sum = 0.0;
    for machine in &mut pair.machines {
        let (_, text) = machine.peer.work(INTERRUPTS)?;
        let number = |line: &str| line.strip_prefix("interrupts ")?.trim().parse::<f64>().ok();
        let Some(count) = text.lines().find_map(number) else {
            return Err(BenchError::NotRun("awk".into(), pair.way.kind.name(), text));
        };
        sum += count;
    }
    Ok(sum)
}

/// Returns how often a guest has left its code for a device.
fn exits(counters: &BTreeMap<String, u64>) -> f64 {
    let kinds = ["exits-port-read", "exits-port-write", "exits-mmio-read", "exits-mmio-write"];
    let count = |kind| counters.get(kind).copied().unwrap_or_default();
    number(kinds.into_iter().map(count).sum())
}

/// Converts a count, which is far below the point where this is inexact.
#[expect(clippy::cast_precision_loss)]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_those_to_devices() {
        let counters = [("exits-port-read", 3), ("exits-mmio-write", 4), ("exits-halt", 5)];
        let counters = counters.map(|(name, count)| (name.to_owned(), count)).into();
        assert!((exits(&counters) - 7.0).abs() < 1e-9);
    }
}
