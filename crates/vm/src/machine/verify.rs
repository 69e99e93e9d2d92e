//! Two engines in lock-step: the same run on both, compared again and again.
//!
//! The tested machine has one engine and takes the inputs, from the door or from a recording ([`source`]). A
//! second one, with memory of its own and the other engine, repeats each segment of the run from its recorded
//! inputs. Then processors, devices, memory and virtual time are compared. If they differ, the segment is
//! repeated on both from where they were last equal, and halved until the first instruction with a different
//! result is found.
//!
//! Flags that the last instructions have left undefined may differ. Then both machines continue with those of
//! the second machine. If the guest has used such flags before that, the two differ without an error of an
//! engine. The search then finds no instruction, and the report names the flags and the instruction that has
//! left them undefined.

mod source;

use std::io;

use ring3_core::clock::Time;
use ring3_core::input::{Input, StampedInput};
use ring3_x86::cpu::reg;
use ring3_x86::flags::Eflags;
use ring3_x86::undefined::undefined_after;
use tracing::{debug, warn};

use crate::control::Event;
use crate::difference::{Difference, Side, Undefined};
use crate::door::Door;
use crate::engines::EngineMaker;
use crate::machine::{Console, Ending, SavedMachine, Vm, VmError};
use crate::recording::RecordingError;

use source::{Live, Recorded, Segment, Source};

/// Instructions of the first segment; later segments are longer.
const FIRST_SEGMENT: u64 = 1_000_000;
/// Instructions of the longest segments. With longer segments there are fewer comparisons, but the search
/// takes longer.
const LONGEST_SEGMENT: u64 = 64_000_000;
/// Number of instructions before a point that decide which flags are undefined there; flags of older ones
/// count as defined.
const LOOKED_BACK: u64 = 256;
/// Number of instructions before the one that differs that are reported.
const TRACED: u64 = 8;

/// The engines that are compared.
#[derive(Clone, Copy)]
pub struct Engines<'a> {
    /// The engine that is verified.
    pub tested: &'a dyn EngineMaker,
    /// The engine that is right.
    pub reference: &'a dyn EngineMaker,
}

/// The outcome of a verified run.
#[derive(Debug)]
pub enum Verified {
    /// It has ended, and both engines have always had the same results.
    Same(Ending),
    /// They had different results.
    Differs(Box<Difference>),
}

/// How far a machine came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    /// The count of instructions after which it was not where its inputs came, if that happened.
    pub(crate) diverged: Option<u64>,
    /// How it ended, if it did.
    pub(crate) ending: Option<Ending>,
    /// The bytes that it has sent by serial ports and to the debug console.
    pub(crate) sent: Vec<u8>,
}

impl Outcome {
    /// Returns the outcome of a run; other errors are the host's.
    fn of(result: Result<Option<Ending>, VmError>, sent: Vec<u8>) -> Result<Outcome, VmError> {
        let (diverged, ending) = match result {
            Ok(ending) => (None, ending),
            Err(VmError::Diverged(instructions)) => (Some(instructions), None),
            Err(error) => return Err(error),
        };
        Ok(Outcome { diverged, ending, sent })
    }
}

/// Notes the outputs, and hands them on.
struct Tee<'a> {
    console: Option<&'a mut dyn Console>,
    sent: Vec<u8>,
}

impl Console for Tee<'_> {
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()> {
        self.sent.extend(bytes);
        self.console.as_mut().map_or(Ok(()), |console| console.serial(port, bytes))
    }

    fn debug(&mut self, byte: u8) -> io::Result<()> {
        self.sent.push(byte);
        self.console.as_mut().map_or(Ok(()), |console| console.debug(byte))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.console.as_mut().map_or(Ok(()), |console| console.flush())
    }
}

