//! `-daemonize`: runs the machine in a process of its own. The process that was started ends when the machine
//! runs, or says why it does not.
//!
//! The program starts itself again with [`CHILD`]. The child reports errors itself, on the standard error
//! that it shares with its parent. A byte on its standard output says that the machine runs; from then on the
//! child has neither stream.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{ExitCode, Stdio};

use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::status::Status;

/// The option that tells the child its role.
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

/// Detaches the child from its parent's terminal.
pub(super) fn leave_terminal() {
    // This fails only in the leader of a process group, which a child is not.
    let _ = setsid();
}

/// Tells the parent that the machine runs, so that it ends.
pub(crate) fn tell_parent() -> io::Result<()> {
    let mut output = io::stdout();
    output.write_all(b"r").and_then(|()| output.flush())?;
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    Ok(())
}
