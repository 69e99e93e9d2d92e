//! `ring3 bench`: measures whole systems beside other emulators that are installed, in one run.
//!
//! Every system is a process of its own, which is observed and controlled through its serial port. This holds
//! for this program and for the others, so all of them are measured in the same way, from outside. The
//! figures compared are processor times on the host, which do not depend on how busy it is, and elapsed times
//! for disks; each figure is the median of several, with their spread.
//!
//! The calling program is `ring3` itself, which starts itself again for each machine.
//!
//! * `arguments`: the options; `boot`, `idle`, `restore`, `moving`, `back`, `record`, `work`, `cpu`, `system`, `recompile`,
//!   `exits`, `hz`, `ticks`, `hal`, `disk` and `net`: a module for each subcommand;
//! * `peer`: a system of any kind that is measured; `bochs`, `v86` and `uml`: systems that are started in
//!   ways of their own; `children`: all processes that are started;
//! * `driver`: scripts in any guests; `server`: the other end of the suite's network benchmarks;
//! * `suite`: the benchmarks inside a guest; `turns`: their runs, `extent`: how many; `guest`: the guests that
//!   have it; `monitor`: the counters of our own machines;
//! * `statistics`: several measurements of the same thing; `data`: all of them in a file, and `figures` from
//!   it; `table`, `comparison`, `paper`, `plot` and [`chart`]: results as text and as pictures;
//! * [`calibrate`]: measures the steps of a transfer on this host, for the model in `ring3_netmodel`.
#![forbid(unsafe_code)]
// The doc comment of an option is its help, and brackets in it mark optional parts.
#![allow(rustdoc::broken_intra_doc_links)]

mod arguments;
mod back;
mod bochs;
mod boot;
pub mod chart;
mod children;
mod clocks;
mod comparison;
mod cpu;
mod data;
mod disk;
mod driver;
mod exits;
mod extent;
mod figures;
mod guest;
mod hal;
mod hz;
mod idle;
mod monitor;
mod moving;
mod net;
mod paper;
mod peer;
mod plot;
mod provided;
mod recompile;
mod record;
mod restore;
mod server;
mod statistics;
mod suite;
mod supervise;
mod system;
mod table;
mod ticks;
mod turns;
mod uml;
mod v86;
mod work;

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use arguments::BenchArguments;
use arguments::{
    BootArguments, CpuArguments, DiskArguments, ExitsArguments, HalArguments, HzArguments,
    IdleArguments, NetArguments, PlotArguments, RecompileArguments, Settings, SuperviseArguments,
    SystemArguments, What, WorkArguments,
};
pub use driver::PlanError;
pub use net::calibration::{CalibrationError, calibrate, options};

