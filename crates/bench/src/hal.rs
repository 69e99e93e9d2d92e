//! Measures what an access to ports costs a driver in a process, in each of the ways that Tern has: by
//! a message to the kernel's process for such calls, by a direct call, by IN and OUT that trap, by the
//! TSS's permission map, and, for comparison, in ring 0, where drivers ran in MINIX 2. The first two are
//! those of Pessolani, Cortes, Gonnet and Tinetti, who compared them under MINIX 3.
//!
//! Tern's driver `hal` makes the accesses, at ports without a device, and reads the time-stamp counter
//! before and after them (`guest/drivers/hal`).

use std::path::Path;

use serde::Serialize;

use super::data::Log;
use super::guest::Guest;
use super::monitor::Monitor;
use super::peer::{Kind, Peer};
use super::statistics::{SPREAD, Series, Turn, cell};
use super::{BenchError, HalArguments, show};

/// The names of the ways, as `service way` takes them.
const WAYS: [&str; 5] = ["message", "direct", "trap", "bitmap", "kernel"];
const MESSAGE: usize = 0;
const DIRECT: usize = 1;

/// An access, or a group of accesses that a driver asks for at once.
struct Access {
    /// The driver's name for it.
    name: &'static str,
    title: &'static str,
    /// How often it is done in a run.
    count: u32,
}

const fn single(name: &'static str, title: &'static str) -> Access {
    Access { name, title, count: 20_000 }
}

const fn string(name: &'static str, title: &'static str) -> Access {
    Access { name, title, count: 4000 }
}

const ACCESSES: [Access; 14] = [
    single("nothing", "no access, the way alone"),
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
    /// None if the machine does not count them.
    instructions: Option<f64>,
}

/// A run in the file of raw data, after one with nothing to do.
#[derive(Debug, Serialize)]
struct Measurement<'a> {
    system: &'a str,
    way: &'a str,
    access: &'a str,
    turn: Turn,
    count: u32,
    cycles: f64,
    /// Processor time on the host, without that of the run with nothing to do.
    seconds: f64,
    /// The same of the instructions; null if the system does not count them.
    instructions: Option<f64>,
}

/// The figures of one access by one way, in all turns.
#[derive(Debug, Clone, Default)]
struct Costs {
    cycles: Series,
    /// Of the host's processor time.
    nanoseconds: Series,
    instructions: Series,
}

/// A machine with Tern.
struct System {
    kind: Kind,
    peer: Peer,
    /// Only machines of this program have one.
    monitor: Option<Monitor>,
    /// For each access, for each way.
    costs: Vec<[Costs; WAYS.len()]>,
}

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &HalArguments) -> Result<(), BenchError> {
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let settings = &arguments.settings;
    let mut kinds = Kind::installed();
    kinds.push(Kind::Deterministic);
    let boot = |kind: &Kind| System::boot(*kind, arguments, directory.path());
    let mut systems = kinds.iter().map(boot).collect::<Result<Vec<_>, _>>()?;
    let mut log = Log::begin(settings)?;
    for turn in 0..settings.runs {
        for system in &mut systems {
            for way in 0..WAYS.len() {
                system.choose(way)?;
                for number in 0..ACCESSES.len() {
                    log.add(system.take_turn(turn, way, number)?.as_slice())?;
                }
            }
        }
    }
    show(
        "An access to a port by a driver of Tern, in each of its ways, and a direct call as a share of",
    )?;
    show("a message (medians; ± half the distance between the quartiles).")?;
    for system in &systems {
        for line in system.tables() {
            show(&line)?;
        }
    }
    for line in beside_the_paper(&systems) {
        show(&line)?;
    }
    Ok(())
}

impl System {
    fn boot(kind: Kind, arguments: &HalArguments, directory: &Path) -> Result<System, BenchError> {
        let (peer, monitor) =
            Guest::Tern.boot_with_monitor(kind, &arguments.settings, directory)?;
        let costs = ACCESSES.iter().map(|_| Default::default()).collect();
        Ok(System { kind, peer, monitor, costs })
    }

    /// Starts the driver with the way number `way`, and waits until it serves.
    fn choose(&mut self, way: usize) -> Result<(), BenchError> {
        let way = WAYS[way];
        let command = format!(
            "service down hal; service way hal {way}; service up hal; i=0; \
             until echo loop 0 >/dev/hal || [ $i = 100 ]; do sleep 0.1; i=$((i+1)); done 2>/dev/null"
        );
        self.peer.work(&command).map(|_| ())
    }

