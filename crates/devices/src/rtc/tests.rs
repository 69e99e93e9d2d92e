use proptest::prelude::*;
use ring3_core::device::{DeviceId, TestBench};

use super::*;
use crate::hammer::{blows, hammer};

const PORTS: &[u16] = &[0x70, 0x71];
const MILLISECOND: u64 = 1_000_000;

/// 31 December 1999, 23:59:58, a Friday.
const MILLENNIUM: u64 = 946_684_798;

/// A clock and its machine.
struct Bed {
    rtc: Rtc,
    bench: TestBench,
}

impl Bed {
    fn new(unix_seconds: u64) -> Bed {
        Bed { rtc: Rtc::new(unix_seconds), bench: TestBench::default() }
    }

    fn read(&mut self, index: usize) -> u8 {
        self.bench.write(&mut self.rtc, 0x70, index as u8);
        self.bench.read(&mut self.rtc, 0x71)
    }

    fn write(&mut self, index: usize, value: u8) {
        self.bench.write(&mut self.rtc, 0x70, index as u8);
        self.bench.write(&mut self.rtc, 0x71, value);
    }

    fn pass(&mut self, nanos: u64) {
        self.bench.advance(&mut self.rtc, nanos);
    }

    /// Century, year, month, date, hours, minutes, seconds.
    fn clock(&mut self) -> [u8; 7] {
        [CENTURY, YEAR, MONTH, DATE, HOURS, MINUTES, SECONDS].map(|index| self.read(index))
    }

    /// Sets hours, minutes and seconds, in the format that `register_b` says.
    fn set_time(&mut self, register_b: u8, time: [u8; 3]) {
        self.write(REGISTER_B, register_b | B_SET);
        for (index, value) in [HOURS, MINUTES, SECONDS].into_iter().zip(time) {
            self.write(index, value);
        }
        self.write(REGISTER_B, register_b);
    }

    fn irq(&self) -> bool {
        self.bench.irq.is_high(IRQ)
    }
}

#[test]
fn the_millennium() {
    let mut bed = Bed::new(MILLENNIUM);
    assert_eq!(bed.clock(), [0x19, 0x99, 0x12, 0x31, 0x23, 0x59, 0x58]);
    assert_eq!(bed.read(DAY_OF_WEEK), 6);
    bed.pass(2 * SECOND - 1);
    assert_eq!(bed.clock(), [0x19, 0x99, 0x12, 0x31, 0x23, 0x59, 0x59]);
    bed.pass(1);
    assert_eq!(bed.clock(), [0x20, 0x00, 0x01, 0x01, 0x00, 0x00, 0x00]);
    assert_eq!(bed.read(DAY_OF_WEEK), 7);
    assert_eq!(bed.read(REGISTER_D), 0x80);
}

#[test]
fn a_long_sleep_is_one_step() {
    let mut bed = Bed::new(MILLENNIUM);
    bed.pass((60 * 86_400 + 2) * SECOND);
    assert_eq!(bed.clock(), [0x20, 0x00, 0x03, 0x01, 0x00, 0x00, 0x00]);
    assert_eq!(bed.read(DAY_OF_WEEK), 4, "a Wednesday");
    let mut end = Bed::new(u64::MAX);
    assert_eq!(end.clock(), [0x99, 0x99, 0x12, 0x31, 0x23, 0x59, 0x59]);
    end.pass(SECOND);
    assert_eq!(end.clock(), [0x00, 0x00, 0x01, 0x01, 0x00, 0x00, 0x00]);
}

#[test]
fn formats() {
    for (register_b, before, after) in [
        (B_24_HOURS, [0x09, 0x59, 0x59], [0x10, 0x00, 0x00]),
        (B_24_HOURS | B_BINARY, [9, 59, 59], [10, 0, 0]),
        (0, [0x12, 0x59, 0x59], [0x01, 0x00, 0x00]),
        (0, [0x11, 0x59, 0x59], [0x92, 0x00, 0x00]),
        (0, [0x92, 0x59, 0x59], [0x81, 0x00, 0x00]),
        (B_BINARY, [0x8b, 59, 59], [12, 0, 0]),
    ] {
        let mut bed = Bed::new(0);
        bed.set_time(register_b, before);
        bed.pass(SECOND);
        assert_eq!(bed.clock()[4..], after, "{register_b:#x}");
    }
}

