//! Measures the benchmark suite in guests and on the host.

use super::clocks::Clocks;
use super::data::{Data, Log};
use super::extent::Extent;
use super::guest::{Bus, Guests};
use super::peer::Kind;
use super::statistics::{Figure, Series};
use super::suite::{Benchmark, Needs};
use super::table::{self, Column, Layout, Row};
use super::{BenchError, CpuArguments, figures, paper, plot, show, turns};

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &CpuArguments) -> Result<(), BenchError> {
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let native = turns::native(&arguments.settings, arguments.guest, directory.path())?;
    let mut all = native.list()?;
    let bus = if arguments.virtio { Bus::Virtio } else { Bus::Ide };
    // The guests have no network here, and not all have a disk.
    let has = |needs| arguments.guest.all().iter().all(|guest| guest.path(needs, bus).is_some());
    all.retain(|benchmark| benchmark.needs == Needs::Nothing || has(benchmark.needs));
    if arguments.paper && arguments.only.is_empty() {
        all.retain(|benchmark| paper::has(&benchmark.name));
    }
    let chosen = choose(all, &arguments.only)?;
    let extent = Extent::of(arguments);
    let mut kinds = Kind::installed_with(arguments.guest.processor());
    if arguments.deterministic {
        // The deterministic run stands after the translator, for comparison with it.
        kinds.insert(1, Kind::Deterministic);
    }
    kinds.extend(arguments.all.then_some(Kind::Bochs));
    let settings = &arguments.settings;
    let mut systems = turns::boot(settings, arguments.guest, &kinds, bus, directory.path())?;
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
    let mut clocks = Clocks::default();
    for benchmark in &chosen {
        let runs = turns::measure_one(extent, benchmark, &native, &mut systems)?;
        let row = runs.row(benchmark, |runs| Series::of_work(runs, benchmark.count));
        show(&layout.line(&row))?;
        rows.push(row);
        clocks.note(&benchmark.name, runs.frequencies());
        let measurements = runs.measurements(benchmark, &columns);
        log.add(&measurements)?;
        data.extend(measurements);
        starts.push(runs.row(benchmark, Series::of_starts));
    }
    show_summary(layout.as_ref(), &rows, &starts)?;
    for line in clocks.lines(&columns) {
        show(&line)?;
    }
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
