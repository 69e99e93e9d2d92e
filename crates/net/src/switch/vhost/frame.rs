//! A packet in its sender's memory, that of a guest.

use ring3_core::net::{OFFLOAD_HEADER_LEN, PACKET_MAX, Packet};
use ring3_vhost::chain::Buffers;
use vm_memory::GuestMemoryMmap;

use super::pieces::{Cursor, Pieces};

/// Number of bytes of a packet that are copied to be examined: all headers, except very unusual ones.
const START: usize = 192;

/// See the module. The guest may change it at any time, except for the bytes that were copied.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    header: [u8; OFFLOAD_HEADER_LEN],
    start: Vec<u8>,
    /// The bytes of the packet, with its header.
    pieces: Pieces<'a>,
    header_len: usize,
}

impl<'a> Frame<'a> {
    /// Returns the packet in a chain, after a header of `header_len` bytes. Returns None if the chain has no
    /// packet that can be sent.
    pub(super) fn read(
        memory: &'a GuestMemoryMmap,
        buffers: &Buffers,
        header_len: usize,
    ) -> Option<Frame<'a>> {
        let mut pieces = Pieces::default();
        if !buffers.writable.is_empty()
            || !pieces.add(memory, &buffers.readable, header_len + PACKET_MAX)
        {
            return None;
        }
        let mut header = [0; OFFLOAD_HEADER_LEN];
        let mut start = vec![0; pieces.len().checked_sub(header_len)?.min(START)];
        pieces.from(0).read(&mut header);
        pieces.from(header_len).read(&mut start);
        Some(Frame { header, start, pieces, header_len })
    }

    /// Returns the number of bytes of the packet.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len() - self.header_len
    }

    /// Returns the packet with only its first bytes, from which it can be seen what to do with it. Returns
    /// None if they do not say.
    pub(crate) fn start(&self) -> Option<Packet> {
        Packet::with_offload_header(self.header, self.start.clone())
    }

    /// Returns the bytes that follow [`Frame::start`].
    pub(super) fn rest(&self) -> Cursor<'_, 'a> {
        self.pieces.from(self.header_len + self.start.len())
    }

    /// Returns a copy of the packet, or None if its header does not fit it.
    pub(crate) fn to_packet(&self) -> Option<Packet> {
        let mut bytes = vec![0; self.len()];
        bytes[..self.start.len()].copy_from_slice(&self.start);
        self.rest().read(&mut bytes[self.start.len()..]);
        Packet::with_offload_header(self.header, bytes)
    }
}
