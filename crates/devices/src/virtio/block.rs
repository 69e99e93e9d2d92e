//! A block device (virtio 1.2, 5.2): a disk whose driver has many requests under way at once.
//!
//! Requests go to the drive as they come, and are given back in the order in which it answers. What a driver may keep it busy with is bounded: so many
//! requests, and so many bytes of them; the others wait in the queue. Requests that leave the disk, or guest memory, fail.

use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskAnswer, DiskOperation, DiskRequest, Medium, SECTOR_SIZE};
use ring3_core::input::DeviceInput;
use ring3_core::memory::Memory;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use super::queue::{Chain, Queue, Segment};
use super::segments::{self, gather, scatter};
use super::{DeviceType, Work};

mod request;

use request::{Header, Kind, Range, Request, Status, Task};

/// The most queues that a device can have.
pub const QUEUES_MAX: u16 = 16;

/// Device ID (5.2.1).
const ID: u16 = 2;
/// A storage controller that is none of those with a class of their own, which drivers take for SCSI.
const CLASS: u32 = 0x010000;
/// The drive of a device.
const UNIT: u8 = 0;

/// Descriptors of a queue.
const QUEUE_SIZE: u16 = 256;
/// Pieces of memory that a driver may give a request, and bytes of each.
const SEGMENTS_MAX: u32 = 126;
const SEGMENT_MAX: u32 = 32 << 10;
/// Bytes of a request at most, in however many pieces.
const REQUEST_MAX: u32 = SEGMENTS_MAX * SEGMENT_MAX;
/// With so many requests, or bytes of them, under way no more are taken.
const UNDER_WAY_MAX: usize = 256;
const BYTES_UNDER_WAY_MAX: u64 = 8 << 20;
/// Sectors of one request to discard, 2 GiB, and of one to write zeroes, 16 MiB.
const DISCARD_MAX: u32 = 0x40_0000;
const WRITE_ZEROES_MAX: u32 = 0x8000;
/// Discarding pays by so many sectors: a page of the host's file systems.
const DISCARD_ALIGNMENT: u32 = 8;

/// Features (5.2.3).
mod features {
    pub(super) const SIZE_MAX: u64 = 1 << 1;
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const GEOMETRY: u64 = 1 << 4;
    pub(super) const READ_ONLY: u64 = 1 << 5;
    pub(super) const BLOCK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const TOPOLOGY: u64 = 1 << 10;
    pub(super) const CONFIG_WCE: u64 = 1 << 11;
    pub(super) const MULTIPLE_QUEUES: u64 = 1 << 12;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Offset of `writeback` in the device configuration (5.2.4).
const CONFIG_WRITEBACK: usize = 32;
/// The geometry that is told, as that of large disks.
const HEADS: u8 = 16;
const SECTORS_PER_TRACK: u8 = 63;

const VERSION: u32 = 1;

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskModel {
    /// Its size, and whether it can be written.
    pub medium: Medium,
    /// Its serial number, up to 20 characters of ASCII; what is more is left out.
    pub serial: String,
    /// How many queues it has, 1 to [`QUEUES_MAX`].
    pub queues: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    sectors: u64,
    /// The driver has it that writes need not be kept before a flush.
    writeback: bool,
    /// The tag of the next request to the drive.
    next_tag: u64,
    /// Those that the drive has not answered.
    under_way: Vec<Request>,
    /// There may be more in the queues.
    is_behind: bool,
}

/// The device type of a disk.
#[derive(Debug)]
pub struct Block {
    device: DeviceId,
    disk: DiskModel,
    state: State,
}

impl Block {
    /// The device type of `disk`, for the device `device`, such as one of [`DeviceId::VIRTIO_BLK`].
    pub fn new(device: DeviceId, disk: DiskModel) -> Block {
        let state = State {
            sectors: disk.medium.sectors,
            writeback: true,
            next_tag: 0,
            under_way: Vec::new(),
            is_behind: false,
        };
        Block { device, disk, state }
    }

    fn queue_count(&self) -> u16 {
        self.disk.queues.clamp(1, QUEUES_MAX)
    }

    /// Each write is to be kept before it is answered (5.2.5.2).
    fn writes_through(&self, work: &Work<'_, '_>) -> bool {
        if work.features & features::CONFIG_WCE != 0 {
            !self.state.writeback
        } else {
            work.features & features::FLUSH == 0
        }
    }

    fn is_full(&self) -> bool {
        let bytes = |request: &Request| u64::from(request.bytes);
        self.state.under_way.len() >= UNDER_WAY_MAX
            || self.state.under_way.iter().map(bytes).sum::<u64>() >= BYTES_UNDER_WAY_MAX
    }

    /// Takes what is in queue `index`.
    fn serve(&mut self, work: &mut Work<'_, '_>, index: u16) {
        let Some(size) = work.queues.get(usize::from(index)).map(Queue::size) else {
            return;
        };
        // A driver cannot have more than that in it: without an end what is written there could feed it.
        for _ in 0..size {
            let queue = &mut work.queues[usize::from(index)];
            if self.is_full() {
                self.state.is_behind = true;
                queue.hold_notifications(work.context.memory);
                return;
            }
            let Some(chain) = queue.pop(work.context.memory) else { return };
            self.begin(work, index, chain);
        }
    }

