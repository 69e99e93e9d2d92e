//! The processor's accesses to the planes.

use ring3_core::memory::Target;

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

/// Whether the processor reaches the byte at `address` by itself, for reads and for writes alike.
fn is_mapped(machine: &Machine, address: u64) -> bool {
    let memory = &machine.bench.memory;
    let (read, write) = (memory.read_target(address), memory.write_target(address));
    assert_eq!(read, write, "{address:#x}");
    matches!(read, Target::Place(_))
}

#[test]
fn text_is_memory_for_the_processor() {
    let mut machine = Machine::with(&TEXT);
    let mapped = |machine: &Machine| {
        [0xa0000, 0xaffff, 0xb0000, 0xb7fff, 0xb8000, 0xbffff]
            .map(|address| is_mapped(machine, address))
    };
    let colour = [false, false, false, false, true, true];
    assert_eq!(mapped(&machine), colour);
    // Registers with which an access does anything else, or with which it goes elsewhere.
    for (index, value) in [(1, 1), (3, 1), (3, 8), (5, 0x11), (5, 0x18), (5, 0), (6, 0x0c), (8, 0)]
    {
        let plain = TEXT.graphics[usize::from(index)];
        machine.write_graphics(index, value);
        assert_eq!(mapped(&machine), [false; 6], "graphics {index} {value:#x}");
        machine.write_graphics(index, plain);
        assert_eq!(mapped(&machine), colour, "graphics {index} {value:#x}");
    }
    for (index, value) in [(2, 7), (2, 1), (2, 0xf), (4, 6), (4, 0x0a)] {
        machine.write_sequencer(index, value);
        assert_eq!(mapped(&machine), [false; 6], "sequencer {index} {value:#x}");
        machine.write_sequencer(index, TEXT.sequencer[usize::from(index)]);
        assert_eq!(mapped(&machine), colour, "sequencer {index} {value:#x}");
    }
    for plane in 0..4 {
        machine.write_graphics(4, plane);
        assert_eq!(is_mapped(&machine, 0xb8000), plane < 2, "plane {plane}");
    }
    machine.write_graphics(4, 0);
    machine.write(0x3c2, TEXT.miscellaneous & !2);
    assert_eq!(mapped(&machine), [false; 6], "memory is disabled");
    machine.write(0x3c2, TEXT.miscellaneous);
    // The monochrome adapter's place.
    machine.write_graphics(6, 0x0a);
    assert_eq!(mapped(&machine), [false, false, true, true, false, false]);
    for (index, value) in [(1, 640), (2, 480), (3, 4), (4, 0x81)] {
        machine.write_dispi(index, value);
    }
    assert_eq!(mapped(&machine), [false; 6], "a planar mode with banks");
    machine.write_dispi(4, 0);
    assert!(is_mapped(&machine, 0xb0000));
    machine.set(&MODE_4);
    assert_eq!(mapped(&machine), colour, "the CGA's graphics");
    machine.set(&MODE_13);
    assert_eq!(mapped(&machine), [true, true, false, false, false, false]);
    machine.set(&TEXT);
    machine.vga.reset(&mut machine.bench.context());
    assert_eq!(mapped(&machine), [false; 6]);
}

#[test]
fn planes_keep_their_bytes_when_text_becomes_memory_and_when_it_does_not_any_more() {
    let mut machine = Machine::with(&MODE_12);
    let bytes = |offset: u32| [0, 1, 2, 3].map(|plane| (offset * 7 + (offset >> 8) + plane) as u8);
    for offset in 0..0x1_0000 {
        machine.set_planes(offset, bytes(offset));
    }
    let check = |machine: &Machine| {
        let is_kept = |offset: &u32| machine.planes(*offset) == bytes(*offset);
        assert_eq!((0..0x1_0000).find(|offset| !is_kept(offset)), None);
    };
    for mode in [&TEXT, &MODE_13, &TEXT, &MODE_6, &MODE_4, &MODE_12] {
        machine.set(mode);
        check(&machine);
    }
    machine.set(&TEXT);
    for address in 0..0x8000_u32 {
        let expected = bytes(address & !1)[address as usize & 1];
        assert_eq!(machine.peek(0xb8000 + u64::from(address)), expected, "{address:#x}");
    }
    // A reset keeps video memory, too.
    machine.vga.reset(&mut machine.bench.context());
    check(&machine);
}

#[test]
fn a_saved_text_mode_continues_where_it_was() {
    let mut machine = Machine::with(&TEXT);
    machine.poke(0xb8004, 0x41);
    let state = machine.vga.save();
    machine.vga = Vga::new(machine.video, machine.vga.rom);
    machine.vga.restore(&state).unwrap();
    assert_eq!(machine.planes(4), [0x41, 0, 0, 0]);
    machine.set(&MODE_12);
    assert_eq!(machine.planes(4), [0x41, 0, 0, 0]);
    assert!(!is_mapped(&machine, 0xb8000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the registers are, an access that the processor makes by itself finds and leaves what one that
    /// the adapter makes does.
    #[test]
    fn mapped_accesses_are_the_same(
        writes in prop::collection::vec(
            (any::<bool>(), 0_u8..9, any::<u8>(), 0_u64..0x2_0000, any::<u8>()),
            1..60,
        ),
    ) {
        let mut machines = [Machine::with(&TEXT), Machine::with(&TEXT)];
        for (is_sequencer, index, value, offset, byte) in writes {
            for machine in &mut machines {
                match is_sequencer {
                    true => machine.write_sequencer(2 + index % 3, value),
                    // Mostly a value with which something is mapped.
                    false if value < 0x80 => machine.write_graphics(index, TEXT.graphics[usize::from(index)]),
                    false => machine.write_graphics(index, value),
                }
                if value & 1 == 0 {
                    machine.set(&TEXT);
                }
            }
            let [mapped, called] = &mut machines;
            mapped.poke(WINDOW_START + offset, byte);
            let context = &mut called.bench.context();
            called.vga.write_memory(context, WINDOW, offset, Width::Byte, byte.into());
            let found = mapped.peek(WINDOW_START + offset);
            let context = &mut called.bench.context();
            let expected = called.vga.read_memory(context, WINDOW, offset, Width::Byte);
            prop_assert_eq!(u32::from(found), expected);
            // The mapped access has left the latches as they were.
            mapped.vga.state.latches = called.vga.state.latches;
        }
        let [mapped, called] = &machines;
        let all = |machine: &Machine| (0..0x1_0000).map(|at| machine.planes(at)).collect::<Vec<_>>();
        prop_assert!(all(mapped) == all(called));
    }
}

#[test]
fn places_are_different_and_in_order_for_the_processor() {
    for arrangement in [Arrangement::Chain4, Arrangement::OddEven] {
        let mut places: Vec<u64> =
            (0..0x2_0000).flat_map(|offset| arrangement.places(offset)).collect();
        places.sort_unstable();
        let expected: Vec<u64> = (0..0x4_0000).map(|index| 2 * index).collect();
        assert_eq!(places, expected);
    }
    for offset in (0..0x1_0000).step_by(4) {
        let at = u64::from(offset);
        assert_eq!(Arrangement::Chain4.places(offset), [at, at + 2]);
    }
    for offset in (0..0x8000).step_by(2) {
        assert_eq!(Arrangement::OddEven.places(offset)[0], u64::from(offset));
    }
}
