//! Keeps virtual time close to the host's.
//!
//! Virtual time is a function of instructions executed; how many nanoseconds an
//! instruction takes depends on the host, the engine and the guest's work. So
//! now and then the machine looks at the host's clock (which makes an
//! [`Input::HostTime`], like everything that comes from outside) and gives its
//! own clock a new rate: what was measured since the last look, less
//! what it is ahead. It may be behind, for then it can be set forward; it
//! never goes back.

use ring3_core::clock::{Clock, Time};
use ring3_core::input::Input;

/// How often to look at the host's clock while the guest works, in nanoseconds.
pub const INTERVAL_NANOS: u64 = 2_000_000;

/// A guess at the start, in picoseconds for each instruction.
pub const INITIAL_PICOS: u64 = 10_000;

/// No instruction takes less or more than this, in picoseconds, whatever is measured: a host that
/// sleeps in between must not make the next look come too late.
const PICOS_RANGE: std::ops::RangeInclusive<u64> = 100..=10_000_000;

/// What the last look at the host's clock saw.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    time: Time,
    instructions: u64,
    /// Smoothed measurement, in picoseconds for each instruction.
    picos_per_instruction: u64,
}

impl Pace {
    /// A pace that begins at host time `time` after `instructions` instructions.
    pub fn new(time: Time, instructions: u64) -> Pace {
        Pace { time, instructions, picos_per_instruction: INITIAL_PICOS }
    }

    /// Instructions until the next look.
    pub fn interval(&self) -> u64 {
        (INTERVAL_NANOS * 1000 / self.picos_per_instruction).max(1)
    }

    /// A look at the host's clock, which says `time`, after `instructions` instructions.
    pub fn look(&mut self, clock: &Clock, time: Time, instructions: u64) -> Input {
        let executed = instructions - self.instructions;
        if executed > 0 {
            let nanos = u128::from(time.nanos_since(self.time));
            let measured = u64::try_from(nanos * 1000 / u128::from(executed)).unwrap_or(u64::MAX);
            let measured = measured.clamp(*PICOS_RANGE.start(), *PICOS_RANGE.end());
            self.picos_per_instruction = (3 * self.picos_per_instruction + measured) / 4;
        }
        (self.time, self.instructions) = (time, instructions);
        // What the virtual clock is ahead is taken back over the next interval, but for
        // a quarter of the speed, so that timers still go on.
        let ahead = clock.now(instructions).nanos_since(time);
        let correction = ahead * 1000 / self.interval();
        let slowest = self.picos_per_instruction / 4;
        let picos = self.picos_per_instruction.saturating_sub(correction).max(slowest).max(1);
        Input::HostTime { time, picos_per_instruction: picos }
    }

    /// The guest has slept until host time `time`: what follows is measured from there.
    pub fn woke(&mut self, time: Time, instructions: u64) {
        (self.time, self.instructions) = (time, instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies a look as a machine does.
    fn apply(clock: &mut Clock, input: &Input, instructions: u64) {
        if let Input::HostTime { time, picos_per_instruction } = input {
            clock.set(instructions, *time, *picos_per_instruction);
        }
    }

    #[test]
    fn virtual_time_finds_the_hosts_speed() {
        let mut clock = Clock::new(INITIAL_PICOS);
        let mut pace = Pace::new(Time::ZERO, 0);
        let (mut instructions, mut nanos) = (0, 0);
        // A host that needs 5 ns an instruction, and a guest that then turns to 20.
        for cost in [5, 20] {
            for _ in 0..100 {
                instructions += pace.interval();
                nanos += pace.interval() * cost;
                let input = pace.look(&clock, Time::from_nanos(nanos), instructions);
                apply(&mut clock, &input, instructions);
            }
            let error = clock.now(instructions).as_nanos().abs_diff(nanos);
            assert!(error < INTERVAL_NANOS, "{error} ns off");
            let picos = clock.picos_per_instruction().abs_diff(cost * 1000);
            assert!(picos < cost * 50, "{picos} ps off");
        }
    }
}
