use proptest::prelude::*;
use ring3_core::device::{DeviceId, TestBench};

use super::*;
use crate::hammer::{hammer, memory_blows};

const ID: u64 = 0x20;
const TPR: u64 = 0x80;
const APR: u64 = 0x90;
const PPR: u64 = 0xa0;
const EOI: u64 = 0xb0;
const LDR: u64 = 0xd0;
const DFR: u64 = 0xe0;
const SVR: u64 = 0xf0;
const ISR: u64 = 0x100;
const TMR: u64 = 0x180;
const IRR: u64 = 0x200;
const ESR: u64 = 0x280;
const ICR: u64 = 0x300;
const ICR_HIGH: u64 = 0x310;
const TIMER: u64 = 0x320;
const LINT0: u64 = 0x350;
const LINT1: u64 = 0x360;
const ERROR: u64 = 0x370;
const INITIAL: u64 = 0x380;
const CURRENT: u64 = 0x390;
const DIVIDE: u64 = 0x3e0;

const DIVIDE_BY_1: u32 = 0b1011;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;

/// A local APIC as firmware leaves it: enabled by software, with spurious vector FFh.
fn enabled() -> (LocalApic, TestBench) {
    let (mut apic, mut bench) = (LocalApic::default(), TestBench::default());
    write(&mut apic, &mut bench, SVR, 0x1ff);
    (apic, bench)
}

fn read(apic: &mut LocalApic, bench: &mut TestBench, offset: u64) -> u32 {
    apic.read_memory(&mut bench.context(), 0, offset, Width::Dword)
}

fn write(apic: &mut LocalApic, bench: &mut TestBench, offset: u64, value: u32) {
    apic.write_memory(&mut bench.context(), 0, offset, Width::Dword, value);
}

fn level(vector: u8) -> Message {
    Message { level: true, ..Message::fixed(vector, 0) }
}

/// 12.4.7.1.
#[test]
fn power_on_state() {
    let (mut apic, mut bench) = (LocalApic::default(), TestBench::default());
    assert_eq!(apic.address(), Some(0xfee0_0000));
    for offset in [ID, TPR, PPR, LDR, ESR, ICR, ICR_HIGH, INITIAL, CURRENT, DIVIDE] {
        assert_eq!(read(&mut apic, &mut bench, offset), 0, "{offset:#x}");
    }
    for offset in (TIMER..=ERROR).step_by(16) {
        assert_eq!(read(&mut apic, &mut bench, offset), MASKED, "{offset:#x}");
    }
    for word in (ISR..ESR).step_by(16) {
        assert_eq!(read(&mut apic, &mut bench, word), 0);
    }
    assert_eq!(read(&mut apic, &mut bench, SVR), 0xff);
    assert_eq!(read(&mut apic, &mut bench, DFR), 0xffff_ffff);
    assert_eq!(read(&mut apic, &mut bench, 0x30), 0x0005_0014);
}

#[test]
fn the_highest_vector_goes_first_and_holds_its_class_up() {
    let (mut apic, mut bench) = enabled();
    for vector in [0x35, 0x31, 0x52] {
        assert!(apic.accept(Message::fixed(vector, 0)));
    }
    assert_eq!(read(&mut apic, &mut bench, IRR + 0x10), 1 << 0x15 | 1 << 0x11);
    assert_eq!(read(&mut apic, &mut bench, IRR + 0x20), 1 << 0x12);
    assert_eq!(apic.acknowledge(), 0x52);
    assert_eq!(read(&mut apic, &mut bench, ISR + 0x20), 1 << 0x12);
    assert_eq!(read(&mut apic, &mut bench, PPR), 0x50);
    assert!(!apic.interrupt_requested(), "class 3 waits for class 5");
    assert!(apic.accept(Message::fixed(0x5f, 0)));
    assert!(!apic.interrupt_requested(), "the same class waits too");
    assert!(apic.accept(Message::fixed(0x60, 0)));
    assert_eq!(apic.acknowledge(), 0x60);
    for expected in [0x5f, 0x35, 0x31] {
        // EOI ends the highest one in service.
        while !apic.interrupt_requested() {
            write(&mut apic, &mut bench, EOI, 0);
        }
        assert_eq!(apic.acknowledge(), expected);
    }
}

