//! The messages between a network card and the network behind it.
//!
//! A card sends a [`Packet`] as an output and receives one as an input. A packet is one Ethernet frame, or a
//! larger or unfinished one that a system leaves to its card to finish: a frame whose checksum must still be
//! computed, or one that is larger than the network can carry and must be cut into segments. Between two
//! cards that need neither, nobody computes or cuts anything.

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

/// The largest size of a packet in bytes: 65535 after a header with a VLAN tag.
pub const PACKET_MAX: usize = HEADER_LEN + 4 + 65535;

/// An Ethernet frame without its check sequence, or a packet that must still be made into one or several
/// frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// The bytes from the destination's address on, at most [`PACKET_MAX`] of them.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The checksum that must still be computed.
    pub checksum: Option<PartialChecksum>,
    /// How to cut the packet where it is too large. A packet with segmentation has a [`Packet::checksum`]
    /// too.
    pub segmentation: Option<Segmentation>,
}

impl Packet {
    /// Returns a packet that is a frame as it goes over the wire.
    pub fn frame(bytes: Vec<u8>) -> Packet {
        Packet { bytes, checksum: None, segmentation: None }
    }

    /// Returns the destination's address, or None if the packet is too short to have one.
    pub fn destination(&self) -> Option<MacAddress> {
        self.bytes.first_chunk().copied().map(MacAddress)
    }

    /// Returns the sender's address, or None if the packet is too short to have one.
    pub fn source(&self) -> Option<MacAddress> {
        self.bytes.get(6..)?.first_chunk().copied().map(MacAddress)
    }
}

/// A checksum of the Internet protocols (RFC 1071) that must be computed over all bytes from `start` to the
/// end of the packet. Its field holds the sum of the pseudo header, so the complement of the sum of all these
/// bytes is the value to put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialChecksum {
    /// Where the covered bytes begin: at the header of TCP or UDP.
    pub start: u16,
    /// Offset of the checksum field, in bytes from `start`.
    pub offset: u16,
}

/// How to cut a packet into segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segmentation {
    /// The protocols that the packet carries.
    pub kind: SegmentationKind,
    /// The largest payload of a segment in bytes, after the TCP header.
    pub size: u16,
    /// Whether the packet carries an explicit congestion notification, which only the first segment may have
    /// (RFC 3168, 6.1.2).
    pub congestion: bool,
}

/// The protocols in a packet that must be cut.
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
    /// The address of all cards.
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);

    /// Returns whether this is the address of a group of cards; the group of all cards is one.
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

/// The error for a text that is no address of a network card.
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