    /// Begins what `chain` asks for (5.2.6).
    fn begin(&mut self, work: &mut Work<'_, '_>, queue: u16, chain: Chain) {
        let head = chain.head;
        let Some((header, parts)) = Header::read(work.context.memory, chain) else {
            return work.queues[usize::from(queue)].fail();
        };
        let status_address = parts.status_address;
        let asked = match Kind::of(header.kind) {
            Some(Kind::Read) => self.read(work.context.memory, &header, parts.writable),
            Some(Kind::Write) => self.write(work, &header, &parts.readable),
            Some(Kind::Flush) => Ok((Task::Other, 0, DiskOperation::Flush)),
            Some(Kind::GetId) => {
                let written = self.write_id(work.context.memory, &parts.writable);
                return finish(work, queue, head, status_address, Status::Ok, written);
            }
            Some(kind @ (Kind::Discard | Kind::WriteZeroes)) => {
                self.change_range(work.context.memory, kind, &parts.readable)
            }
            None => Err(Status::Unsupported),
        };
        match asked {
            Ok((task, bytes, operation)) => {
                let tag = self.take_tag();
                let request = Request { tag, queue, head, bytes, status_address, task };
                self.state.under_way.push(request);
                work.context.ask_disk(UNIT, DiskRequest { tag, operation });
            }
            Err(status) => finish(work, queue, head, status_address, status, 0),
        }
    }

    fn take_tag(&mut self) -> u64 {
        let tag = self.state.next_tag;
        self.state.next_tag = tag.wrapping_add(1);
        tag
    }

    /// How many sectors a request for the bytes in `segments` has, when they are all on the disk and in memory.
    fn sectors(
        &self,
        memory: &Memory,
        header: &Header,
        segments: &[Segment],
    ) -> Result<u32, Status> {
        let bytes = segments::len(segments);
        let count = bytes / SECTOR_SIZE as u64;
        let is_whole = bytes.is_multiple_of(SECTOR_SIZE as u64) && bytes <= u64::from(REQUEST_MAX);
        let is_there = |segment: &Segment| memory.holds(segment.address, segment.len.into());
        if is_whole && self.has(header.sector, count) && segments.iter().all(is_there) {
            Ok(count as u32)
        } else {
            Err(Status::Error)
        }
    }

    fn has(&self, sector: u64, count: u64) -> bool {
        sector.checked_add(count).is_some_and(|end| end <= self.state.sectors)
    }

    fn read(
        &self,
        memory: &Memory,
        header: &Header,
        segments: Vec<Segment>,
    ) -> Result<(Task, u32, DiskOperation), Status> {
        let count = self.sectors(memory, header, &segments)?;
        let operation = DiskOperation::Read { sector: header.sector, count };
        Ok((Task::Read(segments), count * SECTOR_SIZE as u32, operation))
    }

    fn write(
        &self,
        work: &Work<'_, '_>,
        header: &Header,
        segments: &[Segment],
    ) -> Result<(Task, u32, DiskOperation), Status> {
        let memory = &*work.context.memory;
        let count = self.sectors(memory, header, segments)?;
        if self.disk.medium.read_only {
            return Err(Status::Error);
        }
        let data = gather(memory, segments);
        let task = if self.writes_through(work) { Task::WriteThrough } else { Task::Other };
        let operation = DiskOperation::Write { sector: header.sector, data };
        Ok((task, count * SECTOR_SIZE as u32, operation))
    }

    /// Discards, or makes zeros (5.2.6). There is one range in a request, as the configuration says.
    fn change_range(
        &self,
        memory: &Memory,
        kind: Kind,
        segments: &[Segment],
    ) -> Result<(Task, u32, DiskOperation), Status> {
        let range = Range::read(memory, segments).ok_or(Status::Error)?;
        let Range { sector, count, unmaps, has_unknown_flags } = range;
        let most = if kind == Kind::Discard { DISCARD_MAX } else { WRITE_ZEROES_MAX };
        if has_unknown_flags || kind == Kind::Discard && unmaps {
            return Err(Status::Unsupported);
        }
        if self.disk.medium.read_only || count > most || !self.has(sector, count.into()) {
            return Err(Status::Error);
        }
        let operation = match kind {
            Kind::Discard => DiskOperation::Discard { sector, count },
            _ => DiskOperation::WriteZeroes { sector, count, gives_up_room: unmaps },
        };
        Ok((Task::Other, 0, operation))
    }

    /// Writes the serial number; how many bytes.
    fn write_id(&self, memory: &mut Memory, segments: &[Segment]) -> u32 {
        let mut id = [0; 20];
        for (place, byte) in id.iter_mut().zip(self.disk.serial.bytes()) {
            *place = byte;
        }
        scatter(memory, segments, &id)
    }

