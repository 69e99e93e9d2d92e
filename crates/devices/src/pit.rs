//! The 8254 programmable interval timer of a PC, and system control port B (61h),
//! which gates its counter 2 and shows its output.
//!
//! From Intel's data sheet "8254 Programmable Interval Timer" (231164), whose names are
//! used here, and for port 61h from the PIIX3 data sheet (290550), "NMI Status and Control
//! Register". All three counters run at [`HERTZ`]. OUT of counter 0 is IRQ 0, counter
//! 1 once timed memory refresh and is wired to nothing, counter 2 is the speaker's.

mod counter;

use ring3_core::bus::PortRange;
use ring3_core::clock::{Tag, Time};
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;
use counter::{Counter, Tick};

/// The frequency of the CLK inputs: a third of the 3.579545 MHz of the colour burst.
pub const HERTZ: u64 = 1_193_182;

const VERSION: u32 = 1;
const IRQ: u8 = 0;
/// OUT of counter 0 changes.
const OUT_0: Tag = 0;
const OPEN_BUS: u8 = 0xff;
/// How long it does nothing by itself while IRQ 0 is another timer's.
const REPLACED_NANOS: u64 = 1_000_000_000;

/// Memory is refreshed, and bit 4 of port 61h toggles, every 15.1 µs, which is 18 periods of
/// CLK; the chipset does it whatever counter 1 is programmed to.
const REFRESH_TICKS: Tick = 18;

const READ_BACK: u8 = 3;
const READ_BACK_NO_COUNT: u8 = 1 << 5;
const READ_BACK_NO_STATUS: u8 = 1 << 4;
const RW_BITS: u8 = 3 << 4;

const PORT_B_GATE_2: u8 = 1 << 0;
/// Gate of counter 2, speaker data, and the enable bits of parity and channel check.
const PORT_B_WRITABLE: u8 = 0x0f;
const PORT_B_REFRESH: u8 = 1 << 4;
const PORT_B_OUT_2: u8 = 1 << 5;

/// The timer.
///
/// It sets one timer, to the next change of OUT of counter 0, and none while that has no
/// change ahead; its periods start at ticks of CLK and so do not drift. Rises of OUT that
/// are past when the timer is served are one edge of IRQ 0, not many. While the HPET has IRQ 0 a machine that is idle
/// is not woken up for it but once a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pit {
    counters: [Counter; 3],
    /// What was written to port 61h.
    port_b: u8,
}

impl Default for Pit {
    fn default() -> Pit {
        Pit::at(0)
    }
}

impl Pit {
    /// The ports at which it answers: its own and port B.
    pub fn ports(&self) -> [PortRange; 2] {
        [PortRange::new(0x40, 4), PortRange::new(0x61, 1)]
    }

    fn at(now: Tick) -> Pit {
        let counters = [Counter::new(true, now), Counter::new(true, now), Counter::new(false, now)];
        Pit { counters, port_b: 0 }
    }

    /// Follows all counters up to the context's time, and yields that in ticks and whether
    /// OUT 0 has risen. A rise makes an edge of IRQ 0, and leaves it high until the
    /// next change even if OUT is low again by now: the 8259A would forget it otherwise.
    fn follow(&mut self, context: &mut Context<'_>) -> (Tick, bool) {
        let now = context.now.ticks(HERTZ) as Tick;
        let [rose, _, _] = self.counters.each_mut().map(|counter| counter.follow(now));
        if rose {
            context.irq.set(IRQ, false);
            context.irq.set(IRQ, true);
            self.set_timer(context, now);
        }
        (now, rose)
    }

    /// Brings IRQ 0 to the level of OUT 0, and the timer to its next change.
    fn drive_irq(&self, context: &mut Context<'_>, now: Tick) {
        context.irq.set(IRQ, self.counters[0].out(now));
        self.set_timer(context, now);
    }

