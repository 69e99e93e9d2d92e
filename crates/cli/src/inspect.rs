//! `ring3 inspect`: shows what is in a running machine, down to each register.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use thiserror::Error;

use crate::machine_socket::{self, AskError};

/// The options of `ring3 inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// The socket of the machine: that of its --qmp unix:PATH
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,

    /// The part to show, such as processor or devices/pit/counters/0; by default all of it. A wrong name is
    /// answered with the right ones
    #[arg(value_name = "PATH", default_value = "", hide_default_value = true)]
    path: String,

    /// Show it as JSON, for programs
    #[arg(long)]
    json: bool,
}

/// The reasons why nothing is shown.
#[derive(Debug, Error)]
pub(crate) enum InspectError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

/// Executes `ring3 inspect`.
pub(crate) fn run(arguments: &InspectArguments) -> Result<(), InspectError> {
    let InspectArguments { socket, path, json } = arguments;
    let wanted = json!({"path": path, "text": !json});
    let shown = machine_socket::ask(socket, "x-ring3-inspect", &wanted)?;
    let text = match shown["text"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("{:#}\n", shown["value"]),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads it has seen enough, as head(1) does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(InspectError::Output),
    }
}
