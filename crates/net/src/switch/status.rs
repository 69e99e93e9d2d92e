//! The report of a switch.

use std::collections::BTreeMap;

use ring3_core::net::MacAddress;
use serde::{Deserialize, Serialize};

use super::fabric::{Counters, PortKind, Refusal};

/// The state of a switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Its ports, the oldest first.
    pub ports: Vec<PortStatus>,
}

/// The state of a port. Large packets, which are cut later, count as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// Whether it is a way to other networks rather than a guest.
    pub uplink: bool,
    /// The guest's address, if it is known.
    pub address: Option<String>,
    /// Packets that came from it.
    pub received: u64,
    /// Bytes of these packets.
    pub received_bytes: u64,
    /// Packets that went to it.
    pub sent: u64,
    /// Bytes of these packets.
    pub sent_bytes: u64,
    /// Packets from it that went nowhere, by reason: `malformed`, `spoofed`, `flood`, `nowhere`.
    pub refused: BTreeMap<String, u64>,
}

impl PortStatus {
    pub(super) fn new(
        name: &str,
        kind: PortKind,
        address: Option<MacAddress>,
        counters: &Counters,
    ) -> PortStatus {
        let Counters { received, received_bytes, sent, sent_bytes, refused } = counters;
        let word = |refusal: &Refusal| match refusal {
            Refusal::Malformed => "malformed",
            Refusal::Spoofed => "spoofed",
            Refusal::Flood => "flood",
            Refusal::Nowhere => "nowhere",
        };
        PortStatus {
            name: name.to_owned(),
            uplink: kind == PortKind::Uplink,
            address: address.map(|address| address.to_string()),
            received: *received,
            received_bytes: *received_bytes,
            sent: *sent,
            sent_bytes: *sent_bytes,
            refused: refused.iter().map(|(why, count)| (word(why).to_owned(), *count)).collect(),
        }
    }
}
