//! Requests and replies (doc/proto.md, "Transmission").
//!
//! One thread takes requests, those of the device do them, several at a time and in any order, and another one sends replies, so
//! that a client that takes none makes nobody else wait.

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use ring3_block::Kind;
use ring3_block::nbd::protocol::*;
use tracing::debug;

use super::handshake::{CONTEXT, Chosen};
use super::{Export, Stream, take, wrong};
use crate::device::Failed;

/// The most bytes that a request reads or writes.
pub(super) const PAYLOAD_MAX: u32 = 32 << 20;
/// The most bytes of a client's requests and replies at a time; so a request always fits.
const BYTES_MAX: usize = 64 << 20;
/// The most requests of a client at a time.
const REQUESTS_MAX: usize = 64;
/// The most ranges that a block status tells of.
const RANGES_MAX: usize = 1024;

/// A request without its data.
#[derive(Debug, Clone, Copy)]
struct Header {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Header {
    fn of(bytes: &[u8; 28]) -> Option<Header> {
        let number = |at: usize| bytes[at..at + 8].try_into().expect("eight bytes");
        let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let long = u64::from_be_bytes;
        let is_one = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes")) == REQUEST;
        is_one.then(|| Header {
            flags: half(4),
            kind: half(6),
            cookie: long(number(8)),
            offset: long(number(16)),
            len: u32::from_be_bytes(bytes[24..].try_into().expect("four bytes")),
        })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A reply, ready to be sent.
struct Reply {
    bytes: Vec<u8>,
    /// What it takes of the client's room.
    room: usize,
}

/// The room that is left for requests.
#[derive(Debug, Default)]
struct Room {
    used: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Room {
    fn take(&self, bytes: usize) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while used.0 >= REQUESTS_MAX || used.1 + bytes > BYTES_MAX {
            used = self.changed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used = (used.0 + 1, used.1 + bytes);
    }

    fn give_back(&self, bytes: usize) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = (used.0 - 1, used.1 - bytes);
        drop(used);
        self.changed.notify_one();
    }
}

/// Does what the client asks, until it disconnects.
pub(super) fn transmit<S: Stream>(mut stream: S, chosen: &Chosen) -> io::Result<()> {
    let room = Arc::<Room>::default();
    let (replies, to_send) = mpsc::channel::<Reply>();
    let mut output = stream.twin()?;
    let freed = Arc::clone(&room);
    let sender = thread::Builder::new().name("nbd replies".into()).spawn(move || {
        let mut failed = false;
        // After an error the rest is only counted: who takes requests learns of it by himself.
        for reply in to_send {
            failed = failed || output.write_all(&reply.bytes).is_err();
            freed.give_back(reply.room);
        }
    })?;
    let result = take_requests(&mut stream, chosen, &room, &replies);
    drop(replies);
    // It ends when the last request is answered.
    let _ = sender.join();
    result
}

fn take_requests(
    stream: &mut impl Read,
    chosen: &Chosen,
    room: &Room,
    replies: &Sender<Reply>,
) -> io::Result<()> {
    loop {
        let mut bytes = [0; 28];
        stream.read_exact(&mut bytes)?;
        let header = Header::of(&bytes).ok_or_else(|| wrong("no request"))?;
        let command = Command::of(header.kind);
        let mut data = Vec::new();
        let mut size = 0;
        match command {
            Some(Command::Disconnect) => return Ok(()),
            Some(Command::Write) if header.len > PAYLOAD_MAX => {
                return Err(wrong("a request that is too long"));
            }
            Some(Command::Write | Command::Read) => size = header.len.min(PAYLOAD_MAX) as usize,
            _ => {}
        }
        room.take(size);
        if command == Some(Command::Write) {
            data = take(stream, size)?;
        }
        let (export, replies) = (chosen.export.clone(), replies.clone());
        let (structured, has_context) = (chosen.structured, chosen.has_context);
        let device = Arc::clone(&export.device);
        device.ask(move || {
            let act = || execute(&export, command, header, &data, has_context);
            // Even where our own code fails the client is answered.
            let result =
                catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Failed { errno: libc::EIO }));
            let bytes = encode(header, command, result, structured);
            if replies.send(Reply { bytes, room: size }).is_err() {
                debug!("a reply is not sent: the connection has ended");
            }
        });
    }
}

/// What a request comes to.
enum Outcome {
    Done,
    Data(Vec<u8>),
    Status(Vec<(u32, u32)>),
}

fn execute(
    export: &Export,
    command: Option<Command>,
    header: Header,
    data: &[u8],
    has_context: bool,
) -> Result<Outcome, Failed> {
    let device = &export.device;
    let invalid = Err(Failed { errno: libc::EINVAL });
    let (offset, len) = (header.offset, u64::from(header.len));
    let inside = offset.checked_add(len).is_some_and(|end| end <= device.image().size());
    let changes = matches!(command, Some(Command::Write | Command::Trim | Command::WriteZeroes));
    if changes && !export.writes {
        return Err(Failed { errno: libc::EPERM });
    }
    if !inside && command != Some(Command::Flush) {
        return Err(Failed { errno: if changes { libc::ENOSPC } else { libc::EINVAL } });
    }
    let mut outcome = Outcome::Done;
    match command {
        Some(Command::Read) if header.len <= PAYLOAD_MAX => {
            let mut bytes = vec![0; header.len as usize];
            device.read(&mut bytes, offset)?;
            outcome = Outcome::Data(bytes);
        }
        Some(Command::Write) => device.write(data, offset)?,
        Some(Command::Flush) => device.flush()?,
        Some(Command::Trim) => device.discard(offset, len)?,
        Some(Command::WriteZeroes) => {
            device.write_zeroes(offset, len, !header.has(request_flag::NO_HOLE))?;
        }
        Some(Command::BlockStatus) if has_context && len > 0 => {
            outcome = Outcome::Status(status(export, header)?);
        }
        _ => return invalid,
    }
    if changes && header.has(request_flag::FUA) {
        device.flush()?;
    }
    Ok(outcome)
}

/// What is allocated: lengths and flags.
fn status(export: &Export, header: Header) -> Result<Vec<(u32, u32)>, Failed> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let (mut offset, end) = (header.offset, header.offset + u64::from(header.len));
    let most = if header.has(request_flag::ONE) { 1 } else { RANGES_MAX };
    while offset < end {
        let mapping = export.device.map(offset, end - offset)?;
        let flags = match mapping.kind {
            Kind::Data { .. } => 0,
            Kind::Zero { at: Some(_) } => READS_AS_ZERO,
            Kind::Zero { at: None } | Kind::Absent => READS_AS_ZERO | HOLE,
        };
        let len = mapping.len.clamp(1, end - offset) as u32;
        let is_full = ranges.len() == most;
        match ranges.last_mut() {
            Some((before, same)) if *same == flags => *before += len,
            _ if is_full => break,
            _ => ranges.push((len, flags)),
        }
        offset += u64::from(len);
    }
    Ok(ranges)
}

