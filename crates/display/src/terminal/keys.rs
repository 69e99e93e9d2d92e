//! Converts a terminal's keys to those of the machine.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ring3_core::input::Key;
use ring3_core::keys::{self, LEFT_SHIFT};

use crate::escape::ESCAPE;

const LEFT_CONTROL: Key = Key(0x1d);
const LEFT_ALT: Key = Key(0x38);
const DELETE: Key = Key(0xe053);

/// A key that is pressed and released, and the modifiers that are held meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stroke {
    modifiers: Vec<Key>,
    key: Key,
}

impl Stroke {
    pub(crate) fn control_a() -> Stroke {
        Stroke { modifiers: vec![LEFT_CONTROL], key: Key(0x1e) }
    }

    pub(crate) fn control_alt_delete() -> Stroke {
        Stroke { modifiers: vec![LEFT_CONTROL, LEFT_ALT], key: DELETE }
    }

    /// Returns the keys in the order in which they are pressed (true) and released.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (Key, bool)> {
        let key = std::iter::once(self.key);
        let pressed = self.modifiers.iter().copied().chain(key.clone());
        let released = key.chain(self.modifiers.iter().rev().copied());
        pressed.map(|key| (key, true)).chain(released.map(|key| (key, false)))
    }
}

/// Returns the byte that a terminal sends for `event`, if it matters for the escape key and the keys after
/// it.
pub(crate) fn byte(event: &KeyEvent) -> Option<u8> {
    let KeyCode::Char(character) = event.code else { return None };
    let modifiers = event.modifiers & (KeyModifiers::CONTROL | KeyModifiers::ALT);
    if modifiers == KeyModifiers::CONTROL && character.eq_ignore_ascii_case(&'a') {
        return Some(ESCAPE);
    }
    u8::try_from(character).ok().filter(|byte| byte.is_ascii() && modifiers.is_empty())
}

/// Returns the keys to press on a US keyboard for `event`, or None if it lacks them.
pub(crate) fn stroke(event: &KeyEvent) -> Option<Stroke> {
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    let mut shift = event.modifiers.contains(KeyModifiers::SHIFT);
    let key = match event.code {
        KeyCode::Char(character) => {
            let character = if control { under_control(character) } else { character };
            let (key, needs_shift) = keys::for_character(character)?;
            shift = needs_shift;
            key
        }
        KeyCode::F(number) => keys::by_name(&format!("f{number}"))?,
        KeyCode::BackTab => {
            shift = true;
            keys::by_name("tab")?
        }
        other => keys::by_name(name(other)?)?,
    };
    let held = [
        (control, LEFT_CONTROL),
        (event.modifiers.contains(KeyModifiers::ALT), LEFT_ALT),
        (shift, LEFT_SHIFT),
    ];
    let modifiers = held.into_iter().filter(|(held, _)| *held).map(|(_, key)| key).collect();
    Some(Stroke { modifiers, key })
}

/// Returns the name of a key without a character.
fn name(code: KeyCode) -> Option<&'static str> {
    Some(match code {
        KeyCode::Backspace => "backspace",
        KeyCode::Enter => "ret",
        KeyCode::Tab => "tab",
        KeyCode::Esc => "esc",
        KeyCode::Left => "left",
        KeyCode::Right => "right",
        KeyCode::Up => "up",
        KeyCode::Down => "down",
        KeyCode::Home => "home",
        KeyCode::End => "end",
        KeyCode::PageUp => "pgup",
        KeyCode::PageDown => "pgdn",
        KeyCode::Delete => "delete",
        KeyCode::Insert => "insert",
        KeyCode::Menu => "menu",
        KeyCode::Pause => "pause",
        KeyCode::PrintScreen => "print",
        _ => return None,
    })
}