    fn set_timer(&self, context: &mut Context<'_>, now: Tick) {
        match self.counters[0].next_change(now) {
            // IRQ 0 is not its own, so that nobody hears it; it looks from time to time whether it is.
            Some(_) if context.irq.timers_are_replaced() => {
                context.set_timer(OUT_0, context.now.plus_nanos(REPLACED_NANOS));
            }
            Some(tick) => {
                let at = Time::of_tick(u64::try_from(tick).unwrap_or(0), HERTZ);
                // Who uses a periodic mode counts its interrupts; who sets the counter anew
                // each time looks at another clock.
                if self.counters[0].is_periodic() {
                    context.set_tick(OUT_0, at);
                } else {
                    context.set_timer(OUT_0, at);
                }
            }
            None => context.cancel_timer(OUT_0),
        }
    }

    fn read_byte(&mut self, port: u16, now: Tick) -> u8 {
        match port {
            0x40..=0x42 => self.counters[usize::from(port - 0x40)].read(now),
            0x61 => {
                let refresh = if now / REFRESH_TICKS % 2 != 0 { PORT_B_REFRESH } else { 0 };
                let out_2 = if self.counters[2].out(now) { PORT_B_OUT_2 } else { 0 };
                self.port_b | refresh | out_2
            }
            _ => OPEN_BUS,
        }
    }

    /// True when the write may have changed OUT of counter 0.
    fn write_byte(&mut self, port: u16, value: u8, now: Tick) -> bool {
        match port {
            0x40..=0x42 => self.counters[usize::from(port - 0x40)].write(value, now),
            0x43 => return self.write_control_word(value, now),
            0x61 => {
                self.port_b = value & PORT_B_WRITABLE;
                self.counters[2].set_gate(value & PORT_B_GATE_2 != 0, now);
            }
            _ => {}
        }
        port == 0x40
    }

    fn write_control_word(&mut self, value: u8, now: Tick) -> bool {
        let select = value >> 6;
        if select == READ_BACK {
            self.read_back(value, now);
            return false;
        }
        let counter = &mut self.counters[usize::from(select)];
        if value & RW_BITS == 0 {
            counter.latch_count(now);
            return false;
        }
        counter.write_control(value, now);
        select == 0
    }

    /// The read-back command; its select bits CNT 0 to CNT 2 are bits 1 to 3.
    fn read_back(&mut self, value: u8, now: Tick) {
        for (index, counter) in self.counters.iter_mut().enumerate() {
            if value >> (index + 1) & 1 == 0 {
                continue;
            }
            if value & READ_BACK_NO_COUNT == 0 {
                counter.latch_count(now);
            }
            if value & READ_BACK_NO_STATUS == 0 {
                counter.latch_status(now);
            }
        }
    }
}

impl Device for Pit {
    fn id(&self) -> DeviceId {
        DeviceId::PIT
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        *self = Pit::at(context.now.ticks(HERTZ) as Tick);
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let (now, _) = self.follow(context);
        bytewise::read(port, width, |port| self.read_byte(port, now))
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        let (now, _) = self.follow(context);
        bytewise::write(port, width, value, |port, byte| {
            if self.write_byte(port, byte, now) {
                self.drive_irq(context, now);
            }
        });
    }

    fn timer(&mut self, context: &mut Context<'_>, _: Tag) {
        let (now, rose) = self.follow(context);
        if !rose {
            self.drive_irq(context, now);
        }
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, self)
    }

    fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError> {
        let saved: Pit = state.load(self.name(), VERSION)?;
        let gates = [true, true, saved.port_b & PORT_B_GATE_2 != 0];
        if saved.port_b & !PORT_B_WRITABLE != 0
            || saved.counters.each_ref().map(Counter::gate) != gates
            || !saved.counters.iter().all(Counter::is_valid)
        {
            return Err(state.damaged("no 8254 can be in this state"));
        }
        *self = saved;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
