//! The high precision event timer: a counter and three timers that compare with it.
//!
//! From the "IA-PC HPET Specification", revision 1.0a of October 2004; section numbers in this file are its own. The counter runs
//! at 100 MHz and has 64 bits, and so have all timers, each of which can be periodic. Interrupts go to the inputs 16 to 23 of the I/O
//! APIC, or take the places of those of the interval timer and the real-time clock (legacy replacement); none is delivered as a
//! message (FSB).
//!
//! Nothing happens at a tick: what registers show is computed from the time, and only a timer that is to interrupt sets one
//! of the machine's. The specification has a request by edges be a pulse. Here the line goes low and up again and stays there, since
//! the 8259A forgets a request that goes away.
//!
//! ```
//! use ring3_core::device::{Device, TestBench, Width};
//! use ring3_devices::hpet::Hpet;
//!
//! let (mut hpet, mut bench) = (Hpet::default(), TestBench::default());
//! hpet.write_memory(&mut bench.context(), 0, 0x10, Width::Dword, 1); // ENABLE_CNF
//! bench.advance(&mut hpet, 1000);
//! assert_eq!(hpet.read_memory(&mut bench.context(), 0, 0xf0, Width::Dword), 100);
//! ```

mod comparator;

use ring3_core::clock::{Tag, Time};
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use comparator::{Comparator, Count, INTERRUPT_ENABLE, LEVEL};

/// Where the registers are (2.3.1).
pub const ADDRESS: u64 = 0xfed0_0000;
/// How many guest-physical addresses they take.
pub const SIZE: u64 = 0x400;
/// The lower half of the capabilities, which is the "event timer block ID" of the ACPI table (3.2.4): Intel, replaces legacy
/// interrupts, 64 bits, three timers, revision 1.
pub const BLOCK_ID: u32 = 0x8086 << 16 | 1 << 15 | 1 << 13 | (TIMERS as u32 - 1) << 8 | 1;
/// The shortest period that a guest gets every tick of, in periods of the counter; for the ACPI table.
pub const MINIMUM_TICK: u16 = (SHORTEST_COUNTED / NANOS_PER_TICK) as u16;

const VERSION: u32 = 2;
const REGION: u8 = 0;

const TIMERS: usize = 3;
const NANOS_PER_TICK: u64 = 10;
const FEMTOS_PER_NANO: u64 = 1_000_000;
/// Interrupts that come quicker than that, in nanoseconds, may be late, and several of them one: a guest could not take them all.
const SHORTEST_COUNTED: u64 = 50_000;
/// No interrupt is due earlier than that after the one before, in nanoseconds.
const SHORTEST: u64 = 1_000;

// Offsets of the registers (2.3.2).
const CAPABILITIES: u64 = 0x000;
const CONFIGURATION: u64 = 0x010;
const INTERRUPT_STATUS: u64 = 0x020;
const MAIN_COUNTER: u64 = 0x0f0;
const FIRST_TIMER: u64 = 0x100;
const TIMER_LEN: u64 = 0x20;
// In a timer.
const TIMER_CONFIGURATION: u64 = 0x00;
const TIMER_COMPARATOR: u64 = 0x08;

// General configuration (2.3.5).
const ENABLE: u32 = 1 << 0;
const LEGACY_REPLACEMENT: u32 = 1 << 1;

/// The lines of timers 0 and 1 with legacy replacement.
const LEGACY_LINES: [u8; 2] = [0, 8];
/// Which of those that share a line to the I/O APIC the HPET is.
const DRIVER: u8 = 6;

/// The timer block, device `hpet`; its one memory region are its registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hpet {
    /// ENABLE and LEGACY_REPLACEMENT.
    configuration: u32,
    /// T0_INT_STS and so on.
    status: u8,
    /// What the counter was at `since`, from where it has counted if it is enabled.
    counter: u64,
    /// The ticks that it had counted then since power-on.
    #[serde(default)]
    ticks: u64,
    since: Time,
    timers: [Comparator; TIMERS],
    /// The timers whose lines are high.
    asserted: u8,
}

impl Default for Hpet {
    /// The state after power-on: halted.
    fn default() -> Hpet {
        Hpet {
            configuration: 0,
            status: 0,
            counter: 0,
            ticks: 0,
            since: Time::ZERO,
            timers: [const { Comparator::power_on() }; TIMERS],
            asserted: 0,
        }
    }
}

impl Hpet {
    fn is_enabled(&self) -> bool {
        self.configuration & ENABLE != 0
    }

