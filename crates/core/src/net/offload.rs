//! Does in software what a system leaves to its network card, for receivers that cannot do it.

use super::checksum::{folded, sum};
use super::{HEADER_LEN, PACKET_MAX, Packet, PartialChecksum, SegmentationKind};

/// The work on a packet that may be left to its receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Computing a checksum.
    pub checksum: bool,
    /// Cutting TCP over IPv4 into segments. This needs [`Offloads::checksum`] too.
    pub tcp_v4: bool,
    /// Cutting TCP over IPv6 into segments. This needs [`Offloads::checksum`] too.
    pub tcp_v6: bool,
    /// Cutting packets that carry a notification of congestion.
    pub congestion: bool,
}

impl Offloads {
    /// All offloads.
    pub const ALL: Offloads =
        Offloads { checksum: true, tcp_v4: true, tcp_v6: true, congestion: true };
}

// Fields of the headers of IPv4 (RFC 791, 3.1), IPv6 (RFC 8200, 3) and TCP (RFC 9293, 3.1).
const IPV4_LENGTH: usize = 2;
const IPV4_IDENTIFICATION: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const IPV4_ADDRESSES: usize = 12;
const IPV4_LEN: usize = 20;
const IPV6_LENGTH: usize = 4;
const IPV6_ADDRESSES: usize = 8;
const IPV6_LEN: usize = 40;
const TCP_SEQUENCE: usize = 4;
const TCP_DATA_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
const TCP_LEN: usize = 20;
const TCP_FIN_PUSH: u8 = 0x01 | 0x08;
const TCP_WINDOW_REDUCED: u8 = 0x80;
const PROTOCOL_TCP: u16 = 6;

/// Types of a frame with a VLAN tag (IEEE 802.1Q), which precedes the type proper.
const VLAN_TYPES: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

impl Packet {
    /// Returns whether the checksum and the segmentation that the packet asks for fit its bytes.
    pub fn is_sound(&self) -> bool {
        let checksum_end = |at: PartialChecksum| usize::from(at.start) + usize::from(at.offset) + 2;
        let is_inside = |at| checksum_end(at) <= self.bytes.len();
        let is_cut = self.segmentation.is_none_or(|cut| {
            cut.size > 0 && self.checksum.is_some() && self.headers_len().is_some()
        });
        self.bytes.len() <= PACKET_MAX && self.checksum.is_none_or(is_inside) && is_cut
    }

    /// Returns the length in bytes of all headers up to and including that of TCP, in a packet that is to be
    /// cut.
    pub(super) fn headers_len(&self) -> Option<usize> {
        let start = usize::from(self.checksum?.start);
        let tcp = self.bytes.get(start..)?;
        let len = usize::from(*tcp.get(TCP_DATA_OFFSET)? >> 4) * 4;
        (len >= TCP_LEN && len <= tcp.len()).then_some(start + len)
    }

    /// Returns whether a receiver with `offloads` can take this packet as it is.
    pub fn suits(&self, offloads: Offloads) -> bool {
        match &self.segmentation {
            Some(cut) => {
                let kind = match cut.kind {
                    SegmentationKind::TcpV4 => offloads.tcp_v4,
                    SegmentationKind::TcpV6 => offloads.tcp_v6,
                };
                kind && offloads.checksum && (offloads.congestion || !cut.congestion)
            }
            None => offloads.checksum || self.checksum.is_none(),
        }
    }

    /// Does the work that a receiver with `offloads` cannot do, and passes the resulting packets to `give`. A
    /// packet that is [not sound](Packet::is_sound) is lost.
    pub fn without_offloads(self, offloads: Offloads, mut give: impl FnMut(Packet)) {
        if !self.is_sound() {
            return;
        }
        match self.checksum {
            Some(_) if self.segmentation.is_some() && !self.suits(offloads) => self.cut(give),
            Some(at) if !self.suits(offloads) => {
                let mut bytes = self.bytes;
                complete(&mut bytes, at);
                give(Packet::frame(bytes));
            }
            _ => give(self),
        }
    }

