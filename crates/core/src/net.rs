//! What a network card and the network behind it tell each other.
//!
//! A card sends a [`Packet`] as an output, and what comes for it is an input. A packet is one Ethernet frame, or what a system
//! leaves to its card: a frame whose checksum is still to be computed, or one that is larger than the network can carry and to be cut
//! into segments. Between two cards that can do without, nobody computes or cuts anything.

pub mod checksum;
mod header;
mod offload;

pub use header::OFFLOAD_HEADER_LEN;
pub use offload::Offloads;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes of an Ethernet header: two addresses and a type (IEEE 802.3, 3.2).
pub const HEADER_LEN: usize = 14;

/// The most bytes of a packet: 65535 after a header with a VLAN tag.
pub const PACKET_MAX: usize = HEADER_LEN + 4 + 65535;

/// An Ethernet frame without its check sequence, or what is to become one or several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// From the destination's address on, at most [`PACKET_MAX`].
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The checksum that is still to be computed.
    pub checksum: Option<PartialChecksum>,
    /// How it is to be cut where it is too large. Then there is a [`Packet::checksum`] too.
    pub segmentation: Option<Segmentation>,
}

impl Packet {
    /// A frame that is as it goes over the wire.
    pub fn frame(bytes: Vec<u8>) -> Packet {
        Packet { bytes, checksum: None, segmentation: None }
    }

    /// The address to which it goes: none if it is too short to have one.
    pub fn destination(&self) -> Option<MacAddress> {
        self.bytes.first_chunk().copied().map(MacAddress)
    }

    /// The address from which it comes.
    pub fn source(&self) -> Option<MacAddress> {
        self.bytes.get(6..)?.first_chunk().copied().map(MacAddress)
    }
}

/// A checksum of the Internet protocols (RFC 1071) that is to be computed of all bytes from `start` to the end of the packet. In its
/// place stands the sum of the pseudo header, so what is put there is the complement of the sum of all these bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialChecksum {
    /// Where the bytes begin: at the header of TCP or UDP.
    pub start: u16,
    /// Where the checksum is, in bytes from `start` on.
    pub offset: u16,
}

/// How a packet is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segmentation {
    /// What it carries.
    pub kind: SegmentationKind,
    /// The most bytes of payload, after the header of TCP, of each segment.
    pub size: u16,
    /// It carries an explicit congestion notification, which the first segment alone is to have (RFC 3168, 6.1.2).
    pub congestion: bool,
}

/// What a packet carries that is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentationKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
}

/// The address of a network card (IEEE 802, 8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// That of all cards.
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);

    /// True for a group of cards, all of them among the groups.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// It is no address of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an address of a network card is six bytes, like 52:54:00:12:34:56")]
pub struct BadMacAddress;

impl FromStr for MacAddress {
    type Err = BadMacAddress;

    fn from_str(text: &str) -> Result<MacAddress, BadMacAddress> {
        let mut address = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut address {
            let part = parts.next().filter(|part| matches!(part.len(), 1 | 2));
            let digits = part.filter(|part| part.bytes().all(|digit| digit.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(digits.ok_or(BadMacAddress)?, 16).or(Err(BadMacAddress))?;
        }
        parts.next().is_none().then_some(MacAddress(address)).ok_or(BadMacAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_read() {
        let address: MacAddress = "52:54:00:12:34:5F".parse().unwrap();
        assert_eq!(address, MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x5f]));
        assert_eq!(address.to_string(), "52:54:00:12:34:5f");
        assert_eq!("52-54-0-12-34-5f".parse(), Ok(address));
        for text in
            ["", "52:54:00:12:34", "52:54:00:12:34:5f:", "52:54:00:12:34:+5", "1:2:3:4:5:100"]
        {
            assert_eq!(text.parse::<MacAddress>(), Err(BadMacAddress), "{text}");
        }
    }

    #[test]
    fn a_packet_has_addresses_where_it_is_long_enough() {
        let mut packet = Packet::frame(vec![1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(packet.destination(), Some(MacAddress([1, 0, 0, 0, 0, 0])));
        assert_eq!(packet.source(), None);
        packet.bytes.push(9);
        assert_eq!(packet.source(), Some(MacAddress([2, 0, 0, 0, 0, 9])));
        assert!(packet.destination().unwrap().is_group() && MacAddress::BROADCAST.is_group());
    }
}
