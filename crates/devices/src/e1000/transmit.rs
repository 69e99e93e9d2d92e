//! Transmission (chapter 3): packets from a ring of descriptors, with what the card is to compute and to cut.

use ring3_core::memory::Memory;
use ring3_core::net::checksum::{folded, sum};
use ring3_core::net::{PACKET_MAX, Packet, PartialChecksum, Segmentation, SegmentationKind};
use serde::{Deserialize, Serialize};

use super::ring::Ring;

// The third doubleword of a descriptor: its length, in one of the newer kinds its type, and commands.
const LENGTH: u32 = 0xffff;
const DATA_LENGTH: u32 = 0x000f_ffff;
const TYPE_DATA: u32 = 1 << 20;
const TYPE: u32 = 0xf << 20;
const END: u32 = 1 << 24;
const INSERT_CHECKSUM: u32 = 1 << 26;
const SEGMENTATION: u32 = 1 << 26;
const REPORT: u32 = 1 << 27;
const REPORT_SENT: u32 = 1 << 28;
const EXTENDED: u32 = 1 << 29;
const VLAN: u32 = 1 << 30;
const DELAY: u32 = 1 << 31;
/// In a context descriptor.
const CONTEXT_TCP: u32 = 1 << 24;
const CONTEXT_IPV4: u32 = 1 << 25;
// The fourth doubleword.
const DONE: u32 = 1 << 0;
const OPTION_IP_CHECKSUM: u32 = 1 << 8;
const OPTION_TCP_CHECKSUM: u32 = 1 << 9;

/// Where a checksum goes and of what it is: from `start` to `end`, which is the packet's where it is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sum {
    start: u8,
    offset: u8,
    end: u16,
}

/// What a context descriptor has said of the packets to come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ContextOf {
    ip: Sum,
    transport: Sum,
    is_tcp: bool,
    is_ipv4: bool,
    segment: u16,
    header: u8,
}

/// How the packet is finished whose parts come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Legacy { sum: Option<(u8, u8)> },
    Extended { cuts: bool, ip_checksum: bool, transport_checksum: bool },
}

/// A packet of which not all parts have come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Begun {
    kind: Kind,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    /// It is longer than a packet can be, and lost.
    too_long: bool,
}

/// What the card remembers between two descriptors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Transmitter {
    context: ContextOf,
    begun: Option<Begun>,
}

/// How software is told that descriptors were used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) at_once: bool,
    pub(super) delayed: bool,
}

impl Transmitter {
    /// Uses the next descriptor of `ring`, and returns the packet of which it was the last.
    pub(super) fn take(
        &mut self,
        memory: &mut Memory,
        ring: &Ring,
        report: &mut Report,
        vlan_type: u16,
    ) -> Option<Packet> {
        let address = ring.address_of_head();
        let mut descriptor = [0; 16];
        memory.read(address, &mut descriptor);
        let [low, high, command, options] =
            [0, 4, 8, 12].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| descriptor[at + i])));
        let is_extended = command & EXTENDED != 0;
        let packet = if is_extended && command & TYPE != TYPE_DATA {
            self.set_context(low, high, command, options);
            None
        } else {
            let mask = if is_extended { DATA_LENGTH } else { LENGTH };
            let begun = self.begun.get_or_insert_with(|| Begun::new(is_extended, command, options));
            begun.add(memory, u64::from(high) << 32 | u64::from(low), command & mask);
            if command & END == 0 {
                None
            } else {
                let vlan = (command & VLAN != 0).then_some((options >> 16) as u16);
                let tag = vlan.map(|vlan| [vlan_type, vlan]);
                self.begun.take().and_then(|begun| begun.finish(&self.context, tag))
            }
        };
        if command & (REPORT | REPORT_SENT) != 0 {
            memory.write(address + 12, &(options | DONE).to_le_bytes()[..1]);
            let delays = command & DELAY != 0;
            report.delayed |= delays;
            report.at_once |= !delays;
        }
        packet
    }

    fn set_context(&mut self, ip: u32, transport: u32, command: u32, options: u32) {
        let sum = |word: u32| Sum {
            start: word as u8,
            offset: (word >> 8) as u8,
            end: (word >> 16) as u16,
        };
        self.context = ContextOf {
            ip: sum(ip),
            transport: sum(transport),
            is_tcp: command & CONTEXT_TCP != 0,
            is_ipv4: command & CONTEXT_IPV4 != 0,
            segment: (options >> 16) as u16,
            header: (options >> 8) as u8,
        };
    }

    /// True if it can have been saved.
    pub(super) fn is_possible(&self) -> bool {
        self.begun.as_ref().is_none_or(|begun| begun.bytes.len() <= PACKET_MAX)
    }
}

impl Begun {
    /// One whose first descriptor says so.
    fn new(is_extended: bool, command: u32, options: u32) -> Begun {
        let kind = if is_extended {
            Kind::Extended {
                cuts: command & SEGMENTATION != 0,
                ip_checksum: options & OPTION_IP_CHECKSUM != 0,
                transport_checksum: options & OPTION_TCP_CHECKSUM != 0,
            }
        } else {
            let wanted = command & INSERT_CHECKSUM != 0;
            Kind::Legacy { sum: wanted.then_some(((options >> 8) as u8, (command >> 16) as u8)) }
        };
        Begun { kind, bytes: Vec::new(), too_long: false }
    }

