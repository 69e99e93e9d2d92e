//! Measures the benchmark suite in guests and on the host.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::peer::{Kind, PROMPT, Peer};
use super::suite::{self, Benchmark, Native};
use super::table::{Row, Table};
use super::{BenchError, CpuArguments, Settings, bochs, median, plot, show};

/// The divisor of the work of the interpreters, which would otherwise take tens of minutes.
const SLOW_SHARE: u32 = 10;

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &CpuArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let disk = |name: &str| {
        let path = directory.path().join(name);
        fs::write(&path, suite::disk_image()).map_err(BenchError::Disk).map(|()| path)
    };
    let native = Native::new(&settings.guest("suite")?, disk("native.img")?)?;
    let chosen = choose(native.list()?, &arguments.only)?;
    let mut kinds = Kind::installed();
    if arguments.deterministic {
        // The deterministic run stands after the translator, for comparison with it.
        kinds.insert(1, Kind::Deterministic);
    }
    kinds.extend(arguments.all.then_some(Kind::Bochs));
    let mut systems = Vec::new();
    for kind in &kinds {
        let disk = disk(&format!("{}.img", systems.len()))?;
        systems.push(System::boot(*kind, settings, &disk, directory.path())?);
    }

    show("Processor time in milliseconds, and its ratio to the host's own time in the same turn")?;
    show("(medians). The time of the same program with nothing to do (count 0), which the last")?;
    show("line shows, has been subtracted.")?;
    show(&format!(
        "Interpreters do 1/{SLOW_SHARE} of the work; their times are multiplied by {SLOW_SHARE}."
    ))?;
    let table = Table::new(&kinds);
    show(&table.header())?;
    let mut rows = Vec::new();
    let mut starts = Vec::new();
    for benchmark in &chosen {
        let (row, start) = measure_one(settings.runs, benchmark, &native, &mut systems)?;
        show(&table.line(&row))?;
        rows.push(row);
        starts.push(start);
    }
    for line in table.means(&rows) {
        show(&line)?;
    }
    show(&table.line(&median_row(&starts)))?;
    match &arguments.plot {
        Some(path) => {
            plot::write(path, &kinds, &rows).map_err(|error| BenchError::Plot(path.clone(), error))
        }
        None => Ok(()),
    }
}

