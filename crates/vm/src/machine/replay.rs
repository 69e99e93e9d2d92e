//! Repeats a run from its inputs alone.

use std::io;
use std::mem;

use ring3_core::clock::Time;
use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input, StampedInput};

use crate::machine::{Console, Ending, Vm, VmError};
use crate::recording::{Recording, RecordingError};

/// The source of the inputs of a run that is being repeated.
pub(super) enum Inputs {
    /// It returns each input once.
    Once(Box<dyn Iterator<Item = Result<StampedInput, RecordingError>>>),
    /// It can be read again.
    Recording(Box<Recording>),
}

impl Inputs {
    fn next(&mut self) -> Result<Option<StampedInput>, RecordingError> {
        match self {
            Inputs::Once(inputs) => inputs.next().transpose(),
            Inputs::Recording(inputs) => inputs.next().transpose(),
        }
    }

    fn position(&self) -> u64 {
        match self {
            Inputs::Once(_) => 0,
            Inputs::Recording(recording) => Recording::position(recording),
        }
    }

    fn go_to(&mut self, position: u64) -> Result<(), RecordingError> {
        match self {
            Inputs::Once(_) => Err(RecordingError::Read(io::ErrorKind::NotSeekable.into())),
            Inputs::Recording(recording) => recording.go_to(position),
        }
    }
}

/// The inputs of a run that is being repeated.
pub(super) struct Replay {
    inputs: Inputs,
    /// The next input, if somebody has looked at it, and its position; or None instead of it, if there are no
    /// more.
    next: Option<(u64, Option<StampedInput>)>,
    /// Number of inputs that were taken.
    taken: u64,
    /// Requests to drives that were not answered at once, by device and tag.
    waiting: Vec<(DeviceId, u64)>,
    /// Why it could not go on in the middle of a slice.
    error: Option<VmError>,
}

/// A place among the inputs of a recording, to which a replay can return.
#[derive(Debug, Clone, Default)]
pub(super) struct InputPlace {
    position: u64,
    taken: u64,
    waiting: Vec<(DeviceId, u64)>,
}

impl Replay {
    /// Returns the next input without taking it.
    fn peek(&mut self) -> Result<Option<&StampedInput>, VmError> {
        if self.next.is_none() {
            let position = self.inputs.position();
            self.next = Some((position, self.inputs.next()?));
        }
        Ok(self.next.as_ref().and_then(|(_, input)| input.as_ref()))
    }

    /// Takes the next input.
    fn take(&mut self) -> Result<Option<StampedInput>, VmError> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        let next = self.next.take().and_then(|(_, input)| input);
        self.taken += u64::from(next.is_some());
        if let Some(answer) = next.as_ref().and_then(|next| answered(&next.input)) {
            self.waiting.retain(|asked| *asked != answer);
        }
        Ok(next)
    }

    /// Takes the answer that the drive of `device` gave at once to its request `tag`, which is made after
    /// `instructions` instructions. Returns None if it answered later.
    pub(super) fn take_answer(
        &mut self,
        instructions: u64,
        device: DeviceId,
        tag: u64,
    ) -> Result<Option<Input>, VmError> {
        let asked = (device, tag);
        let next = self.peek()?.filter(|next| next.instructions == instructions);
        if next.and_then(|next| answered(&next.input)) == Some(asked) {
            return Ok(self.take()?.map(|next| next.input));
        }
        self.waiting.push(asked);
        Ok(None)
    }

    /// Takes the host's clocks that the guest has read after `instructions` instructions. Returns None if it
    /// has not read them there; then [`Replay::take_error`] returns an error.
    pub(super) fn take_host_clocks(&mut self, instructions: u64) -> Option<Input> {
        let next =
            self.peek().map(|next| next.is_some_and(|next| next.is_read_after(instructions)));
        let taken = match next {
            Ok(true) => self.take(),
            Ok(false) => Err(VmError::Diverged(instructions)),
            Err(error) => Err(error),
        };
        match taken {
            Ok(taken) => taken.map(|taken| taken.input),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    /// Takes the error for which the replay cannot go on.
    pub(super) fn take_error(&mut self) -> Option<VmError> {
        self.error.take()
    }

    /// Returns whether the request that `answer` answers was made before.
    fn waits_for(&self, answer: (DeviceId, u64)) -> bool {
        self.waiting.contains(&answer)
    }

    /// Returns where the next input is.
    pub(super) fn place(&self) -> InputPlace {
        let position = self.next.as_ref().map(|(position, _)| *position);
        InputPlace {
            position: position.unwrap_or_else(|| self.inputs.position()),
            taken: self.taken,
            waiting: self.waiting.clone(),
        }
    }

    /// Continues with the input at `place`.
    pub(super) fn go_to(&mut self, place: &InputPlace) -> Result<(), VmError> {
        self.inputs.go_to(place.position)?;
        (self.next, self.error) = (None, None);
        (self.taken, self.waiting) = (place.taken, place.waiting.clone());
        Ok(())
    }
}

/// How far one step of a replay has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has taken an input.
    Input,
    /// There are no more inputs.
    UsedUp,
    /// It has reached the count of instructions that is its limit.
    Limit,
    /// It has stopped for the debugger.
    Stopped,
    /// The run has ended.
    Ended(Ending),
}

