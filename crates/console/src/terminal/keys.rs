//! Keys as bytes, for serial lines.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Returns the bytes that an xterm sends for `event` ("XTerm Control Sequences", PC-style function keys). Programs may
/// ask for other sequences for the cursor keys (`application`).
pub(crate) fn bytes(event: &KeyEvent, application: bool) -> Vec<u8> {
    let modifiers = event.modifiers;
    let modifier = 1
        + u8::from(modifiers.contains(KeyModifiers::SHIFT))
        + 2 * u8::from(modifiers.contains(KeyModifiers::ALT))
        + 4 * u8::from(modifiers.contains(KeyModifiers::CONTROL));
    let cursor = |letter: char| match (modifier, application) {
        (1, true) => format!("\x1bO{letter}"),
        (1, false) => format!("\x1b[{letter}"),
        _ => format!("\x1b[1;{modifier}{letter}"),
    };
    let special = |number: u8| match modifier {
        1 => format!("\x1b[{number}~"),
        _ => format!("\x1b[{number};{modifier}~"),
    };
    let text = match event.code {
        KeyCode::Char(character) => {
            let mut bytes = Vec::new();
            if modifiers.contains(KeyModifiers::ALT) {
                bytes.push(0x1b);
            }
            if modifiers.contains(KeyModifiers::CONTROL) {
                bytes.extend(under_control(character));
            } else {
                bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            return bytes;
        }
        KeyCode::Enter => "\r".to_owned(),
        KeyCode::Tab => "\t".to_owned(),
        KeyCode::BackTab => "\x1b[Z".to_owned(),
        KeyCode::Backspace => "\x7f".to_owned(),
        KeyCode::Esc => "\x1b".to_owned(),
        KeyCode::Up => cursor('A'),
        KeyCode::Down => cursor('B'),
        KeyCode::Right => cursor('C'),
        KeyCode::Left => cursor('D'),
        KeyCode::Home => cursor('H'),
        KeyCode::End => cursor('F'),
        KeyCode::Insert => special(2),
        KeyCode::Delete => special(3),
        KeyCode::PageUp => special(5),
        KeyCode::PageDown => special(6),
        KeyCode::F(number @ 1..=4) => match modifier {
            1 => format!("\x1bO{}", char::from(b'P' + number - 1)),
            _ => format!("\x1b[1;{modifier}{}", char::from(b'P' + number - 1)),
        },
        KeyCode::F(number @ 5..=12) => {
            special([15, 17, 18, 19, 20, 21, 23, 24][usize::from(number) - 5])
        }
        _ => String::new(),
    };
    let is_plain = matches!(event.code, KeyCode::Enter | KeyCode::Tab | KeyCode::Backspace);
    if is_plain && modifiers.contains(KeyModifiers::ALT) {
        return format!("\x1b{text}").into_bytes();
    }
    text.into_bytes()
}

/// Returns the control character that a terminal sends for a key with Ctrl. Of keys that send the same one, crossterm
/// names the digit.
fn under_control(character: char) -> Option<u8> {
    let character = character.to_ascii_lowercase();
    match character {
        ' ' | '@' | '2' => Some(0),
        '4' => Some(0x1c),
        '5' => Some(0x1d),
        '6' => Some(0x1e),
        '7' | '/' => Some(0x1f),
        'a'..='z' | '['..='_' => Some(character as u8 & 0x1f),
        '?' | '8' => Some(0x7f),
        _ => u8::try_from(character).ok().filter(u8::is_ascii),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_an_xterm() {
        let (none, control, alt) = (KeyModifiers::NONE, KeyModifiers::CONTROL, KeyModifiers::ALT);
        for (code, modifiers, wanted) in [
            (KeyCode::Char('x'), none, "x"),
            (KeyCode::Char('ä'), none, "ä"),
            (KeyCode::Char('c'), control, "\x03"),
            (KeyCode::Char('4'), control, "\x1c"),
            (KeyCode::Char(' '), control, "\0"),
            (KeyCode::Char('b'), alt, "\x1bb"),
            (KeyCode::Enter, none, "\r"),
            (KeyCode::Enter, alt, "\x1b\r"),
            (KeyCode::Up, none, "\x1b[A"),
            (KeyCode::Left, control, "\x1b[1;5D"),
            (KeyCode::Delete, none, "\x1b[3~"),
            (KeyCode::F(1), none, "\x1bOP"),
            (KeyCode::F(5), none, "\x1b[15~"),
            (KeyCode::F(12), KeyModifiers::SHIFT, "\x1b[24;2~"),
            (KeyCode::CapsLock, none, ""),
        ] {
            let sent = bytes(&KeyEvent::new(code, modifiers), false);
            assert_eq!(String::from_utf8(sent).unwrap(), wanted, "{code:?} {modifiers:?}");
        }
        assert_eq!(bytes(&KeyEvent::new(KeyCode::Up, none), true), b"\x1bOA");
    }
}
