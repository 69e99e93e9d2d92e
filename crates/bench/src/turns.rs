//! Runs benchmarks of the suite in turns: in each guest in each kind of system, and on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::data::{HOST, Measurement, NATIVE};
use super::extent::Extent;
use super::guest::{Bus, Guest, Guests};
use super::peer::{Kind, Peer};
use super::statistics::{Figure, Run, Series};
use super::suite::{self, Benchmark, Native};
use super::table::{Column, Row};
use super::{BenchError, Settings};

/// Makes the suite on the host that these guests are compared with. Its disk is in `directory`.
pub(super) fn native(
    settings: &Settings,
    guests: Guests,
    directory: &Path,
) -> Result<Native, BenchError> {
    Native::new(&settings.guest(guests.native_suite())?, make_disk(directory, "native")?)
}

/// Makes the disk of a system in `directory`.
fn make_disk(directory: &Path, name: &str) -> Result<PathBuf, BenchError> {
    let path = directory.join(format!("{name}.img"));
    fs::write(&path, suite::disk_image()).map_err(BenchError::Disk)?;
    Ok(path)
}

/// Boots each guest in each kind of system, with its disk by `bus`.
pub(super) fn boot(
    settings: &Settings,
    guests: Guests,
    kinds: &[Kind],
    bus: Bus,
    directory: &Path,
) -> Result<Vec<System>, BenchError> {
    let mut systems = Vec::new();
    for guest in guests.all() {
        // The discs that Bochs boots have Linux.
        for kind in kinds.iter().filter(|kind| **kind != Kind::Bochs || *guest == Guest::Linux) {
            let disk = make_disk(directory, &systems.len().to_string())?;
            let peer = guest.boot(*kind, settings, bus, &disk, &[], directory)?;
            systems.push(System { column: Column { guest: *guest, kind: *kind }, bus, peer });
        }
    }
    Ok(systems)
}

/// A guest that is ready for the suite.
pub(super) struct System {
    pub(super) column: Column,
    bus: Bus,
    peer: Peer,
}

impl System {
    /// Runs `benchmark`, and returns what it prints, but with the processor time that it took on the host. Its
    /// checksum must be `expected`, if that is known.
    fn run(
        &mut self,
        benchmark: &Benchmark,
        count: u32,
        expected: Option<u32>,
    ) -> Result<suite::Outcome, BenchError> {
        let (time, text) =
            self.peer.work(&suite::guest_command(self.column.guest, self.bus, benchmark, count))?;
        let name = || benchmark.name.clone();
        let outcome = suite::outcome(&text, &benchmark.name)
            .ok_or_else(|| BenchError::NotRun(name(), self.column.kind.name(), text))?;
        if let Some(expected) = expected.filter(|expected| *expected != outcome.checksum) {
            let found = outcome.checksum;
            return Err(BenchError::Differs(name(), found, self.column.kind.name(), expected));
        }
        Ok(suite::Outcome { time, ..outcome })
    }
}

/// The runs of one benchmark.
pub(super) struct Runs {
    native: Vec<Run>,
    systems: Vec<Vec<Run>>,
    /// The frequencies of time-stamp counters in MHz in the runs that did some work, on the host and then in each
    /// system.
    frequencies: Vec<Vec<f64>>,
}

impl Runs {
    /// Makes the row of what `series` finds in the runs of each system.
    pub(super) fn row(&self, benchmark: &Benchmark, series: impl Fn(&[Run]) -> Series) -> Row {
        Row {
            name: benchmark.name.clone(),
            group: benchmark.group.clone(),
            native: series(&self.native),
            times: self.systems.iter().map(|runs| series(runs)).collect(),
        }
    }

    /// Returns the median frequency of the time-stamp counter in MHz on the host, if the benchmark runs there, and
    /// then in each system.
    pub(super) fn frequencies(&self) -> Vec<Option<f64>> {
        let median = |all: &Vec<f64>| Some(Figure::of(all.iter().copied())?.median);
        self.frequencies.iter().map(median).collect()
    }

    /// Returns all runs, for the file of raw data.
    pub(super) fn measurements(
        &self,
        benchmark: &Benchmark,
        columns: &[Column],
    ) -> Vec<Measurement> {
        let of = |system: &'static str, guest: &'static str, runs: &[Run]| {
            let measurement = |run: &Run| Measurement {
                system: system.into(),
                guest: guest.into(),
                benchmark: benchmark.name.clone(),
                group: benchmark.group.clone(),
                work: benchmark.count,
                turn: run.turn,
                count: run.count,
                seconds: run.seconds,
            };
            runs.iter().map(measurement).collect::<Vec<_>>()
        };
        let mut all = of(NATIVE, HOST, &self.native);
        for (Column { guest, kind }, runs) in columns.iter().zip(&self.systems) {
            all.extend(of(kind.name(), guest.name(), runs));
        }
        all
    }
}

/// Measures one benchmark: its work, and starting it.
pub(super) fn measure_one(
    extent: Extent,
    benchmark: &Benchmark,
    native: &Native,
    systems: &mut [System],
) -> Result<Runs, BenchError> {
    let mut runs = Runs {
        native: Vec::new(),
        systems: vec![Vec::new(); systems.len()],
        frequencies: vec![Vec::new(); systems.len() + 1],
    };
    let idle = checksum(benchmark, native, 0)?;
    let on_host = extent.count(benchmark, None, |count| {
        Ok(native.run(benchmark, count)?.map(|outcome| outcome.time))
    })?;
    let mut counts = Vec::new();
    for system in systems.iter_mut() {
        let kind = system.column.kind;
        let count = extent.count(benchmark, Some(kind), |count| {
            Ok(Some(system.run(benchmark, count, None)?.time))
        })?;
        counts.push((count, checksum(benchmark, native, count)?));
    }
    let places = systems.len() as u32 + 1;
    let began = Instant::now();
    for turn in (0..).take_while(|turn| extent.goes_on(*turn, places, began.elapsed())) {
        let Runs { native: on_native, systems: in_systems, frequencies } = &mut runs;
        let mut note = |to: &mut Vec<Run>, place: usize, count, outcome: suite::Outcome| {
            to.push(Run { turn, count, seconds: outcome.time });
            if count > 0 {
                frequencies[place].push(outcome.frequency);
            }
        };
        for count in [on_host, 0] {
            if let Some(outcome) = native.run(benchmark, count)? {
                note(on_native, 0, count, outcome);
            }
        }
        for (place, (system, runs)) in (1..).zip(systems.iter_mut().zip(in_systems)) {
            for (count, expected) in [counts[place - 1], (0, idle)] {
                note(runs, place, count, system.run(benchmark, count, Some(expected))?);
            }
        }
    }
    Ok(runs)
}

/// Returns the right checksum of `benchmark`, which the host computes. A benchmark that the host cannot run
/// checks its results itself and returns its count.
fn checksum(benchmark: &Benchmark, native: &Native, count: u32) -> Result<u32, BenchError> {
    Ok(native.run(benchmark, count)?.map_or(count, |outcome| outcome.checksum))
}
