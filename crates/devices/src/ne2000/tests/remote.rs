//! The data port.

use super::*;

#[test]
fn a_transfer_of_nothing_is_complete() {
    for command in [0x0a, 0x12] {
        let mut driven = Driven::started();
        driven.begin(command, 0x4000, 0);
        assert_eq!(driven.interrupts(), 0x40);
        assert_eq!(driven.data(Width::Word), 0xffff);
    }
}

#[test]
fn bytes_words_and_double_words_move_as_they_are() {
    let mut driven = Driven::started();
    driven.begin(0x12, 0x4000, 8);
    driven.write_data(Width::Dword, 0x0403_0201);
    driven.write_data(Width::Word, 0x0605);
    assert_eq!([0x8, 0x9].map(|register| driven.read(register)), [0x06, 0x40]);
    assert_eq!(driven.interrupts(), 0);
    driven.write_data(Width::Byte, 0x07);
    assert_eq!(driven.interrupts(), 0x40, "a word, whatever the access was");
    driven.write_data(Width::Word, 0xeeee);
    driven.begin(0x0a, 0x4000, 7);
    assert_eq!(driven.data(Width::Dword), 0x0403_0201);
    assert_eq!(driven.data(Width::Dword), 0x0007_0605, "the last byte brings a word");
    assert_eq!((driven.interrupts(), driven.data(Width::Dword)), (0x40, 0xffff_ffff));
    // In byte mode, a wider access has the result that it has on a bus of 16 bits.
    driven.write(DATA, 0x48);
    driven.begin(0x0a, 0x4000, 6);
    let widths = [Width::Byte, Width::Word, Width::Dword];
    assert_eq!(widths.map(|width| driven.data(width)), [0x01, 0x02, 0x0004_0003]);
}

#[test]
fn another_command_ends_a_transfer() {
    let mut driven = Driven::started();
    driven.begin(0x0a, 0x4000, 8);
    driven.write(COMMAND, 0x22);
    assert_eq!((driven.data(Width::Word), driven.interrupts()), (0xffff, 0));
}

#[test]
fn where_no_memory_is_nothing_is_kept() {
    let mut driven = Driven::started();
    for address in [0x0000, 0x0020, 0x3ffe, 0x8000, 0xfffe] {
        let before = driven.get(address, 2);
        driven.put(address, &[0x12, 0x34]);
        assert_eq!(driven.get(address, 2), before, "{address:x}");
    }
    assert_eq!(driven.get(0x3ffe, 4), [0xff, 0xff, 0, 0]);
    driven.write(PAGE_STOP, 0);
    assert_eq!(driven.get(0x7ffe, 4), [0, 0, 0xff, 0xff]);
}

#[test]
fn send_packet_reads_the_oldest_packet() {
    let mut driven = Driven::started();
    // The boundary is the page of the first packet here.
    driven.write(BOUNDARY, RING.0 + 1);
    let frames = [frame(OURS.0, 60), frame(OURS.0, 400)];
    for frame in &frames {
        driven.receive(frame.clone());
    }
    driven.interrupts();
    for (frame, next) in frames.iter().zip([0x48, 0x4a]) {
        driven.write(COMMAND, 0x1a);
        let words = (0..frame.len() / 2 + 2).map(|_| driven.data(Width::Word) as u16);
        let bytes: Vec<_> = words.flat_map(u16::to_le_bytes).collect();
        assert_eq!(
            bytes[..4],
            [0x01, next, (frame.len() + 4) as u8, ((frame.len() + 4) >> 8) as u8]
        );
        assert_eq!(bytes[4..], *frame);
        assert_eq!((driven.interrupts(), driven.read(BOUNDARY)), (0x40, next));
    }
    // With auto-initialize, all of them one after the other.
    driven.write(DATA, 0x59);
    for frame in &frames {
        driven.receive(frame.clone());
    }
    driven.write(COMMAND, 0x1a);
    for frame in &frames {
        let bytes =
            (0..frame.len() / 2 + 2).flat_map(|_| (driven.data(Width::Word) as u16).to_le_bytes());
        assert_eq!(bytes.skip(4).collect::<Vec<_>>(), *frame);
    }
    assert_eq!(driven.data(Width::Word), 0xffff);
    assert_eq!(driven.read(BOUNDARY), driven.current());
}

