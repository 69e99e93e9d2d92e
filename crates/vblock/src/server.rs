//! Devices, clients, and the clients' rights.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ring3_host::turns::{Share, Terms, Turns, WEIGHT};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;

use crate::device::{Device, DeviceOptions};
use crate::error::Error;
use crate::listening::Cut;
use crate::lobby::Lobby;
use crate::nbd::{Budget, Export, Exports, Nbd};
use crate::provider::{Provider, ProviderOptions, ProviderStatus, Right, Supply};
use crate::vhost_user::{Grant, VhostUser};
use crate::{NbdAddress, QUEUES_MAX};

/// The accesses to a device to which a client has a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Reads.
    #[serde(rename = "r")]
    Read,
    /// Reads and writes.
    #[serde(rename = "rw")]
    ReadWrite,
}

/// The way by which a client reaches a device over vhost-user-blk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUserOptions {
    /// The path of the new socket.
    pub socket: PathBuf,
    /// Number of queues: 1 to [`QUEUES_MAX`].
    pub queues: u16,
}

/// The state of a device, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceStatus {
    /// The device's name.
    pub name: String,
    /// The path of the image, or the address of an NBD export.
    pub file: PathBuf,
    /// The image's format.
    pub format: &'static str,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Number of bytes in a sector.
    pub sector_size: u64,
    /// Whether no client may write to the device.
    pub read_only: bool,
}

/// The state of a client, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClientStatus {
    /// The client's name.
    pub name: String,
    /// The client's rights.
    pub grants: Vec<GrantStatus>,
    /// The URI of the client's NBD server, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// The path of the client's socket for its devices, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices_socket: Option<PathBuf>,
    /// Number of connections with that server.
    pub nbd_connections: usize,
    /// The client's weight where clients share what the server transfers.
    pub weight: u32,
    /// The most bytes a second that the client may transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<NonZero<u64>>,
}

/// What a client may transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShareOptions {
    /// Its weight among the others; 0 counts as 1. By default 100.
    pub weight: Option<u32>,
    /// The most bytes a second, whatever the others leave.
    pub bandwidth: Option<NonZero<u64>>,
}

impl From<ShareOptions> for Terms {
    fn from(options: ShareOptions) -> Terms {
        let ShareOptions { weight, bandwidth } = options;
        Terms { weight: weight.unwrap_or(WEIGHT), most: bandwidth }
    }
}

/// A device, as a client sees it that has a right to it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct SeenDevice {
    device: String,
    access: Access,
    size: u64,
    sector_size: u64,
}

fn seen(device: &str, export: &Export) -> SeenDevice {
    SeenDevice {
        device: device.to_owned(),
        access: export.access(),
        size: export.device.size(),
        sector_size: ring3_vhost::block::SECTOR,
    }
}

/// A right of a client, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct GrantStatus {
    /// The device's name.
    pub device: String,
    /// The accesses that are allowed.
    pub access: Access,
    /// The path of the socket for vhost-user-blk, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Number of queues at this socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_queues: Option<u16>,
    /// Whether a machine is connected to this socket.
    pub connected: bool,
}

/// The devices, and the clients with their rights. Dropping it closes all images and sockets.
#[derive(Debug)]
pub struct Server {
    /// The sockets of providers. They are dropped before the devices, which then do not wait for providers.
    providers: Mutex<BTreeMap<String, Provider>>,
    state: Mutex<State>,
    /// The memory that requests of all NBD clients share.
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct State {
    /// Shares out what the server transfers.
    turns: Arc<Turns>,
    /// What clients may transfer for which that is said, whether they are there or not.
    terms: BTreeMap<String, Terms>,
    // Clients are dropped before the devices that they use.
    clients: BTreeMap<String, Client>,
    devices: BTreeMap<String, Arc<Device>>,
    /// Names and files of the devices that [`Server::close`] closes, with a mark that each device has while
    /// it is open.
    closing: Vec<(String, PathBuf, Weak<()>)>,
}

#[derive(Debug)]
struct Client {
    /// Its share of what the server transfers.
    share: Arc<Share>,
    nbd: Option<Nbd>,
    /// The client's rights by device, in the form that the NBD server uses.
    exports: Arc<Exports>,
    /// The client's sockets for vhost-user-blk, by device.
    sockets: BTreeMap<String, VhostUser>,
    /// The socket at which it learns of its devices.
    lobby: Option<Lobby>,
}

impl Client {
    fn new(share: Arc<Share>) -> Client {
        Client { share, nbd: None, exports: Arc::default(), sockets: BTreeMap::new(), lobby: None }
    }

