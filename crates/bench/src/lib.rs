//! `ring3 bench`: whole systems, measured beside what else is installed, in one run.
//!
//! Every system is a process of its own that is seen and typed to by its serial port, this program
//! as well as the others: so all of them are measured in the same way, from the outside. What is
//! compared is the time of the host's processors, of which a busy host gives each the
//! same, and for disks the time that passes; each figure is the median of several.
//!
//! The program that calls this is `ring3` itself, which starts itself again for each machine.
//!
//! * `arguments`: the options; a module for each of `boot`, `work`, `cpu`, `exits`, `disk` and `net`;
//! * `peer`: a system that is measured, of whatever kind; `bochs`, `v86` and `uml`: those that are started in a way of their own;
//! * `suite`: the benchmarks inside a guest; `monitor`: what a machine of ours counts;
//! * `table`, `plot` and [`chart`]: results as text and as pictures;
//! * [`calibrate`]: what steps of a transfer take on this host, for the model in `ring3_netmodel`.
#![forbid(unsafe_code)]
// The help of an option is its documentation, and brackets in it are what may be left out.
#![allow(rustdoc::broken_intra_doc_links)]

mod arguments;
mod bochs;
mod boot;
pub mod chart;
mod cpu;
mod disk;
mod exits;
mod monitor;
mod net;
mod peer;
mod plot;
mod suite;
mod table;
mod uml;
mod v86;
mod work;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use arguments::BenchArguments;
use arguments::{
    CpuArguments, DiskArguments, ExitsArguments, NetArguments, Settings, What, WorkArguments,
};
pub use net::calibration::{CalibrationError, calibrate, options};

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A guest.
    #[error("{0} is missing: run make guests in the tree, or say where it is with --guests")]
    NoGuest(PathBuf),
    /// A system.
    #[error("{0} cannot be started: {1}")]
    Start(&'static str, io::Error),
    /// A system does not do what was expected.
    #[error(
        "{0} has ended, or was silent for {1} seconds, before it showed {2:?}; its last words: {3:?}"
    )]
    Silent(&'static str, u64, &'static str, String),
    /// What the host counts for a process.
    #[error("the time of {0} cannot be read from /proc: {1}")]
    Time(&'static str, io::Error),
    /// What the host keeps for a process.
    #[error("the memory of {0} cannot be read from /proc: {1}")]
    Memory(&'static str, io::Error),
    /// The benchmarks on the host itself.
    #[error("the guest's programs do not run on this host: {0}")]
    Native(String),
    /// A name.
    #[error("there is no benchmark {0}; there are {1}")]
    NoBenchmark(String, String),
    /// A benchmark without a result.
    #[error("{0} has not run: {1}; it has shown {2:?}")]
    NotRun(String, &'static str, String),
    /// A benchmark with a wrong result.
    #[error("{0} has computed {1:08x} in {2}, where {3:08x} is right")]
    Differs(String, u32, &'static str, u32),
    /// A part of Bochs.
    #[error(
        "Bochs needs {0}: install bochs, bochs-term, bochsbios and vgabios, or go without --all"
    )]
    NoBochs(&'static str),
    /// Another system.
    #[error("{0} is missing: {1}, or go without --all")]
    NotInstalled(&'static str, &'static str),
    /// The counters of a machine of ours.
    #[error("a machine does not tell what it counts: {0}")]
    Monitor(io::Error),
    /// The model's figures.
    #[error("the host cannot be calibrated: {0}")]
    Calibration(#[from] net::calibration::CalibrationError),
    /// A disk.
    #[error("a file for the guests' disks cannot be made: {0}")]
    Disk(io::Error),
    /// A picture.
    #[error("{0} cannot be written: {1}")]
    Plot(PathBuf, String),
    /// Standard output.
    #[error("the results cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Refuses a file that cannot be written before minutes of measuring, and leaves it as it is.
fn check_plot(path: &Path) -> Result<(), BenchError> {
    let is_new = !path.exists();
    let opened = File::options().create(true).append(true).open(path);
    let checked = opened.and_then(|_| if is_new { std::fs::remove_file(path) } else { Ok(()) });
    checked.map_err(|error| BenchError::Plot(path.to_owned(), error.to_string()))
}

/// Measures, and writes the results to standard output.
pub fn run(arguments: &BenchArguments) -> Result<(), BenchError> {
    arguments.what.plot().map_or(Ok(()), check_plot)?;
    match &arguments.what {
        What::Boot(settings) => boot::measure(settings),
        What::Work(arguments) => work::measure(arguments),
        What::Cpu(arguments) => cpu::measure(arguments),
        What::Exits(arguments) => exits::measure(arguments),
        What::Disk(arguments) => disk::measure(arguments),
        What::Net(arguments) => net::measure(arguments),
    }
}

/// Writes a line of the results at once: what comes next takes its time.
fn show(line: &str) -> Result<(), BenchError> {
    let mut output = io::stdout();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// The median; 0 of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!(median(vec![3.0, 1.0, 2.0]).total_cmp(&2.0).is_eq());
        assert!(median(vec![]).total_cmp(&0.0).is_eq());
    }
}