/// Why a measurement has failed.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A guest's file is missing.
    #[error(
        "{0} is missing: run `make guests` in ring3's source tree, or give the guests' directory with --guests"
    )]
    NoGuest(PathBuf),
    /// Tern is not part of this program.
    #[error("Tern is missing in this build of ring3, for want of make and gcc")]
    NoTern,
    /// A system cannot be started.
    #[error("{0} cannot be started: {1}")]
    Start(&'static str, io::Error),
    /// A system does not behave as expected.
    #[error(
        "{0} ended, or printed nothing for {1} seconds, before it printed {2:?}; its last output: {3:?}"
    )]
    Silent(&'static str, u64, &'static str, String),
    /// The host does not report a process's time.
    #[error("the processor time of {0} cannot be read from /proc: {1}")]
    Time(&'static str, io::Error),
    /// The host does not report a process's memory.
    #[error("the memory of {0} cannot be read from /proc: {1}")]
    Memory(&'static str, io::Error),
    /// A machine cannot be saved.
    #[error("the machine in {0} cannot be saved: {1}")]
    Save(&'static str, io::Error),
    /// A machine does not move.
    #[error("the machine in {0} does not move: {1}")]
    Move(&'static str, String),
    /// The benchmarks do not run on the host itself.
    #[error("the guest's programs do not run on this host: {0}")]
    Native(String),
    /// There is no benchmark with this name.
    #[error("there is no benchmark {0}; choose from {1}")]
    NoBenchmark(String, String),
    /// A benchmark has returned no result.
    #[error("{1} did not run {0} to its end; it printed {2:?}")]
    NotRun(String, &'static str, String),
    /// A benchmark has returned a wrong result.
    #[error("{0} has computed {1:08x} in {2}; the right result is {3:08x}")]
    Differs(String, u32, &'static str, u32),
    /// The disc of a guest cannot be made.
    #[error("no disc with {0} can be made: {1}")]
    Disc(&'static str, String),
    /// A supervisor fails.
    #[error(transparent)]
    Supervisor(#[from] ring3_supervisor::error::Error),
    /// Another system is missing.
    #[error("{0} is missing: install it with `{1}`, or leave out --all")]
    NotInstalled(&'static str, &'static str),
    /// One of our own machines does not report its counters.
    #[error("the counters of a machine cannot be read: {0}")]
    Monitor(io::Error),
    /// A machine's serial line cannot be written to.
    #[error("a machine's serial line cannot be written to: {0}")]
    Line(io::Error),
    /// The model's figures cannot be measured.
    #[error("the host cannot be calibrated: {0}")]
    Calibration(#[from] net::calibration::CalibrationError),
    /// A disk image or another temporary file cannot be made.
    #[error("a temporary file for the measurement cannot be made: {0}")]
    Disk(io::Error),
    /// The server of the network benchmarks cannot listen.
    #[error("cannot listen at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The file of `ring3 bench driver` is wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The files for results cannot be made.
    #[error("the results cannot be stored in {0}: {1}")]
    Results(PathBuf, io::Error),
    /// Some runs of `ring3 bench driver` have failed.
    #[error("{0} of {1} runs have failed")]
    Runs(usize, usize),
    /// A file is not one of measurements, or has not those that a figure needs.
    #[error("{0} has no measurements for this figure: {1}; make it with `ring3 bench cpu --data`")]
    Data(PathBuf, String),
    /// The figure needs a second file.
    #[error("--figure hosts compares two files: give that of the other host, too")]
    OneHost,
    /// The figure needs no second file.
    #[error("only --figure hosts compares two files")]
    TwoHosts,
    /// A picture, or a file of measurements, cannot be written.
    #[error("{0} cannot be written: {1}")]
    Plot(PathBuf, String),
    /// The system lets nobody handle signals.
    #[error("signals cannot be handled: {0}")]
    Signals(io::Error),
    /// Standard output cannot be written.
    #[error("the results cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Rejects a file that cannot be written before minutes of measuring. Leaves its contents as they are.
fn check_file(path: &Path) -> Result<(), BenchError> {
    let is_new = !path.exists();
    let opened = File::options().create(true).append(true).open(path);
    let checked = opened.and_then(|_| if is_new { std::fs::remove_file(path) } else { Ok(()) });
    checked.map_err(|error| BenchError::Plot(path.to_owned(), error.to_string()))
}

/// Measures, and writes the results to standard output. Signals that end this process end all that it has
/// started, too. Call this once.
pub fn run(arguments: &BenchArguments) -> Result<(), BenchError> {
    children::end_with_this_process().map_err(BenchError::Signals)?;
    arguments.what.files().into_iter().try_for_each(check_file)?;
    match &arguments.what {
        What::Boot(arguments) => boot::measure(arguments),
        What::Idle(arguments) => idle::measure(arguments),
        What::Restore(arguments) => restore::measure(arguments),
        What::Move(arguments) => moving::measure(arguments),
        What::Back(arguments) => back::measure(arguments),
        What::Record(arguments) => record::measure(arguments),
        What::Supervise(arguments) => supervise::measure(arguments),
        What::Work(arguments) => work::measure(arguments),
        What::Cpu(arguments) => cpu::measure(arguments),
        What::System(arguments) => system::measure(arguments),
        What::Recompile(arguments) => recompile::measure(arguments),
        What::Exits(arguments) => exits::measure(arguments),
        What::Hz(arguments) => hz::measure(arguments),
        What::Ticks(arguments) => ticks::measure(arguments),
        What::Hal(arguments) => hal::measure(arguments),
        What::Plot(arguments) => figures::draw(arguments),
        What::Disk(arguments) => disk::measure(arguments),
        What::Net(arguments) => net::measure(arguments),
        What::Server(arguments) => server::serve(arguments),
        What::Driver(arguments) => driver::measure(arguments),
    }
}

/// Writes a line of the results at once, since the next measurement takes some time.
fn show(line: &str) -> Result<(), BenchError> {
    let mut output = io::stdout();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}
