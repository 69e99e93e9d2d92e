//! The real-time clock of a PC with its battery-backed memory: an MC146818 with 128 bytes.
//!
//! From Motorola's data sheet "MC146818 Real-Time Clock plus RAM" (MC146818/D), whose names
//! are used here; the century at 32h and the contents of the memory are those of the IBM
//! PC/AT and its successors. Two things differ from the data sheet: an update takes no
//! time (UIP is set for the 244 µs that lead to it), and daylight saving (DSE)
//! can be switched on but does nothing, as in every chipset since the rules changed.

mod calendar;

use ring3_core::bus::PortRange;
use ring3_core::clock::{Tag, Time};
use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::memory::RamLayout;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;
use calendar::Date;

const VERSION: u32 = 1;
const IRQ: u8 = 8;
/// An enabled interrupt comes.
const EVENT: Tag = 0;
const OPEN_BUS: u8 = 0xff;

const CMOS_BYTES: usize = 128;

// The clock's bytes ("Address Map").
const SECONDS: usize = 0x00;
const SECONDS_ALARM: usize = 0x01;
const MINUTES: usize = 0x02;
const MINUTES_ALARM: usize = 0x03;
const HOURS: usize = 0x04;
const HOURS_ALARM: usize = 0x05;
const DAY_OF_WEEK: usize = 0x06;
const DATE: usize = 0x07;
const MONTH: usize = 0x08;
const YEAR: usize = 0x09;
const REGISTER_A: usize = 0x0a;
const REGISTER_B: usize = 0x0b;
const REGISTER_C: usize = 0x0c;
const REGISTER_D: usize = 0x0d;

/// The diagnostic status byte of the PC/AT: 0 when the firmware found nothing wrong.
pub const CMOS_DIAGNOSTIC: u8 = 0x0e;
/// The equipment byte of the PC/AT.
pub const CMOS_EQUIPMENT: u8 = 0x14;
/// The century, in the format of the year: firmware and the ACPI tables name this byte.
pub const CMOS_CENTURY: u8 = 0x32;
/// Equipment: there is a mathematics coprocessor. No diskette drive, and a display with
/// firmware of its own.
const EQUIPMENT_FPU: u8 = 1 << 1;
const CENTURY: usize = CMOS_CENTURY as usize;
/// The bytes that the PC/AT's checksum is over, and where its high and low byte are.
const CHECKSUMMED: std::ops::RangeInclusive<usize> = 0x10..=0x2d;
const CHECKSUM_HIGH: usize = 0x2e;
const CHECKSUM_LOW: usize = 0x2f;

const A_UIP: u8 = 1 << 7;
const B_SET: u8 = 1 << 7;
const B_UIE: u8 = 1 << 4;
const B_BINARY: u8 = 1 << 2;
const B_24_HOURS: u8 = 1 << 1;
const C_IRQF: u8 = 1 << 7;
/// Flags of register C; the enable bits of register B are in the same places.
const PERIODIC: u8 = 1 << 6;
const ALARM: u8 = 1 << 5;
const UPDATE: u8 = 1 << 4;
const D_VRT: u8 = 1 << 7;
/// Square wave enable, which leads to no pin of a PC.
const B_SQWE: u8 = 1 << 3;
const HOUR_PM: u8 = 1 << 7;
/// An alarm byte with both high bits set matches everything.
const ANY: u8 = 0xc0;

const SECOND: u64 = 1_000_000_000;
/// From UIP to the update.
const UIP_NANOS: u64 = 244_000;
/// The frequency of the crystal.
const HERTZ: u64 = 32_768;
const SECONDS_PER_DAY: i64 = 86_400;
/// The end of the year 9999, in seconds since 1970.
const LAST_SECOND: u64 = 253_402_300_799;

