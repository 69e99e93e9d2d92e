//! Measures operations that leave ordinary execution, one at a time: a small kernel (`guest/exits`) repeats
//! each of them, here and in QEMU.

use std::ffi::OsString;
use std::path::Path;

use super::data::Log;
use super::monitor::Monitor;
use super::peer::{Kind, PROMPT, Peer};
use super::statistics::{Run, SPREAD, Series, Turn, cell};
use super::{BenchError, ExitsArguments, show};

/// The divisor of the work of the interpreters, which would otherwise take minutes.
const SLOW_SHARE: u32 = 10;

/// An operation of the kernel, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    name: String,
    /// How often the kernel performs it on a PC.
    count: u32,
}

/// A machine that has started the kernel.
struct System {
    kind: Kind,
    peer: Peer,
    /// The connection that reports the machine's counters. Only machines of this program have one.
    monitor: Option<Monitor>,
    rows: Vec<Row>,
}

/// Counters of a machine up to now.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// How often translated code was left for the engine.
    leavings: u64,
    signals: u64,
}

/// The cost of one operation in one system.
#[derive(Debug, Clone, Default)]
struct Taken {
    /// Processor time of each turn, in seconds.
    runs: Vec<Run>,
    /// How often the operation was performed.
    operations: f64,
    /// What the machine counted meanwhile.
    counted: Counted,
}

impl Taken {
    /// Returns the processor time of one operation, in seconds.
    fn time(&self) -> Series {
        Series::of_work(&self.runs, 1)
    }

    /// Returns a counter's value for one operation.
    fn each(&self, counter: u64) -> f64 {
        f64::from(u32::try_from(counter).unwrap_or(u32::MAX)) / self.operations
    }
}

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &ExitsArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    let kernel = settings.guest("exits")?;
    // This is dropped last, because the running processes have their sockets there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let mut kinds = Kind::installed();
    kinds.retain(|kind| *kind != Kind::Interpreter || arguments.all);
    if arguments.deterministic {
        // The deterministic run stands after the translator, for comparison with it.
        kinds.insert(1, Kind::Deterministic);
    }
    let mut systems = Vec::new();
    for (number, kind) in kinds.iter().enumerate() {
        systems.push(System::boot(*kind, &kernel, &directory.path().join(number.to_string()))?);
    }
    let rows = choose(&systems[0].rows, &arguments.only)?;
    show(
        "Processor time of each operation in nanoseconds, with the loop around it (medians; ± half",
    )?;
    show("the distance between the quartiles). The last columns show how often each makes the")?;
    show("translator leave its code, and how many signals of the host it causes.")?;
    let wide = TIME + SPREAD;
    let names: Vec<_> = kinds.iter().map(|kind| format!("{:>wide$}", kind.name())).collect();
    let gain = GAIN + SPREAD;
    let compared = if kinds.contains(&Kind::Qemu) {
        format!("{:>gain$}", "QEMU/ring3")
    } else {
        String::new()
    };
    show(&format!("{:<27}{}{compared}  leaves  signals", "", names.concat()))?;
    let mut log = Log::begin(settings)?;
    for row in &rows {
        let mut taken = vec![None; systems.len()];
        for turn in 0..settings.runs {
            for (system, taken) in systems.iter_mut().zip(&mut taken) {
                if system.rows.iter().any(|own| own.name == row.name) {
                    system.measure(row, turn, taken.get_or_insert_default())?;
                }
            }
        }
        show(&line(&kinds, row, &taken))?;
        for (kind, taken) in kinds.iter().zip(&taken) {
            let time = taken.as_ref().map(Taken::time).unwrap_or_default();
            log.add_series(kind.name(), &row.name, "processor_seconds", &time)?;
        }
    }
    Ok(())
}

/// The columns of a time and of a ratio, without their spreads.
const TIME: usize = 10;
const GAIN: usize = 9;

/// Returns the rows that were asked for, or all if none was.
fn choose(all: &[Row], only: &[String]) -> Result<Vec<Row>, BenchError> {
    let named = |name: &String| all.iter().find(|row| row.name == *name);
    if let Some(unknown) = only.iter().find(|name| named(name).is_none()) {
        let names: Vec<_> = all.iter().map(|row| row.name.as_str()).collect();
        return Err(BenchError::NoBenchmark(unknown.clone(), names.join(", ")));
    }
    let is_chosen = |row: &&Row| only.is_empty() || only.contains(&row.name);
    Ok(all.iter().filter(is_chosen).cloned().collect())
}

