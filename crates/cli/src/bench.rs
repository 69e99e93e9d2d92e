//! `ring3 bench`: whole systems, measured beside what else is installed, in one run.
//!
//! Every system is a process of its own that is seen and typed to by its serial port, this program
//! as well as the others: so all of them are measured in the same way, from the outside. What is
//! compared is the time of the host's processors, of which a busy host gives each the
//! same, and for disks the time that passes; each figure is the median of several.

mod bochs;
mod boot;
mod cpu;
mod disk;
mod exits;
mod monitor;
pub(crate) mod net;
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

use clap::{Args, Subcommand};
use thiserror::Error;

use crate::status::Status;

/// What `ring3 bench` is told.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Boots Linux from a disc by GRUB, up to a shell's prompt, here and in QEMU
    Boot(Settings),
    /// A shell, sort, awk and gzip in a booted Linux, here and in QEMU, and on the host itself
    Work(WorkArguments),
    /// Small programs in a booted Linux, each for one thing that processors and systems do, here and in QEMU, and
    /// on the host itself
    Cpu(CpuArguments),
    /// What leaves ordinary execution, one thing at a time: device registers, privileged instructions, far transfers,
    /// interrupts and exceptions, in a small kernel, here and in QEMU
    Exits(ExitsArguments),
    /// Requests to disks by IDE and virtio, with raw and qcow2 images, here and in QEMU
    Disk(DiskArguments),
    /// Streams and packets between two guests, here and in QEMU
    Net(NetArguments),
}

/// What `ring3 bench net` is told.
#[derive(Debug, Args)]
struct NetArguments {
    #[command(flatten)]
    settings: Settings,

    /// Only with this card, virtio, e1000 or ne2k_pci; may be given again
    #[arg(long = "card", value_name = "NAME", value_parser = net::named)]
    cards: Vec<&'static net::Card>,

    /// Show what the model of "ring3 netmodel" predicts for each card on this host, beside what is measured, and which of its terms is off
    #[arg(long, conflicts_with = "plot")]
    model: bool,

    /// Measure other sizes too, and write plots of them, an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What `ring3 bench disk` is told.
#[derive(Debug, Args)]
struct DiskArguments {
    #[command(flatten)]
    settings: Settings,

    /// Measure requests of other sizes too, and write a plot of them, an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What `ring3 bench work` is told.
#[derive(Debug, Args)]
struct WorkArguments {
    #[command(flatten)]
    settings: Settings,

    /// In Bochs, v86 and User Mode Linux, too
    #[arg(long)]
    all: bool,
}

/// What `ring3 bench cpu` is told.
#[derive(Debug, Args)]
struct CpuArguments {
    #[command(flatten)]
    settings: Settings,

    /// Only this benchmark; may be given again
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// In a deterministic run, too
    #[arg(long)]
    deterministic: bool,

    /// In Bochs, too
    #[arg(long)]
    all: bool,

    /// Write a plot of the ratios, an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What `ring3 bench exits` is told.
#[derive(Debug, Args)]
struct ExitsArguments {
    #[command(flatten)]
    settings: Settings,

    /// Only this row; may be given again
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// In a deterministic run, too
    #[arg(long)]
    deterministic: bool,

    /// In the interpreter, too
    #[arg(long)]
    all: bool,
}

/// How it is measured.
#[derive(Debug, Args)]
struct Settings {
    /// Where the guests are: `make guests` gets them
    #[arg(long, value_name = "DIRECTORY", env = "RING3_GUESTS", default_value = "guests")]
    guests: PathBuf,

    /// How often everything is measured; the medians are shown
    #[arg(long, value_name = "TIMES", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
}

impl Settings {
    /// The guests' file `name`.
    fn guest(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.guests.join(name);
        if path.exists() { Ok(path) } else { Err(BenchError::NoGuest(path)) }
    }
}

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub(crate) enum BenchError {
    #[error("{0} is missing: run make guests in the tree, or say where it is with --guests")]
    NoGuest(PathBuf),
    #[error("{0} cannot be started: {1}")]
    Start(&'static str, io::Error),
    #[error(
        "{0} has ended, or was silent for {1} seconds, before it showed {2:?}; its last words: {3:?}"
    )]
    Silent(&'static str, u64, &'static str, String),
    #[error("the time of {0} cannot be read from /proc: {1}")]
    Time(&'static str, io::Error),
    #[error("the memory of {0} cannot be read from /proc: {1}")]
    Memory(&'static str, io::Error),
    #[error("the guest's programs do not run on this host: {0}")]
    Native(String),
    #[error("there is no benchmark {0}; there are {1}")]
    NoBenchmark(String, String),
    #[error("{0} has not run: {1}; it has shown {2:?}")]
    NotRun(String, &'static str, String),
    #[error("{0} has computed {1:08x} in {2}, where {3:08x} is right")]
    Differs(String, u32, &'static str, u32),
    #[error(
        "Bochs needs {0}: install bochs, bochs-term, bochsbios and vgabios, or go without --all"
    )]
    NoBochs(&'static str),
    #[error("{0} is missing: {1}, or go without --all")]
    NotInstalled(&'static str, &'static str),
    #[error("a machine does not tell what it counts: {0}")]
    Monitor(io::Error),
    #[error("the host cannot be calibrated: {0}")]
    Calibration(#[from] net::calibration::CalibrationError),
    #[error("a file for the guests' disks cannot be made: {0}")]
    Disk(io::Error),
    #[error("{0} cannot be written: {1}")]
    Plot(PathBuf, String),
    #[error("the results cannot be written: {0}")]
    Output(#[from] io::Error),
}

impl What {
    /// Where a plot is to be written.
    fn plot(&self) -> Option<&Path> {
        match self {
            What::Cpu(arguments) => arguments.plot.as_deref(),
            What::Disk(arguments) => arguments.plot.as_deref(),
            What::Net(arguments) => arguments.plot.as_deref(),
            What::Boot(_) | What::Work(_) | What::Exits(_) => None,
        }
    }
}

/// Refuses a file that cannot be written before minutes of measuring, and leaves it as it is.
fn check_plot(path: &Path) -> Result<(), BenchError> {
    let is_new = !path.exists();
    let opened = File::options().create(true).append(true).open(path);
    let checked = opened.and_then(|_| if is_new { std::fs::remove_file(path) } else { Ok(()) });
    checked.map_err(|error| BenchError::Plot(path.to_owned(), error.to_string()))
}

/// Measures, and writes the results to standard output.
pub(crate) fn run(arguments: &BenchArguments) -> Result<Status, BenchError> {
    arguments.what.plot().map_or(Ok(()), check_plot)?;
    match &arguments.what {
        What::Boot(settings) => boot::measure(settings)?,
        What::Work(arguments) => work::measure(arguments)?,
        What::Cpu(arguments) => cpu::measure(arguments)?,
        What::Exits(arguments) => exits::measure(arguments)?,
        What::Disk(arguments) => disk::measure(arguments)?,
        What::Net(arguments) => net::measure(arguments)?,
    }
    Ok(Status::Ended)
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
