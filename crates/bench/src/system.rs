//! Measures what the operations of an operating system cost: in Tern and in Linux, side by side.

use super::data::{Log, Measurement};
use super::extent::Extent;
use super::guest::{Bus, Guest, Guests};
use super::peer::Kind;
use super::statistics::{SPREAD, Series, cell};
use super::suite::{Benchmark, Native};
use super::table::{Column, Row};
use super::turns::{self, System};
use super::{BenchError, SystemArguments, show};

/// An operation, and the benchmark of the suite that does it.
struct Operation {
    title: &'static str,
    benchmark: &'static str,
    /// How many operations one count of the benchmark has.
    in_one: f64,
}

const OPERATIONS: [Operation; 7] = [
    Operation { title: CALL, benchmark: "flow_syscall", in_one: 1.0 },
    Operation { title: MESSAGE, benchmark: "message", in_one: 1.0 },
    Operation { title: "fork, exit, wait", benchmark: "fork", in_one: 1.0 },
    Operation { title: "vfork, exec, exit, wait", benchmark: "exec", in_one: 1.0 },
    Operation { title: PIPE, benchmark: "pipe", in_one: 1.0 },
    // There and back are two ways.
    Operation { title: BETWEEN, benchmark: "pipesw", in_one: 2.0 },
    Operation { title: "page fault", benchmark: "page_fault", in_one: 64.0 },
];
const CALL: &str = "null kernel call";
const MESSAGE: &str = "message and its answer";
const PIPE: &str = "byte through a pipe";
const BETWEEN: &str = "the same, to a process";
/// What another process costs, by the differences of two of them.
const SWITCH: &str = "switch of processes";

/// Measures the systems in turns, and shows the microseconds of each operation.
pub(super) fn measure(arguments: &SystemArguments) -> Result<(), BenchError> {
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let settings = &arguments.settings;
    let native = turns::native(settings, Guests::Both, directory.path())?;
    let benchmarks = native.list()?;
    let mut kinds = Kind::installed();
    kinds.retain(|kind| *kind != Kind::Interpreter || arguments.all);
    let mut systems = turns::boot(settings, Guests::Both, &kinds, Bus::Ide, directory.path())?;
    // The guests of a system stand beside each other.
    systems.sort_by_key(|system| kinds.iter().position(|kind| *kind == system.column.kind));
    let columns: Vec<_> = systems.iter().map(|system| system.column).collect();
    show("Processor time of each operation in microseconds (medians; ± half the distance between")?;
    show("the quartiles). The time of the same program with nothing to do has been subtracted.")?;
    for line in header(&columns) {
        show(&line)?;
    }
    let mut log = Log::begin(settings)?;
    let mut rows: Vec<Row> = Vec::new();
    for operation in &OPERATIONS {
        let (row, measurements) =
            measure_one(settings.runs, operation, &benchmarks, &native, &mut systems)?;
        log.add(&measurements)?;
        show(&line(&row))?;
        rows.push(row);
    }
    match switch(&rows, &columns) {
        Some(row) => show(&line(&row)),
        None => Ok(()),
    }
}

/// Measures one operation, and returns its row and all runs.
fn measure_one(
    runs: u32,
    operation: &Operation,
    benchmarks: &[Benchmark],
    native: &Native,
    systems: &mut [System],
) -> Result<(Row, Vec<Measurement>), BenchError> {
    let benchmark = benchmarks.iter().find(|benchmark| benchmark.name == operation.benchmark);
    let benchmark = benchmark.ok_or_else(|| {
        let names: Vec<_> = benchmarks.iter().map(|benchmark| benchmark.name.as_str()).collect();
        BenchError::NoBenchmark(operation.benchmark.into(), names.join(", "))
    })?;
    let all = turns::measure_one(Extent::Turns(runs), benchmark, native, systems)?;
    let each = |series: &Series| {
        let count = f64::from(benchmark.count) * operation.in_one;
        series.map(|time| time / count)
    };
    let mut row = all.row(benchmark, |runs| each(&Series::of_work(runs, benchmark.count)));
    row.name = operation.title.into();
    let columns: Vec<_> = systems.iter().map(|system| system.column).collect();
    Ok((row, all.measurements(benchmark, &columns)))
}

