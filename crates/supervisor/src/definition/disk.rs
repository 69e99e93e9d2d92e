//! Disks of machines, as definitions name them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BadDefinition, Name};

/// A disk of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Disk {
    /// The server.
    pub server: Name,
    /// The device.
    pub device: Name,
    /// Whether the guest may write.
    pub is_writable: bool,
    /// Properties of `--drive`, and `direct=on`.
    pub properties: String,
}

/// The property of a disk that the machine uses without the server in between.
const DIRECT: &str = "direct=on";

impl Disk {
    /// Returns the accesses that are allowed, as servers of disks call them.
    pub fn access(&self) -> &'static str {
        access(self.is_writable)
    }

    /// Returns the name by which tools know it in its machine.
    pub fn id(&self) -> String {
        // QEMU's names begin with a letter.
        format!("disk.{}.{}", self.server, self.device)
    }

    /// Returns the name that its provider has, if a provider brings it.
    pub fn provider(&self) -> Option<Name> {
        provider_of(&self.device)
    }

    /// Returns whether the machine uses it without the server in between.
    pub fn is_direct(&self) -> bool {
        self.properties.split(',').any(|property| property == DIRECT)
    }

    /// Returns the properties of `--drive`.
    pub(crate) fn drive_properties(&self) -> String {
        let own = self.properties.split(',').filter(|property| *property != DIRECT);
        own.collect::<Vec<_>>().join(",")
    }
}

/// Returns the name of the provider that a device with this name has, if it is a provider's: what is before the last dot.
pub(super) fn provider_of(device: &Name) -> Option<Name> {
    device.as_str().rsplit_once('.').and_then(|(provider, _)| provider.parse().ok())
}

/// Returns the accesses that are allowed, as servers of disks call them.
pub(crate) fn access(is_writable: bool) -> &'static str {
    if is_writable { "rw" } else { "r" }
}

/// Returns whether a right with this access allows writes. None if there is no such access.
pub(super) fn is_writable(access: Option<&str>) -> Option<bool> {
    match access {
        None | Some("rw") => Some(true),
        Some("r") => Some(false),
        Some(_) => None,
    }
}

impl TryFrom<String> for Disk {
    type Error = BadDefinition;

    fn try_from(text: String) -> Result<Disk, BadDefinition> {
        text.parse()
    }
}

impl FromStr for Disk {
    type Err = BadDefinition;

    fn from_str(text: &str) -> Result<Disk, BadDefinition> {
        let bad = || BadDefinition::Disk(text.to_owned());
        let (place, properties) = text.split_once(',').unwrap_or((text, ""));
        let mut words = place.split(':');
        let (Some(server), Some(device)) = (words.next(), words.next()) else { return Err(bad()) };
        let is_writable = is_writable(words.next()).ok_or_else(bad)?;
        if words.next().is_some() {
            return Err(bad());
        }
        let properties = properties.to_owned();
        Ok(Disk { server: server.parse()?, device: device.parse()?, is_writable, properties })
    }
}

impl From<Disk> for String {
    fn from(disk: Disk) -> String {
        let access = disk.access();
        let Disk { server, device, properties, .. } = disk;
        let comma = if properties.is_empty() { "" } else { "," };
        format!("{server}:{device}:{access}{comma}{properties}")
    }
}
