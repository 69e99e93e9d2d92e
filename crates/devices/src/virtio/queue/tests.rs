use proptest::prelude::*;
use ring3_core::device::TestBench;
use ring3_core::memory::Backing;

use super::super::driver::{BUFFERS, Buffer, INDIRECT, NEXT, Ring, WRITE};
use super::*;

fn segment(address: u64, len: u32) -> Segment {
    Segment { address, len }
}

/// What comes of a chain whose descriptors are given as they are.
fn pop_raw(descriptors: &[(u64, u32, u16, u16)], indirect: bool) -> (Option<Chain>, Queue) {
    let (mut bench, mut ring) = (TestBench::default(), Ring::new(8));
    for (index, descriptor) in (0..).zip(descriptors) {
        Ring::describe(&mut bench.memory, ring.areas.descriptors, index, *descriptor);
    }
    ring.offer(&mut bench.memory, 0);
    let mut queue = ring.queue(&bench.memory, indirect, false);
    (queue.pop(&mut bench.memory), queue)
}

#[test]
fn chains_are_taken_in_their_order_and_given_back_in_any() {
    let (mut bench, mut ring) = (TestBench::default(), Ring::new(4));
    let mut queue = ring.queue(&bench.memory, false, false);
    assert_eq!(queue.pop(&mut bench.memory), None);
    // More often than the ring has entries.
    for round in 0..10 {
        let first = ring.add(&mut bench, &[(0x100, 16, false), (0x200, 0, false)]);
        let second = ring.add(&mut bench, &[(0x300, 1, false), (u64::MAX, 2, true)]);
        let chain = queue.pop(&mut bench.memory).unwrap();
        assert_eq!((chain.head, chain.readable), (first, vec![segment(0x100, 16)]));
        let chain = queue.pop(&mut bench.memory).unwrap();
        assert_eq!((chain.head, chain.writable), (second, vec![segment(u64::MAX, 2)]));
        assert_eq!(queue.pop(&mut bench.memory), None);
        queue.push(&mut bench.memory, second, 2);
        queue.push(&mut bench.memory, first, round);
        assert_eq!(ring.used(&bench.memory), Some((second.into(), 2)));
        assert_eq!(ring.used(&bench.memory), Some((first.into(), round)));
        assert_eq!(ring.used(&bench.memory), None);
    }
    assert!(!queue.is_broken());
}

#[test]
fn an_indirect_table_stands_for_the_chain() {
    let (mut bench, mut ring) = (TestBench::default(), Ring::new(2));
    // It may have more descriptors than the queue.
    for index in 0..4 {
        let flags = if index == 3 { WRITE } else { NEXT };
        let descriptor = (0x100 * u64::from(index), 8, flags, index + 1);
        Ring::describe(&mut bench.memory, 0x8000, index, descriptor);
    }
    Ring::describe(&mut bench.memory, ring.areas.descriptors, 0, (0x8000, 64, INDIRECT, 0));
    ring.offer(&mut bench.memory, 0);
    let mut queue = ring.queue(&bench.memory, true, false);
    let chain = queue.pop(&mut bench.memory).unwrap();
    assert_eq!(chain.readable, [segment(0, 8), segment(0x100, 8), segment(0x200, 8)]);
    assert_eq!(chain.writable, [segment(0x300, 8)]);
    // A driver that did not say that it would do so must not.
    let mut queue = ring.queue(&bench.memory, false, false);
    assert_eq!(queue.pop(&mut bench.memory), None);
    assert!(queue.is_broken());
}