/// The bytes of a reply.
fn encode(
    header: Header,
    command: Option<Command>,
    result: Result<Outcome, Failed>,
    structured: bool,
) -> Vec<u8> {
    // A client that has agreed to them has them for reading and block status at least; all others may be simple.
    let is_structured = structured && matches!(command, Some(Command::Read | Command::BlockStatus));
    let mut bytes = Vec::new();
    if !is_structured {
        bytes.extend(SIMPLE_REPLY.to_be_bytes());
        let error = result.as_ref().err().map_or(0, |failed| number(*failed));
        bytes.extend(error.to_be_bytes());
        bytes.extend(header.cookie.to_be_bytes());
        if let Ok(Outcome::Data(data)) = result {
            bytes.extend(data);
        }
        return bytes;
    }
    let mut part = |kind: u16, len: usize| {
        bytes.extend(STRUCTURED_REPLY.to_be_bytes());
        bytes.extend(DONE.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(header.cookie.to_be_bytes());
        bytes.extend((len as u32).to_be_bytes());
    };
    match result {
        Ok(Outcome::Data(data)) if !data.is_empty() => {
            part(part::DATA, data.len() + 8);
            bytes.extend(header.offset.to_be_bytes());
            bytes.extend(data);
        }
        Ok(Outcome::Status(ranges)) => {
            part(part::BLOCK_STATUS, 4 + ranges.len() * 8);
            bytes.extend(CONTEXT.to_be_bytes());
            for (len, flags) in ranges {
                bytes.extend(len.to_be_bytes());
                bytes.extend(flags.to_be_bytes());
            }
        }
        Ok(_) => part(part::NONE, 0),
        Err(failed) => {
            part(part::ERROR_MESSAGE, 6);
            bytes.extend(number(failed).to_be_bytes());
            bytes.extend([0, 0]);
        }
    }
    bytes
}

/// The protocol's number of an error, which is Linux's for those that it knows.
fn number(failed: Failed) -> u32 {
    match failed.errno {
        libc::EPERM | libc::EROFS => libc::EPERM as u32,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => libc::ENOSPC as u32,
        known @ (libc::ENOMEM | libc::EINVAL | libc::EOVERFLOW | libc::ENOTSUP) => known as u32,
        _ => libc::EIO as u32,
    }
}
