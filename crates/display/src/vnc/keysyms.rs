//! Converts X11 keysyms to keys (RFC 6143, section 7.5.4; X Window System Protocol, appendix A, "KEYSYM
//! Encoding"; X11's keysymdef.h).

use ring3_core::input::Key;
use ring3_core::keys;

/// The key that a keysym stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meant {
    /// The key.
    pub(crate) key: Key,
    /// Whether Shift must be down for the key to give the keysym's character, or None if it makes no
    /// difference.
    pub(crate) shift: Option<bool>,
    /// Whether the character is a letter, on which Caps Lock acts.
    pub(crate) letter: bool,
}

/// The keysym of a Unicode character outside Latin-1 is the sum of this and the character's code.
const UNICODE: u32 = 0x0100_0000;

/// Returns the key of `keysym`, or None if a US keyboard does not have one.
///
/// Keys that select the third level of a layout are left out, since the keysym that follows already is the
/// character.
pub(crate) fn meant(keysym: u32) -> Option<Meant> {
    let keysym = match keysym {
        0xfe03 | 0xff7e => return None, // ISO_Level3_Shift, Mode_switch
        UNICODE.. => keysym - UNICODE,
        _ => away_from_keypad(keysym),
    };
    let character = char::from_u32(keysym).filter(|character| (' '..='~').contains(character));
    let Some(character) = character else {
        return Some(Meant { key: keys::by_keysym(keysym)?, shift: None, letter: false });
    };
    let (key, shift) = keys::for_character(character)?;
    // The space bar gives a space with Shift, too.
    let shift = (character != ' ').then_some(shift);
    Some(Meant { key, shift, letter: character.is_ascii_alphabetic() })
}

/// Returns, for a keysym of the keypad that depends on Num Lock, that of another key which always has the
/// same effect. The client has already applied its own Num Lock, and the guest's may differ.
fn away_from_keypad(keysym: u32) -> u32 {
    match keysym {
        0xff80 => u32::from(' '),
        0xffac => u32::from(','),
        0xffae => u32::from('.'),
        0xffb0..=0xffb9 => keysym - 0xffb0 + u32::from('0'),
        0xffbd => u32::from('='),
        0xff89 => 0xff09,                            // Tab
        0xff95..=0xff9c => keysym - 0xff95 + 0xff50, // Home, the arrows, Page_Up, Page_Down, End
        0xff9e => 0xff63,                            // Insert
        0xff9f => 0xffff,                            // Delete
        other => other,
    }
}

/// Returns the key for a keycode of QEMU's extended key events: a code of scan code set 1, with bit 7 in
/// place of E0h before it.
pub(crate) fn key_of_keycode(keycode: u32) -> Option<Key> {
    match keycode {
        // The codes that clients send for Print Screen and Pause, whose real codes are sequences.
        0x54 => keys::by_name("print"),
        0xc6 => keys::by_name("pause"),
        0x01..=0x7f => Some(Key(keycode as u16)),
        0x81..=0xff => Some(Key(0xe000 | keycode as u16 & 0x7f)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(code: u16) -> Meant {
        Meant { key: Key(code), shift: None, letter: false }
    }

    #[test]
    fn each_character_states_whether_it_needs_shift() {
        let a = meant(u32::from('a')).unwrap();
        assert_eq!(a, Meant { key: Key(0x1e), shift: Some(false), letter: true });
        let percent = meant(u32::from('%')).unwrap();
        assert_eq!(percent, Meant { key: Key(0x06), shift: Some(true), letter: false });
        assert_eq!(meant(u32::from(' ')).unwrap().shift, None);
        assert_eq!(meant(UNICODE + u32::from('a')), meant(u32::from('a')));
    }

    #[test]
    fn the_keypad_sends_digits_or_cursor_keys_as_the_client_says() {
        assert_eq!(meant(0xffb7), meant(u32::from('7')));
        assert_eq!(meant(0xff95), Some(other(0xe047)));
        assert_eq!(meant(0xff9b), Some(other(0xe051)));
        assert_eq!(meant(0xff9c), Some(other(0xe04f)));
        assert_eq!(meant(0xff8d), Some(other(0xe01c)));
    }

    #[test]
    fn function_keys() {
        assert_eq!(meant(0xffbe), Some(other(0x3b)));
        assert_eq!(meant(0xffc9), Some(other(0x58)));
    }

    #[test]
    fn a_character_that_a_us_keyboard_lacks_has_no_key() {
        for keysym in [0, 10, 0xe9, 0xfe03, UNICODE + 10, UNICODE + 0x20ac, u32::MAX] {
            assert_eq!(meant(keysym), None, "{keysym:x}");
        }
    }

    #[test]
    fn keycodes_of_extended_events() {
        assert_eq!(key_of_keycode(0x1e), Some(Key(0x1e)));
        assert_eq!(key_of_keycode(0x9d), Some(Key(0xe01d)));
        assert_eq!(key_of_keycode(0xc6), Some(Key(0xe11d)));
        for none in [0, 0x80, 0x100, u32::MAX] {
            assert_eq!(key_of_keycode(none), None);
        }
    }
}