#[test]
fn set_stops_updates_but_not_the_chain() {
    let mut bed = Bed::new(0);
    bed.pass(700 * MILLISECOND);
    bed.write(REGISTER_B, B_24_HOURS | B_SET | B_UIE);
    assert_eq!(bed.read(REGISTER_B), B_24_HOURS | B_SET, "SET clears UIE");
    bed.pass(5 * SECOND);
    assert_eq!(bed.read(SECONDS), 0);
    assert_eq!(bed.read(REGISTER_C), PERIODIC);
    bed.write(SECONDS, 0x30);
    bed.write(REGISTER_B, B_24_HOURS);
    bed.pass(299 * MILLISECOND);
    assert_eq!(bed.read(SECONDS), 0x30);
    bed.pass(MILLISECOND);
    assert_eq!(bed.read(SECONDS), 0x31);
}

#[test]
fn the_first_update_is_half_a_second_after_divider_reset() {
    let mut bed = Bed::new(0);
    bed.pass(123 * MILLISECOND);
    bed.write(REGISTER_A, 0x70);
    bed.pass(10 * SECOND);
    assert_eq!(bed.read(SECONDS), 0);
    bed.write(REGISTER_A, 0x26);
    bed.pass(SECOND / 2 - 1);
    assert_eq!(bed.read(SECONDS), 0);
    bed.pass(1);
    assert_eq!(bed.read(SECONDS), 1);
    bed.pass(SECOND);
    assert_eq!(bed.read(SECONDS), 2);
}

#[test]
fn uip_announces_an_update() {
    let mut bed = Bed::new(0);
    bed.pass(SECOND - UIP_NANOS - 1);
    assert_eq!(bed.read(REGISTER_A), 0x26);
    bed.pass(1);
    assert_eq!(bed.read(REGISTER_A), 0xa6);
    bed.pass(UIP_NANOS - 1);
    assert_eq!((bed.read(REGISTER_A), bed.read(SECONDS)), (0xa6, 0));
    bed.pass(1);
    assert_eq!((bed.read(REGISTER_A), bed.read(SECONDS)), (0x26, 1));
    bed.write(REGISTER_A, 0xa6);
    assert_eq!(bed.read(REGISTER_A), 0x26, "read only");
    bed.write(REGISTER_B, B_SET);
    bed.pass(SECOND - 1);
    assert_eq!(bed.read(REGISTER_A), 0x26, "no update is to come");
}

#[test]
fn update_interrupt() {
    let mut bed = Bed::new(0);
    bed.write(REGISTER_A, 0x20);
    bed.write(REGISTER_B, B_24_HOURS | UPDATE);
    bed.pass(SECOND - 1);
    assert!(!bed.irq());
    bed.pass(1);
    assert!(bed.irq());
    assert_eq!(bed.read(REGISTER_C), C_IRQF | UPDATE);
    assert!(!bed.irq());
    assert_eq!(bed.read(REGISTER_C), 0);
}

#[test]
fn flags_are_set_without_their_interrupts_and_interrupt_when_enabled() {
    let mut bed = Bed::new(0);
    bed.pass(SECOND);
    assert!(!bed.irq());
    bed.write(REGISTER_B, B_24_HOURS | UPDATE);
    assert!(bed.irq());
    bed.write(REGISTER_B, B_24_HOURS);
    assert!(!bed.irq());
    assert_eq!(bed.read(REGISTER_C) & C_IRQF, 0);
}

#[test]
fn periodic_rates() {
    for (select, hertz) in [(1, 256), (2, 128), (3, 8192), (6, 1024), (15, 2)] {
        let mut bed = Bed::new(0);
        bed.write(REGISTER_A, 0x20 | select);
        bed.write(REGISTER_B, B_24_HOURS | PERIODIC);
        bed.read(REGISTER_C);
        let mut interrupts = 0;
        while let Some(at) = bed.bench.timers.next().filter(|at| at.as_nanos() <= SECOND) {
            bed.pass(at.nanos_since(bed.bench.now));
            assert_eq!(bed.read(REGISTER_C) & !UPDATE, C_IRQF | PERIODIC);
            interrupts += 1;
        }
        assert_eq!(interrupts, hertz);
    }
}