/// The clock.
///
/// It sets a timer only when an enabled interrupt is to come and none is asserted.
/// Whatever else happens as time passes is worked out when the guest looks.
///
/// ```
/// use ring3_core::device::TestBench;
/// use ring3_devices::rtc::Rtc;
///
/// // 2001-09-09 01:46:40
/// let (mut rtc, mut bench) = (Rtc::new(1_000_000_000), TestBench::default());
/// bench.write(&mut rtc, 0x70, 0x02);
/// assert_eq!(bench.read(&mut rtc, 0x71), 0x46);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rtc {
    index: u8,
    cmos: [u8; CMOS_BYTES],
    /// The divider chain is ahead of virtual time by this; less than a second.
    phase: u64,
    /// Up to here the registers are right.
    followed: Time,
}

/// The saved state.
#[derive(Serialize, Deserialize)]
struct Saved {
    index: u8,
    cmos: Vec<u8>,
    phase: u64,
    followed: Time,
}

impl Rtc {
    /// A clock that shows `unix_seconds` (seconds since 1970; the year 9999 is the last) at
    /// [`Time::ZERO`], in BCD and 24-hour format as a PC's firmware leaves it. The memory is
    /// 0 but for the equipment byte, which says that there is a coprocessor.
    pub fn new(unix_seconds: u64) -> Rtc {
        let mut rtc = Rtc { index: 0, cmos: [0; CMOS_BYTES], phase: 0, followed: Time::ZERO };
        rtc.cmos[REGISTER_A] = 0x26;
        rtc.cmos[REGISTER_B] = B_24_HOURS;
        let seconds = unix_seconds.min(LAST_SECOND) as i64;
        rtc.set_clock(seconds);
        // 1 January 1970 was a Thursday; Sunday is 1.
        rtc.cmos[DAY_OF_WEEK] = ((seconds / SECONDS_PER_DAY + 4) % 7 + 1) as u8;
        rtc.set_cmos(CMOS_EQUIPMENT, EQUIPMENT_FPU);
        rtc
    }

    /// The ports at which it answers: the index, whose bit 7 (NMI mask) is ignored, and the data.
    pub fn ports(&self) -> [PortRange; 1] {
        [PortRange::new(0x70, 2)]
    }

    /// Sets a byte of the memory, 0Eh to 7Fh but for the century, as firmware set-up does, and
    /// keeps the checksum of the PC/AT right. Other indices are the clock's and are ignored.
    pub fn set_cmos(&mut self, index: u8, value: u8) {
        let index = usize::from(index);
        if index <= REGISTER_D || index == CENTURY || index >= CMOS_BYTES {
            return;
        }
        self.cmos[index] = value;
        let sum: u16 = self.cmos[CHECKSUMMED].iter().map(|byte| u16::from(*byte)).sum();
        [self.cmos[CHECKSUM_HIGH], self.cmos[CHECKSUM_LOW]] = sum.to_be_bytes();
    }

    /// Tells firmware that there are `bytes` of RAM, by the bytes of the PC/AT (in KiB below
    /// and above 1 MiB) and by those that became usual later (in 64 KiB above 16 MiB). What is
    /// above 4 GiB is not told.
    pub fn set_memory_size(&mut self, ram: RamLayout) {
        let kib = ram.low() >> 10;
        let base = kib.min(640) as u16;
        let extended = kib.saturating_sub(1 << 10).min(0xffff) as u16;
        let above_16_mib = (ram.low().saturating_sub(16 << 20) >> 16).min(0xffff) as u16;
        for (index, value) in
            [(0x15, base), (0x17, extended), (0x30, extended), (0x34, above_16_mib)]
        {
            let [low, high] = value.to_le_bytes();
            self.set_cmos(index, low);
            self.set_cmos(index + 1, high);
        }
        // Above 4 GiB, as QEMU gives it to firmware.
        let [low, middle, high, ..] = (ram.high() >> 16).to_le_bytes();
        for (index, value) in [(0x5b, low), (0x5c, middle), (0x5d, high)] {
            self.set_cmos(index, value);
        }
    }

