//! Measures how evenly timers tick: a small kernel (`guest/exits/ticks.c`) counts the ticks of each of them, and how
//! far apart they are, idle and busy, on a quiet and on a loaded host, here and in QEMU.

use std::env;
use std::hint;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use serde::Serialize;

use super::arguments::TicksArguments;
use super::data::Log;
use super::peer::{Kind, MEMORY, PROMPT, Peer};
use super::statistics::Turn;
use super::{BenchError, show};

/// The timers, as the kernel names them.
const SOURCES: [&str; 3] = ["pit", "rtc", "apic"];

/// The frequencies that are measured if none is asked for. The slowest is 18.2 Hz with the 8254, and 16 Hz with the
/// MC146818, which has powers of two only.
const FREQUENCIES: [u32; 4] = [18, 128, 1024, 8192];

/// The frequency of the ACPI PM timer, in Hz.
const PM_HZ: f64 = 3_579_545.0;

/// The kernel counts distances in parts of a period.
const PARTS: u32 = 64;

/// The limits of the distances that are shown together, in parts of a period, and their titles.
const CLASSES: [(u32, &str); 6] = [
    (PARTS / 2, "<1/2"),
    (PARTS * 7 / 8, "<7/8"),
    (PARTS * 9 / 8, "7/8-9/8"),
    (PARTS * 3 / 2, "<3/2"),
    (PARTS * 3, "<3"),
    (u32::MAX, "more"),
];

/// A system that is measured, and the clock by which its distances are taken.
struct System {
    name: &'static str,
    clock: &'static str,
    peer: Peer,
}

/// What the kernel does between two ticks.
const WORK: [&str; 2] = ["idle", "busy"];

/// What the kernel has counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Counted {
    /// Ticks that came, after the first one.
    ticks: f64,
    /// The frequency that the timer divides, and by what.
    frequency: f64,
    divisor: f64,
    /// The time between the first and the last tick, in ticks of the PM timer.
    pm_ticks: f64,
    cycles_in_second: f64,
    /// Distances in cycles.
    shortest: f64,
    longest: f64,
    /// How often each distance has occurred, by parts of a period.
    distances: Vec<(u32, f64)>,
}

impl Counted {
    /// Returns the number of ticks that should have come in that time.
    fn due(&self) -> f64 {
        self.pm_ticks / PM_HZ * self.frequency / self.divisor
    }

    /// Returns a distance in cycles as a share of a period.
    fn periods(&self, cycles: f64) -> f64 {
        cycles / (self.cycles_in_second / self.frequency * self.divisor)
    }
}

/// A measurement in the file of raw data.
#[derive(Debug, Serialize)]
struct Measurement<'a> {
    system: &'a str,
    clock: &'a str,
    turn: Turn,
    loaded: bool,
    source: &'a str,
    hz: u32,
    work: &'a str,
    due: f64,
    #[serde(flatten)]
    counted: &'a Counted,
}

/// Threads that keep the host's processors busy until this is dropped.
struct Load {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(threads: usize) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            })
        };
        let threads = (0..threads).map(spin).collect();
        Load { is_over, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It only counts time, and cannot fail.
            let _ = thread.join();
        }
    }
}

/// Measures the systems in turns, and shows the shares of all distances.
pub(super) fn measure(arguments: &TicksArguments) -> Result<(), BenchError> {
    let kernel = arguments.settings.guest("exits")?;
    let mut systems = boot(arguments, &kernel)?;
    let threads = arguments
        .load
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get) as u32);
    let frequencies = if arguments.hz.is_empty() { &FREQUENCIES[..] } else { &arguments.hz };
    let mut log = Log::begin(&arguments.settings)?;
    show(
        "Ticks that came, of those that were due, and their distances by the clock of the guest or",
    )?;
    show("of the host, as shares of a period: how many are of each length, in per cent, and the")?;
    show("shortest and the longest.")?;
    for load in [0, threads] {
        if load == 0 {
            show("\nThe host has nothing else to do.")?;
        } else {
            show(&format!("\n{load} threads keep the host busy."))?;
        }
        show(&header())?;
        for source in SOURCES {
            for hz in frequencies {
                for work in WORK {
                    let mut all = vec![Vec::new(); systems.len()];
                    for turn in 0..arguments.settings.runs {
                        for (system, counted) in systems.iter_mut().zip(&mut all) {
                            let loaded = Load::start(load as usize);
                            let count = (hz * arguments.time / 1000).max(1);
                            let counted_now = system.count(source, *hz, count, work)?;
                            drop(loaded);
                            log.add(&[Measurement {
                                system: system.name,
                                clock: system.clock,
                                turn,
                                loaded: load > 0,
                                source,
                                hz: *hz,
                                work,
                                due: counted_now.due(),
                                counted: &counted_now,
                            }])?;
                            counted.push(counted_now);
                        }
                    }
                    for (system, counted) in systems.iter().zip(&all) {
                        show(&line(system.name, system.clock, source, work, counted))?;
                    }
                }
            }
        }
        if threads == 0 {
            break;
        }
    }
    Ok(())
}

