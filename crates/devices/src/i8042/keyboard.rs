//! The keyboard: what it answers to the bytes that the controller sends it, and what it sends for keys.
//!
//! From the IBM Personal System/2 Hardware Interface Technical Reference, "Keyboards
//! (101- and 102-Key)", commands from the system.

use std::collections::{BTreeMap, VecDeque};

use ring3_core::input::Key;
use serde::{Deserialize, Serialize};

use super::scan_codes::{self, DefaultType, ScanSet};
use super::scan_codes::{
    BREAK, FAKE_LEFT_SHIFT, FAKE_RIGHT_SHIFT, KEYPAD_DIVIDE, PAUSE, PRINT_SCREEN, SYS_RQ,
};

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
const LED_NUM_LOCK: u8 = 1 << 1;

/// Room for codes of keys ("Buffer").
const BUFFER_BYTES: usize = 16;
/// What stands for the keys for which there was no room, in set 1 and in the others; no key's code.
const OVERRUN_SET_1: u8 = 0xff;
const OVERRUN: u8 = 0x00;

const LEFT_SHIFT: Key = Key(0x2a);
const RIGHT_SHIFT: Key = Key(0x36);
const CONTROL: [Key; 2] = [Key(0x1d), Key(0xe01d)];
const ALT: [Key; 2] = [Key(0x38), Key(0xe038)];

/// A command of which the option byte is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Pending {
    Leds,
    ScanSet,
    Typematic,
    /// The key whose type is set, which concerns scan code set 3 alone.
    KeyType(KeyType),
}

/// What the keyboard tells of a key in set 3, beyond that it was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct KeyType {
    /// It is sent again and again while it is held.
    typematic: bool,
    /// Its release is told.
    breaks: bool,
}

impl From<DefaultType> for KeyType {
    fn from(default: DefaultType) -> KeyType {
        KeyType {
            typematic: default == DefaultType::Typematic,
            breaks: default == DefaultType::MakeBreak,
        }
    }
}

/// A keyboard with 101 or 102 keys, and those that came later.
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
    /// Codes of keys that are still to be sent.
    #[serde(default)]
    buffer: VecDeque<u8>,
    /// The keys that are down, and as which key each was told.
    #[serde(default)]
    held: BTreeMap<Key, Key>,
    /// The key that is sent again and again.
    #[serde(default)]
    repeating: Option<Key>,
    /// The type of all keys in set 3, where it is not their own.
    #[serde(default)]
    all_types: Option<KeyType>,
    /// The types of single keys in set 3, by their codes there.
    #[serde(default)]
    types: BTreeMap<u8, KeyType>,
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
            buffer: VecDeque::new(),
            held: BTreeMap::new(),
            repeating: None,
            all_types: None,
            types: BTreeMap::new(),
        }
    }
}

impl Keyboard {
    /// False for a state that no sequence of bytes and keys leads to.
    pub(super) fn is_possible(&self) -> bool {
        self.replies.len() <= LONGEST_REPLY
            && SCAN_SETS.contains(&self.scan_set)
            && self.buffer.len() <= BUFFER_BYTES + 1
            && self
                .held
                .iter()
                .all(|(key, told)| scan_codes::is_key(*key) && scan_codes::is_key(*told))
            && self.repeating.is_none_or(scan_codes::is_key)
    }

    /// True when [`Keyboard::send`] would return something.
    pub(super) fn has_byte(&self) -> bool {
        !self.replies.is_empty() || self.pending.is_none() && !self.buffer.is_empty()
    }

