//! What the checks of destinations cost: a message to the data store and its answer, by a kernel that
//! checks both, and by one that is told not to (`unmasked` on its command line).

use std::path::Path;

use super::counted::{self, Orders};
use super::{Machine, NAME, VALUE};
use crate::data::Log;
use crate::guest::Extras;
use crate::peer::Kind;
use crate::statistics::{SPREAD, Series, cell};
use crate::{BenchError, Settings, show};

/// Messages of a run, and the benchmark of the suite that sends them.
const COUNT: u32 = 20_000;
const BENCHMARK: &str = "message";
/// The words for the kernel: the first one has no meaning to it.
const WORDS: [&str; 2] = ["masked", "unmasked"];

/// A kind of machine, once with checks and once without.
struct Pair {
    machines: [Machine; 2],
    /// Of a message and its answer, in nanoseconds of the host's processor.
    costs: [Series; 2],
}

/// Measures all machines in turns, and shows the medians.
pub(super) fn measure(
    kinds: &[Kind],
    settings: &Settings,
    directory: &Path,
) -> Result<(), BenchError> {
    let boot = |&kind: &Kind| {
        let machine = |words| {
            let extras = Extras { words, ..Extras::default() };
            Machine::boot(kind, settings, &extras, directory)
        };
        Ok(Pair { machines: [machine(WORDS[0])?, machine(WORDS[1])?], costs: Default::default() })
    };
    let pairs: Result<Vec<_>, BenchError> = kinds.iter().map(boot).collect();
    let mut pairs = pairs?;
    for turn in 0..settings.runs {
        for pair in &mut pairs {
            for (machine, cost) in pair.machines.iter_mut().zip(&mut pair.costs) {
                cost.add(turn, message(machine)?);
            }
        }
    }
    let counted = [instructions(WORDS[0], directory)?, instructions(WORDS[1], directory)?];
    show("A message to another process of Tern and its answer, with the kernel's checks of their")?;
    show("destinations and without, and what the checks cost as a share of the latter (medians;")?;
    show("± half the distance between the quartiles).")?;
    show(&format!(
        "{:NAME$}{:>VALUE$}{:SPREAD$}{:>VALUE$}{:SPREAD$}{:>VALUE$}",
        "", "checked", "", "not", "", "share"
    ))?;
    let mut log = Log::begin(settings)?;
    for pair in &pairs {
        let name = pair.machines[0].kind.name();
        for (words, cost) in WORDS.iter().zip(&pair.costs) {
            log.add_series(name, words, "nanoseconds", cost)?;
        }
        show(&line(&format!("{name}, ns"), &pair.costs))?;
    }
    for (words, cost) in WORDS.iter().zip(&counted) {
        log.add_series(Kind::Deterministic.name(), words, INSTRUCTIONS, cost)?;
    }
    show(&line(INSTRUCTIONS, &counted))
}

const INSTRUCTIONS: &str = "instructions";

fn line(name: &str, costs: &[Series; 2]) -> String {
    let [checked, not] = costs;
    let cells = costs.each_ref().map(|cost| cell(cost.figure(), VALUE, 0, ""));
    // It may be below 0, where it does not stand out.
    let share = checked.with(not, |checked, not| 100.0 * (checked / not - 1.0)).figure();
    let line = format!("{name:<NAME$}{}{}", cells.concat(), cell(share, VALUE, 1, " %"));
    line.trim_end().to_owned()
}

/// Returns the instructions of one message and its answer, by a kernel with these words.
fn instructions(words: &str, directory: &Path) -> Result<Series, BenchError> {
    let mut orders = Orders::new();
    let command = |count: u32| format!("suite {BENCHMARK} {count}");
    orders.compare([&command(0), &command(COUNT)]);
    let counts = orders.execute(&counted::Extras { words, ..Default::default() }, directory)?;
    Ok(counts.into_iter().map(|all| (0, all / f64::from(COUNT))).collect())
}

/// Returns the time of one message and its answer on the host, in nanoseconds.
fn message(machine: &mut Machine) -> Result<f64, BenchError> {
    let mut run = |count: u32| {
        let work = machine.work(&format!("suite {BENCHMARK} {count}"))?;
        if !work.shown.lines().any(|line| line.starts_with(BENCHMARK)) {
            return Err(BenchError::NotRun(BENCHMARK.into(), machine.kind.name(), work.shown));
        }
        Ok(work.seconds * 1e9)
    };
    let nothing = run(0)?;
    Ok((run(COUNT)? - nothing) / f64::from(COUNT))
}