    /// The divider chain runs. The settings for faster crystals count as the PC's;
    /// the two with both high bits set hold the chain in reset ("Divider Control").
    fn chain_runs(&self) -> bool {
        self.cmos[REGISTER_A] & 0x60 != 0x60
    }

    /// The registers are updated each second.
    fn updates(&self) -> bool {
        self.chain_runs() && self.cmos[REGISTER_B] & B_SET == 0
    }

    /// Time on the divider chain: updates are where it is a whole number of seconds.
    fn chain(&self, now: Time) -> Time {
        now.plus_nanos(self.phase)
    }

    /// The virtual time at which the divider chain shows `chain`.
    fn when(&self, chain: Time) -> Time {
        Time::from_nanos(chain.as_nanos().saturating_sub(self.phase))
    }

    /// The period of the periodic interrupt in periods of the crystal ("Periodic
    /// Interrupt Rate and Square Wave Output Frequency").
    fn rate(&self) -> Option<u64> {
        match self.cmos[REGISTER_A] & 0xf {
            0 => None,
            select @ 1..=2 => Some(1 << (select + 6)),
            select => Some(1 << (select - 1)),
        }
    }

    /// Brings the registers and the flags up to `now`.
    fn follow(&mut self, now: Time) {
        let (before, after) = (self.chain(self.followed), self.chain(now));
        self.followed = self.followed.max(now);
        if !self.chain_runs() {
            return;
        }
        if let Some(rate) = self.rate()
            && before.ticks(HERTZ) / rate < after.ticks(HERTZ) / rate
        {
            self.cmos[REGISTER_C] |= PERIODIC;
        }
        let seconds = (after.as_nanos() / SECOND).saturating_sub(before.as_nanos() / SECOND) as i64;
        if seconds > 0 && self.updates() {
            if self.seconds_to_alarm().is_some_and(|wait| wait <= seconds) {
                self.cmos[REGISTER_C] |= ALARM;
            }
            self.cmos[REGISTER_C] |= UPDATE;
            self.advance_clock(seconds);
        }
    }

    /// Brings the line and the timer in step with the flags.
    fn drive(&mut self, context: &mut Context<'_>) {
        let asserted = self.cmos[REGISTER_B] & self.cmos[REGISTER_C] & (PERIODIC | ALARM | UPDATE);
        if asserted != 0 {
            self.cmos[REGISTER_C] |= C_IRQF;
        } else {
            self.cmos[REGISTER_C] &= !C_IRQF;
        }
        context.irq.set(IRQ, asserted != 0);
        match self.next_interrupt(context.now) {
            Some(at) if asserted == 0 => context.set_tick(EVENT, at),
            _ => context.cancel_timer(EVENT),
        }
    }

    /// When the next of the enabled interrupts comes.
    fn next_interrupt(&self, now: Time) -> Option<Time> {
        let chain = self.chain(now);
        let enabled = |flag: u8| self.cmos[REGISTER_B] & flag != 0;
        let second = |ahead: i64| {
            let second = (chain.as_nanos() / SECOND).saturating_add(ahead as u64);
            Time::from_nanos(second.saturating_mul(SECOND))
        };
        let periodic = self.rate().filter(|_| enabled(PERIODIC) && self.chain_runs());
        let periodic =
            periodic.map(|rate| Time::of_tick((chain.ticks(HERTZ) / rate + 1) * rate, HERTZ));
        let update = (enabled(UPDATE) && self.updates()).then(|| second(1));
        let alarm = if enabled(ALARM) && self.updates() { self.seconds_to_alarm() } else { None };
        let next = [periodic, update, alarm.map(second)].into_iter().flatten().min()?;
        Some(self.when(next))
    }

    /// The index selects a byte of the clock, and not one of the memory, which neither time nor a read changes.
    fn selects_clock(&self) -> bool {
        let index = usize::from(self.index);
        index <= REGISTER_D || index == CENTURY
    }

