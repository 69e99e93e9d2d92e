//! Programs that bring their own disks.
//!
//! A provider has a socket of its own. Each message there is a JSON object on one line. `serve` has no answer:
//! from then on the provider is an NBD server at this connection, and this process its client. So the disk's
//! size, its blocks and whether it can be written are those of the export. The first connection for a disk
//! makes the device. Further ones wait: the next one is used when the present one is lost. Requests that come
//! while there is none wait, too, and those in flight are repeated (`ring3_block::nbd`).
//!
//! A provider sees and changes nothing but its own devices, and gives rights only to the clients that were chosen
//! for it. A device is called as its provider, with its own name, which has no dot, behind a dot; so none can take a
//! name that belongs to another provider. What a provider sends is as hostile as what clients send.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ring3_block::nbd::Source;
use ring3_host::admission::Room;
use ring3_host::listener::Listener;
use ring3_host::socket::SocketFile;
use ring3_host::stream::Stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::error::Error;
use crate::listening::{Connection, Front};
use crate::message::{answer_to, next_line};
use crate::server::{Access, Server, VhostUserOptions};

/// Limits for the connections that have not said yet what they are for, and those with messages.
const ROOM: Room = Room { all: 64, of_a_peer: 32, idle: Some(crate::listening::IDLE) };
/// How long a provider may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Upper bounds of a provider's devices, and of the connections that wait at each.
const DEVICES: usize = 16;
const WAITING: usize = 16;
/// How long requests wait by default for a provider to come back.
const RECONNECT: Duration = Duration::from_secs(60);
/// How long one attempt to get a connection waits for it.
const MOMENT: Duration = Duration::from_millis(500);

/// A right of a client to a device that a provider will bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// The client's name.
    pub client: String,
    /// The device's name.
    pub device: String,
    /// The accesses that are allowed.
    pub access: Access,
    /// The socket for vhost-user-blk, if the client shall have one.
    pub vhost_user: Option<VhostUserOptions>,
}

/// The options of a provider.
#[derive(Debug, Clone)]
pub struct ProviderOptions {
    /// The provider's name, with which the names of its devices begin.
    pub name: String,
    /// The path of its socket.
    pub socket: PathBuf,
    /// The clients to which it may give rights.
    pub clients: Vec<String>,
    /// How long requests wait for it when it is away.
    pub reconnect: Duration,
    /// The rights that clients get whenever it has added a device.
    pub rights: Vec<Right>,
}

impl ProviderOptions {
    /// Returns the options of a provider whose clients are named with colons in between, and whose requests
    /// wait for this number of seconds.
    pub fn new(
        name: String,
        socket: PathBuf,
        clients: &str,
        reconnect: Option<u32>,
    ) -> ProviderOptions {
        let clients = clients.split(':').filter(|client| !client.is_empty());
        ProviderOptions {
            name,
            socket,
            clients: clients.map(str::to_owned).collect(),
            reconnect: reconnect.map_or(RECONNECT, |seconds| Duration::from_secs(seconds.into())),
            rights: Vec::new(),
        }
    }

    /// Returns whether a device has a name that this provider gives.
    pub fn is_for(&self, device: &str) -> bool {
        device.rsplit_once('.').is_some_and(|(provider, _)| provider == self.name)
    }
}

/// The state of a provider, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProviderStatus {
    /// Its name.
    pub name: String,
    /// The path of its socket.
    pub socket: PathBuf,
    /// The clients to which it may give rights.
    pub clients: Vec<String>,
    /// For how many seconds requests wait for it when it is away.
    pub reconnect_delay: u64,
    /// How many connections wait to be used, by device.
    pub waiting: BTreeMap<String, usize>,
    /// The rights that clients have whenever a device is there.
    pub rights: Vec<RightStatus>,
}

/// A right to a provider's device, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RightStatus {
    /// The client's name.
    pub client: String,
    /// The device's name.
    pub device: String,
    /// The accesses that are allowed.
    pub access: Access,
}

/// The messages of a provider.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "execute",
    content = "arguments",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
enum Message {
    /// The rest of the connection is NBD, for this device.
    Serve {
        device: String,
    },
    /// Takes a device back.
    DeviceDel {
        device: String,
    },
    /// Gives a client a right.
    Grant {
        client: String,
        device: String,
        access: Access,
    },
    Revoke {
        client: String,
        device: String,
    },
}

