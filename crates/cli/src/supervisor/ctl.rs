//! `ring3 ctl`: commands to a supervisor.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use ring3_supervisor::client::Client;
use ring3_supervisor::command::{Command, Status};
use ring3_supervisor::definition::{self, Definition, Disk, Name, Network, Restart};
use ring3_supervisor::error::Error;
use serde_json::Value;
use thiserror::Error;

use super::At;
use crate::img::size;

/// The text that `ring3 ctl --help` shows below the commands.
const HELP: &str = "\
Examples:
  ring3 ctl launch lan --kind switch uplink=user
  ring3 ctl launch disks --kind vblock device.root='{file = \"/images/root.qcow2\"}'
  ring3 ctl launch web memory=512M kernel=vmlinuz append='root=/dev/vda' disk=disks:root network=lan
  ring3 ctl start web
  ring3 ctl query
  ring3 ctl stop web

Exit status: 0 if the command was executed, 1 after an error, 2 if the command line is wrong";

/// The options of `ring3 ctl`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CtlArguments {
    #[command(flatten)]
    at: At,

    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List all machines and servers, or one
    Query {
        name: Option<Name>,

        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Define a machine or a server and start its process. The guest of a machine waits for "start"
    Launch {
        name: Name,

        /// The kind
        #[arg(long, value_enum, default_value_t = Kind::Machine)]
        kind: Kind,

        /// The definition, with the keys of the supervisor's file. A key may be repeated where the file has a list
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<Key>,
    },
    /// Start a machine or a server, or let a machine that waits go on
    Start { name: Name },
    /// Let a machine wait
    Pause { name: Name },
    /// Ask a guest to switch off, or a server to end, and wait for that. After the machine's stop-timeout it is
    /// ended all the same
    Stop {
        name: Name,

        /// Do not wait
        #[arg(long)]
        no_wait: bool,
    },
    /// Kill a machine or a server
    Kill { name: Name },
    /// Forget a machine or a server that does not run
    Remove { name: Name },
    /// Give a machine a right to a disk, which appears in a guest that runs
    Grant {
        machine: Name,

        /// SERVER:DEVICE, and r or rw behind another colon
        disk: Disk,
    },
    /// Take a disk out of a machine, and its right away
    Revoke {
        machine: Name,

        /// SERVER:DEVICE
        disk: Disk,
    },
    /// Connect a machine to a network; a card appears in a guest that runs
    Connect {
        machine: Name,

        /// SWITCH, and properties of --nic behind a comma
        network: Network,
    },
    /// Take the card on a network out of a machine
    Disconnect { machine: Name, switch: Name },
    /// Give a disk another size, of which the guests are told that use it
    Resize {
        /// SERVER:DEVICE
        disk: Disk,

        /// The new size, such as 20G
        #[arg(value_parser = size)]
        size: u64,

        /// Allow a smaller size; what is behind it is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Give a guest that runs more memory, up to --max-memory, or take back what it was given
    Memory {
        machine: Name,

        /// How much it should have, such as 2G
        #[arg(value_parser = size)]
        size: u64,
    },
    /// Say what is done when a machine or a server has ended
    RestartPolicy {
        name: Name,

        #[arg(value_enum)]
        policy: Policy,
    },
    /// Print what a machine or a server has written to its standard output and error
    Log { name: Name },
    /// Print events as they come, in JSON, one a line
    Events,
    /// End the supervisor, after all machines and servers
    Quit {
        /// Let the machines and servers go on, for the next supervisor
        #[arg(long)]
        leave: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Machine,
    Vblock,
    Switch,
    Console,
    Web,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    Always,
    OnFailure,
    Never,
}

impl From<Policy> for Restart {
    fn from(policy: Policy) -> Restart {
        match policy {
            Policy::Always => Restart::Always,
            Policy::OnFailure => Restart::OnFailure,
            Policy::Never => Restart::Never,
        }
    }
}

/// KEY=VALUE.
#[derive(Debug, Clone)]
struct Key {
    key: String,
    value: String,
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Key, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(Key { key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err("give KEY=VALUE, such as memory=512M".to_owned()),
        }
    }
}

/// The reasons why a command is not executed.
#[derive(Debug, Error)]
pub(crate) enum CtlError {
    #[error(transparent)]
    Supervisor(#[from] Error),
    #[error("{0}")]
    Definition(String),
    #[error("the supervisor's answer makes no sense: {0}")]
    Answer(#[from] serde_json::Error),
    #[error("cannot write the result: {0}")]
    Output(#[source] io::Error),
    #[error("cannot tell the present directory: {0}")]
    Directory(#[source] io::Error),
}

/// Executes a command.
pub(crate) fn run(arguments: &CtlArguments) -> Result<(), CtlError> {
    let command = command(&arguments.act)?;
    let mut client = Client::connect(&arguments.at.place())?;
    let result = client.execute(&command)?;
    let mut output = io::stdout().lock();
    let mut print = |text: &str| output.write_all(text.as_bytes()).map_err(CtlError::Output);
    match &arguments.act {
        Act::Query { json: true, .. } => print(&format!("{result:#}\n")),
        Act::Query { .. } => {
            let list = if result.is_array() { result } else { Value::Array(vec![result]) };
            print(&table(&serde_json::from_value::<Vec<Status>>(list)?))
        }
        Act::Log { .. } => print(result.as_str().unwrap_or_default()),
        Act::Events => loop {
            match client.message() {
                Ok(event) => print(&format!("{event}\n"))?,
                Err(Error::Ended) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        },
        _ => Ok(()),
    }
}

fn command(act: &Act) -> Result<Command, CtlError> {
    Ok(match act {
        Act::Query { name, .. } => Command::Query { name: name.clone() },
        Act::Launch { name, kind, keys } => {
            Command::Launch { name: name.clone(), definition: Box::new(defined(*kind, keys)?) }
        }
        Act::Start { name } => Command::Start { name: name.clone() },
        Act::Pause { name } => Command::Pause { name: name.clone() },
        Act::Stop { name, no_wait } => Command::Stop { name: name.clone(), wait: !no_wait },
        Act::Kill { name } => Command::Kill { name: name.clone() },
        Act::Remove { name } => Command::Remove { name: name.clone() },
        Act::Grant { machine, disk } => {
            Command::Grant { machine: machine.clone(), disk: disk.clone() }
        }
        Act::Revoke { machine, disk: Disk { server, device, .. } } => Command::Revoke {
            machine: machine.clone(),
            server: server.clone(),
            device: device.clone(),
        },
        Act::Connect { machine, network } => {
            Command::Connect { machine: machine.clone(), network: network.clone() }
        }
        Act::Disconnect { machine, switch } => {
            Command::Disconnect { machine: machine.clone(), switch: switch.clone() }
        }
        Act::Resize { disk: Disk { server, device, .. }, size, shrink } => Command::Resize {
            server: server.clone(),
            device: device.clone(),
            size: *size,
            shrink: *shrink,
        },
        Act::Memory { machine, size } => Command::Memory { machine: machine.clone(), size: *size },
        Act::RestartPolicy { name, policy } => {
            Command::RestartPolicy { name: name.clone(), policy: (*policy).into() }
        }
        Act::Log { name } => Command::Log { name: name.clone() },
        Act::Events => Command::Events {},
        Act::Quit { leave } => Command::Quit { leave: *leave },
    })
}

/// Returns the definition that `keys` make. Relative paths in it are relative to the present directory.
fn defined(kind: Kind, keys: &[Key]) -> Result<Definition, CtlError> {
    let mut by_key: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Key { key, value } in keys {
        by_key.entry(key).or_default().push(value);
    }
    let lines = by_key.iter().map(|(key, values)| {
        let is_list = values.len() > 1 || ["disk", "network", "needs", "uplink"].contains(key);
        let values: Vec<_> = values.iter().map(|value| in_toml(value)).collect();
        let values = values.join(", ");
        if is_list { format!("{key} = [{values}]\n") } else { format!("{key} = {values}\n") }
    });
    let text: String = lines.collect();
    let mut definition = match kind {
        Kind::Machine => definition::parse_machine(&text),
        Kind::Vblock => definition::parse_server(&format!("kind = \"vblock\"\n{text}")),
        Kind::Switch => definition::parse_server(&format!("kind = \"switch\"\n{text}")),
        Kind::Console => definition::parse_server(&format!("kind = \"console\"\n{text}")),
        Kind::Web => definition::parse_server(&format!("kind = \"web\"\n{text}")),
    }
    .map_err(CtlError::Definition)?;
    let directory = env::current_dir().map_err(CtlError::Directory)?;
    definition.common_mut().directory.get_or_insert(directory);
    Ok(definition)
}

/// Returns a value in TOML: tables, numbers and truth values as they are, and all else as a string.
fn in_toml(value: &str) -> String {
    let is_plain = value.starts_with('{')
        || matches!(value, "true" | "false")
        || value.parse::<u32>().is_ok_and(|number| number.to_string() == value);
    if is_plain { value.to_owned() } else { Value::from(value).to_string() }
}

fn table(parts: &[Status]) -> String {
    let word = |state| match serde_json::to_value(state) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    };
    let mut text = format!(
        "{:<20} {:<8} {:<12} {:>8} {:>9} {:>8}  last end\n",
        "name", "kind", "state", "process", "restarts", "memory"
    );
    for part in parts {
        let pid = part.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let memory =
            part.memory.map_or_else(|| "-".to_owned(), |memory| format!("{}M", memory.held >> 20));
        let line = format!(
            "{:<20} {:<8} {:<12} {pid:>8} {:>9} {memory:>8}  {}",
            part.name,
            part.kind,
            word(part.state),
            part.restarts,
            part.ended.as_deref().unwrap_or("")
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