    fn read_index(&mut self, now: Time) -> u8 {
        let index = usize::from(self.index);
        let byte = self.cmos[index];
        match index {
            REGISTER_A if self.update_is_near(now) => byte | A_UIP,
            REGISTER_C => {
                self.cmos[REGISTER_C] = 0;
                byte
            }
            REGISTER_D => D_VRT,
            _ => byte,
        }
    }

    fn update_is_near(&self, now: Time) -> bool {
        self.updates() && self.chain(now).as_nanos() % SECOND >= SECOND - UIP_NANOS
    }

    fn write_index(&mut self, value: u8, now: Time) {
        let index = usize::from(self.index);
        match index {
            REGISTER_A => {
                let ran = self.chain_runs();
                self.cmos[REGISTER_A] = value & !A_UIP;
                if !ran && self.chain_runs() {
                    // "The first update cycle begins one-half second later."
                    let update = now.plus_nanos(SECOND / 2).as_nanos();
                    self.phase = (SECOND - update % SECOND) % SECOND;
                }
            }
            REGISTER_B if value & B_SET != 0 => self.cmos[REGISTER_B] = value & !B_UIE,
            REGISTER_C | REGISTER_D => {}
            _ => self.cmos[index] = value,
        }
    }

    /// A number from the format of the clock's bytes. Digits above 9 count as what they are worth.
    fn decode(&self, byte: u8) -> i64 {
        if self.cmos[REGISTER_B] & B_BINARY != 0 {
            return byte.into();
        }
        i64::from(byte >> 4) * 10 + i64::from(byte & 0xf)
    }

    /// A number, 0 to 99, in the format of the clock's bytes.
    fn encode(&self, number: i64) -> u8 {
        let number = (number % 100) as u8;
        if self.cmos[REGISTER_B] & B_BINARY != 0 {
            return number;
        }
        ((number / 10) << 4) | (number % 10)
    }

    fn decode_hour(&self, byte: u8) -> i64 {
        if self.cmos[REGISTER_B] & B_24_HOURS != 0 {
            return self.decode(byte);
        }
        let afternoon = if byte & HOUR_PM != 0 { 12 } else { 0 };
        self.decode(byte & !HOUR_PM) % 12 + afternoon
    }

    fn encode_hour(&self, hour: i64) -> u8 {
        if self.cmos[REGISTER_B] & B_24_HOURS != 0 {
            return self.encode(hour);
        }
        let afternoon = if hour >= 12 { HOUR_PM } else { 0 };
        let hour = if hour % 12 == 0 { 12 } else { hour % 12 };
        self.encode(hour) | afternoon
    }

    /// The time of day of the registers, in seconds; more than a day's when they hold what
    /// they should not.
    fn time_of_day(&self) -> i64 {
        let hours = self.decode_hour(self.cmos[HOURS]);
        (hours * 60 + self.decode(self.cmos[MINUTES])) * 60 + self.decode(self.cmos[SECONDS])
    }

    /// The registers' date and time in seconds since 1970.
    fn clock(&self) -> i64 {
        let century = self.decode(self.cmos[CENTURY]);
        let date = Date {
            year: century * 100 + self.decode(self.cmos[YEAR]),
            month: self.decode(self.cmos[MONTH]),
            day: self.decode(self.cmos[DATE]),
        };
        date.to_days() * SECONDS_PER_DAY + self.time_of_day()
    }

    /// Puts `seconds` since 1970 into the registers, but for the day of the week.
    fn set_clock(&mut self, seconds: i64) {
        let time = seconds.rem_euclid(SECONDS_PER_DAY);
        let date = Date::from_days(seconds.div_euclid(SECONDS_PER_DAY));
        self.cmos[SECONDS] = self.encode(time % 60);
        self.cmos[MINUTES] = self.encode(time / 60 % 60);
        self.cmos[HOURS] = self.encode_hour(time / 3600);
        self.cmos[DATE] = self.encode(date.day);
        self.cmos[MONTH] = self.encode(date.month);
        self.cmos[YEAR] = self.encode(date.year % 100);
        self.cmos[CENTURY] = self.encode(date.year / 100);
    }

