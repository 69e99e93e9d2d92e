use proptest::prelude::*;

use super::*;
use crate::hammer::{blows_and_inputs, hammer};
use ring3_core::device::{DeviceId, TestBench};
use ring3_core::input::MouseMove;

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

    fn write_mouse(&mut self, byte: u8) {
        self.command(0xd4);
        self.write(byte);
    }

    fn input(&mut self, input: DeviceInput) {
        self.controller.input(&mut self.bench.context(), input);
    }

    fn key(&mut self, code: u16, pressed: bool) {
        self.input(DeviceInput::Key { key: Key(code), pressed });
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
fn the_self_tests_pass_and_set_the_system_flag() {
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
fn the_auxiliary_port_loops_back() {
    let mut machine = Machine::new();
    machine.set_command_byte(AUXILIARY_INTERRUPT);
    machine.command(0xd3);
    machine.write(0x5a);
    assert_eq!(machine.status() & 0x21, STATUS_OUTPUT_FULL | STATUS_AUXILIARY);
    assert!(machine.bench.irq.is_high(AUXILIARY_IRQ));
    assert!(!machine.bench.irq.is_high(KEYBOARD_IRQ));
    assert_eq!(machine.read(), 0x5a);
    assert!(!machine.bench.irq.is_high(AUXILIARY_IRQ));
}

#[test]
fn a_mouse_driver_s_probe_is_answered() {
    let mut machine = Machine::new();
    machine.set_command_byte(AUXILIARY_INTERRUPT | TRANSLATE);
    machine.write_mouse(0xff);
    machine.bench.advance(&mut machine.controller, BYTE_NANOS);
    assert!(machine.bench.irq.is_high(AUXILIARY_IRQ));
    assert_eq!(machine.status() & 0x21, STATUS_OUTPUT_FULL | STATUS_AUXILIARY);
    assert_eq!(machine.answers(), [0xfa, 0xaa, 0x00]);
    for byte in [0xf3, 200, 0xf3, 100, 0xf3, 80] {
        machine.write_mouse(byte);
        assert_eq!(machine.answers(), [0xfa]);
    }
    machine.write_mouse(0xf2);
    assert_eq!(machine.answers(), [0xfa, 3]);
}

#[test]
fn the_mouse_reports_by_itself_and_not_too_often() {
    let mut machine = Machine::new();
    machine.set_command_byte(0);
    machine.write_mouse(0xf4);
    assert_eq!(machine.answers(), [0xfa]);
    let moved = |right, left_button| {
        DeviceInput::Mouse(MouseMove { right, left_button, ..MouseMove::default() })
    };
    machine.input(moved(3, true));
    assert_eq!(machine.answers(), [0x09, 3, 0]);
    machine.input(moved(1, false));
    machine.input(moved(1, false));
    assert_eq!(machine.answers(), [], "the time for the next has not come");
    machine.bench.advance(&mut machine.controller, 10_000_000);
    assert_eq!(machine.answers(), [0x08, 2, 0]);
    machine.command(0xa7);
    machine.bench.advance(&mut machine.controller, 10_000_000);
    machine.input(moved(1, false));
    assert_eq!(machine.answers(), []);
    machine.command(0xa8);
    assert_eq!(machine.answers(), [0x08, 1, 0]);
}

#[test]
fn keyboard_and_mouse_share_the_buffer() {
    let mut machine = Machine::new();
    machine.set_command_byte(0);
    machine.write_mouse(0xf2);
    machine.write(0xf2);
    let mut bytes = Vec::new();
    for _ in 0..20 {
        machine.bench.advance(&mut machine.controller, BYTE_NANOS);
        let status = machine.status();
        if status & STATUS_OUTPUT_FULL != 0 {
            bytes.push((status & STATUS_AUXILIARY != 0, machine.read()));
        }
    }
    let of = |auxiliary: bool| -> Vec<u8> {
        bytes.iter().filter(|(from, _)| *from == auxiliary).map(|(_, byte)| *byte).collect()
    };
    assert_eq!(of(true), [0xfa, 0x00]);
    assert_eq!(of(false), [0xfa, 0xab, 0x83]);
}

#[test]
fn a_key_that_is_held_is_sent_again() {
    let mut machine = Machine::new();
    machine.set_command_byte(TRANSLATE);
    machine.key(0x1e, true);
    assert_eq!(machine.answers(), [0x1e]);
    machine.bench.advance(&mut machine.controller, 490_000_000);
    assert_eq!(machine.answers(), []);
    machine.bench.advance(&mut machine.controller, 10_000_000);
    assert_eq!(machine.answers(), [0x1e], "after half a second");
    machine.key(0x30, true);
    assert_eq!(machine.answers(), [0x30]);
    machine.bench.advance(&mut machine.controller, 501_000_000);
    assert_eq!(machine.answers(), [0x30], "the last key alone");
    machine.key(0x1e, false);
    machine.bench.advance(&mut machine.controller, BYTE_NANOS);
    assert_eq!(machine.answers(), [0x9e]);
    machine.bench.advance(&mut machine.controller, 92_000_000);
    assert_eq!(machine.answers(), [0x30], "10.9 times a second");
    machine.key(0x30, false);
    machine.bench.advance(&mut machine.controller, BYTE_NANOS);
    assert_eq!(machine.answers(), [0xb0]);
    machine.bench.advance(&mut machine.controller, 2_000_000_000);
    assert_eq!(machine.answers(), []);
}

#[test]
fn keys_wait_while_the_keyboard_is_disabled() {
    let mut machine = Machine::new();
    machine.set_command_byte(KEYBOARD_INTERRUPT | KEYBOARD_DISABLED);
    machine.key(0xe048, true);
    assert_eq!(machine.answers(), []);
    machine.command(0xae);
    assert_eq!(machine.answers(), [0xe0, 0x75]);
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
    machine.command(0xdd);
    assert!(!machine.bench.a20.is_high());
    machine.command(0xdf);
    assert!(machine.bench.a20.is_high());
    machine.command(0xd1);
    machine.write(0xdd);
    assert!(!machine.bench.a20.is_high());
    machine.command(0xd0);
    assert_eq!(machine.read() & (OUTPUT_PORT_A20 | OUTPUT_PORT_RUN), OUTPUT_PORT_RUN);
    machine.controller.reset(&mut machine.bench.context());
    assert!(machine.bench.a20.is_high());
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
fn a_saved_controller_continues_where_it_was() {
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
    let saved = SavedState::new(DeviceId::I8042.name(), VERSION, &state);
    assert!(matches!(controller.restore(&saved), Err(RestoreError::Damaged { .. })));
    assert_eq!(controller.state, State::default());
}

/// Keys of keyboards and others, and movements of the mouse.
fn inputs() -> impl Strategy<Value = DeviceInput> {
    let code = prop_oneof![1..0x80_u16, 0xe001..0xe080_u16, Just(0xe11d), any::<u16>()];
    let key = (code, any::<bool>())
        .prop_map(|(code, pressed)| DeviceInput::Key { key: Key(code), pressed });
    let mouse = (any::<[i32; 3]>(), -9..9_i32, any::<[bool; 3]>(), any::<bool>()).prop_map(
        |([right, down, wheel], small, [left_button, middle_button, right_button], is_small)| {
            let [right, down, wheel] = if is_small { [small; 3] } else { [right, down, wheel] };
            DeviceInput::Mouse(MouseMove {
                right,
                down,
                wheel,
                left_button,
                middle_button,
                right_button,
            })
        },
    );
    prop_oneof![3 => key, 1 => mouse]
}

proptest! {
    #[test]
    fn any_accesses_leave_a_state_that_can_be_saved(
        blows in blows_and_inputs(&[DATA_PORT, STATUS_PORT], inputs()),
        commands in prop::collection::vec(any::<(u8, u8)>(), 0..20),
    ) {
        let mut machine = Machine::new();
        for (to, byte) in commands {
            match to % 3 {
                0 => machine.command(byte),
                1 => machine.write(byte),
                _ => machine.write_mouse(byte),
            }
        }
        machine.set_command_byte(TRANSLATE);
        hammer(&mut machine.controller, &mut I8042::default(), blows);
    }
}
