//! Accesses to ports without a device, by the driver `hal` (`guest/drivers/hal`), which reads the
//! time-stamp counter before and after them.

use std::path::Path;

use serde::Serialize;

use super::counted::{Extras, Orders};
use super::{DIRECT, MESSAGE, Machine, NAME, SHARE, VALUE, WAYS, header, row, share};
use crate::data::Log;
use crate::guest;
use crate::peer::Kind;
use crate::statistics::{SPREAD, Series, Turn, cell};
use crate::{BenchError, Settings, show};

/// The interpreter does this share of the accesses.
const SLOW_SHARE: u32 = 10;

/// An access, or a group of accesses that a driver asks for at once.
struct Access {
    /// The driver's name for it.
    name: &'static str,
    title: &'static str,
    /// How often it is done in a run, where that is quick.
    count: u32,
}

impl Access {
    /// Returns how often it is done in a run in a machine of this kind.
    fn count_in(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Interpreter => self.count / SLOW_SHARE,
            _ => self.count,
        }
    }
}

const fn single(name: &'static str, title: &'static str) -> Access {
    Access { name, title, count: 20_000 }
}

const fn string(name: &'static str, title: &'static str) -> Access {
    Access { name, title, count: 4000 }
}

const ACCESSES: [Access; 14] = [
    single(NOTHING, "no access, the way alone"),
    single(READ, "read a byte"),
    single("in16", "read a word"),
    single("in32", "read a double-word"),
    single(WRITE, "write a byte"),
    single("out16", "write a word"),
    single("out32", "write a double-word"),
    string("ins8", "read 512 bytes"),
    string("ins16", "read 512 words"),
    string("ins32", "read 512 double-words"),
    string("outs8", "write 512 bytes"),
    string("outs16", "write 512 words"),
    string("outs32", "write 512 double-words"),
    Access { name: "vector", title: "vector of 16 reads", count: 4000 },
];
/// Only messages and direct calls have it: the other ways have no door without an access.
const NOTHING: &str = "nothing";
const READ: &str = "in8";
const WRITE: &str = "out8";

/// A row of the paper's table 1: cycles of a Pentium MMX of 233.9 MHz.
struct Published {
    access: &'static str,
    title: &'static str,
    message: f64,
    direct: f64,
}

const PAPER: [Published; 2] = [
    Published { access: READ, title: "IN", message: 3268.0, direct: 1435.0 },
    Published { access: WRITE, title: "OUT", message: 3346.0, direct: 1454.0 },
];

/// A run of the driver's loop.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// None if the way has no such access.
    cycles: Option<f64>,
    /// Processor time on the host.
    seconds: f64,
}

/// A run in the file of raw data, after one with nothing to do.
#[derive(Debug, Serialize)]
struct Measurement<'a> {
    system: &'a str,
    way: &'a str,
    access: &'a str,
    turn: Turn,
    count: u32,
    #[serde(flatten)]
    cost: Cost,
}

/// What was measured, which is not the same everywhere.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", untagged)]
enum Cost {
    Time {
        cycles: f64,
        /// Processor time on the host, without that of the run with nothing to do.
        seconds: f64,
    },
    Counted {
        /// Without those of the run with nothing to do.
        instructions: f64,
    },
}

/// The figures of one access by one way, in all turns.
#[derive(Debug, Clone, Default)]
struct Costs {
    cycles: Series,
    /// Of the host's processor time.
    nanoseconds: Series,
}

/// The instructions of each access, for each way.
type Instructions = Vec<[Series; WAYS.len()]>;

/// A machine, and its figures.
struct System {
    machine: Machine,
    /// For each access, for each way.
    costs: Vec<[Costs; WAYS.len()]>,
}

