use proptest::prelude::*;
use ring3_core::device::TestBench;

use super::*;
use crate::hammer::{hammer, memory_blows};

/// INT_ENB_CNF, INT_TYPE_CNF, TYPE_CNF, VAL_SET_CNF and 32MODE_CNF.
const INTERRUPTS: u32 = 1 << 2;
const BY_LEVEL: u32 = 1 << 1;
const PERIODIC: u32 = 1 << 3;
const SET_VALUE: u32 = 1 << 6;
const MODE_32: u32 = 1 << 8;

const fn route(line: u32) -> u32 {
    line << 9
}

/// The configuration register of timer `index`.
const fn configuration(index: u64) -> u64 {
    0x100 + 0x20 * index
}

/// Its comparator.
const fn comparator(index: u64) -> u64 {
    0x108 + 0x20 * index
}

struct Machine {
    hpet: Hpet,
    bench: TestBench,
}

impl Machine {
    fn new() -> Machine {
        let mut machine = Machine { hpet: Hpet::default(), bench: TestBench::default() };
        machine.hpet.reset(&mut machine.bench.context());
        machine
    }

    fn enabled(configuration: u32) -> Machine {
        let mut machine = Machine::new();
        machine.write(CONFIGURATION, ENABLE | configuration);
        machine
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.hpet.write_memory(&mut self.bench.context(), 0, offset, Width::Dword, value);
    }

    fn read(&mut self, offset: u64) -> u32 {
        self.hpet.read_memory(&mut self.bench.context(), 0, offset, Width::Dword)
    }

    /// Both halves, as a read of 64 bits arrives.
    fn read_64(&mut self, offset: u64) -> u64 {
        u64::from(self.read(offset)) | u64::from(self.read(offset + 4)) << 32
    }

    fn write_64(&mut self, offset: u64, value: u64) {
        self.write(offset, value as u32);
        self.write(offset + 4, (value >> 32) as u32);
    }

    /// Lets so many periods of the counter pass; the rises of lines in them.
    fn pass(&mut self, ticks: u64) -> Vec<u8> {
        self.bench.irq.drain_changes();
        self.bench.advance(&mut self.hpet, ticks * NANOS_PER_TICK);
        self.bench.irq.drain_changes().filter(|(_, high)| *high).map(|(line, _)| line).collect()
    }
}

/// 2.3.4 and 2.3.8.
#[test]
fn the_capabilities() {
    let mut machine = Machine::new();
    // 10,000,000 femtoseconds; Intel, legacy replacement, 64 bits, three timers, revision 1.
    assert_eq!(machine.read_64(CAPABILITIES), 0x0098_9680_8086_a201);
    for index in 0..3 {
        // Lines 16 to 23; periodic, and 64 bits.
        assert_eq!(machine.read_64(configuration(index)), 0x00ff_0000_0000_0030);
        assert_eq!(machine.read_64(comparator(index)), u64::MAX);
    }
    assert_eq!(machine.read_64(configuration(3)), 0, "there is no fourth");
    machine.write(CAPABILITIES, 0);
    machine.write(configuration(0) + 4, 0);
    assert_eq!(machine.read(CAPABILITIES + 4), 10_000_000);
    assert_eq!(machine.read(configuration(0) + 4), 0x00ff_0000);
    let claim = &machine.bench.claims[0];
    assert_eq!(claim.decoded, ring3_core::bus::Decoded::Memory { start: 0xfed0_0000, len: 0x400 });
}

/// 2.3.7.
#[test]
fn the_counter_counts_while_it_is_enabled_and_can_be_set_while_it_is_not() {
    let mut machine = Machine::new();
    machine.pass(100);
    assert_eq!(machine.read_64(MAIN_COUNTER), 0);
    machine.write_64(MAIN_COUNTER, 0xffff_fff0);
    machine.write(CONFIGURATION, ENABLE);
    machine.pass(0x20);
    assert_eq!(machine.read_64(MAIN_COUNTER), 0x1_0000_0010);
    machine.write_64(MAIN_COUNTER, 7);
    assert_eq!(machine.read_64(MAIN_COUNTER), 0x1_0000_0010, "not while it counts");
    machine.write(CONFIGURATION, 0);
    machine.pass(100);
    assert_eq!(machine.read_64(MAIN_COUNTER), 0x1_0000_0010);
    machine.write(CONFIGURATION, ENABLE);
    machine.pass(1);
    assert_eq!(machine.read_64(MAIN_COUNTER), 0x1_0000_0011);
}

