use proptest::prelude::*;

use super::*;
use crate::hammer::{blows, hammer};
use ring3_core::device::{DeviceId, TestBench};

const DATA: u16 = 0x3f8;
const IER: u16 = 0x3f9;
/// The interrupt identification register for reads, FIFO control for writes.
const IIR: u16 = 0x3fa;
const LCR: u16 = 0x3fb;
const MCR: u16 = 0x3fc;
const LSR: u16 = 0x3fd;
const MSR: u16 = 0x3fe;
const SCRATCH: u16 = 0x3ff;
const IRQ: u8 = 4;

/// One character at 115200 baud, 8 data bits, no parity, one stop bit.
const CHARACTER: u64 = 86_805;

/// A port at 115200 8n1 whose IRQ line is connected.
fn port(speed: Speed) -> (TestBench, Uart16550) {
    let (mut bench, mut uart) = (TestBench::default(), Uart16550::new(COM1, speed));
    bench.write(&mut uart, LCR, 0x83);
    bench.write(&mut uart, DATA, 1);
    bench.write(&mut uart, IER, 0);
    bench.write(&mut uart, LCR, 0x03);
    bench.write(&mut uart, MCR, MCR_OUT2 | MCR_RTS | MCR_DTR);
    (bench, uart)
}

fn send_in(bench: &mut TestBench, uart: &mut Uart16550, bytes: &[u8]) {
    uart.input(&mut bench.context(), DeviceInput::Serial(bytes.to_vec()));
}

fn sent(bench: &mut TestBench) -> Vec<u8> {
    let byte = |output| match output {
        Output::Serial { port: 0, byte } => byte,
        other => panic!("{other:?}"),
    };
    bench.outputs.drain(..).map(byte).collect()
}

#[test]
fn registers_after_power_on() {
    let (mut bench, mut uart) = (TestBench::default(), Uart16550::new(COM1, Speed::Line));
    let registers = [IER, IIR, LCR, MCR, LSR, MSR].map(|port| bench.read(&mut uart, port));
    assert_eq!(registers, [0, 0x01, 0, 0, 0x60, 0xb0]);
}

#[test]
fn the_divisor_latch_hides_data_and_interrupt_enable() {
    let (mut bench, mut uart) = port(Speed::Unlimited);
    bench.write(&mut uart, IER, 0xf5);
    bench.write(&mut uart, LCR, 0x80);
    bench.write(&mut uart, DATA, 0x34);
    bench.write(&mut uart, IER, 0x12);
    assert_eq!(uart.read_port(&mut bench.context(), DATA, Width::Word), 0x1234);
    bench.write(&mut uart, LCR, 0x03);
    assert_eq!(bench.read(&mut uart, IER), 0x05, "bits 7:4 are always 0");
    assert_eq!(sent(&mut bench), []);
}

#[test]
fn a_driver_finds_a_16550a() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, SCRATCH, 0xa5);
    assert_eq!(bench.read(&mut uart, SCRATCH), 0xa5);
    bench.write(&mut uart, IIR, FCR_ENABLE);
    assert_eq!(bench.read(&mut uart, IIR), 0xc1);
    bench.write(&mut uart, MCR, MCR_LOOPBACK | MCR_RTS | MCR_OUT2);
    assert_eq!(bench.read(&mut uart, MSR) & 0xf0, 0x90);
}

#[test]
fn characters_take_their_time() {
    let (_, mut uart) = port(Speed::Line);
    // Line control and half bits: 5n1, 5n1.5, 8e2, 7o1.
    for (line_control, half_bits) in [(0x00, 14), (0x04, 15), (0x1f, 24), (0x0a, 20)] {
        uart.state.line_control = line_control;
        uart.state.divisor = 12;
        assert_eq!(uart.state.character_nanos(), half_bits * 1_000_000_000 / (2 * 9600));
    }
    uart.state.divisor = 0;
    assert!(uart.state.character_nanos() > 0);
}

