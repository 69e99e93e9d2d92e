//! Packets that go out, and those that do not get further than the chip.

use super::*;

#[test]
fn a_packet_goes_out_as_it_was_written() {
    let mut driven = Driven::started();
    let frame = frame(OTHER, 1514);
    driven.put(0x4000, &frame);
    assert_eq!((driven.interrupts(), driven.sent()), (0x40, vec![]));
    driven.transmit(1514);
    assert_eq!(driven.sent(), [Packet::frame(frame)]);
    assert_eq!((driven.read(COMMAND), driven.read(TRANSMIT_STATUS)), (0x22, 0x01));
    assert!(driven.line());
    assert_eq!(driven.interrupts(), 0x02);
    assert!(!driven.line());
}

#[test]
fn interrupts_can_be_masked() {
    let mut driven = Driven::started();
    driven.write(MASK, 0x7d);
    driven.transmit(60);
    assert!(!driven.line());
    driven.write(MASK, 0x02);
    assert!(driven.line());
}

#[test]
fn software_can_bring_its_own_check_sequence() {
    let mut driven = Driven::started();
    let frame = frame(OTHER, 60);
    driven.put(0x4000, &[&frame[..], &[1, 2, 3, 4]].concat());
    driven.write(TRANSMIT, 0x01);
    driven.transmit(64);
    assert_eq!(driven.sent(), [Packet::frame(frame)]);
}

#[test]
fn an_invalid_frame_is_lost() {
    let mut driven = Driven::started();
    for len in [0, 13, 1519, 0xffff] {
        driven.transmit(len);
        assert_eq!((driven.interrupts(), driven.sent()), (0x02, vec![]), "{len}");
    }
    driven.transmit(14);
    assert_eq!(driven.sent().len(), 1);
    driven.write(COMMAND, 0x21);
    driven.transmit(60);
    assert_eq!(driven.sent().len(), 1, "it starts it at the same time");
    driven.write(TRANSMIT_PAGE, 0x40);
    driven.write(COMMAND, 0x25);
    assert_eq!(driven.sent(), []);
}

#[test]
fn without_a_cable_the_carrier_is_lost() {
    let mut driven = Driven::started();
    driven.input(DeviceInput::Link(false));
    driven.transmit(60);
    driven.receive(frame(OURS.0, 60));
    assert_eq!((driven.interrupts(), driven.sent()), (0x02, vec![]));
    assert_eq!(driven.read(TRANSMIT_STATUS), 0x51);
    driven.input(DeviceInput::Link(true));
    driven.transmit(60);
    driven.receive(frame(OURS.0, 60));
    assert_eq!((driven.interrupts(), driven.sent().len()), (0x03, 1));
    assert_eq!(driven.read(TRANSMIT_STATUS), 0x01);
}

#[test]
fn a_packet_waits_while_the_network_is_congested() {
    let mut driven = Driven::started();
    driven.input(DeviceInput::Congestion(true));
    driven.transmit(60);
    driven.write(COMMAND, 0x22);
    assert_eq!((driven.interrupts(), driven.read(COMMAND), driven.sent()), (0, 0x26, vec![]));
    driven.input(DeviceInput::Congestion(false));
    assert!(driven.line());
    assert_eq!((driven.interrupts(), driven.read(COMMAND), driven.sent().len()), (2, 0x22, 1));
    // A stop gives it up.
    driven.input(DeviceInput::Congestion(true));
    driven.transmit(60);
    driven.write(COMMAND, 0x21);
    driven.input(DeviceInput::Congestion(false));
    assert_eq!((driven.interrupts(), driven.sent()), (0x80, vec![]));
}

/// The results in application note 937.
#[test]
fn loopback_has_the_results_of_the_application_note() {
    for (mode, status) in [(0x02, 0x51), (0x04, 0x41), (0x06, 0x01)] {
        let mut driven = Driven::started();
        driven.write(DATA, 0x48);
        driven.write(TRANSMIT, mode);
        for (destination, received, interrupts) in [(OURS.0, 0x02, 0x06), (OTHER, 0x01, 0x02)] {
            let frame = frame(destination, 60);
            driven.begin(0x12, 0x4000, 60);
            for byte in &frame {
                driven.write_data(Width::Byte, (*byte).into());
            }
            driven.interrupts();
            driven.transmit(60);
            assert_eq!(driven.read(TRANSMIT_STATUS), status);
            assert_eq!((driven.read(RECEIVE), driven.interrupts()), (received, interrupts));
            // The data sheet's alignment of 64 bytes.
            let check = crc32fast::hash(&frame).to_le_bytes();
            let fifo: Vec<_> = (0..8).map(|_| driven.read(FIFO)).collect();
            assert_eq!(fifo, [&[64, 0, 0, frame[59]][..], &check].concat());
        }
        // With a check sequence that software has made, the receiver looks at it.
        driven.write(TRANSMIT, mode | 1);
        let frame = frame(OURS.0, 60);
        let check = crc32fast::hash(&frame).to_le_bytes();
        for (check, received, interrupts) in [(check, 0x01, 0x02), ([0; 4], 0x02, 0x06)] {
            driven.begin(0x12, 0x4000, 64);
            for byte in frame.iter().chain(&check) {
                driven.write_data(Width::Byte, (*byte).into());
            }
            driven.interrupts();
            driven.transmit(64);
            assert_eq!((driven.read(RECEIVE), driven.interrupts()), (received, interrupts));
        }
        assert_eq!(driven.read(COUNTERS + 1), 2);
        assert_eq!(driven.sent(), []);
        driven.receive(frame);
        assert_eq!(driven.interrupts(), 0, "it is not on the network");
    }
}

#[test]
fn in_words_a_loopback_is_of_every_other_byte() {
    for (configuration, offset) in [(0x49, 1), (0x4b, 0)] {
        let mut driven = Driven::started();
        driven.write(DATA, configuration);
        driven.write(TRANSMIT, 0x02);
        let frame = frame(OTHER, 60);
        let spread: Vec<_> = frame
            .iter()
            .flat_map(|byte| if offset == 0 { [*byte, 0xee] } else { [0xee, *byte] })
            .collect();
        driven.put(0x4000, &spread);
        driven.transmit(120);
        let fifo: Vec<_> = (0..8).map(|_| driven.read(FIFO)).collect();
        let check = crc32fast::hash(&frame).to_le_bytes();
        assert_eq!(fifo, [&[64, 0, 0, frame[59]][..], &check].concat());
    }
}
