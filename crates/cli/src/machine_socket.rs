//! A command to a machine that runs, by the socket of its `--qmp`.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thiserror::Error;

/// The reasons why a machine does not do what it is asked for.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    #[error(
        "cannot reach a machine at {socket}: {source}; it must run with --qmp unix:{socket}", socket = .socket.display()
    )]
    Connect { socket: PathBuf, source: io::Error },
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
    let connect = |source| AskError::Connect { socket: socket.to_owned(), source };
    let mut stream = UnixStream::connect(socket).map_err(connect)?;
    let mut lines = BufReader::new(stream.try_clone().map_err(connect)?).lines();
    let mut result = Value::Null;
    for command in [
        json!({"execute": "qmp_capabilities", "id": 0}),
        json!({"execute": command, "arguments": arguments, "id": 1}),
    ] {
        writeln!(stream, "{command}").map_err(connect)?;
        let mut answer: Value = loop {
            let line = lines.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
            let line = line.map_err(connect)?;
            let answer: Value = serde_json::from_str(&line).map_err(|error| AskError::Answer {
                socket: socket.to_owned(),
                what: error.to_string(),
            })?;
            // Greetings and events have no id.
            if answer.get("id") == command.get("id") {
                break answer;
            }
        };
        if let Some(reason) = answer["error"]["desc"].as_str() {
            return Err(AskError::Refused(reason.to_owned()));
        }
        result = answer["return"].take();
    }
    Ok(result)
}
