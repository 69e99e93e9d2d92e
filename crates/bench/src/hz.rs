//! Measures what the ticks of a system's clock cost, with the loop of van der Kouwe, "Porting the QEMU
//! virtualization software to MINIX 3" (2009), section 5.1: it counts how often it reads the time-stamp counter
//! until so many cycles have gone by, and each tick takes some iterations away (`guest/suite/ticks.c`).
//!
//! The counter of a guest follows the host's clock, so the count of a busy host says little. Here the processor
//! time of an iteration on the host is compared with that of an iteration without ticks just before.

mod fit;
mod picture;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::data::Log;
use super::guest::{Extras, Guest};
use super::monitor::Monitor;
use super::peer::{Kind, Peer};
use super::statistics::{Figure, Turn, median};
use super::{BenchError, HzArguments, show};
use fit::Line;
use picture::Curve;

/// The paper's table 8: ticks a second of MINIX on a Pentium M, and the overhead in per cent.
pub(crate) const PAPER: [(u32, f64); 25] = [
    (20, 0.134),
    (24, 0.141),
    (25, 0.135),
    (30, 0.144),
    (32, 0.144),
    (40, 0.157),
    (48, 0.158),
    (50, 0.157),
    (60, 0.160),
    (75, 0.181),
    (80, 0.186),
    (96, 0.194),
    (100, 0.195),
    (120, 0.215),
    (150, 0.231),
    (160, 0.243),
    (200, 0.269),
    (240, 0.305),
    (300, 0.347),
    (400, 0.418),
    (480, 0.471),
    (600, 0.568),
    (800, 0.713),
    (1200, 1.002),
    (2400, 1.869),
];
/// Frequencies beyond those of the paper.
const BEYOND: [u32; 2] = [5000, 10_000];
/// The powers of two that Linux's /dev/rtc has for ticks (rtc(4)), as exponents.
const LINUX: std::ops::RangeInclusive<u32> = 4..=13;
/// Instructions of an iteration.
const ITERATION: f64 = 5.0;
/// How often each pair of runs, with ticks and without, is measured in a turn. A host that others share is now
/// quicker and now slower, by more than ticks take; many short pairs are the remedy.
const PAIRS: u32 = 4;
/// The cycles by which the frequency of a time-stamp counter is found.
const TRIAL: u64 = 50_000_000;

/// One run of the loop.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Counted {
    hz: u32,
    iterations: u32,
    cycles: f64,
    /// Seconds by the system's own clock.
    time: f64,
    ticks: u32,
}

/// A run of the loop, seen from outside.
#[derive(Debug, Clone, Copy)]
struct Run {
    counted: Counted,
    /// Processor time on the host, in seconds; of the host itself, the time that has passed.
    seconds: f64,
    /// Instructions that the machine has executed, if it is one of ours.
    instructions: Option<f64>,
}

/// A run in the file of raw data.
#[derive(Debug, Serialize)]
struct Measurement<'a> {
    system: &'a str,
    turn: Turn,
    /// Ticks a second that were asked for, and all ticks that came. The loop of a run of 0 Hz without
    /// `iterations` ends at once.
    hz: u32,
    ticks: u32,
    iterations: u32,
    cycles: f64,
    /// By the system's own clock.
    clock_seconds: f64,
    /// Processor time; of the host itself, the time that has passed.
    seconds: f64,
    /// None if the system does not count them.
    instructions: Option<f64>,
}

/// The runs with ticks, and each run without them just before.
type Pairs = Vec<(Run, Run)>;

/// What runs the loop.
enum Place {
    /// The suite's program, on the host.
    Host(PathBuf),
    /// A guest. Only machines of this program have a monitor.
    Guest(Box<Peer>, Option<Monitor>),
}

