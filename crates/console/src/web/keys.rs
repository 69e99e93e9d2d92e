//! The keys of browsers.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The keys by their places on the keyboard ("UI Events KeyboardEvent code Values", section 3), with their numbers in
/// QMP.
const PLACES: &[(&str, u8)] = &[
    ("Escape", 0x01),
    ("Digit1", 0x02),
    ("Digit2", 0x03),
    ("Digit3", 0x04),
    ("Digit4", 0x05),
    ("Digit5", 0x06),
    ("Digit6", 0x07),
    ("Digit7", 0x08),
    ("Digit8", 0x09),
    ("Digit9", 0x0a),
    ("Digit0", 0x0b),
    ("Minus", 0x0c),
    ("Equal", 0x0d),
    ("Backspace", 0x0e),
    ("Tab", 0x0f),
    ("KeyQ", 0x10),
    ("KeyW", 0x11),
    ("KeyE", 0x12),
    ("KeyR", 0x13),
    ("KeyT", 0x14),
    ("KeyY", 0x15),
    ("KeyU", 0x16),
    ("KeyI", 0x17),
    ("KeyO", 0x18),
    ("KeyP", 0x19),
    ("BracketLeft", 0x1a),
    ("BracketRight", 0x1b),
    ("Enter", 0x1c),
    ("ControlLeft", 0x1d),
    ("KeyA", 0x1e),
    ("KeyS", 0x1f),
    ("KeyD", 0x20),
    ("KeyF", 0x21),
    ("KeyG", 0x22),
    ("KeyH", 0x23),
    ("KeyJ", 0x24),
    ("KeyK", 0x25),
    ("KeyL", 0x26),
    ("Semicolon", 0x27),
    ("Quote", 0x28),
    ("Backquote", 0x29),
    ("ShiftLeft", 0x2a),
    ("Backslash", 0x2b),
    ("KeyZ", 0x2c),
    ("KeyX", 0x2d),
    ("KeyC", 0x2e),
    ("KeyV", 0x2f),
    ("KeyB", 0x30),
    ("KeyN", 0x31),
    ("KeyM", 0x32),
    ("Comma", 0x33),
    ("Period", 0x34),
    ("Slash", 0x35),
    ("ShiftRight", 0x36),
    ("NumpadMultiply", 0x37),
    ("AltLeft", 0x38),
    ("Space", 0x39),
    ("CapsLock", 0x3a),
    ("F1", 0x3b),
    ("F2", 0x3c),
    ("F3", 0x3d),
    ("F4", 0x3e),
    ("F5", 0x3f),
    ("F6", 0x40),
    ("F7", 0x41),
    ("F8", 0x42),
    ("F9", 0x43),
    ("F10", 0x44),
    ("NumLock", 0x45),
    ("ScrollLock", 0x46),
    ("Numpad7", 0x47),
    ("Numpad8", 0x48),
    ("Numpad9", 0x49),
    ("NumpadSubtract", 0x4a),
    ("Numpad4", 0x4b),
    ("Numpad5", 0x4c),
    ("Numpad6", 0x4d),
    ("NumpadAdd", 0x4e),
    ("Numpad1", 0x4f),
    ("Numpad2", 0x50),
    ("Numpad3", 0x51),
    ("Numpad0", 0x52),
    ("NumpadDecimal", 0x53),
    ("IntlBackslash", 0x56),
    ("F11", 0x57),
    ("F12", 0x58),
    ("KanaMode", 0x70),
    ("IntlRo", 0x73),
    ("Convert", 0x79),
    ("NonConvert", 0x7b),
    ("IntlYen", 0x7d),
    ("NumpadEnter", 0x9c),
    ("ControlRight", 0x9d),
    ("NumpadDivide", 0xb5),
    ("PrintScreen", 0xb7),
    ("AltRight", 0xb8),
    ("Pause", 0xc6),
    ("Home", 0xc7),
    ("ArrowUp", 0xc8),
    ("PageUp", 0xc9),
    ("ArrowLeft", 0xcb),
    ("ArrowRight", 0xcd),
    ("End", 0xcf),
    ("ArrowDown", 0xd0),
    ("PageDown", 0xd1),
    ("Insert", 0xd2),
    ("Delete", 0xd3),
    ("MetaLeft", 0xdb),
    ("MetaRight", 0xdc),
    ("ContextMenu", 0xdd),
];

/// Returns the number of the key at a place (`KeyboardEvent.code`).
pub(super) fn number(place: &str) -> Option<u8> {
    PLACES.iter().find(|(name, _)| *name == place).map(|(_, number)| *number)
}

/// Returns the event of a terminal for a key by what it types or does (`KeyboardEvent.key`).
pub(super) fn event(key: &str, control: bool, alt: bool, shift: bool) -> Option<KeyEvent> {
    let mut modifiers = KeyModifiers::NONE;
    modifiers.set(KeyModifiers::CONTROL, control);
    modifiers.set(KeyModifiers::ALT, alt);
    modifiers.set(KeyModifiers::SHIFT, shift);
    let mut characters = key.chars();
    let code = match (characters.next()?, characters.next()) {
        (character, None) => {
            // The character says it already.
            modifiers.remove(KeyModifiers::SHIFT);
            KeyCode::Char(character)
        }
        _ => match key {
            "Enter" => KeyCode::Enter,
            "Tab" if shift => KeyCode::BackTab,
            "Tab" => KeyCode::Tab,
            "Backspace" => KeyCode::Backspace,
            "Escape" => KeyCode::Esc,
            "ArrowUp" => KeyCode::Up,
            "ArrowDown" => KeyCode::Down,
            "ArrowLeft" => KeyCode::Left,
            "ArrowRight" => KeyCode::Right,
            "Home" => KeyCode::Home,
            "End" => KeyCode::End,
            "PageUp" => KeyCode::PageUp,
            "PageDown" => KeyCode::PageDown,
            "Insert" => KeyCode::Insert,
            "Delete" => KeyCode::Delete,
            _ => KeyCode::F(key.strip_prefix('F')?.parse().ok()?),
        },
    };
    Some(KeyEvent::new(code, modifiers))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_place_has_a_key_of_its_own() {
        let names: BTreeSet<_> = PLACES.iter().map(|(name, _)| name).collect();
        let numbers: BTreeSet<_> = PLACES.iter().map(|(_, number)| number).collect();
        assert_eq!((names.len(), numbers.len()), (PLACES.len(), PLACES.len()));
        assert_eq!((number("KeyA"), number("ArrowUp")), (Some(0x1e), Some(0xc8)));
        assert_eq!((number(""), number("keya")), (None, None));
    }

    #[test]
    fn keys_are_those_of_a_terminal() {
        let plain = |key| event(key, false, false, false).map(|event| event.code);
        assert_eq!(plain("a"), Some(KeyCode::Char('a')));
        assert_eq!(plain("ß"), Some(KeyCode::Char('ß')));
        assert_eq!(plain("F12"), Some(KeyCode::F(12)));
        for nothing in ["", "Shift", "Dead", "F999", "Fx", "Unidentified"] {
            assert_eq!(plain(nothing), None, "{nothing}");
        }
        let control = event("c", true, false, true).unwrap();
        assert_eq!(control, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(event("Tab", false, false, true).unwrap().code, KeyCode::BackTab);
    }
}