#[test]
fn invalid_chains_break_the_queue() {
    let data = (0x100, 8, 0, 0);
    for (name, descriptors) in [
        ("a loop", vec![(0x100, 8, NEXT, 1), (0x100, 8, NEXT, 0)]),
        ("a descriptor beyond the table", vec![(0x100, 8, NEXT, 8)]),
        ("readable after writable", vec![(0x100, 8, NEXT | WRITE, 1), data]),
        ("more than 4 GiB", vec![(0x100, u32::MAX, NEXT, 1), data]),
        ("a table with a next", vec![(0x8000, 16, INDIRECT | NEXT, 1), data]),
        ("an empty table", vec![(0x8000, 0, INDIRECT, 0)]),
        ("a table of parts", vec![(0x8000, 24, INDIRECT, 0)]),
        ("a table without an end", vec![(0x8000, !15, INDIRECT, 0)]),
        // The table of descriptors is at 0x1000 itself.
        ("a table in a table", vec![(0x1000, 16, INDIRECT, 0)]),
        ("a table of FFh", vec![(1 << 40, 16, INDIRECT, 0)]),
    ] {
        let (chain, queue) = pop_raw(&descriptors, true);
        assert_eq!((chain, queue.is_broken()), (None, true), "{name}");
    }
    let (chain, queue) = pop_raw(&[data], true);
    assert!(chain.is_some() && !queue.is_broken());
}

#[test]
fn a_broken_queue_stops() {
    let (mut bench, mut ring) = (TestBench::default(), Ring::new(4));
    let mut queue = ring.queue(&bench.memory, false, false);
    ring.add(&mut bench, &[(0x100, 16, false)]);
    // An index that is further ahead than the queue is long.
    bench.memory.write(ring.areas.available + 2, &5_u16.to_le_bytes());
    assert_eq!(queue.pop(&mut bench.memory), None);
    assert!(queue.is_broken());
    bench.memory.write(ring.areas.available + 2, &1_u16.to_le_bytes());
    assert_eq!(queue.pop(&mut bench.memory), None);
    queue.push(&mut bench.memory, 0, 0);
    assert_eq!(ring.used(&bench.memory), None);
    assert!(!queue.take_interrupt(&bench.memory));
}

#[test]
fn rings_that_are_not_in_memory_are_refused() {
    let mut bench = TestBench::default();
    bench.memory.map(0xf_0000, 0x1_0000, Backing::Ram, Backing::Nothing).unwrap();
    let good = Ring::new(8).areas;
    for areas in [
        Areas { descriptors: 0x1008, ..good },
        Areas { available: 0x3001, ..good },
        Areas { used: 0x4002, ..good },
        Areas { descriptors: !15, ..good },
        Areas { available: (1 << 20) - 2, ..good },
        Areas { used: 1 << 32, ..good },
        // In ROM.
        Areas { used: 0xf_8000, ..good },
    ] {
        let mut queue = Ring::at(areas, 8).queue(&bench.memory, false, false);
        assert!(queue.is_broken(), "{areas:x?}");
        assert_eq!(queue.pop(&mut bench.memory), None);
    }
    assert!(!Ring::at(good, 8).queue(&bench.memory, false, false).is_broken());
}

#[test]
fn a_legacy_queue_is_in_pages() {
    let areas = Areas::legacy(3, 256);
    let expected = Areas { descriptors: 0x3000, available: 0x4000, used: 0x5000 };
    assert_eq!(areas, expected);
    assert_eq!(Areas::legacy(0xffff_ffff, 8).descriptors, 0xfff_ffff_f000);
}

#[test]
fn without_an_event_index_flags_enable_notifications() {
    let (mut bench, mut ring) = (TestBench::default(), Ring::new(4));
    let mut queue = ring.queue(&bench.memory, false, false);
    queue.hold_notifications(&mut bench.memory);
    assert_eq!(ring.used_flags(&bench.memory), USED_NO_NOTIFY);
    let head = ring.add(&mut bench, &[(0x100, 16, false)]);
    assert!(queue.pop(&mut bench.memory).is_some());
    assert_eq!(ring.used_flags(&bench.memory), USED_NO_NOTIFY);
    assert_eq!(queue.pop(&mut bench.memory), None);
    assert_eq!(ring.used_flags(&bench.memory), 0);
    assert!(!queue.take_interrupt(&bench.memory), "nothing was given back");
    queue.push(&mut bench.memory, head, 0);
    assert!(queue.take_interrupt(&bench.memory));
    assert!(!queue.take_interrupt(&bench.memory), "once is enough");
    ring.set_available_flags(&mut bench.memory, AVAILABLE_NO_INTERRUPT);
    queue.push(&mut bench.memory, head, 0);
    assert!(!queue.take_interrupt(&bench.memory));
    queue.call();
    assert!(queue.take_interrupt(&bench.memory));
}

