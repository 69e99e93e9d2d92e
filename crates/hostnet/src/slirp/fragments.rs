//! Fragments of IPv4 datagrams, put together before libslirp sees them.
//!
//! libslirp has a reassembly of its own, in which versions up to 4.7 at least write beyond a buffer when a last fragment comes alone.
//! So it is given whole datagrams only. What is done with fragments is that of RFC 791 (3.2) with the rules of RFC 5722 (3): a datagram whose
//! fragments overlap is dropped with all that comes of it later.
//!
//! Memory is bounded by [`DATAGRAMS_MAX`], [`BYTES_MAX`] and [`GAPS_MAX`], time by [`PATIENCE`]. Time is an argument, so the same frames at the same times have the
//! same result.

use std::borrow::Cow;
use std::time::Duration;

use super::packet::{ETHERNET_LEN, Ipv4, set_checksum};

/// Datagrams that are not whole, at most.
const DATAGRAMS_MAX: usize = 64;
/// Bytes that are kept of them, at most.
const BYTES_MAX: usize = 1 << 20;
/// Pieces of a datagram with gaps between them, at most. A datagram of 64 KiB in frames of 1500 bytes has 45 fragments, which in the worst order leave 22 gaps.
const GAPS_MAX: usize = 64;
/// How long a datagram waits for its other fragments (RFC 1122, 3.3.2, has 60 to 120 seconds, Linux 30).
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of a datagram with its header.
const DATAGRAM_MAX: usize = 65535;

/// Which fragments belong together (RFC 791, 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    identification: u16,
}

/// A datagram that is not whole.
#[derive(Debug)]
struct Datagram {
    key: Key,
    since: Duration,
    /// The Ethernet and IP headers of the first fragment, if that has come.
    headers: Option<Vec<u8>>,
    /// Its payload, with zeros for what has not come.
    payload: Vec<u8>,
    /// What of the payload has come: begins and ends, in order, with a gap between each two.
    pieces: Vec<(usize, usize)>,
    /// Bytes of the whole payload, if the last fragment has come.
    len: Option<usize>,
    /// Its fragments contradict each other: whatever comes of it is dropped.
    is_bad: bool,
}

impl Datagram {
    fn new(key: Key, since: Duration) -> Datagram {
        let (payload, pieces) = (Vec::new(), Vec::new());
        Datagram { key, since, headers: None, payload, pieces, len: None, is_bad: false }
    }

    /// Adds a fragment. False where it contradicts what has come.
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
        // The first piece that does not end before this one begins.
        let at = self.pieces.partition_point(|(_, end)| *end <= begin);
        if let Some((other_begin, other_end)) = self.pieces.get(at)
            && *other_begin < end
        {
            // Networks duplicate fragments; one that says the same again is no overlap (RFC 8200, 4.5).
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

    /// All of it has come.
    fn is_whole(&self) -> bool {
        let all = self.len.map(|len| (0, len));
        self.headers.is_some() && self.pieces.len() == 1 && self.pieces.first().copied() == all
    }

    /// Forgets what has come of it, but not that it is bad.
    fn spoil(&mut self) {
        *self = Datagram { is_bad: true, ..Datagram::new(self.key, self.since) };
    }

    /// The frame with the whole datagram.
    fn into_frame(self) -> Vec<u8> {
        let mut frame = self.headers.unwrap_or_default();
        frame.extend(self.payload);
        let len = (frame.len() - ETHERNET_LEN) as u16;
        let ip = &mut frame[ETHERNET_LEN..];
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        // No fragment any more; "don't fragment" is left as it is.
        ip[6] &= 0x40;
        ip[7] = 0;
        set_checksum(ip);
        frame
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    /// The oldest first.
    datagrams: Vec<Datagram>,
}

impl Fragments {
    /// Takes a frame with a sound IPv4 header, at the time `now` since the network began: the frame itself if it is whole, the whole datagram if this was what it
    /// lacked, or none if it is kept or dropped.
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

    /// What is kept.
    fn bytes(&self) -> usize {
        self.datagrams.iter().map(|datagram| datagram.payload.capacity()).sum()
    }
}

#[cfg(test)]
mod tests;