    /// Cuts a sound packet into segments.
    fn cut(&self, mut give: impl FnMut(Packet)) {
        let (Some(cut), Some(checksum)) = (self.segmentation, self.checksum) else { return };
        let Some(headers_len) = self.headers_len() else { return };
        let (ip, tcp) = (network_header(&self.bytes), usize::from(checksum.start));
        let ip_len = match cut.kind {
            SegmentationKind::TcpV4 => IPV4_LEN,
            SegmentationKind::TcpV6 => IPV6_LEN,
        };
        if ip + ip_len > tcp {
            return;
        }
        let (headers, payload) = self.bytes.split_at(headers_len);
        let flags = headers[tcp + TCP_FLAGS];
        let sequence = read_u32(headers, tcp + TCP_SEQUENCE);
        let identification = read_u16(headers, ip + IPV4_IDENTIFICATION);
        // A packet without payload is one segment.
        let count = payload.len().div_ceil(cut.size.into()).max(1);
        let parts = payload.chunks(cut.size.into()).chain((payload.is_empty()).then_some(payload));
        for (index, part) in parts.enumerate() {
            let mut bytes = Vec::with_capacity(headers_len + part.len());
            bytes.extend_from_slice(headers);
            bytes.extend_from_slice(part);
            let mut flags = flags;
            if index > 0 {
                flags &= !TCP_WINDOW_REDUCED;
            }
            if index + 1 < count {
                flags &= !TCP_FIN_PUSH;
            }
            bytes[tcp + TCP_FLAGS] = flags;
            let before = (index * usize::from(cut.size)) as u32;
            write(&mut bytes, tcp + TCP_SEQUENCE, &sequence.wrapping_add(before).to_be_bytes());
            let tcp_len = bytes.len() - tcp;
            let addresses = match cut.kind {
                SegmentationKind::TcpV4 => {
                    let len = (bytes.len() - ip) as u16;
                    write(&mut bytes, ip + IPV4_LENGTH, &len.to_be_bytes());
                    let identification = identification.wrapping_add(index as u16);
                    write(&mut bytes, ip + IPV4_IDENTIFICATION, &identification.to_be_bytes());
                    write(&mut bytes, ip + IPV4_CHECKSUM, &[0; 2]);
                    let sum = !folded(sum(&bytes[ip..tcp]));
                    write(&mut bytes, ip + IPV4_CHECKSUM, &sum.to_be_bytes());
                    &bytes[ip + IPV4_ADDRESSES..ip + IPV4_LEN]
                }
                SegmentationKind::TcpV6 => {
                    let len = (bytes.len() - ip - IPV6_LEN) as u16;
                    write(&mut bytes, ip + IPV6_LENGTH, &len.to_be_bytes());
                    &bytes[ip + IPV6_ADDRESSES..ip + IPV6_LEN]
                }
            };
            let pseudo = sum(addresses) + u64::from(PROTOCOL_TCP) + tcp_len as u64;
            write(&mut bytes, tcp + TCP_CHECKSUM, &folded(pseudo).to_be_bytes());
            complete(&mut bytes, PartialChecksum { offset: TCP_CHECKSUM as u16, ..checksum });
            give(Packet::frame(bytes));
        }
    }
}

/// Returns where the IP header begins in a frame: after the type and any VLAN tags before it.
fn network_header(frame: &[u8]) -> usize {
    let mut at = HEADER_LEN;
    while at + 4 <= frame.len() && VLAN_TYPES.iter().any(|tag| frame[at - 2..at] == *tag) {
        at += 4;
    }
    at
}

/// Computes the checksum of a sound packet. A result of 0 is written as FFFFh: in UDP 0 would mean that there
/// is no checksum (RFC 768), and in other protocols both mean the same.
fn complete(bytes: &mut [u8], at: PartialChecksum) {
    let start = usize::from(at.start);
    let computed = match !folded(sum(&bytes[start..])) {
        0 => 0xffff,
        computed => computed,
    };
    write(bytes, start + usize::from(at.offset), &computed.to_be_bytes());
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn write(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

#[cfg(test)]
mod tests;
