use proptest::prelude::*;

use super::*;
use crate::hammer::{blows, hammer};
use ring3_core::device::TestBench;

struct Machine {
    bench: TestBench,
    controller: I8042,
}

impl Machine {
    fn new() -> Machine {
        Machine { bench: TestBench::default(), controller: I8042::default() }
    }

    fn command(&mut self, command: u8) {
        self.bench.write(&mut self.controller, STATUS_PORT, command);
    }

    fn write(&mut self, byte: u8) {
        self.bench.write(&mut self.controller, DATA_PORT, byte);
    }

    fn read(&mut self) -> u8 {
        self.bench.read(&mut self.controller, DATA_PORT)
    }

    fn status(&mut self) -> u8 {
        self.bench.read(&mut self.controller, STATUS_PORT)
    }

    fn set_command_byte(&mut self, value: u8) {
        self.command(0x60);
        self.write(value);
    }

    fn command_byte(&mut self) -> u8 {
        self.command(0x20);
        self.read()
    }

    /// Waits for a byte and reads it, as a driver that polls.
    fn wait(&mut self) -> Option<u8> {
        self.bench.advance(&mut self.controller, BYTE_NANOS);
        (self.status() & STATUS_OUTPUT_FULL != 0).then(|| self.read())
    }

    fn answers(&mut self) -> Vec<u8> {
        std::iter::from_fn(|| self.wait()).collect()
    }
}

#[test]
fn tests_pass_and_the_system_flag_tells() {
    let mut machine = Machine::new();
    assert_eq!(machine.status(), STATUS_NOT_INHIBITED);
    machine.command(0xaa);
    let expected = STATUS_OUTPUT_FULL | STATUS_SYSTEM | STATUS_COMMAND | STATUS_NOT_INHIBITED;
    assert_eq!(machine.status(), expected);
    assert_eq!(machine.read(), SELF_TEST_PASSED);
    assert_eq!(machine.status() & STATUS_OUTPUT_FULL, 0);
    for test in [0xa9, 0xab] {
        machine.command(test);
        assert_eq!(machine.read(), INTERFACE_TEST_PASSED);
    }
}

#[test]
fn enabling_and_disabling_show_in_the_command_byte() {
    let mut machine = Machine::new();
    machine.set_command_byte(0xff);
    assert_eq!(machine.command_byte(), COMMAND_BYTE_BITS);
    machine.command(0xa8);
    machine.command(0xae);
    assert_eq!(machine.command_byte() & (KEYBOARD_DISABLED | AUXILIARY_DISABLED), 0);
    machine.command(0xa7);
    assert_eq!(machine.command_byte() & AUXILIARY_DISABLED, AUXILIARY_DISABLED);
    machine.command(0xad);
    assert_eq!(machine.command_byte() & KEYBOARD_DISABLED, KEYBOARD_DISABLED);
}

#[test]
fn a_keyboard_driver_s_probe_is_answered() {
    let mut machine = Machine::new();
    machine.set_command_byte(TRANSLATE);
    machine.write(0xff);
    assert_eq!(machine.answers(), [0xfa, 0xaa]);
    machine.write(0xf2);
    assert_eq!(machine.answers(), [0xfa, 0xab, 0x41], "83h is translated");
    machine.set_command_byte(0);
    machine.write(0xf2);
    assert_eq!(machine.answers(), [0xfa, 0xab, 0x83]);
}

#[test]
fn the_auxiliary_port_loops_back_and_is_empty() {
    let mut machine = Machine::new();
    machine.set_command_byte(AUXILIARY_INTERRUPT);
    machine.command(0xd3);
    machine.write(0x5a);
    assert_eq!(machine.status() & 0x21, STATUS_OUTPUT_FULL | STATUS_AUXILIARY);
    assert!(machine.bench.irq.is_high(AUXILIARY_IRQ));
    assert!(!machine.bench.irq.is_high(KEYBOARD_IRQ));
    assert_eq!(machine.read(), 0x5a);
    assert!(!machine.bench.irq.is_high(AUXILIARY_IRQ));
    machine.command(0xd4);
    machine.write(0xff);
    assert_eq!(machine.answers(), []);
}

#[test]
fn each_byte_of_the_keyboard_is_an_edge_and_stays_readable() {
    let mut machine = Machine::new();
    machine.set_command_byte(KEYBOARD_INTERRUPT);
    machine.write(0xff);
    assert!(!machine.bench.irq.is_high(KEYBOARD_IRQ));
    machine.bench.advance(&mut machine.controller, BYTE_NANOS);
    assert!(machine.bench.irq.is_high(KEYBOARD_IRQ));
    assert_eq!([machine.read(), machine.read()], [0xfa, 0xfa]);
    assert!(!machine.bench.irq.is_high(KEYBOARD_IRQ));
    machine.bench.advance(&mut machine.controller, BYTE_NANOS);
    assert!(machine.bench.irq.is_high(KEYBOARD_IRQ));
    assert_eq!(machine.read(), 0xaa);
}