    /// Where the main counter is at `now`.
    fn count(&self, now: Time) -> Count {
        let counted =
            if self.is_enabled() { now.nanos_since(self.since) / NANOS_PER_TICK } else { 0 };
        Count {
            counter: self.counter.wrapping_add(counted),
            ticks: self.ticks.saturating_add(counted),
        }
    }

    /// When `ticks` are counted, which is ahead; never, if that is after the end of time.
    fn time_of(&self, ticks: u64) -> Option<Time> {
        let nanos = ticks.checked_sub(self.ticks)?.checked_mul(NANOS_PER_TICK)?;
        let time = self.since.plus_nanos(nanos);
        (time != Time::from_nanos(u64::MAX)).then_some(time)
    }

    /// Lets the timers compare up to now, and raises what has matched.
    fn follow(&mut self, context: &mut Context<'_>) {
        if !self.is_enabled() {
            return;
        }
        let count = self.count(context.now);
        for index in 0..TIMERS {
            if !self.timers[index].follow(count) {
                continue;
            }
            let configuration = self.timers[index].configuration();
            if configuration & LEVEL != 0 {
                self.status |= 1 << index;
            } else if configuration & INTERRUPT_ENABLE != 0 {
                // An edge, for those whose line is high already, too.
                self.asserted &= !(1 << index);
                self.drive(context, index);
                self.asserted |= 1 << index;
                self.drive(context, index);
            }
        }
    }

    /// Brings lines and the machine's timers to what they are to be after something was changed.
    fn settle(&mut self, context: &mut Context<'_>) {
        for index in 0..TIMERS {
            let configuration = self.timers[index].configuration();
            if configuration & LEVEL != 0 {
                let asserts = self.is_enabled()
                    && configuration & INTERRUPT_ENABLE != 0
                    && self.status >> index & 1 != 0;
                self.asserted = self.asserted & !(1 << index) | u8::from(asserts) << index;
            }
            self.drive(context, index);
            self.arm(context, index);
        }
    }

    /// Sets the machine's timer to the next interrupt of timer `index`.
    fn arm(&self, context: &mut Context<'_>, index: usize) {
        let timer = &self.timers[index];
        let interrupts = self.is_enabled() && timer.configuration() & INTERRUPT_ENABLE != 0;
        let due = if interrupts { timer.due().and_then(|due| self.time_of(due)) } else { None };
        let tag = index as Tag;
        match due {
            // A level that is there already becomes none by another match.
            _ if timer.configuration() & LEVEL != 0 && self.status >> index & 1 != 0 => {
                context.cancel_timer(tag);
            }
            // Who has a periodic timer counts its interrupts; who sets it anew each time looks at another clock.
            Some(at) if timer.period_nanos() >= Some(SHORTEST_COUNTED) => context.set_tick(tag, at),
            Some(at) if timer.period_nanos().is_some() => {
                context.set_timer(tag, at.max(context.now.plus_nanos(SHORTEST)));
            }
            Some(at) => context.set_timer(tag, at),
            None => context.cancel_timer(tag),
        }
    }

    /// Drives the line of timer `index` high or low.
    fn drive(&self, context: &mut Context<'_>, index: usize) {
        let high = self.asserted >> index & 1 != 0;
        let replaces = self.configuration & LEGACY_REPLACEMENT != 0;
        match LEGACY_LINES.get(index) {
            Some(line) if replaces => context.irq.set_replacement(*line, high),
            _ => {
                let Some(line) = self.timers[index].route() else { return };
                // Several timers can have the same line.
                let any = (0..TIMERS).any(|other| {
                    let is_legacy = replaces && other < LEGACY_LINES.len();
                    let has_line = self.timers[other].route() == Some(line);
                    !is_legacy && has_line && self.asserted >> other & 1 != 0
                });
                context.irq.set_shared(line, DRIVER, any);
            }
        }
    }

    /// Takes all lines of timer `index` down, before it gets others.
    fn release(&mut self, context: &mut Context<'_>, index: usize) {
        self.asserted &= !(1 << index);
        self.drive(context, index);
    }

    /// The register of eight bytes at `offset`.
    fn read(&self, offset: u64, now: Time) -> u64 {
        match offset {
            CAPABILITIES => (NANOS_PER_TICK * FEMTOS_PER_NANO) << 32 | u64::from(BLOCK_ID),
            CONFIGURATION => self.configuration.into(),
            INTERRUPT_STATUS => self.status.into(),
            MAIN_COUNTER => self.count(now).counter,
            _ => match timer_at(offset) {
                Some((index, TIMER_CONFIGURATION)) => self.timers[index].capabilities(),
                Some((index, TIMER_COMPARATOR)) => self.timers[index].value(),
                _ => 0,
            },
        }
    }

