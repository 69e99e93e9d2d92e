//! The flight recorder: of a run that goes on for long, the last seconds are kept in memory, and written as a
//! recording when something happens that somebody will want to look at.
//!
//! What is kept begins with a checkpoint: the machine between two slices, with a copy of its memory. The inputs
//! since then follow. After the time that is to be covered another checkpoint is taken; when the next one is taken,
//! what was before the second goes. So two checkpoints are kept, which share the pages of memory that did not
//! change between them, and what is kept covers at least the time that is asked for, and at most twice as much.
//!
//! Inputs take memory too. Where they are as many as may be kept, checkpoints are taken sooner, and what is kept covers
//! less time. Most of what was read from disks is not kept, but read again for a recording ([`reads`]), of which a
//! bounded part may consist. The more memory the guest has, the less often checkpoints are taken at most, so that they
//! take the host a small part of its time; then what is kept covers more.
//!
//! A checkpoint is itself an input ([`Input::Checkpoint`]): the processor then forgets what it remembers of page
//! tables, so that a replay from an earlier checkpoint does the same as one that begins here.

mod reads;

use std::collections::VecDeque;
use std::fmt::{self, Debug, Display, Formatter};
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use ring3_core::clock::Time;
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, DriveId, SECTOR_SIZE};
use ring3_core::input::{DeviceInput, Input, StampedInput};
use ring3_core::memory::MemoryCopy;
use thiserror::Error;
use tracing::{debug, error, warn};

use crate::control::Ended;
use crate::drives::{Drive, Drives};
use crate::machine::{SavedMachine, Vm};
use crate::recording::{RecordingError, RecordingWriter};
use reads::{BLOCK, Blocks, Extent, Former, Requests};

/// How much of a run is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastOptions {
    /// The virtual time that is covered, at least.
    pub time: Duration,
    /// The most bytes of inputs that are kept; a few more may come in before the next checkpoint.
    pub input_bytes: u64,
    /// The most bytes that a recording may read from disks again; a few more may come in before the next checkpoint.
    pub read_bytes: u64,
}

/// Why the last seconds of a run are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occasion {
    /// The guest has caused a triple fault.
    TripleFault,
    /// The guest has stopped for good.
    Stopped,
    /// The guest has said that its system has failed.
    Panic,
    /// Somebody outside wants them, in this file or the usual one.
    Asked(Option<PathBuf>),
}

impl Display for Occasion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Occasion::TripleFault => "a triple fault",
            Occasion::Stopped => "the guest's end",
            Occasion::Panic => "the panic",
            Occasion::Asked(_) => "this moment",
        })
    }
}

/// The place on the host where the last seconds of runs are written.
pub trait Archive {
    /// Writes a recording with `write`. Returns the file that has it, or None if an earlier one is more important
    /// and stays.
    fn put(
        &mut self,
        occasion: &Occasion,
        write: &mut dyn FnMut(Box<dyn Write>) -> Result<(), RecordingError>,
    ) -> Result<Option<PathBuf>, KeepLastError>;
}

/// The reasons why the last seconds are not written.
#[derive(Debug, Error)]
pub enum KeepLastError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// They are not kept.
    #[error("the last seconds of this run are not kept: start it with --record-last")]
    NotKept,
    /// The host cannot write the file.
    #[error("cannot write the recording {path}: {source}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// The last seconds of a run in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLast {
    /// The file.
    pub file: PathBuf,
    /// The virtual time that it covers.
    pub time: Duration,
    /// The counts of instructions of its beginning and its end.
    pub instructions: (u64, u64),
}

impl KeptLast {
    /// Says in the log where the recording is.
    pub fn say(&self, occasion: &Occasion) {
        let KeptLast { file, time, instructions: (from, to) } = self;
        let (seconds, file) = (time.as_secs_f64(), file.display());
        warn!(
            "the last {seconds:.1} s before {occasion} are recorded: ring3 run --replay {file} repeats \
             instructions {from} to {to}"
        );
    }
}

/// The memory that a flight recorder takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Checkpoints that were taken.
    pub taken: u64,
    /// Those that are kept.
    pub checkpoints: u64,
    /// Bytes of memory in them.
    pub memory_bytes: u64,
    /// Bytes of inputs now, and when they were most.
    pub input_bytes: u64,
    /// See [`Kept::input_bytes`].
    pub most_input_bytes: u64,
    /// Bytes of disks that a recording would read again.
    pub read_bytes: u64,
}