    /// Measures an access once. Returns no measurement if the way has no such access.
    fn take_turn(
        &mut self,
        turn: Turn,
        way: usize,
        number: usize,
    ) -> Result<Option<Measurement<'static>>, BenchError> {
        let Access { name, count, .. } = ACCESSES[number];
        let nothing = self.run(name, 0)?;
        let all = self.run(name, count)?;
        let Some(cycles) = all.cycles else { return Ok(None) };
        let seconds = all.seconds - nothing.seconds;
        let executed = all.instructions.zip(nothing.instructions);
        let instructions = executed.map(|(all, nothing)| all - nothing);
        let each = |sum: f64| sum / f64::from(count);
        let costs = &mut self.costs[number][way];
        costs.cycles.add(turn, each(cycles));
        costs.nanoseconds.add(turn, each(seconds) * 1e9);
        if let Some(instructions) = instructions {
            costs.instructions.add(turn, each(instructions));
        }
        let (system, way) = (self.kind.name(), WAYS[way]);
        Ok(Some(Measurement {
            system,
            way,
            access: name,
            turn,
            count,
            cycles,
            seconds,
            instructions,
        }))
    }

    fn run(&mut self, access: &str, count: u32) -> Result<Run, BenchError> {
        let before = self.executed()?;
        let command = format!("echo {access} {count} >/dev/hal && cat /dev/hal");
        let (seconds, shown) = self.peer.work(&command)?;
        let after = self.executed()?;
        let Some(answer) = shown.lines().find_map(|line| answer(line, access, count)) else {
            return Err(BenchError::NotRun(command, self.kind.name(), shown));
        };
        let cycles = answer.parse().ok();
        let instructions = before.zip(after).map(|(before, after)| after - before);
        Ok(Run { cycles, seconds, instructions })
    }

    /// Returns how many instructions the machine has executed.
    fn executed(&mut self) -> Result<Option<f64>, BenchError> {
        self.monitor.as_mut().map(Monitor::instructions).transpose()
    }

    /// Returns the tables of this system. Of a deterministic run the instructions alone are of
    /// interest: its time is a function of them.
    fn tables(&self) -> Vec<String> {
        if self.kind == Kind::Deterministic {
            return self.table("instructions", "instructions", |costs| &costs.instructions);
        }
        let name = self.kind.name();
        let cycles = format!("{name}: cycles of the guest's counter");
        let time = format!("{name}: ns of the host's processor");
        let mut lines = self.table(&cycles, "cycles", |costs| &costs.cycles);
        lines.extend(self.table(&time, "ns", |costs| &costs.nanoseconds));
        lines
    }

    fn table(&self, title: &str, unit: &str, of: fn(&Costs) -> &Series) -> Vec<String> {
        let names: Vec<_> = WAYS.iter().map(|way| format!("{way:>VALUE$}{:SPREAD$}", "")).collect();
        let header = format!("{unit:<NAME$}{}{:>SHARE$}", names.concat(), "share");
        let line = |(access, costs): (&Access, &[Costs; WAYS.len()])| {
            let cells: Vec<_> =
                costs.iter().map(|costs| cell(of(costs).figure(), VALUE, 0, "")).collect();
            let share = share(of(&costs[DIRECT]), of(&costs[MESSAGE]));
            format!("{:<NAME$}{}{share}", access.title, cells.concat()).trim_end().to_owned()
        };
        let rows = ACCESSES.iter().zip(&self.costs).map(line);
        [String::new(), title.to_owned(), header].into_iter().chain(rows).collect()
    }
}

const NAME: usize = 26;
const VALUE: usize = 9;
const SHARE: usize = 8;

/// Formats a direct call as a share of a message.
fn share(direct: &Series, message: &Series) -> String {
    let share = direct.ratio(message).map(|share| share.times(100.0));
    cell(share, SHARE, 0, " %")
}

/// Returns the lines of the paper's table 1, with our systems below each of its rows.
fn beside_the_paper(systems: &[System]) -> Vec<String> {
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
            let is_counted = system.kind == Kind::Deterministic;
            let of = |way: usize| {
                if is_counted { &costs[way].instructions } else { &costs[way].cycles }
            };
            let name = if is_counted { "instructions" } else { system.kind.name() };
            lines.push(paper_line(&format!("  {name}"), of(MESSAGE), of(DIRECT)));
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
        let lines = beside_the_paper(&[]);
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
