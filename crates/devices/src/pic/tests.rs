use proptest::prelude::*;
use ring3_core::device::TestBench;

use super::*;
use crate::hammer::{blows, hammer};

const PORTS: &[u16] = &[0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1];

const NON_SPECIFIC_EOI: u8 = 0x20;
const READ_IRR: u8 = 0x0a;
const READ_ISR: u8 = 0x0b;

/// A pair as a PC's firmware sets it up, with the given ICW4 for both.
fn programmed(icw4: u8) -> (PicPair, TestBench) {
    let (mut pic, mut bench) = (PicPair::default(), TestBench::default());
    for (port, value) in [
        (0x20, 0x11),
        (0x21, 0x20),
        (0x21, 0x04),
        (0x21, icw4),
        (0xa0, 0x11),
        (0xa1, 0x28),
        (0xa1, 0x02),
        (0xa1, icw4),
    ] {
        bench.write(&mut pic, port, value);
    }
    (pic, bench)
}

fn pulse(pic: &mut PicPair, irq: u8) {
    pic.set_line(irq, false);
    pic.set_line(irq, true);
}

fn in_service(pic: &mut PicPair, bench: &mut TestBench, port: u16) -> u8 {
    bench.write(pic, port, READ_ISR);
    bench.read(pic, port)
}

#[test]
fn nothing_comes_before_initialization() {
    let (mut pic, mut bench) = (PicPair::default(), TestBench::default());
    pic.set_line(0, true);
    assert!(!pic.interrupt_requested());
    // The mask can be used to probe for the chip before ICW1, as Linux does.
    bench.write(&mut pic, 0x21, 0xfb);
    assert_eq!(bench.read(&mut pic, 0x21), 0xfb);
}

#[test]
fn initialization_clears_the_mask_and_forgets_edges() {
    let (mut pic, mut bench) = programmed(0x01);
    pic.set_line(3, true);
    bench.write(&mut pic, 0x21, 0xff);
    bench.write(&mut pic, 0x20, 0x11);
    assert_eq!(bench.read(&mut pic, 0x21), 0);
    for word in [0x40, 0x04, 0x01] {
        bench.write(&mut pic, 0x21, word);
    }
    assert!(!pic.interrupt_requested(), "a new edge is needed");
    pulse(&mut pic, 3);
    assert_eq!(pic.acknowledge(), 0x43);
}

#[test]
fn no_request_during_initialization() {
    let (mut pic, mut bench) = programmed(0x01);
    bench.write(&mut pic, 0x20, 0x11);
    pic.set_line(1, true);
    assert!(!pic.interrupt_requested());
    for word in [0x20, 0x04, 0x01] {
        bench.write(&mut pic, 0x21, word);
    }
    assert!(pic.interrupt_requested());
}

#[test]
fn single_mode_and_no_icw4_shorten_the_sequence() {
    let (mut pic, mut bench) = (PicPair::default(), TestBench::default());
    bench.write(&mut pic, 0x20, 0x12);
    bench.write(&mut pic, 0x21, 0x57);
    bench.write(&mut pic, 0x21, 0xfd);
    assert_eq!(bench.read(&mut pic, 0x21), 0xfd, "OCW1 after ICW2");
    pic.set_line(1, true);
    assert_eq!(pic.acknowledge(), 0x51, "the low three bits are the input");
}

#[test]
fn a_higher_priority_interrupts_and_a_lower_waits() {
    let (mut pic, mut bench) = programmed(0x01);
    pic.set_line(4, true);
    assert_eq!(pic.acknowledge(), 0x24);
    pic.set_line(5, true);
    assert!(!pic.interrupt_requested());
    pic.set_line(1, true);
    assert_eq!(pic.acknowledge(), 0x21);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0x12);
    bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
    assert_eq!(bench.read(&mut pic, 0x20), 0x10);
    assert!(!pic.interrupt_requested());
    bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
    assert_eq!(pic.acknowledge(), 0x25);
}

#[test]
fn an_edge_is_one_interrupt_and_a_level_many() {
    let (mut pic, mut bench) = programmed(0x01);
    bench.write(&mut pic, 0x4d0, 0xff);
    assert_eq!(bench.read(&mut pic, 0x4d0), 0xf8);
    bench.write(&mut pic, 0x4d1, 0xff);
    assert_eq!(bench.read(&mut pic, 0x4d1), 0xde);
    for (irq, again) in [(1, false), (5, true)] {
        pic.set_line(irq, true);
        assert_eq!(pic.acknowledge(), 0x20 + irq);
        bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
        assert_eq!(pic.interrupt_requested(), again);
        pic.set_line(irq, false);
        assert!(!pic.interrupt_requested());
    }
}

#[test]
fn ltim_makes_all_inputs_level_triggered() {
    let (mut pic, mut bench) = (PicPair::default(), TestBench::default());
    pic.set_line(0, true);
    for (port, value) in [(0x20, 0x19), (0x21, 0x20), (0x21, 0x04), (0x21, 0x01)] {
        bench.write(&mut pic, port, value);
    }
    assert_eq!(pic.acknowledge(), 0x20);
    bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
    assert_eq!(pic.acknowledge(), 0x20);
}