#[test]
fn registers_are_read_in_parts_and_written_by_double_words() {
    let mut machine = Machine::new();
    let mut read =
        |offset, width| machine.hpet.read_memory(&mut machine.bench.context(), 0, offset, width);
    assert_eq!(read(2, Width::Word) & 0xffff, 0x8086);
    assert_eq!(read(7, Width::Byte) & 0xff, 0);
    let hpet = &mut machine.hpet;
    for (offset, width) in [(0x10, Width::Byte), (0x10, Width::Word), (0x0f, Width::Dword)] {
        hpet.write_memory(&mut machine.bench.context(), 0, offset, width, 0x0101);
    }
    assert_eq!(machine.read(CONFIGURATION), 0);
}

/// 2.3.9.2.1.
#[test]
fn a_timer_interrupts_when_the_counter_equals_its_comparator() {
    let mut machine = Machine::enabled(0);
    machine.write(configuration(2), INTERRUPTS | route(20));
    machine.write_64(comparator(2), 1000);
    assert_eq!(machine.pass(999), []);
    assert_eq!(machine.pass(1), [20]);
    assert_eq!(machine.pass(1 << 33), [], "once");
    // One that has passed is not met again.
    machine.write_64(comparator(2), 1000);
    assert_eq!(machine.pass(1 << 33), []);
    // What is compared with now is met now.
    let now = machine.read_64(MAIN_COUNTER);
    machine.bench.irq.drain_changes();
    machine.write_64(comparator(2), now);
    assert!(machine.bench.irq.drain_changes().any(|change| change == (20, true)));
}

#[test]
fn a_timer_of_32_bits_compares_with_half_the_counter() {
    let mut machine = Machine::new();
    machine.write_64(MAIN_COUNTER, 0x5_ffff_ff00);
    machine.write(configuration(1), INTERRUPTS | MODE_32 | route(16));
    machine.write_64(comparator(1), 0x77_0000_0010);
    assert_eq!(machine.read_64(comparator(1)), 0x10, "the upper half is not there");
    machine.write(CONFIGURATION, ENABLE);
    assert_eq!(machine.pass(0x10f), []);
    assert_eq!(machine.pass(1), [16]);
    // The counter comes round.
    assert_eq!(machine.pass(1 << 32), [16]);
}

/// Where the counter comes round at 64 bits, timers match before and behind that place, however late they are looked at.
#[test]
fn the_whole_counter_comes_round() {
    for late in [false, true] {
        let mut machine = Machine::new();
        machine.write_64(MAIN_COUNTER, u64::MAX - 99);
        for (index, line, value) in [(0, 16, u64::MAX - 49), (1, 17, 20)] {
            machine.write(configuration(index), INTERRUPTS | route(line));
            machine.write_64(comparator(index), value);
        }
        machine.write(configuration(2), INTERRUPTS | PERIODIC | SET_VALUE | route(18));
        machine.write_64(comparator(2), u64::MAX - 89);
        machine.write_64(comparator(2), 1 << 40);
        machine.write(CONFIGURATION, ENABLE);
        if late {
            machine.bench.now = machine.bench.now.plus_nanos(1000 * NANOS_PER_TICK);
            let mut lines = machine.pass(0);
            lines.sort_unstable();
            assert_eq!(lines, [16, 17, 18]);
        } else {
            assert_eq!(machine.pass(10), [18]);
            assert_eq!(machine.pass(40), [16]);
            assert_eq!(machine.pass(69), []);
            assert_eq!(machine.pass(1), [17]);
            assert_eq!(machine.pass(880), []);
        }
        assert_eq!(machine.read_64(MAIN_COUNTER), 900);
        assert_eq!(machine.read_64(comparator(2)), (1 << 40) - 90);
        assert_eq!(machine.pass((1 << 40) - 990), [18]);
    }
}

