//! What a switch says of itself.

use std::collections::BTreeMap;

use ring3_core::net::MacAddress;
use serde::{Deserialize, Serialize};

use super::fabric::{Counters, PortKind, Refusal};

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Its ports, the oldest first.
    pub ports: Vec<PortStatus>,
}

/// A port. Packets are counted as they come, large ones as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortStatus {
    /// What it is called.
    pub name: String,
    /// It is the way to others, and no guest.
    pub uplink: bool,
    /// The guest's address, if that is known.
    pub address: Option<String>,
    /// Packets that came from there.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Packets that went there.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Packets from there that went nowhere, by why: `malformed`, `spoofed`, `flood`, `nowhere`.
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
