//! The keyboard controller: an 8042 with IBM's program, as in the PS/2.
//!
//! From the IBM Personal System/2 Hardware Interface Technical Reference, "Keyboard and
//! Auxiliary Device Controller". The keyboard and the mouse behind it are models of their own, in
//! `i8042/keyboard.rs` and `i8042/mouse.rs`. Commands that the reference does not define, or that concern the
//! password, are ignored.
//!
//! Replies of the controller are there at once; a byte of the keyboard or the mouse takes its time on the wire,
//! during which port 60h still reads as before: interrupt handlers that
//! read it twice rely on that.
//!
//! ```
//! use ring3_core::device::TestBench;
//! use ring3_devices::i8042::I8042;
//!
//! let (mut bench, mut controller) = (TestBench::default(), I8042::default());
//! bench.write(&mut controller, 0x64, 0xaa); // self-test
//! assert_eq!(bench.read(&mut controller, 0x60), 0x55);
//! ```

mod keyboard;
mod mouse;
mod scan_codes;

use ring3_core::bus::PortRange;
use ring3_core::clock::Tag;
use ring3_core::device::{Context, Device, DeviceId, Output, Width};
use ring3_core::input::{DeviceInput, Key};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::bytewise;
use keyboard::Keyboard;
use mouse::Mouse;
use scan_codes::RELEASE_PREFIX;

/// The keyboard's IRQ line.
pub const KEYBOARD_IRQ: u8 = 1;
/// The auxiliary device's IRQ line.
pub const AUXILIARY_IRQ: u8 = 12;

const DATA_PORT: u16 = 0x60;
/// Status for reads, commands for writes.
const STATUS_PORT: u16 = 0x64;

// Status register. The input buffer is never full (bit 1): the controller is that fast.
const STATUS_OUTPUT_FULL: u8 = 1 << 0;
const STATUS_SYSTEM: u8 = 1 << 2;
const STATUS_COMMAND: u8 = 1 << 3;
/// The keyboard lock is open.
const STATUS_NOT_INHIBITED: u8 = 1 << 4;
const STATUS_AUXILIARY: u8 = 1 << 5;

// Command byte.
const KEYBOARD_INTERRUPT: u8 = 1 << 0;
const AUXILIARY_INTERRUPT: u8 = 1 << 1;
/// Shows in the status register.
const SYSTEM_FLAG: u8 = 1 << 2;
const KEYBOARD_DISABLED: u8 = 1 << 4;
const AUXILIARY_DISABLED: u8 = 1 << 5;
const TRANSLATE: u8 = 1 << 6;
const COMMAND_BYTE_BITS: u8 = KEYBOARD_INTERRUPT
    | AUXILIARY_INTERRUPT
    | SYSTEM_FLAG
    | KEYBOARD_DISABLED
    | AUXILIARY_DISABLED
    | TRANSLATE;

// Output port.
/// Low resets the processor.
const OUTPUT_PORT_RUN: u8 = 1 << 0;
const OUTPUT_PORT_A20: u8 = 1 << 1;
const OUTPUT_PORT_KEYBOARD_FULL: u8 = 1 << 4;
const OUTPUT_PORT_AUXILIARY_FULL: u8 = 1 << 5;

/// Input port: keyboard not locked, manufacturing jumper not installed.
const INPUT_PORT: u8 = 0xa0;
const SELF_TEST_PASSED: u8 = 0x55;
const INTERFACE_TEST_PASSED: u8 = 0x00;

/// A byte on the keyboard's or the mouse's wire: 11 bits of some 90 microseconds.
const BYTE_NANOS: u64 = 1_000_000;
/// The keyboard's byte has arrived.
const KEYBOARD_ARRIVED: Tag = 0;
/// The mouse's has.
const AUXILIARY_ARRIVED: Tag = 1;
/// The key that is held is to be sent again.
const REPEAT: Tag = 2;
/// The mouse may report again.
const SAMPLE: Tag = 3;

const VERSION: u32 = 2;

/// What the controller does with the next byte that is written to port 60h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Argument {
    CommandByte,
    OutputPort,
    KeyboardOutput,
    AuxiliaryOutput,
    AuxiliaryDevice,
}