/// A system that is measured.
struct System {
    name: String,
    place: Place,
    /// Cycles of its time-stamp counter in a second.
    frequency: f64,
    /// The argument that chooses a timer.
    source: &'static str,
    /// Runs in which the loop ends at once: what starting costs.
    starts: Vec<Run>,
    pairs: Pairs,
}

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &HzArguments) -> Result<(), BenchError> {
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    show("Processor time that ticks take, in per cent (medians; ± half the distance between the")?;
    show(
        "quartiles), by the time of an iteration of a loop with ticks and of one without, just before.",
    )?;
    let mut log = Log::begin(&arguments.settings)?;
    let mut curves = Vec::new();
    let mut ends = Vec::new();
    for guest in arguments.guest.all() {
        let mut systems = boot(*guest, arguments, directory.path())?;
        let frequencies = frequencies(*guest, &arguments.hz);
        for turn in 0..arguments.settings.runs {
            for system in &mut systems {
                let runs = system.take_turn(&frequencies, arguments.time)?;
                log.add(&runs.iter().map(|run| system.measurement(turn, run)).collect::<Vec<_>>())?;
            }
        }
        let is_tern = *guest == Guest::Tern;
        for line in table(&systems, &frequencies, is_tern) {
            show(&line)?;
        }
        ends.extend(systems.iter().map(System::conclusion));
        curves.extend(systems.iter().map(System::curve));
        if is_tern {
            let points = PAPER.map(|(hz, overhead)| (f64::from(hz), overhead)).to_vec();
            ends.push(conclusion("MINIX 3 on its own, in the paper", &points));
            curves.push(Curve { name: "MINIX 3 (paper)".into(), points });
        }
    }
    for line in [String::new()].iter().chain(&ends) {
        show(line)?;
    }
    match &arguments.plot {
        Some(path) => {
            picture::write(path, &curves).map_err(|error| BenchError::Plot(path.clone(), error))
        }
        None => Ok(()),
    }
}

/// Returns the frequencies of ticks that `guest` can have, in Hz: those that were asked for, or all.
fn frequencies(guest: Guest, asked: &[u32]) -> Vec<u32> {
    let linux = || LINUX.map(|exponent| 1 << exponent);
    match guest {
        Guest::Tern if asked.is_empty() => PAPER.iter().map(|(hz, _)| *hz).chain(BEYOND).collect(),
        Guest::Tern => asked.to_vec(),
        Guest::Linux | Guest::Amd64 if asked.is_empty() => linux().collect(),
        Guest::Linux | Guest::Amd64 => linux().filter(|hz| asked.contains(hz)).collect(),
    }
}

/// Boots `guest` in each kind of machine. The host stands beside Linux, as it can run the same program.
fn boot(
    guest: Guest,
    arguments: &HzArguments,
    directory: &Path,
) -> Result<Vec<System>, BenchError> {
    let mut kinds = Kind::installed_with(guest.processor());
    kinds.retain(|kind| *kind != Kind::Interpreter || arguments.all);
    let mut systems = Vec::new();
    if guest != Guest::Tern {
        let program = arguments.settings.guest(arguments.guest.native_suite())?.canonicalize();
        let program = program.map_err(|error| BenchError::Native(error.to_string()))?;
        systems.push(System::new("host".into(), Place::Host(program), "")?);
    }
    for kind in kinds {
        let (peer, monitor) =
            guest.boot_with_monitor(kind, &arguments.settings, &Extras::default(), directory)?;
        let source = if arguments.pit && guest == Guest::Tern { "pit" } else { "" };
        let name = format!("{}, {}", guest.name(), kind.name());
        systems.push(System::new(name, Place::Guest(Box::new(peer), monitor), source)?);
    }
    Ok(systems)
}

impl System {
    /// Makes a system ready: finds the frequency of its time-stamp counter.
    fn new(name: String, place: Place, source: &'static str) -> Result<System, BenchError> {
        let (starts, pairs) = (Vec::new(), Vec::new());
        let mut system = System { name, place, frequency: 0.0, source, starts, pairs };
        let Counted { cycles, time, .. } = system.run(0, TRIAL)?.counted;
        system.frequency = cycles / time.max(1e-6);
        Ok(system)
    }

    /// Runs the loop with each number of ticks a second, and without ticks before each of them, for `time`
    /// milliseconds. Returns all runs.
    fn take_turn(&mut self, frequencies: &[u32], time: u32) -> Result<Vec<Run>, BenchError> {
        let mut all = Vec::new();
        let cycles = (self.frequency * f64::from(time) / 1000.0) as u64;
        for hz in frequencies {
            let start = self.run(0, 0)?;
            self.starts.push(start);
            all.push(start);
            for _ in 0..PAIRS {
                let pair = (self.run(0, cycles)?, self.run(*hz, cycles)?);
                self.pairs.push(pair);
                all.extend([pair.0, pair.1]);
            }
        }
        Ok(all)
    }