/// An input, of which the data of a drive may be missing.
struct KeptInput {
    input: StampedInput,
    /// The place of the missing data.
    read: Option<Extent>,
}

/// A checkpoint, and the inputs up to the next one.
struct Part {
    machine: SavedMachine,
    memory: MemoryCopy,
    instructions: u64,
    time: Time,
    inputs: Vec<KeptInput>,
    /// The memory that inputs and former contents take.
    input_bytes: u64,
    /// Bytes of the data that are missing in inputs.
    read_bytes: u64,
    /// The blocks with these data, unless their contents are kept.
    read: Blocks,
    /// Contents of blocks that were changed in this part, for the inputs before that, of earlier parts as well.
    former: Former,
}

impl Part {
    fn input_bytes(&self) -> u64 {
        self.input_bytes + self.read.bytes()
    }
}

/// The flight recorder of a machine.
pub(super) struct Flight {
    /// The time between two checkpoints.
    pub(super) nanos: u64,
    most_bytes: u64,
    most_read_bytes: u64,
    requests: Requests,
    parts: VecDeque<Part>,
    taken: u64,
    most_input_bytes: u64,
    archive: Box<dyn Archive>,
}

/// The bytes of memory that are compared and copied for a checkpoint in a nanosecond, about.
const COPIED: u64 = 4;
/// How many times as long as that takes the time between two checkpoints is, at least, so that the guest gets on.
const REST: u64 = 25;

impl Debug for Flight {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

/// Returns how much memory an input takes.
fn bytes_of(input: &StampedInput) -> u64 {
    let data = match &input.input {
        Input::Device { input: DeviceInput::Disk(answer), .. } => {
            answer.result.as_ref().map_or(0, Vec::len)
        }
        Input::Device { input: DeviceInput::Serial(bytes), .. } => bytes.len(),
        Input::Device { input: DeviceInput::Packet(packet), .. } => packet.bytes.len(),
        _ => 0,
    };
    (size_of::<KeptInput>() + data) as u64
}

/// Returns `input`, the answer of a drive, with these data.
fn with_data(input: &StampedInput, data: Vec<u8>) -> StampedInput {
    let StampedInput { instructions, time, input } = input;
    let input = match input {
        Input::Device { device, input: DeviceInput::Disk(DiskAnswer { tag, .. }) } => {
            let answer = DiskAnswer { tag: *tag, result: Ok(data) };
            Input::Device { device: *device, input: DeviceInput::Disk(answer) }
        }
        input => input.clone(),
    };
    StampedInput { instructions: *instructions, time: *time, input }
}

/// Returns what `drive` has in `block`, which may be the last, incomplete one.
fn read_block(drive: &dyn Drive, block: u64) -> Result<Vec<u8>, DiskError> {
    let end = drive.medium().ok_or(DiskError::NoMedium)?.sectors;
    let sector = block * BLOCK;
    let count = end.saturating_sub(sector).min(BLOCK) as u32;
    drive.execute(&DiskOperation::Read { sector, count })
}

impl Flight {
    /// Returns whether the next checkpoint is to be taken at `now`.
    fn is_due(&self, now: Time) -> bool {
        let Some(last) = self.parts.back() else { return true };
        now.nanos_since(last.time) >= self.nanos
            || last.input_bytes() >= self.most_bytes / 2
            || last.read_bytes >= self.most_read_bytes / 2
    }

    /// Adds an input.
    pub(super) fn note(&mut self, input: &StampedInput) {
        let read = self.requests.answer(&input.input);
        // Before the first checkpoint nothing can be repeated.
        let Some(last) = self.parts.back_mut() else { return };
        let input = match &read {
            Some(extent) => {
                last.read.add(extent);
                last.read_bytes += extent.bytes();
                with_data(input, Vec::new())
            }
            None => input.clone(),
        };
        last.input_bytes += bytes_of(&input);
        last.inputs.push(KeptInput { input, read });
    }

