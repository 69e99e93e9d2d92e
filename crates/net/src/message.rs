//! Packets as messages of a stream of bytes, in the format of QEMU's `-netdev stream`: each frame is preceded
//! by its length, 4 bytes with the most significant first.
//!
//! Two ends that know that both are ring3's send each packet unchanged, unfinished and large, preceded by the
//! header of [`Packet::offload_header`]. They find this out in a way that does not disturb QEMU: by
//! [notices](Notice), which are frames of a type for experiments (IEEE 802, 9.2.3) to an address that no card
//! has. An end that receives [`Notice::Hello`] sends [`Notice::Headers`], and then packets with headers.
//! Guests cannot send notices: such frames of theirs are dropped.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ring3_core::net::{MacAddress, OFFLOAD_HEADER_LEN, PACKET_MAX, Packet};

/// Bytes of the length that precedes a frame.
const LENGTH_LEN: usize = 4;

/// Upper bound of the bytes that QEMU sends at once (its NET_BUFSIZE). An end that sends more does not speak
/// this protocol.
const LENGTH_MAX: usize = 4096 + 65536;

/// Bytes that are read from a socket at once.
const BUFFER_LEN: usize = 128 << 10;

/// Destination, source and type of a notice.
const NOTICE: [u8; 14] = *b"\x02ring3\x02ring3\x88\xb5";

/// Bytes of the shortest Ethernet frame (IEEE 802.3, 4.4.2), without its check sequence.
const FRAME_MIN: usize = 60;

/// A notice from one end to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The sender is ready, and can receive packets with headers.
    Hello,
    /// The following packets have headers.
    Headers,
    /// The sender cannot work, for this reason.
    Failed(String),
    /// The sender is a card of a machine with this address.
    Address(MacAddress),
    /// The sender takes [short cuts](crate::switch) to other machines.
    ShortCuts,
    /// A descriptor comes with this notice: a connection to the machine with this address.
    ShortCut(MacAddress),
    /// To the switch: packets to the machine with this address go by the short cut from now on. From the
    /// switch: packets from this machine come by the short cut, and no more of them come by the switch.
    Turned(MacAddress),
    /// The packets that have come over the short cut from the machine with this address since the last such
    /// notice.
    Carried(MacAddress, Carried),
}

/// Counts of a short cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Packets that were accepted.
    pub(crate) packets: u64,
    /// Bytes of these packets.
    pub(crate) bytes: u64,
    /// Packets that were refused, since they were not between the two machines.
    pub(crate) refused: u64,
}

impl Notice {
    /// Returns the frame of the notice.
    pub(crate) fn to_frame(&self) -> Vec<u8> {
        let mut frame = NOTICE.to_vec();
        match self {
            Notice::Hello => frame.push(0),
            Notice::Headers => frame.push(1),
            Notice::Failed(text) => {
                frame.push(2);
                frame.extend(text.bytes().take(1000));
            }
            Notice::Address(address) => {
                frame.push(3);
                frame.extend(address.0);
            }
            Notice::ShortCuts => frame.push(4),
            Notice::ShortCut(address) => {
                frame.push(5);
                frame.extend(address.0);
            }
            Notice::Carried(address, Carried { packets, bytes, refused }) => {
                frame.push(6);
                frame.extend(address.0);
                for count in [packets, bytes, refused] {
                    frame.extend(count.to_be_bytes());
                }
            }
            Notice::Turned(address) => {
                frame.push(7);
                frame.extend(address.0);
            }
        }
        frame.resize(frame.len().max(FRAME_MIN), 0);
        frame
    }

    /// Returns the notice in `frame`, if it is a known one.
    fn from_frame(frame: &[u8]) -> Option<Notice> {
        match frame.strip_prefix(&NOTICE)? {
            [0, ..] => Some(Notice::Hello),
            [1, ..] => Some(Notice::Headers),
            [2, text @ ..] => {
                let text = String::from_utf8_lossy(text);
                Some(Notice::Failed(text.trim_end_matches('\0').to_owned()))
            }
            [3, rest @ ..] => Some(Notice::Address(MacAddress(*rest.first_chunk()?))),
            [4, ..] => Some(Notice::ShortCuts),
            [5, rest @ ..] => Some(Notice::ShortCut(MacAddress(*rest.first_chunk()?))),
            [6, rest @ ..] => {
                let (address, rest) = rest.split_first_chunk()?;
                let count = |index: usize| {
                    let bytes = rest.get(8 * index..)?.first_chunk()?;
                    Some(u64::from_be_bytes(*bytes))
                };
                let carried = Carried { packets: count(0)?, bytes: count(1)?, refused: count(2)? };
                Some(Notice::Carried(MacAddress(*address), carried))
            }
            [7, rest @ ..] => Some(Notice::Turned(MacAddress(*rest.first_chunk()?))),
            _ => None,
        }
    }
}

