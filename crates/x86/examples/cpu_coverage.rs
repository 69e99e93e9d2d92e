//! Prints which test has executed which forms of the instruction table, forms that were never executed first:
//! `make cpu-coverage`. The argument is the folder that was in `RING3_COVERAGE` when the tests ran. Each file
//! in it has the name of a test and lines with a form and a count.
//!
//! It fails if some form was never executed, unless this host cannot make the comparison with its processor,
//! which executes most forms.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use ring3_x86::table;

/// For each form and test, the number of executions.
type Counts = BTreeMap<String, BTreeMap<String, u64>>;

fn main() -> io::Result<ExitCode> {
    let folder = env::args_os().nth(1).ok_or_else(|| io::Error::other("give the folder"))?;
    let (tests, counts) = read(Path::new(&folder))?;
    let mut out = io::stdout().lock();
    let forms: Vec<_> = table::forms().iter().map(|form| format!("{:?}", form.code)).collect();
    let never: Vec<_> = forms.iter().filter(|form| !counts.contains_key(*form)).collect();
    writeln!(out, "never executed: {} of {} forms", never.len(), forms.len())?;
    for form in &never {
        writeln!(out, "  {form}")?;
    }
    write!(out, "\n{:32}", "executed")?;
    for test in &tests {
        write!(out, "{test:>14}")?;
    }
    writeln!(out)?;
    for form in &forms {
        let Some(by_test) = counts.get(form) else {
            continue;
        };
        write!(out, "  {form:30}")?;
        for test in &tests {
            match by_test.get(test) {
                Some(count) => write!(out, "{count:>14}")?,
                None => write!(out, "{:>14}", "-")?,
            }
        }
        writeln!(out)?;
    }
    let compared = tests.iter().any(|test| test == "host_cpu");
    Ok(if never.is_empty() || !compared { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the names of the tests, and their counts.
fn read(folder: &Path) -> io::Result<(Vec<String>, Counts)> {
    let mut tests = Vec::new();
    let mut counts = Counts::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let test = entry.file_name().to_string_lossy().into_owned();
        for line in fs::read_to_string(entry.path())?.lines() {
            let Some((form, count)) = line.split_once(' ') else {
                continue;
            };
            let count: u64 = count.parse().map_err(io::Error::other)?;
            *counts.entry(form.to_owned()).or_default().entry(test.clone()).or_default() += count;
        }
        tests.push(test);
    }
    tests.sort();
    Ok((tests, counts))
}