#[test]
fn with_an_event_index_places_in_the_rings_enable_notifications() {
    let (mut bench, mut ring) = (TestBench::default(), Ring::new(4));
    let mut queue = ring.queue(&bench.memory, false, true);
    // The driver wants an interrupt for the third chain.
    ring.set_used_event(&mut bench.memory, 2);
    for (given_back, interrupts) in [(1, false), (2, false), (3, true), (4, false)] {
        let head = ring.add(&mut bench, &[(0x100, 16, false)]);
        assert!(queue.pop(&mut bench.memory).is_some());
        assert_eq!(queue.pop(&mut bench.memory), None);
        assert_eq!(ring.available_event(&bench.memory), given_back, "the next one is told of");
        queue.push(&mut bench.memory, head, 0);
        assert_eq!(queue.take_interrupt(&bench.memory), interrupts, "{given_back}");
    }
    // Several at once that pass the place.
    ring.set_used_event(&mut bench.memory, 5);
    for _ in 0..3 {
        queue.push(&mut bench.memory, 0, 0);
    }
    assert!(queue.take_interrupt(&bench.memory));
}

#[test]
fn a_queue_in_use_stays_where_it_is() {
    let mut queue = Queue::new(256);
    for (size, now) in [(0, 256), (3, 256), (512, 256), (64, 64), (128, 128)] {
        queue.set_size(size);
        assert_eq!(queue.size(), now);
    }
    let areas = Areas { descriptors: 0x1000, available: 0x2000, used: 0x3000 };
    queue.set_areas(areas);
    queue.enable();
    queue.set_size(64);
    queue.set_areas(Areas::default());
    assert_eq!((queue.size(), queue.areas()), (128, areas));
}

/// Bytes that are often small numbers, so that descriptors and indices mean something.
fn ring_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => Just(0_u8), 3 => 0..8_u8, 1 => any::<u8>()];
    proptest::collection::vec(byte, 0..512)
}

proptest! {
    /// Whatever is in memory, a queue takes no more than it may, and comes to an end.
    #[test]
    fn any_rings(
        places in proptest::collection::vec((0..0x400_u64, ring_bytes()), 1..6),
        areas in (0..0x40_u64, 0..0x400_u64, 0..0x200_u64),
        size in (0..4_u32).prop_map(|bits| 1 << bits),
        indirect: bool,
        event_index: bool,
        buffer: Buffer,
    ) {
        let mut bench = TestBench::default();
        for (place, bytes) in places {
            bench.memory.write(place, &bytes);
        }
        let (descriptors, available, used) = (16 * areas.0, 2 * areas.1, 4 * areas.2);
        let mut ring = Ring::at(Areas { descriptors, available, used }, size);
        let mut queue = ring.queue(&bench.memory, indirect, event_index);
        for _ in 0..20 {
            let Some(chain) = queue.pop(&mut bench.memory) else { break };
            let segments = chain.readable.iter().chain(&chain.writable);
            let total: u64 = segments.clone().map(|segment| u64::from(segment.len)).sum();
            prop_assert!(segments.count() <= CHAIN_MAX as usize);
            prop_assert!(u32::try_from(total).is_ok());
            queue.push(&mut bench.memory, chain.head, 1);
            queue.take_interrupt(&bench.memory);
        }
        ring.add(&mut bench, &[(BUFFERS, 1, false), buffer]);
        queue.hold_notifications(&mut bench.memory);
        queue.pop(&mut bench.memory);
    }
}
