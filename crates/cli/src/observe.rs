//! What is seen of the guest's execution from outside, and written when the run ends.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use ring3_vm::Vm;
use thiserror::Error;

use crate::histogram::{self, HistogramArguments};
use crate::perf_map::{self, PerfMapArguments, PerfMapError};
use crate::profile::{self, ProfileArguments};
use crate::report::WriteError;
use crate::symbols::{Symbols, SymbolsError};

/// The options.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the guest executes")]
#[command(group(ArgGroup::new("observed").args(["histogram", "profile", "perf_map"]).multiple(true)))]
pub(crate) struct ObserveArguments {
    #[command(flatten)]
    histogram: HistogramArguments,

    #[command(flatten)]
    profile: ProfileArguments,

    #[command(flatten)]
    perf_map: PerfMapArguments,

    /// Name the code of the guest's kernel by the symbols in this file: its vmlinux, or
    /// its System.map; may be given several times
    #[arg(long, value_name = "FILE", requires = "observed")]
    symbols: Vec<PathBuf>,
}

/// The reasons why what was seen cannot be written.
#[derive(Debug, Error)]
pub(crate) enum ObserveError {
    #[error(transparent)]
    Report(#[from] WriteError),
    #[error(transparent)]
    PerfMap(#[from] PerfMapError),
    #[error(transparent)]
    Symbols(#[from] SymbolsError),
}

/// What is written when the run ends.
#[derive(Debug)]
pub(crate) struct Observations {
    histogram: Option<histogram::Output>,
    profile: Option<profile::Output>,
    perf_map: Option<perf_map::Output>,
}

impl ObserveArguments {
    /// Returns an option that was given.
    pub(crate) fn first(&self) -> Option<&'static str> {
        let histogram = self.histogram.histogram.as_ref().map(|_| "--histogram");
        histogram.or(self.profile.profile.as_ref().map(|_| "--profile"))
    }

    /// Returns the path of a file that is made when the run ends.
    pub(crate) fn written_at_the_end(&self) -> Option<PathBuf> {
        self.perf_map.perf_map.then(perf_map::path)
    }

    /// Returns whether samples are taken.
    pub(crate) fn has_profile(&self) -> bool {
        self.profile.profile.is_some()
    }

    /// Begins to observe `vm`, and opens the files.
    pub(crate) fn begin(&self, vm: &mut Vm) -> Result<Observations, ObserveError> {
        let symbols = Symbols::read(&self.symbols)?;
        Ok(Observations {
            histogram: self.histogram.begin(vm, &symbols)?,
            profile: self.profile.begin(vm, &symbols)?,
            perf_map: self.perf_map.begin(vm, symbols)?,
        })
    }
}

impl Observations {
    /// Writes what was seen of `vm`.
    pub(crate) fn finish(self, vm: &mut Vm) -> Result<(), ObserveError> {
        let histogram = self.histogram.map_or(Ok(()), |histogram| histogram.finish(vm));
        self.profile.map_or(Ok(()), |profile| profile.finish(vm))?;
        self.perf_map.map_or(Ok(()), |perf_map| perf_map.finish(vm))?;
        Ok(histogram?)
    }
}
