//! The processor's accesses to the planes.

use super::*;

#[test]
fn the_window_is_where_the_memory_map_says() {
    let mut machine = Machine::with(&MODE_12);
    for (map, first, last, outside) in [
        (0, 0xa0000, 0xaffff, 0xc0000),
        (1, 0xa0000, 0xaffff, 0xb0000),
        (2, 0xb0000, 0xb7fff, 0xaffff),
        (3, 0xb8000, 0xbffff, 0xb7fff),
    ] {
        machine.write_graphics(6, map << 2 | 1);
        machine.poke(first, 0x11 + map);
        machine.poke(last, 0x22);
        assert_eq!(machine.planes(0), [0x11 + map; 4]);
        if outside < 0xc0000 {
            machine.poke(outside, 0x99);
            assert_eq!(machine.peek(outside), 0xff);
        }
        assert_eq!((machine.peek(first), machine.peek(last)), (0x11 + map, 0x22));
    }
    machine.write(0x3c2, 0xe1);
    machine.poke(0xb8000, 0x77);
    assert_eq!(machine.peek(0xb8000), 0xff, "memory is disabled");
    assert_eq!(machine.planes(0), [0x14; 4]);
}

#[test]
fn write_mode_0_rotates_sets_combines_and_masks() {
    let mut machine = Machine::with(&MODE_12);
    machine.set_planes(5, [0x0f, 0xf0, 0xaa, 0x55]);
    assert_eq!(machine.peek(0xa0005), 0x0f);
    // Planes 0 and 2 take set/reset (1 and 0), the others the rotated byte; bits 7:4 only.
    machine.write_graphics(0, 0b0001);
    machine.write_graphics(1, 0b0101);
    machine.write_graphics(3, 0x04);
    machine.write_graphics(8, 0xf0);
    machine.poke(0xa0005, 0x3c);
    assert_eq!(machine.planes(5), [0xff, 0xc0, 0x0a, 0xc5]);
    // The map mask keeps planes as they are.
    machine.write_sequencer(2, 0b0010);
    machine.write_graphics(1, 0);
    machine.write_graphics(3, 0);
    machine.write_graphics(8, 0xff);
    machine.poke(0xa0005, 0x81);
    assert_eq!(machine.planes(5), [0xff, 0x81, 0x0a, 0xc5]);
}

#[test]
fn functions_combine_data_with_the_latches() {
    for (function, result) in [(0, 0x3c), (1, 0x3c & 0x66), (2, 0x3c | 0x66), (3, 0x3c ^ 0x66)] {
        let mut machine = Machine::with(&MODE_12);
        machine.set_planes(0, [0x66; 4]);
        machine.peek(0xa0000);
        machine.write_graphics(3, function << 3);
        machine.poke(0xa0001, 0x3c);
        assert_eq!(machine.planes(1), [result; 4]);
    }
}

#[test]
fn write_mode_1_copies_the_latches() {
    let mut machine = Machine::with(&MODE_12);
    machine.set_planes(0x10, [1, 2, 3, 4]);
    machine.write_graphics(5, 1);
    machine.write_graphics(8, 0);
    machine.peek(0xa0010);
    machine.poke(0xa8000, 0xff);
    assert_eq!(machine.planes(0x8000), [1, 2, 3, 4]);
}

#[test]
fn write_mode_2_writes_a_colour() {
    let mut machine = Machine::with(&MODE_12);
    machine.write_graphics(5, 2);
    machine.write_graphics(8, 0x18);
    machine.poke(0xa0000, 0b0110);
    assert_eq!(machine.planes(0), [0, 0x18, 0x18, 0]);
}

#[test]
fn write_mode_3_masks_with_the_byte() {
    let mut machine = Machine::with(&MODE_12);
    machine.set_planes(0, [0x80, 0x80, 0, 0]);
    machine.peek(0xa0000);
    machine.write_graphics(5, 3);
    machine.write_graphics(0, 0b0101);
    machine.write_graphics(3, 1);
    machine.write_graphics(8, 0x7e);
    machine.poke(0xa0000, 0x1f);
    // 1Fh rotated is 8Fh, and with the mask 0Eh.
    assert_eq!(machine.planes(0), [0x8e, 0x80, 0x0e, 0]);
}

