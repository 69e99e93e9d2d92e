//! The socket for commands to a switch.
//!
//! The protocol is that of QMP (QEMU, "QEMU Machine Protocol Specification"), as at a server of disks: each message is a
//! JSON object on one line, the switch greets with `{"QMP": …}`, and answers `{"execute": NAME, "arguments": {…}}` with
//! `{"return": …}` or `{"error": …}`. Only programs of the socket's user can connect.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ring3_host::admission::{Admission, Room};
use ring3_host::socket::{SocketFile, listen_at};
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tracing::{debug, warn};

use super::port::Switch;
use super::shares::MachineShare;
use crate::error::NetError;

/// Upper bound of the bytes in a message.
const MESSAGE_MAX: u64 = 64 << 10;
/// Limits for the connections, each of which takes a thread.
const ROOM: Room = Room { all: 16, of_a_peer: 8, idle: None };
/// How long a client may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The commands.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "execute", content = "arguments", rename_all = "kebab-case")]
enum Command {
    /// Does nothing. Clients of QMP begin with this command.
    #[serde(rename = "qmp_capabilities")]
    Capabilities {},
    /// Lists the ports with their counters.
    QueryPorts {},
    /// Says what machines may send: those of these processes, and all others the usual.
    Share {
        /// The machines.
        machines: Vec<MachineShare>,
    },
}

/// The reasons why a command is refused.
#[derive(Debug, Error)]
enum Refusal {
    #[error("the message is not a command: {0}")]
    Message(#[from] serde_json::Error),
    #[error("there is nothing to share: start the switch with --bandwidth")]
    Unlimited,
}

/// Takes commands to `switch` from everyone who connects to a socket at `path`, in threads of their own. The socket exists
/// until the returned value is dropped.
pub fn take_commands(path: &Path, switch: Switch) -> Result<SocketFile, NetError> {
    let (listener, file) = listen_at(path)?;
    listener.set_nonblocking(false).map_err(NetError::Conversation)?;
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || serve(&listener, &switch))
        .map_err(NetError::Thread)?;
    Ok(file)
}

fn serve(listener: &UnixListener, switch: &Switch) {
    let admission = Admission::new(ROOM);
    for client in listener.incoming() {
        if let Err(error) = client.and_then(|client| let_in(client, &admission, switch)) {
            warn!("a client cannot connect: {error}");
            thread::sleep(PAUSE);
        }
    }
}

fn let_in(client: UnixStream, admission: &Arc<Admission>, switch: &Switch) -> io::Result<()> {
    let Some(admitted) = admission.admit(&client)? else {
        warn!("too many clients are connected; another one is refused");
        return Ok(());
    };
    let switch = switch.clone();
    thread::Builder::new().name("client".to_owned()).spawn(move || {
        admitted.is_active();
        if let Err(error) = talk(&client, &switch) {
            debug!("a client is disconnected: {error}");
        }
    })?;
    Ok(())
}

fn talk(stream: &UnixStream, switch: &Switch) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut output = stream;
    let version = json!({ "package": concat!("ring3 switch ", env!("CARGO_PKG_VERSION")) });
    let greeting = json!({ "QMP": { "version": version, "capabilities": [] } });
    output.write_all(format!("{greeting}\r\n").as_bytes())?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if (&mut input).take(MESSAGE_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line.trim().is_empty() {
            continue;
        }
        let mut message: Value = serde_json::from_str(&line).unwrap_or_default();
        let mut answer = match answer(switch, &mut message) {
            Ok(result) => json!({ "return": result }),
            Err(refusal) => {
                json!({ "error": { "class": "GenericError", "desc": refusal.to_string() } })
            }
        };
        // QMP: the answer repeats the id that the client has given its message.
        if let Some(id) = message.get("id") {
            answer["id"] = id.clone();
        }
        output.write_all(format!("{answer}\r\n").as_bytes())?;
    }
}

fn answer(switch: &Switch, message: &mut Value) -> Result<Value, Refusal> {
    if let Value::Object(fields) = message {
        fields.entry("arguments").or_insert_with(|| json!({}));
    }
    match Command::deserialize(&*message)? {
        Command::Capabilities {} => Ok(json!({})),
        Command::QueryPorts {} => Ok(serde_json::to_value(switch.status())?),
        Command::Share { machines } => {
            if switch.share(&machines) {
                Ok(json!({}))
            } else {
                Err(Refusal::Unlimited)
            }
        }
    }
}