    /// A write of `value` to the lower or the upper half of the register at `offset`.
    fn write(&mut self, context: &mut Context<'_>, offset: u64, upper: bool, value: u32) {
        let count = self.count(context.now);
        match (offset, upper) {
            (CONFIGURATION, false) => self.configure(context, value),
            (INTERRUPT_STATUS, false) => self.status &= !(value as u8),
            // To be done only while it is halted (2.3.7); it is not heard otherwise.
            (MAIN_COUNTER, _) if !self.is_enabled() => {
                self.counter = with_half(self.counter, upper, value);
                let count = self.count(context.now);
                for timer in &mut self.timers {
                    timer.aim(count);
                }
            }
            _ => match timer_at(offset) {
                Some((index, TIMER_CONFIGURATION)) if !upper => {
                    self.release(context, index);
                    self.timers[index].configure(value, count);
                    if value & LEVEL == 0 {
                        self.status &= !(1 << index);
                    }
                }
                Some((index, TIMER_COMPARATOR)) => self.timers[index].write(upper, value, count),
                _ => {}
            },
        }
    }

    fn configure(&mut self, context: &mut Context<'_>, value: u32) {
        let count = self.count(context.now);
        (self.counter, self.ticks, self.since) = (count.counter, count.ticks, context.now);
        let changed = self.configuration ^ value;
        if changed & LEGACY_REPLACEMENT != 0 {
            for index in 0..TIMERS {
                self.release(context, index);
            }
        }
        self.configuration = value & (ENABLE | LEGACY_REPLACEMENT);
        context.irq.replace_timers(value & LEGACY_REPLACEMENT != 0);
        if !self.is_enabled() {
            for index in 0..TIMERS {
                self.release(context, index);
            }
        }
    }
}

/// The timer that has the register at `offset`, and the offset in it.
fn timer_at(offset: u64) -> Option<(usize, u64)> {
    let offset = offset.checked_sub(FIRST_TIMER)?;
    let index = usize::try_from(offset / TIMER_LEN).ok().filter(|index| *index < TIMERS)?;
    Some((index, offset % TIMER_LEN))
}

/// `register` with one of its halves set to `value`.
fn with_half(register: u64, upper: bool, value: u32) -> u64 {
    if upper {
        register & 0xffff_ffff | u64::from(value) << 32
    } else {
        register & !0xffff_ffff | u64::from(value)
    }
}

impl Device for Hpet {
    fn id(&self) -> DeviceId {
        DeviceId::HPET
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        *self = Hpet { since: context.now, ..Hpet::default() };
        context.claim_memory(REGION, ADDRESS, SIZE);
    }

    /// Software is to read double words or more (2.3.1), of which this has the halves; others get their part of one.
    fn read_memory(&mut self, context: &mut Context<'_>, _: u8, offset: u64, _: Width) -> u32 {
        let register = offset & !7;
        // Systems that have no better clock read the counter all the time, and it asks for nothing else.
        if register != MAIN_COUNTER {
            self.follow(context);
            self.settle(context);
        }
        (self.read(register, context.now) >> (8 * (offset & 7))) as u32
    }

    /// What is no aligned double word is not heard.
    fn write_memory(
        &mut self,
        context: &mut Context<'_>,
        _: u8,
        offset: u64,
        width: Width,
        value: u32,
    ) {
        if width == Width::Dword && offset.is_multiple_of(4) {
            self.follow(context);
            self.write(context, offset & !7, offset & 4 != 0, value);
            // What was aimed at now matches at once.
            self.follow(context);
            self.settle(context);
        }
    }

    fn timer(&mut self, context: &mut Context<'_>, _: Tag) {
        self.follow(context);
        self.settle(context);
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let mut state: Hpet = saved.load(self.name(), VERSION)?;
        if saved.version() == 1 {
            // Its timers wait for values of the counter, as if nobody had set that.
            state.ticks = state.counter;
        }
        let has_all = |bits: u8| bits >> TIMERS == 0;
        if state.configuration & !(ENABLE | LEGACY_REPLACEMENT) != 0
            || !has_all(state.status)
            || !has_all(state.asserted)
            || !state.timers.iter().all(Comparator::is_valid)
        {
            return Err(saved.damaged("no timer block can be in this state"));
        }
        *self = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