    fn measurement(&self, turn: Turn, run: &Run) -> Measurement<'_> {
        let Run { counted, seconds, instructions } = *run;
        let Counted { hz, iterations, cycles, time, ticks } = counted;
        let system = &self.name;
        Measurement {
            system,
            turn,
            hz,
            ticks,
            iterations,
            cycles,
            clock_seconds: time,
            seconds,
            instructions,
        }
    }

    fn run(&mut self, hz: u32, cycles: u64) -> Result<Run, BenchError> {
        let command = format!("suite --ticks {cycles} {hz} {}", self.source);
        let (seconds, shown, instructions) = match &mut self.place {
            Place::Host(program) => (None, output(program, &command)?, None),
            Place::Guest(peer, monitor) => {
                let mut executed = || monitor.as_mut().map(Monitor::instructions).transpose();
                let before = executed()?;
                let (seconds, shown) = peer.work(&command)?;
                let after = executed()?;
                let instructions = before.zip(after).map(|(before, after)| after - before);
                (Some(seconds), shown, instructions)
            }
        };
        let counted = shown.lines().find_map(parse).ok_or(BenchError::NotRun(
            command,
            "a measured system",
            shown.clone(),
        ))?;
        Ok(Run { counted, seconds: seconds.unwrap_or(counted.time), instructions })
    }

    /// Returns the processor time of starting, in seconds, which a run on the host does not contain.
    fn start(&self) -> f64 {
        match self.place {
            Place::Host(_) => 0.0,
            Place::Guest(..) => median(self.starts.iter().map(|run| run.seconds)),
        }
    }

    /// Returns the overhead at `hz` ticks a second, in per cent.
    fn overhead(&self, hz: u32) -> Option<Figure> {
        let start = self.start();
        let at = self.pairs.iter().filter(|(_, with)| with.counted.hz == hz);
        Figure::of(at.map(|(without, with)| 100.0 * overhead(without, with, start)))
    }

    fn curve(&self) -> Curve {
        let mut all: Vec<_> = self.pairs.iter().map(|(_, with)| with.counted.hz).collect();
        all.sort_unstable();
        all.dedup();
        let point = |hz: u32| Some((f64::from(hz), self.overhead(hz)?.median));
        Curve { name: self.name.clone(), points: all.into_iter().filter_map(point).collect() }
    }

    /// Returns a line that says what a tick costs.
    fn conclusion(&self) -> String {
        let mut line = conclusion(&self.name, &self.curve().points);
        if let Some(Line { slope, error, .. }) = instructions_per_tick(&self.pairs) {
            line = format!("{line}; {slope:.0} ±{error:.0} instructions a tick");
        }
        let runs = || self.pairs.iter().map(|(_, with)| with.counted);
        let ticks: f64 = runs().map(|counted| f64::from(counted.ticks)).sum();
        let due: f64 = runs().map(|counted| f64::from(counted.hz) * counted.time).sum();
        format!("{line}; {:.1} % of the ticks came", 100.0 * ticks / due)
    }
}

/// Returns a line that says what a tick costs by `points` of ticks a second and per cent.
fn conclusion(name: &str, points: &[(f64, f64)]) -> String {
    // A per cent for each Hz is 10,000 microseconds a tick.
    let cost = Line::through(points).map_or_else(
        || "one frequency says nothing of a single tick".into(),
        |Line { intercept, slope, error, determination }| {
            let (slope, error) = (slope * 1e4, error * 1e4);
            format!(
                "{slope:.2} ±{error:.2} us a tick, and {intercept:.3} % besides (R² {determination:.3})"
            )
        },
    );
    format!("{name}: {cost}")
}

/// Returns the share of the processor that ticks have taken in the run `with` them. Starting takes `start` seconds.
fn overhead(without: &Run, with: &Run, start: f64) -> f64 {
    let each = |run: &Run| (run.seconds - start) / f64::from(run.counted.iterations.max(1));
    1.0 - each(without) / each(with)
}

/// Returns the line whose slope is the instructions of a tick. It goes through those of each run that are not the
/// loop's: starting, and the switch to a clock that ticks, take about as many in each.
fn instructions_per_tick(pairs: &Pairs) -> Option<Line> {
    let point = |(_, with): &(Run, Run)| {
        let others = with.instructions? - ITERATION * f64::from(with.counted.iterations);
        Some((f64::from(with.counted.ticks), others))
    };
    let points: Vec<_> = pairs.iter().filter_map(point).collect();
    Line::through(&points)
}

