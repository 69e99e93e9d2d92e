//! A packet where its sender has it, in a guest's memory.

use ring3_core::net::{OFFLOAD_HEADER_LEN, PACKET_MAX, Packet};
use ring3_vhost::chain::Buffers;
use vm_memory::GuestMemoryMmap;

use super::pieces::{Cursor, Pieces};

/// So many bytes of a packet are copied to be looked at: all headers of all but the strangest ones.
const START: usize = 192;

/// See the module. The guest may change it at any time, but for what was copied.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    header: [u8; OFFLOAD_HEADER_LEN],
    start: Vec<u8>,
    /// With the header.
    pieces: Pieces<'a>,
    header_len: usize,
}

impl<'a> Frame<'a> {
    /// The packet in a chain, behind a header of `header_len` bytes. None if it is no chain of a packet that can be sent.
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

    /// Bytes of the packet.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len() - self.header_len
    }

    /// The packet with its first bytes alone, for which it can be told what is to be done with it; none if they do not say that.
    pub(crate) fn start(&self) -> Option<Packet> {
        Packet::with_offload_header(self.header, self.start.clone())
    }

    /// What is behind [`Frame::start`].
    pub(super) fn rest(&self) -> Cursor<'_, 'a> {
        self.pieces.from(self.header_len + self.start.len())
    }

    /// A copy of the packet; none if its header does not fit it.
    pub(crate) fn to_packet(&self) -> Option<Packet> {
        let mut bytes = vec![0; self.len()];
        bytes[..self.start.len()].copy_from_slice(&self.start);
        self.rest().read(&mut bytes[self.start.len()..]);
        Packet::with_offload_header(self.header, bytes)
    }
}
