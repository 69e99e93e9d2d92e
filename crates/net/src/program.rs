//! A program that is the other end of a network: ring3 itself, as a rule.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::error::NetError;

/// It, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// The name by which it is called, whatever its file is called.
    pub name: OsString,
    /// What it is started with.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// The program that runs, by the name `name`.
    pub fn running(name: &str, arguments: Vec<OsString>) -> io::Result<Program> {
        Ok(Program { path: env::current_exe()?, name: name.into(), arguments })
    }

    /// How it is started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg0(&self.name).args(&self.arguments);
        command
    }

    /// Starts it. It ends by itself, and not by what is typed at the machine's terminal.
    pub(crate) fn spawn(&self, stdin: Stdio) -> Result<Child, NetError> {
        self.command()
            .stdin(stdin)
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| NetError::Program { program: self.path.clone(), source })
    }
}