#[test]
fn the_task_priority_holds_interrupts_back() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, TPR, 0x4f);
    assert_eq!(read(&mut apic, &mut bench, PPR), 0x4f);
    apic.accept(Message::fixed(0x4f, 0));
    assert!(!apic.interrupt_requested());
    assert_eq!(read(&mut apic, &mut bench, APR), 0x4f);
    write(&mut apic, &mut bench, TPR, 0x3f);
    assert_eq!(read(&mut apic, &mut bench, APR), 0x40);
    assert_eq!(apic.acknowledge(), 0x4f);
    assert_eq!(read(&mut apic, &mut bench, PPR), 0x40);
    write(&mut apic, &mut bench, TPR, 0x41);
    assert_eq!(read(&mut apic, &mut bench, PPR), 0x41, "TPR counts in the same class");
}

/// 12.9.
#[test]
fn a_request_that_is_gone_is_the_spurious_interrupt() {
    let (mut apic, mut bench) = enabled();
    apic.accept(Message::fixed(0x41, 0));
    assert!(apic.interrupt_requested());
    write(&mut apic, &mut bench, TPR, 0xf0);
    assert_eq!(apic.acknowledge(), 0xff);
    assert_eq!(read(&mut apic, &mut bench, ISR + 0x70), 0, "not in service");
    assert_eq!(read(&mut apic, &mut bench, IRR + 0x20), 2, "still requested");
}

/// 12.8.5: the local APIC sends only the end of a level-triggered interrupt to the I/O APIC.
#[test]
fn the_end_of_a_level_interrupt_is_broadcast() {
    let (mut apic, mut bench) = enabled();
    apic.accept(level(0x61));
    assert_eq!(read(&mut apic, &mut bench, TMR + 0x30), 2);
    apic.acknowledge();
    write(&mut apic, &mut bench, EOI, 0);
    assert_eq!(apic.take_end_of_interrupt(), Some(0x61));
    assert_eq!(apic.take_end_of_interrupt(), None);
    apic.accept(Message::fixed(0x61, 0));
    assert_eq!(read(&mut apic, &mut bench, TMR + 0x30), 0);
    apic.acknowledge();
    write(&mut apic, &mut bench, EOI, 0);
    assert_eq!(apic.take_end_of_interrupt(), None);
}

/// 12.6.2.
#[test]
fn destinations() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, ID, 0x0300_0000);
    write(&mut apic, &mut bench, LDR, 0x2400_0000);
    let accepted = |apic: &mut LocalApic, destination, logical| {
        apic.accept(Message { logical, ..Message::fixed(0x40, destination) })
    };
    for (destination, expected) in [(3, true), (0, false), (0x24, false), (0xff, true)] {
        assert_eq!(accepted(&mut apic, destination, false), expected);
    }
    for (destination, expected) in [(0x20, true), (0x04, true), (0x03, false), (0xff, true)] {
        assert_eq!(accepted(&mut apic, destination, true), expected, "flat {destination:#x}");
    }
    write(&mut apic, &mut bench, DFR, 0);
    assert_eq!(read(&mut apic, &mut bench, DFR), 0x0fff_ffff);
    for (destination, expected) in
        [(0x24, true), (0x2f, true), (0x23, false), (0x14, false), (0xf4, true), (0xff, true)]
    {
        assert_eq!(accepted(&mut apic, destination, true), expected, "cluster {destination:#x}");
    }
}

#[test]
fn interprocessor_interrupts_reach_oneself() {
    const ASSERT: u32 = 1 << 14;
    let (mut apic, mut bench) = enabled();
    let mut send = |low, high| {
        write(&mut apic, &mut bench, ICR_HIGH, high);
        write(&mut apic, &mut bench, ICR, low);
        assert_eq!(read(&mut apic, &mut bench, ICR), low, "the delivery status is idle");
        apic.interrupt_requested().then(|| {
            let vector = apic.acknowledge();
            write(&mut apic, &mut bench, EOI, 0);
            vector
        })
    };
    let to = |id: u32| id << 24;
    assert_eq!(send(ASSERT | 0x51, to(0)), Some(0x51));
    assert_eq!(send(ASSERT | 0x51, to(1)), None);
    assert_eq!(send(ASSERT | 0x152, to(0)), Some(0x52), "lowest priority");
    assert_eq!(send(ASSERT | 1 << 18 | 0x53, to(7)), Some(0x53), "self");
    assert_eq!(send(ASSERT | 2 << 18 | 0x54, to(7)), Some(0x54), "all");
    assert_eq!(send(ASSERT | 3 << 18 | 0x55, to(0)), None, "all others");
    // INIT and SIPI to others, as systems send them that look for processors.
    assert_eq!(send(ASSERT | 3 << 18 | 0x500, 0), None);
    assert_eq!(send(ASSERT | 3 << 18 | 0x608, 0), None);
    assert!(!apic.take_nmi());
    write(&mut apic, &mut bench, ICR_HIGH, 0);
    write(&mut apic, &mut bench, ICR, ASSERT | 0x400);
    assert!(apic.take_nmi());
    assert!(!apic.take_nmi());
}

