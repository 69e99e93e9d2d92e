//! `ring3 run`: one machine from the command line to its end.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use ring3_vm::linux::LinuxError;
use ring3_vm::{Config, Ending, Vm, VmError, door};
use thiserror::Error;

use crate::args::{Display, RunArguments, SerialTarget};
use crate::serial::{self, InputFrom, SerialOutput};
use crate::terminal::{RawMode, Stderr};

/// The exit statuses of `ring3 run`, but for 2, which is the wrong command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// The guest has switched the machine off, or the person outside has.
    Ended,
    /// Something on the host's side.
    HostError,
    /// The processor cannot go on.
    Stopped,
    /// The guest has given this status itself.
    Guest(u8),
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(match status {
            Status::Ended => 0,
            Status::HostError => 1,
            Status::Stopped => 3,
            Status::Guest(status) => status,
        })
    }
}

/// Why there is no run, or why it has ended before its time. Each message says what to do
/// about it, or names the thing that is in the way.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    #[error("cannot read the {what} {path}: {source}")]
    Read { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot write the serial port's output to {path}: {source}")]
    SerialFile { path: PathBuf, source: io::Error },
    #[error("cannot use the terminal: {0}")]
    Terminal(#[source] io::Error),
    #[error("{path} {source}; give it more with --memory", path = .kernel.display())]
    TooLittleMemory { kernel: PathBuf, source: LinuxError },
    #[error("{path} {source}", path = .kernel.display())]
    Kernel { kernel: PathBuf, source: LinuxError },
    #[error(transparent)]
    Machine(VmError),
}

/// Runs the machine that `arguments` describe, until it ends.
pub(crate) fn run(arguments: &RunArguments) -> Result<Status, RunError> {
    let kernel = read("kernel", &arguments.kernel)?;
    let initrd = arguments.initrd.as_deref().map(|path| read("initial RAM disk", path));
    let initrd = initrd.transpose()?;
    let mut output = match &arguments.serial {
        SerialTarget::Stdio => SerialOutput::stdout().map_err(RunError::Terminal)?,
        SerialTarget::File(path) => SerialOutput::file(path)
            .map_err(|source| RunError::SerialFile { path: path.clone(), source })?,
    };
    // The one kind of screen that there is.
    let Display::None = arguments.display;

    let config = Config {
        cpu: arguments.cpu,
        memory_bytes: arguments.memory.bytes,
        kernel,
        initrd,
        command_line: arguments.append.clone(),
        rtc_base: seconds_since_1970(),
    };
    let mut vm = Vm::new(config).map_err(|error| explain(error, &arguments.kernel))?;
    let (sender, mut door) = door();

    let ended = {
        let mut raw_mode = None;
        if arguments.serial == SerialTarget::Stdio {
            raw_mode = RawMode::enter().map_err(RunError::Terminal)?;
            let from = if raw_mode.is_some() { InputFrom::Terminal } else { InputFrom::Script };
            serial::read_stdin(from, sender.clone()).map_err(RunError::Terminal)?;
        }
        let ended = vm.run(&mut door, &mut output);
        drop(raw_mode);
        ended
    };
    if arguments.stats {
        // The counters are for whom reads standard error; without it there is nobody.
        let _ = writeln!(Stderr, "{}", vm.stats());
    }
    match ended.map_err(RunError::Machine)? {
        Ending::PowerOff | Ending::Quit => Ok(Status::Ended),
        Ending::Exit(status) => Ok(Status::Guest(status)),
        Ending::Stopped(report) => {
            let _ = writeln!(Stderr, "ring3: the processor has stopped: {report}");
            Ok(Status::Stopped)
        }
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, RunError> {
    fs::read(path).map_err(|source| RunError::Read { what, path: path.to_owned(), source })
}

/// Puts the name of the kernel file to errors that are about it.
fn explain(error: VmError, kernel: &Path) -> RunError {
    let kernel = kernel.to_owned();
    match error {
        VmError::Linux(source @ LinuxError::TooLittleMemory { .. }) => {
            RunError::TooLittleMemory { kernel, source }
        }
        VmError::Linux(source) => RunError::Kernel { kernel, source },
        error => RunError::Machine(error),
    }
}

/// The host's time as the machine's clock is to have it at power-on; a host whose
/// clock is before 1970 gets 1970.
fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