/// The connections that a provider has made for one device.
#[derive(Debug)]
pub(crate) struct Supply {
    name: String,
    state: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    connections: VecDeque<OwnedFd>,
    /// Whether the provider has taken the device back.
    is_over: bool,
}

impl Supply {
    fn new(name: String) -> Arc<Supply> {
        Arc::new(Supply { name, state: Mutex::default(), arrived: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection. One more than there may be takes the place of the oldest, which may be dead.
    fn add(&self, connection: OwnedFd) {
        let mut state = self.lock();
        if state.connections.len() >= WAITING {
            state.connections.pop_front();
        }
        state.connections.push_back(connection);
        self.arrived.notify_all();
    }

    /// Takes a connection that waits, if there is one.
    fn spare(&self) -> Option<OwnedFd> {
        self.lock().connections.pop_front()
    }

    fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        state.connections.clear();
        self.arrived.notify_all();
    }
}

impl Source for Supply {
    fn name(&self) -> &str {
        &self.name
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let state = self.lock();
        let waits = |state: &mut Waiting| state.connections.is_empty() && !state.is_over;
        let waited = self.arrived.wait_timeout_while(state, MOMENT, waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.is_over {
            return Err(io::Error::new(ErrorKind::InvalidData, "its provider has taken it back"));
        }
        let away = || io::Error::new(ErrorKind::NotConnected, "its provider is away");
        state.connections.pop_front().ok_or_else(away)
    }
}

/// A provider's socket.
#[derive(Debug)]
pub(crate) struct Provider {
    front: Option<Front>,
    _file: Option<SocketFile>,
    place: Arc<Place>,
}

/// The state that the threads of a provider share.
#[derive(Debug)]
struct Place {
    options: ProviderOptions,
    server: Weak<Server>,
    devices: Mutex<BTreeMap<String, Arc<Supply>>>,
    /// The rights that clients get whenever a device is there. They are locked while such rights are given or taken.
    rights: Mutex<Vec<Right>>,
}

impl Provider {
    pub(crate) fn start(
        server: &Arc<Server>,
        options: &ProviderOptions,
    ) -> Result<Provider, Error> {
        let mut listener = Listener::unix(&options.socket)?;
        let file = listener.take_file();
        let place = Arc::new(Place {
            options: options.clone(),
            server: Arc::downgrade(server),
            devices: Mutex::default(),
            rights: Mutex::new(options.rights.clone()),
        });
        let name = format!("provider {}", options.name);
        let shared = Arc::clone(&place);
        let front = Front::serve_all(&name, listener, ROOM, move |stream, connection| {
            if let Err(error) = shared.talk(stream, connection) {
                debug!("{} is disconnected: {error}", shared.options.name);
            }
        })?;
        Ok(Provider { front: Some(front), _file: file, place })
    }

    /// Returns whether a device has a name that this provider gives.
    pub(crate) fn is_for(&self, device: &str) -> bool {
        self.place.options.is_for(device)
    }

    /// Gives a client a right whenever the device is there.
    pub(crate) fn promise(&self, server: &Server, right: Right) -> Result<(), Error> {
        let mut rights = self.place.rights();
        let Right { client, device, access, vhost_user } = &right;
        if rights.iter().any(|other| other.client == *client && other.device == *device) {
            return Err(Error::GrantThere { client: client.clone(), device: device.clone() });
        }
        match server.grant_at_once(client, device, *access, vhost_user.as_ref()) {
            // It comes later.
            Ok(()) | Err(Error::NoDevice(_)) => rights.push(right),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes such a right back. Returns whether there was one.
    pub(crate) fn take_back(&self, client: &str, device: &str) -> bool {
        let mut rights = self.place.rights();
        let before = rights.len();
        rights.retain(|right| right.client != client || right.device != device);
        rights.len() < before
    }

    /// Returns its state.
    pub(crate) fn status(&self) -> ProviderStatus {
        let ProviderOptions { name, socket, clients, reconnect, .. } = &self.place.options;
        let right = |Right { client, device, access, .. }: &Right| RightStatus {
            client: client.clone(),
            device: device.clone(),
            access: *access,
        };
        let rights = self.place.rights().iter().map(right).collect();
        let devices = self.place.lock();
        let waiting = |supply: &Arc<Supply>| (supply.name.clone(), supply.lock().connections.len());
        ProviderStatus {
            name: name.clone(),
            socket: socket.clone(),
            clients: clients.clone(),
            reconnect_delay: reconnect.as_secs(),
            waiting: devices.values().map(waiting).collect(),
            rights,
        }
    }

    /// Ends the connections, and removes the devices.
    pub(crate) fn end(mut self, server: &Server) {
        self.cut();
        for supply in self.place.lock().values() {
            server.withdraw(&supply.name);
        }
    }

    /// Returns a connection that waits for one of the provider's devices.
    pub(crate) fn spare(&self, device: &str) -> Option<OwnedFd> {
        let devices = self.place.lock();
        devices.values().find(|supply| supply.name == device)?.spare()
    }

    /// Ends the connections. Requests that wait for new ones fail.
    fn cut(&mut self) {
        // A thread may be waiting for a connection with a device.
        self.place.lock().values().for_each(|supply| supply.end());
        self.front = None;
        self.place.lock().values().for_each(|supply| supply.end());
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Supply>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rights(&self) -> MutexGuard<'_, Vec<Right>> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn talk(&self, stream: Stream, connection: &Connection) -> io::Result<()> {
        stream.set_write_patience(Some(PATIENCE))?;
        while let Some(line) = next_line(&stream)? {
            connection.is_active();
            let message = serde_json::from_slice(&line);
            let answer = match message {
                Ok(Message::Serve { device }) => match self.supply(&device) {
                    Ok((supply, is_new)) => {
                        supply.add(stream.into());
                        if is_new {
                            self.add(&device, &supply);
                        }
                        return Ok(());
                    }
                    Err(error) => Err(error.to_string()),
                },
                Ok(message) => self.obey(message).map_err(|error| error.to_string()),
                Err(error) => Err(format!("the message is not a command: {error}")),
            };
            (&stream).write_all(format!("{}\r\n", answer_to(answer)).as_bytes())?;
        }
        Ok(())
    }

    fn full(&self, device: &str) -> String {
        format!("{}.{device}", self.options.name)
    }

    /// Returns the connections of a device, and whether it is a new one.
    fn supply(&self, device: &str) -> Result<(Arc<Supply>, bool), Error> {
        let mut devices = self.lock();
        if let Some(supply) = devices.get(device) {
            return Ok((Arc::clone(supply), false));
        }
        if devices.len() >= DEVICES {
            return Err(Error::TooMuch("16 devices"));
        }
        if device.contains('.') {
            return Err(Error::Dot(device.to_owned()));
        }
        let name = self.full(device);
        crate::server::check_name(&name)?;
        let supply = Supply::new(name);
        devices.insert(device.to_owned(), Arc::clone(&supply));
        Ok((supply, true))
    }

    /// Makes a device of a provider's first connection for it.
    fn add(&self, device: &str, supply: &Arc<Supply>) {
        let Some(server) = self.server.upgrade() else { return };
        let name = &supply.name;
        if let Err(error) = server.add_provided(name, supply, device, self.options.reconnect) {
            warn!("{name} cannot be added: {error}");
            supply.end();
            self.lock().remove(device);
            return;
        }
        for Right { client, access, vhost_user, .. } in
            self.rights().iter().filter(|right| right.device == *name)
        {
            let granted = server.grant_at_once(client, name, *access, vhost_user.as_ref());
            if let Err(error) = granted {
                warn!("{client} has no right to {name}: {error}");
            }
        }
        // It may have been taken back meanwhile.
        if supply.lock().is_over {
            server.withdraw(name);
        }
    }

    /// Returns the name of a device that this provider has.
    fn own(&self, device: &str) -> Result<String, Error> {
        let is_there = self.lock().contains_key(device);
        is_there.then(|| self.full(device)).ok_or_else(|| Error::NotProvided(device.to_owned()))
    }

    fn obey(&self, message: Message) -> Result<Value, Error> {
        let Some(server) = self.server.upgrade() else { return Ok(json!({})) };
        let known = |client: &str| {
            let is_known = self.options.clients.iter().any(|known| known == client);
            if is_known { Ok(()) } else { Err(Error::NotItsClient(client.to_owned())) }
        };
        match message {
            Message::Serve { .. } => {}
            Message::DeviceDel { device } => {
                let supply = self.lock().remove(&device);
                let supply = supply.ok_or(Error::NotProvided(device))?;
                supply.end();
                server.withdraw(&supply.name);
            }
            Message::Grant { client, device, access } => {
                known(&client)?;
                server.grant_at_once(&client, &self.own(&device)?, access, None)?;
            }
            Message::Revoke { client, device } => {
                known(&client)?;
                server.revoke_at_once(&client, &self.own(&device)?)?;
            }
        }
        Ok(json!({}))
    }
}