/// 12.5.3.
#[test]
fn errors_are_read_after_a_write_and_interrupt() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, ERROR, 0xfe);
    write(&mut apic, &mut bench, ICR, 0x4000f);
    assert_eq!(apic.acknowledge(), 0xfe);
    assert_eq!(read(&mut apic, &mut bench, ESR), 0);
    write(&mut apic, &mut bench, ESR, 0);
    assert_eq!(read(&mut apic, &mut bench, ESR), 0x20, "send illegal vector");
    write(&mut apic, &mut bench, ESR, 0);
    assert_eq!(read(&mut apic, &mut bench, ESR), 0);
    apic.accept(Message::fixed(3, 0));
    write(&mut apic, &mut bench, 0x40, 0);
    read(&mut apic, &mut bench, 0x3f0);
    write(&mut apic, &mut bench, ESR, 0);
    assert_eq!(read(&mut apic, &mut bench, ESR), 0xc0, "received illegal vector, no such register");
    // An error interrupt whose own vector is illegal is an error, once.
    write(&mut apic, &mut bench, ERROR, 1);
    write(&mut apic, &mut bench, 0x40, 0);
    write(&mut apic, &mut bench, ESR, 0);
    assert_eq!(read(&mut apic, &mut bench, ESR), 0xc0);
}

/// 12.4.7.2.
#[test]
fn disabled_by_software_it_takes_no_interrupts_and_masks_its_own() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, LINT0, 0x700);
    apic.accept(Message::fixed(0x40, 0));
    write(&mut apic, &mut bench, SVR, 0xff);
    assert!(!apic.accept(Message::fixed(0x41, 0)));
    assert_eq!(read(&mut apic, &mut bench, LINT0), MASKED | 0x700);
    write(&mut apic, &mut bench, LINT0, 0x700);
    assert_eq!(read(&mut apic, &mut bench, LINT0), MASKED | 0x700);
    assert_eq!(apic.acknowledge(), 0x40, "what was requested before is held");
    assert!(apic.accept(Message { delivery: Delivery::Nmi, ..Message::fixed(0, 0) }));
    assert!(apic.take_nmi());
}

/// 12.4.3 and 12.4.4.
#[test]
fn the_base_register_moves_and_switches() {
    let (mut apic, mut bench) = enabled();
    apic.set_base(&mut bench.context(), 0xfed0_0900);
    assert_eq!(apic.address(), Some(0xfed0_0000));
    assert_eq!(read(&mut apic, &mut bench, SVR), 0x1ff, "it has only moved");
    write(&mut apic, &mut bench, INITIAL, 1000);
    write(&mut apic, &mut bench, TIMER, 0x40);
    apic.set_lint(LINT_INTR, true);
    apic.set_base(&mut bench.context(), 0xfee0_0100);
    assert_eq!((apic.address(), bench.timers.next()), (None, None));
    assert!(!apic.accept(Message::fixed(0x41, 0xff)));
    apic.set_base(&mut bench.context(), 0xfee0_0900);
    assert_eq!(read(&mut apic, &mut bench, SVR), 0xff, "as after power-on");
    write(&mut apic, &mut bench, SVR, 0x1ff);
    write(&mut apic, &mut bench, LINT0, 0x700);
    assert!(apic.external_requested(), "but for its pins");
}

/// Virtual wire mode: LINT0 brings the 8259A, LINT1 NMI.
/// 12.4.7.3.
#[test]
fn init_keeps_the_id_and_the_base() {
    let (mut apic, mut bench) = enabled();
    let base = 0xfef0_0000 | BASE_ENABLE | BASE_BSP;
    apic.set_base(&mut bench.context(), base);
    for (register, value) in [
        (ID, 0x0300_0000),
        (TPR, 0x10),
        (LDR, 0x0100_0000),
        (DFR, 0x0fff_ffff),
        (LINT0, 0x700),
        (TIMER, PERIODIC | 0x40),
        (INITIAL, 1000),
        (ICR_HIGH, 0x0300_0000),
    ] {
        write(&mut apic, &mut bench, register, value);
    }
    for vector in [0x51, 0x61] {
        assert!(apic.accept(Message::fixed(vector, 3)));
    }
    apic.acknowledge();
    apic.set_lint(LINT_INTR, true);
    assert!(apic.is_virtual_wire() && bench.timers.next().is_some());
    apic.init(&mut bench.context());
    let expected = LocalApic { base, id: 3, lint: [true, false], ..LocalApic::default() };
    assert_eq!(apic, expected);
    assert!(!apic.is_virtual_wire());
    assert_eq!(bench.timers.next(), None);
}

