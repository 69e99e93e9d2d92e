//! The execution phase of the commands that work on sectors.
//!
//! For each sector: the diskette turns until it is under the head ([`Stage::Turning`]), the drive is asked for what
//! it holds or told what to hold ([`Stage::Asking`]), and bytes go to the processor after the one or come from
//! it before the other ([`Stage::Transferring`]).

use ring3_core::device::Context;
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, SECTOR_SIZE};
use ring3_core::dma::DmaBytes;
use serde::{Deserialize, Serialize};

use super::command::{SectorId, Task, Work};
use super::media::Format;
use super::{Floppy, IMPLIED_SEEK, MSR_NON_DMA, MSR_REQUEST, MSR_TO_HOST, NON_DMA, SECTOR};
use super::{SETTLE_NANOS, ST0_ABNORMAL};

/// From one sector to the next.
const SECTOR_NANOS: u64 = 100_000;
/// A turn of the diskette, which READ ID tells sectors by: 300 in a minute.
const TURN_NANOS: u64 = 200_000_000;
/// Cylinder, head, sector and size of a sector that is formatted.
const ID_BYTES: usize = 4;
/// The size of sectors as their identification tells it.
const SIZE_512: u8 = 2;
/// A cylinder number that marks a bad track.
const BAD_CYLINDER: u8 = 0xff;

/// Status registers 1 and 2: what went wrong. Whatever does has a bit in the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status(u8, u8);

impl Status {
    const GOOD: Status = Status(0, 0);
    /// The sector after the last one was asked for.
    const END_OF_CYLINDER: Status = Status(1 << 7, 0);
    const DATA_ERROR: Status = Status(1 << 5, 1 << 5);
    const NO_DATA: Status = Status(1 << 2, 0);
    const WRONG_CYLINDER: Status = Status(1 << 2, 1 << 4);
    const BAD_CYLINDER: Status = Status(1 << 2, 1 << 4 | 1 << 1);
    const NOT_WRITABLE: Status = Status(1 << 1, 0);
    const MISSING_ADDRESS_MARK: Status = Status(1 << 0, 0);
    /// The mark of a sector is not that of the command.
    const CONTROL_MARK: Status = Status(0, 1 << 6);
}

/// How bytes come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Transfer {
    Dma,
    /// By the data register, with an interrupt.
    Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    Turning,
    Asking { tag: u64 },
    Transferring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Sectors,
    ReadId,
}

/// A command in its execution phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Execution {
    kind: Kind,
    task: Task,
    stage: Stage,
    transfer: Transfer,
    /// What was read, or what has come to be written.
    buffer: Vec<u8>,
    /// How much of what was read has gone.
    position: usize,
    /// Terminal count has come.
    ends: bool,
}

impl Execution {
    pub(super) fn of_sectors(task: Task) -> Execution {
        Execution {
            kind: Kind::Sectors,
            task,
            stage: Stage::Turning,
            transfer: Transfer::Dma,
            buffer: Vec::new(),
            position: 0,
            ends: false,
        }
    }

    /// READ ID, from its two bytes.
    pub(super) fn of_read_id(options: u8, select: u8) -> Execution {
        let mut bytes = [0; super::LONGEST_COMMAND];
        [bytes[0], bytes[1]] = [options, select];
        Execution { kind: Kind::ReadId, ..Execution::of_sectors(Task::new(Work::Read, bytes)) }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.buffer.len() <= SECTOR_SIZE
            && self.position <= self.buffer.len()
            && self.task.drive < 4
            && self.task.head < 2
    }

    /// How bytes are to be moved now, if they are.
    pub(super) fn transfer(&self) -> Option<Transfer> {
        (self.stage == Stage::Transferring).then_some(self.transfer)
    }

