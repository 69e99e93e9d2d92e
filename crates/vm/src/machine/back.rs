//! A replay for people who look at it: it stands still where they want, and goes back.
//!
//! Going back means to return to a [checkpoint](crate::machine::checkpoints) and to repeat the run from there.
//! A place in the run is a count of instructions; the machine stands there as it was when it first had
//! executed that many, before all inputs and interrupts that came then. To go back by one instruction is to
//! go to the place before.
//!
//! To go back to a breakpoint, the run is repeated from the last checkpoint to the present, and the last place
//! noted where it would have stopped. If there is one, the run is repeated once more, up to that place. If not,
//! it is the turn of the checkpoint before. A watchpoint stops before the instruction that accesses the memory,
//! so that the debugger sees it change.
//!
//! The end of the run is no end here: whoever wants to know why the guest has failed goes back from it. Outputs
//! of the guest go out once, however often they are repeated.

use std::io;
use std::num::NonZero;

use ring3_core::input::Input;
use tracing::{debug, warn};

use crate::control::Event;
use crate::debug::{Back, Stop};
use crate::door::Door;
use crate::machine::checkpoints::{Checkpoints, Sent};
use crate::machine::replay::{Inputs, Progress};
use crate::machine::{Console, Ending, Vm, VmError};
use crate::recording::Recording;

/// Instructions between two looks at the door.
const LOOK: u64 = 5_000_000;

/// How many instructions before the place to which a debugger goes back there is a checkpoint, so that the next
/// step back is a short one.
const NEAR: u64 = 100_000;

/// How a recorded run is repeated for a debugger.
#[derive(Debug, Clone, Copy)]
pub struct ReplayOptions {
    /// The count of instructions at which the machine stands still, until a debugger lets it continue.
    pub stop_at: u64,
    /// Instructions between two checkpoints.
    pub checkpoints: NonZero<u64>,
}

impl ReplayOptions {
    /// The usual number of instructions between two checkpoints: the translator repeats them in less than the
    /// tenth of a second in which a debugger should answer.
    pub const CHECKPOINTS: NonZero<u64> = NonZero::new(20_000_000).unwrap();
}

/// Hands on what the guest sends for the first time.
struct Once<'a> {
    console: &'a mut dyn Console,
    /// What the guest has sent where the machine stands, and what was handed on.
    sent: Sent,
    shown: Sent,
}

/// The index in [`Sent`] of the debug console, behind the serial ports.
const DEBUG_CONSOLE: usize = 4;

impl Once<'_> {
    /// Notes that `count` bytes are sent by way `index`. Returns how many of them were sent before.
    fn note(&mut self, index: usize, count: usize) -> usize {
        let before = self.sent[index];
        self.sent[index] += count as u64;
        let old = self.shown[index].saturating_sub(before).min(count as u64);
        self.shown[index] = self.shown[index].max(self.sent[index]);
        old as usize
    }
}

impl Console for Once<'_> {
    fn serial(&mut self, port: u8, bytes: &[u8]) -> io::Result<()> {
        let old = self.note(usize::from(port).min(DEBUG_CONSOLE - 1), bytes.len());
        if old < bytes.len() { self.console.serial(port, &bytes[old..]) } else { Ok(()) }
    }

    fn debug(&mut self, byte: u8) -> io::Result<()> {
        if self.note(DEBUG_CONSOLE, 1) == 0 { self.console.debug(byte) } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.console.flush()
    }
}

/// A place where the run stopped for the debugger when it was repeated.
#[derive(Debug, Clone, Copy)]
struct Hit {
    stop: Stop,
    instructions: u64,
    /// The number of earlier breakpoints at the same count of instructions.
    earlier: u32,
    /// Whether it was the delivery of an interrupt that accessed watched memory.
    by_delivery: bool,
}

/// The result of a search for the last place where the run stops.
enum Search {
    Found(Hit),
    Nothing,
    /// The debugger has interrupted it, or is gone.
    Interrupted,
}

impl Hit {
    /// Returns the count of instructions before the access to watched memory.
    fn before_access(&self) -> u64 {
        if self.by_delivery { self.instructions } else { self.instructions.saturating_sub(1) }
    }
}

/// A run that is repeated, forwards and backwards.
pub(super) struct Travel<'a> {
    pub(super) vm: &'a mut Vm,
    door: &'a mut Door,
    console: Once<'a>,
    checkpoints: Checkpoints,
    /// How the run ended, if the machine stands at its end.
    end: Option<Result<Ending, VmError>>,
}

impl Vm {
    /// Repeats the run of `recording`, which is one of this machine, up to `instructions` instructions. Returns
    /// how it ended, if that was before. The machine then stands as it did in the run.
    pub fn replay_to_count(
        &mut self,
        recording: Recording,
        instructions: u64,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        self.begin_replay_of(Inputs::Recording(Box::new(recording)));
        let came = loop {
            match self.repeat_up_to(instructions, console) {
                Ok(Progress::Limit) => break Ok(None),
                Ok(Progress::Ended(ending)) => break Ok(Some(ending)),
                Ok(Progress::Input | Progress::UsedUp | Progress::Stopped) => {}
                Err(error) => break Err(error),
            }
        };
        self.end_replay();
        let came = came?;
        if let Some(ending) = &came {
            self.finish(ending, console)?;
        } else {
            console.flush()?;
        }
        Ok(came)
    }