proptest! {
    #[test]
    fn strings_are_single_accesses(
        words: bool,
        reads: bool,
        address in prop_oneof![0_u16..0x60, 0x3fe0..0x4020_u16, 0x7e00..0x8010_u16, any::<u16>()],
        count in prop_oneof![0..9_u16, 0..2000_u16],
        ring in prop_oneof![Just((0x46, 0x80)), Just((0x46, 0x7f)), Just((0x40, 0x40)), any::<(u8, u8)>()],
        accesses in proptest::collection::vec((0..3_usize, 0..700_usize), 1..20),
        data in proptest::collection::vec(any::<u8>(), 4096),
    ) {
        let [mut one, mut many] = [Driven::started(), Driven::started()];
        for driven in [&mut one, &mut many] {
            driven.put(0x4000, &data);
            driven.put(0x7000, &data);
            driven.write(DATA, if words { 0x49 } else { 0x48 });
            driven.write(PAGE_START, ring.0);
            driven.write(PAGE_STOP, ring.1);
            driven.begin(if reads { 0x0a } else { 0x12 }, address, count);
        }
        for (width, most) in accesses {
            let width = [Width::Byte, Width::Word, Width::Dword][width];
            let size = usize::from(width.bytes());
            let mut bytes = data[..most * size].to_vec();
            let moved = if reads {
                many.card.read_port_string(PORT + DATA_PORT, width, &mut bytes)
            } else {
                many.card.write_port_string(PORT + DATA_PORT, width, &bytes)
            };
            prop_assert!(moved <= most);
            for element in bytes.chunks_exact(size).take(moved) {
                let value = element.iter().rfold(0, |value, byte| value << 8 | u32::from(*byte));
                if reads {
                    prop_assert_eq!(one.data(width), value);
                } else {
                    one.write_data(width, value);
                }
            }
            prop_assert_eq!(one.card.save(), many.card.save());
            let alone = [&mut one, &mut many].map(|driven| {
                if reads {
                    driven.data(width)
                } else {
                    driven.write_data(width, 0x1234_5678);
                    0
                }
            });
            prop_assert_eq!(alone[0], alone[1]);
            prop_assert_eq!(one.card.save(), many.card.save());
        }
    }
}

#[test]
fn an_empty_string_does_not_restart_the_ring() {
    let mut driven = Driven::started();
    driven.write(PAGE_STOP, 0x80);
    driven.begin(0x12, 0x8000, 1);
    let before = driven.card.save();
    // The last byte ends the transfer, and comes alone.
    assert_eq!(driven.card.write_port_string(PORT + DATA_PORT, Width::Byte, &[1]), 0);
    assert_eq!(driven.card.save(), before);
}

#[test]
fn a_packet_is_moved_by_few_strings() {
    let mut driven = Driven::started();
    driven.begin(0x0a, 0x7f00, 1500);
    let mut bytes = [0; 1500];
    // To the end of the ring, and to before the last access.
    assert_eq!(driven.card.read_port_string(PORT + DATA_PORT, Width::Dword, &mut bytes), 64);
    assert_eq!(driven.card.read_port_string(PORT + DATA_PORT, Width::Dword, &mut bytes), 310);
    assert_eq!(driven.card.read_port_string(PORT + DATA_PORT, Width::Word, &mut bytes), 1);
    assert_eq!(driven.card.read_port_string(PORT + DATA_PORT, Width::Word, &mut bytes), 0);
    assert_eq!(driven.card.read_port_string(PORT, Width::Byte, &mut bytes), 0);
    assert_eq!(driven.interrupts(), 0);
    driven.data(Width::Word);
    assert_eq!(driven.interrupts(), 0x40);
}