#[test]
fn the_clock_needs_no_timer_for_an_interrupt_that_is_pending_or_not_enabled() {
    let mut bed = Bed::new(0);
    assert_eq!(bed.bench.timers.next(), None);
    bed.write(REGISTER_B, B_24_HOURS | PERIODIC | ALARM | UPDATE);
    assert!(bed.bench.timers.next().is_some());
    bed.pass(10 * MILLISECOND);
    assert!(bed.irq());
    assert_eq!(bed.bench.timers.next(), None);
    bed.read(REGISTER_C);
    assert!(bed.bench.timers.next().is_some());
    bed.write(REGISTER_A, 0x20);
    bed.write(REGISTER_B, B_24_HOURS | PERIODIC);
    assert_eq!(bed.bench.timers.next(), None, "rate 0 is none");
}

#[test]
fn alarms() {
    let at = |hours: u64, minutes: u64, seconds: u64| hours * 3600 + minutes * 60 + seconds;
    for (alarm, first, second) in [
        ([0x06, 0x30, 0x15], at(6, 30, 15), at(30, 30, 15)),
        ([0xff, 0x30, 0x15], at(0, 30, 15), at(1, 30, 15)),
        ([0xc0, 0xff, 0x15], 15, 75),
        ([0xff, 0xff, 0xff], 1, 2),
        ([0x23, 0xff, 0xff], at(23, 0, 0), at(23, 0, 1)),
        ([0x00, 0x00, 0x00], at(24, 0, 0), at(48, 0, 0)),
    ] {
        let mut bed = Bed::new(0);
        bed.write(REGISTER_A, 0x20);
        for (index, value) in [HOURS_ALARM, MINUTES_ALARM, SECONDS_ALARM].into_iter().zip(alarm) {
            bed.write(index, value);
        }
        bed.write(REGISTER_B, B_24_HOURS | ALARM);
        for seconds in [first, second] {
            bed.pass(seconds * SECOND - 1 - bed.bench.now.as_nanos());
            assert!(!bed.irq(), "{alarm:x?}");
            bed.pass(1);
            assert!(bed.irq(), "{alarm:x?}");
            assert_eq!(bed.read(REGISTER_C), C_IRQF | ALARM | UPDATE);
        }
    }
}

#[test]
fn an_alarm_in_12_hour_format_distinguishes_morning_and_afternoon() {
    let mut bed = Bed::new(0);
    bed.set_time(0, [0x12, 0x00, 0x00]);
    for (index, value) in [(HOURS_ALARM, 0x81), (MINUTES_ALARM, 0), (SECONDS_ALARM, 0)] {
        bed.write(index, value);
    }
    bed.write(REGISTER_B, ALARM);
    bed.pass(13 * 3600 * SECOND - 1);
    assert!(!bed.irq());
    bed.pass(1);
    assert!(bed.irq());
}

#[test]
fn an_alarm_that_never_comes_sets_no_timer() {
    for (index, value) in [(SECONDS_ALARM, 0x60), (MINUTES_ALARM, 0x0a), (HOURS_ALARM, 0x24)] {
        let mut bed = Bed::new(0);
        for any in [HOURS_ALARM, MINUTES_ALARM, SECONDS_ALARM] {
            bed.write(any, 0xff);
        }
        bed.write(index, value);
        bed.write(REGISTER_B, B_24_HOURS | ALARM);
        assert_eq!(bed.bench.timers.next(), None);
        bed.pass(2 * 86_400 * SECOND);
        assert_eq!(bed.read(REGISTER_C) & ALARM, 0);
    }
}

#[test]
fn written_values_are_read_until_the_next_update() {
    let mut bed = Bed::new(0);
    for (index, value) in [(DATE, 0x31), (MONTH, 0x02), (HOURS, 0x99)] {
        bed.write(index, value);
        assert_eq!(bed.read(index), value);
    }
    bed.pass(SECOND);
    // 31 February is 3 March, and 99 hours are four days and three hours.
    assert_eq!(bed.clock(), [0x19, 0x70, 0x03, 0x07, 0x03, 0x00, 0x01]);
}

