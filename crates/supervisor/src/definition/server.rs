//! Servers, as definitions describe them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::disk::{access, is_writable, provider_of};
use super::{BadDefinition, Common, Definition, Definitions, Disk, Name, OptionValue, yes};
use crate::memory::Size;

/// A server of disk images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Vblock {
    /// What all kinds share.
    #[serde(flatten)]
    pub common: Common,
    /// The disks, by name.
    #[serde(default)]
    pub device: BTreeMap<Name, Device>,
    /// Programs that bring their own disks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub provider: BTreeMap<Name, Provider>,
    /// Clients with sockets at which they learn of their disks, by name. Machines may be among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub client: BTreeMap<Name, Client>,
    /// The bytes a second that all clients together may read and write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Size>,
    /// Keys that have no meaning.
    #[serde(flatten)]
    unknown: BTreeMap<String, OptionValue>,
}

/// A disk image that is served as a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Device {
    /// The path of the image, or the address of an NBD export.
    pub file: String,
    /// The image's format. By default its first bytes decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Whether no client may write to it.
    #[serde(default)]
    pub read_only: bool,
    /// Whether files that the image names are opened.
    #[serde(default = "yes")]
    pub external_files: bool,
}

/// A program that brings its own disks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Provider {
    /// The path of its socket. By default that is in the server's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The clients to which it may give rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Name>,
    /// For how many seconds requests wait for it when it is away. By default 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconnect_delay: Option<u32>,
}

impl Provider {
    /// Returns the names of its clients as the server takes them, with colons in between.
    pub(crate) fn client_list(&self) -> String {
        self.clients.iter().map(Name::as_str).collect::<Vec<_>>().join(":")
    }
}

/// A client with a socket at which it learns of its disks, and is connected with them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Client {
    /// The path of the socket. By default that is in the server's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The disks of a program. Those of a machine are in its own definition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Right>,
}

/// A right of a client: `DEVICE`, `:r` or `:rw` (the default).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Right {
    /// The device.
    pub device: Name,
    /// Whether the client may write.
    pub is_writable: bool,
}

impl TryFrom<String> for Right {
    type Error = BadDefinition;

    fn try_from(text: String) -> Result<Right, BadDefinition> {
        let (device, access) = match text.split_once(':') {
            Some((device, access)) => (device, Some(access)),
            None => (&text[..], None),
        };
        let is_writable = is_writable(access).ok_or_else(|| BadDefinition::Right(text.clone()))?;
        Ok(Right { device: device.parse()?, is_writable })
    }
}

impl From<Right> for String {
    fn from(Right { device, is_writable }: Right) -> String {
        format!("{device}:{}", access(is_writable))
    }
}

/// A network between machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Switch {
    /// What all kinds share.
    #[serde(flatten)]
    pub common: Common,
    /// Ways to other networks, as `ring3 switch --uplink` takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplink: Vec<String>,
    /// The number of broadcasts that a machine may send in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcasts: Option<u32>,
    /// The bytes a second that all machines together may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Size>,
    /// Keys that have no meaning.
    #[serde(flatten)]
    unknown: BTreeMap<String, OptionValue>,
}

/// The server of consoles: it reads what all machines say, and hands keyboards to one client at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Console {
    /// What all kinds share.
    #[serde(flatten)]
    pub common: Common,
    /// How many KiB of what a serial line has said are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scroll_back: Option<u32>,
    /// Keys that have no meaning.
    #[serde(flatten)]
    unknown: BTreeMap<String, OptionValue>,
}

/// The page with the consoles of all machines, for browsers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Web {
    /// What all kinds share.
    #[serde(flatten)]
    pub common: Common,
    /// Where it is served: `127.0.0.1:PORT`, `[::1]:PORT` or `unix:PATH`.
    pub address: String,
    /// The directory with images that may be put into drives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<PathBuf>,
    /// The file with the token. By default that is in the server's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Keys that have no meaning.
    #[serde(flatten)]
    unknown: BTreeMap<String, OptionValue>,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Server {
    /// A server of disk images.
    Vblock(Vblock),
    /// A network.
    Switch(Switch),
    /// The server of consoles.
    Console(Console),
    /// The page with consoles.
    Web(Web),
}