    /// Counts the registers on by `seconds`. The day of the week is a counter
    /// of its own, which the guest may have set to what it likes.
    fn advance_clock(&mut self, seconds: i64) {
        let clock = self.clock();
        let midnights =
            (clock + seconds).div_euclid(SECONDS_PER_DAY) - clock.div_euclid(SECONDS_PER_DAY);
        if midnights > 0 {
            let day = self.decode(self.cmos[DAY_OF_WEEK]) + 6 + midnights;
            self.cmos[DAY_OF_WEEK] = self.encode(day % 7 + 1);
        }
        self.set_clock(clock + seconds);
    }

    /// After how many updates, at least 1 and at most a day's, the time is that of the alarm.
    fn seconds_to_alarm(&self) -> Option<i64> {
        let matches = |alarm: usize, byte: u8| {
            let alarm = self.cmos[alarm];
            alarm & ANY == ANY || alarm == byte
        };
        let second_matches = |time: i64| matches(SECONDS_ALARM, self.encode(time % 60));
        if !(0..60).any(second_matches) {
            return None;
        }
        // From one hour, minute or second that does not match to the next: this takes a minute's
        // seconds, a day's minutes and a day's hours at most.
        let start = self.time_of_day();
        let mut time = start + 1;
        while time <= start + SECONDS_PER_DAY {
            if !matches(HOURS_ALARM, self.encode_hour(time / 3600 % 24)) {
                time += 3600 - time % 3600;
            } else if !matches(MINUTES_ALARM, self.encode(time / 60 % 60)) {
                time += 60 - time % 60;
            } else if !second_matches(time) {
                time += 1;
            } else {
                return Some(time - start);
            }
        }
        None
    }
}

impl Device for Rtc {
    fn id(&self) -> DeviceId {
        DeviceId::RTC
    }

    /// The RESET pin clears the interrupt enable bits and the flags; the battery keeps the rest.
    fn reset(&mut self, context: &mut Context<'_>) {
        self.follow(context.now);
        self.cmos[REGISTER_B] &= !(PERIODIC | ALARM | UPDATE | B_SQWE);
        self.cmos[REGISTER_C] = 0;
    }

    fn peek_port(&self, port: u16) -> Option<u8> {
        (port == 0x71 && !self.selects_clock()).then(|| self.cmos[usize::from(self.index)])
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        let is_of_clock = self.selects_clock();
        if is_of_clock {
            self.follow(context.now);
        }
        let value = bytewise::read(port, width, |port| match port {
            0x71 => self.read_index(context.now),
            _ => OPEN_BUS,
        });
        if is_of_clock {
            self.drive(context);
        }
        value
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        self.follow(context.now);
        bytewise::write(port, width, value, |port, byte| match port {
            0x70 => self.index = byte & (CMOS_BYTES as u8 - 1),
            0x71 => self.write_index(byte, context.now),
            _ => {}
        });
        self.drive(context);
    }

    fn timer(&mut self, context: &mut Context<'_>, _: Tag) {
        self.follow(context.now);
        self.drive(context);
    }

    fn save(&self) -> SavedState {
        let saved = Saved {
            index: self.index,
            cmos: self.cmos.to_vec(),
            phase: self.phase,
            followed: self.followed,
        };
        SavedState::new(self.name(), VERSION, &saved)
    }

    fn restore(&mut self, state: &SavedState) -> Result<(), RestoreError> {
        let Saved { index, cmos, phase, followed } = state.load(self.name(), VERSION)?;
        let cmos = cmos.try_into().map_err(|_| state.damaged("the memory has not 128 bytes"))?;
        if usize::from(index) >= CMOS_BYTES || phase >= SECOND {
            return Err(state.damaged("no MC146818 can be in this state"));
        }
        *self = Rtc { index, cmos, phase, followed };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
