use proptest::prelude::*;
use ring3_core::device::TestBench;

use super::*;
use crate::hammer::{blows, hammer};

const PORTS: &[u16] = &[0x40, 0x41, 0x42, 0x43, 0x61];

/// A timer whose clock is moved tick by tick; counter 2 is used for what needs its gate.
struct Bed {
    pit: Pit,
    bench: TestBench,
    tick: u64,
}

impl Bed {
    fn new() -> Bed {
        Bed { pit: Pit::default(), bench: TestBench::default(), tick: 0 }
    }

    /// A bed with a counter that has `control` (without its select bits) and a two-byte count.
    fn with(counter: u8, control: u8, count: u16) -> Bed {
        let mut bed = Bed::new();
        bed.write(0x61, 1);
        bed.write(0x43, counter << 6 | 0x30 | control);
        bed.write_count(counter, count);
        bed.bench.irq.drain_changes();
        bed
    }

    fn write(&mut self, port: u16, value: u8) {
        self.bench.write(&mut self.pit, port, value);
    }

    fn write_count(&mut self, counter: u8, count: u16) {
        for byte in count.to_le_bytes() {
            self.write(0x40 + u16::from(counter), byte);
        }
    }

    fn read(&mut self, port: u16) -> u8 {
        self.bench.read(&mut self.pit, port)
    }

    /// Lets `ticks` periods of CLK pass.
    fn pass(&mut self, ticks: u64) {
        self.tick += ticks;
        let nanos = Time::of_tick(self.tick, HERTZ).nanos_since(self.bench.now);
        self.bench.advance(&mut self.pit, nanos);
    }

    /// The same without serving timers on the way, as in a machine that was held up.
    fn jump(&mut self, ticks: u64) {
        self.tick += ticks;
        self.bench.now = Time::of_tick(self.tick, HERTZ);
        self.bench.advance(&mut self.pit, 0);
    }

    /// The status byte, by the read-back command.
    fn status(&mut self, counter: u8) -> u8 {
        self.write(0x43, 0xe0 | 2 << counter);
        self.read(0x40 + u16::from(counter))
    }

    fn out(&mut self, counter: u8) -> bool {
        self.status(counter) & 0x80 != 0
    }

    fn null_count(&mut self, counter: u8) -> bool {
        self.status(counter) & 0x40 != 0
    }

    fn count(&mut self, counter: u8) -> u16 {
        self.write(0x43, counter << 6);
        let port = 0x40 + u16::from(counter);
        u16::from_le_bytes([self.read(port), self.read(port)])
    }

    /// OUT as a string, `H` or `L` after each of `ticks` CLK pulses.
    fn wave(&mut self, counter: u8, ticks: usize) -> String {
        (0..ticks)
            .map(|_| {
                self.pass(1);
                if self.out(counter) { 'H' } else { 'L' }
            })
            .collect()
    }

    /// The counts after each of `ticks` CLK pulses.
    fn counts(&mut self, counter: u8, ticks: usize) -> Vec<u16> {
        (0..ticks)
            .map(|_| {
                self.pass(1);
                self.count(counter)
            })
            .collect()
    }

    /// How often IRQ 0 has risen since the last call.
    fn edges(&mut self) -> usize {
        self.bench.irq.drain_changes().filter(|change| *change == (0, true)).count()
    }
}

#[test]
fn mode_0_is_high_n_plus_1_pulses_after_the_write() {
    let mut bed = Bed::with(0, 0, 4);
    assert!(!bed.out(0));
    assert_eq!(bed.wave(0, 7), "LLLLHHH");
    assert_eq!(bed.count(0), 0xfffe, "counting goes on");
    assert_eq!(bed.edges(), 1);
    assert_eq!(bed.bench.timers.next(), None);
}