#[test]
fn masked_requests_are_kept() {
    let (mut pic, mut bench) = programmed(0x01);
    bench.write(&mut pic, 0x21, 0x08);
    pic.set_line(3, true);
    assert!(!pic.interrupt_requested());
    bench.write(&mut pic, 0x20, READ_IRR);
    assert_eq!(bench.read(&mut pic, 0x20), 0x08);
    bench.write(&mut pic, 0x21, 0x00);
    assert_eq!(pic.acknowledge(), 0x23);
    assert_eq!(bench.read(&mut pic, 0x20), 0, "the IRR bit goes with the acknowledge");
}

#[test]
fn a_request_that_goes_away_is_spurious() {
    let (mut pic, mut bench) = programmed(0x01);
    pic.set_line(3, true);
    pic.set_line(3, false);
    assert!(!pic.interrupt_requested());
    assert_eq!(pic.acknowledge(), 0x27);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0, "not in service");
}

#[test]
fn a_spurious_irq_15_is_in_service_on_the_master_only() {
    let (mut pic, mut bench) = programmed(0x01);
    // A request that the master has seen and the slave has dropped before the second INTA:
    // the slave's mask takes effect in between.
    pic.set_line(12, true);
    assert!(pic.interrupt_requested());
    pic.slave.mask = 0xff;
    assert_eq!(pic.acknowledge(), 0x2f);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0x04);
    assert_eq!(in_service(&mut pic, &mut bench, 0xa0), 0);
}

#[test]
fn the_slave_comes_by_the_cascade() {
    let (mut pic, mut bench) = programmed(0x01);
    pic.set_line(2, true);
    assert!(!pic.interrupt_requested(), "IRQ 2 leads to no device");
    pic.set_line(12, true);
    pic.set_line(14, true);
    assert_eq!(pic.acknowledge(), 0x2c);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0x04);
    assert_eq!(in_service(&mut pic, &mut bench, 0xa0), 0x10);
    bench.write(&mut pic, 0xa0, NON_SPECIFIC_EOI);
    assert!(!pic.interrupt_requested(), "still in service on the master");
    bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
    assert_eq!(pic.acknowledge(), 0x2e);
    pic.set_line(1, true);
    assert_eq!(pic.acknowledge(), 0x21, "IR1 is above the cascade");
}

#[test]
fn a_wrong_icw3_leaves_the_bus_open() {
    let (mut pic, mut bench) = (PicPair::default(), TestBench::default());
    for (port, value) in [(0x20, 0x11), (0x21, 0x20), (0x21, 0x20), (0x21, 0x01)] {
        bench.write(&mut pic, port, value);
    }
    pic.set_line(5, true);
    assert_eq!(pic.acknowledge(), 0xff);
}

#[test]
fn special_fully_nested_mode_lets_the_slave_nest() {
    for (icw4, nests) in [(0x01, false), (0x11, true)] {
        let (mut pic, _) = programmed(icw4);
        pic.set_line(12, true);
        assert_eq!(pic.acknowledge(), 0x2c);
        pic.set_line(9, true);
        assert_eq!(pic.interrupt_requested(), nests);
        if nests {
            assert_eq!(pic.acknowledge(), 0x29);
        }
        pic.set_line(15, true);
        assert!(!pic.interrupt_requested(), "lower within the slave");
    }
}

#[test]
fn specific_eoi_ends_the_one_named() {
    let (mut pic, mut bench) = programmed(0x01);
    for irq in [6, 3] {
        pic.set_line(irq, true);
        pic.acknowledge();
    }
    bench.write(&mut pic, 0x20, 0x66);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0x08);
}

#[test]
fn automatic_eoi_leaves_nothing_in_service() {
    let (mut pic, mut bench) = programmed(0x03);
    pic.set_line(4, true);
    pic.set_line(13, true);
    pic.set_line(14, true);
    assert_eq!([pic.acknowledge(), pic.acknowledge(), pic.acknowledge()], [0x2d, 0x2e, 0x24]);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0);
    assert_eq!(in_service(&mut pic, &mut bench, 0xa0), 0);
    assert!(!pic.interrupt_requested());
}

#[test]
fn rotation_on_non_specific_eoi_is_the_data_sheets_example() {
    let (mut pic, mut bench) = programmed(0x01);
    bench.write(&mut pic, 0x20, 0xc7);
    pic.set_line(6, true);
    pic.acknowledge();
    pic.set_line(4, true);
    assert_eq!(pic.acknowledge(), 0x24);
    bench.write(&mut pic, 0x20, 0xa0);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0x40);
    assert_eq!(pic.master.lowest, 4);
    pic.set_line(0, true);
    assert!(!pic.interrupt_requested(), "IR6, in service, is above IR0 now");
    pic.set_line(5, true);
    assert_eq!(pic.acknowledge(), 0x25);
}

