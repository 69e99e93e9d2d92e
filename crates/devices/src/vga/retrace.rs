//! Where the beam is: input status 1, from virtual time and the CRT controller's timing.

use ring3_core::clock::Time;

use super::registers::Registers;

/// The display is not enabled: the beam is in the border or flies back.
const DISPLAY_DISABLED: u8 = 0x01;
const VERTICAL_RETRACE: u8 = 0x08;

/// The timing of a frame, in ticks of `hertz` and in lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Timing {
    hertz: u64,
    line_ticks: u64,
    displayed_ticks: u64,
    lines: u64,
    displayed_lines: u64,
    retrace_start: u64,
    retrace_lines: u64,
}

/// 640 by 480 at 60 Hz, as mode 12h has it.
const STANDARD: Timing = Timing {
    hertz: 25_175_000,
    line_ticks: 800,
    displayed_ticks: 640,
    lines: 525,
    displayed_lines: 480,
    retrace_start: 490,
    retrace_lines: 2,
};

impl Timing {
    /// The timing that the registers say, if it is one with a picture and a retrace.
    fn of(registers: &Registers) -> Option<Timing> {
        let clocks = if registers.dot_clock_is_halved() { 2 } else { 1 };
        let character = registers.dots() as u64 * clocks;
        let retrace_start = registers.retrace_start();
        // The end is compared by its low four bits only; the same value means a whole round.
        let retrace_lines = match registers.retrace_end().wrapping_sub(retrace_start) & 15 {
            0 => 16,
            lines => lines,
        };
        let timing = Timing {
            hertz: registers.dot_clock(),
            line_ticks: registers.horizontal_total() * character,
            displayed_ticks: registers.columns() as u64 * character,
            lines: registers.vertical_total(),
            displayed_lines: registers.lines() as u64,
            retrace_start,
            retrace_lines,
        };
        let is_sound = timing.displayed_ticks < timing.line_ticks
            && (timing.displayed_lines..timing.lines).contains(&timing.retrace_start);
        is_sound.then_some(timing)
    }

    fn status(&self, now: Time) -> Status {
        let ticks = now.ticks(self.hertz);
        let in_frame = ticks % (self.line_ticks * self.lines);
        let (line, tick) = (in_frame / self.line_ticks, in_frame % self.line_ticks);
        let displayed = line < self.displayed_lines && tick < self.displayed_ticks;
        let retrace = line.wrapping_sub(self.retrace_start) < self.retrace_lines;
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let value = bit(!displayed, DISPLAY_DISABLED) | bit(retrace, VERTICAL_RETRACE);
        let rest = if displayed { self.displayed_ticks } else { self.line_ticks } - tick;
        let until = Time::of_tick(ticks.saturating_add(rest), self.hertz);
        Status { value, from: now, until }
    }
}

/// Input status 1, with the time for which it is known: programs read it again and again until it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) value: u8,
    from: Time,
    /// The first time at which the value may be another one.
    until: Time,
}

impl Status {
    /// Returns input status 1 at `now`. Where the registers give no frame, or do not make the picture
    /// (`linear`), it is that of a standard mode: software waits for a retrace in every mode.
    pub(super) fn at(now: Time, registers: &Registers, linear: bool) -> Status {
        let timing = if linear { None } else { Timing::of(registers) };
        timing.unwrap_or(STANDARD).status(now)
    }

    /// Returns whether this is also the status at `now`, if no register has been written since.
    pub(super) fn holds_at(&self, now: Time) -> bool {
        (self.from..self.until).contains(&now)
    }
}