#[test]
fn mode_0_starts_again_with_a_new_count() {
    let mut bed = Bed::with(0, 0, 3);
    bed.pass(4);
    assert!(bed.bench.irq.is_high(0));
    bed.write(0x40, 2);
    assert!(!bed.bench.irq.is_high(0), "the first byte sets OUT low");
    bed.pass(10);
    assert_eq!(bed.count(0), 0, "and stops counting");
    bed.write(0x40, 0);
    assert_eq!(bed.wave(0, 4), "LLHH");
    assert_eq!(bed.edges(), 2);
}

#[test]
fn mode_0_is_held_by_the_gate() {
    let mut bed = Bed::with(2, 0, 4);
    bed.pass(3);
    assert_eq!(bed.count(2), 2);
    bed.write(0x61, 0);
    assert_eq!(bed.counts(2, 3), [2, 2, 2]);
    bed.write(0x61, 1);
    assert_eq!(bed.wave(2, 3), "LHH");

    // A count that is written while GATE is low is loaded, and needs N pulses from there.
    bed.write(0x61, 0);
    bed.write_count(2, 2);
    bed.pass(5);
    assert!(!bed.null_count(2));
    bed.write(0x61, 1);
    assert_eq!(bed.wave(2, 3), "LHH");
}

#[test]
fn mode_1_is_a_one_shot_that_can_be_triggered_again() {
    let mut bed = Bed::with(2, 1 << 1, 3);
    assert_eq!(bed.wave(2, 3), "HHH", "no trigger yet");
    assert!(bed.null_count(2));
    let trigger = |bed: &mut Bed| {
        bed.write(0x61, 0);
        bed.write(0x61, 1);
    };
    trigger(&mut bed);
    assert_eq!(bed.wave(2, 5), "LLLHH");
    trigger(&mut bed);
    assert_eq!(bed.wave(2, 2), "LL");
    trigger(&mut bed);
    assert_eq!(bed.wave(2, 5), "LLLHH");
    // A new count waits for its trigger.
    trigger(&mut bed);
    bed.write_count(2, 1);
    assert!(bed.null_count(2));
    assert_eq!(bed.wave(2, 4), "LLLH");
    trigger(&mut bed);
    assert_eq!(bed.wave(2, 3), "LHH");
    assert!(!bed.null_count(2));
}

#[test]
fn mode_2_divides_by_n() {
    let mut bed = Bed::with(0, 2 << 1, 3);
    assert_eq!(bed.wave(0, 9), "HHLHHLHHL");
    assert_eq!(bed.counts(0, 6), [3, 2, 1, 3, 2, 1]);
    let mut bed = Bed::with(0, 2 << 1, 3);
    bed.pass(10);
    assert_eq!(bed.edges(), 3);
}

#[test]
fn mode_2_takes_a_new_count_at_the_end_of_the_period() {
    let mut bed = Bed::with(0, 2 << 1, 4);
    bed.pass(2);
    bed.write_count(0, 3);
    assert!(bed.null_count(0));
    assert_eq!(bed.counts(0, 6), [2, 1, 3, 2, 1, 3]);
    assert!(!bed.null_count(0));
    assert_eq!(bed.edges(), 2);
}

#[test]
fn mode_2_is_reloaded_by_its_gate() {
    let mut bed = Bed::with(2, 2 << 1, 3);
    bed.pass(3);
    assert!(!bed.out(2));
    bed.write(0x61, 0);
    assert!(bed.out(2), "at once");
    assert_eq!(bed.counts(2, 2), [1, 1]);
    bed.write_count(2, 4);
    assert!(bed.null_count(2));
    bed.write(0x61, 1);
    assert_eq!(bed.counts(2, 5), [4, 3, 2, 1, 4]);
}

#[test]
fn mode_3_is_a_square_wave() {
    let mut bed = Bed::with(0, 3 << 1, 4);
    assert_eq!(bed.wave(0, 8), "HHLLHHLL");
    assert_eq!(bed.counts(0, 5), [4, 2, 4, 2, 4]);
    let mut bed = Bed::with(0, 3 << 1, 5);
    assert_eq!(bed.wave(0, 10), "HHHLLHHHLL");
    assert_eq!(bed.counts(0, 5), [4, 2, 0, 4, 2]);
    assert!(!bed.bench.irq.is_high(0), "the line follows OUT");
    bed.pass(1);
    assert!(bed.bench.irq.is_high(0));
    assert_eq!(bed.edges(), 3);
}

