//! Reassembles fragments of IPv4 datagrams before libslirp sees them.
//!
//! libslirp has a reassembly of its own, which up to version 4.7 at least writes beyond a buffer when a last
//! fragment comes alone. So libslirp receives only whole datagrams. The reassembly here follows RFC 791 (3.2)
//! with the rules of RFC 5722 (3): a datagram whose fragments overlap is dropped together with all its later
//! fragments.
//!
//! Memory is bounded by [`DATAGRAMS_MAX`], [`BYTES_MAX`] and [`GAPS_MAX`], and time by [`PATIENCE`]. Time is
//! an argument, so the same frames at the same times have the same result.

use std::borrow::Cow;
use std::time::Duration;

use super::packet::{ETHERNET_LEN, Ipv4, set_checksum};

/// The most incomplete datagrams that are kept.
const DATAGRAMS_MAX: usize = 64;
/// The most bytes that are kept of incomplete datagrams.
const BYTES_MAX: usize = 1 << 20;
/// The most pieces of a datagram with gaps between them. A datagram of 64 KiB in frames of 1500 bytes has 45
/// fragments, which leave 22 gaps in the worst order.
const GAPS_MAX: usize = 64;
/// How long a datagram waits for its other fragments (RFC 1122, 3.3.2, says 60 to 120 seconds; Linux uses
/// 30).
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest datagram with its header, in bytes.
const DATAGRAM_MAX: usize = 65535;

/// Identifies the fragments that belong together (RFC 791, 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    identification: u16,
}

/// An incomplete datagram.
#[derive(Debug)]
struct Datagram {
    key: Key,
    since: Duration,
    /// The Ethernet and IP headers of the first fragment, if that has arrived.
    headers: Option<Vec<u8>>,
    /// The payload, with zeros for missing parts.
    payload: Vec<u8>,
    /// Beginning and end of each piece of the payload that has arrived, in order, with gaps between them.
    pieces: Vec<(usize, usize)>,
    /// The length of the whole payload in bytes, if the last fragment has arrived.
    len: Option<usize>,
    /// Whether the fragments contradict each other, so that all further ones are dropped.
    is_bad: bool,
}

impl Datagram {
    fn new(key: Key, since: Duration) -> Datagram {
        let (payload, pieces) = (Vec::new(), Vec::new());
        Datagram { key, since, headers: None, payload, pieces, len: None, is_bad: false }
    }

    /// Adds a fragment. Returns false if it contradicts earlier ones.
    fn add(&mut self, ip: &Ipv4<'_>) -> bool {
        let (begin, bytes) = (ip.offset(), ip.payload());
        let end = begin + bytes.len();
        let last_end = self.pieces.last().map_or(0, |(_, end)| *end);
        let fits = match (self.len, ip.has_more_fragments()) {
            (Some(len), false) => end == len,
            (Some(len), true) => end <= len,
            (None, false) => end >= last_end,
            (None, true) => true,
        };
        if !fits {
            return false;
        }
        // The first piece that does not end before this fragment begins.
        let at = self.pieces.partition_point(|(_, end)| *end <= begin);
        if let Some((other_begin, other_end)) = self.pieces.get(at)
            && *other_begin < end
        {
            // Networks duplicate fragments; an identical copy is no overlap (RFC 8200, 4.5).
            let is_inside = *other_begin <= begin && end <= *other_end;
            return is_inside && self.payload[begin..end] == *bytes;
        }
        if !ip.has_more_fragments() {
            self.len = Some(end);
        }
        if begin == 0 {
            self.headers = Some(ip.headers().to_vec());
        }
        if self.payload.len() < end {
            self.payload.resize(end, 0);
        }
        self.payload[begin..end].copy_from_slice(bytes);
        let joins_before = at > 0 && self.pieces[at - 1].1 == begin;
        let joins_behind = self.pieces.get(at).is_some_and(|(other, _)| *other == end);
        match (joins_before, joins_behind) {
            (true, true) => self.pieces[at - 1].1 = self.pieces.remove(at).1,
            (true, false) => self.pieces[at - 1].1 = end,
            (false, true) => self.pieces[at].0 = begin,
            (false, false) => self.pieces.insert(at, (begin, end)),
        }
        let header_len = self.headers.as_ref().map_or(0, |headers| headers.len() - ETHERNET_LEN);
        self.pieces.len() <= GAPS_MAX && header_len + self.payload.len() <= DATAGRAM_MAX
    }

    /// Returns whether all fragments have arrived.
    fn is_whole(&self) -> bool {
        let all = self.len.map(|len| (0, len));
        self.headers.is_some() && self.pieces.len() == 1 && self.pieces.first().copied() == all
    }

    /// Drops all pieces of the datagram, and remembers that it is bad.
    fn spoil(&mut self) {
        *self = Datagram { is_bad: true, ..Datagram::new(self.key, self.since) };
    }

    /// Returns the frame with the whole datagram.
    fn into_frame(self) -> Vec<u8> {
        let mut frame = self.headers.unwrap_or_default();
        frame.extend(self.payload);
        let len = (frame.len() - ETHERNET_LEN) as u16;
        let ip = &mut frame[ETHERNET_LEN..];
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        // This clears the fragment fields and leaves "don't fragment" as it is.
        ip[6] &= 0x40;
        ip[7] = 0;
        set_checksum(ip);
        frame
    }
}

/// The incomplete datagrams of a network.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// The datagrams, the oldest first.
    datagrams: Vec<Datagram>,
}

impl Fragments {
    /// Takes a frame with a sound IPv4 header, at the time `now` since the network began. Returns the frame
    /// itself if it is no fragment, the whole datagram if this fragment completes it, and None if the
    /// fragment is kept or dropped.
    pub(super) fn take<'a>(
        &mut self,
        frame: &'a [u8],
        ip: &Ipv4<'_>,
        now: Duration,
    ) -> Option<Cow<'a, [u8]>> {
        if !ip.is_fragment() {
            return Some(Cow::Borrowed(frame));
        }
        self.datagrams.retain(|datagram| now.saturating_sub(datagram.since) < PATIENCE);
        let len = ip.payload().len();
        let is_sound = len > 0
            && (!ip.has_more_fragments() || len.is_multiple_of(8))
            && ip.header_len() + ip.offset() + len <= DATAGRAM_MAX;
        if !is_sound || ip.has_reserved_flag() {
            return None;
        }
        let key = Key {
            source: ip.source(),
            destination: ip.destination(),
            protocol: ip.protocol(),
            identification: ip.identification(),
        };
        let at = self.datagrams.iter().position(|datagram| datagram.key == key);
        let at = at.unwrap_or_else(|| {
            if self.datagrams.len() == DATAGRAMS_MAX {
                self.datagrams.remove(0);
            }
            self.datagrams.push(Datagram::new(key, now));
            self.datagrams.len() - 1
        });
        let datagram = &mut self.datagrams[at];
        if datagram.is_bad {
            return None;
        }
        if !datagram.add(ip) {
            datagram.spoil();
            return None;
        }
        if datagram.is_whole() {
            return Some(Cow::Owned(self.datagrams.remove(at).into_frame()));
        }
        while self.bytes() > BYTES_MAX {
            self.datagrams.remove(0);
        }
        None
    }

    /// Returns the number of bytes that are kept.
    fn bytes(&self) -> usize {
        self.datagrams.iter().map(|datagram| datagram.payload.capacity()).sum()
    }
}

#[cfg(test)]
mod tests;
