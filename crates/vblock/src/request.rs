//! Requests of virtio-blk (virtio 1.2, 5.2.6): what they ask for, and doing it.

use std::sync::atomic::{AtomicBool, Ordering};

use ring3_vhost::block::{SECTOR, UNMAP, kind};
use ring3_vhost::chain::{Buffer, Buffers};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

use crate::device::{Device, Failed};
use crate::transfer::{Direction, Parts};

/// Bytes of a request's header: type, reserved, sector.
const HEADER: u64 = 16;
/// Bytes of the name of a device (VIRTIO_BLK_ID_BYTES).
const ID: usize = 20;
/// Bytes of a range in a request that discards or writes zeros.
const RANGE: usize = 16;
/// The most bytes of data of a request: what a guest is told (buffers of data times their size) is not more.
const DATA_MAX: u64 = 32 << 20;

/// The most buffers of data that a guest is told of.
pub(crate) const SEGMENTS: u32 = 126;
/// The most bytes of such a buffer.
pub(crate) const SEGMENT_BYTES: u32 = 256 << 10;
/// The most ranges of a request that discards or writes zeros.
pub(crate) const RANGES: u32 = 16;
/// The most sectors of such a range.
pub(crate) const RANGE_SECTORS: u32 = 1 << 16;

/// What a request comes to (VIRTIO_BLK_S_…).
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

/// What a client may do, and how.
#[derive(Debug, Default)]
pub(crate) struct Mode {
    /// It may write.
    pub(crate) writes: bool,
    /// What it writes is kept for certain when the request is complete: the guest has chosen that, or knows no flushes.
    pub(crate) write_through: AtomicBool,
}

/// A request, as it was taken from a ring.
#[derive(Debug)]
pub(crate) struct Request {
    kind: u32,
    /// Byte of the disk.
    offset: Option<u64>,
    /// Data of the driver, or room for data of the device.
    data: Vec<Buffer>,
    status: GuestAddress,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Bytes that were written to the guest's memory, with the status.
    pub(crate) written: u32,
}

impl Request {
    /// The request in those buffers, whatever parts they are in (2.7.4.1: no framing is assumed). None if there is no room for a
    /// status or no header, so that nothing can be answered.
    pub(crate) fn parse(memory: &GuestMemoryMmap, mut buffers: Buffers) -> Option<Request> {
        let header: [u8; HEADER as usize] = read_array(memory, &buffers.readable)?;
        let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        // The status is the last byte.
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

    /// It reads or writes data, and not many.
    pub(crate) fn is_short(&self) -> bool {
        matches!(self.kind, kind::IN | kind::OUT) && self.len() <= 64 << 10
    }

    /// What it writes goes to a file of the host, which only has to remember it.
    pub(crate) fn writes_to_file(&self, device: &Device) -> bool {
        let at = self.offset.unwrap_or(u64::MAX);
        self.kind == kind::OUT && device.image().file_at(at, self.len(), true).is_some()
    }

    fn len(&self) -> u64 {
        self.data.iter().map(|buffer| u64::from(buffer.len)).sum()
    }

    /// Does it, if that needs no waiting for the host.
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
        let (offset, len) = self.range(device).ok()?;
        let parts = Parts::of(memory, &self.data)?;
        if !device.transfer_at_once(direction, &parts, offset) {
            return None;
        }
        let data = if direction == Direction::ToGuest { len } else { 0 };
        Some(self.answer(memory, Status::Ok, data as u32))
    }

    /// Does it, however long that takes.
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

    /// Says that it could not be done.
    pub(crate) fn fail(&self, memory: &GuestMemoryMmap) -> Outcome {
        self.answer(memory, Status::Error, 0)
    }

    fn act(&self, memory: &GuestMemoryMmap, device: &Device, mode: &Mode) -> Result<u32, Status> {
        let changes = matches!(self.kind, kind::OUT | kind::DISCARD | kind::WRITE_ZEROES);
        if changes && !mode.writes {
            return Err(Status::Error);
        }
        let mut written = 0;
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
                // A guest is not told that its disk was without power when this process dies.
                device.settle()?;
            }
        }
        Ok(written)
    }

    /// Where its data are on the disk, and how many.
    fn range(&self, device: &Device) -> Result<(u64, u64), Status> {
        let (offset, len) = (self.offset.ok_or(Status::Error)?, self.len());
        if !len.is_multiple_of(SECTOR) || len > DATA_MAX {
            return Err(Status::Error);
        }
        device.check(offset, len)?;
        Ok((offset, len))
    }

    /// Discards ranges, or makes zeros of them (struct virtio_blk_discard_write_zeroes).
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
            // 5.2.6.2: no other flags, and this one for zeros alone.
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
            // The guest gave a place that is not there.
            Err(_) => Outcome { written: 0 },
        }
    }
}

/// What is left of `buffers` behind `skip` bytes.
fn behind(buffers: &[Buffer], mut skip: u64) -> Vec<Buffer> {
    let mut rest = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let here = skip.min(u64::from(buffer.len));
        skip -= here;
        let len = buffer.len - here as u32;
        if len > 0 {
            // An address that wraps around is not in memory, and is refused there.
            rest.push(Buffer { at: GuestAddress(buffer.at.0.wrapping_add(here)), len });
        }
    }
    rest
}

/// The first `N` bytes of `buffers`.
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