#[test]
fn pins_in_virtual_wire_mode() {
    let (mut apic, mut bench) = enabled();
    apic.set_lint(LINT_INTR, true);
    assert!(!apic.external_requested(), "masked");
    write(&mut apic, &mut bench, LINT0, 0x8700);
    write(&mut apic, &mut bench, TPR, 0xff);
    assert!(apic.external_requested(), "whatever the priority");
    apic.set_lint(LINT_INTR, false);
    assert!(!apic.external_requested());
    write(&mut apic, &mut bench, LINT1, 0x400);
    apic.set_lint(LINT_NMI, true);
    apic.set_lint(LINT_NMI, true);
    assert!(apic.take_nmi());
    assert!(!apic.take_nmi(), "an edge");
    apic.set_lint(9, true);
}

#[test]
fn a_pin_with_a_vector_of_its_own() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, LINT0, 0x38);
    apic.set_lint(LINT_INTR, true);
    assert_eq!(apic.acknowledge(), 0x38);
    write(&mut apic, &mut bench, EOI, 0);
    assert!(!apic.interrupt_requested(), "an edge");
    // As a level it comes again after each end, until it is low.
    write(&mut apic, &mut bench, LINT0, 0x8039);
    for _ in 0..2 {
        assert_eq!(read(&mut apic, &mut bench, LINT0), 0xc039, "remote IRR");
        assert_eq!(apic.acknowledge(), 0x39);
        assert!(!apic.interrupt_requested());
        write(&mut apic, &mut bench, EOI, 0);
    }
    assert_eq!(apic.acknowledge(), 0x39);
    apic.set_lint(LINT_INTR, false);
    write(&mut apic, &mut bench, EOI, 0);
    assert!(!apic.interrupt_requested());
    assert_eq!(read(&mut apic, &mut bench, LINT0), 0x8039);
}

#[test]
fn an_external_message_lasts_until_it_is_acknowledged() {
    let (mut apic, _) = enabled();
    assert!(apic.accept(Message { delivery: Delivery::ExtInt, ..Message::fixed(0, 0) }));
    assert!(apic.external_requested() && !apic.interrupt_requested());
    apic.external_acknowledged();
    assert!(!apic.external_requested());
}

#[test]
fn a_one_shot_timer_counts_down_once() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, TIMER, 0x40);
    for (divide, by) in [(0b1011, 1), (0, 2), (1, 4), (2, 8), (3, 16), (8, 32), (9, 64), (10, 128)]
    {
        write(&mut apic, &mut bench, DIVIDE, divide);
        assert_eq!(read(&mut apic, &mut bench, DIVIDE), divide);
        write(&mut apic, &mut bench, INITIAL, 1000);
        bench.advance(&mut apic, 400 * by);
        assert_eq!(read(&mut apic, &mut bench, CURRENT), 600, "by {by}");
        bench.advance(&mut apic, 600 * by - 1);
        assert!(!apic.interrupt_requested());
        bench.advance(&mut apic, 1);
        assert_eq!(apic.acknowledge(), 0x40);
        write(&mut apic, &mut bench, EOI, 0);
        assert_eq!(read(&mut apic, &mut bench, CURRENT), 0);
        assert_eq!(read(&mut apic, &mut bench, INITIAL), 1000);
        bench.advance(&mut apic, 10_000 * by);
        assert!(!apic.interrupt_requested());
    }
}

#[test]
fn a_periodic_timer_keeps_its_period() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, DIVIDE, DIVIDE_BY_1);
    write(&mut apic, &mut bench, TIMER, PERIODIC | 0x40);
    write(&mut apic, &mut bench, INITIAL, 1000);
    assert!(bench.timers.next_tick().is_some(), "software counts these");
    for _ in 0..3 {
        bench.advance(&mut apic, 999);
        assert!(!apic.interrupt_requested());
        bench.advance(&mut apic, 1);
        assert_eq!(apic.acknowledge(), 0x40);
        write(&mut apic, &mut bench, EOI, 0);
    }
    // Late by several periods: one interrupt, and the phase stays.
    bench.now = bench.now.plus_nanos(5250);
    bench.advance(&mut apic, 0);
    assert_eq!(read(&mut apic, &mut bench, CURRENT), 750);
    assert_eq!(apic.acknowledge(), 0x40);
    write(&mut apic, &mut bench, EOI, 0);
    bench.advance(&mut apic, 749);
    assert!(!apic.interrupt_requested());
    write(&mut apic, &mut bench, INITIAL, 0);
    assert_eq!(bench.timers.next(), None, "0 stops it");
}