    /// Takes out the next byte for the controller. Codes of keys wait while an option is due.
    pub(super) fn send(&mut self) -> Option<u8> {
        let reply = self.replies.pop_front();
        let byte = match self.pending {
            None => reply.or_else(|| self.buffer.pop_front())?,
            Some(_) => reply?,
        };
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

    /// A key was pressed or released. One that is down already or none of a keyboard's is ignored.
    pub(super) fn key(&mut self, key: Key, pressed: bool) {
        if pressed {
            if self.scanning && scan_codes::is_key(key) && !self.held.contains_key(&key) {
                self.press(key);
            }
        } else if let Some(told) = self.held.remove(&key) {
            if self.repeating == Some(told) {
                self.repeating = None;
            }
            if self.scanning {
                let codes = self.release_codes(told);
                self.store(&codes);
            }
        }
    }

    /// The key that is sent again and again, if one is held.
    pub(super) fn repeating(&self) -> Option<Key> {
        self.repeating
    }

    /// Sends the key that is held again, if one is.
    pub(super) fn repeat(&mut self) {
        if let Some(key) = self.repeating {
            let codes = self.codes(key, true);
            self.store(&codes);
        }
    }

    /// From a key to its first repetition, in nanoseconds ("Set Typematic Rate/Delay").
    pub(super) fn delay_nanos(&self) -> u64 {
        (1 + u64::from(self.typematic >> 5 & 3)) * 250_000_000
    }

    /// From one repetition to the next, in nanoseconds.
    pub(super) fn period_nanos(&self) -> u64 {
        (8 + u64::from(self.typematic & 7)) * (1 << (self.typematic >> 3 & 3)) * 4_170_000
    }

    fn press(&mut self, key: Key) {
        let told = match key {
            PRINT_SCREEN if self.is_held(ALT) => SYS_RQ,
            PAUSE if self.is_held(CONTROL) => BREAK,
            _ => key,
        };
        let codes = self.press_codes(told);
        self.held.insert(key, told);
        self.repeating = self.is_typematic(told).then_some(told);
        self.store(&codes);
    }

    fn is_held(&self, keys: [Key; 2]) -> bool {
        keys.iter().any(|key| self.held.contains_key(key))
    }

    /// What is sent when `key` goes down, with the shift keys that are seemingly pressed or
    /// released before.
    fn press_codes(&self, key: Key) -> Vec<u8> {
        let mut codes = Vec::new();
        for (shift, pressed) in self.fake_shifts(key) {
            codes.extend(self.codes(shift, pressed));
        }
        codes.extend(self.codes(key, true));
        if key == BREAK {
            // Its release is told at once, as that of pause.
            codes.extend(self.codes(key, false));
        }
        codes
    }

    /// What is sent when `key` comes up: the reverse.
    fn release_codes(&self, key: Key) -> Vec<u8> {
        let mut codes = if key == BREAK { Vec::new() } else { self.codes(key, false) };
        for (shift, pressed) in self.fake_shifts(key) {
            codes.extend(self.codes(shift, !pressed));
        }
        codes
    }

    /// The shift keys that are to look pressed or released while `key` is, so that software which
    /// knows the first PC's keyboard alone takes it for the key of that keyboard ("Scan Code Set 1").
    fn fake_shifts(&self, key: Key) -> Vec<(Key, bool)> {
        let shift_held = self.is_held([LEFT_SHIFT, RIGHT_SHIFT]);
        let num_lock = self.leds & LED_NUM_LOCK != 0;
        let release_shifts = match key {
            _ if self.scan_set == 3 => false,
            PRINT_SCREEN if shift_held || self.is_held(CONTROL) => false,
            PRINT_SCREEN => return vec![(FAKE_LEFT_SHIFT, true)],
            KEYPAD_DIVIDE => shift_held,
            // Insert, delete, and the keys that move the cursor.
            Key(0xe047..=0xe049 | 0xe04b | 0xe04d | 0xe04f..=0xe053) => {
                if num_lock && !shift_held {
                    return vec![(FAKE_LEFT_SHIFT, true)];
                }
                shift_held && !num_lock
            }
            _ => false,
        };
        let shifts = [(LEFT_SHIFT, FAKE_LEFT_SHIFT), (RIGHT_SHIFT, FAKE_RIGHT_SHIFT)];
        let held =
            shifts.iter().filter(|(shift, _)| release_shifts && self.held.contains_key(shift));
        held.map(|(_, fake)| (*fake, false)).collect()
    }

    /// What is sent for `key` alone.
    fn codes(&self, key: Key, pressed: bool) -> Vec<u8> {
        match self.scan_set {
            1 => scan_codes::codes(ScanSet::One, key, pressed),
            2 => scan_codes::codes(ScanSet::Two, key, pressed),
            _ => match scan_codes::set_3(key) {
                Some((code, _)) if pressed => vec![code],
                Some((code, default)) if self.key_type(code, default).breaks => {
                    vec![scan_codes::RELEASE_PREFIX, code]
                }
                _ => Vec::new(),
            },
        }
    }

    fn is_typematic(&self, key: Key) -> bool {
        match self.scan_set {
            3 => scan_codes::set_3(key)
                .is_some_and(|(code, default)| self.key_type(code, default).typematic),
            _ => key != PAUSE && key != BREAK,
        }
    }

    fn key_type(&self, code: u8, default: DefaultType) -> KeyType {
        self.types.get(&code).copied().or(self.all_types).unwrap_or(default.into())
    }

    /// Puts the codes of a key into the buffer: all of them, or one that says that there was no room.
    fn store(&mut self, codes: &[u8]) {
        let overrun = if self.scan_set == 1 { OVERRUN_SET_1 } else { OVERRUN };
        if matches!(self.buffer.back(), Some(&(OVERRUN | OVERRUN_SET_1))) {
            return;
        }
        if self.buffer.len() + codes.len() <= BUFFER_BYTES {
            self.buffer.extend(codes);
        } else {
            self.buffer.push_back(overrun);
        }
    }

    /// Forgets the keys that were to be sent, and the one that is sent again.
    fn clear_buffer(&mut self) {
        self.buffer.clear();
        self.repeating = None;
    }

    fn execute(&mut self, command: u8) {
        match command {
            0xed => self.await_option(Pending::Leds),
            0xee => self.reply(&[ECHO]),
            0xf0 => {
                self.clear_buffer();
                self.await_option(Pending::ScanSet);
            }
            0xf2 => {
                self.reply(&[ACKNOWLEDGE]);
                self.reply(&IDENTIFICATION);
            }
            0xf3 => self.await_option(Pending::Typematic),
            0xf4 => {
                self.clear_buffer();
                self.scanning = true;
                self.reply(&[ACKNOWLEDGE]);
            }
            // Default disable, and set default.
            0xf5 | 0xf6 => {
                self.clear_buffer();
                self.scanning &= command == 0xf6;
                self.typematic = DEFAULT_TYPEMATIC;
                self.all_types = None;
                self.types.clear();
                self.reply(&[ACKNOWLEDGE]);
            }
            // The types of all keys: typematic, make/break, make, typematic/make/break.
            0xf7..=0xfa => {
                self.clear_buffer();
                let (typematic, breaks) = (matches!(command, 0xf7 | 0xfa), command & 1 == 0);
                self.all_types = Some(KeyType { typematic, breaks });
                self.types.clear();
                self.reply(&[ACKNOWLEDGE]);
            }
            // The type of one key: typematic, make/break, make.
            0xfb..=0xfd => {
                self.clear_buffer();
                let (typematic, breaks) = (command == 0xfb, command == 0xfc);
                self.await_option(Pending::KeyType(KeyType { typematic, breaks }));
            }
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
            Pending::KeyType(key_type) => {
                self.types.insert(option, key_type);
            }
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

    fn sent(keyboard: &mut Keyboard) -> Vec<u8> {
        std::iter::from_fn(|| keyboard.send()).collect()
    }

    fn exchange(keyboard: &mut Keyboard, bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        for byte in bytes {
            keyboard.receive(*byte);
            answers.extend(sent(keyboard));
        }
        answers
    }

    fn of_set(scan_set: u8) -> Keyboard {
        Keyboard { scan_set, ..Keyboard::default() }
    }

    fn press(keyboard: &mut Keyboard, key: u16) -> Vec<u8> {
        keyboard.key(Key(key), true);
        sent(keyboard)
    }

    fn release(keyboard: &mut Keyboard, key: u16) -> Vec<u8> {
        keyboard.key(Key(key), false);
        sent(keyboard)
    }

    #[test]
    fn commands_are_answered_as_the_reference_says() {
        let dialogues: [(&[u8], &[u8]); 11] = [
            (&[0xff], &[0xfa, 0xaa]),
            (&[0xf2], &[0xfa, 0xab, 0x83]),
            (&[0xee], &[0xee]),
            (&[0xed, 0x07], &[0xfa, 0xfa]),
            (&[0xf3, 0x20], &[0xfa, 0xfa]),
            (&[0xf0, 0x00], &[0xfa, 0xfa, 0x02]),
            (&[0xf0, 0x03, 0xf0, 0x00], &[0xfa, 0xfa, 0xfa, 0xfa, 0x03]),
            (&[0xf0, 0x09], &[0xfa, 0xfe]),
            (&[0xfc, 0x1c, 0xf9], &[0xfa, 0xfa, 0xfa]),
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

    #[test]
    fn pause_and_print_screen_depend_on_the_held_keys() {
        let mut keyboard = of_set(1);
        assert_eq!(press(&mut keyboard, 0xe037), [0xe0, 0x2a, 0xe0, 0x37]);
        keyboard.repeat();
        assert_eq!(sent(&mut keyboard), [0xe0, 0x37]);
        assert_eq!(release(&mut keyboard, 0xe037), [0xe0, 0xb7, 0xe0, 0xaa]);
        assert_eq!(press(&mut keyboard, 0x36), [0x36]);
        assert_eq!(press(&mut keyboard, 0xe037), [0xe0, 0x37]);
        assert_eq!(release(&mut keyboard, 0xe037), [0xe0, 0xb7]);
        assert_eq!(release(&mut keyboard, 0x36), [0xb6]);
        assert_eq!(press(&mut keyboard, 0x38), [0x38]);
        assert_eq!(press(&mut keyboard, 0xe037), [0x54]);
        assert_eq!(release(&mut keyboard, 0x38), [0xb8]);
        assert_eq!(release(&mut keyboard, 0xe037), [0xd4], "as it was told");
        assert_eq!(press(&mut keyboard, 0xe11d), [0xe1, 0x1d, 0x45, 0xe1, 0x9d, 0xc5]);
        assert_eq!(keyboard.repeating(), None);
        assert_eq!(release(&mut keyboard, 0xe11d), []);
        assert_eq!(press(&mut keyboard, 0x1d), [0x1d]);
        assert_eq!(press(&mut keyboard, 0xe11d), [0xe0, 0x46, 0xe0, 0xc6]);
        assert_eq!(release(&mut keyboard, 0xe11d), []);
        let mut keyboard = of_set(2);
        let pause = [0xe1, 0x14, 0x77, 0xe1, 0xf0, 0x14, 0xf0, 0x77];
        assert_eq!(press(&mut keyboard, 0xe11d), pause);
        assert_eq!(press(&mut keyboard, 0xe037), [0xe0, 0x12, 0xe0, 0x7c]);
        assert_eq!(release(&mut keyboard, 0xe037), [0xe0, 0xf0, 0x7c, 0xe0, 0xf0, 0x12]);
    }

    #[test]
    fn cursor_keys_seem_unshifted() {
        let mut keyboard = of_set(1);
        assert_eq!(press(&mut keyboard, 0xe048), [0xe0, 0x48]);
        assert_eq!(release(&mut keyboard, 0xe048), [0xe0, 0xc8]);
        press(&mut keyboard, 0x2a);
        assert_eq!(press(&mut keyboard, 0xe048), [0xe0, 0xaa, 0xe0, 0x48]);
        assert_eq!(release(&mut keyboard, 0xe048), [0xe0, 0xc8, 0xe0, 0x2a]);
        assert_eq!(press(&mut keyboard, 0xe035), [0xe0, 0xaa, 0xe0, 0x35]);
        assert_eq!(release(&mut keyboard, 0xe035), [0xe0, 0xb5, 0xe0, 0x2a]);
        exchange(&mut keyboard, &[0xed, 0x02]);
        assert_eq!(press(&mut keyboard, 0xe048), [0xe0, 0x48]);
        release(&mut keyboard, 0xe048);
        release(&mut keyboard, 0x2a);
        assert_eq!(press(&mut keyboard, 0xe048), [0xe0, 0x2a, 0xe0, 0x48]);
        assert_eq!(release(&mut keyboard, 0xe048), [0xe0, 0xc8, 0xe0, 0xaa]);
    }

    #[test]
    fn set_3_sends_the_codes_that_each_keys_type_asks_for() {
        let mut keyboard = of_set(3);
        assert_eq!(press(&mut keyboard, 0x1e), [0x1c]);
        assert_eq!(keyboard.repeating(), Some(Key(0x1e)));
        assert_eq!(release(&mut keyboard, 0x1e), []);
        assert_eq!(press(&mut keyboard, 0x2a), [0x12]);
        assert_eq!(release(&mut keyboard, 0x2a), [0xf0, 0x12]);
        assert_eq!(press(&mut keyboard, 0xe048), [0x63]);
        exchange(&mut keyboard, &[0xfc, 0x1c]);
        assert_eq!(press(&mut keyboard, 0x1e), [0x1c]);
        assert_eq!(keyboard.repeating(), None);
        assert_eq!(release(&mut keyboard, 0x1e), [0xf0, 0x1c]);
        for (command, typematic, breaks) in
            [(0xf7, true, false), (0xf8, false, true), (0xf9, false, false), (0xfa, true, true)]
        {
            exchange(&mut keyboard, &[command]);
            press(&mut keyboard, 0x30);
            assert_eq!(keyboard.repeating().is_some(), typematic);
            assert_eq!(!release(&mut keyboard, 0x30).is_empty(), breaks);
        }
        assert_eq!(press(&mut keyboard, 0xe05e), [], "a key that set 3 does not know");
    }

    #[test]
    fn keys_without_room_are_lost_and_an_overrun_is_reported() {
        let mut keyboard = of_set(2);
        for key in [0x02, 0x03, 0x04, 0x05, 0x06] {
            keyboard.key(Key(key), true);
            keyboard.key(Key(key), false);
        }
        // 15 bytes; the make code fits, the break code does not.
        keyboard.key(Key(0x07), true);
        keyboard.key(Key(0x07), false);
        keyboard.key(Key(0x08), true);
        assert!(keyboard.is_possible());
        let codes = sent(&mut keyboard);
        assert_eq!(codes.len(), 17);
        assert_eq!(codes[14..], [0x2e, 0x36, 0x00][..]);
        assert_eq!(release(&mut keyboard, 0x08), [0xf0, 0x3d]);
    }

    #[test]
    fn keys_wait_for_replies_and_options() {
        let mut keyboard = of_set(2);
        keyboard.key(Key(0x1e), true);
        assert_eq!(exchange(&mut keyboard, &[0xed]), [0xfa]);
        assert!(!keyboard.has_byte());
        assert_eq!(exchange(&mut keyboard, &[0x00]), [0xfa, 0x1c]);
    }

    #[test]
    fn a_disabled_keyboard_ignores_keys() {
        let mut keyboard = of_set(2);
        press(&mut keyboard, 0x1e);
        exchange(&mut keyboard, &[0xf5]);
        assert_eq!(keyboard.repeating(), None);
        assert_eq!(press(&mut keyboard, 0x1f), []);
        assert_eq!(release(&mut keyboard, 0x1e), []);
        exchange(&mut keyboard, &[0xf4]);
        assert_eq!(release(&mut keyboard, 0x1f), [], "it never went down");
        assert_eq!(press(&mut keyboard, 0x1e), [0x1c]);
        assert_eq!(press(&mut keyboard, 0x1e), [], "it is down");
        assert_eq!(press(&mut keyboard, 0x80), []);
        assert_eq!(press(&mut keyboard, 0xe200), []);
    }

    #[test]
    fn the_typematic_rate_is_that_of_the_reference() {
        let mut keyboard = Keyboard::default();
        let rates = [(0x00, 250, 30_000), (0x2b, 500, 10_900), (0x7f, 1000, 2_000)];
        for (byte, delay_millis, per_1000_seconds) in rates {
            exchange(&mut keyboard, &[0xf3, byte]);
            assert_eq!(keyboard.delay_nanos(), delay_millis * 1_000_000);
            let rate: u64 = 1_000_000_000_000 / keyboard.period_nanos();
            assert!(rate.abs_diff(per_1000_seconds) < 100, "{byte:#x}: {rate}");
        }
    }
}
