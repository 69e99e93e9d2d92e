//! The program at the other end of a network: mostly ring3 itself.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::error::NetError;

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The path of its file.
    pub path: PathBuf,
    /// The name by which it is called, whatever its file is called.
    pub name: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// Returns the program that runs now, by the name `name`.
    pub fn running(name: &str, arguments: Vec<OsString>) -> io::Result<Program> {
        Ok(Program { path: env::current_exe()?, name: name.into(), arguments })
    }

    /// Returns the command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg0(&self.name).args(&self.arguments);
        command
    }

    /// Starts it. It is not ended by what is typed at the machine's terminal.
    pub(crate) fn spawn(&self, stdin: Stdio) -> Result<Child, NetError> {
        self.command()
            .stdin(stdin)
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| NetError::Program { program: self.path.clone(), source })
    }
}
