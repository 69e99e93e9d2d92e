//! `--trace`: what the guest does, as lines of text while it runs.

use std::fs::File;
use std::io::{self, BufWriter, LineWriter};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ring3_display::tty::Stderr;
use ring3_vm::{SystemCallTrace, Vm};
use thiserror::Error;

/// The options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Trace")]
pub(crate) struct TraceArguments {
    /// Print a line for each event of this kind in the guest, to standard error. Both engines execute the same
    #[arg(long, value_name = "KIND", conflicts_with = "verify")]
    pub(crate) trace: Option<Traced>,

    /// With --trace: write the lines to this file, which is emptied first
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) trace_file: Option<PathBuf>,

    /// With --trace: the number of lines after which the trace ends, so that it does not fill the disk
    #[arg(long, value_name = "COUNT", default_value_t = LIMIT, requires = "trace")]
    pub(crate) trace_limit: u64,
}

const LIMIT: u64 = 10_000_000;

/// What is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Traced {
    /// The system calls of Linux's programs, by INT 80h, SYSENTER and SYSCALL.
    Syscalls,
}

/// The reason why there is no trace.
#[derive(Debug, Error)]
#[error("cannot write the trace to {path}: {source}", path = .path.display())]
pub(crate) struct TraceError {
    path: PathBuf,
    source: io::Error,
}

impl TraceArguments {
    /// Begins the trace, if there is to be one.
    pub(crate) fn begin(&self, vm: &mut Vm) -> Result<(), TraceError> {
        let Some(Traced::Syscalls) = self.trace else { return Ok(()) };
        let limit = self.trace_limit;
        let trace = match &self.trace_file {
            Some(path) => {
                let created = File::create(path);
                let fails = |source| TraceError { path: path.clone(), source };
                SystemCallTrace::new(BufWriter::new(created.map_err(fails)?), limit)
            }
            None => SystemCallTrace::new(LineWriter::new(Stderr), limit),
        };
        vm.trace_system_calls(trace);
        Ok(())
    }
}
