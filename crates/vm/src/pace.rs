//! Keeps virtual time close to the host's.
//!
//! Virtual time is a function of instructions executed. How many nanoseconds an instruction takes depends on
//! the host, the engine and the guest's work. So now and then the machine looks at the host's clock, which
//! makes an [`Input::HostTime`], like everything that comes from outside. Then it gives its own clock a new
//! rate: the one measured since the last look, reduced if the clock is ahead of the host's. If it is behind,
//! it can be set forward; it never goes back.
//!
//! A guest that halts lets the machine sleep until its next timer or an input. A kernel without tickless
//! idle (Debian's 686 flavour) wakes up 250 times a second, and each wake-up finds cold caches, which took 3 to 5 %
//! of a core. So after 50 wake-ups without work the machine sleeps up to 30 ms longer. A timer that the guest
//! sets anew for each tick is late once then, and the kernel catches up; a timer whose ticks software counts
//! (`Context::set_tick`: the 8254 in a periodic mode, the MC146818) delivers each of them at its own virtual time.
//! The first sign of work or input ends the longer sleeps: code of users that ran, or a timer that is nearer than the
//! tick of any kernel, for a program that sleeps for a millisecond again and again does little, too.

use ring3_core::clock::{Clock, Time};
use ring3_core::input::Input;

/// How often to look at the host's clock while the guest works, in nanoseconds.
pub const INTERVAL_NANOS: u64 = 2_000_000;

/// The interval while a drive has yet to answer, since the guest should see the answer soon.
const SHORT_INTERVAL_NANOS: u64 = 50_000;

/// The initial guess, in picoseconds for each instruction.
pub const INITIAL_PICOS: u64 = 10_000;

/// The time of fewer instructions says nothing about the next ones, since they ran with cold caches. It is
/// counted together with the next ones, unless the guest sleeps in between.
const MEASURABLE_INSTRUCTIONS: u64 = 20_000;

/// When virtual time is this far behind, in nanoseconds, it is set forward at once, over all timers
/// that should have fired meanwhile.
const HOPELESS_NANOS: u64 = 1_000_000_000;

/// No instruction takes less or more than this, in picoseconds, whatever is measured: a host that
/// sleeps in between must not make the next look come too late.
const PICOS_RANGE: std::ops::RangeInclusive<u64> = 100..=10_000_000;

/// The measurements by the host's clock.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Host time and instructions when the present measurement began.
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

    /// Returns the number of instructions until the next look.
    pub fn interval(&self) -> u64 {
        self.instructions_in(INTERVAL_NANOS)
    }

    /// Returns the number of instructions until the next look while an input is expected soon.
    pub fn short_interval(&self) -> u64 {
        self.instructions_in(SHORT_INTERVAL_NANOS)
    }

    /// Returns how many instructions take `nanos` nanoseconds.
    fn instructions_in(&self, nanos: u64) -> u64 {
        (nanos * 1000 / self.picos_per_instruction).max(1)
    }

    /// Takes a look at the host's clock, which says `time`, after `instructions` instructions.
    ///
    /// The virtual clock is set forward to the host's, but not over `next_tick`: a periodic timer keeps all
    /// of its ticks, late as they may be.
    pub fn look(
        &mut self,
        clock: &Clock,
        time: Time,
        instructions: u64,
        next_tick: Option<Time>,
    ) -> Input {
        let executed = instructions - self.instructions;
        if executed >= MEASURABLE_INSTRUCTIONS {
            let nanos = u128::from(time.nanos_since(self.time));
            let measured = u64::try_from(nanos * 1000 / u128::from(executed)).unwrap_or(u64::MAX);
            let measured = measured.clamp(*PICOS_RANGE.start(), *PICOS_RANGE.end());
            self.picos_per_instruction = (3 * self.picos_per_instruction + measured) / 4;
            (self.time, self.instructions) = (time, instructions);
        }
        // If the virtual clock is ahead, it runs slower over the next interval, but at a quarter of its speed
        // at least, so that timers still go on.
        let now = clock.now(instructions);
        let ahead = now.nanos_since(time);
        let correction = ahead * 1000 / self.interval();
        let slowest = self.picos_per_instruction / 4;
        let picos = self.picos_per_instruction.saturating_sub(correction).max(slowest).max(1);
        let hopeless = time.nanos_since(now) > HOPELESS_NANOS;
        let time = if hopeless { time } else { next_tick.map_or(time, |at| at.min(time)) };
        Input::HostTime { time, picos_per_instruction: picos }
    }

    /// Notes that the guest has slept until host time `time`, from which the next measurement begins.
    pub fn woke(&mut self, time: Time, instructions: u64) {
        (self.time, self.instructions) = (time, instructions);
    }
}

/// Decides how late timers may be while nothing happens.
///
/// A kernel that ticks 250 times a second even when it is idle costs the host little for the tick and much
/// for waking up with cold caches. So when a machine has done nothing but tick for a while, it sleeps longer.
/// A kernel that sets its timer anew for each tick then finds itself late and executes one tick for several.
/// One with a periodic timer gets all ticks, one after the other, each at its own virtual time. The first
/// sign of work ends that.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slack {
    /// Instructions executed when the machine last went to sleep.
    instructions: u64,
    /// Number of sleeps in a row after which there was little to do.
    idle_sleeps: u32,
}

