//! Finds a [`Key`] by the words, characters and symbols that tools and viewers use for it.
//!
//! The words are those that QEMU's monitor and its QMP use (`QKeyCode`), since tools send them. Keysyms are
//! those of the X Window System (`X11/keysymdef.h`), which the RFB protocol (RFC 6143, 7.5.4) uses as well.
//! Codes are those of scan code set 1, from Microsoft's "Keyboard Scan Code Specification", Appendix A.
//!
//! ```
//! use ring3_core::input::Key;
//! use ring3_core::keys;
//!
//! assert_eq!(keys::by_name("ret"), Some(Key(0x1c)));
//! assert_eq!(keys::for_character('?'), Some((Key(0x35), true)));
//! assert_eq!(keys::by_keysym(0xff52), keys::by_name("up"));
//! ```

use crate::input::Key;

/// The left shift key, which [`for_character`] may ask for.
pub const LEFT_SHIFT: Key = Key(0x2a);

/// What this module knows of a key.
struct Row {
    key: Key,
    /// The words for the key; [`name`] returns the first.
    names: &'static [&'static str],
    /// The characters that the key types on a US keyboard: alone, and with shift.
    characters: Option<(char, char)>,
    /// The keysyms of the key beyond those of its characters.
    keysyms: &'static [u32],
}

/// Makes the row of a key that types characters.
const fn typing(
    code: u16,
    names: &'static [&'static str],
    alone: char,
    shifted: char,
    keysyms: &'static [u32],
) -> Row {
    Row { key: Key(code), names, characters: Some((alone, shifted)), keysyms }
}

/// Makes the row of a key that types none.
const fn other(code: u16, names: &'static [&'static str], keysyms: &'static [u32]) -> Row {
    Row { key: Key(code), names, characters: None, keysyms }
}

/// Returns the key with this name, such as `a`, `ret`, `spc`, `ctrl`, `kp_enter` or `f1`.
pub fn by_name(name: &str) -> Option<Key> {
    KEYS.iter().find(|row| row.names.contains(&name)).map(|row| row.key)
}

/// Returns the name of `key`, or None for a key that no keyboard has.
pub fn name(key: Key) -> Option<&'static str> {
    row(key)?.names.first().copied()
}

/// Returns all names of keys, for help and for completion.
pub fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().flat_map(|row| row.names).copied()
}

/// Returns the key that types `character` on a US keyboard, and whether [`LEFT_SHIFT`] must be held with it.
/// A line feed or carriage return means the enter key; tab, backspace, delete and escape mean the keys of
/// these names.
pub fn for_character(character: char) -> Option<(Key, bool)> {
    let control = match character {
        '\n' | '\r' => Some(Key(0x1c)),
        '\t' => Some(Key(0x0f)),
        '\u{8}' => Some(Key(0x0e)),
        '\u{1b}' => Some(Key(0x01)),
        '\u{7f}' => Some(Key(0xe053)),
        _ => None,
    };
    control.map(|key| (key, false)).or_else(|| {
        KEYS.iter().find_map(|row| match row.characters? {
            (alone, _) if alone == character => Some((row.key, false)),
            (_, shifted) if shifted == character => Some((row.key, true)),
            _ => None,
        })
    })
}

/// Returns the key with X keysym `keysym` on a US keyboard. It does not matter whether shift is held: a
/// program that sends keysyms sends that of the shift key as well.
pub fn by_keysym(keysym: u32) -> Option<Key> {
    let found = KEYS.iter().find(|row| row.keysyms.contains(&keysym)).map(|row| row.key);
    // The keysyms of ASCII are the characters themselves. Control characters are not keysyms.
    let character = char::from_u32(keysym).filter(|character| (' '..='~').contains(character));
    found.or_else(|| Some(for_character(character?)?.0))
}

/// Returns the X keysym of `key` alone, without shift or num lock.
pub fn keysym(key: Key) -> Option<u32> {
    let row = row(key)?;
    let character = row.characters.map(|(alone, _)| u32::from(alone));
    character.or_else(|| row.keysyms.first().copied())
}

fn row(key: Key) -> Option<&'static Row> {
    KEYS.iter().find(|row| row.key == key)
}