/// Returns the device and the tag of the request that `input` answers.
fn answered(input: &Input) -> Option<(DeviceId, u64)> {
    match input {
        Input::Device { device, input: DeviceInput::Disk(answer) } => Some((*device, answer.tag)),
        _ => None,
    }
}

/// The point at which the next input came in.
#[derive(Debug, Clone)]
struct Point {
    instructions: u64,
    time: Time,
    /// Whether a slice ended here: at a look at the host's clock, or a checkpoint.
    ends_slice: bool,
    /// The device and request that it answered, if it was the answer of a drive.
    answered: Option<(DeviceId, u64)>,
    /// The number of instructions after which it was there.
    taken_by: u64,
}

impl From<&StampedInput> for Point {
    fn from(stamped: &StampedInput) -> Point {
        let input = &stamped.input;
        Point {
            instructions: stamped.instructions,
            time: stamped.time,
            ends_slice: matches!(input, Input::HostTime { .. } | Input::Checkpoint),
            answered: answered(input),
            taken_by: stamped.taken_by(),
        }
    }
}

impl Vm {
    /// Repeats a run, from power-on or from where the machine was saved, with the recorded inputs; outputs go
    /// to `console` again. Host time plays no part. The host's x87 does, by the last bits of its
    /// transcendental functions, so the host's processor should be of the same design.
    pub fn replay(
        &mut self,
        recording: &[StampedInput],
        console: &mut dyn Console,
    ) -> Result<Ending, VmError> {
        let inputs = recording.to_vec();
        self.replay_from(inputs.into_iter().map(Ok), console)
    }

    /// Repeats a run with inputs that are read meanwhile, such as those of a
    /// [`Recording`].
    pub fn replay_from(
        &mut self,
        inputs: impl Iterator<Item = Result<StampedInput, RecordingError>> + 'static,
        console: &mut dyn Console,
    ) -> Result<Ending, VmError> {
        self.begin_replay(inputs);
        let ended = self.replay_inputs(console).and_then(|ended| match ended {
            Some(ending) => Ok(ending),
            None => self
                .replay_to(u64::MAX, Time::ZERO, console)?
                .ok_or(VmError::Diverged(self.cpu.instructions)),
        });
        self.end_replay();
        let ending = ended?;
        self.finish(&ending, console)?;
        Ok(ending)
    }

    /// Makes `inputs` the inputs from now on, including the answers of drives.
    pub(super) fn begin_replay(
        &mut self,
        inputs: impl Iterator<Item = Result<StampedInput, RecordingError>> + 'static,
    ) {
        self.begin_replay_of(Inputs::Once(Box::new(inputs)));
    }

    /// Makes `inputs` the inputs from now on, including the answers of drives.
    pub(super) fn begin_replay_of(&mut self, inputs: Inputs) {
        let waiting = mem::take(&mut self.asked);
        self.replay = Some(Replay { inputs, next: None, taken: 0, waiting, error: None });
    }

    /// Ends the replay when its inputs are used up: drives execute requests again. Another replay can continue
    /// from here.
    pub(super) fn end_replay(&mut self) {
        self.asked = self.replay.take().map(|replay| replay.waiting).unwrap_or_default();
    }

    /// Returns the requests to drives that were not answered yet, by device and tag.
    pub(super) fn asked(&self) -> Vec<(DeviceId, u64)> {
        match &self.replay {
            Some(replay) => replay.waiting.clone(),
            None if self.drives.are_waiting() => self.drives.asked(),
            None => self.asked.clone(),
        }
    }

