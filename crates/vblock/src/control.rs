//! The control socket, by which another process changes devices and rights while the server runs.
//!
//! The protocol is that of QMP (QEMU, "QEMU Machine Protocol Specification"): each message is a JSON object
//! on one line. The server greets with `{"QMP": …}`, and answers `{"execute": NAME, "arguments": {…}}` with
//! `{"return": …}` or `{"error": …}`. A process that can connect has all rights, so only processes
//! of the socket's user can connect.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use ring3_block::Format;
use ring3_host::admission::Room;
use ring3_host::listener::Listener;
use ring3_host::socket::SocketFile;
use ring3_host::stream::Stream;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tracing::debug;

use crate::NbdAddress;
use crate::device::DeviceOptions;
use crate::error::Error;
use crate::listening::{Connection, Front, IDLE};
use crate::message::answer_to;
use crate::provider::ProviderOptions;
use crate::server::{Access, Server, ShareOptions, VhostUserOptions};

/// Upper bound of the bytes in a message.
const MESSAGE_MAX: u64 = 64 << 10;
/// Limits for the connections, each of which takes a thread.
const ROOM: Room = Room { all: 32, of_a_peer: 16, idle: Some(IDLE) };
/// How long a client may take to read an answer, and the server to give one.
const PATIENCE: Duration = Duration::from_secs(30);

/// The commands.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    tag = "execute",
    content = "arguments",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Command {
    /// Does nothing. Clients of QMP begin with this command.
    #[serde(rename = "qmp_capabilities")]
    Capabilities {},
    /// Lists the devices.
    QueryDevices {},
    /// Lists the clients and their rights.
    QueryClients {},
    /// Lists the providers, with the rights to their devices and the number of connections that wait to be used.
    QueryProviders {},
    /// Opens an image as a device.
    DeviceAdd {
        /// The device's new name.
        name: String,
        /// The path of the image, or the address of an NBD export.
        file: PathBuf,
        /// The image's format. Without it the first bytes decide.
        format: Option<String>,
        /// Whether no client may write to the device.
        #[serde(default)]
        read_only: bool,
        /// Whether files that the image names are opened.
        #[serde(default = "on")]
        external_files: bool,
    },
    /// Closes a device.
    DeviceDel {
        /// The device's name.
        name: String,
    },
    /// Gives a device another size.
    DeviceResize {
        /// The device's name.
        name: String,
        /// The new size in bytes.
        size: u64,
        /// Whether it may become smaller.
        #[serde(default)]
        shrink: bool,
    },
    /// Gives a client a right to a device.
    Grant {
        /// The client's name.
        client: String,
        /// The device's name.
        device: String,
        /// The accesses that are allowed.
        access: Access,
        /// The path of the new socket for vhost-user-blk, if the client shall have one.
        socket: Option<PathBuf>,
        /// Number of queues at this socket.
        num_queues: Option<u16>,
    },
    /// Takes a right from a client.
    Revoke {
        /// The client's name.
        client: String,
        /// The device's name.
        device: String,
    },
    /// Starts a client's NBD server.
    NbdServerStart {
        /// The client's name.
        client: String,
        /// The path of a Unix socket.
        socket: Option<PathBuf>,
        /// Or a TCP address and port.
        address: Option<SocketAddr>,
    },
    /// Ends a client's NBD server.
    NbdServerStop {
        /// The client's name.
        client: String,
    },
    /// Gives a client a socket at which it learns of its devices and is connected with them.
    ClientSocketStart {
        /// The client's name.
        client: String,
        /// The path of the new socket.
        socket: PathBuf,
    },
    /// Removes this socket.
    ClientSocketStop {
        /// The client's name.
        client: String,
    },
    /// Listens for a provider.
    ProviderStart {
        /// The provider's name, with which the names of its devices begin.
        name: String,
        /// The path of the new socket.
        socket: PathBuf,
        /// The clients to which it may give rights, with colons in between.
        #[serde(default)]
        clients: String,
        /// How many seconds requests wait for it when it is away.
        reconnect_delay: Option<u32>,
    },
    /// Removes a provider and its devices.
    ProviderStop {
        /// The provider's name.
        name: String,
    },
    /// Says what a client may transfer.
    Share {
        /// The client's name.
        client: String,
        /// Its weight among the others. By default 100.
        weight: Option<u32>,
        /// The most bytes a second. By default there is no limit.
        bandwidth: Option<NonZero<u64>>,
    },
    /// Ends the server.
    Quit {},
}