#[test]
fn the_transmitter_keeps_one_character_in_each_register() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, DATA, b'a');
    assert_eq!(bench.read(&mut uart, LSR), LSR_HOLDING_EMPTY);
    bench.write(&mut uart, DATA, b'b');
    assert_eq!(bench.read(&mut uart, LSR), 0);
    bench.write(&mut uart, DATA, b'c');
    bench.advance(&mut uart, CHARACTER - 1);
    assert_eq!(sent(&mut bench), b"");
    bench.advance(&mut uart, 1);
    assert_eq!(sent(&mut bench), b"a");
    assert_eq!(bench.read(&mut uart, LSR), LSR_HOLDING_EMPTY);
    bench.advance(&mut uart, CHARACTER);
    assert_eq!(sent(&mut bench), b"c", "written over b");
    assert_eq!(bench.read(&mut uart, LSR), LSR_HOLDING_EMPTY | LSR_TRANSMITTER_EMPTY);
}

#[test]
fn the_transmitter_fifo_takes_sixteen() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, IIR, FCR_ENABLE);
    for byte in 0..20 {
        bench.write(&mut uart, DATA, byte);
    }
    bench.advance(&mut uart, 30 * CHARACTER);
    assert_eq!(sent(&mut bench), (0..17).collect::<Vec<_>>());
    bench.write(&mut uart, DATA, 1);
    bench.write(&mut uart, DATA, 2);
    bench.write(&mut uart, IIR, FCR_ENABLE | FCR_CLEAR_TRANSMITTER);
    bench.advance(&mut uart, 30 * CHARACTER);
    assert_eq!(sent(&mut bench), [1], "the shift register is not cleared");
}

#[test]
fn the_transmitter_interrupt_comes_when_enabled_and_goes_when_read() {
    for speed in [Speed::Line, Speed::Unlimited] {
        let (mut bench, mut uart) = port(speed);
        bench.write(&mut uart, IER, IER_TRANSMITTER_EMPTY);
        assert!(bench.irq.is_high(IRQ));
        assert_eq!(bench.read(&mut uart, IIR), IIR_TRANSMITTER_EMPTY);
        assert!(!bench.irq.is_high(IRQ));
        assert_eq!(bench.read(&mut uart, IIR), IIR_NONE);
        // Only the change from disabled to enabled raises it.
        bench.write(&mut uart, IER, IER_TRANSMITTER_EMPTY);
        assert_eq!(bench.read(&mut uart, IIR), IIR_NONE);
        bench.write(&mut uart, IER, 0);
        bench.write(&mut uart, IER, IER_TRANSMITTER_EMPTY);
        bench.irq.drain_changes();
        bench.write(&mut uart, DATA, b'x');
        let edges: Vec<_> = bench.irq.drain_changes().collect();
        assert_eq!(edges, [(IRQ, false), (IRQ, true)]);
    }
}

#[test]
fn the_transmitter_interrupt_waits_for_the_holding_register() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, DATA, b'a');
    bench.write(&mut uart, DATA, b'b');
    bench.write(&mut uart, IER, IER_TRANSMITTER_EMPTY);
    assert!(!bench.irq.is_high(IRQ));
    bench.advance(&mut uart, CHARACTER);
    assert!(bench.irq.is_high(IRQ));
}

#[test]
fn unlimited_input_waits_for_room() {
    let (mut bench, mut uart) = port(Speed::Unlimited);
    bench.write(&mut uart, IIR, FCR_ENABLE);
    bench.advance(&mut uart, PAUSE_NANOS);
    let bytes: Vec<u8> = (0..=255).cycle().take(INBOX_CAPACITY + 20).collect();
    send_in(&mut bench, &mut uart, &bytes);
    assert_eq!(uart.dropped(), 20, "the inbox takes the bytes before the FIFO does");
    for expected in &bytes[..INBOX_CAPACITY] {
        assert_eq!(bench.read(&mut uart, LSR) & (LSR_DATA_READY | LSR_OVERRUN), LSR_DATA_READY);
        assert_eq!(bench.read(&mut uart, DATA), *expected);
    }
    assert_eq!(bench.read(&mut uart, LSR) & LSR_DATA_READY, 0);
}