/// Returns the character that a person has typed with Ctrl. Terminals send the same byte for Ctrl-4 and
/// Ctrl-\, and so on. crossterm takes it for the digit, but people use the other one.
fn under_control(character: char) -> char {
    match character {
        '4' => '\\',
        '5' => ']',
        '6' => '^',
        '7' => '_',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(code: KeyCode, modifiers: KeyModifiers) -> Option<Vec<u16>> {
        let stroke = stroke(&KeyEvent::new(code, modifiers))?;
        let pressed = stroke.changes().filter(|(_, pressed)| *pressed);
        Some(pressed.map(|(key, _)| key.0).collect())
    }

    #[test]
    fn characters_bring_their_shift() {
        let none = KeyModifiers::NONE;
        assert_eq!(codes(KeyCode::Char('a'), none), Some(vec![0x1e]));
        assert_eq!(codes(KeyCode::Char('A'), KeyModifiers::SHIFT), Some(vec![0x2a, 0x1e]));
        assert_eq!(codes(KeyCode::Char('%'), none), Some(vec![0x2a, 0x06]));
        assert_eq!(codes(KeyCode::Char('ä'), none), None);
    }

    #[test]
    fn control_and_alt() {
        let (control, alt) = (KeyModifiers::CONTROL, KeyModifiers::ALT);
        assert_eq!(codes(KeyCode::Char('c'), control), Some(vec![0x1d, 0x2e]));
        assert_eq!(codes(KeyCode::Char('4'), control), Some(vec![0x1d, 0x2b]));
        assert_eq!(codes(KeyCode::Char('7'), control), Some(vec![0x1d, 0x2a, 0x0c]));
        assert_eq!(codes(KeyCode::F(2), alt), Some(vec![0x38, 0x3c]));
        assert_eq!(codes(KeyCode::Left, control | alt), Some(vec![0x1d, 0x38, 0xe04b]));
        assert_eq!(codes(KeyCode::BackTab, KeyModifiers::NONE), Some(vec![0x2a, 0x0f]));
    }

    #[test]
    fn every_name_is_that_of_a_key() {
        let codes = [
            KeyCode::Backspace,
            KeyCode::Enter,
            KeyCode::Tab,
            KeyCode::Esc,
            KeyCode::Left,
            KeyCode::Right,
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::Home,
            KeyCode::End,
            KeyCode::PageUp,
            KeyCode::PageDown,
            KeyCode::Delete,
            KeyCode::Insert,
            KeyCode::Menu,
            KeyCode::Pause,
            KeyCode::PrintScreen,
            KeyCode::F(1),
            KeyCode::F(12),
        ];
        for code in codes {
            let stroke = stroke(&KeyEvent::new(code, KeyModifiers::NONE));
            assert!(stroke.is_some_and(|stroke| stroke.modifiers.is_empty()), "{code:?}");
        }
    }

    #[test]
    fn pressed_keys_are_released() {
        let (control, alt, delete) = (Key(0x1d), Key(0x38), Key(0xe053));
        let changes: Vec<(Key, bool)> = Stroke::control_alt_delete().changes().collect();
        let pressed = [(control, true), (alt, true), (delete, true)];
        let released = [(delete, false), (alt, false), (control, false)];
        assert_eq!(changes, [pressed, released].concat());
    }

    #[test]
    fn bytes_for_the_escape_key() {
        let byte = |code, modifiers| byte(&KeyEvent::new(code, modifiers));
        assert_eq!(byte(KeyCode::Char('a'), KeyModifiers::CONTROL), Some(ESCAPE));
        assert_eq!(byte(KeyCode::Char('x'), KeyModifiers::NONE), Some(b'x'));
        assert_eq!(byte(KeyCode::Char('X'), KeyModifiers::SHIFT), Some(b'X'));
        assert_eq!(byte(KeyCode::Char('x'), KeyModifiers::ALT), None);
        assert_eq!(byte(KeyCode::Char('c'), KeyModifiers::CONTROL), None);
        assert_eq!(byte(KeyCode::Char('é'), KeyModifiers::NONE), None);
        assert_eq!(byte(KeyCode::Up, KeyModifiers::NONE), None);
    }
}