    /// Repeats the run of `recording`, which is one of this machine, for a debugger behind `door`, which lets
    /// it stand still and [go back](crate::debug::Run::Back). `ready` is called when the machine stands still
    /// for the first time; before that it answers no requests. The run also ends by [`Input::Quit`]; other
    /// inputs are not taken.
    pub fn replay_for_debugger(
        &mut self,
        recording: Recording,
        options: ReplayOptions,
        door: &mut Door,
        console: &mut dyn Console,
        ready: impl FnOnce(),
    ) -> Result<Ending, VmError> {
        let travel = Travel::begin(self, recording, options.checkpoints, door, console);
        let ended = travel.run(options.stop_at, ready);
        self.goes_back = false;
        self.end_replay();
        let ended = ended.and_then(|ending| {
            self.finish(&ending, console)?;
            Ok(ending)
        });
        self.end_session(door, ended, |ending| Event::Ended(ending.clone()))
    }

    /// Repeats the run up to its next input, or to `limit` instructions or its end.
    fn repeat_up_to(&mut self, limit: u64, console: &mut dyn Console) -> Result<Progress, VmError> {
        match self.replay_on(limit, console)? {
            Progress::UsedUp => self.replay_up_to(limit, console),
            progress => Ok(progress),
        }
    }
}