#[test]
fn mode_3_takes_a_new_count_at_the_end_of_the_half_period() {
    let mut bed = Bed::with(0, 3 << 1, 4);
    bed.pass(1);
    bed.write_count(0, 6);
    assert_eq!(bed.wave(0, 8), "HLLLHHHL");
    bed.write_count(0, 2);
    assert_eq!(bed.wave(0, 6), "LLHLHL");
}

#[test]
fn mode_4_strobes_once_after_the_write() {
    let mut bed = Bed::with(0, 4 << 1, 3);
    assert_eq!(bed.wave(0, 7), "HHHLHHH");
    assert_eq!(bed.edges(), 1);
    bed.write_count(0, 1);
    assert_eq!(bed.wave(0, 3), "HLH");
}

#[test]
fn mode_5_strobes_once_after_the_trigger() {
    let mut bed = Bed::with(2, 5 << 1, 2);
    assert_eq!(bed.wave(2, 5), "HHHHH");
    bed.write(0x61, 0);
    bed.write(0x61, 1);
    assert_eq!(bed.wave(2, 6), "HHLHHH");
}

#[test]
fn zero_is_the_largest_count() {
    for (control, largest) in [(2 << 1, 65_536), (2 << 1 | 1, 10_000)] {
        let mut bed = Bed::with(0, control, 0);
        bed.pass(1 + largest - 1);
        assert_eq!(bed.edges(), 0);
        assert_eq!(bed.count(0), 1);
        bed.pass(1);
        assert_eq!(bed.edges(), 1);
        assert_eq!(bed.count(0), 0);
    }
}

#[test]
fn bcd_counts_in_decimal() {
    let mut bed = Bed::with(0, 1, 0x1000);
    bed.pass(2);
    assert_eq!(bed.count(0), 0x0999);
    bed.pass(1000);
    assert_eq!(bed.count(0), 0x9999);
}

#[test]
fn the_illegal_divisor_makes_no_interrupts() {
    for mode in [2, 3] {
        let mut bed = Bed::with(0, mode << 1, 1);
        bed.pass(1000);
        assert_eq!(bed.edges(), 0);
        bed.write_count(0, 2);
        bed.pass(1001);
        assert_eq!(bed.edges(), 500);
    }
}

#[test]
fn single_byte_counts() {
    let mut bed = Bed::new();
    bed.write(0x43, 0x14);
    bed.write(0x40, 0x80);
    bed.pass(1);
    assert_eq!(bed.read(0x40), 0x80);
    assert_eq!(bed.read(0x40), 0x80);
    bed.write(0x43, 0x24);
    bed.write(0x40, 0x02);
    bed.pass(1);
    assert_eq!(bed.read(0x40), 0x02);
    bed.pass(1);
    assert_eq!(bed.read(0x40), 0x01);
}

#[test]
fn a_latched_count_stays_until_it_is_read() {
    let mut bed = Bed::with(0, 2 << 1, 0x1234);
    bed.pass(1);
    bed.write(0x43, 0x00);
    bed.pass(100);
    bed.write(0x43, 0x00);
    assert_eq!([bed.read(0x40), bed.read(0x40)], [0x34, 0x12]);
    assert_eq!(bed.read(0x40), (0x1234 - 100_u16).to_le_bytes()[0]);
}

#[test]
fn programming_a_counter_drops_its_latches() {
    let mut bed = Bed::with(0, 2 << 1, 0x1234);
    bed.write(0x43, 0xc2);
    bed.write(0x43, 0x14);
    bed.write(0x40, 7);
    assert_eq!(bed.read(0x40), 7);
}

