//! Requests and replies, as they are sent: doc/proto.md, "Transmission phase". Numbers are big-endian.

use std::io::{self, BufReader, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use ring3_host::stream::Stream;

use super::protocol::*;
use super::stream::{self, Incoming, PATIENCE};
use crate::bytes::{be32, be64};

/// Upper bound of the bytes in a reply to an option, and of those beside data in a reply to a request.
pub(super) const REPLY_MAX: u32 = 16 << 10;
/// Upper bound of the replies to an option, and of the parts of a reply to a request.
pub(super) const PARTS_MAX: u32 = 0x1_0000;
/// Number of bytes that are read from the host at once: several short replies.
const BUFFER: usize = 16 << 10;

pub(super) fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("the NBD server does not keep to the protocol: {}", what.into()),
    )
}

pub(super) fn refused(what: &str) -> io::Error {
    io::Error::other(format!("the NBD server {what}"))
}

/// A request to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) command: Command,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// The data to be written.
    pub(super) data: &'a [u8],
    /// The number of the context for a request for block status.
    pub(super) context: Option<u32>,
}

impl Request<'_> {
    /// Returns a request without data.
    pub(super) fn new(command: Command, offset: u64, len: u32) -> Request<'static> {
        Request { command, offset, len, data: &[], context: None }
    }

    pub(super) fn send(&self, number: u64, stream: &Stream) -> io::Result<()> {
        let mut head = Vec::with_capacity(28);
        head.extend(REQUEST.to_be_bytes());
        head.extend([0, 0]);
        head.extend((self.command as u16).to_be_bytes());
        head.extend(number.to_be_bytes());
        head.extend(self.offset.to_be_bytes());
        head.extend(self.len.to_be_bytes());
        stream::send(stream, &head, self.data)
    }
}

/// The receiving side of a connection. One thread at a time reads from it.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: Arc<Stream>,
    incoming: BufReader<Incoming>,
}

/// The header of a reply, or of a part of one.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) number: u64,
    /// Type and length of a part of a structured reply. None for a simple reply.
    part: Option<(u16, u32)>,
    /// The error number of a simple reply.
    error: u32,
    /// Whether this is the last part of the reply.
    is_last: bool,
}

impl Wire {
    /// Returns the receiving side for the handshake, in which the server must answer soon. The log calls the
    /// server `name`.
    pub(super) fn new(stream: Arc<Stream>, name: String) -> io::Result<Wire> {
        let patience = Some(PATIENCE);
        stream.set_write_patience(patience)?;
        let incoming = Incoming { stream: Arc::clone(&stream), name, patience };
        Ok(Wire { stream, incoming: BufReader::with_capacity(BUFFER, incoming) })
    }

    /// Sets how long the server may send nothing from now on.
    pub(super) fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.incoming.get_mut().patience = patience;
        self.stream.set_write_patience(patience)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.incoming.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection")
            }
            _ => error,
        })
    }

    pub(super) fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn take_vec(&mut self, len: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Waits for the header of a reply, or of a part of one.
    pub(super) fn head(&mut self) -> io::Result<Head> {
        match u32::from_be_bytes(self.take()?) {
            SIMPLE_REPLY => {
                let rest: [u8; 12] = self.take()?;
                let (error, number) = (be32(&rest, 0), be64(&rest, 4));
                Ok(Head { number, part: None, error, is_last: true })
            }
            STRUCTURED_REPLY => {
                let rest: [u8; 16] = self.take()?;
                let is_last = u16::from_be_bytes([rest[0], rest[1]]) & DONE != 0;
                let part = (u16::from_be_bytes([rest[2], rest[3]]), be32(&rest, 12));
                Ok(Head { number: be64(&rest, 4), part: Some(part), error: 0, is_last })
            }
            _ => Err(wrong("no reply")),
        }
    }
}

