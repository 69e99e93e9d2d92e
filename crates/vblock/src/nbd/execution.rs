//! The execution of a request, and the reply to it (doc/proto.md, "Transmission").

use ring3_block::Kind;
use ring3_block::nbd::protocol::*;

use super::Export;
use super::handshake::{CONTEXT, Chosen};
use super::outbox::Reply;
use crate::device::Failed;

/// Upper bound of the bytes that a request may read or write.
pub(super) const PAYLOAD_MAX: u32 = 32 << 20;
/// Number of bytes in a request without its data.
pub(super) const HEADER_LEN: usize = 28;
/// Upper bound of the ranges in a block status.
const RANGES_MAX: usize = 1024;
/// Number of bytes that are filled with zeros or discarded before the next look whether the client is still
/// there.
const PIECE: u64 = 64 << 20;
/// The result of a request whose client has gone. Nobody reads it.
pub(super) const GONE: Failed = Failed { errno: libc::EIO };

/// A request without its data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    flags: u16,
    pub(super) kind: u16,
    cookie: u64,
    offset: u64,
    pub(super) len: u32,
}

impl Header {
    pub(super) fn of(bytes: &[u8; HEADER_LEN]) -> Option<Header> {
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

/// The successful result of a request.
pub(super) enum Outcome {
    Done,
    Data(Vec<u8>),
    Status(Vec<(u32, u32)>),
}

/// Executes a request, a long one in pieces, until `has_ended` returns true.
pub(super) fn execute(
    chosen: &Chosen,
    header: Header,
    data: &[u8],
    has_ended: &dyn Fn() -> bool,
) -> Result<Outcome, Failed> {
    let (export, command) = (&chosen.export, Command::of(header.kind));
    let device = &export.device;
    let invalid = Err(Failed { errno: libc::EINVAL });
    let (offset, len) = (header.offset, u64::from(header.len));
    let _size = device.keep_size();
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
        Some(Command::Trim) => {
            in_pieces(offset, len, has_ended, |offset, len| device.discard(offset, len))?;
        }
        Some(Command::WriteZeroes) => {
            let unmaps = !header.has(request_flag::NO_HOLE);
            in_pieces(offset, len, has_ended, |offset, len| {
                device.write_zeroes(offset, len, unmaps)
            })?;
        }
        Some(Command::BlockStatus) if chosen.has_context && len > 0 => {
            outcome = Outcome::Status(status(export, header, has_ended)?);
        }
        _ => return invalid,
    }
    if changes && header.has(request_flag::FUA) {
        device.flush()?;
    }
    Ok(outcome)
}

/// Calls `act` for one piece of a range after another. Pieces end at multiples of [`PIECE`], where clusters
/// of any size end too.
fn in_pieces(
    mut offset: u64,
    len: u64,
    has_ended: &dyn Fn() -> bool,
    act: impl Fn(u64, u64) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let end = offset + len;
    loop {
        let next = end.min((offset / PIECE + 1) * PIECE);
        act(offset, next - offset)?;
        if next == end {
            return Ok(());
        }
        if has_ended() {
            return Err(GONE);
        }
        offset = next;
    }
}

/// Returns the lengths and flags of ranges, by which the client learns what is allocated.
fn status(
    export: &Export,
    header: Header,
    has_ended: &dyn Fn() -> bool,
) -> Result<Vec<(u32, u32)>, Failed> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let (mut offset, end) = (header.offset, header.offset + u64::from(header.len));
    let most = if header.has(request_flag::ONE) { 1 } else { RANGES_MAX };
    while offset < end {
        if has_ended() {
            return Err(GONE);
        }
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

/// Returns the reply to a request, which gives back `room` bytes of memory after it was sent.
pub(super) fn reply(
    header: Header,
    result: Result<Outcome, Failed>,
    structured: bool,
    room: usize,
) -> Reply {
    let command = Command::of(header.kind);
    // A client with structured replies must get them for reads, and for block status. All other replies may
    // be simple.
    let is_structured = structured && matches!(command, Some(Command::Read | Command::BlockStatus));
    let (mut head, mut data) = (Vec::new(), Vec::new());
    if !is_structured {
        head.extend(SIMPLE_REPLY.to_be_bytes());
        let error = result.as_ref().err().map_or(0, |failed| number(*failed));
        head.extend(error.to_be_bytes());
        head.extend(header.cookie.to_be_bytes());
        if let Ok(Outcome::Data(bytes)) = result {
            data = bytes;
        }
        return Reply { head, data, room };
    }
    let mut part = |kind: u16, len: usize| {
        head.extend(STRUCTURED_REPLY.to_be_bytes());
        head.extend(DONE.to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend(header.cookie.to_be_bytes());
        head.extend((len as u32).to_be_bytes());
    };
    match result {
        Ok(Outcome::Data(bytes)) if !bytes.is_empty() => {
            part(part::DATA, bytes.len() + 8);
            head.extend(header.offset.to_be_bytes());
            data = bytes;
        }
        Ok(Outcome::Status(ranges)) => {
            part(part::BLOCK_STATUS, 4 + ranges.len() * 8);
            head.extend(CONTEXT.to_be_bytes());
            for (len, flags) in ranges {
                head.extend(len.to_be_bytes());
                head.extend(flags.to_be_bytes());
            }
        }
        Ok(_) => part(part::NONE, 0),
        Err(failed) => {
            part(part::ERROR_MESSAGE, 6);
            head.extend(number(failed).to_be_bytes());
            head.extend([0, 0]);
        }
    }
    Reply { head, data, room }
}

/// Returns the protocol's number of an error, which is Linux's if the protocol has that one.
fn number(failed: Failed) -> u32 {
    match failed.errno {
        libc::EPERM | libc::EROFS => libc::EPERM as u32,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => libc::ENOSPC as u32,
        known @ (libc::ENOMEM | libc::EINVAL | libc::EOVERFLOW | libc::ENOTSUP) => known as u32,
        _ => libc::EIO as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn a_long_request_ends_with_its_client() {
        let done = RefCell::new(Vec::new());
        let act = |offset: u64, len: u64| {
            done.borrow_mut().push((offset, len));
            Ok(())
        };
        let all = u64::from(u32::MAX);
        // The whole range is covered, and each piece but the last ends at a multiple of its size.
        in_pieces(5, all, &|| false, act).unwrap();
        let pieces = done.take();
        assert_eq!(pieces.iter().map(|(_, len)| len).sum::<u64>(), all);
        assert!(pieces.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0));
        assert!(pieces[1..].iter().all(|(offset, _)| offset % PIECE == 0));
        in_pieces(7, 9, &|| true, act).unwrap();
        assert_eq!(done.take(), [(7, 9)]);
        // If the client goes meanwhile, no further piece is begun.
        let looks = Cell::new(0);
        let has_ended = || {
            looks.set(looks.get() + 1);
            looks.get() == 3
        };
        assert_eq!(in_pieces(0, all, &has_ended, act), Err(GONE));
        assert_eq!(done.take().len(), 3);
    }
}