#[test]
fn early_input_survives_the_start_of_a_driver() {
    let (mut bench, mut uart) = port(Speed::Unlimited);
    send_in(&mut bench, &mut uart, b"ls -l");
    for _ in 0..3 {
        bench.write(&mut uart, IIR, FCR_ENABLE);
        bench.write(&mut uart, IIR, FCR_ENABLE | FCR_CLEAR_RECEIVER);
        bench.write(&mut uart, IIR, 0);
        assert_eq!(bench.read(&mut uart, DATA), 0, "the receiver is empty");
        bench.advance(&mut uart, PAUSE_NANOS - 1);
        assert_eq!(bench.read(&mut uart, LSR) & LSR_DATA_READY, 0);
    }
    bench.advance(&mut uart, 1);
    let read: Vec<u8> = (0..5).map(|_| bench.read(&mut uart, DATA)).collect();
    assert_eq!(read, b"ls -l");
}

#[test]
fn early_input_comes_as_soon_as_a_driver_enables_its_interrupt() {
    let (mut bench, mut uart) = port(Speed::Unlimited);
    send_in(&mut bench, &mut uart, b"ls");
    bench.write(&mut uart, IIR, FCR_ENABLE | FCR_CLEAR_RECEIVER);
    bench.write(&mut uart, IER, IER_LINE_STATUS);
    assert_eq!(bench.read(&mut uart, DATA), 0, "the driver starts");
    bench.write(&mut uart, IER, IER_LINE_STATUS | IER_RECEIVED);
    assert!(bench.irq.is_high(IRQ));
    let read: Vec<u8> = (0..2).map(|_| bench.read(&mut uart, DATA)).collect();
    assert_eq!(read, b"ls");
}

#[test]
fn line_input_overruns_the_single_register() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, IER, IER_LINE_STATUS);
    send_in(&mut bench, &mut uart, b"ab");
    assert_eq!(bench.read(&mut uart, LSR) & LSR_DATA_READY, 0);
    bench.advance(&mut uart, CHARACTER);
    assert_eq!(bench.read(&mut uart, LSR) & LSR_DATA_READY, LSR_DATA_READY);
    bench.advance(&mut uart, CHARACTER);
    assert_eq!(bench.read(&mut uart, IIR), IIR_LINE_STATUS);
    assert!(bench.irq.is_high(IRQ));
    assert_eq!(bench.read(&mut uart, LSR) & LSR_OVERRUN, LSR_OVERRUN);
    assert!(!bench.irq.is_high(IRQ), "reading LSR clears the error");
    assert_eq!(bench.read(&mut uart, DATA), b'b');
}

#[test]
fn line_input_overruns_the_fifo_but_keeps_its_contents() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, IIR, FCR_ENABLE);
    send_in(&mut bench, &mut uart, b"0123456789abcdefX");
    bench.advance(&mut uart, 17 * CHARACTER);
    assert_eq!(bench.read(&mut uart, LSR) & LSR_OVERRUN, LSR_OVERRUN);
    let read: Vec<u8> = (0..16).map(|_| bench.read(&mut uart, DATA)).collect();
    assert_eq!(read, b"0123456789abcdef");
    assert_eq!(bench.read(&mut uart, LSR) & LSR_DATA_READY, 0);
}

#[test]
fn received_data_interrupts_at_the_trigger_level() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, IER, IER_RECEIVED);
    bench.write(&mut uart, IIR, FCR_ENABLE | 0b01 << 6);
    send_in(&mut bench, &mut uart, b"abcd");
    bench.advance(&mut uart, 3 * CHARACTER);
    assert!(!bench.irq.is_high(IRQ));
    bench.advance(&mut uart, CHARACTER);
    assert_eq!(bench.read(&mut uart, IIR), IIR_FIFOS_ENABLED | IIR_RECEIVED);
    assert!(bench.irq.is_high(IRQ));
    bench.read(&mut uart, DATA);
    assert!(!bench.irq.is_high(IRQ), "below the trigger level");
}