    /// Keeps the contents that `extent` of `drive` has, as far as inputs need them.
    fn keep_former(&mut self, extent: &Extent, drive: &dyn Drive) {
        let mut blocks = Vec::new();
        for part in &mut self.parts {
            part.read.take(extent, &mut blocks);
        }
        blocks.sort_unstable();
        blocks.dedup();
        for block in blocks {
            let contents = read_block(drive, block);
            if self.input_bytes() > self.most_bytes {
                self.drop_first_parts(|_| false);
            }
            let is_kept = match (contents, self.parts.back_mut()) {
                (Ok(contents), Some(last)) if last.input_bytes() <= self.most_bytes => {
                    last.input_bytes += contents.len() as u64;
                    last.former.add(extent.drive, block, last.inputs.len(), contents);
                    true
                }
                _ => false,
            };
            if !is_kept {
                debug!(?extent, "what was read cannot be kept: the last seconds begin anew");
                self.parts.clear();
                return;
            }
        }
    }

    fn input_bytes(&self) -> u64 {
        self.parts.iter().map(Part::input_bytes).sum()
    }

    fn read_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.read_bytes).sum()
    }

    /// Drops what is older than need be, or more than may be kept.
    fn drop_old(&mut self, now: Time) {
        self.most_input_bytes = self.most_input_bytes.max(self.input_bytes());
        let nanos = self.nanos;
        self.drop_first_parts(|next| now.nanos_since(next.time) >= nanos);
    }

    /// Drops the first part as long as the next one is enough, as `is_enough` says, or all are too much.
    fn drop_first_parts(&mut self, is_enough: impl Fn(&Part) -> bool) {
        while self.parts.len() > 1
            && (is_enough(&self.parts[1])
                || self.input_bytes() > self.most_bytes
                || self.read_bytes() > self.most_read_bytes)
        {
            self.parts.pop_front();
        }
    }

    /// Returns the memory that it takes.
    fn kept(&self) -> Kept {
        let memory = self.parts.iter().enumerate().map(|(index, part)| {
            match index.checked_sub(1).and_then(|before| self.parts.get(before)) {
                Some(before) => part.memory.bytes_beside(&before.memory),
                None => part.memory.bytes(),
            }
        });
        let input_bytes = self.input_bytes();
        Kept {
            taken: self.taken,
            checkpoints: self.parts.len() as u64,
            memory_bytes: memory.sum(),
            input_bytes,
            most_input_bytes: self.most_input_bytes.max(input_bytes),
            read_bytes: self.read_bytes(),
        }
    }
}

/// Returns the data at `extent` as they were in the first of `parts`, when it had `inputs` inputs.
fn read_again<'a>(
    extent: &Extent,
    mut parts: impl Iterator<Item = &'a Part> + Clone,
    inputs: usize,
    drives: &Drives,
) -> Result<Vec<u8>, RecordingError> {
    let drive = drives.of(extent.drive);
    let fails = |error| RecordingError::Disk(extent.drive.device, error);
    let drive = drive.ok_or_else(|| fails(DiskError::NoMedium))?;
    let first = parts.next();
    let former = |block| {
        let here = first.and_then(|part| part.former.find(extent.drive, block, inputs));
        here.or_else(|| parts.clone().find_map(|part| part.former.find(extent.drive, block, 0)))
    };
    let Range { start: mut sector, end } = extent.sectors;
    let mut bytes = Vec::with_capacity(extent.bytes() as usize);
    while sector < end {
        let block = sector / BLOCK;
        let ends_at = |block: u64| end.min((block + 1) * BLOCK);
        if let Some(contents) = former(block) {
            let place = |sector: u64| (sector - block * BLOCK) as usize * SECTOR_SIZE;
            // The drive had all of these sectors.
            bytes.extend_from_slice(&contents[place(sector)..place(ends_at(block))]);
            sector = ends_at(block);
        } else {
            let mut last = block;
            while ends_at(last) < end && former(last + 1).is_none() {
                last += 1;
            }
            let count = (ends_at(last) - sector) as u32;
            bytes.extend(drive.execute(&DiskOperation::Read { sector, count }).map_err(fails)?);
            sector = ends_at(last);
        }
    }
    Ok(bytes)
}

/// Writes `parts` as a recording, which ends with the inputs `last`. Data of `drives` are read again.
fn write(
    parts: &VecDeque<Part>,
    last: &[StampedInput],
    drives: &Drives,
    out: Box<dyn Write>,
) -> Result<(), RecordingError> {
    let Some(first) = parts.front() else { return Ok(()) };
    let mut writer = RecordingWriter::of_moment(out, &first.machine, &first.memory)?;
    for (index, part) in parts.iter().enumerate() {
        for (count, kept) in (1..).zip(&part.inputs) {
            match &kept.read {
                None => writer.write(&kept.input),
                Some(extent) => {
                    let bytes = read_again(extent, parts.range(index..), count, drives)?;
                    writer.write(&with_data(&kept.input, bytes));
                }
            }
            writer.take_error().map_or(Ok(()), Err)?;
        }
    }
    for input in last {
        writer.write(input);
    }
    writer.finish()
}

