//! Measures the benchmark suite in guests and on the host.

mod extent;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::data::{Data, HOST, Log, Measurement, NATIVE};
use super::guest::{Guest, Guests};
use super::peer::{Kind, Peer};
use super::statistics::{Figure, Run, Series};
use super::suite::{self, Benchmark, Native, Needs};
use super::table::{self, Column, Layout, Row};
use super::{BenchError, CpuArguments, figures, paper, plot, show};
use extent::Extent;

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &CpuArguments) -> Result<(), BenchError> {
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let disk = make_disk(directory.path(), "native")?;
    let native = Native::new(&arguments.settings.guest("suite")?, disk)?;
    let mut all = native.list()?;
    // The guests have no network here.
    all.retain(|benchmark| benchmark.needs != Needs::Server);
    if arguments.paper && arguments.only.is_empty() {
        all.retain(|benchmark| paper::has(&benchmark.name));
    }
    let chosen = choose(all, &arguments.only)?;
    let extent = Extent::of(arguments);
    let mut systems = boot(arguments, directory.path())?;
    let columns: Vec<_> = systems.iter().map(|system| system.column).collect();
    let layout = table::layout(&columns);
    for line in explanation(arguments.guest, extent) {
        show(&line)?;
    }
    for line in layout.header() {
        show(&line)?;
    }
    let mut log = Log::begin(&arguments.settings)?;
    let mut data = Data::default();
    let mut rows = Vec::new();
    let mut starts = Vec::new();
    for benchmark in &chosen {
        let runs = measure_one(extent, benchmark, &native, &mut systems)?;
        let row = runs.row(benchmark, |runs| Series::of_work(runs, benchmark.count));
        show(&layout.line(&row))?;
        rows.push(row);
        let measurements = runs.measurements(benchmark, &columns);
        log.add(&measurements)?;
        data.extend(measurements);
        starts.push(runs.row(benchmark, Series::of_starts));
    }
    show_summary(layout.as_ref(), &rows, &starts)?;
    if arguments.paper {
        show_paper(&columns, &rows)?;
    }
    match &arguments.plot {
        Some(path) => plot::write(path, &figures::slowdown(&data))
            .map_err(|error| BenchError::Plot(path.clone(), error)),
        None => Ok(()),
    }
}

/// Returns the lines that explain the table.
fn explanation(guests: Guests, extent: Extent) -> Vec<String> {
    let mut lines = vec![
        "Processor time in milliseconds (medians; ± half the distance between the quartiles). The".into(),
        "time of the same program with nothing to do (count 0), which the last line shows, has been".into(),
        "subtracted. Ratios come from times in the same turn.".into(),
    ];
    lines.push(match guests {
        Guests::Both => "A ratio is the time in Tern as a multiple of the time in Linux.".into(),
        _ => "A ratio is the time as a multiple of the host's own.".into(),
    });
    lines.push(extent.explanation());
    lines
}

/// Compares our machines' slow-downs with the paper's, for each guest.
fn show_paper(columns: &[Column], rows: &[Row]) -> Result<(), BenchError> {
    for (place, column) in columns.iter().enumerate() {
        if column.kind == Kind::Translator {
            let ours: Vec<_> =
                rows.iter().map(|row| (row.name.as_str(), row.ratio(place))).collect();
            for line in paper::lines(column.guest, &ours) {
                show(line.trim_end())?;
            }
        }
    }
    Ok(())
}

/// Shows what is below the table: means, and the cost of starting.
fn show_summary(layout: &dyn Layout, rows: &[Row], starts: &[Row]) -> Result<(), BenchError> {
    for line in layout.means(rows) {
        show(&line)?;
    }
    show(&layout.line(&median_row(starts)))
}

/// Makes the disk of a system in `directory`.
fn make_disk(directory: &Path, name: &str) -> Result<PathBuf, BenchError> {
    let path = directory.join(format!("{name}.img"));
    fs::write(&path, suite::disk_image()).map_err(BenchError::Disk)?;
    Ok(path)
}