#[test]
fn a_disabled_keyboard_keeps_its_bytes() {
    let mut machine = Machine::new();
    machine.write(0xee);
    machine.command(0xad);
    assert_eq!(machine.wait(), None);
    machine.command(0xae);
    assert_eq!(machine.wait(), Some(0xee));
}

#[test]
fn a_byte_written_as_the_keyboard_s_interrupts() {
    let mut machine = Machine::new();
    machine.set_command_byte(KEYBOARD_INTERRUPT);
    machine.command(0xd2);
    machine.write(0x1e);
    assert!(machine.bench.irq.is_high(KEYBOARD_IRQ));
    assert_eq!(machine.read(), 0x1e);
}

#[test]
fn the_a20_line_follows_the_output_port() {
    let mut machine = Machine::new();
    assert!(machine.controller.a20());
    machine.command(0xdd);
    assert!(!machine.controller.a20());
    machine.command(0xdf);
    assert!(machine.controller.a20());
    machine.command(0xd1);
    machine.write(0xdd);
    assert!(!machine.controller.a20());
    machine.command(0xd0);
    assert_eq!(machine.read() & (OUTPUT_PORT_A20 | OUTPUT_PORT_RUN), OUTPUT_PORT_RUN);
    assert_eq!(machine.bench.outputs, []);
}

#[test]
fn the_reset_line_is_pulsed_or_pulled() {
    let mut machine = Machine::new();
    machine.command(0xff);
    assert_eq!(machine.bench.outputs, []);
    machine.command(0xfe);
    assert_eq!(machine.bench.outputs, [Output::ProcessorReset]);
    machine.command(0xd1);
    machine.write(0xfe);
    assert_eq!(machine.bench.outputs, [Output::ProcessorReset, Output::ProcessorReset]);
}

#[test]
fn translation_knows_keys_and_their_release() {
    let mut controller = I8042::default();
    controller.state.command_byte = TRANSLATE;
    // Escape, A, enter, F7 (83h), F12, left arrow behind E0h.
    for (set_2, set_1) in [(0x76, 0x01), (0x1c, 0x1e), (0x5a, 0x1c), (0x83, 0x41), (0x07, 0x58)] {
        assert_eq!(controller.translate(set_2), Some(set_1));
        assert_eq!(controller.translate(RELEASE_PREFIX), None);
        assert_eq!(controller.translate(set_2), Some(set_1 | 0x80));
    }
    let left_released = [0xe0, 0xf0, 0x6b].map(|byte| controller.translate(byte));
    assert_eq!(left_released, [Some(0xe0), None, Some(0xcb)]);
    for reply in [0xfa, 0xaa, 0xab, 0xee, 0xfe] {
        assert_eq!(controller.translate(reply), Some(reply));
    }
}

#[test]
fn no_two_keys_translate_to_the_same_code() {
    // 83h and 84h stand for keys that set 2 has a second code for: F7 and Alt + SysRq.
    let mut codes = SET_2_TO_SET_1[..0x83].to_vec();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), 0x83);
}

#[test]
fn a_saved_controller_goes_on_where_it_was() {
    let mut machine = Machine::new();
    machine.set_command_byte(0);
    machine.write(0xff);
    let saved = machine.controller.save();
    machine.controller = I8042::default();
    machine.controller.restore(&saved).unwrap();
    assert_eq!(machine.controller.save(), saved);
    assert_eq!(machine.answers(), [0xfa, 0xaa]);
}

#[test]
fn impossible_states_are_refused() {
    let mut controller = I8042::default();
    let state = State { command_byte: 0x80, ..State::default() };
    let saved = SavedState::new("i8042", VERSION, &state);
    assert!(matches!(controller.restore(&saved), Err(RestoreError::Damaged { .. })));
    assert_eq!(controller.state, State::default());
}

proptest! {
    #[test]
    fn any_treatment_leaves_a_state_that_can_be_saved(
        blows in blows(&[DATA_PORT, STATUS_PORT]),
        commands in prop::collection::vec(any::<(bool, u8)>(), 0..20),
    ) {
        let mut machine = Machine::new();
        for (command, byte) in commands {
            if command { machine.command(byte) } else { machine.write(byte) }
        }
        hammer(&mut machine.controller, &mut I8042::default(), blows);
    }
}
