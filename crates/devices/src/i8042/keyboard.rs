//! The keyboard: what it answers to the bytes that the controller sends it.
//!
//! From the IBM Personal System/2 Hardware Interface Technical Reference, "Keyboards
//! (101- and 102-Key)", commands from the system.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Before the code of a key that is released, in sets 2 and 3.
pub(super) const RELEASE_PREFIX: u8 = 0xf0;

const ACKNOWLEDGE: u8 = 0xfa;
const RESEND: u8 = 0xfe;
const ECHO: u8 = 0xee;
const TEST_PASSED: u8 = 0xaa;
const IDENTIFICATION: [u8; 2] = [0xab, 0x83];

/// The lowest byte that is a command, even where an option of a command before is due.
const FIRST_COMMAND: u8 = 0xed;
/// The longest answer: acknowledgement and identification.
const LONGEST_REPLY: usize = 3;
/// 10.9 characters in a second after 500 milliseconds.
const DEFAULT_TYPEMATIC: u8 = 0x2b;
const SCAN_SETS: std::ops::RangeInclusive<u8> = 1..=3;
const DEFAULT_SCAN_SET: u8 = 2;

/// A command of which the option byte is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Pending {
    Leds,
    ScanSet,
    Typematic,
    /// The key whose type is set, which concerns scan code set 3 alone.
    KeyType,
}

/// A keyboard with 101 or 102 keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Keyboard {
    /// What it has to say to the last byte that it got.
    replies: VecDeque<u8>,
    pending: Option<Pending>,
    last_sent: u8,
    /// It sends keys.
    scanning: bool,
    scan_set: u8,
    /// Rate and delay as the command gives them.
    typematic: u8,
    /// Scroll lock, num lock, caps lock from bit 0 on.
    leds: u8,
}

impl Default for Keyboard {
    fn default() -> Keyboard {
        Keyboard {
            replies: VecDeque::new(),
            pending: None,
            last_sent: 0,
            scanning: true,
            scan_set: DEFAULT_SCAN_SET,
            typematic: DEFAULT_TYPEMATIC,
            leds: 0,
        }
    }
}

impl Keyboard {
    /// False for a state that no sequence of bytes leads to.
    pub(super) fn is_possible(&self) -> bool {
        self.replies.len() <= LONGEST_REPLY && SCAN_SETS.contains(&self.scan_set)
    }

    /// True when [`Keyboard::send`] would return something.
    pub(super) fn has_byte(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Takes out the next byte for the controller.
    pub(super) fn send(&mut self) -> Option<u8> {
        let byte = self.replies.pop_front()?;
        self.last_sent = byte;
        Some(byte)
    }

    /// Takes a byte from the controller. It breaks off an answer to the one before.
    pub(super) fn receive(&mut self, byte: u8) {
        self.replies.clear();
        match self.pending.take() {
            Some(command) if byte < FIRST_COMMAND => self.take_option(command, byte),
            _ => self.execute(byte),
        }
    }

    fn execute(&mut self, command: u8) {
        match command {
            0xed => self.await_option(Pending::Leds),
            0xee => self.reply(&[ECHO]),
            0xf0 => self.await_option(Pending::ScanSet),
            0xf2 => {
                self.reply(&[ACKNOWLEDGE]);
                self.reply(&IDENTIFICATION);
            }
            0xf3 => self.await_option(Pending::Typematic),
            0xf4 => {
                self.scanning = true;
                self.reply(&[ACKNOWLEDGE]);
            }
            // Default disable, and set default.
            0xf5 | 0xf6 => {
                self.scanning &= command == 0xf6;
                self.typematic = DEFAULT_TYPEMATIC;
                self.reply(&[ACKNOWLEDGE]);
            }
            // The types of all keys, which concern scan code set 3 alone.
            0xf7..=0xfa => self.reply(&[ACKNOWLEDGE]),
            0xfb..=0xfd => self.await_option(Pending::KeyType),
            0xfe => self.reply(&[self.last_sent]),
            0xff => {
                *self = Keyboard::default();
                self.reply(&[ACKNOWLEDGE, TEST_PASSED]);
            }
            _ => self.reply(&[RESEND]),
        }
    }

    fn take_option(&mut self, command: Pending, option: u8) {
        match command {
            Pending::Leds => self.leds = option & 0x07,
            Pending::Typematic => self.typematic = option & 0x7f,
            Pending::ScanSet if option == 0 => {
                return self.reply(&[ACKNOWLEDGE, self.scan_set]);
            }
            Pending::ScanSet if SCAN_SETS.contains(&option) => self.scan_set = option,
            Pending::ScanSet => return self.reply(&[RESEND]),
            Pending::KeyType => {}
        }
        self.reply(&[ACKNOWLEDGE]);
    }

    fn await_option(&mut self, command: Pending) {
        self.pending = Some(command);
        self.reply(&[ACKNOWLEDGE]);
    }

    fn reply(&mut self, bytes: &[u8]) {
        self.replies.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(keyboard: &mut Keyboard, bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        for byte in bytes {
            keyboard.receive(*byte);
            answers.extend(std::iter::from_fn(|| keyboard.send()));
        }
        answers
    }

    #[test]
    fn commands_are_answered_as_the_reference_says() {
        let dialogues: [(&[u8], &[u8]); 10] = [
            (&[0xff], &[0xfa, 0xaa]),
            (&[0xf2], &[0xfa, 0xab, 0x83]),
            (&[0xee], &[0xee]),
            (&[0xed, 0x07], &[0xfa, 0xfa]),
            (&[0xf3, 0x20], &[0xfa, 0xfa]),
            (&[0xf0, 0x00], &[0xfa, 0xfa, 0x02]),
            (&[0xf0, 0x03, 0xf0, 0x00], &[0xfa, 0xfa, 0xfa, 0xfa, 0x03]),
            (&[0xf0, 0x09], &[0xfa, 0xfe]),
            (&[0x12], &[0xfe]),
            (&[0xee, 0xfe], &[0xee, 0xee]),
        ];
        for (sent, answers) in dialogues {
            assert_eq!(exchange(&mut Keyboard::default(), sent), answers, "{sent:x?}");
        }
    }

    #[test]
    fn a_command_where_an_option_is_due_is_a_command() {
        let mut keyboard = Keyboard::default();
        assert_eq!(exchange(&mut keyboard, &[0xed, 0xee, 0x01]), [0xfa, 0xee, 0xfe]);
        assert_eq!(keyboard.leds, 0);
    }

    #[test]
    fn defaults_come_back() {
        let mut keyboard = Keyboard::default();
        exchange(&mut keyboard, &[0xf3, 0x00, 0xed, 0x02, 0xf5]);
        assert_eq!((keyboard.scanning, keyboard.typematic), (false, DEFAULT_TYPEMATIC));
        exchange(&mut keyboard, &[0xf6]);
        assert!(!keyboard.scanning, "set default does not enable");
        exchange(&mut keyboard, &[0xf4]);
        assert!(keyboard.scanning);
        assert_eq!(keyboard.leds, 2);
        exchange(&mut keyboard, &[0xff]);
        assert_eq!(keyboard, Keyboard { last_sent: 0xaa, ..Keyboard::default() });
    }
}