#[test]
fn a_masked_timer_counts_without_waking_the_machine() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, DIVIDE, DIVIDE_BY_1);
    write(&mut apic, &mut bench, TIMER, MASKED | PERIODIC | 0x40);
    write(&mut apic, &mut bench, INITIAL, 1000);
    assert_eq!(bench.timers.next(), None);
    bench.advance(&mut apic, 2100);
    assert_eq!(read(&mut apic, &mut bench, CURRENT), 900);
    write(&mut apic, &mut bench, TIMER, PERIODIC | 0x40);
    assert!(!apic.interrupt_requested(), "what was missed is lost");
    bench.advance(&mut apic, 900);
    assert!(apic.interrupt_requested());
}

#[test]
fn the_divider_can_change_while_the_timer_counts() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, DIVIDE, DIVIDE_BY_1);
    write(&mut apic, &mut bench, TIMER, 0x40);
    write(&mut apic, &mut bench, INITIAL, 1000);
    bench.advance(&mut apic, 500);
    write(&mut apic, &mut bench, DIVIDE, 0b1010);
    bench.advance(&mut apic, 128 * 499);
    assert_eq!(read(&mut apic, &mut bench, CURRENT), 1);
    bench.advance(&mut apic, 128);
    assert!(apic.interrupt_requested());
}

#[test]
fn only_whole_registers_can_be_written() {
    let (mut apic, mut bench) = enabled();
    write(&mut apic, &mut bench, LDR, 0x8765_4321);
    assert_eq!(read(&mut apic, &mut bench, LDR), 0x8700_0000);
    apic.write_memory(&mut bench.context(), 0, LDR, Width::Byte, 1);
    apic.write_memory(&mut bench.context(), 0, LDR + 4, Width::Dword, 1);
    assert_eq!(apic.read_memory(&mut bench.context(), 0, LDR + 3, Width::Byte), 0x87);
    assert_eq!(apic.read_memory(&mut bench.context(), 0, LDR + 4, Width::Dword), 0);
}

#[test]
fn impossible_states_are_refused() {
    let mut apic = LocalApic::default();
    let mut illegal = VectorSet::default();
    illegal.set(15, true);
    for state in [
        LocalApic { spurious: 0x400, ..LocalApic::default() },
        LocalApic { destination_format: 0x10, ..LocalApic::default() },
        LocalApic { in_service: illegal, ..LocalApic::default() },
        LocalApic { lvt: [LVT_REMOTE_IRR; LVT_ENTRIES], ..LocalApic::default() },
    ] {
        let saved = SavedState::new(DeviceId::LOCAL_APIC.name(), VERSION, &state);
        assert!(matches!(apic.restore(&saved), Err(RestoreError::Damaged { .. })));
    }
    assert_eq!(apic, LocalApic::default());
}

const REGISTERS: &[u64] = &[
    ID, TPR, APR, PPR, EOI, LDR, DFR, SVR, SVR, ISR, TMR, IRR, ESR, ICR, ICR, ICR_HIGH, TIMER,
    TIMER, 0x330, LINT0, LINT1, ERROR, INITIAL, INITIAL, CURRENT, DIVIDE, 0x3f0,
];

proptest! {
    #[test]
    fn survives_everything(blows in memory_blows(REGISTERS)) {
        let (mut apic, _) = enabled();
        hammer(&mut apic, &mut LocalApic::default(), blows);
    }

    /// Interrupts come in any order, the processor takes and ends them: none gets lost, and the classes
    /// of those in service never fall.
    #[test]
    fn every_request_is_served(vectors in prop::collection::vec(16u8..=255, 1..60)) {
        let (mut apic, mut bench) = enabled();
        let mut served = [false; 256];
        let mut in_service: Vec<u8> = Vec::new();
        for vector in &vectors {
            apic.accept(Message::fixed(*vector, 0));
            if apic.interrupt_requested() {
                let taken = apic.acknowledge();
                prop_assert!(in_service.last().is_none_or(|last| taken >> 4 > last >> 4));
                served[usize::from(taken)] = true;
                in_service.push(taken);
            }
        }
        while !in_service.is_empty() {
            write(&mut apic, &mut bench, EOI, 0);
            in_service.pop();
            if apic.interrupt_requested() {
                let taken = apic.acknowledge();
                served[usize::from(taken)] = true;
                in_service.push(taken);
            }
        }
        prop_assert!(vectors.iter().all(|vector| served[usize::from(*vector)]));
        prop_assert_eq!(read(&mut apic, &mut bench, PPR), 0);
    }
}
