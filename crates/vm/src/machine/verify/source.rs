//! The sources of a verified run's inputs.

use std::iter::Peekable;

use ring3_core::input::StampedInput;

use crate::door::Door;
use crate::machine::deterministic::Deterministic;
use crate::machine::verify::{Outcome, Tee};
use crate::machine::{Console, Vm, VmError};
use crate::recording::RecordingError;

/// A part of a run: the results of the tested machine, and everything that the other one needs to repeat it.
pub(super) struct Segment {
    pub(super) inputs: Vec<StampedInput>,
    pub(super) came: Outcome,
    /// The count of instructions up to which it is repeated.
    pub(super) target: u64,
}

/// The source of the inputs with which the tested machine continues.
pub(super) trait Source {
    /// Runs `vm` until it has executed `stop` instructions, or ends, or cannot continue.
    fn run(
        &mut self,
        vm: &mut Vm,
        stop: u64,
        console: &mut dyn Console,
    ) -> Result<Segment, VmError>;
}

/// A run that takes place now.
pub(super) struct Live<'a> {
    run: Deterministic,
    door: &'a mut Door,
}

impl Live<'_> {
    pub(super) fn new(door: &mut Door) -> Live<'_> {
        Live { run: Deterministic::default(), door }
    }
}

impl Source for Live<'_> {
    fn run(
        &mut self,
        vm: &mut Vm,
        stop: u64,
        console: &mut dyn Console,
    ) -> Result<Segment, VmError> {
        vm.record();
        let mut tee = Tee { console: Some(console), sent: Vec::new() };
        let ended = vm.run_until(&mut self.run, self.door, &mut tee, stop);
        let came = Outcome::of(ended, tee.sent)?;
        let inputs = vm.recording.take().unwrap_or_default();
        let target = target(vm, &came, vm.cpu.instructions);
        Ok(Segment { inputs, came, target })
    }
}

/// A run that was recorded.
pub(super) struct Recorded<I: Iterator<Item = Result<StampedInput, RecordingError>>> {
    inputs: Peekable<I>,
}

impl<I: Iterator<Item = Result<StampedInput, RecordingError>>> Recorded<I> {
    pub(super) fn new(inputs: I) -> Recorded<I> {
        Recorded { inputs: inputs.peekable() }
    }
}

impl<I: Iterator<Item = Result<StampedInput, RecordingError>>> Source for Recorded<I> {
    fn run(
        &mut self,
        vm: &mut Vm,
        stop: u64,
        console: &mut dyn Console,
    ) -> Result<Segment, VmError> {
        let comes = |next: &Result<StampedInput, RecordingError>| {
            next.as_ref().is_ok_and(|input| input.taken_by() <= stop)
        };
        let mut inputs = Vec::new();
        while let Some(input) = self.inputs.next_if(comes) {
            inputs.push(input?);
        }
        let mut stop = stop;
        if let Some(Err(_)) = self.inputs.peek() {
            // An input that cannot be read does not prevent comparing the part before it.
            match inputs.last() {
                Some(last) => stop = last.taken_by().max(vm.cpu.instructions),
                None => drop(self.inputs.next().transpose()?),
            }
        }
        let came = vm.repeat(&inputs, stop, Some(console))?;
        let target = target(vm, &came, stop);
        Ok(Segment { inputs, came, target })
    }
}

/// Returns the count of instructions up to which the other machine repeats the run of `vm`, which came to
/// `stop` unless it ended before.
fn target(vm: &Vm, came: &Outcome, stop: u64) -> u64 {
    if came.ending.is_none() {
        return stop;
    }
    // If it has ended, the other machine gets one more instruction, so that it must have ended too.
    vm.cpu.instructions.saturating_add(1)
}
