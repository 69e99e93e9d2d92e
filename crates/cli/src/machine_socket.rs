//! Commands to a machine that runs, by the socket of its `--qmp`.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use ring3_vm::control::Ended;
use serde_json::{Value, json};
use thiserror::Error;

/// The reasons why a machine does not do what it is asked for.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    #[error(
        "cannot reach a machine at {socket}: {source}; it must run with --qmp unix:{socket}", socket = .socket.display()
    )]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the machine at {socket} has ended", socket = .0.display())]
    Ended(PathBuf),
    #[error("the machine at {socket} does not answer as expected: {what}", socket = .socket.display())]
    Answer { socket: PathBuf, what: String },
    #[error("{path}: {source}", path = .path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
}

/// Returns `file` for a machine, which may have another working directory.
pub(crate) fn absolute(file: &Path) -> Result<PathBuf, AskError> {
    std::path::absolute(file).map_err(|source| AskError::Path { path: file.to_owned(), source })
}

/// Asks the machine at `socket` to execute `command`, and returns the result.
pub(crate) fn ask(socket: &Path, command: &str, arguments: &Value) -> Result<Value, AskError> {
    Machine::connect(socket)?.ask(command, arguments)
}

/// A connection to a machine.
pub(crate) struct Machine {
    socket: PathBuf,
    stream: UnixStream,
    messages: BufReader<UnixStream>,
    /// The number of the last command.
    last: u64,
}

impl Machine {
    /// Connects to the machine at `socket`.
    pub(crate) fn connect(socket: &Path) -> Result<Machine, AskError> {
        let connect = |source| AskError::Connect { socket: socket.to_owned(), source };
        let stream = UnixStream::connect(socket).map_err(connect)?;
        let messages = BufReader::new(stream.try_clone().map_err(connect)?);
        let mut machine = Machine { socket: socket.to_owned(), stream, messages, last: 0 };
        machine.ask("qmp_capabilities", &json!({}))?;
        Ok(machine)
    }

    /// Asks the machine to execute `command`, and returns the result.
    pub(crate) fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value, AskError> {
        self.last += 1;
        let id = json!(self.last);
        let asked = json!({"execute": command, "arguments": arguments, "id": id});
        writeln!(self.stream, "{asked}").map_err(|error| self.lost(error))?;
        let mut answer: Value = loop {
            let line = self.message()?;
            let answer: Value = serde_json::from_str(&line).map_err(|error| AskError::Answer {
                socket: self.socket.clone(),
                what: error.to_string(),
            })?;
            // Greetings and events have no id.
            if answer.get("id") == Some(&id) {
                break answer;
            }
        };
        match answer["error"]["desc"].as_str() {
            None => Ok(answer["return"].take()),
            Some(reason) if reason == Ended.to_string() => {
                Err(AskError::Ended(self.socket.clone()))
            }
            Some(reason) => Err(AskError::Refused(reason.to_owned())),
        }
    }

    /// Reads the next line that the machine sends, and waits for it.
    fn message(&mut self) -> Result<String, AskError> {
        let mut line = String::new();
        match self.messages.read_line(&mut line) {
            Ok(1..) => Ok(line),
            Ok(0) => Err(self.lost(ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Reads, and forgets, the events that have come. [`Machine::news`] can be read, or there is more to read
    /// already.
    pub(crate) fn skip_events(&mut self) -> Result<(), AskError> {
        loop {
            self.message()?;
            if self.messages.buffer().is_empty() {
                return Ok(());
            }
        }
    }

    /// Returns the descriptor that can be read when the machine has sent something, or has ended.
    pub(crate) fn news(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn lost(&self, error: io::Error) -> AskError {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                AskError::Ended(self.socket.clone())
            }
            _ => AskError::Connect { socket: self.socket.clone(), source: error },
        }
    }
}
