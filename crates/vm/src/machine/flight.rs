//! The flight recorder: of a run that goes on for long, the last seconds are kept in memory, and written as a
//! recording when something happens that somebody will want to look at.
//!
//! What is kept begins with a checkpoint: the machine between two slices, with a copy of its memory. The inputs
//! since then follow. After the time that is to be covered another checkpoint is taken; when the next one is taken,
//! what was before the second goes. So two checkpoints are kept, which share the pages of memory that did not
//! change between them, and what is kept covers at least the time that is asked for, and at most twice as much.
//!
//! Inputs take memory too: those of a disk are all that was read from it. Where they are as many as may be kept,
//! checkpoints are taken sooner, and what is kept covers less time. The more memory the
//! guest has, the less often checkpoints are taken at most, so that they take the host a small part of its time; then what
//! is kept covers more.
//!
//! A checkpoint is itself an input ([`Input::Checkpoint`]): the processor then forgets what it remembers of page
//! tables, so that a replay from an earlier checkpoint does the same as one that begins here.

use std::collections::VecDeque;
use std::fmt::{self, Debug, Display, Formatter};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use ring3_core::clock::Time;
use ring3_core::input::{DeviceInput, Input, StampedInput};
use ring3_core::memory::MemoryCopy;
use thiserror::Error;
use tracing::{debug, error, warn};

use crate::control::Ended;
use crate::machine::{SavedMachine, Vm};
use crate::recording::{RecordingError, RecordingWriter};

/// How much of a run is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastOptions {
    /// The virtual time that is covered, at least.
    pub time: Duration,
    /// The most bytes of inputs that are kept; a few more may come in before the next checkpoint.
    pub input_bytes: u64,
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
}

/// A checkpoint, and the inputs up to the next one.
struct Part {
    machine: SavedMachine,
    memory: MemoryCopy,
    instructions: u64,
    time: Time,
    inputs: Vec<StampedInput>,
    input_bytes: u64,
}

/// The flight recorder of a machine.
pub(super) struct Flight {
    /// The time between two checkpoints.
    pub(super) nanos: u64,
    most_bytes: u64,
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
    (size_of::<StampedInput>() + data) as u64
}

impl Flight {
    /// Returns whether the next checkpoint is to be taken at `now`.
    fn is_due(&self, now: Time) -> bool {
        let Some(last) = self.parts.back() else { return true };
        now.nanos_since(last.time) >= self.nanos || last.input_bytes >= self.most_bytes / 2
    }

    /// Adds an input.
    pub(super) fn note(&mut self, input: StampedInput) {
        // Before the first checkpoint nothing can be repeated.
        let Some(last) = self.parts.back_mut() else { return };
        last.input_bytes += bytes_of(&input);
        last.inputs.push(input);
    }

    fn input_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.input_bytes).sum()
    }

    /// Drops what is older than need be, or more than may be kept.
    fn drop_old(&mut self, now: Time) {
        self.most_input_bytes = self.most_input_bytes.max(self.input_bytes());
        while self.parts.len() > 1 {
            let covers = now.nanos_since(self.parts[1].time) >= self.nanos;
            if !covers && self.input_bytes() <= self.most_bytes {
                break;
            }
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
        }
    }
}

/// Writes `parts` as a recording, which ends with the inputs `last`.
fn write(
    parts: &VecDeque<Part>,
    last: &[StampedInput],
    out: Box<dyn Write>,
) -> Result<(), RecordingError> {
    let Some(first) = parts.front() else { return Ok(()) };
    let mut writer = RecordingWriter::of_moment(out, &first.machine, &first.memory)?;
    for input in parts.iter().flat_map(|part| &part.inputs).chain(last) {
        writer.write(input);
        if let Some(error) = writer.take_error() {
            return Err(error);
        }
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
            let (inputs, input_bytes) = (Vec::new(), 0);
            flight.parts.push_back(Part {
                machine,
                memory,
                instructions,
                time: now,
                inputs,
                input_bytes,
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
        let file = archive.put(occasion, &mut |out| write(parts, &last, out))?;
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