/// Returns the line of a row. A system that lacks a device that the row needs has a dash.
fn line(kinds: &[Kind], row: &Row, taken: &[Option<Taken>]) -> String {
    let mut cells = vec![format!("{:<27}", row.name)];
    let times: Vec<_> =
        taken.iter().map(|taken| taken.as_ref().map(Taken::time).unwrap_or_default()).collect();
    let nanoseconds =
        |time: &Series| cell(time.figure().map(|figure| figure.times(1e9)), TIME, 1, "");
    cells.extend(times.iter().map(nanoseconds));
    let place = |wanted| kinds.iter().position(|kind| *kind == wanted);
    let ours = place(Kind::Translator);
    if let Some(theirs) = place(Kind::Qemu) {
        let gain = ours.and_then(|ours| times[theirs].ratio(&times[ours]));
        cells.push(cell(gain, GAIN, 2, "x"));
    }
    let ours = ours.and_then(|ours| taken[ours].as_ref());
    cells.push(number(ours.map(|ours| ours.each(ours.counted.leavings)), 8, 3));
    cells.push(number(ours.map(|ours| ours.each(ours.counted.signals)), 9, 3));
    cells.concat()
}

fn number(value: Option<f64>, width: usize, digits: usize) -> String {
    value.map_or_else(|| format!("{:>width$}", "-"), |value| format!("{value:width$.digits$}"))
}

impl System {
    fn boot(kind: Kind, kernel: &Path, socket: &Path) -> Result<System, BenchError> {
        let mut options: Vec<OsString> = vec!["-vga".into(), "std".into()];
        let is_ours = kind == Kind::Translator;
        if is_ours {
            let mut target = OsString::from("unix:");
            target.push(socket);
            target.push(",server=on,wait=off");
            options.extend(["-qmp".into(), target]);
        }
        let mut peer = kind.boot_image(kernel, &options)?;
        peer.wait_for(PROMPT)?;
        let monitor = is_ours.then(|| Monitor::connect(socket)).transpose()?;
        let (_, listed) = peer.work("list")?;
        Ok(System { kind, peer, monitor, rows: listed.lines().filter_map(parse).collect() })
    }

    /// Performs the operation of `row` in a turn, and adds the results to `taken`.
    fn measure(&mut self, row: &Row, turn: Turn, taken: &mut Taken) -> Result<(), BenchError> {
        let all = match self.kind {
            Kind::Interpreter | Kind::Bochs => (row.count / SLOW_SHARE).max(1),
            _ => row.count,
        };
        taken.runs.push(Run { turn, count: 0, seconds: self.run(row, 0)? });
        let before = self.counted()?;
        taken.runs.push(Run { turn, count: all, seconds: self.run(row, all)? });
        let after = self.counted()?;
        taken.operations += f64::from(all);
        taken.counted.leavings += after.leavings - before.leavings;
        taken.counted.signals += after.signals - before.signals;
        Ok(())
    }

    /// Performs the operation `count` times, and returns the processor time on the host in seconds.
    fn run(&mut self, row: &Row, count: u32) -> Result<f64, BenchError> {
        let (time, shown) = self.peer.work(&format!("{} {count}", row.name))?;
        if !shown.starts_with(&row.name) {
            return Err(BenchError::NotRun(row.name.clone(), self.kind.name(), shown));
        }
        Ok(time)
    }

    fn counted(&mut self) -> Result<Counted, BenchError> {
        let Some(monitor) = &mut self.monitor else { return Ok(Counted::default()) };
        let counters = monitor.counters()?;
        let counter = |name: &str| counters.get(name).copied().unwrap_or_default();
        Ok(Counted {
            leavings: counter("engine-entries-to-translated-code"),
            signals: counter("engine-signals"),
        })
    }
}

/// Parses a line of the list: name and count.
fn parse(line: &str) -> Option<Row> {
    let [name, count] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    Some(Row { name: name.into(), count: count.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_name() {
        let rows: Vec<_> =
            "list\r\ncpuid 500000\r\nfar_call 10\r\n\r\n".lines().filter_map(parse).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(choose(&rows, &[]).unwrap(), rows);
        let chosen = choose(&rows, &["far_call".into()]).unwrap();
        assert_eq!(chosen, [Row { name: "far_call".into(), count: 10 }]);
        let error = choose(&rows, &["hlt".into()]).unwrap_err().to_string();
        assert_eq!(error, "there is no benchmark hlt; choose from cpuid, far_call");
    }

    #[test]
    fn a_row_that_a_system_does_not_have_is_a_dash() {
        let row = Row { name: "hpet".into(), count: 1 };
        let of = |seconds: f64| Taken {
            runs: vec![Run { turn: 0, count: 10, seconds }],
            operations: 10.0,
            counted: Counted { leavings: 10, signals: 0 },
        };
        let kinds = [Kind::Translator, Kind::Qemu];
        let words = |taken: &[Option<Taken>]| {
            line(&kinds, &row, taken).split_whitespace().map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(words(&[None, Some(of(4e-7))]), ["hpet", "-", "40.0", "-", "-", "-"]);
        assert_eq!(
            words(&[Some(of(2e-7)), Some(of(4e-7))]),
            ["hpet", "20.0", "40.0", "2.00x", "1.000", "0.000"]
        );
    }
}
