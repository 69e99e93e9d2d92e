//! Devices, clients, and who may do what.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tracing::info;

use crate::device::{Device, DeviceOptions};
use crate::error::Error;
use crate::nbd::{Budget, Export, Exports, Nbd};
use crate::vhost_user::{Grant, VhostUser};
use crate::{NbdAddress, QUEUES_MAX};

/// What a client may do with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read it.
    #[serde(rename = "r")]
    Read,
    /// Read and write it.
    #[serde(rename = "rw")]
    ReadWrite,
}

/// How a client reaches a device over vhost-user-blk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUserOptions {
    /// The socket, which is made.
    pub socket: PathBuf,
    /// How many queues there are: 1 to [`QUEUES_MAX`].
    pub queues: u16,
}

/// A device, for people and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// The image.
    pub file: PathBuf,
    /// Its format.
    pub format: &'static str,
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of a sector.
    pub sector_size: u64,
    /// Nobody may write to it.
    pub read_only: bool,
}

/// A client, for people and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClientStatus {
    /// Its name.
    pub name: String,
    /// Its rights.
    pub grants: Vec<GrantStatus>,
    /// Its NBD server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// Connections to that.
    pub nbd_connections: usize,
}

/// A right of a client, for people and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct GrantStatus {
    /// To which device.
    pub device: String,
    /// What it may do.
    pub access: Access,
    /// The socket for vhost-user-blk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Queues there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_queues: Option<u16>,
    /// A machine is connected there.
    pub connected: bool,
}