/// Returns the benchmarks that were asked for, or all if none was named.
fn choose(all: Vec<Benchmark>, only: &[String]) -> Result<Vec<Benchmark>, BenchError> {
    for name in only {
        if !all.iter().any(|benchmark| benchmark.name == *name) {
            let names: Vec<_> = all.iter().map(|benchmark| benchmark.name.as_str()).collect();
            return Err(BenchError::NoBenchmark(name.clone(), names.join(", ")));
        }
    }
    let is_chosen = |benchmark: &Benchmark| only.is_empty() || only.contains(&benchmark.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// A guest that is ready for the suite.
struct System {
    kind: Kind,
    peer: Peer,
}

impl System {
    fn boot(
        kind: Kind,
        settings: &Settings,
        disk: &Path,
        directory: &Path,
    ) -> Result<System, BenchError> {
        let mut peer = if kind == Kind::Bochs {
            bochs::boot(&settings.guest("suite.iso")?, disk, directory)?
        } else {
            let kernel = settings.guest("linux-686/vmlinuz")?;
            let initrd = settings.guest("suite.cpio.gz")?;
            let mut drive = OsString::from("format=raw,if=ide,index=0,file=");
            drive.push(disk);
            let options = ["-vga".into(), "std".into(), "-drive".into(), drive];
            kind.boot_kernel(&kernel, &initrd, &options)?
        };
        peer.wait_for(PROMPT)?;
        peer.work(suite::PREPARATION)?;
        Ok(System { kind, peer })
    }

    /// Returns how often the system does the work of `benchmark`.
    fn count(&self, benchmark: &Benchmark) -> u32 {
        match self.kind {
            Kind::Interpreter | Kind::Bochs => (benchmark.count / SLOW_SHARE).max(1),
            _ => benchmark.count,
        }
    }

    /// Runs `benchmark`, and returns the processor time that it took on the host, in seconds. Its checksum
    /// must be `expected`.
    fn run(&mut self, benchmark: &Benchmark, count: u32, expected: u32) -> Result<f64, BenchError> {
        let (time, text) = self.peer.work(&suite::guest_command(benchmark, count))?;
        let name = || benchmark.name.clone();
        let outcome = suite::outcome(&text, &benchmark.name)
            .ok_or_else(|| BenchError::NotRun(name(), self.kind.name(), text))?;
        if outcome.checksum != expected {
            let found = outcome.checksum;
            return Err(BenchError::Differs(name(), found, self.kind.name(), expected));
        }
        Ok(time)
    }
}

/// The times of one benchmark with all of its work and with none of it.
#[derive(Debug, Default)]
struct Times {
    all: Vec<f64>,
    none: Vec<f64>,
}

impl Times {
    /// Returns the time of its work, multiplied by `factor`, or None if starting takes so long that the work
    /// does not stand out.
    fn work(&self, factor: f64) -> Option<f64> {
        let time = (median(self.all.clone()) - median(self.none.clone())) * factor;
        (time > 0.0).then_some(time)
    }

    /// Returns the ratio of its work, multiplied by `factor`, to the work of `other` in the same turns, as a
    /// median. The comparison within a turn cancels other load of the machine, which comes and goes and slows
    /// both down.
    fn ratio(&self, factor: f64, other: &Times) -> Option<f64> {
        let of = |times: &Times| {
            let none = median(times.none.clone());
            times.all.iter().map(move |all| all - none).collect::<Vec<_>>()
        };
        let turns = of(self).into_iter().zip(of(other)).map(|(own, other)| own * factor / other);
        let ratio = median(turns.collect());
        (ratio > 0.0).then_some(ratio)
    }
}

/// Measures one benchmark: its work, and starting it.
fn measure_one(
    runs: u32,
    benchmark: &Benchmark,
    native: &Native,
    systems: &mut [System],
) -> Result<(Row, Row), BenchError> {
    let mut on_host = Times::default();
    let mut times: Vec<_> = systems.iter().map(|_| Times::default()).collect();
    let idle = checksum(benchmark, native, 0)?;
    let mut expected = Vec::new();
    for system in systems.iter() {
        expected.push(checksum(benchmark, native, system.count(benchmark))?);
    }
    for _ in 0..runs {
        for (count, measured) in [(benchmark.count, &mut on_host.all), (0, &mut on_host.none)] {
            measured.extend(native.run(benchmark, count)?.map(|outcome| outcome.time));
        }
        for ((system, times), expected) in systems.iter_mut().zip(&mut times).zip(&expected) {
            times.all.push(system.run(benchmark, system.count(benchmark), *expected)?);
            times.none.push(system.run(benchmark, 0, idle)?);
        }
    }
    let factor = |system: &System| f64::from(benchmark.count) / f64::from(system.count(benchmark));
    let with_factors = || systems.iter().map(factor).zip(&times);
    let row = Row {
        name: benchmark.name.clone(),
        group: benchmark.group.clone(),
        native: on_host.work(1.0),
        times: with_factors().map(|(factor, times)| times.work(factor)).collect(),
        ratios: with_factors().map(|(factor, times)| times.ratio(factor, &on_host)).collect(),
    };
    let some = |times: &Times| (!times.none.is_empty()).then(|| median(times.none.clone()));
    let start = Row::of_times(
        &benchmark.name,
        &benchmark.group,
        some(&on_host),
        times.iter().map(some).collect(),
    );
    Ok((row, start))
}

/// Returns the right checksum of `benchmark`, which the host computes. A benchmark that the host cannot run
/// checks its results itself and returns its count.
fn checksum(benchmark: &Benchmark, native: &Native, count: u32) -> Result<u32, BenchError> {
    Ok(native.run(benchmark, count)?.map_or(count, |outcome| outcome.checksum))
}

/// Returns the medians of all rows, kind by kind.
fn median_row(rows: &[Row]) -> Row {
    let kinds = rows.first().map_or(0, |row| row.times.len());
    let some = |values: Vec<f64>| (!values.is_empty()).then(|| median(values));
    Row::of_times(
        "(count 0, median)",
        "",
        some(rows.iter().filter_map(|row| row.native).collect()),
        (0..kinds)
            .map(|kind| some(rows.iter().filter_map(|row| row.times[kind]).collect()))
            .collect(),
    )
}
