//! Requests to a block device, as they are in guest memory (virtio 1.2, 5.2.6).

use ring3_core::memory::Memory;
use serde::{Deserialize, Serialize};

use super::super::queue::{Chain, Segment};
use super::super::segments::{self, gather, take_front};

/// Bytes of a request's header: type, reserved, sector.
const HEADER_LEN: u32 = 16;
/// Bytes of a range to be discarded or made zero: sector, count, flags.
const RANGE_LEN: u32 = 16;
/// In its flags: the room may be given up.
const RANGE_UNMAP: u32 = 1 << 0;

/// The type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    GetId,
    Discard,
    WriteZeroes,
}

impl Kind {
    pub(super) fn of(number: u32) -> Option<Kind> {
        match number {
            0 => Some(Kind::Read),
            1 => Some(Kind::Write),
            4 => Some(Kind::Flush),
            8 => Some(Kind::GetId),
            11 => Some(Kind::Discard),
            13 => Some(Kind::WriteZeroes),
            _ => None,
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Ok = 0,
    Error = 1,
    Unsupported = 2,
}

/// A request that the drive has not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// By which the drive's answer is known.
    pub(super) tag: u64,
    /// Where it came from: the queue, and the head of its chain.
    pub(super) queue: u16,
    pub(super) head: u16,
    /// Bytes to be read or written.
    pub(super) bytes: u32,
    /// Where its status goes.
    pub(super) status_address: u64,
    pub(super) task: Task,
}

/// What is to be done with the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Task {
    /// What was read goes there.
    Read(Vec<Segment>),
    /// A flush comes next.
    WriteThrough,
    /// Only the driver is told.
    Other,
    /// Nothing: the device was reset meanwhile.
    Abandoned,
}

/// What every request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// See [`Kind::of`].
    pub(super) kind: u32,
    /// The first sector.
    pub(super) sector: u64,
}

/// A chain without its header and status.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) readable: Vec<Segment>,
    pub(super) writable: Vec<Segment>,
    pub(super) status_address: u64,
}

impl Header {
    /// Takes `chain` apart: the first bytes are the header, the last one is for the status, however the driver cuts it. None if they are not
    /// there.
    pub(super) fn read(memory: &Memory, chain: Chain) -> Option<(Header, Parts)> {
        let Chain { mut readable, mut writable, .. } = chain;
        let mut header = [0; HEADER_LEN as usize];
        if !take_front(memory, &mut readable, &mut header) {
            return None;
        }
        let last = writable.last_mut()?;
        last.len -= 1;
        let status_address = last.address.wrapping_add(last.len.into());
        if last.len == 0 {
            writable.pop();
        }
        let all = u128::from_le_bytes(header);
        let header = Header { kind: all as u32, sector: (all >> 64) as u64 };
        Some((header, Parts { readable, writable, status_address }))
    }
}

/// What is to be discarded or made zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) sector: u64,
    pub(super) count: u32,
    pub(super) unmaps: bool,
    pub(super) has_unknown_flags: bool,
}

impl Range {
    /// The one range that is in `segments`; none if there is another number of them.
    pub(super) fn read(memory: &Memory, segments: &[Segment]) -> Option<Range> {
        if segments::len(segments) != u64::from(RANGE_LEN) {
            return None;
        }
        let bytes = gather(memory, segments);
        let all = u128::from_le_bytes(bytes.try_into().ok()?);
        let flags = (all >> 96) as u32;
        Some(Range {
            sector: all as u64,
            count: (all >> 64) as u32,
            unmaps: flags & RANGE_UNMAP != 0,
            has_unknown_flags: flags & !RANGE_UNMAP != 0,
        })
    }
}