impl<'a> Travel<'a> {
    /// Begins to repeat the run of `recording`.
    pub(super) fn begin(
        vm: &'a mut Vm,
        recording: Recording,
        interval: NonZero<u64>,
        door: &'a mut Door,
        console: &'a mut dyn Console,
    ) -> Travel<'a> {
        vm.begin_replay_of(Inputs::Recording(Box::new(recording)));
        vm.goes_back = true;
        // One whole machine, and again as much for what has changed meanwhile.
        let most_bytes = 2 * vm.memory_len();
        let console = Once { console, sent: Sent::default(), shown: Sent::default() };
        let checkpoints = Checkpoints::new(interval, most_bytes);
        let mut travel = Travel { vm, door, console, checkpoints, end: None };
        travel.take_checkpoint();
        travel
    }

    /// Repeats the run until it ends and no debugger wants to go back.
    fn run(mut self, stop_at: u64, ready: impl FnOnce()) -> Result<Ending, VmError> {
        while self.vm.cpu.instructions < stop_at && self.end.is_none() && !self.must_quit() {
            self.go_on(stop_at)?;
        }
        self.door.pause();
        ready();
        loop {
            self.vm.answer_requests(self.door);
            if let Some(Input::Quit) = self.door.take(|_| false) {
                return Ok(Ending::Quit);
            }
            if let Some(back) = self.vm.debugging.take_back() {
                let stop = match back {
                    Back::Step => Some(self.step_back()?),
                    Back::Until => self.continue_back()?,
                };
                if let Some(stop) = stop {
                    self.door.pause();
                    self.vm.debugging.tell(stop);
                }
            } else if self.door.is_paused() {
                self.console.flush()?;
                self.door.wait(None, |_| false);
            } else if self.end.is_none() {
                self.go_on(u64::MAX)?;
                self.vm.stop_for_debugger(self.door);
            } else if self.vm.debugging.is_awaited() {
                self.door.pause();
                self.vm.debugging.tell(Stop::End);
            } else if let Some(ended) = self.end.take() {
                return ended;
            }
        }
    }

    /// Returns whether the run is to end.
    fn must_quit(&self) -> bool {
        self.door.has_input(|_| false)
    }

    /// Repeats a small part of the run, up to `limit` instructions at most, and takes the checkpoint that is
    /// due. Returns whether it has come to `limit`.
    fn go_on(&mut self, limit: u64) -> Result<bool, VmError> {
        let before = self.vm.cpu.instructions;
        let due = self.checkpoints.due_after(before);
        let next = limit.min(due).min(before.saturating_add(LOOK));
        let is_there = match self.vm.repeat_up_to(next, &mut self.console) {
            Ok(Progress::Ended(ending)) => {
                self.end = Some(Ok(ending));
                false
            }
            Ok(progress) => progress == Progress::Limit,
            Err(error @ (VmError::Diverged(_) | VmError::Recording(_))) => {
                warn!("{error}");
                self.end = Some(Err(error));
                false
            }
            Err(error) => return Err(error),
        };
        if is_there && next == due {
            self.take_checkpoint();
        }
        Ok(is_there && next == limit)
    }

    fn take_checkpoint(&mut self) {
        self.vm.take_checkpoint(&mut self.checkpoints, self.console.sent);
    }

    /// Returns to the last checkpoint with at most `instructions` instructions.
    fn return_to(&mut self, instructions: u64) -> Result<(), VmError> {
        self.console.sent = self.vm.return_to_checkpoint(&self.checkpoints, instructions)?;
        self.end = None;
        Ok(())
    }

    /// Repeats a small part of the run again, as [`Travel::go_on`] does, and passes breakpoints. Returns where
    /// it would have stopped, and whether it has come to `limit` or to the end.
    fn repeat(&mut self, limit: u64) -> Result<(Option<Hit>, bool), VmError> {
        let before = self.vm.cpu.instructions;
        let is_there = self.go_on(limit)?;
        let instructions = self.vm.cpu.instructions;
        self.vm.stats.travel.repeated += instructions - before;
        let hit = self.vm.debugging.stopped().map(|stop| Hit {
            stop,
            instructions,
            earlier: 0,
            by_delivery: self.vm.debugging.is_after_delivery(instructions),
        });
        if hit.is_some_and(|hit| hit.stop == Stop::Breakpoint && instructions < limit) {
            self.vm.pass_debugger_stop();
        }
        self.vm.debugging.forget_stop();
        Ok((hit, is_there || self.end.is_some()))
    }

    /// Goes to the place with `instructions` instructions.
    pub(super) fn go_to(&mut self, instructions: u64) -> Result<(), VmError> {
        self.return_to(instructions)?;
        let near = instructions.saturating_sub(NEAR);
        while self.vm.cpu.instructions < instructions {
            let is_before = self.vm.cpu.instructions < near;
            let (_, is_there) = self.repeat(if is_before { near } else { instructions })?;
            if self.end.is_some() && self.vm.cpu.instructions < instructions {
                return Err(VmError::Diverged(self.vm.cpu.instructions));
            }
            if is_before && is_there {
                self.take_checkpoint();
            }
        }
        debug!(instructions, "went back");
        Ok(())
    }

    /// Goes back by one instruction, or to before the interrupt that was just delivered.
    fn step_back(&mut self) -> Result<Stop, VmError> {
        let present = self.vm.cpu.instructions;
        let is_after_delivery = self.vm.debugging.is_after_delivery(present);
        if present <= self.checkpoints.beginning() && !is_after_delivery {
            self.return_to(present)?;
            return Ok(Stop::Beginning);
        }
        let target = if is_after_delivery { present } else { present - 1 };
        self.go_to(target)?;
        if self.vm.has_watchpoints() && target < present {
            let search = self.last_hit(present)?;
            self.go_to(target)?;
            if let Search::Found(hit) = search
                && hit.before_access() == target
            {
                return Ok(hit.stop);
            }
        }
        Ok(Stop::Step)
    }

    /// Goes back to the last place where the run stops for the debugger. Returns None if the debugger has
    /// interrupted this, and knows it, or is gone.
    fn continue_back(&mut self) -> Result<Option<Stop>, VmError> {
        let mut limit = self.vm.cpu.instructions;
        let beginning = self.checkpoints.beginning();
        loop {
            let from = self.checkpoints.before(limit.saturating_sub(1));
            self.return_to(from)?;
            if limit <= beginning {
                return Ok(Some(Stop::Beginning));
            }
            match self.last_hit(limit)? {
                Search::Interrupted => return Ok(None),
                Search::Nothing => limit = from,
                Search::Found(hit) => {
                    self.go_to_hit(&hit)?;
                    return Ok(Some(hit.stop));
                }
            }
        }
    }

    /// Repeats the run up to `limit` instructions, and looks for the last place where it would have stopped.
    fn last_hit(&mut self, limit: u64) -> Result<Search, VmError> {
        let mut last: Option<Hit> = None;
        while self.vm.cpu.instructions < limit {
            let (hit, is_there) = self.repeat(limit)?;
            if let Some(mut hit) = hit
                && (hit.instructions < limit || hit.stop != Stop::Breakpoint)
            {
                let is_same =
                    |last: &Hit| (last.stop, last.instructions) == (hit.stop, hit.instructions);
                hit.earlier = last.filter(is_same).map_or(0, |last| last.earlier + 1);
                last = Some(hit);
            }
            if is_there {
                break;
            }
            self.vm.answer_requests(self.door);
            if self.door.is_paused() || !self.vm.debugging.is_awaited() || self.must_quit() {
                return Ok(Search::Interrupted);
            }
        }
        Ok(last.map_or(Search::Nothing, Search::Found))
    }

    /// Goes to the place where the run stops for the debugger.
    fn go_to_hit(&mut self, hit: &Hit) -> Result<(), VmError> {
        if let Stop::Watchpoint(_) = hit.stop {
            return self.go_to(hit.before_access());
        }
        self.go_to(hit.instructions)?;
        let mut earlier = 0;
        loop {
            self.go_on(hit.instructions + 1)?;
            if self.vm.cpu.instructions > hit.instructions || self.end.is_some() {
                return Err(VmError::Diverged(self.vm.cpu.instructions));
            }
            match self.vm.debugging.stopped() {
                None => {}
                Some(Stop::Breakpoint) if earlier == hit.earlier => {
                    self.vm.debugging.stay();
                    return Ok(());
                }
                Some(stop) => {
                    if stop == Stop::Breakpoint {
                        earlier += 1;
                        self.vm.pass_debugger_stop();
                    }
                    self.vm.debugging.forget_stop();
                }
            }
        }
    }
}