impl Vm {
    /// Runs the machine, which must be a deterministic one with the engine to be verified, until it ends or
    /// the other engine has another result. This needs the memory of some four machines.
    ///
    /// # Panics
    /// When [`Config::deterministic`](crate::Config::deterministic) is not set.
    pub fn verify(
        &mut self,
        engines: Engines<'_>,
        door: &mut Door,
        console: &mut dyn Console,
    ) -> Result<Verified, VmError> {
        assert!(self.config.deterministic, "runs in host time are not the same twice");
        let verified = self.verify_to_end(engines, &mut Live::new(door), console);
        self.end_session(door, verified, |verified| match verified {
            Verified::Same(ending) => Event::Ended(ending.clone()),
            Verified::Differs(_) => Event::Failed("the engines differ".to_owned()),
        })
    }

    /// Verifies a recorded run with its inputs, such as those of a
    /// [`Recording`](crate::recording::Recording): it is repeated from power-on or from where the machine was
    /// saved. It may be a deterministic run or a normal one.
    ///
    /// # Errors
    /// [`VmError::Diverged`] if both engines leave the recording in the same way, [`VmError::Recording`] if
    /// it cannot be read on; up to there both have the same results.
    pub fn verify_replay(
        &mut self,
        engines: Engines<'_>,
        inputs: impl Iterator<Item = Result<StampedInput, RecordingError>>,
        console: &mut dyn Console,
    ) -> Result<Verified, VmError> {
        self.verify_to_end(engines, &mut Recorded::new(inputs), console)
    }

    fn verify_to_end(
        &mut self,
        engines: Engines<'_>,
        source: &mut dyn Source,
        console: &mut dyn Console,
    ) -> Result<Verified, VmError> {
        let verified = self.verify_segments(engines, source, console)?;
        match &verified {
            Verified::Same(ending) => self.finish(ending, console)?,
            Verified::Differs(_) => {
                // The machine that repeats the recording comes to its end here.
                self.take_input(Input::Quit);
                if let Err(error) = self.finish(&Ending::Quit, console) {
                    warn!("{error}");
                }
            }
        }
        Ok(verified)
    }

    fn verify_segments(
        &mut self,
        engines: Engines<'_>,
        source: &mut dyn Source,
        console: &mut dyn Console,
    ) -> Result<Verified, VmError> {
        let mut same = self.save();
        let mut reference = Vm::restore(&same, engines.reference)?;
        let mut length = FIRST_SEGMENT;
        loop {
            let stop = self.cpu.instructions.saturating_add(length);
            let Segment { inputs, came, target } = source.run(self, stop, console)?;
            let inputs = up_to(&inputs, target);
            let reference_came = reference.repeat(inputs, target, None)?;
            let reached = self.cpu.instructions;
            let search = Search { engines, inputs, from: &same, target };
            let undefined = || search.undefined(reached).map(|(flags, _)| flags);
            if came != reference_came || self.agrees_with(&mut reference, undefined)?.is_none() {
                if let Some(difference) = search.find()? {
                    return Ok(Verified::Differs(Box::new(difference)));
                }
                let sides = [self.side(&came), reference.side(&reference_came)];
                let start = instructions_of(&same, engines)?;
                let difference = Difference::not_repeated(start, reached, sides);
                return Ok(Verified::Differs(Box::new(difference)));
            }
            if let Some(ending) = came.ending {
                return Ok(Verified::Same(ending));
            }
            if let Some(instructions) = came.diverged {
                return Err(VmError::Diverged(instructions));
            }
            same = self.save();
            length = (length * 2).min(LONGEST_SEGMENT);
        }
    }

    /// Repeats a part of a run, up to `target` instructions.
    fn repeat(
        &mut self,
        inputs: &[StampedInput],
        target: u64,
        console: Option<&mut dyn Console>,
    ) -> Result<Outcome, VmError> {
        let mut tee = Tee { console, sent: Vec::new() };
        let inputs = inputs.to_vec();
        self.begin_replay(inputs.into_iter().map(Ok));
        let came = self.replay_inputs(&mut tee).and_then(|ended| match ended {
            None => self.replay_to(target, Time::ZERO, &mut tee),
            ended => Ok(ended),
        });
        self.end_replay();
        let came = came.and_then(|ended| match ended {
            // It waits for an input that does not come.
            None if self.cpu.instructions < target => Err(VmError::Diverged(self.cpu.instructions)),
            ended => Ok(ended),
        });
        Outcome::of(came, tee.sent)
    }