/// Boots the kernel in all systems.
fn boot(arguments: &TicksArguments, kernel: &Path) -> Result<Vec<System>, BenchError> {
    let mut kinds = Kind::installed();
    kinds.retain(|kind| *kind != Kind::Interpreter || arguments.all);
    let mut systems = Vec::new();
    for kind in kinds {
        let peer = || -> Result<Peer, BenchError> {
            let mut peer = match kind {
                Kind::Qemu => kind.boot_image(kernel, &[])?,
                _ => Peer::start(kind, ring3(kind, kernel)?)?,
            };
            peer.wait_for(PROMPT)?;
            Ok(peer)
        };
        let name = kind.name();
        if kind == Kind::Qemu {
            systems.push(System { name, clock: "host", peer: peer()? });
        } else {
            systems.push(System { name, clock: "own", peer: peer()? });
            systems.push(System { name, clock: "host", peer: peer()? });
        }
    }
    Ok(systems)
}

/// Returns the command for a machine whose guest can read the host's clocks.
fn ring3(kind: Kind, kernel: &Path) -> Result<Command, BenchError> {
    let program = env::current_exe().map_err(|error| BenchError::Start("ring3", error))?;
    let mut command = Command::new(program);
    command.args(["run", "--guest-tools", "host-time", "--memory", MEMORY, "--kernel"]).arg(kernel);
    command.args(["--engine", if kind == Kind::Interpreter { "interpreter" } else { "auto" }]);
    Ok(command)
}

impl System {
    fn count(
        &mut self,
        source: &'static str,
        hz: u32,
        count: u32,
        work: &'static str,
    ) -> Result<Counted, BenchError> {
        // The time-stamp counter of a guest in QEMU is the host's.
        let clock = if self.name == Kind::Qemu.name() { "own" } else { self.clock };
        let command = format!("ticks {source} {hz} {count} {work} {clock}");
        let (_, shown) = self.peer.wait_for_work(&command)?;
        parse(&shown).ok_or(BenchError::NotRun(command, self.name, shown))
    }
}

/// Parses what the kernel prints.
fn parse(shown: &str) -> Option<Counted> {
    let value = |name: &str| {
        shown.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
    };
    let distance = |line: &str| {
        let (part, count) = line.strip_prefix("distance ")?.split_once(' ')?;
        Some((part.parse().ok()?, count.trim().parse().ok()?))
    };
    Some(Counted {
        ticks: value("came ")?,
        frequency: value("frequency ")?,
        divisor: value("divisor ")?,
        pm_ticks: value("pm-ticks ")?,
        cycles_in_second: value("cycles-in-second ")?,
        shortest: value("shortest ")?,
        longest: value("longest ")?,
        distances: shown.lines().filter_map(distance).collect(),
    })
}

fn header() -> String {
    let titles: Vec<_> = CLASSES.iter().map(|(_, title)| format!("{title:>8}")).collect();
    let titles = titles.concat();
    format!(
        "{:<14}{:>6}{:>6}{:>9}{:>6}{:>8}{titles}{:>10}{:>9}",
        "", "clock", "timer", "Hz", "", "came %", "shortest", "longest"
    )
}

/// Returns the line of several runs.
fn line(name: &str, clock: &str, source: &str, work: &str, all: &[Counted]) -> String {
    let sum = |value: fn(&Counted) -> f64| all.iter().map(value).sum::<f64>();
    let (ticks, due) = (sum(|counted| counted.ticks), sum(Counted::due));
    let hz = all.first().map_or(0.0, |counted| counted.frequency / counted.divisor);
    let mut from = 0;
    let shares = CLASSES.map(|(limit, _)| {
        let is_in = |(part, _): &&(u32, f64)| (from..limit).contains(part);
        let distances = all.iter().flat_map(|counted| &counted.distances);
        let count = distances.filter(is_in).fold(0.0, |sum, (_, count)| sum + count);
        from = limit;
        format!("{:>8.2}", 100.0 * count / ticks)
    });
    let shares = shares.concat();
    let shortest = all.iter().map(|counted| counted.periods(counted.shortest));
    let longest = all.iter().map(|counted| counted.periods(counted.longest));
    format!(
        "{name:<14}{clock:>6}{source:>6}{hz:>9.2}{work:>6}{:>8.2}{shares}{:>10.3}{:>9.3}",
        100.0 * ticks / due,
        shortest.fold(f64::INFINITY, f64::min),
        longest.fold(0.0, f64::max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "came 4\r\nfrequency 32768\r\ndivisor 4\r\npm-ticks 1748\r\n\
        cycles-in-second 1000000000\r\nshortest 61035\r\nlongest 244140\r\n\
        distance 32 1\r\ndistance 64 2\r\ndistance 128 1\r\n";

    #[test]
    fn what_the_kernel_prints_is_read() {
        let counted = parse(SHOWN).unwrap();
        assert!((counted.due() - 4.0).abs() < 0.01, "{}", counted.due());
        assert!((counted.periods(counted.shortest) - 0.5).abs() < 0.001);
        assert_eq!(counted.distances, [(32, 1.0), (64, 2.0), (128, 1.0)]);
        assert_eq!(parse("ticks pit|rtc|apic HZ COUNT idle|busy own|host"), None);
    }

    #[test]
    fn distances_are_shown_by_classes() {
        let shown = line("ring3", "own", "rtc", "idle", &[parse(SHOWN).unwrap()]);
        let words: Vec<_> = shown.split_whitespace().collect();
        let expected = [
            "ring3", "own", "rtc", "8192.00", "idle", "99.99", "0.00", "25.00", "50.00", "0.00",
            "25.00", "0.00", "0.500", "2.000",
        ];
        assert_eq!(words, expected);
        assert_eq!(header().len(), shown.len());
    }

    #[test]
    fn load_ends() {
        drop(Load::start(2));
    }
}
