//! What the checks of destinations cost: a message to the data store and its answer, by a kernel that
//! checks both, and by one that is told not to (`unmasked` on its command line).

use std::path::Path;

use super::{Machine, NAME, VALUE, kinds};
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
    /// Of a message and its answer: instructions if the machines are deterministic, and else nanoseconds.
    costs: [Series; 2],
}

/// Measures all machines in turns, and shows the medians.
pub(super) fn measure(settings: &Settings, directory: &Path) -> Result<(), BenchError> {
    let boot = |kind: Kind| {
        let machine = |words| {
            let extras = Extras { words, ..Extras::default() };
            Machine::boot(kind, settings, &extras, directory)
        };
        Ok(Pair { machines: [machine(WORDS[0])?, machine(WORDS[1])?], costs: Default::default() })
    };
    let pairs: Result<Vec<_>, BenchError> = kinds().into_iter().map(boot).collect();
    let mut pairs = pairs?;
    for turn in 0..settings.runs {
        for pair in &mut pairs {
            for (machine, cost) in pair.machines.iter_mut().zip(&mut pair.costs) {
                cost.add(turn, message(machine)?);
            }
        }
    }
    show("A message to another process of Tern and its answer, with the kernel's checks of their")?;
    show("destinations and without, and what the checks cost as a share of the latter (medians;")?;
    show("± half the distance between the quartiles).")?;
    show(&format!(
        "{:NAME$}{:>VALUE$}{:SPREAD$}{:>VALUE$}{:SPREAD$}{:>VALUE$}",
        "", "checked", "", "not", "", "share"
    ))?;
    let mut log = Log::begin(settings)?;
    for pair in &pairs {
        let (name, quantity) = (pair.machines[0].kind.name(), pair.unit());
        for (words, cost) in WORDS.iter().zip(&pair.costs) {
            log.add_series(name, words, quantity, cost)?;
        }
        show(&pair.line())?;
    }
    Ok(())
}

impl Pair {
    fn unit(&self) -> &'static str {
        if self.machines[0].kind == Kind::Deterministic { "instructions" } else { "nanoseconds" }
    }

    fn line(&self) -> String {
        let [checked, not] = &self.costs;
        let name = match self.machines[0].kind {
            Kind::Deterministic => self.unit().to_owned(),
            kind => format!("{}, ns", kind.name()),
        };
        let cells = [checked, not].map(|cost| cell(cost.figure(), VALUE, 0, ""));
        // It may be below 0, where it does not stand out.
        let share = checked.with(not, |checked, not| 100.0 * (checked / not - 1.0)).figure();
        let line = format!("{name:<NAME$}{}{}", cells.concat(), cell(share, VALUE, 1, " %"));
        line.trim_end().to_owned()
    }
}

/// Returns the cost of one message and its answer.
fn message(machine: &mut Machine) -> Result<f64, BenchError> {
    let mut run = |count: u32| {
        let work = machine.work(&format!("suite {BENCHMARK} {count}"))?;
        if !work.shown.lines().any(|line| line.starts_with(BENCHMARK)) {
            return Err(BenchError::NotRun(BENCHMARK.into(), machine.kind.name(), work.shown));
        }
        Ok(match machine.kind {
            Kind::Deterministic => work.instructions.unwrap_or_default(),
            _ => work.seconds * 1e9,
        })
    };
    let nothing = run(0)?;
    Ok((run(COUNT)? - nothing) / f64::from(COUNT))
}