#[test]
fn the_time_out_comes_four_characters_after_the_last_touch() {
    let (mut bench, mut uart) = port(Speed::Unlimited);
    bench.write(&mut uart, IER, IER_RECEIVED);
    bench.write(&mut uart, IIR, FCR_ENABLE | 0b11 << 6);
    bench.advance(&mut uart, PAUSE_NANOS);
    send_in(&mut bench, &mut uart, b"abc");
    bench.advance(&mut uart, 3 * CHARACTER);
    bench.read(&mut uart, DATA);
    bench.advance(&mut uart, 4 * CHARACTER - 1);
    assert!(!bench.irq.is_high(IRQ));
    bench.advance(&mut uart, 1);
    assert_eq!(bench.read(&mut uart, IIR), IIR_FIFOS_ENABLED | IIR_TIMEOUT);
    bench.read(&mut uart, DATA);
    assert!(!bench.irq.is_high(IRQ), "reading one character takes it back");
    bench.advance(&mut uart, 4 * CHARACTER);
    assert!(bench.irq.is_high(IRQ), "there is one left");
    bench.write(&mut uart, IIR, FCR_ENABLE | FCR_CLEAR_RECEIVER);
    assert!(!bench.irq.is_high(IRQ));
}

#[test]
fn interrupts_are_reported_by_priority() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, IER, 0x0f);
    // Entering and leaving loopback with all outputs off makes modem lines change.
    bench.write(&mut uart, MCR, MCR_LOOPBACK);
    bench.write(&mut uart, MCR, MCR_OUT2);
    send_in(&mut bench, &mut uart, b"ab");
    bench.advance(&mut uart, 2 * CHARACTER);
    assert_eq!(bench.read(&mut uart, IIR), IIR_LINE_STATUS);
    bench.read(&mut uart, LSR);
    assert_eq!(bench.read(&mut uart, IIR), IIR_RECEIVED);
    bench.read(&mut uart, DATA);
    assert_eq!(bench.read(&mut uart, IIR), IIR_TRANSMITTER_EMPTY);
    assert_eq!(bench.read(&mut uart, IIR), IIR_MODEM_STATUS);
    assert_eq!(bench.read(&mut uart, MSR), 0xbb);
    assert_eq!(bench.read(&mut uart, IIR), IIR_NONE);
    assert!(!bench.irq.is_high(IRQ));
}

#[test]
fn modem_control_does_not_gate_the_irq_line() {
    let (mut bench, mut uart) = port(Speed::Unlimited);
    bench.write(&mut uart, IER, IER_TRANSMITTER_EMPTY);
    for control in [0, MCR_RTS, MCR_LOOPBACK, MCR_OUT2] {
        bench.write(&mut uart, MCR, control);
        assert!(bench.irq.is_high(IRQ), "{control:#x}");
    }
    bench.read(&mut uart, IIR);
    assert!(!bench.irq.is_high(IRQ));
}

#[test]
fn loopback_returns_sent_bytes_and_delays_input() {
    for speed in [Speed::Line, Speed::Unlimited] {
        let (mut bench, mut uart) = port(speed);
        bench.write(&mut uart, MCR, MCR_LOOPBACK);
        send_in(&mut bench, &mut uart, b"z");
        bench.write(&mut uart, DATA, b'a');
        bench.advance(&mut uart, 3 * CHARACTER);
        assert_eq!(bench.read(&mut uart, DATA), b'a');
        assert_eq!(sent(&mut bench), b"");
        bench.write(&mut uart, MCR, MCR_OUT2);
        bench.advance(&mut uart, CHARACTER);
        assert_eq!(bench.read(&mut uart, DATA), b'z');
    }
}