    fn is_nobody(&self) -> bool {
        self.nbd.is_none() && self.lobby.is_none() && self.exports.read().is_empty()
    }

    /// Tells the client that something has happened to one of its devices.
    fn tell(&self, event: &str, device: &str) {
        let Some(lobby) = &self.lobby else { return };
        let status = self.exports.read().get(device).map(|export| json!(seen(device, export)));
        lobby.tell(event, &status.unwrap_or_else(|| json!({ "device": device })));
    }
}

impl State {
    /// Returns the share of a client, which need not be known before.
    fn share_of(&self, client: &str) -> Arc<Share> {
        let terms = || self.terms.get(client).copied().unwrap_or_default();
        let new = || Arc::new(self.turns.join(terms()));
        self.clients.get(client).map_or_else(new, |client| Arc::clone(&client.share))
    }

    /// Returns a client, which need not be known before.
    fn client(&mut self, name: &str, share: Arc<Share>) -> &mut Client {
        self.clients.entry(name.to_owned()).or_insert_with(|| Client::new(share))
    }

    /// Takes a right from a client, whose requests under way go on.
    fn take_right(&mut self, client: &str, device: &str) -> Result<Taken, Error> {
        let no_client = || Error::NoClient(client.to_owned());
        let owner = self.clients.get_mut(client).ok_or_else(no_client)?;
        if owner.exports.write().remove(device).is_none() {
            let (client, device) = (client.to_owned(), device.to_owned());
            return Err(Error::NoGrant { client, device });
        }
        if let Some(nbd) = &owner.nbd {
            nbd.cut(device);
        }
        let cut = owner.lobby.as_ref().map(|lobby| lobby.cut(device));
        owner.tell("DEVICE_REMOVED", device);
        let socket = owner.sockets.remove(device);
        if owner.is_nobody() {
            self.clients.remove(client);
        }
        info!("{client} has lost its right to {device}");
        Ok(Taken { socket, cut })
    }
}

/// A right that was taken.
#[must_use = "requests under way may not have ended"]
struct Taken {
    socket: Option<VhostUser>,
    cut: Option<Cut>,
}

impl Taken {
    /// Waits for the end of requests under way.
    fn finish(self) {
        drop(self.socket);
        if let Some(cut) = self.cut {
            cut.wait();
        }
    }
}

impl Default for Server {
    /// Returns a server without devices and clients, which transfers as much as the host can.
    fn default() -> Server {
        Server::new(None)
    }
}

impl Server {
    /// Returns a server without devices and clients. All clients together transfer at most `bandwidth` bytes a second, which
    /// they share by their weights.
    pub fn new(bandwidth: Option<NonZero<u64>>) -> Server {
        let state = State {
            turns: Turns::new(bandwidth),
            terms: BTreeMap::new(),
            clients: BTreeMap::new(),
            devices: BTreeMap::new(),
            closing: Vec::new(),
        };
        Server { providers: Mutex::default(), state: Mutex::new(state), budget: Arc::default() }
    }