#[test]
fn read_mode_1_compares_the_planes_that_matter() {
    let mut machine = Machine::with(&MODE_12);
    machine.set_planes(0, [0xf0, 0xcc, 0xaa, 0x00]);
    machine.write_graphics(5, 8);
    machine.write_graphics(2, 0b0101);
    machine.write_graphics(7, 0b1111);
    assert_eq!(machine.peek(0xa0000), 0xf0 & !0xcc & 0xaa);
    machine.write_graphics(7, 0b0001);
    assert_eq!(machine.peek(0xa0000), 0xf0);
    machine.write_graphics(7, 0);
    assert_eq!(machine.peek(0xa0000), 0xff);
}

#[test]
fn read_mode_0_selects_a_plane() {
    let mut machine = Machine::with(&MODE_12);
    machine.set_planes(9, [1, 2, 3, 4]);
    for plane in 0..4 {
        machine.write_graphics(4, plane);
        assert_eq!(machine.peek(0xa0009), plane + 1);
    }
}

#[test]
fn text_modes_have_characters_and_attributes_in_turn() {
    let mut machine = Machine::with(&TEXT);
    let context = &mut machine.bench.context();
    machine.vga.write_memory(context, WINDOW, 0x18002, Width::Dword, 0x1742_0741);
    assert_eq!(machine.planes(2)[..2], [0x41, 0x07]);
    assert_eq!(machine.planes(4)[..2], [0x42, 0x17]);
    assert_eq!((machine.planes(3), machine.planes(5)), ([0; 4], [0; 4]));
    let context = &mut machine.bench.context();
    let read = machine.vga.read_memory(context, WINDOW, 0x18002, Width::Dword);
    assert_eq!(read, 0x1742_0741);
    // The BIOS loads fonts into plane 2, without odd/even addressing.
    machine.write_sequencer(2, 0x04);
    machine.write_sequencer(4, 0x06);
    machine.write_graphics(5, 0x00);
    machine.write_graphics(6, 0x04);
    machine.poke(0xa0821, 0x3c);
    assert_eq!(machine.planes(0x821), [0, 0, 0x3c, 0]);
}

#[test]
fn chain_4_is_the_planes_in_turn() {
    let mut machine = Machine::with(&MODE_13);
    for (address, value) in [(0xa0000, 1), (0xa0001, 2), (0xa0006, 3), (0xaffff, 4)] {
        machine.poke(address, value);
        assert_eq!(machine.peek(address), value);
    }
    let direct = [machine.planes(0), machine.planes(4), machine.planes(0xfffc)];
    assert_eq!(direct, [[1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 4]]);
    // With a map mask the processor's accesses come to the adapter, and find the same.
    machine.write_sequencer(2, 0x0e);
    machine.poke(0xa0000, 9);
    machine.poke(0xa0001, 9);
    assert_eq!((machine.peek(0xa0000), machine.peek(0xa0001)), (1, 9));
    assert_eq!(machine.planes(0), [1, 9, 0, 0]);
    assert_eq!(machine.peek(0xaffff), 4);
}

#[test]
fn mode_13h_is_memory_for_the_processor() {
    use ring3_core::memory::Target;
    let mut machine = Machine::with(&MODE_13);
    assert_ne!(machine.bench.memory.write_target(0xa0000), Target::Device);
    assert_eq!(machine.bench.memory.write_target(0xb0000), Target::Device);
    for (index, value) in [(1, 1), (3, 1), (5, 0x41), (8, 0xfe), (6, 1)] {
        let plain = MODE_13.graphics[usize::from(index)];
        machine.write_graphics(index, value);
        assert_eq!(machine.bench.memory.write_target(0xa0000), Target::Device, "{index}");
        machine.write_graphics(index, plain);
        assert_ne!(machine.bench.memory.write_target(0xa0000), Target::Device, "{index}");
    }
    machine.set(&TEXT);
    assert_eq!(machine.bench.memory.read_target(0xa0000), Target::Device);
}

#[test]
fn places_are_different_and_in_order_for_chain_4() {
    let mut places: Vec<u64> = (0..0x2_0000).map(planar::place).collect();
    for offset in (0..0x1_0000).step_by(4) {
        assert_eq!(places[offset], offset as u64);
    }
    places.sort_unstable();
    let expected: Vec<u64> = (0..0x2_0000).map(|index| 4 * index).collect();
    assert_eq!(places, expected);
}