    /// Repeats all inputs. Returns how the run ended, if one of them has ended it or it ended before.
    pub(super) fn replay_inputs(
        &mut self,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        loop {
            match self.replay_on(u64::MAX, console)? {
                Progress::Ended(ending) => return Ok(Some(ending)),
                Progress::UsedUp => return Ok(None),
                Progress::Input | Progress::Limit | Progress::Stopped => {}
            }
        }
    }

    /// Repeats the run up to the next input, and takes that. If it came after `limit` instructions or more,
    /// the run is repeated up to `limit` instructions.
    pub(super) fn replay_on(
        &mut self,
        limit: u64,
        console: &mut dyn Console,
    ) -> Result<Progress, VmError> {
        let Some(point) = self.next_replayed()? else { return Ok(Progress::UsedUp) };
        if point.instructions >= limit {
            return self.replay_up_to(limit, console);
        }
        let taken = self.inputs_replayed();
        // A normal run looked at the host's clock at the end of each slice.
        let is_slice_end = taken > 0 && point.ends_slice && !self.config.deterministic;
        // An answer that came at once is taken where the guest makes its request.
        let is_at_once = match (&self.replay, point.answered) {
            (Some(replay), Some(answer)) => !replay.waits_for(answer),
            // The guest takes the values of clocks in the middle of an instruction.
            _ => point.taken_by > point.instructions,
        };
        if is_slice_end
            || is_at_once
            || self.config.deterministic
            || self.cpu.instructions < point.taken_by
        {
            let ending = self.replay_to(point.taken_by, point.time, console)?;
            if let Some(ending) = ending {
                return Ok(Progress::Ended(ending));
            }
            if self.debugging.has_stopped() {
                return Ok(Progress::Stopped);
            }
        }
        if is_at_once {
            if self.inputs_replayed() == taken {
                return Err(VmError::Diverged(self.cpu.instructions));
            }
            return Ok(Progress::Input);
        }
        if self.cpu.instructions != point.instructions {
            return Err(VmError::Diverged(self.cpu.instructions));
        }
        let Some(next) = self.replay.as_mut().map(Replay::take).transpose()?.flatten() else {
            return Ok(Progress::UsedUp);
        };
        let mut ending = self.take_input(next.input);
        if self.config.deterministic {
            ending = self.hand_out(console)?.or(ending);
        }
        Ok(ending.map_or(Progress::Input, Progress::Ended))
    }

    /// Repeats the run up to `limit` instructions, before which there is no input.
    pub(super) fn replay_up_to(
        &mut self,
        limit: u64,
        console: &mut dyn Console,
    ) -> Result<Progress, VmError> {
        if self.cpu.instructions < limit {
            if let Some(ending) = self.replay_to(limit, Time::ZERO, console)? {
                return Ok(Progress::Ended(ending));
            }
            if self.debugging.has_stopped() {
                return Ok(Progress::Stopped);
            }
            if self.cpu.instructions < limit {
                return Err(VmError::Diverged(self.cpu.instructions));
            }
        }
        Ok(Progress::Limit)
    }

    /// Returns the point at which the next input came in.
    fn next_replayed(&mut self) -> Result<Option<Point>, VmError> {
        match &mut self.replay {
            Some(replay) => Ok(replay.peek()?.map(Point::from)),
            None => Ok(None),
        }
    }

    fn inputs_replayed(&self) -> u64 {
        self.replay.as_ref().map_or(0, |replay| replay.taken)
    }

    /// Advances to the point with `instructions` instructions and, in a deterministic run, virtual time
    /// `time`, unless the guest stops for the debugger. Returns how the run ended, if that was before.
    pub(super) fn replay_to(
        &mut self,
        instructions: u64,
        time: Time,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        if self.config.deterministic {
            return self.advance(instructions, time, console);
        }
        loop {
            let before = self.cpu.instructions;
            let ended = self.run_slice(instructions);
            let must_go_on = self.board.has_urgent_outputs();
            if let Some(ending) = self.hand_out(console)?.or(ended) {
                return Ok(Some(ending));
            }
            if let Some(ending) = self.end_if_stuck() {
                return Ok(Some(ending));
            }
            let stands_still = self.cpu.instructions == before && !must_go_on;
            let is_over = stands_still || self.debugging.has_stopped();
            if self.cpu.instructions >= instructions || is_over {
                return Ok(None);
            }
        }
    }
}
