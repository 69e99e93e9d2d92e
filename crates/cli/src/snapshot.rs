//! `ring3 snapshot`: saves running machines in files, loads them again, and shows, checks and deletes such files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ring3_snapshot::{OpenError, Snapshot};
use ring3_vm::drives::KeptDisk;
use serde_json::{Value, json};
use thiserror::Error;

use crate::machine_socket::{self, AskError};

/// The options of `ring3 snapshot`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Save a running machine in a file, from which "ring3 run --restore FILE" continues it
    Save {
        /// The socket of the machine: that of its --qmp unix:PATH
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,

        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Compress the file
        #[arg(long)]
        compress: bool,
    },
    /// Let a running machine go on as the one that is saved in a file
    Load {
        /// The socket of the machine: that of its --qmp unix:PATH
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,

        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Show what is in the file of a saved machine
    Info {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Read all of the file of a saved machine, to find out whether it is as it was written
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete the file of a saved machine, and the snapshots in disk images that belong to it
    Delete {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// The reasons why `ring3 snapshot` fails.
#[derive(Debug, Error)]
pub(crate) enum SnapshotError {
    #[error(transparent)]
    Machine(#[from] AskError),
    #[error(transparent)]
    File(#[from] OpenError),
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

/// Executes `ring3 snapshot`.
pub(crate) fn run(arguments: &SnapshotArguments) -> Result<(), SnapshotError> {
    match &arguments.action {
        Action::Save { socket, file, compress } => {
            let options = json!({"compress": compress});
            ask(socket, "snapshot-save", file, options)
        }
        Action::Load { socket, file } => ask(socket, "snapshot-load", file, json!({})),
        Action::Info { file } => {
            let text = describe(&Snapshot::open(file)?);
            io::stdout().write_all(text.as_bytes()).map_err(SnapshotError::Output)
        }
        Action::Check { file } => Ok(Snapshot::open(file)?.check()?),
        Action::Delete { file } => Ok(Snapshot::open(file)?.delete()?),
    }
}

/// Asks the machine at `socket` to execute `command` with `file` and further `arguments`.
fn ask(
    socket: &Path,
    command: &str,
    file: &Path,
    mut arguments: Value,
) -> Result<(), SnapshotError> {
    arguments["file"] = json!(machine_socket::absolute(file)?);
    machine_socket::ask(socket, command, &arguments)?;
    Ok(())
}

/// Describes the file of a saved machine.
fn describe(snapshot: &Snapshot) -> String {
    let config = snapshot.machine().config();
    let (memory, is_compressed) = snapshot.memory();
    let packed = if is_compressed { ", compressed" } else { "" };
    let mut lines = vec![format!(
        "processor: {}\nmemory: {} MiB, {} MiB of it in the file{packed}\nsaved at: {} (seconds since 1970-01-01 UTC)",
        config.cpu,
        config.memory_bytes >> 20,
        memory.div_ceil(1 << 20),
        snapshot.saved_at(),
    )];
    for drive in snapshot.drives() {
        let Some(file) = &drive.file else { continue };
        let written: u64 = drive.written_bytes();
        let contents = match &drive.kept {
            KeptDisk::NoMedium => continue,
            KeptDisk::InFile => "as it is".to_owned(),
            KeptDisk::InSnapshot(name) => format!("snapshot {name} in it"),
            KeptDisk::UnderWrites(None) => {
                format!("with {written} bytes that the guest has written")
            }
            KeptDisk::UnderWrites(Some(name)) => {
                format!("snapshot {name} in it, with {written} bytes that the guest has written")
            }
        };
        let (device, unit) = (drive.device.name(), drive.unit);
        lines.push(format!("drive {device} {unit}: {}, {contents}", file.display()));
    }
    lines.join("\n") + "\n"
}
