//! Requests of virtio-blk (virtio 1.2, 5.2.6) and their execution.

use std::sync::atomic::{AtomicBool, Ordering};

use ring3_vhost::block::{SECTOR, UNMAP, kind};
use ring3_vhost::chain::{Buffer, Buffers};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

use crate::device::{Device, Failed};
use crate::transfer::{Direction, Parts};

/// Number of bytes in a request's header: type, reserved, sector.
const HEADER: u64 = 16;
/// Number of bytes in the name of a device (VIRTIO_BLK_ID_BYTES).
const ID: usize = 20;
/// Number of bytes in a range of a request that discards or writes zeros.
const RANGE: usize = 16;
/// Upper bound of the data bytes in a request. The limits that a guest is told (number of buffers times their
/// size) do not exceed it.
const DATA_MAX: u64 = 32 << 20;

/// Upper bound of the data buffers in a request, as the guest is told.
pub(crate) const SEGMENTS: u32 = 126;
/// Upper bound of the bytes in such a buffer.
pub(crate) const SEGMENT_BYTES: u32 = 256 << 10;
/// Upper bound of the ranges in a request that discards or writes zeros.
pub(crate) const RANGES: u32 = 16;
/// Upper bound of the sectors in such a range.
pub(crate) const RANGE_SECTORS: u32 = 1 << 16;

/// Returns the bytes as which a transfer of `len` bytes counts: one of few bytes costs as much as one of 4 KiB.
pub(crate) fn cost(len: u64) -> u64 {
    len.max(4 << 10)
}

/// The status of a request (VIRTIO_BLK_S_…).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ok = 0,
    Error = 1,
    Unsupported = 2,
}

impl From<Failed> for Status {
    fn from(_: Failed) -> Status {
        Status::Error
    }
}

/// The rights of a client, and the treatment of its writes.
#[derive(Debug, Default)]
pub(crate) struct Mode {
    /// Whether the client may write.
    pub(crate) writes: bool,
    /// Whether a write must survive a failure of the host before it completes, because the guest has chosen
    /// this or does not use flushes.
    pub(crate) write_through: AtomicBool,
}

/// A request that was taken from the available ring.
#[derive(Debug)]
pub(crate) struct Request {
    kind: u32,
    /// Offset on the disk, in bytes. None if it overflows.
    offset: Option<u64>,
    /// The driver's data, or room for the device's data.
    data: Vec<Buffer>,
    status: GuestAddress,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Number of bytes that were written to the guest's memory, including the status.
    pub(crate) written: u32,
}

impl Request {
    /// Returns the request in `buffers`, however it is divided among them (2.7.4.1: the device must not
    /// assume any framing). Returns None if there is no header, or no room for the status, so that no answer
    /// is possible.
    pub(crate) fn parse(memory: &GuestMemoryMmap, mut buffers: Buffers) -> Option<Request> {
        let header: [u8; HEADER as usize] = read_array(memory, &buffers.readable)?;
        let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        // The status is the last byte that can be written.
        while buffers.writable.last().is_some_and(|last| last.len == 0) {
            buffers.writable.pop();
        }
        let last = buffers.writable.last_mut()?;
        last.len -= 1;
        let status = last.at.checked_add(u64::from(last.len))?;
        let data = match kind {
            kind::IN | kind::GET_ID => buffers.writable,
            _ => behind(&buffers.readable, HEADER),
        };
        Some(Request { kind, offset: sector.checked_mul(SECTOR), data, status })
    }

    /// Returns whether the request reads or writes at most 64 KiB.
    pub(crate) fn is_short(&self) -> bool {
        matches!(self.kind, kind::IN | kind::OUT) && self.len() <= 64 << 10
    }

    /// Returns whether the request writes directly to a file of the host, which only takes the data into its
    /// cache.
    pub(crate) fn writes_to_file(&self, device: &Device) -> bool {
        let at = self.offset.unwrap_or(u64::MAX);
        self.kind == kind::OUT && device.image().file_at(at, self.len(), true).is_some()
    }

    /// Returns the bytes as which the request counts among those that clients share.
    pub(crate) fn cost(&self) -> u64 {
        if matches!(self.kind, kind::IN | kind::OUT) { cost(self.len()) } else { 0 }
    }

    fn len(&self) -> u64 {
        self.data.iter().map(|buffer| u64::from(buffer.len)).sum()
    }

    /// Executes the request, if this needs no waiting for the host.
    pub(crate) fn execute_at_once(
        &self,
        memory: &GuestMemoryMmap,
        device: &Device,
        mode: &Mode,
    ) -> Option<Outcome> {
        let direction = match self.kind {
            kind::IN => Direction::ToGuest,
            kind::OUT if mode.writes && !mode.write_through.load(Ordering::Relaxed) => {
                Direction::FromGuest
            }
            _ => return None,
        };
        let _size = device.keep_size();
        let (offset, len) = self.range(device).ok()?;
        let parts = Parts::of(memory, &self.data)?;
        if !device.transfer_at_once(direction, &parts, offset) {
            return None;
        }
        let data = if direction == Direction::ToGuest { len } else { 0 };
        Some(self.answer(memory, Status::Ok, data as u32))
    }