#[test]
fn read_back_latches_status_before_count() {
    let mut bed = Bed::with(1, 3 << 1, 0x0102);
    assert_eq!(bed.status(1), 0xf6, "OUT high, null count, RW 3, mode 3");
    bed.pass(1);
    bed.write(0x43, 0xc0 | 1 << 2);
    bed.pass(7);
    assert_eq!([bed.read(0x41), bed.read(0x41), bed.read(0x41)], [0xb6, 0x02, 0x01]);
    bed.write(0x43, 0xd0 | 0b1110);
    assert_eq!(bed.read(0x41), 0xf4, "count only, of all counters");
}

#[test]
fn port_b_gates_counter_2_and_shows_its_output() {
    let mut bed = Bed::with(2, 0, 10);
    bed.write(0x61, 0xff);
    assert_eq!(bed.read(0x61) & 0xef, 0x0f);
    bed.pass(11);
    assert_eq!(bed.read(0x61) & 0xef, 0x2f);
    bed.write(0x61, 0x02);
    assert_eq!(bed.read(0x61) & 0xef, 0x22);
}

#[test]
fn the_refresh_bit_toggles_every_18_ticks() {
    let mut bed = Bed::new();
    let mut toggles = 0;
    let mut last = bed.read(0x61) & 0x10;
    for _ in 0..180 {
        bed.pass(1);
        let bit = bed.read(0x61) & 0x10;
        toggles += u8::from(bit != last);
        last = bit;
    }
    assert_eq!(toggles, 10);
}

#[test]
fn periods_do_not_drift() {
    let mut bed = Bed::with(0, 2 << 1, 11_932);
    bed.bench.advance(&mut bed.pit, 1_000_000_000_000);
    assert_eq!(bed.edges() as u64, (HERTZ * 1000 - 1) / 11_932);
}

#[test]
fn a_late_timer_is_one_edge_that_stays_high() {
    for mode in [2, 3] {
        let mut bed = Bed::with(0, mode << 1, 100);
        bed.jump(100 * 1000 + 1 + 70);
        assert_eq!(bed.edges(), 1);
        bed.read(0x40);
        assert!(bed.bench.irq.is_high(0));
        bed.pass(30);
        assert_eq!(bed.edges(), 1, "the grid is as it was");
    }
}

#[test]
fn an_access_sees_a_rise_before_its_timer_is_served() {
    let mut bed = Bed::with(0, 3 << 1, 10);
    bed.bench.now = Time::of_tick(17, HERTZ);
    bed.read(0x40);
    assert_eq!(bed.edges(), 1);
    bed.bench.advance(&mut bed.pit, 0);
    assert!(bed.bench.irq.is_high(0), "the timer that was due then does not take it back");
}

#[test]
fn the_control_port_cannot_be_read() {
    assert_eq!(Bed::new().read(0x43), 0xff);
}

#[test]
fn reset_is_power_on() {
    let mut bed = Bed::with(2, 2 << 1, 100);
    bed.pit.reset(&mut bed.bench.context());
    assert_eq!(bed.pit, Pit::default());
}

#[test]
fn a_saved_timer_continues() {
    let mut bed = Bed::with(0, 2 << 1, 100);
    bed.pass(50);
    let state = bed.pit.save();
    bed.pit = Pit::default();
    bed.pit.restore(&state).unwrap();
    bed.pass(51);
    assert_eq!(bed.edges(), 1);
    assert_eq!(bed.count(0), 100);
}

#[test]
fn damaged_states_are_refused() {
    let good = Bed::with(2, 2 << 1, 100).pit;
    let mut without_gate = good.clone();
    without_gate.port_b = 0;
    let mut bad_port = good.clone();
    bad_port.port_b = 0xff;
    for bad in [without_gate, bad_port] {
        let mut pit = Pit::default();
        assert!(matches!(pit.restore(&bad.save()), Err(RestoreError::Damaged { .. })));
        assert_eq!(pit, Pit::default(), "unchanged");
    }
}

proptest! {
    #[test]
    fn survives_and_saves_anything(blows in blows(PORTS)) {
        hammer(&mut Pit::default(), &mut Pit::default(), blows);
    }
}