impl Vm {
    /// Keeps the last seconds of the run from now on, as `options` say. On an [`Occasion`] they go to `archive`.
    pub fn keep_last(&mut self, options: LastOptions, archive: Box<dyn Archive>) {
        let asked = u64::try_from(options.time.as_nanos()).unwrap_or(u64::MAX);
        self.flight = Some(Flight {
            nanos: asked.max(self.memory_len() / COPIED * REST),
            most_bytes: options.input_bytes,
            most_read_bytes: options.read_bytes,
            requests: Requests::default(),
            parts: VecDeque::new(),
            taken: 0,
            most_input_bytes: 0,
            archive,
        });
    }

    /// Returns the memory that the flight recorder takes, if there is one.
    pub(super) fn kept_last(&self) -> Option<Kept> {
        self.flight.as_ref().map(Flight::kept)
    }

    /// Notes a request that a drive is about to get.
    pub(super) fn note_request(&mut self, id: DriveId, request: &DiskRequest) {
        let Some(flight) = &mut self.flight else { return };
        let Some(drive) = self.drives.of(id) else { return };
        if let Some(changes) = flight.requests.ask(id, request, drive.changes_only_here()) {
            flight.keep_former(&changes, &*drive);
        }
    }

    /// Notes that a drive is about to get another medium, or none, or to have another size.
    pub(super) fn note_new_medium(&mut self, id: DriveId) {
        let Some(flight) = &mut self.flight else { return };
        let Some(drive) = self.drives.of(id) else { return };
        let all = Extent::whole(id);
        flight.requests.doubt(&all);
        flight.keep_former(&all, &*drive);
    }

    /// Takes a checkpoint for the flight recorder, if one is due. This must be between two slices, where all outputs
    /// were handed out and no timer is due in a deterministic run.
    pub(super) fn keep_checkpoint(&mut self) {
        let now = self.now();
        let is_due = self.flight.as_ref().is_some_and(|flight| flight.is_due(now));
        if !is_due || !self.takes_inputs() {
            return;
        }
        // This input never ends the run.
        self.take_input(Input::Checkpoint);
        let machine = self.save_without_contents();
        let before = self.flight.as_ref().and_then(|flight| flight.parts.back());
        let memory = self.memory.copy(before.map(|part| &part.memory));
        let instructions = self.cpu.instructions;
        if let Some(flight) = &mut self.flight {
            flight.parts.push_back(Part {
                machine,
                memory,
                instructions,
                time: now,
                inputs: Vec::new(),
                input_bytes: 0,
                read_bytes: 0,
                read: Blocks::default(),
                former: Former::default(),
            });
            flight.taken += 1;
            flight.drop_old(now);
            debug!(instructions, ?flight, "checkpoint for the last seconds of the run");
        }
    }

    /// Writes the last seconds of the run. Returns None if an earlier recording stays in their place.
    pub(super) fn write_last(
        &mut self,
        occasion: &Occasion,
    ) -> Result<Option<KeptLast>, KeepLastError> {
        let (instructions, time) = (self.cpu.instructions, self.now());
        let flight = self.flight.as_mut().ok_or(KeepLastError::NotKept)?;
        let first = flight.parts.front().ok_or(KeepLastError::NotKept)?;
        let covered = Duration::from_nanos(time.nanos_since(first.time));
        let began = first.instructions;
        // A replay ends its last slice at the checkpoint, as this run has.
        let last = [Input::Checkpoint, Input::Quit].map(|input| StampedInput {
            instructions,
            time,
            input,
        });
        let Flight { archive, parts, .. } = flight;
        let drives = &self.drives;
        let file = archive.put(occasion, &mut |out| write(parts, &last, drives, out))?;
        Ok(file.map(|file| KeptLast { file, time: covered, instructions: (began, instructions) }))
    }

    /// Writes the last seconds of the run, if they are kept, and says so.
    pub(super) fn write_last_for(&mut self, occasion: &Occasion) {
        if self.flight.is_none() {
            return;
        }
        match self.write_last(occasion) {
            Ok(Some(kept)) => kept.say(occasion),
            Ok(None) => {}
            Err(error) => error!("{error}"),
        }
    }
}