/// Whom the byte in the output buffer is from. The controller's own count as the keyboard's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Source {
    Keyboard,
    Auxiliary,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    command_byte: u8,
    /// The byte in the output buffer; it stays readable after it has been read.
    output: u8,
    /// The output buffer is full, and whose byte it holds.
    full: Option<Source>,
    /// The last write was to port 64h.
    last_was_command: bool,
    argument: Option<Argument>,
    /// The output port holds address line 20 high.
    a20: bool,
    /// The keyboard has a byte on the wire.
    transferring: bool,
    /// The mouse has.
    #[serde(default)]
    auxiliary_transferring: bool,
    /// Translation has seen the release prefix.
    releasing: bool,
    keyboard: Keyboard,
    #[serde(default)]
    mouse: Mouse,
}

impl Default for State {
    /// After power-on both ports are disabled and the output port's lines are all high.
    fn default() -> State {
        State {
            command_byte: KEYBOARD_DISABLED | AUXILIARY_DISABLED,
            output: 0,
            full: None,
            last_was_command: false,
            argument: None,
            a20: true,
            transferring: false,
            auxiliary_transferring: false,
            releasing: false,
            keyboard: Keyboard::default(),
            mouse: Mouse::default(),
        }
    }
}

/// The keyboard controller with its keyboard and its mouse, device `i8042`. It takes
/// [`DeviceInput::Key`] and [`DeviceInput::Mouse`]; what its devices have no room for is lost.
#[derive(Debug, Default)]
pub struct I8042 {
    state: State,
}

impl I8042 {
    /// The ports at which the board attaches the device.
    pub fn ports(&self) -> [PortRange; 2] {
        [PortRange::new(DATA_PORT, 1), PortRange::new(STATUS_PORT, 1)]
    }

    fn has(&self, command_byte_bit: u8) -> bool {
        self.state.command_byte & command_byte_bit != 0
    }

    fn status(&self) -> u8 {
        let full = match self.state.full {
            None => 0,
            Some(Source::Keyboard) => STATUS_OUTPUT_FULL,
            Some(Source::Auxiliary) => STATUS_OUTPUT_FULL | STATUS_AUXILIARY,
        };
        let system = if self.has(SYSTEM_FLAG) { STATUS_SYSTEM } else { 0 };
        let command = if self.state.last_was_command { STATUS_COMMAND } else { 0 };
        full | system | command | STATUS_NOT_INHIBITED
    }

    fn output_port(&self) -> u8 {
        let full = match self.state.full {
            None => 0,
            Some(Source::Keyboard) => OUTPUT_PORT_KEYBOARD_FULL,
            Some(Source::Auxiliary) => OUTPUT_PORT_AUXILIARY_FULL,
        };
        let a20 = if self.state.a20 { OUTPUT_PORT_A20 } else { 0 };
        OUTPUT_PORT_RUN | a20 | full
    }

    fn write_output_port(&mut self, context: &mut Context<'_>, value: u8) {
        self.set_a20(context, value & OUTPUT_PORT_A20 != 0);
        if value & OUTPUT_PORT_RUN == 0 {
            context.output(Output::ProcessorReset);
        }
    }

    fn set_a20(&mut self, context: &mut Context<'_>, high: bool) {
        self.state.a20 = high;
        context.drive_a20(high);
    }

    fn update_irq(&self, context: &mut Context<'_>) {
        let keyboard = self.state.full == Some(Source::Keyboard) && self.has(KEYBOARD_INTERRUPT);
        let auxiliary = self.state.full == Some(Source::Auxiliary) && self.has(AUXILIARY_INTERRUPT);
        context.irq.set(KEYBOARD_IRQ, keyboard);
        context.irq.set(AUXILIARY_IRQ, auxiliary);
    }

    /// Puts a byte into the output buffer. One that nobody has read is lost: software
    /// empties the buffer before it gives a command that replies.
    fn put(&mut self, source: Source, byte: u8) {
        self.state.output = byte;
        self.state.full = Some(source);
    }