/// The parts of an answer to a request that have come so far.
#[derive(Debug)]
pub(super) struct Answer {
    command: Command,
    offset: u64,
    len: u32,
    context: Option<u32>,
    /// Number of data bytes that have yet to come.
    missing: u32,
    parts: u32,
    error: u32,
    /// For a request for block status: whether there are data, and for how many bytes this is so.
    status: Option<(bool, u64)>,
    pub(super) is_complete: bool,
}

impl Answer {
    /// Returns the answer to `request` before anything has come.
    pub(super) fn new(request: &Request<'_>) -> Answer {
        let Request { command, offset, len, context, .. } = *request;
        let missing = if command == Command::Read { len } else { 0 };
        Answer {
            command,
            offset,
            len,
            context,
            missing,
            parts: 0,
            error: 0,
            status: None,
            is_complete: false,
        }
    }

    /// Reads the rest of a reply, or of a part of one, after its header. Data go to their place in `bytes`,
    /// which has room for all data of the request.
    pub(super) fn take(
        &mut self,
        head: &Head,
        wire: &mut Wire,
        bytes: &mut [u8],
    ) -> io::Result<()> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(wrong("a reply in too many parts"));
        }
        match head.part {
            None if head.error != 0 => self.error = head.error,
            None if self.command == Command::Read => {
                self.data(self.offset, self.len, bytes, |part| wire.fill(part))?;
            }
            None | Some((part::NONE, 0)) => {}
            Some((part::DATA, len)) if len > 8 => {
                let at = u64::from_be_bytes(wire.take()?);
                self.data(at, len - 8, bytes, |part| wire.fill(part))?;
            }
            Some((part::HOLE, 12)) => {
                let hole: [u8; 12] = wire.take()?;
                self.data(be64(&hole, 0), be32(&hole, 8), bytes, |part| {
                    part.fill(0);
                    Ok(())
                })?;
            }
            Some((part::BLOCK_STATUS, len)) if (12..=REPLY_MAX).contains(&len) => {
                let status = wire.take_vec(len)?;
                if self.command != Command::BlockStatus {
                    return Err(wrong("a status that was not asked for"));
                }
                if Some(be32(&status, 0)) == self.context {
                    let is_data = be32(&status, 8) & READS_AS_ZERO == 0;
                    self.status = Some((is_data, u64::from(be32(&status, 4))));
                }
            }
            Some((kind, len)) if kind & part::ERROR != 0 && (6..=REPLY_MAX).contains(&len) => {
                self.error = be32(&wire.take_vec(len)?, 0).max(1);
            }
            Some((kind, len)) => {
                return Err(wrong(format!("a part of a reply of type {kind} with {len} bytes")));
            }
        }
        self.is_complete = head.is_last;
        if self.is_complete && self.error == 0 && self.missing > 0 {
            return Err(wrong("data that do not come"));
        }
        Ok(())
    }

    /// Calls `fill` for the place of `len` bytes from `at` on, after checking that they belong to the
    /// request.
    fn data(
        &mut self,
        at: u64,
        len: u32,
        bytes: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = self.offset + u64::from(self.len);
        let is_inside =
            at >= self.offset && at.checked_add(u64::from(len)).is_some_and(|to| to <= end);
        if self.command != Command::Read || !is_inside {
            return Err(wrong("data that were not asked for"));
        }
        self.missing =
            self.missing.checked_sub(len).ok_or_else(|| wrong("data that come twice"))?;
        fill(&mut bytes[(at - self.offset) as usize..][..len as usize])
    }

    /// Returns the number of data bytes in the complete answer.
    pub(super) fn room(&self) -> usize {
        if self.command == Command::Read { self.len as usize } else { 0 }
    }

    /// Returns whether the server has executed the request without an error.
    pub(super) fn is_good(&self) -> bool {
        self.is_complete && self.error == 0
    }

    /// Returns the server's error, or for a request for block status whether there are data, and for how many
    /// bytes this is so.
    pub(super) fn result(&self) -> io::Result<Option<(bool, u64)>> {
        match self.error {
            0 => Ok(self.status),
            // The protocol uses Linux's error numbers.
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}