/// Returns whether `frame` is one that guests may not send.
pub(crate) fn is_notice(frame: &[u8]) -> bool {
    frame.starts_with(&NOTICE)
}

/// A message that was received over a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Packet(Packet),
    Notice(Notice),
}

/// Reads messages from a stream.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    stream: R,
    /// The bytes from `start` to `end` were read and not taken yet.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    with_headers: bool,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(stream: R) -> Reader<R> {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Reader { stream, buffer, start: 0, end: 0, with_headers: false }
    }

    /// Returns the stream itself.
    pub(crate) fn stream_mut(&mut self) -> &mut R {
        &mut self.stream
    }

    /// Returns whether the next message is complete, so that it need not be waited for.
    pub(crate) fn has_more(&self) -> bool {
        !matches!(self.message(), Ok(None))
    }

    /// Takes the next message; None at the end of the stream. Messages that can be no packet are skipped.
    /// After an error that says that nothing has come yet, the next call continues.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Received>> {
        loop {
            while let Some(message) = self.message()? {
                let (header, bytes) = match message.split_first_chunk() {
                    Some((header, bytes)) if self.with_headers => (*header, bytes.to_vec()),
                    _ => ([0; OFFLOAD_HEADER_LEN], message.to_vec()),
                };
                self.start += LENGTH_LEN + message.len();
                if let Some(received) = self.understand(header, bytes) {
                    return Ok(Some(received));
                }
            }
            if !self.fill()? {
                let is_whole = self.start == self.end;
                return if is_whole { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Reads more bytes into the buffer, which has less than a message. Returns false at the end of the
    /// stream.
    fn fill(&mut self) -> io::Result<bool> {
        if self.start > 0 && (self.start == self.end || self.end == BUFFER_LEN) {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
            }
        }
    }

    /// Returns the next message, if all of it was read.
    fn message(&self) -> io::Result<Option<&[u8]>> {
        let Some((length, rest)) = self.buffer[self.start..self.end].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > LENGTH_MAX {
            let text = format!("a message of {length} bytes cannot be a frame");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(rest.get(..length))
    }

    fn understand(&mut self, header: [u8; OFFLOAD_HEADER_LEN], bytes: Vec<u8>) -> Option<Received> {
        if let Some(notice) = Notice::from_frame(&bytes) {
            self.with_headers |= notice == Notice::Headers;
            return Some(Received::Notice(notice));
        }
        if bytes.is_empty() || bytes.len() > PACKET_MAX {
            return None;
        }
        Packet::with_offload_header(header, bytes).map(Received::Packet)
    }
}

/// A message to be sent, or the rest of it.
#[derive(Debug)]
pub(crate) struct Message {
    /// In a stream: the length, and the header if there is one.
    head: [u8; LENGTH_LEN + OFFLOAD_HEADER_LEN],
    head_len: usize,
    bytes: Vec<u8>,
    /// Number of bytes that were sent.
    gone: usize,
    /// A descriptor that is sent with the first byte.
    descriptor: Option<OwnedFd>,
    /// Whether it is a notice, on which the messages after it rely.
    is_notice: bool,
}

impl Message {
    /// Returns a message for datagrams.
    pub(crate) fn datagram(bytes: Vec<u8>) -> Message {
        let head = Default::default();
        Message { head, head_len: 0, bytes, gone: 0, descriptor: None, is_notice: false }
    }

    /// Returns a frame for a stream.
    pub(crate) fn frame(bytes: Vec<u8>) -> Message {
        let mut message = Message::datagram(bytes);
        message.set_length(LENGTH_LEN);
        message
    }

    /// Returns a packet with a header for a stream.
    pub(crate) fn with_header(packet: Packet) -> Message {
        let header = packet.offload_header();
        let mut message = Message::datagram(packet.bytes);
        message.set_length(LENGTH_LEN + OFFLOAD_HEADER_LEN);
        message.head[LENGTH_LEN..].copy_from_slice(&header);
        message
    }

    fn set_length(&mut self, head_len: usize) {
        self.head_len = head_len;
        let length = (self.left() - LENGTH_LEN) as u32;
        self.head[..LENGTH_LEN].copy_from_slice(&length.to_be_bytes());
    }

    /// Returns the message as a notice.
    pub(crate) fn into_notice(self) -> Message {
        Message { is_notice: true, ..self }
    }

    /// Returns the message with a descriptor that is sent with it.
    pub(crate) fn with_descriptor(self, descriptor: OwnedFd) -> Message {
        Message { descriptor: Some(descriptor), ..self }
    }

    /// Returns the descriptor if it has yet to be sent.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Returns the number of bytes that have yet to be sent.
    pub(crate) fn left(&self) -> usize {
        self.head_len + self.bytes.len() - self.gone
    }

    /// Returns whether a part of the message was sent, so that the rest must follow.
    pub(crate) fn has_begun(&self) -> bool {
        self.gone > 0
    }

    /// Returns whether the other side can do without the message.
    pub(crate) fn may_be_lost(&self) -> bool {
        !self.has_begun() && !self.is_notice
    }

    /// Notes that `count` more bytes were sent.
    pub(crate) fn advance(&mut self, count: usize) {
        self.gone += count;
        if self.has_begun() {
            self.descriptor = None;
        }
    }

    /// Returns the bytes that have yet to be sent: those of the head, and those of the frame.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        let head = &self.head[self.gone.min(self.head_len)..self.head_len];
        [head, &self.bytes[self.gone.saturating_sub(self.head_len)..]]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring3_core::net::PartialChecksum;

    use super::*;

    fn bytes(messages: &[Message]) -> Vec<u8> {
        messages.iter().flat_map(Message::parts).collect::<Vec<_>>().concat()
    }

    fn all(stream: &[u8]) -> io::Result<Vec<Received>> {
        let mut reader = Reader::new(stream);
        std::iter::from_fn(|| reader.receive().transpose()).collect()
    }

    fn frame(bytes: Vec<u8>) -> Received {
        Received::Packet(Packet::frame(bytes))
    }

    #[test]
    fn a_frame_follows_its_length() {
        let messages = [Message::frame(vec![9; 258]), Message::frame(vec![8])];
        let stream = bytes(&messages);
        assert_eq!(stream, [&[0, 0, 1, 2][..], &[9; 258], &[0, 0, 0, 1, 8]].concat());
        assert_eq!(all(&stream).unwrap(), [frame(vec![9; 258]), frame(vec![8])]);
    }

    #[test]
    fn unfinished_packets_are_sent_once_both_sides_accept_them() {
        let checksum = Some(PartialChecksum { start: 34, offset: 6 });
        let packet = Packet { bytes: vec![3; 64], checksum, segmentation: None };
        let failed = Notice::Failed("why".into());
        let count = Carried { packets: 1, bytes: 1 << 40, refused: 3 };
        let carried = Notice::Carried(MacAddress([2, 0, 0, 0, 0, 7]), count);
        let stream = bytes(&[
            Message::frame(Notice::Hello.to_frame()),
            Message::frame(vec![1; 60]),
            Message::frame(Notice::Headers.to_frame()),
            Message::with_header(packet.clone()),
            Message::with_header(Packet::frame(failed.to_frame())),
            Message::with_header(Packet::frame(carried.to_frame())),
        ]);
        let expected = [
            Received::Notice(Notice::Hello),
            frame(vec![1; 60]),
            Received::Notice(Notice::Headers),
            Received::Packet(packet),
            Received::Notice(failed),
            Received::Notice(carried),
        ];
        assert_eq!(all(&stream).unwrap(), expected);
        assert!(is_notice(&Notice::Headers.to_frame()) && !is_notice(&[0; 60]));
    }

    #[test]
    fn a_message_can_go_in_parts() {
        let mut message = Message::with_header(Packet::frame(vec![5; 20]));
        let whole = message.parts().concat();
        for sent in 0..whole.len() {
            assert_eq!(
                (message.parts().concat(), message.left()),
                (whole[sent..].to_vec(), whole.len() - sent)
            );
            message.advance(1);
        }
        assert_eq!(message.left(), 0);
    }

    #[test]
    fn an_invalid_frame_ends_the_connection() {
        let mut too_long = vec![0, 1, 16, 1];
        too_long.resize(70_000, 0);
        assert_eq!(all(&too_long).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let cut_off = [0, 0, 0, 3, 1, 2];
        assert_eq!(all(&cut_off).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(all(&cut_off[..2]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // Messages without bytes are no messages, and those that are too large for a card are skipped.
        let odd =
            [Message::frame(vec![]), Message::frame(vec![0; LENGTH_MAX]), Message::frame(vec![5])];
        assert_eq!(all(&bytes(&odd)).unwrap(), [frame(vec![5])]);
    }

    proptest! {
        /// Whatever arrives, it is read in time, or refused.
        #[test]
        fn any_bytes_are_accepted_without_a_panic(bytes_of_peer: Vec<u8>, with_headers: bool) {
            let mut stream = Vec::new();
            if with_headers {
                stream = bytes(&[Message::frame(Notice::Headers.to_frame())]);
            }
            stream.extend(bytes(&[Message::frame(bytes_of_peer.clone())]));
            stream.extend(bytes_of_peer);
            let _ = all(&stream);
        }
    }
}
