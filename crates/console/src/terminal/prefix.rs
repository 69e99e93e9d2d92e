//! The prefix key, by which a person addresses the console and not the guest.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Ctrl and a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix(char);

impl Default for Prefix {
    fn default() -> Prefix {
        Prefix('a')
    }
}

impl FromStr for Prefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Prefix, &'static str> {
        let lower = text.to_ascii_lowercase();
        let letter = lower.strip_prefix("ctrl-").or_else(|| lower.strip_prefix('^'));
        let mut letters = letter.unwrap_or_default().chars();
        match (letters.next(), letters.next()) {
            // The others are Tab, line ends, and Escape's neighbours.
            (Some(letter @ 'a'..='z'), None) if !"ijm".contains(letter) => Ok(Prefix(letter)),
            _ => Err("give ctrl-a, or ctrl with another letter but i, j and m"),
        }
    }
}

impl Display for Prefix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Ctrl-{}", self.0.to_ascii_uppercase())
    }
}

impl Prefix {
    /// Returns whether `event` is this key.
    pub(super) fn is(self, event: &KeyEvent) -> bool {
        event.modifiers == KeyModifiers::CONTROL && event.code == KeyCode::Char(self.0)
    }

    /// Returns the letter.
    pub(super) fn letter(self) -> char {
        self.0
    }

    /// Returns the event of this key.
    pub(super) fn event(self) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(self.0), KeyModifiers::CONTROL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read() {
        assert_eq!("ctrl-a".parse(), Ok(Prefix('a')));
        assert_eq!("^B".parse(), Ok(Prefix('b')));
        for bad in ["", "a", "^", "^ab", "ctrl-m", "^1"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }
}