    fn read_data(&mut self, context: &mut Context<'_>) -> u8 {
        self.state.full = None;
        self.start_transfer(context);
        self.update_irq(context);
        self.state.output
    }

    fn write_data(&mut self, context: &mut Context<'_>, byte: u8) {
        self.state.last_was_command = false;
        match self.state.argument.take() {
            Some(Argument::CommandByte) => self.state.command_byte = byte & COMMAND_BYTE_BITS,
            Some(Argument::OutputPort) => self.write_output_port(context, byte),
            Some(Argument::KeyboardOutput) => self.put(Source::Keyboard, byte),
            Some(Argument::AuxiliaryOutput) => self.put(Source::Auxiliary, byte),
            Some(Argument::AuxiliaryDevice) => {
                self.state.command_byte &= !AUXILIARY_DISABLED;
                self.state.mouse.receive(byte);
            }
            None => {
                // Sending enables the interface, or the keyboard could not answer.
                self.state.command_byte &= !KEYBOARD_DISABLED;
                self.state.keyboard.receive(byte);
            }
        }
        self.start_transfer(context);
        self.update_irq(context);
    }

    fn write_command(&mut self, context: &mut Context<'_>, command: u8) {
        self.state.last_was_command = true;
        self.state.argument = None;
        match command {
            0x20 => self.put(Source::Keyboard, self.state.command_byte),
            0x60 => self.state.argument = Some(Argument::CommandByte),
            0xa7 => self.state.command_byte |= AUXILIARY_DISABLED,
            0xa8 => self.state.command_byte &= !AUXILIARY_DISABLED,
            0xa9 | 0xab => self.put(Source::Keyboard, INTERFACE_TEST_PASSED),
            0xaa => {
                self.state.command_byte |= SYSTEM_FLAG;
                self.put(Source::Keyboard, SELF_TEST_PASSED);
            }
            0xad => self.state.command_byte |= KEYBOARD_DISABLED,
            0xae => self.state.command_byte &= !KEYBOARD_DISABLED,
            0xc0 => self.put(Source::Keyboard, INPUT_PORT),
            0xd0 => self.put(Source::Keyboard, self.output_port()),
            0xd1 => self.state.argument = Some(Argument::OutputPort),
            0xd2 => self.state.argument = Some(Argument::KeyboardOutput),
            0xd3 => self.state.argument = Some(Argument::AuxiliaryOutput),
            0xd4 => self.state.argument = Some(Argument::AuxiliaryDevice),
            // Two commands that clones of the AT added, which guests try first.
            0xdd => self.set_a20(context, false),
            0xdf => self.set_a20(context, true),
            // Pulses those of output port bits 3:0 low whose bit is 0; only the reset line feels it.
            0xf0..=0xff if command & OUTPUT_PORT_RUN == 0 => context.output(Output::ProcessorReset),
            _ => {}
        }
        self.start_transfer(context);
        self.update_irq(context);
    }

    /// True when the keyboard or the mouse may send: its clock line is not held low.
    fn is_listening(&self, to: Source) -> bool {
        let disabled = match to {
            Source::Keyboard => KEYBOARD_DISABLED,
            Source::Auxiliary => AUXILIARY_DISABLED,
        };
        self.state.full.is_none() && !self.has(disabled)
    }

    /// Lets the next byte of the keyboard and of the mouse come in, if there is one and room for it.
    fn start_transfer(&mut self, context: &mut Context<'_>) {
        let arrival = context.now.plus_nanos(BYTE_NANOS);
        if !self.state.transferring
            && self.is_listening(Source::Keyboard)
            && self.state.keyboard.has_byte()
        {
            self.state.transferring = true;
            context.set_timer(KEYBOARD_ARRIVED, arrival);
        }
        if !self.state.auxiliary_transferring
            && self.is_listening(Source::Auxiliary)
            && self.state.mouse.has_byte()
        {
            self.state.auxiliary_transferring = true;
            context.set_timer(AUXILIARY_ARRIVED, arrival);
        }
    }