/// 2.3.9.2.2: with VAL_SET_CNF the first write is the first match, and the second one the period.
#[test]
fn a_periodic_timer_adds_its_period() {
    let mut machine = Machine::enabled(0);
    machine.pass(50);
    machine.write(configuration(0), INTERRUPTS | PERIODIC | SET_VALUE | MODE_32 | route(17));
    machine.write(comparator(0), 1050);
    assert_eq!(machine.read(configuration(0)) & SET_VALUE, 0, "it clears itself");
    machine.write(comparator(0), 10_000);
    assert_eq!(machine.pass(999), []);
    assert_eq!(machine.pass(1), [17]);
    assert_eq!(machine.read(comparator(0)), 11_050);
    assert_eq!(machine.pass(9_999), []);
    assert_eq!(machine.pass(1), [17]);
    assert_eq!(machine.pass(100_000), [17; 10]);
    // Only the period changes, from the match after the next one on.
    machine.write(comparator(0), 5_000);
    assert_eq!(machine.pass(9_999), []);
    assert_eq!(machine.pass(5_001), [17; 2]);
}

#[test]
fn a_periodic_timer_of_64_bits_is_set_by_both_halves() {
    let mut machine = Machine::new();
    machine.write_64(MAIN_COUNTER, 0x3_0000_0000);
    machine.write(configuration(0), INTERRUPTS | PERIODIC | SET_VALUE | route(17));
    machine.write_64(comparator(0), 0x3_0000_1000);
    machine.write_64(comparator(0), 0x2000);
    machine.write(CONFIGURATION, ENABLE);
    assert_eq!(machine.pass(0x1000), [17]);
    assert_eq!(machine.pass(0x2000), [17]);
    assert_eq!(machine.read_64(comparator(0)), 0x3_0000_5000);
}

/// 2.3.6.
#[test]
fn a_level_stays_until_software_clears_its_status() {
    let mut machine = Machine::enabled(0);
    machine.write(configuration(1), INTERRUPTS | BY_LEVEL | PERIODIC | SET_VALUE | route(23));
    machine.write_64(comparator(1), 100);
    machine.write_64(comparator(1), 10_000);
    assert_eq!(machine.pass(100), [23]);
    assert_eq!(machine.pass(50_000), [], "it is high already");
    assert!(machine.bench.irq.is_high(23));
    assert_eq!(machine.read(INTERRUPT_STATUS), 0b010);
    machine.write(INTERRUPT_STATUS, 0b101);
    assert!(machine.bench.irq.is_high(23));
    machine.write(INTERRUPT_STATUS, 0b010);
    assert!(!machine.bench.irq.is_high(23));
    assert_eq!(machine.pass(10_000), [23]);
    machine.write(configuration(1), BY_LEVEL | PERIODIC | route(23));
    assert!(!machine.bench.irq.is_high(23), "interrupts are disabled");
}

/// 2.3.8, bit 2: "the timer can still operate and generate appropriate status bits".
#[test]
fn a_timer_without_interrupts_sets_its_status_without_waking_the_machine() {
    let mut machine = Machine::enabled(0);
    machine.write(configuration(0), BY_LEVEL | PERIODIC | SET_VALUE | route(16));
    machine.write_64(comparator(0), 100);
    assert!(machine.bench.timers.is_empty());
    assert_eq!(machine.pass(250), []);
    assert_eq!(machine.read(INTERRUPT_STATUS), 1);
    assert_eq!(machine.read(comparator(0)), 300);
    // Neither does one that is enabled in a block that is not.
    machine.write(CONFIGURATION, 0);
    machine.write(configuration(0), INTERRUPTS | PERIODIC | route(16));
    assert!(machine.bench.timers.is_empty());
}

/// 2.3.5, bit 1.
#[test]
fn legacy_replacement_takes_the_lines_of_the_timer_and_the_clock() {
    let mut machine = Machine::enabled(LEGACY_REPLACEMENT);
    for (index, value) in [(0, 100), (1, 200), (2, 300)] {
        machine.write(configuration(index), INTERRUPTS | route(21));
        machine.write_64(comparator(index), value);
    }
    // What the interval timer does is not heard.
    machine.bench.irq.set(0, true);
    machine.bench.irq.set(0, false);
    assert_eq!(machine.pass(1000), [0, 8, 21]);
    machine.write(CONFIGURATION, ENABLE);
    assert!(!machine.bench.irq.is_high(0));
    machine.bench.irq.set(0, true);
    assert!(machine.bench.irq.is_high(0));
    machine.write_64(comparator(0), 2000);
    assert_eq!(machine.pass(1000), [21]);
}