/// The reasons why a command is refused.
#[derive(Debug, Error)]
enum Refusal {
    #[error("the message is not a command: {0}")]
    Message(#[from] serde_json::Error),
    #[error(transparent)]
    Format(#[from] ring3_block::format::UnknownFormat),
    #[error("give either socket or address, not both")]
    Address,
    #[error("num-queues needs socket; give both")]
    Queues,
    #[error(transparent)]
    Server(#[from] Error),
}

/// The control socket. It accepts commands until it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    _front: Front,
    _file: Option<SocketFile>,
}

impl ControlSocket {
    /// Listens at `path`. Sends a message on `quit` when a command tells the server to end.
    pub fn start(
        server: &Arc<Server>,
        path: &Path,
        quit: Sender<()>,
    ) -> Result<ControlSocket, Error> {
        let mut listener = Listener::unix(path)?;
        let file = listener.take_file();
        let server = Arc::clone(server);
        let front = Front::serve_all("control", listener, ROOM, move |stream, connection| {
            if let Err(error) = talk(&stream, connection, &server, &quit) {
                debug!("a control connection ended: {error}");
            }
        })?;
        Ok(ControlSocket { _front: front, _file: file })
    }
}

fn talk(
    stream: &Stream,
    connection: &Connection,
    server: &Arc<Server>,
    quit: &Sender<()>,
) -> io::Result<()> {
    stream.set_write_patience(Some(PATIENCE))?;
    let mut output = stream;
    let version = json!({ "package": concat!("ring3 vblock ", env!("CARGO_PKG_VERSION")) });
    let greeting = json!({ "QMP": { "version": version, "capabilities": [] } });
    output.write_all(format!("{greeting}\r\n").as_bytes())?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if (&mut input).take(MESSAGE_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        connection.is_active();
        if line.trim().is_empty() {
            continue;
        }
        let mut message = serde_json::from_str(&line).unwrap_or(Value::Null);
        let is_quit = message["execute"] == "quit";
        let mut answer = answer_to(answer(server, &mut message));
        // QMP: the answer repeats the id that the client has given its message.
        if let Some(id) = message.get("id") {
            answer["id"] = id.clone();
        }
        output.write_all(format!("{answer}\r\n").as_bytes())?;
        if is_quit {
            // This fails if the server is already ending.
            let _ = quit.send(());
        }
    }
}

fn on() -> bool {
    true
}

fn answer(server: &Arc<Server>, message: &mut Value) -> Result<Value, Refusal> {
    if let Value::Object(fields) = message {
        fields.entry("arguments").or_insert_with(|| json!({}));
    }
    let nothing = json!({});
    match Command::deserialize(&*message)? {
        Command::Capabilities {} | Command::Quit {} => {}
        Command::QueryDevices {} => return Ok(serde_json::to_value(server.devices())?),
        Command::QueryClients {} => return Ok(serde_json::to_value(server.clients())?),
        Command::QueryProviders {} => {
            return Ok(serde_json::to_value(server.provider_states())?);
        }
        Command::DeviceAdd { name, file, format, read_only, external_files } => {
            let format: Option<Format> = format.map(|format| format.parse()).transpose()?;
            let no_external_files = !external_files;
            let options = DeviceOptions { file, format, read_only, no_external_files };
            server.add_device(&name, &options)?;
        }
        Command::DeviceDel { name } => server.remove_device(&name)?,
        Command::DeviceResize { name, size, shrink } => {
            server.resize_device(&name, size, shrink)?;
        }
        Command::Grant { client, device, access, socket, num_queues } => {
            let vhost_user = match (socket, num_queues) {
                (None, Some(_)) => return Err(Refusal::Queues),
                (None, None) => None,
                (Some(socket), queues) => {
                    Some(VhostUserOptions { socket, queues: queues.unwrap_or(1) })
                }
            };
            server.grant(&client, &device, access, vhost_user.as_ref())?;
        }
        Command::Revoke { client, device } => server.revoke(&client, &device)?,
        Command::NbdServerStart { client, socket, address } => {
            let address = match (socket, address) {
                (Some(path), None) => NbdAddress::Unix(path),
                (None, Some(address)) => NbdAddress::Tcp(address),
                _ => return Err(Refusal::Address),
            };
            let address = server.start_nbd(&client, &address)?;
            return Ok(json!({ "uri": address.to_string() }));
        }
        Command::NbdServerStop { client } => server.stop_nbd(&client)?,
        Command::ClientSocketStart { client, socket } => server.start_lobby(&client, &socket)?,
        Command::ClientSocketStop { client } => server.stop_lobby(&client)?,
        Command::ProviderStart { name, socket, clients, reconnect_delay } => {
            server.start_provider(&ProviderOptions::new(
                name,
                socket,
                &clients,
                reconnect_delay,
            ))?;
        }
        Command::ProviderStop { name } => server.stop_provider(&name)?,
        Command::Share { client, weight, bandwidth } => {
            server.share(&client, ShareOptions { weight, bandwidth })?;
        }
    }
    Ok(nothing)
}

/// The reasons why a command to a server fails.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No server is there.
    #[error("no server answers at {path}: {source}", path = .path.display())]
    Connect {
        /// The path of the control socket.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The server ends before it answers, or it is not a vblock server.
    #[error("the program at {path} is not a vblock server, or ended before it answered", path = .0.display())]
    Silent(PathBuf),
    /// The server refuses the command.
    #[error("{0}")]
    Refused(String),
}

/// Sends a command to the server with the control socket `path`, and returns its result.
pub fn ask(path: &Path, command: &str, arguments: &Value) -> Result<Value, ControlError> {
    let connect = |source| ControlError::Connect { path: path.to_owned(), source };
    let silent = || ControlError::Silent(path.to_owned());
    let mut stream = Stream::unix(path).map_err(connect)?;
    stream.set_read_patience(Some(PATIENCE)).map_err(connect)?;
    let message = json!({ "execute": command, "arguments": arguments });
    stream.write_all(format!("{message}\n").as_bytes()).map_err(|_| silent())?;
    let mut lines = BufReader::new(stream).lines();
    let greeting = lines.next().and_then(Result::ok).ok_or_else(silent)?;
    if !greeting.contains("ring3 vblock") {
        return Err(silent());
    }
    let answer = lines.next().and_then(Result::ok).ok_or_else(silent)?;
    let answer: Value = serde_json::from_str(&answer).map_err(|_| silent())?;
    match (answer.get("return"), answer["error"]["desc"].as_str()) {
        (Some(result), _) => Ok(result.clone()),
        (None, Some(why)) => Err(ControlError::Refused(why.to_owned())),
        (None, None) => Err(silent()),
    }
}
