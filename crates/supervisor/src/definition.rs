//! Definitions of machines and servers, as users write them in TOML and tools in JSON.
//!
//! ```toml
//! [server.disks]
//! kind = "vblock"
//! device.root = { file = "root.qcow2" }
//!
//! [server.lan]
//! kind = "switch"
//! uplink = ["user"]
//!
//! [machine.web]
//! memory = "512M"
//! kernel = "vmlinuz"
//! append = "console=ttyS0 root=/dev/vda"
//! disk = ["disks:root:rw"]
//! network = ["lan"]
//! ```
//!
//! All further keys of a machine are options of `ring3 run` without their dashes: a string or a number is the
//! option's value, `true` an option without a value, and a list an option that is given several times.

mod disk;
mod name;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::memory::{Memory, Size};
use crate::processors::Processors;
use name::NAME_MAX;

pub use disk::Disk;
pub use name::Name;
pub use server::{Client, Console, Device, Provider, Right, Server, Switch, Vblock, Web};
pub(crate) use server::{clients_of, providers_of};

/// Options of `ring3 run` that are the supervisor's own.
const RESERVED: [&str; 4] = ["qmp", "paused", "incoming", "replay"];

/// The reasons why a definition is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadDefinition {
    /// A name has too many characters, or one that is not allowed.
    #[error(
        "\"{0}\" is not a name: use 1 to {NAME_MAX} letters, digits, \"-\", \"_\" and \".\", and begin with a letter or digit"
    )]
    Name(String),
    /// A machine and a server have one name.
    #[error("\"{0}\" is the name of a machine and of a server; give each a name of its own")]
    Twice(Name),
    /// A part needs one that is not defined.
    #[error("\"{name}\" needs \"{needed}\", which is not defined")]
    Missing {
        /// The part.
        name: Name,
        /// The one that it needs.
        needed: Name,
    },
    /// Parts need each other.
    #[error("\"{0}\" needs itself, directly or by way of others")]
    Circle(Name),
    /// A disk makes no sense.
    #[error(
        "the disk \"{0}\" is not SERVER:DEVICE, SERVER:DEVICE:r or SERVER:DEVICE:rw, with properties of --drive behind a comma"
    )]
    Disk(String),
    /// A machine's disk or network is at a server of another kind.
    #[error("\"{name}\" is not a {kind}")]
    Kind {
        /// The server.
        name: Name,
        /// The kind that it should be.
        kind: &'static str,
    },
    /// A server has no such device.
    #[error("the server \"{server}\" has no device \"{device}\"")]
    Device {
        /// The server.
        server: Name,
        /// The device.
        device: Name,
    },
    /// A client's right makes no sense.
    #[error("\"{0}\" is not DEVICE, DEVICE:r or DEVICE:rw")]
    Right(String),
    /// A provider shall give rights to somebody unknown.
    #[error(
        "the provider \"{provider}\" of \"{server}\" names the client \"{client}\", which is neither a machine nor one of client.NAME there"
    )]
    Client {
        /// The server.
        server: Name,
        /// The provider.
        provider: Name,
        /// The client.
        client: Name,
    },
    /// A machine has its rights at a server from two places.
    #[error(
        "\"{client}\" is a machine: name its disks in its own definition, and not in \"{server}\""
    )]
    MachineDevices {
        /// The server.
        server: Name,
        /// The machine.
        client: Name,
    },
    /// A machine has a disk twice.
    #[error("\"{name}\" has this disk already: {server}:{device}")]
    Again {
        /// The machine.
        name: Name,
        /// The server.
        server: Name,
        /// The device.
        device: Name,
    },
    /// A server's definition has a key that means nothing.
    #[error("\"{name}\" has a key \"{key}\", which a server of its kind does not have")]
    Key {
        /// The server.
        name: Name,
        /// The key.
        key: String,
    },
    /// An option belongs to the supervisor.
    #[error("the supervisor itself gives machines the option \"{0}\"; leave it out")]
    Reserved(String),
}

/// What is done when a part has ended without having been told to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// It is started again, also when its guest has switched off.
    Always,
    /// It is started again if it died, hung or failed.
    #[default]
    OnFailure,
    /// It stays as it is.
    Never,
}

/// The part of a definition that all kinds share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Common {
    /// What is done when the part has ended.
    #[serde(default)]
    pub restart: Restart,
    /// Parts that must be ready before this one starts, beyond those of its disks and networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Name>,
    /// For how many seconds a process may give no answer before it counts as hung and is killed. By default 10 for a
    /// server, and 30 for a machine; 0 is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u32>,
    /// The directory to which relative paths refer. By default that of the file with the definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
}