#[test]
fn rotation_commands() {
    let (mut pic, mut bench) = programmed(0x01);
    // Set priority: IR5 lowest, so IR6 highest.
    bench.write(&mut pic, 0x20, 0xc5);
    pic.set_line(0, true);
    pic.set_line(6, true);
    assert_eq!(pic.acknowledge(), 0x26);
    // Rotate on specific EOI of IR6: now IR7 is highest.
    bench.write(&mut pic, 0x20, 0xe6);
    pic.set_line(7, true);
    assert_eq!(pic.acknowledge(), 0x27);
    // With nothing in service a rotating EOI changes nothing.
    bench.write(&mut pic, 0x20, 0x67);
    bench.write(&mut pic, 0x20, 0xa0);
    assert_eq!(pic.master.lowest, 6);
}

#[test]
fn rotation_in_automatic_eoi_mode() {
    let (mut pic, mut bench) = programmed(0x03);
    bench.write(&mut pic, 0x20, 0x80);
    pic.set_line(3, true);
    pic.acknowledge();
    assert_eq!(pic.master.lowest, 3);
    bench.write(&mut pic, 0x20, 0x00);
    pic.set_line(5, true);
    pic.acknowledge();
    assert_eq!(pic.master.lowest, 3);
}

#[test]
fn special_mask_mode_lets_lower_priorities_pass() {
    let (mut pic, mut bench) = programmed(0x01);
    pic.set_line(3, true);
    pic.acknowledge();
    pic.set_line(6, true);
    bench.write(&mut pic, 0x21, 0x08);
    assert!(!pic.interrupt_requested());
    bench.write(&mut pic, 0x20, 0x68);
    assert_eq!(pic.acknowledge(), 0x26);
    bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0x08, "EOI spares what is masked");
    bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
    assert_eq!(bench.read(&mut pic, 0x20), 0x08);
    bench.write(&mut pic, 0x20, 0x48);
    bench.write(&mut pic, 0x20, NON_SPECIFIC_EOI);
    bench.write(&mut pic, 0x20, READ_ISR);
    assert_eq!(bench.read(&mut pic, 0x20), 0);
}

#[test]
fn poll_is_an_acknowledge_by_reading() {
    let (mut pic, mut bench) = programmed(0x01);
    bench.write(&mut pic, 0x20, 0x0c);
    assert_eq!(bench.read(&mut pic, 0x20), 0);
    pic.set_line(10, true);
    bench.write(&mut pic, 0x20, 0x0c);
    assert_eq!(bench.read(&mut pic, 0x21), 0x82, "either port answers");
    assert_eq!(bench.read(&mut pic, 0x21), 0x00, "one read only");
    bench.write(&mut pic, 0xa0, 0x0c);
    assert_eq!(bench.read(&mut pic, 0xa0), 0x82);
    assert!(!pic.interrupt_requested());
    assert_eq!(in_service(&mut pic, &mut bench, 0x20), 0x04);
    assert_eq!(in_service(&mut pic, &mut bench, 0xa0), 0x04);
}

#[test]
fn a_word_write_reaches_both_ports() {
    let (mut pic, mut bench) = programmed(0x01);
    pic.write_port(&mut bench.context(), 0x20, Width::Word, 0x5a0b);
    assert_eq!(pic.read_port(&mut bench.context(), 0x20, Width::Word), 0x5a00);
    assert_eq!(pic.read_port(&mut bench.context(), 0x21, Width::Dword), 0xffff_ff5a);
}

#[test]
fn reset_is_power_on() {
    let (mut pic, mut bench) = programmed(0x01);
    pic.reset(&mut bench.context());
    assert_eq!(pic, PicPair::default());
}

#[test]
fn damaged_states_are_refused() {
    let (good, _) = programmed(0x01);
    let damages: [fn(&mut PicPair); 4] = [
        |pic| pic.master.lowest = 8,
        |pic| pic.slave.edges = 1,
        |pic| pic.slave.vector_base = 0x41,
        |pic| pic.slave.is_master = true,
    ];
    for damage in damages {
        let (mut pic, mut bad) = (PicPair::default(), good.clone());
        damage(&mut bad);
        assert!(matches!(pic.restore(&bad.save()), Err(RestoreError::Damaged { .. })));
        assert_eq!(pic, PicPair::default(), "unchanged");
    }
}

proptest! {
    #[test]
    fn survives_and_saves_anything(
        blows in blows(PORTS),
        lines in proptest::collection::vec((any::<u8>(), any::<bool>()), 0..50),
    ) {
        let mut pic = PicPair::default();
        hammer(&mut pic, &mut PicPair::default(), blows);
        for (irq, high) in lines {
            pic.set_line(irq & 0x1f, high);
            if pic.interrupt_requested() {
                pic.acknowledge();
            }
        }
        let mut copy = PicPair::default();
        copy.restore(&pic.save()).unwrap();
        prop_assert_eq!(copy, pic);
    }
}
