//! Reception (chapter 3): which packets are for this card, and how they come into the buffers of a ring.

use ring3_core::memory::Memory;
use ring3_core::net::{MacAddress, Offloads, Packet};

use super::file::File;
use super::registers::statistics;
use super::registers::{
    self as r, ADDRESS_VALID, MTA, MTA_LEN, RAH, RAL, RECEIVE_ADDRESSES, VFTA, VFTA_LEN, rctl,
};
use super::ring::Ring;

/// Bytes of the check sequence at the end of a frame.
const CHECK_SEQUENCE_LEN: usize = 4;
/// Bytes of the shortest and of the longest frame without it, with room for a tag (IEEE 802.3, 3.2.7).
const SHORTEST: usize = 60;
const LONGEST: usize = 1518;
/// The same where long packets are accepted (RCTL.LPE): 16 KiB with the check sequence.
const LONGEST_LONG: usize = 16384 - CHECK_SEQUENCE_LEN;
/// Both addresses, after which a tag comes (IEEE 802.1Q).
const ADDRESSES_LEN: usize = 12;
const VLAN_TAG_LEN: usize = 4;
const VLAN_ID: u16 = 0x0fff;

/// Status bits of a descriptor.
const DONE: u8 = 1 << 0;
const END: u8 = 1 << 1;
const CHECKSUM_IGNORED: u8 = 1 << 2;
const HAS_TAG: u8 = 1 << 3;
const TRANSPORT_CHECKED: u8 = 1 << 5;
const IP_CHECKED: u8 = 1 << 6;

/// In RXCSUM: the card tells of the checksums of TCP and UDP (TUOFLD).
const TRANSPORT_OFFLOAD: u32 = 1 << 9;

/// A frame as it comes into memory.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Frame {
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    tag: Option<u16>,
    /// The card has computed its checksum and so knows that it is right.
    is_checked: bool,
}

/// What became of a frame.
pub(super) enum Delivery {
    Done,
    /// There are too few buffers.
    Waits,
    /// It needs more than there can be.
    Lost,
}

impl Frame {
    /// What it is.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The frames of which `packet` consists where it comes out of the cable, those that the registers let pass.
    pub(super) fn from_packet(packet: Packet, file: &mut File, mut give: impl FnMut(Frame)) {
        let is_checked = packet.checksum.is_some();
        packet.without_offloads(Offloads::default(), |packet| {
            if let Some(frame) = Frame::accepted(packet.bytes, is_checked, file) {
                give(frame);
            }
        });
    }

    fn accepted(mut bytes: Vec<u8>, is_checked: bool, file: &mut File) -> Option<Frame> {
        let control = file.get(r::RCTL);
        let destination = bytes.first_chunk().copied().map(MacAddress)?;
        if control & rctl::ENABLE == 0 || !passes(destination, file) {
            return None;
        }
        let longest = if control & rctl::LONG_PACKETS != 0 { LONGEST_LONG } else { LONGEST };
        if bytes.len() > longest {
            file.count(statistics::TOO_LONG, 1);
            return None;
        }
        let tag = vlan_tag(&bytes, file);
        if let Some(tag) = tag
            && control & rctl::VLAN_FILTER != 0
        {
            let id = u32::from(tag & VLAN_ID);
            if file.get(VFTA + 4 * (id >> 5 & (VFTA_LEN - 1))) >> (id & 31) & 1 == 0 {
                return None;
            }
        }
        let strips = tag.is_some() && file.get(r::CTRL) & r::ctrl::VLAN_MODE != 0;
        file.count_received(destination, bytes.len() + CHECK_SEQUENCE_LEN);
        if bytes.len() < SHORTEST {
            bytes.resize(SHORTEST, 0);
        }
        if strips {
            bytes.drain(ADDRESSES_LEN..ADDRESSES_LEN + VLAN_TAG_LEN);
        }
        if control & rctl::STRIP_CHECK_SEQUENCE == 0 {
            bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        }
        Some(Frame { bytes, tag: tag.filter(|_| strips), is_checked })
    }