    /// What the main status register says of it.
    pub(super) fn main_status(&self) -> u8 {
        match (self.transfer, self.stage) {
            (Transfer::Dma, _) => 0,
            (Transfer::Bytes, Stage::Transferring) if self.is_from_host() => {
                MSR_NON_DMA | MSR_REQUEST
            }
            (Transfer::Bytes, Stage::Transferring) => MSR_NON_DMA | MSR_REQUEST | MSR_TO_HOST,
            (Transfer::Bytes, _) => MSR_NON_DMA,
        }
    }

    /// True when the processor is to give bytes.
    pub(super) fn is_from_host(&self) -> bool {
        self.task.work.is_from_host()
    }

    /// How many bytes the processor gives for a sector.
    fn wanted(&self) -> usize {
        if self.task.work == Work::Format { ID_BYTES } else { SECTOR_SIZE }
    }

    /// Sectors with the other mark pass by, and VERIFY gives nothing.
    fn gives_nothing(&self) -> bool {
        match self.task.work {
            Work::Verify => true,
            Work::ReadDeleted => self.task.skip,
            _ => false,
        }
    }
}

impl Floppy {
    pub(super) fn start(&mut self, context: &mut Context<'_>, mut execution: Execution) {
        if self.state.specify[1] & NON_DMA != 0 {
            execution.transfer = Transfer::Bytes;
        }
        let mut nanos = SECTOR_NANOS;
        let Task { work, drive, id, .. } = execution.task;
        let seeks = execution.kind == Kind::Sectors && work != Work::Format;
        if seeks && self.state.configure & IMPLIED_SEEK != 0 {
            let from = &mut self.state.cylinders[usize::from(drive & 3)];
            let steps = i16::from(id.cylinder) - i16::from(*from);
            *from = id.cylinder;
            if self.drive(drive).is_some() {
                self.state.drives[usize::from(drive)].step(steps);
            }
            nanos += SETTLE_NANOS;
        }
        self.state.execution = Some(execution);
        context.set_timer(SECTOR, context.now.plus_nanos(nanos));
    }

    /// The diskette has turned far enough.
    pub(super) fn sector_found(&mut self, context: &mut Context<'_>) {
        let Some(execution) = &self.state.execution else { return };
        if execution.stage != Stage::Turning {
            return;
        }
        let (kind, task) = (execution.kind, execution.task);
        if kind == Kind::ReadId {
            return self.read_id(context, &task);
        }
        let found = if task.work == Work::Format {
            self.track(&task).map(|_| 0)
        } else {
            self.locate(&task)
        };
        match found {
            Err(status) => self.finish(status),
            Ok(_) if task.work.is_from_host() && self.is_protected(task.drive) => {
                self.finish(Status::NOT_WRITABLE);
            }
            Ok(_) if task.work.is_from_host() => self.begin_transfer(Vec::new()),
            Ok(sector) => self.ask(context, DiskOperation::Read { sector, count: 1 }),
        }
    }

    fn read_id(&mut self, context: &Context<'_>, task: &Task) {
        match self.track(task) {
            Err(status) => self.finish(status),
            Ok((format, cylinder)) => {
                let angle = context.now.as_nanos() % TURN_NANOS;
                let sector = 1 + (angle * u64::from(format.sectors) / TURN_NANOS) as u8;
                let id = SectorId { cylinder, head: task.head, sector, size: SIZE_512 };
                if let Some(execution) = &mut self.state.execution {
                    execution.task.id = id;
                }
                self.finish(Status::GOOD);
            }
        }
    }

    fn is_protected(&self, drive: u8) -> bool {
        let medium = self.drive(drive).and_then(|(_, drive)| drive.medium);
        medium.is_some_and(|medium| medium.read_only)
    }

    /// The format of the diskette and the cylinder under the head, if there is anything to be read there.
    fn track(&self, task: &Task) -> Result<(&'static Format, u8), Status> {
        let (kind, drive) = self.drive(task.drive).ok_or(Status::MISSING_ADDRESS_MARK)?;
        let readable = self.motor_runs(task.drive) && task.mfm;
        drive
            .cylinder(kind, self.state.rate)
            .filter(|(format, _)| readable && task.head < format.heads)
            .ok_or(Status::MISSING_ADDRESS_MARK)
    }