    /// Says what a client may transfer, whether it is there or not. Others have the usual weight and no limit.
    pub fn share(&self, client: &str, options: ShareOptions) -> Result<(), Error> {
        check_name(client)?;
        let mut state = self.lock();
        let terms = Terms::from(options);
        state.terms.insert(client.to_owned(), terms);
        if terms == Terms::default() {
            state.terms.remove(client);
        }
        if let Some(client) = state.clients.get(client) {
            client.share.set(terms);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the providers. Whoever has the lock of the devices does not wait for this one.
    fn providers(&self) -> MutexGuard<'_, BTreeMap<String, Provider>> {
        self.providers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an image as a new device called `name`.
    pub fn add_device(&self, name: &str, options: &DeviceOptions) -> Result<(), Error> {
        check_name(name)?;
        let mut state = self.lock();
        if state.devices.contains_key(name) {
            return Err(Error::DeviceThere(name.to_owned()));
        }
        let device = Device::open(name, options)?;
        info!("{name} serves {}", options.file.display());
        state.devices.insert(name.to_owned(), Arc::new(device));
        Ok(())
    }

    /// Opens the disk of a provider as a new device called `name`.
    pub(crate) fn add_provided(
        &self,
        name: &str,
        supply: &Arc<Supply>,
        export: &str,
        reconnect: Duration,
    ) -> Result<(), Error> {
        check_name(name)?;
        let is_there = || Err(Error::DeviceThere(name.to_owned()));
        if self.lock().devices.contains_key(name) {
            return is_there();
        }
        // The provider may take its time, and others can ask the server meanwhile.
        let device = Device::provided(name, Arc::clone(supply) as _, export, reconnect)?;
        let mut state = self.lock();
        if state.devices.contains_key(name) {
            return is_there();
        }
        info!("{name} is there");
        state.devices.insert(name.to_owned(), Arc::new(device));
        Ok(())
    }

    /// Takes all rights to a device, and removes it.
    pub(crate) fn withdraw(&self, name: &str) {
        let mut state = self.lock();
        let clients: Vec<_> = state.clients.keys().cloned().collect();
        let taken: Vec<_> =
            clients.iter().filter_map(|client| state.take_right(client, name).ok()).collect();
        let device = state.devices.remove(name);
        drop(state);
        taken.into_iter().for_each(Taken::finish);
        if device.is_some() {
            info!("{name} is taken back");
        }
    }

    /// Listens for a provider, which adds devices and takes them back.
    pub fn start_provider(self: &Arc<Server>, options: &ProviderOptions) -> Result<(), Error> {
        check_name(&options.name)?;
        let mut providers = self.providers();
        if providers.contains_key(&options.name) {
            return Err(Error::ProviderThere(options.name.clone()));
        }
        let provider = Provider::start(self, options)?;
        providers.insert(options.name.clone(), provider);
        Ok(())
    }

    /// Ends the connections of a provider, and removes its devices.
    pub fn stop_provider(&self, name: &str) -> Result<(), Error> {
        let mut providers = self.providers();
        let provider = providers.remove(name);
        drop(providers);
        provider.ok_or_else(|| Error::NoProvider(name.to_owned()))?.end(self);
        Ok(())
    }

    /// Returns the states of all providers.
    pub fn provider_states(&self) -> Vec<ProviderStatus> {
        self.providers().values().map(Provider::status).collect()
    }

    /// Returns whether an image may connect to a server again, when a connection is lost.
    pub fn reconnects(&self) -> bool {
        self.lock().devices.values().any(|device| !device.image().is_in_files())
    }

    /// Closes the image of a device. Fails while a client has a right to the device.
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

    /// Gives a device another size, of which its machines are told. It becomes smaller only if `shrinks` is set.
    pub fn resize_device(&self, name: &str, size: u64, shrinks: bool) -> Result<(), Error> {
        let device = self.lock().devices.get(name).cloned();
        // Requests under way come first, and others may ask the server meanwhile.
        device.ok_or_else(|| Error::NoDevice(name.to_owned()))?.resize(size, shrinks)?;
        for client in self.lock().clients.values() {
            if client.exports.read().contains_key(name) {
                client.tell("DEVICE_RESIZED", name);
            }
        }
        info!("{name} has {size} bytes now");
        Ok(())
    }

    /// Gives `client` a right to `device`, and with `vhost_user` also a socket to use it over vhost-user-blk.
    /// The client need not be known before, nor the device if it is a provider's: then the client has the right
    /// whenever the device is there.
    pub fn grant(
        &self,
        client: &str,
        device: &str,
        access: Access,
        vhost_user: Option<&VhostUserOptions>,
    ) -> Result<(), Error> {
        check_name(client)?;
        if let Some(provider) = self.providers().values().find(|provider| provider.is_for(device)) {
            let right = Right {
                client: client.to_owned(),
                device: device.to_owned(),
                access,
                vhost_user: vhost_user.cloned(),
            };
            return provider.promise(self, right);
        }
        self.grant_at_once(client, device, access, vhost_user)
    }

    /// Does the same for a device that is there, for as long as it is.
    pub(crate) fn grant_at_once(
        &self,
        client: &str,
        device: &str,
        access: Access,
        vhost_user: Option<&VhostUserOptions>,
    ) -> Result<(), Error> {
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
        let share = state.share_of(client);
        let socket = match vhost_user {
            None => None,
            Some(VhostUserOptions { queues, .. }) if !(1..=QUEUES_MAX).contains(queues) => {
                return Err(Error::Queues(*queues));
            }
            Some(VhostUserOptions { socket, queues }) => {
                let (client, device) = (client.to_owned(), Arc::clone(&owner));
                let (queues, share) = (*queues, Arc::clone(&share));
                let grant = Grant { client, device, writes, queues, share };
                Some(VhostUser::start(socket, grant)?)
            }
        };
        let client = state.client(client, Arc::clone(&share));
        let export = Export { device: owner, writes, share };
        client.exports.write().insert(device.to_owned(), export);
        if let Some(socket) = socket {
            client.sockets.insert(device.to_owned(), socket);
        }
        client.tell("DEVICE_ADDED", device);
        Ok(())
    }

    /// Takes a right from a client, and disconnects the client. Its requests over vhost-user-blk are
    /// completed first, while requests by NBD that have not begun are dropped. A machine that was connected
    /// waits for its disk to come back.
    pub fn revoke(&self, client: &str, device: &str) -> Result<(), Error> {
        let was_promised =
            self.providers().values().any(|provider| provider.take_back(client, device));
        match self.revoke_at_once(client, device) {
            // The device is away.
            Err(Error::NoClient(_) | Error::NoGrant { .. }) if was_promised => Ok(()),
            revoked => revoked,
        }
    }

    /// Takes a right from a client that the client has at present.
    pub(crate) fn revoke_at_once(&self, client: &str, device: &str) -> Result<(), Error> {
        let taken = self.lock().take_right(client, device)?;
        // Others can ask the server meanwhile.
        taken.finish();
        Ok(())
    }

    /// Starts an NBD server for `client`. Returns the address, with the port that the host may have chosen.
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
        let share = state.share_of(client);
        let owner = state.client(client, share);
        owner.exports = exports;
        owner.nbd = Some(nbd);
        info!("{client} has an NBD server at {address}");
        Ok(address)
    }

    /// Ends the NBD server of `client`, with all its connections.
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

    /// Gives `client` a socket at which it learns of its devices and is connected with them.
    pub fn start_lobby(self: &Arc<Server>, client: &str, path: &Path) -> Result<(), Error> {
        check_name(client)?;
        let mut state = self.lock();
        if state.clients.get(client).is_some_and(|there| there.lobby.is_some()) {
            return Err(Error::LobbyThere(client.to_owned()));
        }
        let lobby = Lobby::start(self, client, path)?;
        let share = state.share_of(client);
        state.client(client, share).lobby = Some(lobby);
        Ok(())
    }

    /// Removes this socket, with the connections that were made there.
    pub fn stop_lobby(&self, client: &str) -> Result<(), Error> {
        let mut state = self.lock();
        let owner = state.clients.get_mut(client);
        let owner = owner.ok_or_else(|| Error::NoClient(client.to_owned()))?;
        let lobby = owner.lobby.take();
        if owner.is_nobody() {
            state.clients.remove(client);
        }
        drop(state);
        // Its threads may be waiting for the lock.
        drop(lobby);
        Ok(())
    }

    /// Returns the devices that `client` may use, as it sees them.
    pub(crate) fn devices_of(&self, client: &str) -> Vec<SeenDevice> {
        let state = self.lock();
        let exports = state.clients.get(client).map(|client| client.exports.read());
        let exports = exports.iter().flat_map(|exports| exports.iter());
        exports.map(|(name, export)| seen(name, export)).collect()
    }

    /// Returns a device to which `client` has a right.
    pub(crate) fn export(&self, client: &str, device: &str) -> Result<Export, Error> {
        let state = self.lock();
        let export =
            state.clients.get(client).and_then(|client| client.exports.read().get(device).cloned());
        let (client, device) = (client.to_owned(), device.to_owned());
        export.ok_or(Error::NoGrant { client, device })
    }

    /// Returns a connection of the provider of `device`, for `client` alone.
    pub(crate) fn introduce(&self, client: &str, device: &str) -> Result<OwnedFd, Error> {
        let export = self.export(client, device)?;
        if !export.writes && !export.device.is_read_only() {
            return Err(Error::DirectRead(device.to_owned()));
        }
        let providers = self.providers();
        let spare = providers.values().find_map(|provider| provider.spare(device));
        spare.ok_or_else(|| Error::NoDirectWay(device.to_owned()))
    }

    /// Takes all rights from all clients as [`Server::revoke`] does, ends their NBD servers, and closes all
    /// images. If an image is on a server that is away, this waits for that server.
    pub fn close(&self) {
        let providers = std::mem::take(&mut *self.providers());
        for provider in providers.into_values() {
            provider.end(self);
        }
        let mut state = self.lock();
        let closing = |device: &Arc<Device>| {
            (device.name().to_owned(), device.image().path().to_owned(), device.open_mark())
        };
        state.closing = state.devices.values().map(closing).collect();
        let (clients, devices) =
            (std::mem::take(&mut state.clients), std::mem::take(&mut state.devices));
        // Without the lock others can ask meanwhile which devices are not closed yet.
        drop(state);
        drop(clients);
        drop(devices);
    }

    /// Returns names and files of the devices that [`Server::close`] has not closed yet.
    pub fn not_closed(&self) -> Vec<(String, PathBuf)> {
        let state = self.lock();
        let open = state.closing.iter().filter(|(_, _, mark)| mark.strong_count() > 0);
        open.map(|(name, file, _)| (name.clone(), file.clone())).collect()
    }

    /// Returns the number of bytes that requests of NBD clients take now, with the replies that have yet to
    /// go out: at most [`MEMORY_MAX`](crate::MEMORY_MAX), and
    /// [`MEMORY_OF_A_CONNECTION`](crate::MEMORY_OF_A_CONNECTION) for each connection.
    pub fn memory(&self) -> usize {
        self.budget.used()
    }

    /// Returns the states of all devices.
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

    /// Returns the states of all clients, with their rights.
    pub fn clients(&self) -> Vec<ClientStatus> {
        let state = self.lock();
        let status = |(name, client): (&String, &Client)| {
            let exports = client.exports.read();
            let grant = |(device, export): (&String, &Export)| {
                let socket = client.sockets.get(device);
                GrantStatus {
                    device: device.clone(),
                    access: export.access(),
                    socket: socket.map(|socket| socket.path().to_owned()),
                    num_queues: socket.map(VhostUser::queues),
                    connected: socket.is_some_and(VhostUser::is_connected),
                }
            };
            let Terms { weight, most } = client.share.terms();
            ClientStatus {
                name: name.clone(),
                weight,
                bandwidth: most,
                grants: exports.iter().map(grant).collect(),
                nbd: client.nbd.as_ref().map(|nbd| nbd.address().to_string()),
                devices_socket: client.lobby.as_ref().map(|lobby| lobby.path().to_owned()),
                nbd_connections: client.nbd.as_ref().map_or(0, Nbd::connections),
            }
        };
        state.clients.iter().map(status).collect()
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_good = (1..=64).contains(&name.len()) && name.bytes().all(is_plain);
    if is_good { Ok(()) } else { Err(Error::Name(name.to_owned())) }
}
