//! Scan codes: what a keyboard sends for a key in each of its three sets, and what the controller makes of set 2.
//!
//! From the tables of the IBM Personal System/2 Hardware Interface Technical Reference, "Keyboards (101- and
//! 102-Key)", and for keys that came later from Microsoft's "Keyboard Scan Code Specification".

use ring3_core::input::Key;

/// Before the code of a key that is released, in sets 2 and 3.
pub(super) const RELEASE_PREFIX: u8 = 0xf0;
/// Before the codes of keys that the first PC's keyboard had not got, in sets 1 and 2.
const EXTENDED_PREFIX: u8 = 0xe0;
/// The bit that tells the release of a key in set 1.
const RELEASED: u8 = 0x80;

/// Alt with print screen: that key has a code of its own.
pub(super) const SYS_RQ: Key = Key(0x54);
/// Control with pause: likewise.
pub(super) const BREAK: Key = Key(0xe046);
pub(super) const PAUSE: Key = Key(0xe11d);
pub(super) const PRINT_SCREEN: Key = Key(0xe037);
pub(super) const KEYPAD_DIVIDE: Key = Key(0xe035);
/// What keyboards send as if a shift key was pressed or released, for keys that other keyboards had on the numeric pad.
pub(super) const FAKE_LEFT_SHIFT: Key = Key(0xe02a);
pub(super) const FAKE_RIGHT_SHIFT: Key = Key(0xe036);

/// What a keyboard sends for pause, which has no code for its release.
const PAUSE_SET_1: [u8; 6] = [0xe1, 0x1d, 0x45, 0xe1, 0x9d, 0xc5];
const PAUSE_SET_2: [u8; 8] = [0xe1, 0x14, 0x77, 0xe1, 0xf0, 0x14, 0xf0, 0x77];

/// The sets that differ in their codes alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanSet {
    One,
    Two,
}

/// True for a key that can be told in set 1.
pub(super) fn is_key(key: Key) -> bool {
    key == PAUSE || matches!(key.0 >> 8, 0 | 0xe0) && matches!(key.0 & 0xff, 1..0x80)
}

/// The codes for `key` pressed or released in set 1 or 2.
pub(super) fn codes(set: ScanSet, key: Key, pressed: bool) -> Vec<u8> {
    if key == PAUSE {
        return match (pressed, set) {
            (false, _) => Vec::new(),
            (true, ScanSet::One) => PAUSE_SET_1.to_vec(),
            (true, ScanSet::Two) => PAUSE_SET_2.to_vec(),
        };
    }
    let code = key.0 as u8;
    let mut codes = Vec::with_capacity(3);
    if key.0 >> 8 != 0 {
        codes.push(EXTENDED_PREFIX);
    }
    if set == ScanSet::One {
        codes.push(if pressed { code } else { code | RELEASED });
    } else {
        if !pressed {
            codes.push(RELEASE_PREFIX);
        }
        codes.push(set_2(code));
    }
    codes
}

/// The code of set 2 that translation turns into `code` of set 1. Of two that it does, the later one
/// in the table is that of a key: F7 and Alt with print screen.
fn set_2(code: u8) -> u8 {
    SET_2_TO_SET_1.iter().rposition(|of| *of == code).map_or(0, |index| index as u8)
}

/// What translation makes of a code of set 2.
pub(super) fn translate(code: u8) -> u8 {
    SET_2_TO_SET_1.get(usize::from(code)).copied().unwrap_or(code)
}

/// What the keyboard tells of a key in set 3, unless the system wants it otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DefaultType {
    Make,
    MakeBreak,
    Typematic,
}

/// The code of `key` in set 3, and its type; none for a key that set 3 does not know.
pub(super) fn set_3(key: Key) -> Option<(u8, DefaultType)> {
    let (_, code) = SET_3.iter().find(|(of, _)| *of == key.0)?;
    // Modifiers of the left side; and what neither types nor moves the cursor.
    let default_type = match key.0 {
        0x1d | 0x2a | 0x36 | 0x38 | 0x3a => DefaultType::MakeBreak,
        0x4e | 0xe048 | 0xe04b | 0xe04d | 0xe050 | 0xe053 => DefaultType::Typematic,
        0x01 | 0x37 | 0x3b..=0x54 | 0x57..=0x58 | 0xe000.. => DefaultType::Make,
        _ => DefaultType::Typematic,
    };
    Some((*code, default_type))
}