    /// The sector of the image with the identification that the command looks for.
    fn locate(&self, task: &Task) -> Result<u64, Status> {
        let (format, cylinder) = self.track(task)?;
        let SectorId { sector, .. } = task.id;
        let place = format.sector(cylinder, task.head, sector);
        let sectors = self.drive(task.drive).and_then(|(_, drive)| drive.medium).map(|m| m.sectors);
        let exists =
            (1..=format.sectors).contains(&sector) && sectors.is_some_and(|all| place < all);
        let id = SectorId { cylinder, head: task.head, sector, size: SIZE_512 };
        if task.id.cylinder != cylinder && task.work != Work::ReadTrack {
            let bad = task.id.cylinder == BAD_CYLINDER;
            return Err(if bad { Status::BAD_CYLINDER } else { Status::WRONG_CYLINDER });
        }
        if !exists || id.size != task.id.size || id.head != task.id.head {
            return Err(Status::NO_DATA);
        }
        Ok(place)
    }

    fn ask(&mut self, context: &mut Context<'_>, operation: DiskOperation) {
        let tag = self.state.next_tag;
        self.state.next_tag = tag.wrapping_add(1);
        if let Some(execution) = &mut self.state.execution {
            execution.stage = Stage::Asking { tag };
            context.ask_disk(execution.task.drive, DiskRequest { tag, operation });
        }
    }

    /// The drive has done what it was asked. Answers to commands that were broken off are ignored.
    pub(super) fn take_answer(&mut self, context: &mut Context<'_>, answer: DiskAnswer) {
        let Some(execution) = &self.state.execution else { return };
        if execution.stage != (Stage::Asking { tag: answer.tag }) {
            return;
        }
        let from_host = execution.is_from_host();
        match answer.result {
            Err(DiskError::ReadOnly) => self.finish(Status::NOT_WRITABLE),
            Err(DiskError::NoMedium) => self.finish(Status::MISSING_ADDRESS_MARK),
            Ok(_) if from_host || execution.gives_nothing() => self.sector_done(context),
            Ok(data) if data.len() == SECTOR_SIZE => self.begin_transfer(data),
            Ok(_) | Err(_) => self.finish(Status::DATA_ERROR),
        }
    }

    fn begin_transfer(&mut self, data: Vec<u8>) {
        if let Some(execution) = &mut self.state.execution {
            execution.buffer = data;
            execution.position = 0;
            execution.stage = Stage::Transferring;
        }
    }

    /// Moves bytes by DMA; terminal count comes with the last of `bytes`.
    pub(super) fn transfer(&mut self, context: &mut Context<'_>, bytes: DmaBytes<'_>) -> usize {
        let Some(execution) = &mut self.state.execution else { return 0 };
        if execution.transfer() != Some(Transfer::Dma) {
            return 0;
        }
        let (moved, offered) = match (bytes, execution.is_from_host()) {
            (DmaBytes::FromDevice(bytes), false) => {
                let rest = &execution.buffer[execution.position..];
                let moved = rest.len().min(bytes.len());
                bytes[..moved].copy_from_slice(&rest[..moved]);
                execution.position += moved;
                (moved, bytes.len())
            }
            (DmaBytes::ToDevice(bytes), true) => {
                let room = execution.wanted().saturating_sub(execution.buffer.len());
                let moved = room.min(bytes.len());
                execution.buffer.extend(&bytes[..moved]);
                (moved, bytes.len())
            }
            // The DMA controller is set up for the other direction.
            _ => return 0,
        };
        execution.ends = moved == offered;
        self.bytes_moved(context);
        moved
    }