/// Measures the machines in turns, and shows the medians.
pub(super) fn measure(
    kinds: &[Kind],
    settings: &Settings,
    directory: &Path,
) -> Result<(), BenchError> {
    let boot = |&kind: &Kind| {
        let machine = Machine::boot(kind, settings, &guest::Extras::default(), directory)?;
        let costs = ACCESSES.iter().map(|_| Default::default()).collect();
        Ok(System { machine, costs })
    };
    let systems: Result<Vec<_>, BenchError> = kinds.iter().map(boot).collect();
    let mut systems = systems?;
    let mut log = Log::begin(settings)?;
    let instructions = count(&mut log, directory)?;
    for turn in 0..settings.runs {
        for system in &mut systems {
            for (way, name) in WAYS.iter().enumerate() {
                system.machine.choose(SERVICE, name, PROBE)?;
                for number in 0..ACCESSES.len() {
                    log.add(system.take_turn(turn, way, number)?.as_slice())?;
                }
            }
        }
    }
    show("An access to a port by a driver of Tern, in each of its ways, and a direct call as a")?;
    show("share of a message (medians; ± half the distance between the quartiles).")?;
    for system in &systems {
        for line in system.tables() {
            show(&line)?;
        }
    }
    for line in table("instructions", "instructions", &instructions, |counted| counted) {
        show(&line)?;
    }
    for line in beside_the_paper(&systems, &instructions) {
        show(&line)?;
    }
    Ok(())
}

/// The service that makes the accesses, and what succeeds when it can.
const SERVICE: &str = "hal";
const PROBE: &str = "echo loop 0 >/dev/hal";

/// Returns the command by which the service makes an access `count` times.
fn order(access: &str, count: u32) -> String {
    format!("echo {access} {count} >/dev/{SERVICE}")
}

/// Counts the instructions of all accesses by all ways.
fn count(log: &mut Log, directory: &Path) -> Result<Instructions, BenchError> {
    let mut orders = Orders::new();
    let mut places = Vec::new();
    for (way, name) in WAYS.iter().enumerate() {
        orders.choose(SERVICE, name, PROBE);
        for (number, access) in ACCESSES.iter().enumerate() {
            if access.name != NOTHING || [MESSAGE, DIRECT].contains(&way) {
                let count = access.count_in(Kind::Deterministic);
                orders.compare([&order(access.name, 0), &order(access.name, count)]);
                places.push((way, number));
            }
        }
    }
    let counts = orders.execute(&Extras::default(), directory)?;
    let mut all: Instructions = ACCESSES.iter().map(|_| Default::default()).collect();
    for ((way, number), instructions) in places.into_iter().zip(counts) {
        let name = ACCESSES[number].name;
        let count = ACCESSES[number].count_in(Kind::Deterministic);
        all[number][way].add(0, instructions / f64::from(count));
        log.add(&[Measurement {
            system: Kind::Deterministic.name(),
            way: WAYS[way],
            access: name,
            turn: 0,
            count,
            cost: Cost::Counted { instructions },
        }])?;
    }
    Ok(all)
}

/// Returns the table of one of the figures `all` of each access and way.
fn table<T>(
    title: &str,
    unit: &str,
    all: &[[T; WAYS.len()]],
    of: fn(&T) -> &Series,
) -> Vec<String> {
    let line = |(access, costs): (&Access, &[T; WAYS.len()])| {
        row(access.title, &costs.each_ref().map(of), 0)
    };
    let rows = ACCESSES.iter().zip(all).map(line);
    [String::new(), title.to_owned(), header(unit)].into_iter().chain(rows).collect()
}

