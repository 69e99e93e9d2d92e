//! Networks that clients of the monitors add while the machine runs.

use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_core::net::MacAddress;
use ring3_qmp::{Networks, NewNetwork};
use ring3_vm::Sender;
use ring3_vm::networks::Network;

use super::NetworkProperties;
use super::backend::Behind;
use crate::qemu::properties::Properties;
use crate::sandbox::Mode;

/// The maker of these networks.
#[derive(Debug)]
pub(crate) struct LaterNetworks {
    /// Packets from the networks go to its door.
    sender: Sender,
    sandbox: Mode,
}

impl LaterNetworks {
    /// Makes networks for the machine with the door of `sender`, which runs in such a sandbox.
    pub(crate) fn new(sender: Sender, sandbox: Mode) -> Arc<LaterNetworks> {
        Arc::new(LaterNetworks { sender, sandbox })
    }

    /// Returns what is left of `network` in the sandbox, where the machine starts no programs and opens no interfaces of
    /// the host: of a switch, one that is there. Fails with what it has no right to do.
    fn within_rights(&self, network: Behind) -> Result<Behind, &'static str> {
        match network {
            network if self.sandbox == Mode::Off => Ok(network),
            Behind::User(_) => Err("start the NAT of a user network"),
            Behind::Tap(_) => Err("open a tap interface"),
            Behind::Switch { socket, .. } => Ok(Behind::Switch { socket, starts: false }),
            network @ (Behind::Stream(_) | Behind::Dgram(_)) => Ok(network),
        }
    }
}

impl Networks for LaterNetworks {
    fn describe(&self, properties: &str) -> Result<Arc<dyn NewNetwork>, String> {
        let given = Properties::parse_either(properties, None)?;
        let mut properties = Properties::default();
        for (key, value) in given.iter() {
            properties.add(element_of(key).unwrap_or(key), value);
        }
        let kind = properties.take("type").unwrap_or_default();
        let parsed = NetworkProperties::parse(&kind, properties);
        let mut network = parsed.map_err(|error| error.to_string())?;
        network.behind = self.within_rights(network.behind).map_err(|forbidden| {
            format!(
                "the sandbox keeps a machine that runs from what it takes to {forbidden}: give switch, stream or \
                 dgram, or start the machine with --sandbox off"
            )
        })?;
        Ok(Arc::new(Later { network, sender: self.sender.clone() }))
    }
}

/// Returns the name of the list of strings of which `key` is an element, such as `hostfwd.0.str`.
fn element_of(key: &str) -> Option<&str> {
    let (list, number) = key.strip_suffix(".str")?.rsplit_once('.')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(list)
}

/// A network that is not open yet.
#[derive(Debug)]
struct Later {
    network: NetworkProperties,
    sender: Sender,
}

impl NewNetwork for Later {
    fn default_address(&self, device: DeviceId) -> MacAddress {
        let index = DeviceId::NIC.into_iter().position(|nic| nic == device).unwrap_or(0);
        self.network.behind.default_address(index as u8)
    }

    fn open(&self, device: DeviceId, address: MacAddress) -> Result<Box<dyn Network>, String> {
        let opened = self.network.open(device, address, &self.sender);
        opened.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(sandbox: Mode, properties: &str) -> Result<Arc<dyn NewNetwork>, String> {
        let (sender, _door) = ring3_vm::door();
        LaterNetworks::new(sender, sandbox).describe(properties)
    }

    #[test]
    fn networks_are_read_in_the_form_of_qmp() {
        for properties in [
            r#"{"type": "user", "restrict": true, "hostfwd": [{"str": "tcp::2222-:22"}, {"str": "udp::53-:53"}]}"#,
            r#"{"type": "stream", "addr": {"type": "inet", "host": "127.0.0.1", "port": "7"}, "server": false}"#,
            r#"{"type": "switch", "path": "/a"}"#,
        ] {
            let network = described(Mode::Off, properties).expect(properties);
            assert!(!network.default_address(DeviceId::NIC[3]).is_group());
        }
        for (properties, reason) in [
            ("{}", "user, switch"),
            (r#"{"type": "vde"}"#, "user, switch"),
            (r#"{"type": "user", "hostfwd": [{"str": "x"}]}"#, "hostfwd=x"),
            (r#"{"type": "user", "colour": "red"}"#, "colour"),
            ("nonsense", "user"),
        ] {
            let error = described(Mode::Off, properties).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_sandbox_forbids_what_it_cannot_do() {
        for (properties, is_possible) in [
            (r#"{"type": "user"}"#, false),
            (r#"{"type": "tap", "ifname": "tap0"}"#, false),
            (r#"{"type": "switch"}"#, true),
            (r#"{"type": "stream", "addr": {"type": "unix", "path": "/a"}}"#, true),
        ] {
            assert_eq!(described(Mode::Auto, properties).is_ok(), is_possible, "{properties}");
        }
    }
}