/// Returns the row of a switch to another process. In Linux it is what a byte through a pipe takes longer to
/// another process than within one (as in McVoy and Staelin, "lmbench: Portable Tools for Performance
/// Analysis", 1996). In Tern a pipe is in a process of its own, so that each byte switches; there it is half
/// of what a message and its answer take longer with another process than with the kernel.
fn switch(rows: &[Row], columns: &[Column]) -> Option<Row> {
    let row = |title| rows.iter().find(|row| row.name == title);
    let (between, within, message, call) = (row(BETWEEN)?, row(PIPE)?, row(MESSAGE)?, row(CALL)?);
    let pipes = |one: &Series, other: &Series| one.with(other, |one, other| one - other);
    let messages = |one: &Series, other: &Series| one.with(other, |one, other| (one - other) / 2.0);
    let of = |(number, column): (usize, &Column)| match column.guest {
        Guest::Linux | Guest::Amd64 => pipes(&between.times[number], &within.times[number]),
        Guest::Tern => messages(&message.times[number], &call.times[number]),
    };
    Some(Row {
        name: SWITCH.into(),
        group: between.group.clone(),
        native: pipes(&between.native, &within.native),
        times: columns.iter().enumerate().map(of).collect(),
    })
}

const NAME: usize = 24;
const TIME: usize = 9;
const CELL: usize = TIME + SPREAD;

/// Returns the lines above the table: the systems, and the guests in each.
fn header(columns: &[Column]) -> [String; 2] {
    let line = |host: &str, name: fn(&Column) -> &'static str| {
        let names = columns.iter().map(|column| format!("{:>CELL$}", name(column)));
        format!("{:NAME$}{host:>CELL$}{}", "", names.collect::<String>())
    };
    let system = |column: &Column| match column.guest {
        Guest::Linux | Guest::Amd64 => column.kind.name(),
        Guest::Tern => "",
    };
    [line("host", system), line("", |column| column.guest.name())]
}

fn line(row: &Row) -> String {
    let times = std::iter::once(&row.native).chain(&row.times);
    let cells = times.map(|time| cell(time.figure().map(|time| time.times(1e6)), TIME, 2, ""));
    format!("{:<NAME$}{}", row.name, cells.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, times: [f64; 3]) -> Row {
        let [native, linux, tern] = times.map(|time| Series::from_iter([(0, time * 1e-6)]));
        Row { name: name.into(), group: "system".into(), native, times: vec![linux, tern] }
    }

    #[test]
    fn a_switch_is_what_another_process_costs() {
        let rows = [
            row(CALL, [0.1, 0.2, 1.0]),
            row(MESSAGE, [5.0, 9.0, 8.0]),
            row(PIPE, [1.0, 4.0, 30.0]),
            row(BETWEEN, [3.5, 3.0, 30.0]),
        ];
        let column = |guest| Column { guest, kind: Kind::Translator };
        let columns = [Guest::Linux, Guest::Tern].map(column);
        let line = line(&switch(&rows, &columns).unwrap());
        let words: Vec<_> = line.split_whitespace().collect();
        // Where it takes no longer, it does not stand out.
        assert_eq!(words, ["switch", "of", "processes", "2.50", "-", "3.50"]);
        assert!(switch(&rows[..3], &columns).is_none());
        assert_eq!(header(&columns)[1].len(), line.len());
    }

    #[test]
    fn titles_leave_room() {
        for operation in &OPERATIONS {
            assert!(operation.title.len() < NAME && operation.in_one >= 1.0);
        }
    }
}