/// Returns the lines of the table. Tern stands beside the paper's system, which is like it.
fn table(systems: &[System], frequencies: &[u32], with_paper: bool) -> Vec<String> {
    let paper = |with: bool, text: &str| if with { format!("{text:>22}") } else { String::new() };
    let names: Vec<_> = systems.iter().map(|system| format!("{:>22}", system.name)).collect();
    let names = names.concat();
    let header = format!("{:>6}{names}{}", "Hz", paper(with_paper, "MINIX 3 (paper)"));
    let line = |hz: &u32| {
        let cells: Vec<_> = systems.iter().map(|system| cell(system.overhead(*hz))).collect();
        let cells = cells.concat();
        let known = PAPER.iter().find(|(known, _)| known == hz);
        let known = known.map(|(_, overhead)| format!("{overhead:.3}")).unwrap_or_default();
        format!("{hz:>6}{cells}{}", paper(with_paper, &known)).trim_end().to_owned()
    };
    [String::new(), header].into_iter().chain(frequencies.iter().map(line)).collect()
}

/// Formats an overhead with its spread, which is not a share of it, as it may be 0.
fn cell(overhead: Option<Figure>) -> String {
    let text = overhead.map(|figure| {
        let spread = figure.spread.map(|spread| format!(" ±{:.3}", spread * figure.median.abs()));
        format!("{:.3}{:>8}", figure.median, spread.unwrap_or_default())
    });
    format!("{:>22}", text.unwrap_or_default())
}

/// Runs the suite's program on the host, with the arguments in `command`.
fn output(program: &Path, command: &str) -> Result<String, BenchError> {
    let native = |message: String| BenchError::Native(message);
    let output = Command::new(program)
        .args(command.split_whitespace().skip(1))
        .output()
        .map_err(|error| native(error.to_string()))?;
    if !output.status.success() {
        return Err(native(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses the line that the suite prints.
fn parse(line: &str) -> Option<Counted> {
    let mut words = line.split_whitespace();
    if words.next()? != "ticks" {
        return None;
    }
    Some(Counted {
        hz: words.next()?.parse().ok()?,
        iterations: words.next()?.parse().ok()?,
        cycles: words.next()?.parse().ok()?,
        time: words.next()?.parse::<f64>().ok()? / 1e6,
        ticks: words.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(hz: u32, iterations: u32, seconds: f64, instructions: f64) -> Run {
        let counted = Counted { hz, iterations, cycles: 0.0, time: 1.0, ticks: hz };
        Run { counted, seconds, instructions: Some(instructions) }
    }

    #[test]
    fn lines_of_the_suite_are_read() {
        let counted = parse("ticks 100 287337076 1000000003 1000001 99").unwrap();
        assert_eq!((counted.hz, counted.iterations), (100, 287_337_076));
        assert_eq!((counted.cycles * 10.0 + counted.time * 1e6).round() as u64, 10_001_000_031);
        assert_eq!(counted.ticks, 99);
        assert_eq!(parse("suite: /dev/clock: no such file"), None);
    }

    #[test]
    fn ticks_take_iterations_away() {
        let (without, with) = (run(0, 1000, 1.0, 6e3), run(100, 980, 1.0, 25.9e3));
        assert!((overhead(&without, &with, 0.0) - 0.02).abs() < 1e-9);
        let longer = Run { seconds: 1.5, ..with };
        let start = Run { seconds: 1.5, ..without };
        assert!((overhead(&start, &longer, 0.5) - 0.02).abs() < 1e-9);
        // 1000 instructions are neither the loop's nor those of ticks.
        let pairs = vec![(without, with), (without, run(10, 990, 1.0, 7950.0))];
        let each = instructions_per_tick(&pairs).unwrap().slope;
        assert!((each - 200.0).abs() < 1e-9, "{each}");
        assert!(instructions_per_tick(&vec![(without, with)]).is_none());
    }

    #[test]
    fn frequencies_are_those_that_a_guest_can_have() {
        assert_eq!(frequencies(Guest::Tern, &[]).len(), 27);
        assert_eq!(frequencies(Guest::Linux, &[100, 64, 1024]), [64, 1024]);
    }

    #[test]
    fn conclusions_have_the_cost_of_a_tick() {
        let points = [(100.0, 0.02), (1000.0, 0.11)];
        let said = conclusion("Tern", &points);
        assert_eq!(said, "Tern: 1.00 ±0.00 us a tick, and 0.010 % besides (R² 1.000)");
        assert!(conclusion("Tern", &points[..1]).contains("says nothing"));
    }
}