impl Server {
    pub(super) fn common(&self) -> &Common {
        match self {
            Server::Vblock(server) => &server.common,
            Server::Switch(server) => &server.common,
            Server::Console(server) => &server.common,
            Server::Web(server) => &server.common,
        }
    }

    pub(super) fn common_mut(&mut self) -> &mut Common {
        match self {
            Server::Vblock(server) => &mut server.common,
            Server::Switch(server) => &mut server.common,
            Server::Console(server) => &mut server.common,
            Server::Web(server) => &mut server.common,
        }
    }

    /// Returns a key of the definition that has no meaning, if there is one.
    fn unknown_key(&self) -> Option<&String> {
        let (Server::Vblock(Vblock { unknown, .. })
        | Server::Switch(Switch { unknown, .. })
        | Server::Console(Console { unknown, .. })
        | Server::Web(Web { unknown, .. })) = self;
        unknown.keys().next()
    }

    /// Checks the definition of the server `name` among all others.
    pub(super) fn check(&self, name: &Name, all: &Definitions) -> Result<(), BadDefinition> {
        if let Some(key) = self.unknown_key() {
            return Err(BadDefinition::Key { name: name.clone(), key: key.clone() });
        }
        let Server::Vblock(vblock) = self else { return Ok(()) };
        let is_machine = |client: &Name| matches!(all.get(client), Some(Definition::Machine(_)));
        for (client, Client { devices, .. }) in &vblock.client {
            if is_machine(client) && !devices.is_empty() {
                let (server, client) = (name.clone(), client.clone());
                return Err(BadDefinition::MachineDevices { server, client });
            }
            devices.iter().try_for_each(|right| check_device(name, &right.device, all))?;
        }
        for (provider, Provider { clients, .. }) in &vblock.provider {
            let is_known = |client: &Name| is_machine(client) || vblock.client.contains_key(client);
            if let Some(client) = clients.iter().find(|client| !is_known(client)) {
                let (server, provider) = (name.clone(), provider.clone());
                return Err(BadDefinition::Client { server, provider, client: client.clone() });
            }
        }
        Ok(())
    }
}

/// Checks that the server has such a device, or a provider that can bring it.
pub(super) fn check_device(
    server: &Name,
    device: &Name,
    all: &Definitions,
) -> Result<(), BadDefinition> {
    let Some(Definition::Server(Server::Vblock(vblock))) = all.get(server) else {
        return Err(BadDefinition::Kind { name: server.clone(), kind: "server of disks" });
    };
    let has_provider = provider_of(device).is_some_and(|provider| {
        vblock.provider.contains_key(&provider)
            || all.get(&provider).is_some_and(|part| part.provides(server))
    });
    if vblock.device.contains_key(device) || has_provider {
        return Ok(());
    }
    Err(BadDefinition::Device { server: server.clone(), device: device.clone() })
}

/// Returns the providers of a server: those of its own definition, and the machines whose guests bring disks to it.
pub(crate) fn providers_of(server: &Name, all: &Definitions) -> BTreeMap<Name, Provider> {
    let mut providers = match all.get(server) {
        Some(Definition::Server(Server::Vblock(vblock))) => vblock.provider.clone(),
        _ => BTreeMap::new(),
    };
    for (name, _) in all.iter().filter(|(_, part)| part.provides(server)) {
        providers.entry(name.clone()).or_default();
    }
    providers
}

/// Returns the clients of a server that have sockets of their own: those of its own definition, and the machines that use
/// disks without the server in between.
pub(crate) fn clients_of(server: &Name, all: &Definitions) -> BTreeMap<Name, Client> {
    let mut clients = match all.get(server) {
        Some(Definition::Server(Server::Vblock(vblock))) => vblock.client.clone(),
        _ => BTreeMap::new(),
    };
    let is_direct = |disk: &Disk| disk.server == *server && disk.is_direct();
    for (name, _) in all.iter().filter(|(_, part)| part.disks().iter().any(is_direct)) {
        clients.entry(name.clone()).or_default();
    }
    clients
}