    /// Executes the request, however long this takes.
    pub(crate) fn execute(
        &self,
        memory: &GuestMemoryMmap,
        device: &Device,
        mode: &Mode,
    ) -> Outcome {
        match self.act(memory, device, mode) {
            Ok(written) => self.answer(memory, Status::Ok, written),
            Err(status) => self.answer(memory, status, 0),
        }
    }

    /// Answers that the request has failed.
    pub(crate) fn fail(&self, memory: &GuestMemoryMmap) -> Outcome {
        self.answer(memory, Status::Error, 0)
    }

    fn act(&self, memory: &GuestMemoryMmap, device: &Device, mode: &Mode) -> Result<u32, Status> {
        let changes = matches!(self.kind, kind::OUT | kind::DISCARD | kind::WRITE_ZEROES);
        if changes && !mode.writes {
            return Err(Status::Error);
        }
        let mut written = 0;
        let _size = device.keep_size();
        match self.kind {
            kind::IN | kind::OUT => {
                let (offset, len) = self.range(device)?;
                let parts = Parts::of(memory, &self.data).ok_or(Status::Error)?;
                if self.kind == kind::IN {
                    device.transfer(Direction::ToGuest, &parts, offset)?;
                    written = len as u32;
                } else {
                    device.transfer(Direction::FromGuest, &parts, offset)?;
                }
            }
            kind::FLUSH => device.flush()?,
            kind::GET_ID => {
                let mut id = [0; ID];
                let name = device.name().as_bytes();
                let len = name.len().min(ID);
                id[..len].copy_from_slice(&name[..len]);
                let parts = Parts::of(memory, &self.data).ok_or(Status::Error)?;
                let len = parts.len().min(ID);
                parts.write(&id[..len]);
                written = len as u32;
            }
            kind::DISCARD | kind::WRITE_ZEROES => self.change_ranges(memory, device)?,
            _ => return Err(Status::Unsupported),
        }
        if changes {
            if mode.write_through.load(Ordering::Relaxed) {
                device.flush()?;
            } else {
                // If this process dies, the guest does not learn of it as of a power cut, so the write must
                // survive.
                device.settle()?;
            }
        }
        Ok(written)
    }

    /// Returns the offset of the request's data on the disk, and their length.
    fn range(&self, device: &Device) -> Result<(u64, u64), Status> {
        let (offset, len) = (self.offset.ok_or(Status::Error)?, self.len());
        if !len.is_multiple_of(SECTOR) || len > DATA_MAX {
            return Err(Status::Error);
        }
        device.check(offset, len)?;
        Ok((offset, len))
    }

    /// Discards ranges, or fills them with zeros (struct virtio_blk_discard_write_zeroes).
    fn change_ranges(&self, memory: &GuestMemoryMmap, device: &Device) -> Result<(), Status> {
        let len = self.len() as usize;
        if len == 0 || !len.is_multiple_of(RANGE) || len > RANGES as usize * RANGE {
            return Err(Status::Error);
        }
        let mut bytes = vec![0; len];
        Parts::of(memory, &self.data).ok_or(Status::Error)?.read(&mut bytes);
        for range in bytes.chunks_exact(RANGE) {
            let number =
                |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().expect("four bytes"));
            let sector = u64::from_le_bytes(range[..8].try_into().expect("eight bytes"));
            let (count, flags) = (number(8), number(12));
            let zeroes = self.kind == kind::WRITE_ZEROES;
            // 5.2.6.2: UNMAP is the only flag, and only for requests that write zeros.
            if flags & !UNMAP != 0 || (flags != 0 && !zeroes) {
                return Err(Status::Unsupported);
            }
            if count > RANGE_SECTORS {
                return Err(Status::Error);
            }
            let offset = sector.checked_mul(SECTOR).ok_or(Status::Error)?;
            let len = u64::from(count) * SECTOR;
            device.check(offset, len)?;
            if zeroes {
                device.write_zeroes(offset, len, flags == UNMAP)?;
            } else {
                device.discard(offset, len)?;
            }
        }
        Ok(())
    }

    fn answer(&self, memory: &GuestMemoryMmap, status: Status, data: u32) -> Outcome {
        match memory.write_obj(status as u8, self.status) {
            Ok(()) => Outcome { written: data.saturating_add(1) },
            // The guest has given an address for the status that is outside of its memory.
            Err(_) => Outcome { written: 0 },
        }
    }
}

/// Returns the parts of `buffers` that follow the first `skip` bytes.
fn behind(buffers: &[Buffer], mut skip: u64) -> Vec<Buffer> {
    let mut rest = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let here = skip.min(u64::from(buffer.len));
        skip -= here;
        let len = buffer.len - here as u32;
        if len > 0 {
            // An address that wraps around is outside of the guest's memory, so it is refused later.
            rest.push(Buffer { at: GuestAddress(buffer.at.0.wrapping_add(here)), len });
        }
    }
    rest
}

/// Returns the first `N` bytes of `buffers`.
fn read_array<const N: usize>(memory: &GuestMemoryMmap, buffers: &[Buffer]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut done = 0;
    for buffer in buffers {
        let now = (buffer.len as usize).min(N - done);
        memory.read_slice(&mut bytes[done..done + now], buffer.at).ok()?;
        done += now;
    }
    (done == N).then_some(bytes)
}
