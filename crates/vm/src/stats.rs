//! The counters of a machine, for `--stats`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use ring3_core::clock::Time;
use ring3_core::device::DeviceId;
use ring3_host::samples::Samples;
use ring3_x86::engine::Exit;

use crate::drives::Counts;
use crate::machine::flight::Kept;
use crate::networks::CardCounts;

/// Counters of a run.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Instructions that the guest has executed.
    pub instructions: u64,
    /// Virtual time at the end.
    pub virtual_time: Time,
    /// Host time from start to end.
    pub host_time: Time,
    /// Host time during which the guest waited and the host did nothing, in nanoseconds.
    pub asleep_nanos: u64,
    /// Number of these waits.
    pub sleeps: u64,
    /// Host time in device models, in nanoseconds, by samples.
    pub device_nanos: u64,
    /// The part of each device in it.
    pub(crate) of_devices: BTreeMap<&'static str, u64>,
    /// Host time in slices: from the moment when the guest may run until somebody must look around, in nanoseconds.
    pub slice_nanos: u64,
    /// Host time of the engine besides the guest's code, in nanoseconds, by kinds of work.
    pub engine_nanos: Vec<(&'static str, u64)>,
    /// Host time in back-ends of devices, such as image files, in nanoseconds.
    pub back_end_nanos: u64,
    /// The calls of devices, some of which are timed.
    pub(crate) device_calls: Samples,
    /// Slices, and calls of back-ends, all of which are timed.
    pub(crate) timed_pieces: u64,
    /// Resets that the guest asked for.
    pub resets: u64,
    /// Exits by their kind.
    pub exits: Exits,
    /// What a replay for a debugger does to go back.
    pub travel: Travel,
    /// The memory that the last seconds of the run take, if they are kept.
    pub kept: Option<Kept>,
    /// The engine's own counters.
    pub engine: Vec<(&'static str, u64)>,
    /// The names of the drives, and what they have done.
    pub drives: Vec<(String, Counts)>,
    /// The names of the network cards, and what they have done.
    pub cards: Vec<(String, CardCounts)>,
}

/// Counters of a replay in which a debugger can go back.
#[derive(Debug, Clone, Default)]
pub struct Travel {
    /// Checkpoints that were taken.
    pub checkpoints: u64,
    /// Returns to one of them.
    pub returns: u64,
    /// Instructions that were repeated after them.
    pub repeated: u64,
}

/// Exits of the engine by their kind.
#[derive(Debug, Clone, Default)]
pub struct Exits {
    deadline: u64,
    port_reads: u64,
    port_writes: u64,
    mmio_reads: u64,
    mmio_writes: u64,
    time_stamps: u64,
    guest_tools: u64,
    interrupts: u64,
    halts: u64,
    numeric_errors: u64,
}

impl Stats {
    /// Counts an exit.
    pub(crate) fn count(&mut self, exit: &Exit) {
        let exits = &mut self.exits;
        match exit {
            Exit::Deadline => exits.deadline += 1,
            Exit::PortRead { .. } => exits.port_reads += 1,
            Exit::PortWrite { .. } => exits.port_writes += 1,
            Exit::MmioRead { .. } => exits.mmio_reads += 1,
            Exit::MmioWrite { .. } => exits.mmio_writes += 1,
            Exit::TimeStamp => exits.time_stamps += 1,
            Exit::GuestTool(_) => exits.guest_tools += 1,
            Exit::InterruptWindow => exits.interrupts += 1,
            Exit::Halt => exits.halts += 1,
            Exit::NumericError => exits.numeric_errors += 1,
            // The first occurs at most once; the others end the run, which is reported.
            Exit::ApicBase { .. } | Exit::Debugger | Exit::Shutdown | Exit::Missing(_) => {}
        }
    }

    /// Notes that a device is about to be called. Returns the present time if this call is timed.
    pub(crate) fn device_called(&mut self) -> Option<Instant> {
        self.device_calls.begin()
    }

    /// Notes that the call that began at `called` has ended. `device` finds the device.
    pub(crate) fn device_done(
        &mut self,
        called: Option<Instant>,
        device: impl FnOnce() -> Option<DeviceId>,
    ) {
        if let Some(called) = called {
            let nanos = Samples::nanos_of_all(called);
            self.device_nanos += nanos;
            *self.of_devices.entry(device().map_or("none", DeviceId::name)).or_default() += nanos;
        }
    }

    /// Notes that a slice that began at `began` has ended.
    pub(crate) fn slice_done(&mut self, began: Instant) {
        self.slice_nanos += nanos_since(began);
        self.timed_pieces += 1;
    }

    /// Notes that work of a back-end that began at `began` has ended.
    pub(crate) fn back_end_done(&mut self, began: Instant) {
        self.back_end_nanos += nanos_since(began);
        self.timed_pieces += 1;
    }

    /// Returns all counters except the engine's, by names for programs; times are in nanoseconds.
    pub fn counters(&self) -> [(&'static str, u64); 19] {
        let exits = &self.exits;
        [
            ("instructions", self.instructions),
            ("host-time", self.host_time.as_nanos()),
            ("device-time", self.device_nanos),
            ("back-end-time", self.back_end_nanos),
            ("asleep-time", self.asleep_nanos),
            ("sleeps", self.sleeps),
            ("device-calls", self.device_calls.count()),
            ("timed-pieces", self.timed_pieces),
            ("resets", self.resets),
            ("exits-deadline", exits.deadline),
            ("exits-port-read", exits.port_reads),
            ("exits-port-write", exits.port_writes),
            ("exits-mmio-read", exits.mmio_reads),
            ("exits-mmio-write", exits.mmio_writes),
            ("exits-time-stamp", exits.time_stamps),
            ("exits-guest-tool", exits.guest_tools),
            ("exits-interrupt", exits.interrupts),
            ("exits-halt", exits.halts),
            ("exits-numeric-error", exits.numeric_errors),
        ]
    }

    /// Returns what the host's time went to, in nanoseconds. The times are those of all activities from start to
    /// end. Some of them are found by samples, so one may be a little too large at the cost of the guest's code.
    pub fn activities(&self) -> Vec<(String, u64)> {
        let of_devices =
            self.of_devices.iter().map(|(name, nanos)| (format!("device {name}"), *nanos));
        let of_engine = self.engine_nanos.iter().map(|(name, nanos)| ((*name).to_owned(), *nanos));
        let in_slices: Vec<_> =
            of_engine.chain(of_devices).filter(|(_, nanos)| *nanos > 0).collect();
        let others: u64 = in_slices.iter().map(|(_, nanos)| nanos).sum();
        let outside = self.slice_nanos + self.back_end_nanos + self.asleep_nanos;
        let mut all = vec![
            ("the guest's code".to_owned(), self.slice_nanos.saturating_sub(others)),
            ("files and connections".to_owned(), self.back_end_nanos),
            ("asleep".to_owned(), self.asleep_nanos),
            (
                "inputs, clocks and requests".to_owned(),
                self.host_time.as_nanos().saturating_sub(outside),
            ),
        ];
        all.extend(in_slices);
        all
    }

    /// Returns a line for each activity with its share, the largest first.
    fn shares(&self) -> Vec<String> {
        let mut all = self.activities();
        all.retain(|(_, nanos)| *nanos > 0);
        all.sort_by_key(|(_, nanos)| std::cmp::Reverse(*nanos));
        let sum: u128 = all.iter().map(|(_, nanos)| u128::from(*nanos)).sum();
        let line = |(name, nanos): &(String, u64)| {
            let hundredths = u128::from(*nanos) * 10_000 / sum.max(1);
            format!("{:>9}.{:02} % {name}", hundredths / 100, hundredths % 100)
        };
        all.iter().map(line).collect()
    }

    /// Returns host time in the guest's code, and in the little between it and the rest, in nanoseconds.
    pub fn guest_nanos(&self) -> u64 {
        let elsewhere = self.device_nanos.saturating_add(self.back_end_nanos);
        self.awake_nanos().saturating_sub(elsewhere)
    }

    /// Returns a line for each kind of work that drives and network cards have done.
    fn of_parts(&self) -> impl Iterator<Item = String> {
        let line = |name: &str, what: &str, count: u64, bytes: u64, nanos: u64| {
            let seconds = Duration::from_nanos(nanos).as_secs_f64();
            let bytes = if bytes > 0 { format!("{bytes} bytes, ") } else { String::new() };
            (count > 0).then(|| format!("{count:>14} {what} {name}: {bytes}{seconds:.3} s"))
        };
        let of_drives = self.drives.iter().flat_map(move |(name, counts)| {
            let Counts { reads, writes, flushes, discards, .. } = counts;
            let kinds = [
                ("reads by", reads),
                ("writes by", writes),
                ("flushes by", flushes),
                ("discards by", discards),
            ];
            kinds.map(|(what, of)| line(name, what, of.done, of.bytes, of.nanos))
        });
        let of_cards = self.cards.iter().flat_map(move |(name, CardCounts { sent, received })| {
            let kinds = [("packets sent by", sent), ("packets received by", received)];
            kinds.map(|(what, of)| line(name, what, of.packets, of.bytes, of.nanos))
        });
        of_drives.chain(of_cards).flatten()
    }

    /// Returns host time during which the guest ran, in nanoseconds.
    fn awake_nanos(&self) -> u64 {
        self.host_time.as_nanos().saturating_sub(self.asleep_nanos)
    }
}

impl Display for Stats {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let nanos_awake = u128::from(self.awake_nanos().max(1));
        // In tenths of a million a second.
        let rate = u128::from(self.instructions) * 10_000 / nanos_awake;
        writeln!(f, "{:>14} instructions", self.instructions)?;
        let rate = format!("{}.{}", rate / 10, rate % 10);
        writeln!(f, "{rate:>14} million instructions a second while awake")?;
        writeln!(f, "{:>14.3} s of host time", seconds(self.host_time.as_nanos()))?;
        writeln!(f, "{:>14.3} s of it in the guest's code", seconds(self.guest_nanos()))?;
        writeln!(f, "{:>14.3} s of it in devices", seconds(self.device_nanos))?;
        writeln!(f, "{:>14.3} s of it in files and connections", seconds(self.back_end_nanos))?;
        writeln!(f, "{:>14.3} s of it asleep", seconds(self.asleep_nanos))?;
        writeln!(f, "{:>14.3} s of virtual time", seconds(self.virtual_time.as_nanos()))?;
        writeln!(f, "{:>14} resets", self.resets)?;
        writeln!(f, "{:>14} times asleep", self.sleeps)?;
        let exits = &self.exits;
        let lines = [
            ("exits: deadline", exits.deadline),
            ("exits: port read", exits.port_reads),
            ("exits: port write", exits.port_writes),
            ("exits: memory-mapped read", exits.mmio_reads),
            ("exits: memory-mapped write", exits.mmio_writes),
            ("exits: time stamp", exits.time_stamps),
            ("exits: guest tool", exits.guest_tools),
            ("exits: interrupt", exits.interrupts),
            ("exits: halt", exits.halts),
            ("exits: numeric error", exits.numeric_errors),
        ];
        let Travel { checkpoints, returns, repeated } = self.travel;
        let travel = [
            ("checkpoints taken", checkpoints),
            ("returns to a checkpoint", returns),
            ("instructions repeated after them", repeated),
        ];
        let travel = travel.iter().filter(|_| checkpoints > 0);
        let kept = self.kept.map(|kept| {
            [
                ("checkpoints for the last seconds", kept.taken),
                ("checkpoints kept", kept.checkpoints),
                ("bytes of memory kept in them", kept.memory_bytes),
                ("bytes of inputs kept", kept.input_bytes),
                ("bytes of inputs kept at most", kept.most_input_bytes),
                ("bytes to be read from disks again", kept.read_bytes),
            ]
        });
        let lines = lines.iter().chain(travel).chain(kept.iter().flatten()).chain(&self.engine);
        let lines = lines.map(|(name, count)| format!("{count:>14} {name}"));
        let lines: Vec<_> = lines.chain(self.of_parts()).chain(self.shares()).collect();
        write!(f, "{}", lines.join("\n"))
    }
}

fn nanos_since(moment: Instant) -> u64 {
    u64::try_from(moment.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_many_is_timed() {
        let mut stats = Stats::default();
        let timed = (0..10 * Samples::TIMED).filter(|_| {
            let called = stats.device_called();
            stats.device_done(called, || Some(DeviceId::PIT));
            called.is_some()
        });
        assert_eq!(timed.count(), 10);
        assert_eq!(stats.of_devices.get("pit"), Some(&stats.device_nanos));
    }

    #[test]
    fn activities_add_up_to_the_whole() {
        let stats = Stats {
            host_time: Time::from_nanos(1000),
            asleep_nanos: 100,
            back_end_nanos: 50,
            slice_nanos: 800,
            of_devices: [("pit", 30)].into(),
            engine_nanos: vec![("translating", 70), ("interpreting", 0)],
            ..Stats::default()
        };
        let sum: u64 = stats.activities().iter().map(|(_, nanos)| nanos).sum();
        assert_eq!(sum, 1000);
        let shares = [
            "70.00 % the guest's code",
            "10.00 % asleep",
            "7.00 % translating",
            "5.00 % files and connections",
            "5.00 % inputs, clocks and requests",
            "3.00 % device pit",
        ];
        assert_eq!(stats.shares().iter().map(|line| line.trim()).collect::<Vec<_>>(), shares);
    }

    #[test]
    fn the_kinds_of_time_add_up_to_the_whole() {
        let stats = Stats {
            host_time: Time::from_nanos(100),
            asleep_nanos: 40,
            device_nanos: 15,
            back_end_nanos: 5,
            ..Stats::default()
        };
        assert_eq!(stats.guest_nanos(), 40);
        assert_eq!(Stats { device_nanos: 999, ..stats }.guest_nanos(), 0);
    }
}