/// A machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Machine {
    /// What all kinds share.
    #[serde(flatten)]
    pub common: Common,
    /// Whether it starts with the supervisor.
    #[serde(default = "yes")]
    pub start: bool,
    /// How many seconds a guest has for switching off before its machine is ended.
    #[serde(default = "half_a_minute")]
    pub stop_timeout: u32,
    /// Disks of servers: `SERVER:DEVICE`, `:r` or `:rw` (the default), and properties of `--drive`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<Disk>,
    /// Networks: the name of a switch, and properties of `--nic`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<Network>,
    /// The memory that it can have at any time, out of the budget for all machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_reserve: Option<Size>,
    /// Its weight when memory is scarce. By default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_weight: Option<u32>,
    /// Its weight when the host's processors are busy. By default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u32>,
    /// Its weight among the machines that use a server of disks with a `bandwidth`. By default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_weight: Option<u32>,
    /// The most bytes a second that it may read and write at a server of disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bandwidth: Option<Size>,
    /// Its weight among the machines that use a switch with a `bandwidth`. By default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_weight: Option<u32>,
    /// The most bytes a second that it may send at such a switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_bandwidth: Option<Size>,
    /// The machines whose like its guest may launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<Name>,
    /// The number of machines that its guest may have launched at a time.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub launch_limit: u32,
    /// The server of disks to which its guest brings its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provides: Option<Name>,
    /// The machine whose guest has launched it, and may control it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched_by: Option<Name>,
    /// Further options of `ring3 run`.
    #[serde(flatten)]
    pub options: BTreeMap<String, OptionValue>,
}

/// The value of an option of `ring3 run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// An option without a value, which is given or not.
    Flag(bool),
    /// A number.
    Number(i64),
    /// Text.
    Text(String),
    /// An option that is given several times.
    List(Vec<OptionValue>),
}

/// A network of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    /// The switch.
    pub switch: Name,
    /// Properties of `--nic`.
    pub properties: String,
}

impl FromStr for Network {
    type Err = BadDefinition;

    fn from_str(text: &str) -> Result<Network, BadDefinition> {
        let (switch, properties) = text.split_once(',').unwrap_or((text, ""));
        Ok(Network { switch: switch.parse()?, properties: properties.to_owned() })
    }
}

impl TryFrom<String> for Network {
    type Error = BadDefinition;

    fn try_from(text: String) -> Result<Network, BadDefinition> {
        text.parse()
    }
}

impl Network {
    /// Returns the id that its properties give it, if they do.
    pub(crate) fn given_id(&self) -> Option<&str> {
        self.properties.split(',').find_map(|property| property.strip_prefix("id="))
    }

    /// Returns the id of the first network at the switch in a machine.
    pub(crate) fn id(&self) -> String {
        self.given_id().map_or_else(|| format!("network-{}", self.switch), str::to_owned)
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        let Network { switch, properties } = network;
        let comma = if properties.is_empty() { "" } else { "," };
        format!("{switch}{comma}{properties}")
    }
}

/// A machine or a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Definition {
    /// A machine.
    Machine(Machine),
    /// A server.
    Server(Server),
}

impl Definition {
    /// Returns what all kinds share.
    pub fn common(&self) -> &Common {
        match self {
            Definition::Machine(machine) => &machine.common,
            Definition::Server(server) => server.common(),
        }
    }

    /// Returns the same, to be changed.
    pub fn common_mut(&mut self) -> &mut Common {
        match self {
            Definition::Machine(machine) => &mut machine.common,
            Definition::Server(server) => server.common_mut(),
        }
    }

    /// Returns the kind, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Definition::Machine(_) => "machine",
            Definition::Server(Server::Vblock(_)) => "vblock",
            Definition::Server(Server::Switch(_)) => "switch",
            Definition::Server(Server::Console(_)) => "console",
            Definition::Server(Server::Web(_)) => "web",
        }
    }

    /// Returns the disks of a machine. A server has none.
    pub fn disks(&self) -> &[Disk] {
        match self {
            Definition::Machine(machine) => &machine.disk,
            Definition::Server(_) => &[],
        }
    }

    /// Returns the parts that must be ready before this one starts.
    pub fn needs(&self) -> BTreeSet<Name> {
        let mut needs: BTreeSet<Name> = self.common().needs.iter().cloned().collect();
        needs.extend(self.disks().iter().map(|disk| disk.server.clone()));
        if let Definition::Machine(machine) = self {
            needs.extend(machine.network.iter().map(|network| network.switch.clone()));
            needs.extend(machine.provides.clone());
        }
        needs
    }

    /// Returns the machines among `all` whose guests bring disks of this one.
    pub fn providers(&self, all: &Definitions) -> BTreeSet<Name> {
        let provider = |disk: &Disk| {
            let name = disk.provider()?;
            all.get(&name)?.provides(&disk.server).then_some(name)
        };
        self.disks().iter().filter_map(provider).collect()
    }

    /// Returns whether it is a machine whose guest brings disks to this server.
    fn provides(&self, server: &Name) -> bool {
        matches!(self, Definition::Machine(Machine { provides: Some(to), .. }) if to == server)
    }

    /// Returns the parts that this one cannot work without: those that it needs, and the machines that bring its disks.
    pub fn leans_on(&self, all: &Definitions) -> BTreeSet<Name> {
        let mut parts = self.needs();
        parts.extend(self.providers(all));
        parts
    }

    /// Returns for how long the process may give no answer; None is for ever.
    pub fn deadline(&self) -> Option<Duration> {
        let usual = if matches!(self, Definition::Machine(_)) { 30 } else { 10 };
        let seconds = self.common().deadline.unwrap_or(usual);
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Returns whether it starts with the supervisor.
    pub fn starts(&self) -> bool {
        !matches!(self, Definition::Machine(Machine { start: false, .. }))
    }
}

