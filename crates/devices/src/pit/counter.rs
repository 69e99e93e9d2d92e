//! One of the three counters of an 8254.
//!
//! Nothing happens at a tick: a counter keeps the tick at which its counting element was
//! loaded, and what it shows is computed from the ticks that have passed since.
//!
//! Where the data sheet waits for the next CLK pulse, so does the counter, with one
//! exception: until that pulse it shows the new count and the new level of OUT. An access
//! takes a real processor longer than a period of CLK, so software does not expect to see
//! what was before; here an access may take less.

use serde::{Deserialize, Serialize};

/// The clock period number, counted from the machine's start. It is signed because the
/// start of a period of counting may be reckoned back to before that.
pub(super) type Tick = i64;

/// No counter was loaded earlier or later than this: 16000 years on either side.
const TICK_LIMIT: Tick = 1 << 59;

/// The modes of operation (8254 data sheet, "Mode Definitions").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    InterruptOnTerminalCount,
    OneShot,
    RateGenerator,
    SquareWave,
    SoftwareStrobe,
    HardwareStrobe,
}

/// Which bytes of a count are read and written: RW1 and RW0 of the control word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bytes {
    Low,
    High,
    LowThenHigh,
}

/// What the counting element does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Element {
    /// It has no count to count from, and shows `value`.
    Idle { value: u16 },
    /// `divisor` was loaded at tick `since`, which is in the future until its pulse has come.
    Counting { since: Tick, divisor: u32 },
    /// GATE has stopped it `elapsed` ticks after `divisor` was loaded.
    Held { elapsed: Tick, divisor: u32 },
}

/// When the count register is taken over into the counting element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Load {
    /// Not before there is a count, or a trigger.
    Waiting,
    /// At the end of the cycle, at this tick.
    EndOfCycle(Tick),
    /// It was taken over by the pulse of this tick.
    Taken(Tick),
}

/// A counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counter {
    /// RW, M and BCD: the low six bits of the last control word.
    control: u8,
    gate: bool,
    /// The count register, as a number of ticks, if it was written since the control word.
    count_register: Option<u32>,
    /// The first byte of a two-byte count.
    first_byte: Option<u8>,
    load: Load,
    element: Element,
    /// The status latched by the read-back command.
    status_latch: Option<u8>,
    /// The count latched, in the digits that the guest reads.
    count_latch: Option<u16>,
    /// The high byte of a two-byte count is read next.
    high_next: bool,
    /// Up to here OUT has been followed.
    followed: Tick,
}

impl Counter {
    /// The data sheet leaves the state after power-on open; here it is mode 0 with no count.
    pub(super) fn new(gate: bool, now: Tick) -> Counter {
        Counter {
            control: 0x30,
            gate,
            count_register: None,
            first_byte: None,
            load: Load::Waiting,
            element: Element::Idle { value: 0 },
            status_latch: None,
            count_latch: None,
            high_next: false,
            followed: now,
        }
    }

    fn mode(&self) -> Mode {
        match self.control >> 1 & 7 {
            0 => Mode::InterruptOnTerminalCount,
            1 => Mode::OneShot,
            2 | 6 => Mode::RateGenerator,
            3 | 7 => Mode::SquareWave,
            4 => Mode::SoftwareStrobe,
            _ => Mode::HardwareStrobe,
        }
    }

    fn bytes(&self) -> Bytes {
        match self.control >> 4 {
            1 => Bytes::Low,
            2 => Bytes::High,
            _ => Bytes::LowThenHigh,
        }
    }

    /// OUT goes on changing without software.
    pub(super) fn is_periodic(&self) -> bool {
        matches!(self.mode(), Mode::RateGenerator | Mode::SquareWave)
    }

    /// How many values the counting element has: 10000 in BCD, 65536 in binary.
    fn modulus(&self) -> u32 {
        if self.control & 1 != 0 { 10_000 } else { 0x1_0000 }
    }

