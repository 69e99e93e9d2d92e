//! A run that is repeated from its inputs alone.

use std::iter::Peekable;

use ring3_core::clock::Time;
use ring3_core::input::{DeviceInput, Input, StampedInput};

use crate::machine::{Console, Ending, Vm, VmError};
use crate::recording::RecordingError;

/// The inputs of a run that is being repeated.
pub(super) struct Replay {
    inputs: Peekable<Box<dyn Iterator<Item = Result<StampedInput, RecordingError>>>>,
    /// How many were taken.
    taken: u64,
    /// Requests to drives that were not answered at once, by device and tag.
    waiting: Vec<(String, u64)>,
}

impl Replay {
    /// The input that came next, without taking it.
    fn peek(&mut self) -> Result<Option<&StampedInput>, VmError> {
        if let Some(error) = self.inputs.next_if(Result::is_err).and_then(Result::err) {
            return Err(error.into());
        }
        Ok(self.inputs.peek().and_then(|input| input.as_ref().ok()))
    }

    /// The input that came next.
    fn take(&mut self) -> Result<Option<StampedInput>, VmError> {
        self.taken += 1;
        Ok(self.inputs.next().transpose()?)
    }

    /// What the drive behind `device` has answered at once to its request `tag`, which is made after `instructions` instructions;
    /// nothing, if it answered later.
    pub(super) fn take_answer(
        &mut self,
        instructions: u64,
        device: &str,
        tag: u64,
    ) -> Result<Option<Input>, VmError> {
        let asked = (device.to_owned(), tag);
        let next = self.peek()?.filter(|next| next.instructions == instructions);
        if next.and_then(|next| answered(&next.input)).as_ref() == Some(&asked) {
            return Ok(self.take()?.map(|next| next.input));
        }
        self.waiting.push(asked);
        Ok(None)
    }

    /// `answer` comes later than what it answers.
    fn was_waited_for(&mut self, answer: &(String, u64)) -> bool {
        let index = self.waiting.iter().position(|asked| asked == answer);
        index.map(|index| self.waiting.swap_remove(index)).is_some()
    }
}

/// The device and the tag of the request which `input` answers.
fn answered(input: &Input) -> Option<(String, u64)> {
    match input {
        Input::Device { name, input: DeviceInput::Disk(answer) } => {
            Some((name.clone(), answer.tag))
        }
        _ => None,
    }
}

/// Where the next input came in.
#[derive(Debug, Clone)]
struct Point {
    instructions: u64,
    time: Time,
    /// It was a look at the host's clock.
    is_host_time: bool,
    /// It was the answer of a drive, to this device and request.
    answered: Option<(String, u64)>,
}

impl From<&StampedInput> for Point {
    fn from(stamped: &StampedInput) -> Point {
        let input = &stamped.input;
        Point {
            instructions: stamped.instructions,
            time: stamped.time,
            is_host_time: matches!(input, Input::HostTime { .. }),
            answered: answered(input),
        }
    }
}

impl Vm {
    /// Repeats a run, from power-on or from where the machine was saved, with the inputs that were recorded; outputs go to
    /// `console` again. Host time plays no part; the host's x87 does (the last bits of its
    /// transcendental functions), so the host's processor is to be of the same design.
    pub fn replay(
        &mut self,
        recording: &[StampedInput],
        console: &mut dyn Console,
    ) -> Result<Ending, VmError> {
        let inputs = recording.to_vec();
        self.replay_from(inputs.into_iter().map(Ok), console)
    }

    /// The same with inputs that are read while the run is repeated, such as a [`Recording`](crate::recording::Recording).
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

    /// From now on, `inputs` are what drives answer and what is repeated.
    pub(super) fn begin_replay(
        &mut self,
        inputs: impl Iterator<Item = Result<StampedInput, RecordingError>> + 'static,
    ) {
        let inputs: Box<dyn Iterator<Item = _>> = Box::new(inputs);
        self.replay = Some(Replay { inputs: inputs.peekable(), taken: 0, waiting: Vec::new() });
    }

    /// The inputs are used up; drives are asked again.
    pub(super) fn end_replay(&mut self) {
        self.replay = None;
    }

    /// Repeats all inputs; how the run ended, if one of them has ended it or it ended before.
    pub(super) fn replay_inputs(
        &mut self,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        let mut is_first = true;
        while let Some(point) = self.next_replayed()? {
            let taken = self.inputs_replayed();
            // A normal run looked at the host's clock at the end of each slice.
            let is_slice_end = !is_first && point.is_host_time && !self.config.deterministic;
            is_first = false;
            // One that came at once is taken where the guest asks.
            let is_at_once = match (&mut self.replay, &point.answered) {
                (Some(replay), Some(answer)) => !replay.was_waited_for(answer),
                _ => false,
            };
            if is_slice_end
                || is_at_once
                || self.config.deterministic
                || self.cpu.instructions < point.instructions
            {
                let ending = self.replay_to(point.instructions, point.time, console)?;
                if ending.is_some() {
                    return Ok(ending);
                }
            }
            if is_at_once {
                if self.inputs_replayed() == taken {
                    return Err(VmError::Diverged(self.cpu.instructions));
                }
                continue;
            }
            if self.cpu.instructions != point.instructions {
                return Err(VmError::Diverged(self.cpu.instructions));
            }
            let Some(next) = self.replay.as_mut().map(Replay::take).transpose()?.flatten() else {
                break;
            };
            let mut ending = self.take_input(&next.input);
            if self.config.deterministic {
                ending = self.hand_out(console)?.or(ending);
            }
            if ending.is_some() {
                return Ok(ending);
            }
        }
        Ok(None)
    }

    /// Where the input that is to be repeated next came in.
    fn next_replayed(&mut self) -> Result<Option<Point>, VmError> {
        match &mut self.replay {
            Some(replay) => Ok(replay.peek()?.map(Point::from)),
            None => Ok(None),
        }
    }

    fn inputs_replayed(&self) -> u64 {
        self.replay.as_ref().map_or(0, |replay| replay.taken)
    }

    /// Goes on to where there were `instructions` instructions, and in a deterministic run virtual time `time`; how the run ended,
    /// if that was before.
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
            if self.cpu.instructions >= instructions || stands_still {
                return Ok(None);
            }
        }
    }
}