    /// Repeats one instruction, after the first `count` ones.
    fn step(&mut self, inputs: &[StampedInput], count: u64) -> Result<(), VmError> {
        let done = inputs.partition_point(|input| input.taken_by() <= count);
        self.repeat(up_to(&inputs[done..], count + 1), count + 1, None).map(|_| ())
    }

    /// Returns whether the two machines are equal.
    pub(super) fn is_same(&mut self, other: &mut Vm) -> bool {
        self.save_processor() == other.save_processor()
            && self.board.save() == other.board.save()
            && self.clock == other.clock
            && self.memory.save_map() == other.memory.save_map()
            && self.memory.all_contents() == other.memory.all_contents()
    }

    /// Returns the flags that differ between the two machines, if nothing else does and they are `undefined`:
    /// then this machine takes over those of the other one. Returns None if the machines differ.
    fn agrees_with(
        &mut self,
        other: &mut Vm,
        undefined: impl FnOnce() -> Result<Eflags, VmError>,
    ) -> Result<Option<Eflags>, VmError> {
        if self.is_same(other) {
            return Ok(Some(Eflags::empty()));
        }
        let (ours, right) = (self.cpu.eflags(), other.cpu.eflags());
        let differing = ours ^ right;
        if differing.is_empty() || !Eflags::STATUS.contains(differing) {
            return Ok(None);
        }
        self.cpu.set_status_and_direction(right);
        if self.is_same(other) && undefined()?.contains(differing) {
            let instructions = self.cpu.instructions;
            debug!(instructions, ?differing, "the engines differ in undefined flags");
            return Ok(Some(differing));
        }
        self.cpu.set_status_and_direction(ours);
        Ok(None)
    }

    /// Returns this machine's side of a report.
    fn side(&mut self, came: &Outcome) -> Side {
        Side {
            engine: self.engine.name(),
            came: came.clone(),
            instructions: self.cpu.instructions,
            time: self.now(),
            cpu: self.save_processor(),
            board: self.board.save(),
            report: self.cpu.report(&self.memory).to_string(),
            memory: self.memory.all_contents().to_vec(),
        }
    }
}

fn instructions_of(saved: &SavedMachine, engines: Engines<'_>) -> Result<u64, VmError> {
    Ok(Vm::restore(saved, engines.reference)?.cpu.instructions)
}

/// The result of comparing two machines.
enum Compared {
    /// They are equal, apart from these flags, which are undefined.
    Same(Eflags),
    Differ(Box<[Side; 2]>),
}

/// The search for the instruction after which the machines differ.
struct Search<'a> {
    engines: Engines<'a>,
    inputs: &'a [StampedInput],
    /// The state of both machines before all inputs.
    from: &'a SavedMachine,
    /// The number of instructions after which the machines differ.
    target: u64,
}