    fn add(&mut self, memory: &Memory, address: u64, length: u32) {
        let (before, length) = (self.bytes.len(), length as usize);
        self.too_long |= before + length > PACKET_MAX - VLAN_TAG_LEN;
        if !self.too_long {
            self.bytes.resize(before + length, 0);
            memory.read(address, &mut self.bytes[before..]);
        }
    }

    /// The packet, with a VLAN tag, which is its type and control information, put in if there is one.
    fn finish(mut self, context: &ContextOf, tag: Option<[u16; 2]>) -> Option<Packet> {
        if self.too_long {
            return None;
        }
        let mut checksum = None;
        let mut segmentation = None;
        match self.kind {
            Kind::Legacy { sum: None } => {}
            Kind::Legacy { sum: Some((start, offset)) } => {
                checksum = self.put_or_leave(Sum { start, offset, end: 0 });
            }
            Kind::Extended { cuts, ip_checksum, transport_checksum } => {
                let payload = self.bytes.len().saturating_sub(context.header.into());
                let cuts = cuts && context.is_tcp && context.segment > 0;
                if cuts {
                    self.complete_headers(context)?;
                }
                if ip_checksum {
                    self.put_sum(context.ip);
                }
                if transport_checksum || cuts {
                    checksum = self.put_or_leave(context.transport);
                }
                if cuts && payload > usize::from(context.segment) {
                    let kind = if context.is_ipv4 {
                        SegmentationKind::TcpV4
                    } else {
                        SegmentationKind::TcpV6
                    };
                    segmentation =
                        Some(Segmentation { kind, size: context.segment, congestion: false });
                }
            }
        }
        if let Some(tag) = tag
            && self.bytes.len() >= ADDRESSES_LEN
        {
            let tag = tag.map(u16::to_be_bytes);
            self.bytes.splice(ADDRESSES_LEN..ADDRESSES_LEN, tag.as_flattened().iter().copied());
            if let Some(at) = &mut checksum {
                at.start += VLAN_TAG_LEN as u16;
            }
        }
        Some(Packet { bytes: self.bytes, checksum, segmentation })
    }

    /// Puts what depends on the length into the headers, as it is before a packet is cut: the card would do so for each segment.
    fn complete_headers(&mut self, context: &ContextOf) -> Option<()> {
        let (ip, transport) = (usize::from(context.ip.start), context.transport.start.into());
        let ip_len = self.bytes.len().checked_sub(ip)?;
        let transport_len = self.bytes.len().checked_sub(transport)?;
        let (at, len) = if context.is_ipv4 {
            (ip + IPV4_LENGTH, ip_len)
        } else {
            (ip + IPV6_LENGTH, ip_len.checked_sub(IPV6_LEN)?)
        };
        let field = self.bytes.get_mut(at..)?.first_chunk_mut()?;
        *field = u16::try_from(len).ok()?.to_be_bytes();
        // Software has left the length out of the sum of the pseudo header.
        let at = usize::from(context.transport.offset);
        let field = self.bytes.get_mut(at..)?.first_chunk_mut()?;
        let sum = u64::from(u16::from_be_bytes(*field)) + transport_len as u64;
        *field = folded(sum).to_be_bytes();
        Some(())
    }

    /// A checksum up to the end of the packet is left to the network, and any other is put in.
    fn put_or_leave(&mut self, sum: Sum) -> Option<PartialChecksum> {
        let reaches_end = sum.end == 0 || usize::from(sum.end) + 1 >= self.bytes.len();
        let fits = usize::from(sum.offset) + 2 <= self.bytes.len();
        match sum.offset.checked_sub(sum.start) {
            Some(offset) if reaches_end && fits => {
                Some(PartialChecksum { start: sum.start.into(), offset: offset.into() })
            }
            _ => {
                self.put_sum(sum);
                None
            }
        }
    }

    /// Computes a checksum over what stands in its place, too.
    fn put_sum(&mut self, of: Sum) {
        let len = self.bytes.len();
        let end = if of.end == 0 { len } else { len.min(usize::from(of.end) + 1) };
        let Some(covered) = self.bytes.get(usize::from(of.start)..end) else { return };
        let value = !folded(sum(covered));
        let place = self.bytes.get_mut(usize::from(of.offset)..);
        if let Some(field) = place.and_then(<[u8]>::first_chunk_mut) {
            *field = value.to_be_bytes();
        }
    }
}

/// Both addresses of a frame, after which a tag comes (IEEE 802.1Q).
const ADDRESSES_LEN: usize = 12;
const VLAN_TAG_LEN: usize = 4;
// RFC 791, 3.1, and RFC 8200, 3.
const IPV4_LENGTH: usize = 2;
const IPV6_LENGTH: usize = 4;
const IPV6_LEN: usize = 40;