    /// The drive has answered.
    fn answered(&mut self, work: &mut Work<'_, '_>, answer: &DiskAnswer) {
        let is_it = |request: &Request| request.tag == answer.tag;
        let Some(index) = self.state.under_way.iter().position(is_it) else { return };
        let mut request = self.state.under_way.remove(index);
        let (status, written) = match (&request.task, &answer.result) {
            (Task::Abandoned, _) => return self.catch_up(work),
            (Task::WriteThrough, Ok(_)) => {
                let tag = self.take_tag();
                (request.tag, request.task) = (tag, Task::Other);
                self.state.under_way.push(request);
                let operation = DiskOperation::Flush;
                return work.context.ask_disk(UNIT, DiskRequest { tag, operation });
            }
            (Task::Read(segments), Ok(bytes)) if bytes.len() == request.bytes as usize => {
                (Status::Ok, scatter(work.context.memory, segments, bytes))
            }
            (Task::Other, Ok(_)) => (Status::Ok, 0),
            _ => (Status::Error, 0),
        };
        let Request { queue, head, status_address, .. } = request;
        finish(work, queue, head, status_address, status, written);
        self.catch_up(work);
    }

    /// Takes what had to wait in the queues.
    fn catch_up(&mut self, work: &mut Work<'_, '_>) {
        if std::mem::take(&mut self.state.is_behind) {
            for index in 0..self.queue_count() {
                self.serve(work, index);
            }
        }
    }
}

/// Gives a request back: its status comes behind the `written` bytes of data.
fn finish(
    work: &mut Work<'_, '_>,
    queue: u16,
    head: u16,
    status_address: u64,
    status: Status,
    written: u32,
) {
    work.context.memory.write(status_address, &[status as u8]);
    if let Some(queue) = work.queues.get_mut(usize::from(queue)) {
        queue.push(work.context.memory, head, written.saturating_add(1));
    }
}

impl DeviceType for Block {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn id(&self) -> u16 {
        ID
    }

    fn class(&self) -> u32 {
        CLASS
    }

    fn features(&self) -> u64 {
        let mut all = features::SIZE_MAX
            | features::SEG_MAX
            | features::GEOMETRY
            | features::BLOCK_SIZE
            | features::FLUSH
            | features::TOPOLOGY
            | features::CONFIG_WCE;
        if self.queue_count() > 1 {
            all |= features::MULTIPLE_QUEUES;
        }
        if self.disk.medium.read_only {
            all | features::READ_ONLY
        } else {
            all | features::DISCARD | features::WRITE_ZEROES
        }
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![QUEUE_SIZE; self.queue_count().into()]
    }

    /// `struct virtio_blk_config` (5.2.4), up to the fields for write zeroes.
    fn config(&self) -> Vec<u8> {
        let track = u64::from(HEADS) * u64::from(SECTORS_PER_TRACK);
        let cylinders = u16::try_from(self.state.sectors / track).unwrap_or(u16::MAX);
        let mut all = Vec::with_capacity(60);
        all.extend(self.state.sectors.to_le_bytes());
        all.extend(SEGMENT_MAX.to_le_bytes());
        all.extend(SEGMENTS_MAX.to_le_bytes());
        all.extend(cylinders.to_le_bytes());
        all.extend([HEADS, SECTORS_PER_TRACK]);
        all.extend((SECTOR_SIZE as u32).to_le_bytes());
        // Topology: a physical block is one logical block, and so is the least transfer that pays; no best one is known.
        all.extend([0, 0, 1, 0, 0, 0, 0, 0]);
        all.extend([u8::from(self.state.writeback), 0]);
        all.extend(self.queue_count().to_le_bytes());
        all.extend([DISCARD_MAX, 1, DISCARD_ALIGNMENT].map(u32::to_le_bytes).as_flattened());
        all.extend([WRITE_ZEROES_MAX, 1].map(u32::to_le_bytes).as_flattened());
        // Write zeroes may unmap.
        all.extend([1, 0, 0, 0]);
        all
    }

    fn write_config(&mut self, work: &mut Work<'_, '_>, offset: usize, value: u8) {
        if offset == CONFIG_WRITEBACK && work.features & features::CONFIG_WCE != 0 {
            self.state.writeback = value != 0;
        }
    }

    fn notify(&mut self, work: &mut Work<'_, '_>, queue: u16) {
        self.serve(work, queue);
    }

    fn input(&mut self, work: &mut Work<'_, '_>, input: DeviceInput) {
        match input {
            DeviceInput::Disk(answer) => self.answered(work, &answer),
            // The image has another size now.
            DeviceInput::Medium { unit: UNIT, medium: Some(medium) } => {
                work.config_changed = self.state.sectors != medium.sectors;
                self.state.sectors = medium.sectors;
            }
            _ => {}
        }
    }

    fn reset(&mut self, _work: &mut Work<'_, '_>) {
        // They still keep the drive busy.
        for request in &mut self.state.under_way {
            request.task = Task::Abandoned;
        }
        self.state.writeback = true;
        self.state.is_behind = false;
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.device.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.device.name(), VERSION)?;
        let is_possible =
            |request: &Request| request.queue < self.queue_count() && request.bytes <= REQUEST_MAX;
        if state.under_way.len() > UNDER_WAY_MAX || !state.under_way.iter().all(is_possible) {
            return Err(saved.damaged("its requests cannot be those of this disk"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