impl Search<'_> {
    /// Finds the instruction. Returns None if the machines do not differ when the segment is repeated.
    fn find(&self) -> Result<Option<Difference>, VmError> {
        let mut from = self.from.clone();
        let mut same = instructions_of(&from, self.engines)?;
        let mut different = self.target;
        let mut inputs = self.inputs;
        let Compared::Differ(at_the_end) = self.compare(&from, inputs, different)? else {
            return Ok(None);
        };
        // The last point where only undefined flags differed, from which both continued with those of the
        // right machine.
        let mut undefined = None;
        while different - same > 1 {
            let middle = same + (different - same) / 2;
            match self.compare(&from, inputs, middle)? {
                Compared::Differ(_) => different = middle,
                Compared::Same(flags) => {
                    if !flags.is_empty() {
                        undefined = Some((middle, flags));
                    }
                    from = self.after(&from, inputs, middle)?.save();
                    same = middle;
                    inputs = &inputs[inputs.partition_point(|input| input.taken_by() <= same)..];
                }
            }
        }
        let Compared::Differ(sides) = self.compare(&from, inputs, different)? else {
            let Some((at, flags)) = undefined else { return Ok(None) };
            let (_, by) = self.undefined(at)?;
            let by = by.into_iter().rev().find(|(left, _)| left.intersects(flags));
            let undefined = Undefined { flags, by: by.map(|(_, line)| line).unwrap_or_default() };
            let mut difference = Difference::of_undefined(at, different, undefined, *at_the_end);
            difference.describe_code(self.trace(at)?, Vec::new(), String::new());
            return Ok(Some(difference));
        };
        let before = Vm::restore(&from, self.engines.reference)?;
        let report = before.cpu.report(&before.memory).to_string();
        let next = before.cpu.disassemble(&before.memory, 4);
        let mut difference = Difference::found(same, *sides);
        difference.describe_code(self.trace(same)?, next, report);
        Ok(Some(difference))
    }

    /// Compares both machines after `instructions` instructions.
    fn compare(
        &self,
        from: &SavedMachine,
        inputs: &[StampedInput],
        instructions: u64,
    ) -> Result<Compared, VmError> {
        let inputs = up_to(inputs, instructions);
        let mut tested = Vm::restore(from, self.engines.tested)?;
        let mut reference = Vm::restore(from, self.engines.reference)?;
        let tested_came = tested.repeat(inputs, instructions, None)?;
        let reference_came = reference.repeat(inputs, instructions, None)?;
        let undefined = || self.undefined(instructions).map(|(flags, _)| flags);
        if tested_came == reference_came
            && let Some(flags) = tested.agrees_with(&mut reference, undefined)?
        {
            return Ok(Compared::Same(flags));
        }
        let sides = [tested.side(&tested_came), reference.side(&reference_came)];
        Ok(Compared::Differ(Box::new(sides)))
    }

    /// Returns the flags that are undefined after `instructions` instructions, and for each of the last
    /// instructions the flags that it has left undefined, and its text.
    fn undefined(&self, instructions: u64) -> Result<(Eflags, Vec<(Eflags, String)>), VmError> {
        let start = instructions_of(self.from, self.engines)?;
        let first = instructions.saturating_sub(LOOKED_BACK).max(start);
        let mut vm = self.after(self.from, self.inputs, first)?;
        let (mut flags, mut by) = (Eflags::empty(), Vec::new());
        for count in first..instructions {
            let next = vm.cpu.next_instruction(&vm.memory);
            let line = vm.cpu.disassemble(&vm.memory, 1).pop();
            let cl = vm.cpu.get(reg::CX);
            vm.step(self.inputs, count)?;
            let eip = vm.cpu.ip as u32;
            let after =
                |flags| next.map_or(Eflags::empty(), |next| undefined_after(&next, cl, eip, flags));
            flags = after(flags);
            by.push((after(Eflags::empty()), line.unwrap_or_default()));
        }
        Ok((flags, by))
    }

    /// Returns the right machine after `instructions` instructions.
    fn after(
        &self,
        from: &SavedMachine,
        inputs: &[StampedInput],
        instructions: u64,
    ) -> Result<Vm, VmError> {
        let mut vm = Vm::restore(from, self.engines.reference)?;
        vm.repeat(up_to(inputs, instructions), instructions, None)?;
        Ok(vm)
    }

    /// Returns the last instructions that were executed before count `instructions`.
    fn trace(&self, instructions: u64) -> Result<Vec<String>, VmError> {
        let start = instructions_of(self.from, self.engines)?;
        let first = instructions.saturating_sub(TRACED).max(start);
        let mut vm = self.after(self.from, self.inputs, first)?;
        let mut lines = Vec::new();
        for count in first..instructions {
            lines.extend(vm.cpu.disassemble(&vm.memory, 1));
            vm.step(self.inputs, count)?;
        }
        Ok(lines)
    }
}

/// Returns those of `inputs` that a machine has taken when it has executed `instructions` instructions.
fn up_to(inputs: &[StampedInput], instructions: u64) -> &[StampedInput] {
    &inputs[..inputs.partition_point(|input| input.taken_by() <= instructions)]
}
