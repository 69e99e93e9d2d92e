//! A client's own socket, at which it learns which devices it may use, and is introduced to them.
//!
//! Each message is a JSON object on one line. `connect` is answered together with a descriptor (`SCM_RIGHTS`):
//! the client's end of a new connection over vhost-user-blk, whose other end is served here, or with `direct`
//! one at whose other end the provider of the device is an NBD server. This process has nothing to do with
//! what goes over the latter, but can end it; there is one at a time for each connection here. Events say when
//! devices come, go or change their size.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use ring3_host::admission::Room;
use ring3_host::listener::Listener;
use ring3_host::socket::SocketFile;
use ring3_host::stream::{Stream, hang_up};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::debug;

use crate::error::Error;
use crate::listening::{Connection, Cut, Front};
use crate::message::{answer_to, next_line};
use crate::server::Server;
use crate::vhost_user::{Grant, serve_stream};

/// Limits for the connections with messages, each of which takes a thread.
const ROOM: Room = Room { all: 16, of_a_peer: 8, idle: None };
/// Upper bound of the connections, with those to devices.
const CONNECTIONS: usize = 64;
/// How long a client may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The messages of a client.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "execute",
    content = "arguments",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
enum Message {
    /// Lists the devices that the client may use.
    QueryDevices {},
    /// Makes a connection with a device.
    Connect {
        device: String,
        #[serde(default)]
        direct: bool,
    },
}

/// The clients at a socket who want to know of events.
type Listeners = Arc<Mutex<Vec<Weak<Outgoing>>>>;

/// What goes out at a connection.
#[derive(Debug)]
struct Outgoing(Mutex<Stream>);

impl Outgoing {
    /// Sends a line, and with it a descriptor.
    fn answer(&self, value: &Value, descriptor: Option<&OwnedFd>) -> io::Result<()> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{value}\r\n");
        let mut sent = 0;
        if let Some(descriptor) = descriptor {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let descriptors = [descriptor.as_fd()];
            if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(ErrorKind::OutOfMemory.into());
            }
            let parts = [IoSlice::new(line.as_bytes())];
            sent = sendmsg(&*stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        (&*stream).write_all(&line.as_bytes()[sent..])
    }

    /// Sends an event. A client that has not read so many that there is no room is disconnected, since it
    /// would miss this one.
    fn tell(&self, line: &str) {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::send(&*stream, line.as_bytes(), flags);
        if sent != Ok(line.len()) {
            hang_up(&*stream);
        }
    }
}

/// A client's socket.
#[derive(Debug)]
pub(crate) struct Lobby {
    path: PathBuf,
    listeners: Listeners,
    front: Front,
    _file: Option<SocketFile>,
}

impl Lobby {
    pub(crate) fn start(server: &Arc<Server>, client: &str, path: &Path) -> Result<Lobby, Error> {
        let mut listener = Listener::unix(path)?;
        let file = listener.take_file();
        let listeners = Listeners::default();
        let (owner, server) = (client.to_owned(), Arc::downgrade(server));
        let all = Arc::clone(&listeners);
        let name = format!("devices of {client}");
        let front = Front::serve_all(&name, listener, ROOM, move |stream, connection| {
            if let Err(error) = talk(&stream, connection, &server, &owner, &all) {
                debug!("{owner} is disconnected: {error}");
            }
        })?;
        Ok(Lobby { path: path.to_owned(), listeners, front, _file: file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the client of an event.
    pub(crate) fn tell(&self, event: &str, data: &Value) {
        let line = format!("{}\r\n", json!({ "event": event, "data": data }));
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.tell(&line));
    }

    /// Ends the connections with a device. Requests under way end before those that are served here.
    pub(crate) fn cut(&self, device: &str) -> Cut {
        let _ = self.front.cut(&direct_name(device));
        self.front.cut(device)
    }
}

fn talk(
    stream: &Stream,
    connection: &Connection,
    server: &Weak<Server>,
    client: &str,
    listeners: &Listeners,
) -> io::Result<()> {
    stream.set_write_patience(Some(PATIENCE))?;
    let outgoing = Arc::new(Outgoing(Mutex::new(stream.try_clone()?)));
    listeners.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&outgoing));
    let mut introduced: Option<Introduced> = None;
    while let Some(line) = next_line(stream)? {
        connection.is_active();
        let Some(server) = server.upgrade() else { return Ok(()) };
        let answer = match serde_json::from_slice(&line) {
            Ok(Message::QueryDevices {}) => Ok((json!(server.devices_of(client)), None)),
            Ok(Message::Connect { device, direct }) => {
                let made = if direct {
                    // The one before is over when the client asks for another.
                    drop(introduced.take());
                    introduce(&server, client, &device, connection).map(|(stream, kept)| {
                        introduced = Some(kept);
                        stream
                    })
                } else {
                    connect(&server, client, &device, connection)
                };
                let made = made.map(|descriptor| (json!({}), Some(descriptor)));
                made.map_err(|error| error.to_string())
            }
            Err(error) => Err(format!("the message is not a command: {error}")),
        };
        // The server may be dropped while this thread waits for the client.
        drop(server);
        let (result, descriptor) = match answer {
            Ok((result, descriptor)) => (Ok(result), descriptor),
            Err(why) => (Err(why), None),
        };
        outgoing.answer(&answer_to(result), descriptor.as_ref())?;
    }
    Ok(())
}

/// Makes a connection with a device that is served here. Returns the client's end.
fn connect(
    server: &Server,
    client: &str,
    device: &str,
    connection: &Connection,
) -> Result<OwnedFd, Error> {
    let export = server.export(client, device)?;
    let (near, far) = UnixStream::pair().map_err(Error::Thread)?;
    let registered = register(server, client, device, device, connection, &near)?;
    let grant = Grant {
        client: client.to_owned(),
        device: export.device,
        writes: export.writes,
        queues: 1,
        share: export.share,
    };
    let thread = thread::Builder::new().name(format!("client {client}"));
    thread
        .spawn(move || {
            let _registered = registered;
            serve_stream(near.into(), &grant);
        })
        .map_err(Error::Thread)?;
    Ok(far.into())
}

/// A connection of a provider that a client has got. It ends together with the client's connection here, since
/// the provider cannot see the end of a client while this process has the connection, too.
struct Introduced {
    stream: OwnedFd,
    _registered: Connection,
}

impl Drop for Introduced {
    fn drop(&mut self) {
        hang_up(&self.stream);
    }
}

/// Hands over a connection of the device's provider.
fn introduce(
    server: &Server,
    client: &str,
    device: &str,
    connection: &Connection,
) -> Result<(OwnedFd, Introduced), Error> {
    let stream = server.introduce(client, device)?;
    let name = direct_name(device);
    let registered = register(server, client, device, &name, connection, &stream)?;
    let kept = stream.try_clone().map_err(Error::Thread)?;
    Ok((stream, Introduced { stream: kept, _registered: registered }))
}

/// Returns the name of direct connections with a device, which no device has.
fn direct_name(device: &str) -> String {
    format!("direct {device}")
}

/// Registers a connection with a device as `name`, so that it ends when the client loses its right.
fn register(
    server: &Server,
    client: &str,
    device: &str,
    name: &str,
    connection: &Connection,
    stream: &impl AsFd,
) -> Result<Connection, Error> {
    let too_many = || Error::TooMuch("64 connections at a client's socket");
    let registered = connection.beside(stream, CONNECTIONS).ok_or_else(too_many)?;
    registered.name(name);
    // The right may have been taken before the connection had a name by which it could be cut.
    server.export(client, device)?;
    Ok(registered)
}
