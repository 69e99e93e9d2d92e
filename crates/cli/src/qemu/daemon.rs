//! `-daemonize`: a process of its own has the machine, and the one that was started ends when that runs, or says why it does not.
//!
//! The program starts itself again with [`CHILD`]. What is wrong with the machine the child says itself, on the standard error that it
//! shares; a byte on its standard output says that the machine runs, and from then on it has neither.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{ExitCode, Stdio};

use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::status::Status;

/// The option by which the child knows what it is.
pub(super) const CHILD: &str = "-daemonized";

/// Starts the child with these arguments, and waits until its machine runs.
pub(super) fn start(arguments: &[String]) -> ExitCode {
    match try_start(arguments) {
        Ok(status) => status,
        Err(error) => {
            crate::complain(&format!("cannot start a process for the machine: {error}"));
            Status::HostError.into()
        }
    }
}

fn try_start(arguments: &[String]) -> io::Result<ExitCode> {
    let mut child = crate::own_program(vec!["qemu".into()])?
        .command()
        .args(arguments)
        .arg(CHILD)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut word = [0];
    let runs = match &mut child.stdout {
        Some(output) => output.read(&mut word)? == 1,
        None => false,
    };
    if runs {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(status.map_or(Status::HostError.into(), ExitCode::from))
}

/// The child leaves the terminal of its parent.
pub(super) fn leave_terminal() {
    // It fails for who leads a group of processes already, which a child does not.
    let _ = setsid();
}

/// The child's machine runs from now on: the parent may end.
pub(crate) fn tell_parent() -> io::Result<()> {
    let mut output = io::stdout();
    output.write_all(b"r").and_then(|()| output.flush())?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    Ok(())
}
