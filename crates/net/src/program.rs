//! A program that is the other end of a network: ring3 itself, as a rule.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::error::NetError;

/// It, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// What it is started with.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// Starts it. It ends by itself, and not by what is typed at the machine's terminal.
    pub(crate) fn spawn(&self, stdin: Stdio) -> Result<Child, NetError> {
        Command::new(&self.path)
            .args(&self.arguments)
            .stdin(stdin)
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| NetError::Program { program: self.path.clone(), source })
    }
}