#[test]
fn the_ring_indicator_counts_when_it_stops() {
    let (mut bench, mut uart) = port(Speed::Unlimited);
    bench.write(&mut uart, MCR, MCR_LOOPBACK);
    bench.read(&mut uart, MSR);
    bench.write(&mut uart, MCR, MCR_LOOPBACK | MCR_OUT1);
    assert_eq!(bench.read(&mut uart, MSR), MSR_RI);
    bench.write(&mut uart, MCR, MCR_LOOPBACK);
    assert_eq!(bench.read(&mut uart, MSR), MSR_RI >> 4);
    assert_eq!(bench.read(&mut uart, MSR), 0);
}

#[test]
fn a_saved_port_continues_where_it_was() {
    let (mut bench, mut uart) = port(Speed::Line);
    bench.write(&mut uart, DATA, b'a');
    bench.write(&mut uart, DATA, b'b');
    send_in(&mut bench, &mut uart, b"xy");
    let mut copy = Uart16550::new(COM1, Speed::Line);
    copy.restore(&uart.save()).unwrap();
    assert_eq!(copy.state, uart.state);
    bench.advance(&mut copy, 2 * CHARACTER);
    assert_eq!(sent(&mut bench), b"ab");
    assert_eq!(bench.read(&mut copy, DATA), b'y');
}

#[test]
fn impossible_states_are_refused() {
    let mut uart = Uart16550::new(COM1, Speed::Line);
    for state in [
        State { received: vec![0; 2].into(), ..State::power_on() },
        State { holding: vec![0; 17].into(), fifos_enabled: true, ..State::power_on() },
        State { inbox: vec![0; INBOX_CAPACITY + 1].into(), ..State::power_on() },
        State { trigger: 4, ..State::power_on() },
        State { modem_control: 0x80, ..State::power_on() },
    ] {
        let saved = SavedState::new(DeviceId::COM[0].name(), VERSION, &state);
        assert!(matches!(uart.restore(&saved), Err(RestoreError::Damaged { .. })));
    }
    assert_eq!(uart.state, State::power_on());
    let other = Uart16550::new(COM2, Speed::Line).save();
    assert!(matches!(uart.restore(&other), Err(RestoreError::OtherDevice { .. })));
}

proptest! {
    #[test]
    fn any_accesses_leave_a_state_that_can_be_saved(
        blows in blows(&[DATA, IER, IIR, LCR, MCR, LSR, MSR, SCRATCH]),
        line in any::<bool>(),
    ) {
        let speed = if line { Speed::Line } else { Speed::Unlimited };
        hammer(&mut Uart16550::new(COM1, speed), &mut Uart16550::new(COM1, speed), blows);
    }

    #[test]
    fn any_input_arrives_in_order_or_is_reported_lost(
        steps in prop::collection::vec((0..40_usize, 0..20_usize, 0..2_000_000_u64), 1..30),
        line in any::<bool>(),
        fifos in any::<bool>(),
    ) {
        let (mut bench, mut uart) = port(if line { Speed::Line } else { Speed::Unlimited });
        bench.write(&mut uart, IIR, if fifos { FCR_ENABLE } else { 0 });
        let (mut next, mut overrun, mut read) = (0_u8, false, Vec::new());
        for (received, reads, nanos) in steps {
            let bytes: Vec<u8> = (0..received).map(|index| next.wrapping_add(index as u8)).collect();
            next = next.wrapping_add(received as u8);
            send_in(&mut bench, &mut uart, &bytes);
            bench.advance(&mut uart, nanos);
            for _ in 0..reads {
                let status = bench.read(&mut uart, LSR);
                overrun |= status & LSR_OVERRUN != 0;
                if status & LSR_DATA_READY != 0 {
                    read.push(bench.read(&mut uart, DATA));
                }
            }
            let saved = uart.save();
            uart.restore(&saved).unwrap();
            prop_assert_eq!(uart.save(), saved);
        }
        overrun |= bench.read(&mut uart, LSR) & LSR_OVERRUN != 0;
        prop_assert!(line || !overrun);
        let sequential = read.iter().enumerate().all(|(index, byte)| *byte == index as u8);
        prop_assert!(sequential || overrun);
    }
}