#[test]
fn a_route_that_is_not_offered_does_not_stay() {
    let mut machine = Machine::enabled(0);
    for (written, kept) in [(15, 0), (16, 16), (31, 16), (2, 16), (23, 23)] {
        machine.write(configuration(0), route(written));
        assert_eq!(machine.read(configuration(0)) >> 9 & 0x1f, kept);
    }
}

#[test]
fn timers_share_a_line() {
    let mut machine = Machine::enabled(0);
    for (index, value) in [(0, 100), (1, 200)] {
        machine.write(configuration(index), INTERRUPTS | BY_LEVEL | route(18));
        machine.write_64(comparator(index), value);
    }
    machine.pass(300);
    machine.write(INTERRUPT_STATUS, 0b01);
    assert!(machine.bench.irq.is_high(18));
    machine.write(INTERRUPT_STATUS, 0b10);
    assert!(!machine.bench.irq.is_high(18));
}

/// However short a period a guest asks for, the machine is not busy with it alone.
#[test]
fn the_shortest_period_takes_a_bounded_number_of_timers() {
    let mut machine = Machine::enabled(0);
    machine.write(configuration(0), INTERRUPTS | PERIODIC | SET_VALUE | route(16));
    machine.write_64(comparator(0), 1);
    assert_eq!(machine.bench.timers.next_tick(), None, "virtual time may pass over them");
    let fired = machine.pass(100_000_000 / 1000).len();
    assert!((900..=1001).contains(&fired), "{fired} in a millisecond");
    // A machine that slept finds one interrupt, and the counter where it is to be.
    machine.bench.now = machine.bench.now.plus_nanos(3_600_000_000_000);
    machine.bench.irq.drain_changes();
    machine.bench.advance(&mut machine.hpet, 0);
    assert_eq!(machine.bench.irq.drain_changes().filter(|(_, high)| *high).count(), 1);
    assert_eq!(
        u64::from(machine.read(comparator(0))),
        (machine.read_64(MAIN_COUNTER) + 1) & 0xffff_ffff
    );
}

/// Version 1 of the saved state.
#[derive(Serialize)]
struct Old {
    configuration: u32,
    status: u8,
    counter: u64,
    since: Time,
    timers: [Comparator; TIMERS],
    asserted: u8,
}

/// Version 1 had no count of ticks: its timers waited for values of the counter.
#[test]
fn a_state_of_version_1_continues() {
    let mut machine = Machine::new();
    machine.write_64(MAIN_COUNTER, 5000);
    machine.write(configuration(2), INTERRUPTS | route(20));
    machine.write(CONFIGURATION, ENABLE);
    machine.hpet.ticks = 5000;
    machine.write_64(comparator(2), 5100);
    let Hpet { configuration, status, counter, ticks: _, since, timers, asserted } = machine.hpet;
    let old = Old { configuration, status, counter, since, timers, asserted };
    machine.hpet = Hpet::default();
    machine.hpet.restore(&SavedState::new("hpet", 1, &old)).unwrap();
    machine.write(INTERRUPT_STATUS, 0);
    assert_eq!(machine.pass(99), []);
    assert_eq!(machine.pass(1), [20]);
}

#[test]
fn a_state_that_cannot_be_is_refused() {
    let mut state = Hpet { status: 1 << 3, ..Hpet::default() };
    let mut hpet = Hpet::default();
    assert!(hpet.restore(&state.save()).is_err());
    state = Hpet { configuration: 4, ..Hpet::default() };
    assert!(hpet.restore(&state.save()).is_err());
    assert_eq!(hpet, Hpet::default());
}

const REGISTERS: &[u64] = &[
    0x000, 0x004, 0x010, 0x020, 0x0f0, 0x0f4, 0x100, 0x104, 0x108, 0x10c, 0x120, 0x128, 0x12c,
    0x140, 0x148, 0x14c, 0x160, 0x3fc,
];

proptest! {
    #[test]
    fn any_accesses_leave_a_state_that_can_be_saved(blows in memory_blows(REGISTERS)) {
        hammer(&mut Hpet::default(), &mut Hpet::default(), blows);
    }
}
