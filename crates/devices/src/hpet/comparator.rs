//! One of the timers: a value that the main counter is compared with (2.3.8 and 2.3.9).

use serde::{Deserialize, Serialize};

use super::{NANOS_PER_TICK, with_half};

// Timer configuration (2.3.8).
pub(super) const LEVEL: u32 = 1 << 1;
pub(super) const INTERRUPT_ENABLE: u32 = 1 << 2;
const PERIODIC: u32 = 1 << 3;
const CAN_BE_PERIODIC: u32 = 1 << 4;
const HAS_64_BITS: u32 = 1 << 5;
const VALUE_SET: u32 = 1 << 6;
const MODE_32: u32 = 1 << 8;
const ROUTE_SHIFT: u32 = 9;
const ROUTE_BITS: u32 = 0x1f;
/// Inputs of the I/O APIC that a timer can be routed to.
const ROUTES: u32 = 0x00ff_0000;
/// What is kept of a write.
const WRITABLE: u32 =
    LEVEL | INTERRUPT_ENABLE | PERIODIC | VALUE_SET | MODE_32 | ROUTE_BITS << ROUTE_SHIFT;

/// Where the main counter is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Count {
    /// Its register, which software sets and which comes round after its last value.
    pub(super) counter: u64,
    /// How many ticks it has counted since power-on, whatever its register was set to. Time ends before they come round.
    pub(super) ticks: u64,
}

/// A timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Comparator {
    /// Its bits that can be written.
    configuration: u32,
    /// The comparator register.
    value: u64,
    /// What is added to the comparator of a periodic timer at each match: what was last written there.
    period: u64,
    /// The ticks that are counted at the next match.
    due: Option<u64>,
    /// The lower half of a periodic timer's comparator was just set; the upper half belongs to it.
    upper_half_follows: bool,
}

impl Comparator {
    pub(super) const fn power_on() -> Comparator {
        Comparator {
            configuration: 0,
            value: u64::MAX,
            period: 0,
            due: None,
            upper_half_follows: false,
        }
    }

    pub(super) fn configuration(&self) -> u32 {
        self.configuration
    }

    /// The interrupt line that it has; none before one was chosen.
    pub(super) fn route(&self) -> Option<u8> {
        let route = self.configuration >> ROUTE_SHIFT & ROUTE_BITS;
        (route != 0).then_some(route as u8)
    }

    /// The configuration register with its capabilities; VAL_SET_CNF reads 0.
    pub(super) fn capabilities(&self) -> u64 {
        let lower = self.configuration & !VALUE_SET | CAN_BE_PERIODIC | HAS_64_BITS;
        u64::from(ROUTES) << 32 | u64::from(lower)
    }

    /// The comparator register.
    pub(super) fn value(&self) -> u64 {
        self.value & self.mask()
    }

    /// The ticks that are counted at the next match; none where it never matches.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// From one match of a periodic timer to the next, in nanoseconds.
    pub(super) fn period_nanos(&self) -> Option<u64> {
        self.period().map(|period| period.saturating_mul(NANOS_PER_TICK))
    }

    fn is_periodic(&self) -> bool {
        self.configuration & PERIODIC != 0
    }

    /// A timer of 64 bits can be made one of 32 (2.3.8, bit 8).
    fn has_32_bits(&self) -> bool {
        self.configuration & MODE_32 != 0
    }

    fn mask(&self) -> u64 {
        if self.has_32_bits() { 0xffff_ffff } else { u64::MAX }
    }

    fn period(&self) -> Option<u64> {
        let period = self.period & self.mask();
        (self.is_periodic() && period != 0).then_some(period)
    }

    /// Finds the next match from where the main counter is.
    pub(super) fn aim(&mut self, at: Count) {
        let ahead = self.value.wrapping_sub(at.counter) & self.mask();
        self.due = at.ticks.checked_add(ahead);
    }

    /// A write to the lower half of the configuration register; there is nothing to write in the other one.
    pub(super) fn configure(&mut self, value: u32, at: Count) {
        let before = self.configuration;
        // A route that is not offered does not stay (2.3.8, bits 13 to 9).
        let route = value >> ROUTE_SHIFT & ROUTE_BITS;
        let kept = if ROUTES >> route & 1 != 0 { value } else { before };
        let route = kept & ROUTE_BITS << ROUTE_SHIFT;
        self.configuration = value & WRITABLE & !(ROUTE_BITS << ROUTE_SHIFT) | route;
        self.upper_half_follows = false;
        // The accumulator of a periodic timer goes on from where it is.
        if (before ^ value) & (MODE_32 | PERIODIC) != 0 {
            self.aim(at);
        }
    }

    /// A write to one half of the comparator register. In a periodic timer it sets the period, and the comparator itself only after
    /// VAL_SET_CNF was written (2.3.9.2.2).
    pub(super) fn write(&mut self, upper: bool, value: u32, at: Count) {
        let sets_value = !self.is_periodic()
            || if upper { self.upper_half_follows } else { self.configuration & VALUE_SET != 0 };
        if upper && self.has_32_bits() {
            return;
        }
        if sets_value {
            self.value = with_half(self.value, upper, value);
            self.aim(at);
        }
        if self.is_periodic() {
            self.period = with_half(self.period, upper, value);
        }
        self.upper_half_follows = !upper && self.is_periodic() && sets_value;
        self.configuration &= !VALUE_SET;
    }

    /// Compares up to where the main counter is; true when it has matched, once or more.
    pub(super) fn follow(&mut self, at: Count) -> bool {
        let Some(due) = self.due.filter(|due| *due <= at.ticks) else { return false };
        let step = match self.period() {
            Some(period) => period,
            // The lower half of the counter comes round.
            None if self.has_32_bits() => 1 << 32,
            None => {
                self.due = None;
                return true;
            }
        };
        let steps = (at.ticks - due) / step + 1;
        if self.period().is_some() {
            self.value = self.value.wrapping_add(steps.wrapping_mul(step)) & self.mask();
        }
        self.due = steps.checked_mul(step).and_then(|ahead| due.checked_add(ahead));
        true
    }

    /// False when no timer can be in this state.
    pub(super) fn is_valid(&self) -> bool {
        self.configuration & !WRITABLE == 0
    }
}