/// The keys in the order of their codes. If two keys type the same character, a lookup returns the one with
/// the lower code. Keys of the numeric pad have keysyms and no characters.
#[rustfmt::skip]
static KEYS: &[Row] = &[
    other(0x01, &["esc"], &[0xff1b]),
    typing(0x02, &["1"], '1', '!', &[]),
    typing(0x03, &["2"], '2', '@', &[]),
    typing(0x04, &["3"], '3', '#', &[]),
    typing(0x05, &["4"], '4', '$', &[]),
    typing(0x06, &["5"], '5', '%', &[]),
    typing(0x07, &["6"], '6', '^', &[0xfe52]), // dead_circumflex
    typing(0x08, &["7"], '7', '&', &[]),
    typing(0x09, &["8"], '8', '*', &[]),
    typing(0x0a, &["9"], '9', '(', &[]),
    typing(0x0b, &["0"], '0', ')', &[]),
    typing(0x0c, &["minus"], '-', '_', &[]),
    typing(0x0d, &["equal"], '=', '+', &[]),
    other(0x0e, &["backspace"], &[0xff08]),
    other(0x0f, &["tab"], &[0xff09, 0xfe20]), // Tab, ISO_Left_Tab
    typing(0x10, &["q"], 'q', 'Q', &[]),
    typing(0x11, &["w"], 'w', 'W', &[]),
    typing(0x12, &["e"], 'e', 'E', &[]),
    typing(0x13, &["r"], 'r', 'R', &[]),
    typing(0x14, &["t"], 't', 'T', &[]),
    typing(0x15, &["y"], 'y', 'Y', &[]),
    typing(0x16, &["u"], 'u', 'U', &[]),
    typing(0x17, &["i"], 'i', 'I', &[]),
    typing(0x18, &["o"], 'o', 'O', &[]),
    typing(0x19, &["p"], 'p', 'P', &[]),
    typing(0x1a, &["bracket_left"], '[', '{', &[]),
    typing(0x1b, &["bracket_right"], ']', '}', &[]),
    other(0x1c, &["ret"], &[0xff0d, 0xff0a]), // Return, Linefeed
    other(0x1d, &["ctrl"], &[0xffe3]),
    typing(0x1e, &["a"], 'a', 'A', &[]),
    typing(0x1f, &["s"], 's', 'S', &[]),
    typing(0x20, &["d"], 'd', 'D', &[]),
    typing(0x21, &["f"], 'f', 'F', &[]),
    typing(0x22, &["g"], 'g', 'G', &[]),
    typing(0x23, &["h"], 'h', 'H', &[]),
    typing(0x24, &["j"], 'j', 'J', &[]),
    typing(0x25, &["k"], 'k', 'K', &[]),
    typing(0x26, &["l"], 'l', 'L', &[]),
    typing(0x27, &["semicolon"], ';', ':', &[]),
    typing(0x28, &["apostrophe"], '\'', '"', &[0xfe51, 0xfe57]), // dead_acute, dead_diaeresis
    typing(0x29, &["grave_accent"], '`', '~', &[0xfe50, 0xfe53]), // dead_grave, dead_tilde
    other(0x2a, &["shift"], &[0xffe1]),
    typing(0x2b, &["backslash"], '\\', '|', &[]),
    typing(0x2c, &["z"], 'z', 'Z', &[]),
    typing(0x2d, &["x"], 'x', 'X', &[]),
    typing(0x2e, &["c"], 'c', 'C', &[]),
    typing(0x2f, &["v"], 'v', 'V', &[]),
    typing(0x30, &["b"], 'b', 'B', &[]),
    typing(0x31, &["n"], 'n', 'N', &[]),
    typing(0x32, &["m"], 'm', 'M', &[]),
    typing(0x33, &["comma"], ',', '<', &[]),
    typing(0x34, &["dot"], '.', '>', &[]),
    typing(0x35, &["slash"], '/', '?', &[]),
    other(0x36, &["shift_r"], &[0xffe2]),
    other(0x37, &["kp_multiply", "asterisk"], &[0xffaa]),
    other(0x38, &["alt"], &[0xffe9, 0xffe7]), // Alt_L, Meta_L
    typing(0x39, &["spc"], ' ', ' ', &[]),
    other(0x3a, &["caps_lock"], &[0xffe5]),
    other(0x3b, &["f1"], &[0xffbe]),
    other(0x3c, &["f2"], &[0xffbf]),
    other(0x3d, &["f3"], &[0xffc0]),
    other(0x3e, &["f4"], &[0xffc1]),
    other(0x3f, &["f5"], &[0xffc2]),
    other(0x40, &["f6"], &[0xffc3]),
    other(0x41, &["f7"], &[0xffc4]),
    other(0x42, &["f8"], &[0xffc5]),
    other(0x43, &["f9"], &[0xffc6]),
    other(0x44, &["f10"], &[0xffc7]),
    other(0x45, &["num_lock"], &[0xff7f]),
    other(0x46, &["scroll_lock"], &[0xff14]),
    // The numeric pad: without num lock, and with it.
    other(0x47, &["kp_7"], &[0xff95, 0xffb7]), // KP_Home
    other(0x48, &["kp_8"], &[0xff97, 0xffb8]), // KP_Up
    other(0x49, &["kp_9"], &[0xff9a, 0xffb9]), // KP_Prior
    other(0x4a, &["kp_subtract"], &[0xffad]),
    other(0x4b, &["kp_4"], &[0xff96, 0xffb4]), // KP_Left
    other(0x4c, &["kp_5"], &[0xff9d, 0xffb5]), // KP_Begin
    other(0x4d, &["kp_6"], &[0xff98, 0xffb6]), // KP_Right
    other(0x4e, &["kp_add"], &[0xffab]),
    other(0x4f, &["kp_1"], &[0xff9c, 0xffb1]), // KP_End
    other(0x50, &["kp_2"], &[0xff99, 0xffb2]), // KP_Down
    other(0x51, &["kp_3"], &[0xff9b, 0xffb3]), // KP_Next
    other(0x52, &["kp_0"], &[0xff9e, 0xffb0]), // KP_Insert
    other(0x53, &["kp_decimal"], &[0xff9f, 0xffae]), // KP_Delete
    other(0x54, &["sysrq"], &[0xff15]),
    // The key beside the left shift key of European keyboards.
    other(0x56, &["less"], &[]),
    other(0x57, &["f11"], &[0xffc8]),
    other(0x58, &["f12"], &[0xffc9]),
    other(0x59, &["kp_equals"], &[0xffbd]),
    other(0x64, &["f13"], &[0xffca]),
    other(0x65, &["f14"], &[0xffcb]),
    other(0x66, &["f15"], &[0xffcc]),
    other(0x67, &["f16"], &[0xffcd]),
    other(0x68, &["f17"], &[0xffce]),
    other(0x69, &["f18"], &[0xffcf]),
    other(0x6a, &["f19"], &[0xffd0]),
    other(0x6b, &["f20"], &[0xffd1]),
    other(0x6c, &["f21"], &[0xffd2]),
    other(0x6d, &["f22"], &[0xffd3]),
    other(0x6e, &["f23"], &[0xffd4]),
    other(0x70, &["katakanahiragana"], &[0xff27]),
    other(0x73, &["ro"], &[]),
    other(0x76, &["f24"], &[0xffd5]),
    other(0x77, &["hiragana"], &[0xff25]),
    other(0x79, &["henkan"], &[0xff23]),
    other(0x7b, &["muhenkan"], &[0xff22]),
    other(0x7d, &["yen"], &[0xa5]),
    other(0x7e, &["kp_comma"], &[0xffac]),
    other(0xe010, &["audioprev"], &[0x1008_ff16]),
    other(0xe019, &["audionext"], &[0x1008_ff17]),
    other(0xe01c, &["kp_enter"], &[0xff8d]),
    other(0xe01d, &["ctrl_r"], &[0xffe4]),
    other(0xe020, &["audiomute"], &[0x1008_ff12]),
    other(0xe021, &["calculator"], &[0x1008_ff1d]),
    other(0xe022, &["audioplay"], &[0x1008_ff14]),
    other(0xe024, &["audiostop"], &[0x1008_ff15]),
    other(0xe02e, &["volumedown"], &[0x1008_ff11]),
    other(0xe030, &["volumeup"], &[0x1008_ff13]),
    other(0xe032, &["ac_home"], &[0x1008_ff18]),
    other(0xe035, &["kp_divide"], &[0xffaf]),
    other(0xe037, &["print"], &[0xff61]),
    other(0xe038, &["alt_r"], &[0xffea, 0xffe8, 0xfe03, 0xff7e]), // Alt_R, Meta_R, ISO_Level3_Shift, Mode_switch
    other(0xe047, &["home"], &[0xff50]),
    other(0xe048, &["up"], &[0xff52]),
    other(0xe049, &["pgup"], &[0xff55]),
    other(0xe04b, &["left"], &[0xff51]),
    other(0xe04d, &["right"], &[0xff53]),
    other(0xe04f, &["end"], &[0xff57]),
    other(0xe050, &["down"], &[0xff54]),
    other(0xe051, &["pgdn"], &[0xff56]),
    other(0xe052, &["insert"], &[0xff63]),
    other(0xe053, &["delete"], &[0xffff]),
    other(0xe05b, &["meta_l"], &[0xffeb]), // Super_L
    other(0xe05c, &["meta_r"], &[0xffec]), // Super_R
    other(0xe05d, &["menu", "compose"], &[0xff67, 0xff20]), // Menu, Multi_key
    other(0xe05e, &["power"], &[0x1008_ff2a]),
    other(0xe05f, &["sleep"], &[0x1008_ff2f]),
    other(0xe063, &["wake"], &[0x1008_ff2b]),
    other(0xe066, &["ac_bookmarks"], &[0x1008_ff30]),
    other(0xe067, &["ac_refresh"], &[0x1008_ff29]),
    other(0xe069, &["ac_forward"], &[0x1008_ff27]),
    other(0xe06a, &["ac_back"], &[0x1008_ff26]),
    other(0xe06b, &["computer"], &[0x1008_ff33]),
    other(0xe06c, &["mail"], &[0x1008_ff19]),
    other(0xe06d, &["mediaselect"], &[0x1008_ff32]),
    other(0xe11d, &["pause"], &[0xff13, 0xff6b]), // Pause, Break
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_and_their_words_are_there_once() {
        assert!(KEYS.is_sorted_by_key(|row| row.key));
        let (mut keys, mut all, mut symbols) = (HashSet::new(), HashSet::new(), HashSet::new());
        for row in KEYS {
            assert!(keys.insert(row.key), "{:?}", row.key);
            assert!(matches!(row.key.0, 1..0x80 | 0xe001..0xe080 | 0xe11d), "{:?}", row.key);
            for keysym in row.keysyms {
                assert!(symbols.insert(*keysym), "{keysym:#x}");
                assert_eq!(by_keysym(*keysym), Some(row.key));
            }
        }
        for name in names() {
            assert!(all.insert(name), "{name}");
        }
        assert_eq!(names().count(), all.len());
    }

    #[test]
    fn names_and_keys_translate_both_ways() {
        for row in KEYS {
            assert_eq!(by_name(name(row.key).unwrap()), Some(row.key));
            if let Some(symbol) = keysym(row.key) {
                assert_eq!(by_keysym(symbol), Some(row.key));
            }
        }
        let known = [
            ("a", 0x1e),
            ("ret", 0x1c),
            ("kp_enter", 0xe01c),
            ("ctrl", 0x1d),
            ("ctrl_r", 0xe01d),
            ("delete", 0xe053),
            ("f12", 0x58),
            ("asterisk", 0x37),
            ("pause", 0xe11d),
        ];
        for (name, code) in known {
            assert_eq!(by_name(name), Some(Key(code)), "{name}");
        }
        assert_eq!(
            (by_name("Ret"), by_name(""), name(Key(0)), keysym(Key(0xe11e))),
            Default::default()
        );
    }

    #[test]
    fn every_character_of_ascii_can_be_typed() {
        for character in ' '..='~' {
            let (key, shift) = for_character(character).expect("a US keyboard has it");
            let (alone, shifted) = row(key).unwrap().characters.unwrap();
            assert_eq!(if shift { shifted } else { alone }, character);
            assert_eq!(by_keysym(character.into()), Some(key));
        }
        assert_eq!(for_character('Q'), Some((Key(0x10), true)));
        assert_eq!(for_character('\n'), Some((Key(0x1c), false)));
        assert_eq!(for_character('é'), None);
    }

    #[test]
    fn keysyms_of_viewers_mean_keys() {
        let known = [
            (0xff0d, 0x1c),
            (0x41, 0x1e),
            (0x20, 0x39),
            (0xff51, 0xe04b),
            (0xffe1, 0x2a),
            (0xffc9, 0x58),
            (0xffb5, 0x4c),
            (0xff9d, 0x4c),
            (0xffff, 0xe053),
        ];
        for (keysym, code) in known {
            assert_eq!(by_keysym(keysym), Some(Key(code)), "{keysym:#x}");
        }
        assert_eq!([0, 0x0d, 0x7f, 0xe9, u32::MAX].map(by_keysym), [None; 5]);
    }
}