    /// The number of ticks that a count written as `digits` stands for: 0 is the largest.
    /// Digits above 9 count as what they are worth.
    fn ticks_of(&self, digits: u16) -> u32 {
        let value = if self.control & 1 == 0 {
            u32::from(digits)
        } else {
            (0..4).rev().fold(0, |sum, place| 10 * sum + u32::from(digits >> (4 * place) & 0xf))
        };
        match value % self.modulus() {
            0 => self.modulus(),
            ticks => ticks,
        }
    }

    /// The digits in which the guest reads `value`.
    fn digits_of(&self, value: u32) -> u16 {
        let value = value % self.modulus();
        if self.control & 1 == 0 {
            return value as u16;
        }
        let digit = |place: u32| (value / 10_u32.pow(place) % 10) << (4 * place);
        (digit(0) | digit(1) | digit(2) | digit(3)) as u16
    }

    /// Lets time pass up to tick `now`, which takes over a count that waits for the end of
    /// its cycle. True when OUT has risen since the last call.
    pub(super) fn follow(&mut self, now: Tick) -> bool {
        let mut rose = false;
        if let Load::EndOfCycle(at) = self.load
            && at <= now
        {
            rose = self.rises(at) > self.rises(self.followed);
            self.start_next_cycle(at);
            self.followed = at;
        }
        rose |= self.rises(now) > self.rises(self.followed);
        self.followed = now;
        rose
    }

    /// How often OUT has risen from the load of the counting element up to tick `at`.
    fn rises(&self, at: Tick) -> Tick {
        let Element::Counting { since, divisor } = self.element else {
            return 0;
        };
        let elapsed = (at - since).max(0);
        let divisor = Tick::from(divisor);
        match self.mode() {
            Mode::InterruptOnTerminalCount | Mode::OneShot => (elapsed >= divisor).into(),
            Mode::SoftwareStrobe | Mode::HardwareStrobe => (elapsed > divisor).into(),
            Mode::RateGenerator | Mode::SquareWave if divisor > 1 => elapsed / divisor,
            Mode::RateGenerator | Mode::SquareWave => 0,
        }
    }

    /// The tick after `now` at which a rise or, in mode 3, a fall of OUT comes next. The low
    /// pulses of the other modes last one tick; that they begin is not worth an event.
    ///
    /// A divisor of 1 is illegal in modes 2 and 3. OUT then stays high.
    pub(super) fn next_change(&self, now: Tick) -> Option<Tick> {
        let Element::Counting { since, divisor } = self.element else {
            return None;
        };
        if let Load::EndOfCycle(at) = self.load {
            return Some(at);
        }
        let elapsed = (now - since).max(0);
        let change = match self.mode() {
            Mode::InterruptOnTerminalCount | Mode::OneShot => Tick::from(divisor),
            Mode::SoftwareStrobe | Mode::HardwareStrobe => Tick::from(divisor) + 1,
            Mode::RateGenerator | Mode::SquareWave if divisor > 1 => {
                self.end_of_cycle(elapsed, divisor)
            }
            Mode::RateGenerator | Mode::SquareWave => return None,
        };
        (change > elapsed).then_some(since + change)
    }

    /// Mode 3 is high for the first half of its period, which is the longer one.
    fn high_half(divisor: u32) -> Tick {
        Tick::from(divisor.div_ceil(2))
    }

    /// The end of the period of mode 2 or of the half period of mode 3 that is
    /// `elapsed` ticks after the load.
    fn end_of_cycle(&self, elapsed: Tick, divisor: u32) -> Tick {
        let (high, period) = (Counter::high_half(divisor), Tick::from(divisor));
        let into = elapsed % period;
        let end = if self.mode() == Mode::SquareWave && into < high { high } else { period };
        elapsed - into + end
    }

    /// Takes the count register over at the end of the cycle, at tick `at`.
    fn start_next_cycle(&mut self, at: Tick) {
        self.load = Load::Taken(at);
        let Some(divisor) = self.count_register else {
            return;
        };
        let high_again = match self.element {
            Element::Counting { since, divisor } => (at - since) % Tick::from(divisor) == 0,
            _ => true,
        };
        let since = if high_again { at } else { at - Counter::high_half(divisor) };
        self.element = Element::Counting { since, divisor };
    }