    /// The processor reads the data register in the execution phase.
    pub(super) fn read_byte(&mut self, context: &mut Context<'_>) -> u8 {
        match &mut self.state.execution {
            Some(execution)
                if execution.transfer() == Some(Transfer::Bytes) && !execution.is_from_host() =>
            {
                let byte = execution.buffer.get(execution.position).copied().unwrap_or(0);
                execution.position = (execution.position + 1).min(execution.buffer.len());
                self.bytes_moved(context);
                byte
            }
            _ => 0xff,
        }
    }

    /// The processor writes the data register in the execution phase.
    pub(super) fn write_byte(&mut self, context: &mut Context<'_>, byte: u8) {
        if let Some(execution) = &mut self.state.execution
            && execution.transfer() == Some(Transfer::Bytes)
            && execution.is_from_host()
        {
            execution.buffer.push(byte);
            self.bytes_moved(context);
        }
    }

    /// Goes on when a sector's bytes have all gone or come, or no more do.
    fn bytes_moved(&mut self, context: &mut Context<'_>) {
        let Some(execution) = &mut self.state.execution else { return };
        if !execution.is_from_host() {
            if execution.ends || execution.position == execution.buffer.len() {
                self.sector_done(context);
            }
            return;
        }
        if !execution.ends && execution.buffer.len() < execution.wanted() {
            return;
        }
        let mut data = std::mem::take(&mut execution.buffer);
        if execution.task.work == Work::Format {
            return self.format_sector(context, &data);
        }
        // What terminal count leaves of a sector is filled with zeros.
        data.resize(SECTOR_SIZE, 0);
        match self.execution_task().map(|task| self.locate(&task)) {
            Some(Ok(sector)) => self.ask(context, DiskOperation::Write { sector, data }),
            Some(Err(status)) => self.finish(status),
            None => {}
        }
    }

    fn execution_task(&self) -> Option<Task> {
        self.state.execution.as_ref().map(|execution| execution.task)
    }

    /// Formats the sector whose identification has come: one that the image has a place for.
    fn format_sector(&mut self, context: &mut Context<'_>, id: &[u8]) {
        let Some(execution) = &mut self.state.execution else { return };
        let [cylinder, head, sector, size] = *id else {
            // Terminal count came within it.
            return self.finish(Status::GOOD);
        };
        execution.task.id = SectorId { cylinder, head, sector, size };
        let task = execution.task;
        match self.locate(&task) {
            Ok(sector) => {
                let data = vec![task.filler; SECTOR_SIZE];
                self.ask(context, DiskOperation::Write { sector, data });
            }
            Err(_) => self.finish(Status::NOT_WRITABLE),
        }
    }

    /// A sector is through: on to the next, or to the end.
    fn sector_done(&mut self, context: &mut Context<'_>) {
        let Some(execution) = &mut self.state.execution else { return };
        let task = &mut execution.task;
        if task.work == Work::ReadDeleted && !task.skip {
            return self.finish(Status::CONTROL_MARK);
        }
        let at_end = task.work != Work::Format && task.advance();
        let counted_out = task.left.as_mut().is_some_and(|left| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        let ends_by_itself = matches!(task.work, Work::ReadTrack | Work::Verify);
        if execution.ends || counted_out || at_end && ends_by_itself {
            self.finish(Status::GOOD);
        } else if at_end {
            self.finish(Status::END_OF_CYLINDER);
        } else {
            execution.stage = Stage::Turning;
            execution.buffer.clear();
            execution.position = 0;
            context.set_timer(SECTOR, context.now.plus_nanos(SECTOR_NANOS));
        }
    }

    /// The result phase.
    fn finish(&mut self, status: Status) {
        let Some(Execution { task, .. }) = self.state.execution.take() else { return };
        let Status(st1, st2) = status;
        let code = if st1 == 0 { 0 } else { ST0_ABNORMAL };
        let st0 = code | task.head << 2 | task.drive;
        self.reply(&[st0, st1, st2]);
        self.reply(&task.id.bytes());
        self.state.interrupt = true;
    }
}