impl System {
    /// Measures an access once. Returns no measurement if the way has no such access.
    fn take_turn(
        &mut self,
        turn: Turn,
        way: usize,
        number: usize,
    ) -> Result<Option<Measurement<'static>>, BenchError> {
        let name = ACCESSES[number].name;
        let count = ACCESSES[number].count_in(self.machine.kind);
        let nothing = self.run(name, 0)?;
        let all = self.run(name, count)?;
        let Some(cycles) = all.cycles else { return Ok(None) };
        let seconds = all.seconds - nothing.seconds;
        let each = |sum: f64| sum / f64::from(count);
        let costs = &mut self.costs[number][way];
        costs.cycles.add(turn, each(cycles));
        costs.nanoseconds.add(turn, each(seconds) * 1e9);
        let (system, way) = (self.machine.kind.name(), WAYS[way]);
        let cost = Cost::Time { cycles, seconds };
        Ok(Some(Measurement { system, way, access: name, turn, count, cost }))
    }

    fn run(&mut self, access: &str, count: u32) -> Result<Run, BenchError> {
        let command = format!("{} && cat /dev/{SERVICE}", order(access, count));
        let work = self.machine.work(&command)?;
        let Some(answer) = work.shown.lines().find_map(|line| answer(line, access, count)) else {
            return Err(BenchError::NotRun(command, self.machine.kind.name(), work.shown));
        };
        let cycles = answer.parse().ok();
        Ok(Run { cycles, seconds: work.seconds })
    }

    /// Returns the tables of this system.
    fn tables(&self) -> Vec<String> {
        let name = self.machine.kind.name();
        let cycles = format!("{name}: cycles of the guest's counter");
        let time = format!("{name}: ns of the host's processor");
        let mut lines = table(&cycles, "cycles", &self.costs, |costs| &costs.cycles);
        lines.extend(table(&time, "ns", &self.costs, |costs| &costs.nanoseconds));
        lines
    }
}

/// Returns the lines of the paper's table 1, with our systems and the instructions below each of its rows.
fn beside_the_paper(systems: &[System], instructions: &[[Series; WAYS.len()]]) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        "Table 1 of Pessolani et al. (cycles; its direct call does not check the port)".to_owned(),
        format!(
            "{:<NAME$}{:>VALUE$}{:SPREAD$}{:>VALUE$}{:SPREAD$}{:>SHARE$}",
            "", "message", "", "direct", "", "share"
        ),
    ];
    for row in &PAPER {
        let known = |cycles: f64| Series::from_iter([(0, cycles)]);
        let name = format!("{}, Pentium MMX", row.title);
        lines.push(paper_line(&name, &known(row.message), &known(row.direct)));
        let number = ACCESSES.iter().position(|access| access.name == row.access);
        let Some(number) = number else { continue };
        for system in systems {
            let costs = &system.costs[number];
            let name = format!("  {}", system.machine.kind.name());
            lines.push(paper_line(&name, &costs[MESSAGE].cycles, &costs[DIRECT].cycles));
        }
        if let Some([message, direct, ..]) = instructions.get(number) {
            lines.push(paper_line("  instructions", message, direct));
        }
    }
    lines
}

fn paper_line(name: &str, message: &Series, direct: &Series) -> String {
    let of = |series: &Series| cell(series.figure(), VALUE, 0, "");
    let line = format!("{name:<NAME$}{}{}{}", of(message), of(direct), share(direct, message));
    line.trim_end().to_owned()
}

/// Returns the driver's answer in its line for `access`: a number of cycles, or [`NONE`].
fn answer<'a>(line: &'a str, access: &str, count: u32) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    let is_it = words.next()? == access && words.next()?.parse() == Ok(count);
    let answer = words.next().filter(|_| is_it)?;
    (answer == NONE || answer.parse::<u32>().is_ok()).then_some(answer)
}

/// The answer if the way has no such access.
const NONE: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_driver_are_read() {
        assert_eq!(answer("in8 100 12345", "in8", 100), Some("12345"));
        assert_eq!(answer("nothing 100 -", "nothing", 100), Some(NONE));
        // The echo of the command, the answer to another one, and half an answer.
        for line in ["echo in8 100 >/dev/hal", "in16 100 7", "in8 10 7", "in8 100", "in8 100 x", ""]
        {
            assert_eq!(answer(line, "in8", 100), None, "{line}");
        }
    }

    #[test]
    fn the_paper_s_shares_are_those_that_it_gives() {
        let lines = beside_the_paper(&[], &[]);
        let words = |line: &String| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&lines[3]), ["IN,", "Pentium", "MMX", "3268", "1435", "44", "%"]);
        assert_eq!(words(&lines[4]), ["OUT,", "Pentium", "MMX", "3346", "1454", "43", "%"]);
    }

    #[test]
    fn accesses_fit_into_the_table_and_into_a_run() {
        for access in &ACCESSES {
            assert!(access.title.len() < NAME && access.count > 0, "{}", access.title);
        }
    }
}