/// Keys and their codes in set 3.
#[rustfmt::skip]
const SET_3: &[(u16, u8)] = &[
    (0x01, 0x08), (0x02, 0x16), (0x03, 0x1e), (0x04, 0x26), (0x05, 0x25), (0x06, 0x2e), (0x07, 0x36), (0x08, 0x3d),
    (0x09, 0x3e), (0x0a, 0x46), (0x0b, 0x45), (0x0c, 0x4e), (0x0d, 0x55), (0x0e, 0x66), (0x0f, 0x0d), (0x10, 0x15),
    (0x11, 0x1d), (0x12, 0x24), (0x13, 0x2d), (0x14, 0x2c), (0x15, 0x35), (0x16, 0x3c), (0x17, 0x43), (0x18, 0x44),
    (0x19, 0x4d), (0x1a, 0x54), (0x1b, 0x5b), (0x1c, 0x5a), (0x1d, 0x11), (0x1e, 0x1c), (0x1f, 0x1b), (0x20, 0x23),
    (0x21, 0x2b), (0x22, 0x34), (0x23, 0x33), (0x24, 0x3b), (0x25, 0x42), (0x26, 0x4b), (0x27, 0x4c), (0x28, 0x52),
    (0x29, 0x0e), (0x2a, 0x12), (0x2b, 0x5c), (0x2c, 0x1a), (0x2d, 0x22), (0x2e, 0x21), (0x2f, 0x2a), (0x30, 0x32),
    (0x31, 0x31), (0x32, 0x3a), (0x33, 0x41), (0x34, 0x49), (0x35, 0x4a), (0x36, 0x59), (0x37, 0x7e), (0x38, 0x19),
    (0x39, 0x29), (0x3a, 0x14), (0x3b, 0x07), (0x3c, 0x0f), (0x3d, 0x17), (0x3e, 0x1f), (0x3f, 0x27), (0x40, 0x2f),
    (0x41, 0x37), (0x42, 0x3f), (0x43, 0x47), (0x44, 0x4f), (0x45, 0x76), (0x46, 0x5f), (0x47, 0x6c), (0x48, 0x75),
    (0x49, 0x7d), (0x4a, 0x84), (0x4b, 0x6b), (0x4c, 0x73), (0x4d, 0x74), (0x4e, 0x7c), (0x4f, 0x69), (0x50, 0x72),
    (0x51, 0x7a), (0x52, 0x70), (0x53, 0x71), (0x54, 0x57), (0x56, 0x13), (0x57, 0x56), (0x58, 0x5e),
    (0xe01c, 0x79), (0xe01d, 0x58), (0xe035, 0x77), (0xe037, 0x57), (0xe038, 0x39), (0xe046, 0x62), (0xe047, 0x6e),
    (0xe048, 0x63), (0xe049, 0x6f), (0xe04b, 0x61), (0xe04d, 0x6a), (0xe04f, 0x65), (0xe050, 0x60), (0xe051, 0x6d),
    (0xe052, 0x67), (0xe053, 0x64), (0xe05b, 0x8b), (0xe05c, 0x8c), (0xe05d, 0x8d), (0xe11d, 0x62),
];