/// A tick of an idle kernel takes fewer instructions than this.
const LIGHT_INSTRUCTIONS: u64 = 20_000;
/// The rest of a kernel's tick, 1000 times a second at most, after the work of the last one.
const SHORTEST_TICK_NANOS: u64 = 500_000;
/// Number of light wake-ups in a row that count as deep idleness.
const DEEP_IDLE_SLEEPS: u32 = 50;
/// How late timers may be in deep idleness, in nanoseconds.
const DEEP_IDLE_NANOS: u64 = 30_000_000;

impl Slack {
    /// Notes that the machine goes to sleep after `instructions` instructions, `timer_nanos` nanoseconds before
    /// the next timer, and whether code of users has run since the last sleep. Returns how late it may wake up,
    /// in nanoseconds.
    pub fn sleep(
        &mut self,
        instructions: u64,
        has_run_users: bool,
        timer_nanos: Option<u64>,
    ) -> u64 {
        let light = instructions - self.instructions < LIGHT_INSTRUCTIONS
            && !has_run_users
            && timer_nanos.is_none_or(|nanos| nanos >= SHORTEST_TICK_NANOS);
        self.instructions = instructions;
        self.idle_sleeps = if light { self.idle_sleeps.saturating_add(1) } else { 0 };
        if self.idle_sleeps > DEEP_IDLE_SLEEPS { DEEP_IDLE_NANOS } else { 0 }
    }

    /// Notes that an input has come, so somebody is there.
    pub fn input(&mut self) {
        self.idle_sleeps = 0;
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

    /// A slow device made instructions seem slow; slices are short then, and the measurement must still end.
    #[test]
    fn instructions_that_were_slow_become_fast_again() {
        let mut clock = Clock::new(INITIAL_PICOS);
        let mut pace = Pace::new(Time::ZERO, 0);
        let (mut instructions, mut nanos) = (0, 0);
        for picos in [20_000_000, 5_000] {
            for _ in 0..4000 {
                let executed = pace.interval();
                instructions += executed;
                nanos += executed * picos / 1000;
                let time = Time::from_nanos(nanos);
                let look = pace.look(&clock, time, instructions, None);
                apply(&mut clock, &look, instructions);
            }
        }
        let ahead = clock.now(instructions).nanos_since(Time::from_nanos(nanos));
        assert!(ahead < INTERVAL_NANOS, "{ahead} ns ahead");
    }

    #[test]
    fn virtual_time_finds_the_hosts_speed() {
        let mut clock = Clock::new(INITIAL_PICOS);
        let mut pace = Pace::new(Time::ZERO, 0);
        let (mut instructions, mut nanos) = (0, 0);
        // A host that needs 5 ns for an instruction, and a guest whose instructions then take 20.
        for cost in [5, 20] {
            for _ in 0..100 {
                instructions += pace.interval();
                nanos += pace.interval() * cost;
                let time = Time::from_nanos(nanos);
                let input = pace.look(&clock, time, instructions, None);
                apply(&mut clock, &input, instructions);
            }
            let error = clock.now(instructions).as_nanos().abs_diff(nanos);
            assert!(error < INTERVAL_NANOS, "{error} ns off");
            let picos = clock.picos_per_instruction().abs_diff(cost * 1000);
            assert!(picos < cost * 50, "{picos} ps off");
        }
    }

    #[test]
    fn late_ticks_are_not_skipped() {
        let clock = Clock::new(INITIAL_PICOS);
        let mut pace = Pace::new(Time::ZERO, 0);
        let mut look = |nanos| match pace.look(
            &clock,
            Time::from_nanos(nanos),
            0,
            Some(Time::from_nanos(4_000_000)),
        ) {
            Input::HostTime { time, .. } => time.as_nanos(),
            other => unreachable!("{other:?}"),
        };
        assert_eq!(look(3_000_000), 3_000_000);
        assert_eq!(look(9_000_000), 4_000_000);
        assert_eq!(look(5_000_000_000), 5_000_000_000);
    }

    #[test]
    fn only_long_idleness_makes_timers_late() {
        let mut slack = Slack::default();
        let mut instructions = 0;
        let mut sleep = |slack: &mut Slack, executed| {
            instructions += executed;
            slack.sleep(instructions, false, Some(4_000_000))
        };
        for _ in 0..DEEP_IDLE_SLEEPS {
            assert_eq!(sleep(&mut slack, 4000), 0);
        }
        assert_eq!(sleep(&mut slack, 4000), DEEP_IDLE_NANOS);
        assert_eq!(sleep(&mut slack, 100_000), 0);
        for _ in 0..=DEEP_IDLE_SLEEPS {
            sleep(&mut slack, 4000);
        }
        slack.input();
        assert_eq!(sleep(&mut slack, 4000), 0);
    }

    #[test]
    fn the_timers_of_programs_are_never_late() {
        for (has_run_users, timer_nanos, late) in [
            (false, Some(1_000_000), DEEP_IDLE_NANOS),
            (false, None, DEEP_IDLE_NANOS),
            (true, Some(1_000_000), 0),
            (true, None, 0),
            (false, Some(100_000), 0),
        ] {
            let mut slack = Slack::default();
            let sleeps =
                (1..100).map(|sleep| slack.sleep(sleep * 4000, has_run_users, timer_nanos));
            assert_eq!(sleeps.max(), Some(late), "{has_run_users} {timer_nanos:?}");
        }
    }
}