    /// Writes it into the buffers of `ring`, as many as it takes.
    pub(super) fn deliver(&self, memory: &mut Memory, ring: &mut Ring, file: &File) -> Delivery {
        let size = buffer_size(file.get(r::RCTL));
        let needed = self.bytes.len().div_ceil(size) as u32;
        if needed >= ring.size() {
            return Delivery::Lost;
        }
        if needed > ring.available() {
            return Delivery::Waits;
        }
        let checked = file.get(r::RXCSUM) & TRANSPORT_OFFLOAD != 0 && self.is_checked;
        let found = if checked { TRANSPORT_CHECKED | IP_CHECKED } else { CHECKSUM_IGNORED };
        let mut rest = self.bytes.as_slice();
        while let Some(part) =
            rest.split_off(..rest.len().min(size)).filter(|part| !part.is_empty())
        {
            let at = ring.address_of_head();
            let mut buffer = [0; 8];
            memory.read(at, &mut buffer);
            memory.write(u64::from_le_bytes(buffer), part);
            let (end, tagged) = (rest.is_empty(), self.tag.is_some());
            let status =
                DONE | if end { END | found } else { 0 } | if end && tagged { HAS_TAG } else { 0 };
            let [length_low, length_high] = (part.len() as u16).to_le_bytes();
            let [tag_low, tag_high] = self.tag.unwrap_or_default().to_le_bytes();
            // No packet checksum, and no errors.
            let written = [length_low, length_high, 0, 0, status, 0, tag_low, tag_high];
            memory.write(at.wrapping_add(8), &written);
            ring.advance();
        }
        Delivery::Done
    }
}

/// Bytes of each buffer (RCTL.BSIZE and BSEX).
fn buffer_size(control: u32) -> usize {
    let shift = control >> rctl::BUFFER_SIZE_SHIFT & 3;
    match (control & rctl::BUFFERS_EXTENDED != 0, shift) {
        (true, 1..) => 32768 >> shift,
        _ => 2048 >> shift,
    }
}

/// True if so few descriptors are left that software wants to know: a half, a quarter or an eighth of them.
pub(super) fn has_few_buffers(ring: &Ring, control: u32) -> bool {
    let shift = (control >> rctl::THRESHOLD_SHIFT & 3) + 1;
    ring.available() <= ring.size() >> shift.min(3)
}

/// The filters (chapter 3, packet address filtering).
fn passes(destination: MacAddress, file: &File) -> bool {
    let control = file.get(r::RCTL);
    if destination == MacAddress::BROADCAST {
        return control & (rctl::BROADCASTS | rctl::MULTICAST_PROMISCUOUS) != 0;
    }
    let all = if destination.is_group() {
        rctl::MULTICAST_PROMISCUOUS
    } else {
        rctl::UNICAST_PROMISCUOUS
    };
    let is_exact = (0..RECEIVE_ADDRESSES).any(|number| {
        let (low, high) = (file.get(RAL + 8 * number), file.get(RAH + 8 * number));
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        high & ADDRESS_VALID != 0 && destination.0 == [a, b, c, d, e, f]
    });
    control & all != 0 || is_exact || destination.is_group() && is_in_table(destination, file)
}

/// The multicast table has a bit for it: for twelve bits of the address, from one of four places (RCTL.MO).
fn is_in_table(destination: MacAddress, file: &File) -> bool {
    let last = u32::from(u16::from_le_bytes([destination.0[4], destination.0[5]]));
    let shift = match file.get(r::RCTL) >> rctl::MULTICAST_OFFSET_SHIFT & 3 {
        0 => 4,
        1 => 3,
        2 => 2,
        _ => 0,
    };
    let hash = last >> shift & 0xfff;
    file.get(MTA + 4 * (hash >> 5 & (MTA_LEN - 1))) >> (hash & 31) & 1 != 0
}

/// The tag of a frame that has one.
fn vlan_tag(bytes: &[u8], file: &File) -> Option<u16> {
    let [high, low, tag_high, tag_low] = *bytes.get(ADDRESSES_LEN..)?.first_chunk()?;
    let is_tagged = u32::from(u16::from_be_bytes([high, low])) == file.get(r::VET);
    is_tagged.then_some(u16::from_be_bytes([tag_high, tag_low]))
}
