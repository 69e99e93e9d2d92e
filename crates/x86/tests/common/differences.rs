//! Collects the differences between our processor and the host's in a series of random cases.

use std::fmt::{Debug, Write};

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::random::Random;
use super::series::Series;

/// The most differences reported for one form, and the most forms for which differences are reported.
const TOLD_OF_FORM: usize = 2;
const TOLD: usize = 24;
/// A case differs if it does so each time of so many: a hypervisor has been seen to lose NT and ID if an
/// interrupt arrives during it.
const ATTEMPTS: usize = 20;
/// At most one case of so many may be [withheld](Tally::withheld).
const SELDOM: u64 = 500;

/// Counts of cases.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Those that were not compared.
    pub(crate) left_out: u64,
    /// Those that differed in some attempts and not in all.
    pub(crate) disturbed: u64,
    /// Those that were not compared because a hypervisor that limits how often its guests lock the bus, as an
    /// access to two cache lines does, let the host's processor not finish them.
    pub(crate) withheld: u64,
}

/// Runs the cases of `series`, evenly spread over `forms`, by `compare`, whose error describes differences.
/// Returns a report, which is empty if there are none.
pub(crate) fn differences<F: Debug>(
    series: &Series,
    forms: &[F],
    mut compare: impl FnMut(&mut Random, &F) -> Result<(), String>,
) -> String {
    let mut differences = vec![0; forms.len()];
    let mut forms_told = 0;
    let mut text = String::new();
    for case in series.cases.clone() {
        let form = (case % forms.len() as u64) as usize;
        if let Err(difference) = compare(&mut series.random(case), &forms[form]) {
            forms_told += usize::from(differences[form] == 0);
            differences[form] += 1;
            if differences[form] <= TOLD_OF_FORM && forms_told <= TOLD {
                let _ = writeln!(text, "seed {} case {case}: {difference}", series.seed);
            }
        }
    }
    for (form, count) in forms.iter().zip(differences).filter(|(_, count)| *count > 0) {
        let _ = writeln!(text, "{form:?}: {count}");
    }
    text
}

/// Panics if there are differences.
pub(crate) fn conclude(series: &Series, forms: usize, tally: &Tally, differences: &str) {
    let Tally { left_out, disturbed, withheld } = tally;
    println!(
        "{forms} forms; cases not compared: {left_out}, withheld: {withheld}, disturbed: {disturbed}"
    );
    let cases = series.cases.end - series.cases.start;
    assert!(*withheld <= cases / SELDOM + 1, "{withheld} locked accesses never ended on the host");
    assert!(differences.is_empty(), "differences from the host's processor:\n{differences}");
}

/// Makes attempts at a case for as long as they differ. Returns the last result, and whether there were others
/// before it.
pub(crate) fn insist(
    mut attempt: impl FnMut() -> Result<(), String>,
) -> (Result<(), String>, bool) {
    let first = attempt();
    if first.is_ok() {
        return (first, false);
    }
    let is_disturbed = (1..ATTEMPTS).any(|_| attempt().is_ok());
    (if is_disturbed { Ok(()) } else { first }, is_disturbed)
}

/// Returns whether `instruction` has a locked access to memory (SDM vol. 3, 10.1.2.2).
pub(crate) fn locks_bus(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op0_kind() == OpKind::Memory
}