/// All definitions of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    memory: Option<Memory>,
    cpu: Option<Processors>,
    #[serde(default)]
    machine: BTreeMap<Name, Machine>,
    #[serde(default)]
    server: BTreeMap<Name, Server>,
}

/// What the supervisor shares out between machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Memory.
    pub memory: Option<Memory>,
    /// The time of processors.
    pub cpu: Option<Processors>,
}

/// Definitions by name.
pub type Definitions = BTreeMap<Name, Definition>;

/// Reads the TOML text of a file in `directory`. An error is a text with the place in the file.
pub fn parse(text: &str, directory: &Path) -> Result<Definitions, String> {
    parse_with_budgets(text, directory).map(|(definitions, _)| definitions)
}

/// Does the same, and returns also what is shared out.
pub fn parse_with_budgets(text: &str, directory: &Path) -> Result<(Definitions, Budgets), String> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        format!("line {line}: {}", error.message())
    })?;
    let machines =
        file.machine.into_iter().map(|(name, machine)| (name, Definition::Machine(machine)));
    let mut definitions: Definitions = machines.collect();
    for (name, server) in file.server {
        if definitions.contains_key(&name) {
            return Err(BadDefinition::Twice(name).to_string());
        }
        definitions.insert(name, Definition::Server(server));
    }
    for definition in definitions.values_mut() {
        let common = definition.common_mut();
        common.directory.get_or_insert_with(|| directory.to_owned());
    }
    for name in definitions.keys() {
        check(name, &definitions).map_err(|error| error.to_string())?;
    }
    Ok((definitions, Budgets { memory: file.memory, cpu: file.cpu }))
}

/// Reads the definition of one machine: the keys of its table in a file.
pub fn parse_machine(text: &str) -> Result<Definition, String> {
    toml::from_str(text).map(Definition::Machine).map_err(|error| error.message().to_owned())
}

/// Reads the definition of one server.
pub fn parse_server(text: &str) -> Result<Definition, String> {
    toml::from_str(text).map(Definition::Server).map_err(|error| error.message().to_owned())
}

/// Checks the definition of `name` among all others.
pub fn check(name: &Name, all: &Definitions) -> Result<(), BadDefinition> {
    let definition = &all[name];
    let launches = match definition {
        Definition::Machine(machine) => &machine.launches[..],
        Definition::Server(_) => &[],
    };
    if let Some(other) =
        launches.iter().find(|other| all.get(other).is_none_or(|it| it.kind() != "machine"))
    {
        return Err(BadDefinition::Kind { name: other.clone(), kind: "machine" });
    }
    for needed in definition.needs() {
        if !all.contains_key(&needed) {
            return Err(BadDefinition::Missing { name: name.clone(), needed });
        }
    }
    let (mut seen, mut open) = (BTreeSet::new(), vec![name.clone()]);
    while let Some(next) = open.pop() {
        for needed in all.get(&next).into_iter().flat_map(|next| next.leans_on(all)) {
            if needed == *name {
                return Err(BadDefinition::Circle(name.clone()));
            }
            if seen.insert(needed.clone()) {
                open.push(needed);
            }
        }
    }
    let machine = match definition {
        Definition::Machine(machine) => machine,
        Definition::Server(server) => return server.check(name, all),
    };
    for option in machine.options.keys() {
        if RESERVED.contains(&option.as_str()) {
            return Err(BadDefinition::Reserved(option.clone()));
        }
    }
    let mut disks = BTreeSet::new();
    for Disk { server, device, .. } in &machine.disk {
        if !disks.insert((server, device)) {
            let (name, server, device) = (name.clone(), server.clone(), device.clone());
            return Err(BadDefinition::Again { name, server, device });
        }
        server::check_device(server, device, all)?;
    }
    if let Some(server) = &machine.provides
        && !matches!(all[server], Definition::Server(Server::Vblock(_)))
    {
        return Err(BadDefinition::Kind { name: server.clone(), kind: "server of disks" });
    }
    for Network { switch, .. } in &machine.network {
        if !matches!(all[switch], Definition::Server(Server::Switch(_))) {
            return Err(BadDefinition::Kind { name: switch.clone(), kind: "switch" });
        }
    }
    Ok(())
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

fn half_a_minute() -> u32 {
    30
}

#[cfg(test)]
mod tests;