/// See the module. What it has opened and listens at ends with it.
#[derive(Debug, Default)]
pub struct Server {
    state: Mutex<State>,
    /// The memory of all that NBD clients ask for.
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct State {
    // Clients go first: they use devices.
    clients: BTreeMap<String, Client>,
    devices: BTreeMap<String, Arc<Device>>,
    /// Names and files of those that [`Server::close`] closes, and a mark that each has while it is open.
    closing: Vec<(String, PathBuf, Weak<()>)>,
}

#[derive(Debug, Default)]
struct Client {
    nbd: Option<Nbd>,
    /// Rights by devices, as they are for NBD.
    exports: Arc<Exports>,
    /// Sockets by devices.
    sockets: BTreeMap<String, VhostUser>,
}

impl Client {
    fn is_nobody(&self) -> bool {
        self.nbd.is_none() && self.exports.read().is_empty()
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an image as the device `name`.
    pub fn add_device(&self, name: &str, options: &DeviceOptions) -> Result<(), Error> {
        check_name(name)?;
        let mut state = self.lock();
        if state.devices.contains_key(name) {
            return Err(Error::DeviceThere(name.to_owned()));
        }
        let device = Device::open(name, options)?;
        info!("{name} is {}", options.file.display());
        state.devices.insert(name.to_owned(), Arc::new(device));
        Ok(())
    }

    /// Closes the image of a device to which nobody has a right.
    pub fn remove_device(&self, name: &str) -> Result<(), Error> {
        let mut state = self.lock();
        if !state.devices.contains_key(name) {
            return Err(Error::NoDevice(name.to_owned()));
        }
        let has_right = |client: &Client| client.exports.read().contains_key(name);
        let clients = state.clients.iter().filter(|(_, client)| has_right(client));
        let clients: Vec<_> = clients.map(|(name, _)| name.as_str()).collect();
        if !clients.is_empty() {
            let clients = clients.join(", ");
            return Err(Error::Granted { device: name.to_owned(), clients });
        }
        state.devices.remove(name);
        info!("{name} is removed");
        Ok(())
    }

    /// Gives `client` a right to `device`, and a socket for it if it is to use it over vhost-user-blk. A client that was not known
    /// is from now on.
    pub fn grant(
        &self,
        client: &str,
        device: &str,
        access: Access,
        vhost_user: Option<&VhostUserOptions>,
    ) -> Result<(), Error> {
        check_name(client)?;
        let mut state = self.lock();
        let owner = state.devices.get(device).ok_or_else(|| Error::NoDevice(device.to_owned()))?;
        let owner = Arc::clone(owner);
        let writes = access == Access::ReadWrite;
        if writes && owner.is_read_only() {
            return Err(Error::ReadOnly(device.to_owned()));
        }
        let there = state.clients.get(client);
        if there.is_some_and(|there| there.exports.read().contains_key(device)) {
            let (client, device) = (client.to_owned(), device.to_owned());
            return Err(Error::GrantThere { client, device });
        }
        let socket = match vhost_user {
            None => None,
            Some(VhostUserOptions { queues, .. }) if !(1..=QUEUES_MAX).contains(queues) => {
                return Err(Error::Queues(*queues));
            }
            Some(VhostUserOptions { socket, queues }) => {
                let (client, device) = (client.to_owned(), Arc::clone(&owner));
                Some(VhostUser::start(socket, Grant { client, device, writes, queues: *queues })?)
            }
        };
        let client = state.clients.entry(client.to_owned()).or_default();
        client.exports.write().insert(device.to_owned(), Export { device: owner, writes });
        if let Some(socket) = socket {
            client.sockets.insert(device.to_owned(), socket);
        }
        Ok(())
    }

    /// Takes a right from a client. It is disconnected, with all that it has asked for done, or, by NBD, not begun; a machine that is connected
    /// waits for its disk to come back.
    pub fn revoke(&self, client: &str, device: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let no_client = || Error::NoClient(client.to_owned());
        let owner = state.clients.get_mut(client).ok_or_else(no_client)?;
        if owner.exports.write().remove(device).is_none() {
            let (client, device) = (client.to_owned(), device.to_owned());
            return Err(Error::NoGrant { client, device });
        }
        if let Some(nbd) = &owner.nbd {
            nbd.cut(device);
        }
        owner.sockets.remove(device);
        if owner.is_nobody() {
            state.clients.remove(client);
        }
        info!("{client} has no right to {device} any more");
        Ok(())
    }

    /// Starts an NBD server for `client`; where it listens.
    pub fn start_nbd(&self, client: &str, address: &NbdAddress) -> Result<NbdAddress, Error> {
        check_name(client)?;
        let mut state = self.lock();
        if state.clients.get(client).is_some_and(|there| there.nbd.is_some()) {
            return Err(Error::NbdThere(client.to_owned()));
        }
        let exports =
            state.clients.get(client).map(|there| Arc::clone(&there.exports)).unwrap_or_default();
        let nbd = Nbd::start(client, address, &exports, &self.budget)?;
        let address = nbd.address().clone();
        let owner = state.clients.entry(client.to_owned()).or_default();
        owner.exports = exports;
        owner.nbd = Some(nbd);
        info!("{client} has an NBD server at {address}");
        Ok(address)
    }

    /// Ends the NBD server of `client` with all its connections.
    pub fn stop_nbd(&self, client: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let no_client = || Error::NoClient(client.to_owned());
        let owner = state.clients.get_mut(client).ok_or_else(no_client)?;
        owner.nbd.take().ok_or_else(|| Error::NoNbd(client.to_owned()))?;
        if owner.is_nobody() {
            state.clients.remove(client);
        }
        Ok(())
    }

    /// Ends what clients have, with all that they have asked for done, or, by NBD, not begun, and closes all images. That waits for servers on which images
    /// are, if those are away.
    pub fn close(&self) {
        let mut state = self.lock();
        let closing = |device: &Arc<Device>| {
            (device.name().to_owned(), device.image().path().to_owned(), device.open_mark())
        };
        state.closing = state.devices.values().map(closing).collect();
        let (clients, devices) =
            (std::mem::take(&mut state.clients), std::mem::take(&mut state.devices));
        // Others can ask meanwhile what is waited for.
        drop(state);
        drop(clients);
        drop(devices);
    }

    /// Names and files of the devices that [`Server::close`] has not closed yet.
    pub fn not_closed(&self) -> Vec<(String, PathBuf)> {
        let state = self.lock();
        let open = state.closing.iter().filter(|(_, _, mark)| mark.strong_count() > 0);
        open.map(|(name, file, _)| (name.clone(), file.clone())).collect()
    }

    /// Bytes of what NBD clients ask for at the moment, and of replies that they have not taken: at most
    /// [`MEMORY_MAX`](crate::MEMORY_MAX), and [`MEMORY_OF_A_CONNECTION`](crate::MEMORY_OF_A_CONNECTION) for each connection.
    pub fn memory(&self) -> usize {
        self.budget.used()
    }

    /// All devices.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        let state = self.lock();
        let status = |device: &Arc<Device>| DeviceStatus {
            name: device.name().to_owned(),
            file: device.image().path().to_owned(),
            format: device.image().format().name(),
            size: device.image().size(),
            sector_size: ring3_vhost::block::SECTOR,
            read_only: device.is_read_only(),
        };
        state.devices.values().map(status).collect()
    }

    /// All clients and their rights.
    pub fn clients(&self) -> Vec<ClientStatus> {
        let state = self.lock();
        let status = |(name, client): (&String, &Client)| {
            let exports = client.exports.read();
            let grant = |(device, export): (&String, &Export)| {
                let socket = client.sockets.get(device);
                GrantStatus {
                    device: device.clone(),
                    access: if export.writes { Access::ReadWrite } else { Access::Read },
                    socket: socket.map(|socket| socket.path().to_owned()),
                    num_queues: socket.map(VhostUser::queues),
                    connected: socket.is_some_and(VhostUser::is_connected),
                }
            };
            ClientStatus {
                name: name.clone(),
                grants: exports.iter().map(grant).collect(),
                nbd: client.nbd.as_ref().map(|nbd| nbd.address().to_string()),
                nbd_connections: client.nbd.as_ref().map_or(0, Nbd::connections),
            }
        };
        state.clients.iter().map(status).collect()
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_good = (1..=64).contains(&name.len()) && name.bytes().all(is_plain);
    if is_good { Ok(()) } else { Err(Error::Name(name.to_owned())) }
}