/// What translation makes of each code of set 2; codes from 85h on stay as they are. Codes of
/// no key follow the controller's program.
#[rustfmt::skip]
const SET_2_TO_SET_1: [u8; 0x85] = [
//    0     1     2     3     4     5     6     7     8     9     a     b     c     d     e     f
    0xff, 0x43, 0x41, 0x3f, 0x3d, 0x3b, 0x3c, 0x58, 0x64, 0x44, 0x42, 0x40, 0x3e, 0x0f, 0x29, 0x59, // 0
    0x65, 0x38, 0x2a, 0x70, 0x1d, 0x10, 0x02, 0x5a, 0x66, 0x71, 0x2c, 0x1f, 0x1e, 0x11, 0x03, 0x5b, // 1
    0x67, 0x2e, 0x2d, 0x20, 0x12, 0x05, 0x04, 0x5c, 0x68, 0x39, 0x2f, 0x21, 0x14, 0x13, 0x06, 0x5d, // 2
    0x69, 0x31, 0x30, 0x23, 0x22, 0x15, 0x07, 0x5e, 0x6a, 0x72, 0x32, 0x24, 0x16, 0x08, 0x09, 0x5f, // 3
    0x6b, 0x33, 0x25, 0x17, 0x18, 0x0b, 0x0a, 0x60, 0x6c, 0x34, 0x35, 0x26, 0x27, 0x19, 0x0c, 0x61, // 4
    0x6d, 0x73, 0x28, 0x74, 0x1a, 0x0d, 0x62, 0x6e, 0x3a, 0x36, 0x1c, 0x1b, 0x75, 0x2b, 0x63, 0x76, // 5
    0x55, 0x56, 0x77, 0x78, 0x79, 0x7a, 0x0e, 0x7b, 0x7c, 0x4f, 0x7d, 0x4b, 0x47, 0x7e, 0x7f, 0x6f, // 6
    0x52, 0x53, 0x50, 0x4c, 0x4d, 0x48, 0x01, 0x45, 0x57, 0x4e, 0x51, 0x4a, 0x37, 0x49, 0x46, 0x54, // 7
    0x80, 0x81, 0x82, 0x41, 0x54,                                                                   // 8
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_keys_translate_to_the_same_code() {
        // 83h and 84h stand for keys that set 2 has a second code for: F7 and Alt + SysRq.
        let mut codes = SET_2_TO_SET_1[..0x83].to_vec();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), 0x83);
    }

    #[test]
    fn every_key_has_codes_in_sets_1_and_2_that_translation_joins() {
        let mut keys = 0;
        for key in (0..=u16::MAX).map(Key).filter(|key| is_key(*key) && *key != PAUSE) {
            for pressed in [true, false] {
                let mut released = 0;
                let translated = codes(ScanSet::Two, key, pressed).into_iter().filter_map(|code| {
                    if code == RELEASE_PREFIX {
                        released = RELEASED;
                        return None;
                    }
                    Some(translate(code) | released)
                });
                let expected: Vec<_> = translated.collect();
                assert_eq!(codes(ScanSet::One, key, pressed), expected, "{key:x?}");
            }
            keys += 1;
        }
        assert_eq!(keys, 2 * 0x7f);
    }

    #[test]
    fn codes_are_those_of_the_reference() {
        // Escape, F7, right control, Alt with print screen, end.
        let known: [(u16, &[u8], &[u8]); 5] = [
            (0x01, &[0x76], &[0xf0, 0x76]),
            (0x41, &[0x83], &[0xf0, 0x83]),
            (0xe01d, &[0xe0, 0x14], &[0xe0, 0xf0, 0x14]),
            (0x54, &[0x84], &[0xf0, 0x84]),
            (0xe04f, &[0xe0, 0x69], &[0xe0, 0xf0, 0x69]),
        ];
        for (key, make, break_codes) in known {
            assert_eq!(codes(ScanSet::Two, Key(key), true), make);
            assert_eq!(codes(ScanSet::Two, Key(key), false), break_codes);
        }
        assert_eq!(codes(ScanSet::One, Key(0xe01d), false), [0xe0, 0x9d]);
    }

    #[test]
    fn set_3_has_one_code_for_each_key() {
        let mut codes: Vec<_> = SET_3.iter().map(|(_, code)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        // Print screen and pause have one code whatever is held with them.
        assert_eq!(codes.len(), SET_3.len() - 2);
        assert_eq!(set_3(Key(0x1e)), Some((0x1c, DefaultType::Typematic)));
        assert_eq!(set_3(Key(0x1d)), Some((0x11, DefaultType::MakeBreak)));
        assert_eq!(set_3(Key(0xe01d)), Some((0x58, DefaultType::Make)));
        assert_eq!(set_3(Key(0x3b)), Some((0x07, DefaultType::Make)));
        assert_eq!(set_3(Key(0xe05e)), None);
    }
}