/// Boots each guest in each kind of system.
fn boot(arguments: &CpuArguments, directory: &Path) -> Result<Vec<System>, BenchError> {
    let mut kinds = Kind::installed();
    if arguments.deterministic {
        // The deterministic run stands after the translator, for comparison with it.
        kinds.insert(1, Kind::Deterministic);
    }
    kinds.extend(arguments.all.then_some(Kind::Bochs));
    let mut systems = Vec::new();
    for guest in arguments.guest.all() {
        // The discs that Bochs boots have Linux.
        for kind in kinds.iter().filter(|kind| **kind != Kind::Bochs || *guest == Guest::Linux) {
            let disk = make_disk(directory, &systems.len().to_string())?;
            let peer = guest.boot(*kind, &arguments.settings, &disk, &[], directory)?;
            systems.push(System { column: Column { guest: *guest, kind: *kind }, peer });
        }
    }
    Ok(systems)
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
    column: Column,
    peer: Peer,
}

impl System {
    /// Runs `benchmark`, and returns the processor time that it took on the host, in seconds. Its checksum
    /// must be `expected`, if that is known.
    fn run(
        &mut self,
        benchmark: &Benchmark,
        count: u32,
        expected: Option<u32>,
    ) -> Result<f64, BenchError> {
        let (time, text) =
            self.peer.work(&suite::guest_command(self.column.guest, benchmark, count))?;
        let name = || benchmark.name.clone();
        let outcome = suite::outcome(&text, &benchmark.name)
            .ok_or_else(|| BenchError::NotRun(name(), self.column.kind.name(), text))?;
        if let Some(expected) = expected.filter(|expected| *expected != outcome.checksum) {
            let found = outcome.checksum;
            return Err(BenchError::Differs(name(), found, self.column.kind.name(), expected));
        }
        Ok(time)
    }
}

/// The runs of one benchmark.
struct Runs {
    native: Vec<Run>,
    systems: Vec<Vec<Run>>,
}

impl Runs {
    /// Makes the row of what `series` finds in the runs of each system.
    fn row(&self, benchmark: &Benchmark, series: impl Fn(&[Run]) -> Series) -> Row {
        Row {
            name: benchmark.name.clone(),
            group: benchmark.group.clone(),
            native: series(&self.native),
            times: self.systems.iter().map(|runs| series(runs)).collect(),
        }
    }

    /// Returns all runs, for the file of raw data.
    fn measurements(&self, benchmark: &Benchmark, columns: &[Column]) -> Vec<Measurement> {
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
fn measure_one(
    extent: Extent,
    benchmark: &Benchmark,
    native: &Native,
    systems: &mut [System],
) -> Result<Runs, BenchError> {
    let mut runs = Runs { native: Vec::new(), systems: vec![Vec::new(); systems.len()] };
    let idle = checksum(benchmark, native, 0)?;
    let on_host = extent.count(benchmark, None, |count| {
        Ok(native.run(benchmark, count)?.map(|outcome| outcome.time))
    })?;
    let mut counts = Vec::new();
    for system in systems.iter_mut() {
        let kind = system.column.kind;
        let count = extent
            .count(benchmark, Some(kind), |count| system.run(benchmark, count, None).map(Some))?;
        counts.push((count, checksum(benchmark, native, count)?));
    }
    let places = systems.len() as u32 + 1;
    let began = Instant::now();
    for turn in (0..).take_while(|turn| extent.goes_on(*turn, places, began.elapsed())) {
        for count in [on_host, 0] {
            let outcome = native.run(benchmark, count)?;
            let run = |outcome: suite::Outcome| Run { turn, count, seconds: outcome.time };
            runs.native.extend(outcome.map(run));
        }
        for ((system, runs), work) in systems.iter_mut().zip(&mut runs.systems).zip(&counts) {
            for (count, expected) in [*work, (0, idle)] {
                let seconds = system.run(benchmark, count, Some(expected))?;
                runs.push(Run { turn, count, seconds });
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

/// Returns the medians of all rows, column by column.
fn median_row(rows: &[Row]) -> Row {
    let of = |times: &dyn Fn(&Row) -> Option<Figure>| {
        let numbered = (0..).zip(rows);
        numbered.filter_map(|(number, row)| Some((number, times(row)?.median))).collect()
    };
    Row {
        name: "(count 0, median)".into(),
        group: String::new(),
        native: of(&|row| row.native.figure()),
        times: (0..rows.first().map_or(0, |row| row.times.len()))
            .map(|column| of(&|row| row.times[column].figure()))
            .collect(),
    }
}
