//! Reads those parts of a guest's frames that must be checked before libslirp receives them.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of an Ethernet header: destination, source, type.
pub(super) const ETHERNET_LEN: usize = 14;

/// Types of frames (IEEE 802 numbers).
pub(super) mod ether_type {
    pub(in crate::slirp) const IPV4: u16 = 0x0800;
    pub(in crate::slirp) const ARP: u16 = 0x0806;
    pub(in crate::slirp) const IPV6: u16 = 0x86dd;
}

/// Numbers of protocols and of IPv6 extension headers (RFC 8200, 4.1).
pub(super) mod protocol {
    pub(in crate::slirp) const HOP_BY_HOP: u8 = 0;
    pub(in crate::slirp) const ICMP: u8 = 1;
    pub(in crate::slirp) const ROUTING: u8 = 43;
    pub(in crate::slirp) const FRAGMENT: u8 = 44;
    pub(in crate::slirp) const ICMPV6: u8 = 58;
    pub(in crate::slirp) const DESTINATION_OPTIONS: u8 = 60;
}

/// Returns the type of a frame, if the frame is long enough to have one.
pub(super) fn ether_type(frame: &[u8]) -> Option<u16> {
    let bytes = frame.get(12..ETHERNET_LEN)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// A frame with a sound IPv4 header (RFC 791, 3.1): its lengths match the bytes present, and its checksum is
/// right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ipv4<'a> {
    frame: &'a [u8],
    header_len: usize,
    /// Bytes of header and payload.
    len: usize,
}

impl<'a> Ipv4<'a> {
    const MIN: usize = 20;

    pub(super) fn of(frame: &'a [u8]) -> Option<Ipv4<'a>> {
        let ip = frame.get(ETHERNET_LEN..).filter(|ip| ip.len() >= Ipv4::MIN)?;
        let (header_len, len) = (usize::from(ip[0] & 0xf) * 4, usize::from(half(ip, 2)));
        let is_sound = ip[0] >> 4 == 4
            && (Ipv4::MIN..=len).contains(&header_len)
            && len <= ip.len()
            && checksum(&[&ip[..header_len]]) == 0;
        is_sound.then_some(Ipv4 { frame, header_len, len })
    }

    fn ip(&self) -> &'a [u8] {
        &self.frame[ETHERNET_LEN..]
    }

    /// Returns the Ethernet and IP headers.
    pub(super) fn headers(&self) -> &'a [u8] {
        &self.frame[..ETHERNET_LEN + self.header_len]
    }

    pub(super) fn header_len(&self) -> usize {
        self.header_len
    }

    pub(super) fn payload(&self) -> &'a [u8] {
        &self.ip()[self.header_len..self.len]
    }

    pub(super) fn identification(&self) -> u16 {
        half(self.ip(), 4)
    }

    /// Returns the flag that "must be zero".
    pub(super) fn has_reserved_flag(&self) -> bool {
        self.ip()[6] & 0x80 != 0
    }

    pub(super) fn has_more_fragments(&self) -> bool {
        self.ip()[6] & 0x20 != 0
    }

    /// Returns the offset of this fragment's payload in that of the whole datagram.
    pub(super) fn offset(&self) -> usize {
        usize::from(half(self.ip(), 6) & 0x1fff) * 8
    }

    /// Returns whether this is a fragment, or libslirp takes it for one because it has the reserved flag.
    pub(super) fn is_fragment(&self) -> bool {
        self.has_reserved_flag() || self.has_more_fragments() || self.offset() > 0
    }

    pub(super) fn protocol(&self) -> u8 {
        self.ip()[9]
    }

    pub(super) fn source(&self) -> [u8; 4] {
        *self.ip()[12..].first_chunk().expect("the header is whole")
    }

    pub(super) fn destination(&self) -> [u8; 4] {
        *self.ip()[16..].first_chunk().expect("the header is whole")
    }

    /// Returns the destination of an echo request (RFC 792), or None for other datagrams.
    pub(super) fn echo_to(&self) -> Option<Ipv4Addr> {
        let asks = self.protocol() == protocol::ICMP && self.payload().starts_with(&[8, 0]);
        asks.then(|| self.destination().into())
    }
}

/// A frame with an IPv6 header (RFC 8200, 3) whose length matches the bytes present.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ipv6<'a> {
    frame: &'a [u8],
    len: usize,
}

impl<'a> Ipv6<'a> {
    pub(super) const HEADER_LEN: usize = 40;

    pub(super) fn of(frame: &'a [u8]) -> Option<Ipv6<'a>> {
        let ip = frame.get(ETHERNET_LEN..).filter(|ip| ip.len() >= Ipv6::HEADER_LEN)?;
        let len = Ipv6::HEADER_LEN + usize::from(half(ip, 4));
        (ip[0] >> 4 == 6 && len <= ip.len()).then_some(Ipv6 { frame, len })
    }

    /// Returns header and payload.
    pub(super) fn ip(&self) -> &'a [u8] {
        &self.frame[ETHERNET_LEN..][..self.len]
    }

    pub(super) fn source(&self) -> Ipv6Addr {
        let bytes: [u8; 16] = *self.ip()[8..].first_chunk().expect("the header is whole");
        bytes.into()
    }

    pub(super) fn destination(&self) -> Ipv6Addr {
        let bytes: [u8; 16] = *self.ip()[24..].first_chunk().expect("the header is whole");
        bytes.into()
    }

    /// Returns whether the datagram has a fragment header.
    pub(super) fn is_fragment(&self) -> bool {
        let (mut kind, mut rest) = (self.ip()[6], &self.ip()[Ipv6::HEADER_LEN..]);
        loop {
            match kind {
                protocol::FRAGMENT => return true,
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {}
                _ => return false,
            }
            let [next, len, ..] = rest else { return false };
            kind = *next;
            let Some(behind) = rest.get(usize::from(*len) * 8 + 8..) else { return false };
            rest = behind;
        }
    }

    /// Returns the destination of an echo request (RFC 4443, 4.1), or None for other datagrams.
    pub(super) fn echo_to(&self) -> Option<Ipv6Addr> {
        let is_icmp = self.ip()[6] == protocol::ICMPV6;
        let asks = is_icmp && self.ip()[Ipv6::HEADER_LEN..].starts_with(&[128, 0]);
        asks.then(|| self.destination())
    }
}

/// Returns the Internet checksum (RFC 1071) over `parts`, all of which except the last must have an even
/// length. It is 0 over bytes that contain their right checksum.
pub(super) fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        let (pairs, rest) = part.as_chunks::<2>();
        sum += pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum::<u32>();
        sum += rest.first().map_or(0, |last| u32::from(*last) << 8);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Writes the checksum of the IPv4 header at the beginning of `ip`.
pub(super) fn set_checksum(ip: &mut [u8]) {
    let header_len = usize::from(ip[0] & 0xf) * 4;
    ip[10..12].fill(0);
    let sum = checksum(&[&ip[..header_len]]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}
