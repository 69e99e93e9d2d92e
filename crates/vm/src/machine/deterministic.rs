//! The loop of a deterministic run: virtual time is a function of the instructions executed alone.
//!
//! An instruction takes a fixed time, more if it accesses a device, and while the guest waits, time advances
//! to the next timer at once. The host sleeps meanwhile, so that an idle guest costs nothing. The guest's
//! view depends only on its inputs, and on the point of its execution at which each of them came. Such a
//! point is a number of instructions and a virtual time: both, since a waiting guest executes nothing. Inputs
//! come in only where no timer is due and no output is urgent, so a replay has only one way to reach a point
//! ([`Vm::advance`]).
//!
//! An instruction takes 1 ns and a device access 1 µs more. Without the second number, a guest that polls until some
//! time has passed polled 30 times as often as in a normal run, and a boot took twice as long.
//!
//! Inputs that are known before the run (`Door::put_script`) are taken at multiples of a million instructions
//! and while the guest is idle. A checkpoint hashes all memory, which takes some 20 ms for 128 MiB.

use ring3_core::clock::{Clock, PICOS_PER_NANO, Time};
use ring3_core::input::Input;
use ring3_x86::cpu::Cpu;

use crate::door::Door;
use crate::machine::session::Session;
use crate::machine::{Console, Ending, Vm, VmError};

/// The time of an instruction in a deterministic run, in picoseconds: about the time in a normal one.
pub(super) const PICOS_PER_INSTRUCTION: u64 = 1000;

/// The additional time of a device access, in nanoseconds: a cycle of the ISA bus, and about its cost on the
/// host. Without it a guest that polls a device until some time has passed would do so far more often than in
/// a normal run.
const ACCESS_NANOS: u64 = 1000;

/// The time of an instruction that accesses a device, in nanoseconds.
const ACCESSING_NANOS: u64 = ACCESS_NANOS + PICOS_PER_INSTRUCTION / PICOS_PER_NANO;

/// Instructions between two looks at the door. At their multiples, and where the guest is idle, inputs of a
/// script come in.
const SLICE: u64 = 1_000_000;

/// The host makes up for at most this much of a sleep that was too long, in nanoseconds.
const OVERSLEPT_MAX: i64 = 30_000_000;

/// A deterministic run between two slices.
#[derive(Debug, Default)]
pub(super) struct Deterministic {
    session: Session,
    /// How long the guest has waited without the host having slept, in nanoseconds; negative if the host has
    /// slept too long.
    owed: i64,
}

impl Vm {
    /// Runs the machine until it ends.
    pub(super) fn run_deterministically(
        &mut self,
        door: &mut Door,
        console: &mut dyn Console,
    ) -> Result<Ending, VmError> {
        let mut run = Deterministic::default();
        loop {
            if let Some(ending) = self.run_until(&mut run, door, console, u64::MAX)? {
                return Ok(ending);
            }
        }
    }

    /// Runs the machine until it ends, and returns how, or until it has executed `stop` instructions.
    pub(super) fn run_until(
        &mut self,
        run: &mut Deterministic,
        door: &mut Door,
        console: &mut dyn Console,
        stop: u64,
    ) -> Result<Option<Ending>, VmError> {
        loop {
            if let Some(ending) = self.look_outside(run, door, console)? {
                return Ok(Some(ending));
            }
            let instructions = self.cpu.instructions;
            let slice_end = if door.is_paused() {
                instructions
            } else {
                (instructions / SLICE).saturating_add(1).saturating_mul(SLICE).min(stop)
            };
            loop {
                // A debugger may have paused the machine in this slice.
                let paused = door.is_paused().then_some(self.cpu.instructions);
                let ended = self.run_slice(paused.unwrap_or(slice_end));
                let ending = self.finish_slice(&mut run.session, door, console)?.or(ended);
                if ending.is_some() {
                    return Ok(ending);
                }
                if !self.has_due_timer() {
                    break;
                }
            }
            if self.cpu.instructions >= stop {
                return Ok(None);
            }
            if door.is_paused() {
                console.flush()?;
                self.stand_still(door);
            } else if self.is_idle() {
                console.flush()?;
                if let Some(ending) = self.notice_stuck(&mut run.session) {
                    return Ok(Some(ending));
                }
                self.wait(run, door);
            }
        }
    }