    /// A byte of the keyboard has passed the wire. What the controller stopped meanwhile is sent
    /// again later.
    fn take_from_keyboard(&mut self) {
        self.state.transferring = false;
        if self.is_listening(Source::Keyboard)
            && let Some(byte) = self.state.keyboard.send()
            && let Some(byte) = self.translate(byte)
        {
            self.put(Source::Keyboard, byte);
        }
    }

    /// The same for the mouse, whose bytes are not translated.
    fn take_from_mouse(&mut self, context: &mut Context<'_>) {
        self.state.auxiliary_transferring = false;
        if self.is_listening(Source::Auxiliary)
            && let Some((byte, begins_report)) = self.state.mouse.send()
        {
            self.put(Source::Auxiliary, byte);
            if begins_report {
                let pause = self.state.mouse.pause_nanos();
                context.set_timer(SAMPLE, context.now.plus_nanos(pause));
            }
        }
    }

    /// A person presses or releases a key. The last that was pressed is sent again while it is held.
    fn take_key(&mut self, context: &mut Context<'_>, key: Key, pressed: bool) {
        let keyboard = &mut self.state.keyboard;
        let before = keyboard.repeating();
        keyboard.key(key, pressed);
        if keyboard.repeating() != before {
            context.cancel_timer(REPEAT);
            if keyboard.repeating().is_some() {
                context.set_timer(REPEAT, context.now.plus_nanos(keyboard.delay_nanos()));
            }
        }
    }

    fn repeat_key(&mut self, context: &mut Context<'_>) {
        let keyboard = &mut self.state.keyboard;
        if keyboard.repeating().is_some() {
            keyboard.repeat();
            context.set_timer(REPEAT, context.now.plus_nanos(keyboard.period_nanos()));
        }
    }

    /// The keyboard's byte on its way to the output buffer. Translation turns a release
    /// prefix into bit 7 of the code that follows.
    fn translate(&mut self, byte: u8) -> Option<u8> {
        if !self.has(TRANSLATE) {
            return Some(byte);
        }
        if byte == RELEASE_PREFIX {
            self.state.releasing = true;
            return None;
        }
        let release = if std::mem::take(&mut self.state.releasing) { 0x80 } else { 0 };
        Some(scan_codes::translate(byte) | release)
    }
}

impl Device for I8042 {
    fn id(&self) -> DeviceId {
        DeviceId::I8042
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        self.state = State::default();
        context.drive_a20(self.state.a20);
    }

    fn peek_port(&self, port: u16) -> Option<u8> {
        (port == STATUS_PORT).then(|| self.status())
    }

    fn read_port(&mut self, context: &mut Context<'_>, port: u16, width: Width) -> u32 {
        bytewise::read(port, width, |port| match port {
            DATA_PORT => self.read_data(context),
            STATUS_PORT => self.status(),
            _ => 0xff,
        })
    }

    fn write_port(&mut self, context: &mut Context<'_>, port: u16, width: Width, value: u32) {
        bytewise::write(port, width, value, |port, byte| match port {
            DATA_PORT => self.write_data(context, byte),
            STATUS_PORT => self.write_command(context, byte),
            _ => {}
        });
    }

    fn timer(&mut self, context: &mut Context<'_>, tag: Tag) {
        match tag {
            KEYBOARD_ARRIVED => self.take_from_keyboard(),
            AUXILIARY_ARRIVED => self.take_from_mouse(context),
            REPEAT => self.repeat_key(context),
            _ => self.state.mouse.end_pause(),
        }
        self.start_transfer(context);
        self.update_irq(context);
    }

    fn input(&mut self, context: &mut Context<'_>, input: DeviceInput) {
        match input {
            DeviceInput::Key { key, pressed } => self.take_key(context, key, pressed),
            DeviceInput::Mouse(moved) => self.state.mouse.moved(&moved),
            _ => return,
        }
        self.start_transfer(context);
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        if state.command_byte & !COMMAND_BYTE_BITS != 0 {
            return Err(saved.damaged("reserved bits of the command byte are set"));
        }
        if !state.keyboard.is_possible() {
            return Err(saved.damaged("the keyboard cannot be in that state"));
        }
        if !state.mouse.is_possible() {
            return Err(saved.damaged("the mouse cannot be in that state"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