    /// The level of OUT at tick `now`.
    pub(super) fn out(&self, now: Tick) -> bool {
        let (since, divisor) = match self.element {
            Element::Counting { since, divisor } => (since, divisor),
            Element::Held { elapsed, divisor } if !self.is_periodic() => (now - elapsed, divisor),
            // "If GATE goes low during an output pulse, OUT is set high immediately."
            Element::Held { .. } => return true,
            Element::Idle { .. } => return self.mode() != Mode::InterruptOnTerminalCount,
        };
        let elapsed = (now - since).max(0);
        let period = Tick::from(divisor);
        match self.mode() {
            Mode::InterruptOnTerminalCount | Mode::OneShot => elapsed >= period,
            Mode::RateGenerator => period == 1 || elapsed % period != period - 1,
            Mode::SquareWave => elapsed % period < Counter::high_half(divisor),
            Mode::SoftwareStrobe | Mode::HardwareStrobe => elapsed != period,
        }
    }

    /// What the counting element holds at tick `now`, in the digits that the guest reads.
    fn count(&self, now: Tick) -> u16 {
        let (elapsed, divisor) = match self.element {
            Element::Counting { since, divisor } => ((now - since).max(0), divisor),
            Element::Held { elapsed, divisor } => (elapsed, divisor),
            Element::Idle { value } => return value,
        };
        let period = Tick::from(divisor);
        let value = match self.mode() {
            Mode::RateGenerator => period - elapsed % period,
            Mode::SquareWave => {
                // Down by two at each pulse, once in each half of the period.
                let into = elapsed % period;
                let high = Counter::high_half(divisor);
                let into_half = if into < high { into } else { into - high };
                (period & !1) - 2 * into_half
            }
            _ => (period - elapsed).rem_euclid(Tick::from(self.modulus())),
        };
        self.digits_of(value as u32)
    }

    /// The status byte of the read-back command.
    fn status(&self, now: Tick) -> u8 {
        let null_count = match self.load {
            Load::Waiting => true,
            Load::EndOfCycle(at) | Load::Taken(at) => now < at,
        };
        u8::from(self.out(now)) << 7 | u8::from(null_count) << 6 | self.control
    }

    /// A control word with the given low six bits, of which the RW bits are not 0.
    pub(super) fn write_control(&mut self, control: u8, now: Tick) {
        let value = self.count(now);
        *self = Counter { control: control & 0x3f, ..Counter::new(self.gate, now) };
        self.element = Element::Idle { value };
    }

    /// A byte of a count.
    pub(super) fn write(&mut self, byte: u8, now: Tick) {
        let low_and_high = match (self.bytes(), self.first_byte.take()) {
            (Bytes::Low, _) => [byte, 0],
            (Bytes::High, _) => [0, byte],
            (Bytes::LowThenHigh, Some(low)) => [low, byte],
            (Bytes::LowThenHigh, None) => {
                self.first_byte = Some(byte);
                if self.mode() == Mode::InterruptOnTerminalCount {
                    // "Writing the first byte disables counting. OUT is set low immediately."
                    self.element = Element::Idle { value: self.count(now) };
                }
                return;
            }
        };
        let count = self.ticks_of(u16::from_le_bytes(low_and_high));
        self.count_register = Some(count);
        match (self.mode(), self.element) {
            // These wait for a trigger.
            (Mode::OneShot | Mode::HardwareStrobe, _) => self.load = Load::Waiting,
            (Mode::RateGenerator | Mode::SquareWave, Element::Held { .. }) => {
                self.load = Load::Waiting;
            }
            (Mode::RateGenerator | Mode::SquareWave, Element::Counting { since, divisor })
                if since <= now =>
            {
                let end = since + self.end_of_cycle(now - since, divisor);
                self.load = Load::EndOfCycle(end);
            }
            _ => self.load_at_next_pulse(count, now),
        }
    }