    /// Answers requests and takes the inputs that wait at the door.
    fn look_outside(
        &mut self,
        run: &mut Deterministic,
        door: &mut Door,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        if self.has_due_timer() {
            return Ok(None);
        }
        self.keep_checkpoint();
        if self.answer_requests(door) {
            *run = Deterministic::default();
        }
        if let Some(ending) = self.finish_slice(&mut run.session, door, console)? {
            return Ok(Some(ending));
        }
        door.fetch();
        let takes_script = self.cpu.instructions.is_multiple_of(SLICE) || self.is_idle();
        while !self.has_due_timer() {
            let accepts = |input: &Input| self.accepts(input);
            let input = match door.take(accepts) {
                None if takes_script => door.take_scripted(accepts),
                input => input,
            };
            let Some(input) = input else { break };
            run.session.note(door, &input);
            let ended = self.take_input(input);
            let ending = self.finish_slice(&mut run.session, door, console)?.or(ended);
            if ending.is_some() {
                return Ok(ending);
            }
        }
        Ok(None)
    }

    /// Lets the guest wait: advances time to the next timer, or to an input from outside, and lets the host
    /// sleep as long.
    fn wait(&mut self, run: &mut Deterministic, door: &mut Door) {
        if door.has_scripted(|input| self.accepts(input)) {
            return;
        }
        let now = self.now();
        let next = self.board.next_timer();
        let slack = self.slack(&mut run.session, next);
        let owed = next.map(|at| i64_of(at.nanos_since(now)).saturating_add(run.owed));
        if let (Some(next), Some(owed)) = (next, owed)
            && owed <= i64_of(slack)
        {
            run.owed = owed.max(-OVERSLEPT_MAX);
            self.skip_to(next);
            return;
        }
        let until = owed.map(|owed| door.host_time().plus_nanos(owed.unsigned_abs()));
        let slept = i64_of(self.sleep(door, until));
        if door.has_input(|input| self.accepts(input)) {
            // Time that was owed before has passed already.
            let passed = u64::try_from(slept.saturating_sub(run.owed)).unwrap_or(0);
            let time = now.plus_nanos(passed);
            self.skip_to(next.map_or(time, |next| next.min(time)));
            run.owed = 0;
        } else if let (Some(next), Some(owed)) = (next, owed)
            && slept >= owed
        {
            run.owed = (owed - slept).max(-OVERSLEPT_MAX);
            self.skip_to(next);
        } else {
            // The machine was only asked for something, and sleeps on after the answer.
            run.owed = run.owed.saturating_sub(slept);
        }
    }

    /// Returns how many instructions can access devices in a row, from `now` on, before the time that this
    /// takes makes a timer due.
    pub(super) fn accesses_before_timer(&self, now: Time) -> u64 {
        match self.board.next_timer() {
            Some(timer) if self.config.deterministic => timer.nanos_since(now) / ACCESSING_NANOS,
            _ => u64::MAX,
        }
    }

    /// Advances to `time`, until which nothing happens.
    fn skip_to(&mut self, time: Time) {
        self.clock.skip_to(self.cpu.instructions, time);
        self.show_clock();
    }

    /// Advances to the point of a deterministic run with `instructions` instructions and virtual time `time`,
    /// or a later one, as the run did without inputs, unless the guest stops for the debugger. Returns how the
    /// run ended, if that was before.
    pub(super) fn advance(
        &mut self,
        instructions: u64,
        time: Time,
        console: &mut dyn Console,
    ) -> Result<Option<Ending>, VmError> {
        loop {
            if !self.has_due_timer() {
                let is_there = self.cpu.instructions >= instructions;
                if is_there && self.now() >= time {
                    return Ok(None);
                }
                if let Some(ending) = self.end_if_stuck() {
                    return Ok(Some(ending));
                }
                if self.is_idle() {
                    let limit = is_there.then_some(time);
                    let Some(next) = self.board.next_timer().into_iter().chain(limit).min() else {
                        return Err(VmError::Diverged(self.cpu.instructions));
                    };
                    self.skip_to(next);
                    continue;
                }
                if is_there {
                    return Err(VmError::Diverged(self.cpu.instructions));
                }
            }
            let ended = self.run_slice(instructions);
            if let Some(ending) = self.hand_out(console)?.or(ended) {
                return Ok(Some(ending));
            }
            if self.debugging.has_stopped() {
                return Ok(None);
            }
        }
    }
}

/// Charges the time of device accesses: from `now` on, after `instructions` instructions of a deterministic
/// run, the guest has accessed devices in `accesses` instructions, at least one.
pub(super) fn charge_accesses(
    clock: &mut Clock,
    cpu: &mut Cpu,
    instructions: u64,
    now: Time,
    accesses: u64,
) {
    let others = accesses - 1;
    let time = now.plus_nanos(others * ACCESSING_NANOS + ACCESS_NANOS);
    clock.skip_to(instructions + others, time);
    cpu.clock = Some(clock.clone());
}

fn i64_of(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