#[test]
fn the_memory_is_described() {
    let mut bed = Bed::new(0);
    bed.rtc.set_memory_size(RamLayout::of(128 << 20));
    let read = |bed: &mut Bed, index| u16::from_le_bytes([bed.read(index), bed.read(index + 1)]);
    assert_eq!(read(&mut bed, 0x15), 640);
    assert_eq!(read(&mut bed, 0x17), 0xffff);
    assert_eq!(read(&mut bed, 0x30), 0xffff);
    assert_eq!(u64::from(read(&mut bed, 0x34)) << 16, 112 << 20);
    bed.rtc.set_memory_size(RamLayout::of(8 << 20));
    assert_eq!(read(&mut bed, 0x17), 7 * 1024);
    assert_eq!(read(&mut bed, 0x34), 0);
    let sum: u16 = (0x10..=0x2d).map(|index| u16::from(bed.read(index))).sum();
    assert_eq!([bed.read(0x2e), bed.read(0x2f)], sum.to_be_bytes());
    assert_eq!(bed.read(CMOS_EQUIPMENT.into()), 0x02);
}

#[test]
fn set_cmos_does_not_change_the_clock() {
    let mut bed = Bed::new(MILLENNIUM);
    let before = bed.rtc.clone();
    for index in [0, 9, 0x0d, 0x32, 0x80, 0xff] {
        bed.rtc.set_cmos(index, 0x55);
    }
    assert_eq!(bed.rtc, before);
    bed.rtc.set_cmos(0x7f, 0x55);
    assert_eq!(bed.read(0x7f), 0x55);
}

#[test]
fn the_nmi_bit_of_the_index_is_ignored() {
    let mut bed = Bed::new(0);
    bed.write(0x80 | 0x40, 0x12);
    assert_eq!(bed.read(0x40), 0x12);
    assert_eq!(bed.bench.read(&mut bed.rtc, 0x70), 0xff, "write only");
    bed.rtc.write_port(&mut bed.bench.context(), 0x70, Width::Word, 0x3441);
    assert_eq!(bed.read(0x41), 0x34);
}

#[test]
fn reset_keeps_the_registers_that_the_battery_keeps() {
    let mut bed = Bed::new(MILLENNIUM);
    bed.write(0x40, 0x12);
    bed.write(REGISTER_B, B_24_HOURS | PERIODIC | ALARM | UPDATE | B_SQWE);
    bed.pass(2 * SECOND);
    bed.rtc.reset(&mut bed.bench.context());
    assert_eq!(bed.read(REGISTER_B), B_24_HOURS);
    assert_eq!(bed.read(REGISTER_C), 0);
    assert_eq!(bed.read(0x40), 0x12);
    assert_eq!(bed.read(YEAR), 0x00);
}

#[test]
fn a_saved_clock_continues() {
    let mut bed = Bed::new(MILLENNIUM);
    bed.pass(SECOND / 2);
    let state = bed.rtc.save();
    bed.rtc = Rtc::new(0);
    bed.rtc.restore(&state).unwrap();
    bed.pass(3 * SECOND / 2);
    assert_eq!(bed.clock(), [0x20, 0x00, 0x01, 0x01, 0x00, 0x00, 0x00]);
}

#[test]
fn damaged_states_are_refused() {
    let good = || Saved { index: 0, cmos: vec![0; 128], phase: 0, followed: Time::ZERO };
    for bad in [
        Saved { index: 128, ..good() },
        Saved { cmos: vec![0; 127], ..good() },
        Saved { phase: SECOND, ..good() },
    ] {
        let mut rtc = Rtc::new(MILLENNIUM);
        let state = SavedState::new(DeviceId::RTC.name(), VERSION, &bad);
        assert!(matches!(rtc.restore(&state), Err(RestoreError::Damaged { .. })));
        assert_eq!(rtc, Rtc::new(MILLENNIUM), "unchanged");
    }
}

proptest! {
    #[test]
    fn survives_and_saves_anything(blows in blows(PORTS)) {
        hammer(&mut Rtc::new(MILLENNIUM), &mut Rtc::new(0), blows);
    }
}