    fn load_at_next_pulse(&mut self, divisor: u32, now: Tick) {
        let level_sensitive = !matches!(self.mode(), Mode::OneShot | Mode::HardwareStrobe);
        self.element = if level_sensitive && !self.gate {
            Element::Held { elapsed: 0, divisor }
        } else {
            Element::Counting { since: now + 1, divisor }
        };
        self.load = Load::Taken(now + 1);
    }

    /// A byte of what is latched or else of the running count.
    pub(super) fn read(&mut self, now: Tick) -> u8 {
        if let Some(status) = self.status_latch.take() {
            return status;
        }
        let [low, high] = self.count_latch.unwrap_or_else(|| self.count(now)).to_le_bytes();
        let byte = match self.bytes() {
            Bytes::Low => low,
            Bytes::High => high,
            Bytes::LowThenHigh => {
                self.high_next = !self.high_next;
                if self.high_next {
                    return low;
                }
                high
            }
        };
        self.count_latch = None;
        byte
    }

    /// The counter latch command; it has no effect while a latched count waits to be read.
    pub(super) fn latch_count(&mut self, now: Tick) {
        self.count_latch = self.count_latch.or_else(|| Some(self.count(now)));
    }

    /// The status half of the read-back command.
    pub(super) fn latch_status(&mut self, now: Tick) {
        self.status_latch = self.status_latch.or_else(|| Some(self.status(now)));
    }

    /// The level of the GATE input.
    pub(super) fn gate(&self) -> bool {
        self.gate
    }

    /// Drives the GATE input ("Gate Pin Operations Summary").
    pub(super) fn set_gate(&mut self, high: bool, now: Tick) {
        if self.gate == high {
            return;
        }
        self.gate = high;
        match (self.mode(), self.element) {
            (
                Mode::InterruptOnTerminalCount | Mode::SoftwareStrobe,
                Element::Held { elapsed, divisor },
            ) if high => {
                self.element = Element::Counting { since: now - elapsed, divisor };
            }
            (Mode::OneShot | Mode::HardwareStrobe, _) if high => self.trigger(now),
            (Mode::RateGenerator | Mode::SquareWave, Element::Held { .. }) if high => {
                self.trigger(now);
            }
            (
                Mode::InterruptOnTerminalCount
                | Mode::SoftwareStrobe
                | Mode::RateGenerator
                | Mode::SquareWave,
                Element::Counting { since, divisor },
            ) if !high => {
                self.element = Element::Held { elapsed: (now - since).max(0), divisor };
                if let Load::EndOfCycle(_) = self.load {
                    self.load = Load::Waiting;
                }
            }
            _ => {}
        }
    }

    /// A rising edge of GATE loads the count register, if a count was written since the
    /// control word.
    fn trigger(&mut self, now: Tick) {
        if let Some(count) = self.count_register {
            self.load_at_next_pulse(count, now);
        }
    }

    /// False for what no counter can be, in a damaged state.
    pub(super) fn is_valid(&self) -> bool {
        let tick = |tick: Tick| (-TICK_LIMIT..=TICK_LIMIT).contains(&tick);
        let divisor = |divisor: u32| (1..=self.modulus()).contains(&divisor);
        self.control & 0x30 != 0
            && self.control < 0x40
            && self.count_register.is_none_or(divisor)
            && tick(self.followed)
            && match self.load {
                Load::Waiting => true,
                Load::EndOfCycle(at) => tick(at) && self.is_periodic(),
                Load::Taken(at) => tick(at),
            }
            && match self.element {
                Element::Idle { .. } => true,
                Element::Counting { since, divisor: loaded } => tick(since) && divisor(loaded),
                Element::Held { elapsed, divisor: loaded } => {
                    (0..=TICK_LIMIT).contains(&elapsed) && divisor(loaded)
                }
            }
    }
}
