//! The escape key, by which a person at a terminal addresses ring3 instead of the guest.
//!
//! All keys go to the guest, except Ctrl-A and the key after it, as with the serial consoles that people
//! know.

/// Ctrl-A, as a terminal sends it.
pub const ESCAPE: u8 = 0x01;

/// The keys after the escape key, as a text for people.
pub const HELP: &str = concat!(
    "  Ctrl-A x       end the run\n",
    "  Ctrl-A Ctrl-A  send Ctrl-A to the guest (Ctrl-A a does the same)\n",
    "  Ctrl-A h       list these keys\n",
);

/// The meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Send this byte to the guest.
    Guest(u8),
    /// Do nothing: this is the escape key itself.
    Nothing,
    /// End the run.
    Quit,
    /// List the keys.
    Help,
    /// Another key after the escape key. It has no meaning unless the display gives it one.
    Other(u8),
}

/// Reads keys and remembers whether the last one was the escape key.
#[derive(Debug, Default)]
pub struct EscapeKeys {
    escaped: bool,
}

impl EscapeKeys {
    /// Forgets the last key, and returns whether it was the escape key. This is for keys that are not bytes.
    pub fn take(&mut self) -> bool {
        std::mem::take(&mut self.escaped)
    }

    /// Returns the meaning of `byte`, the next one that was typed.
    pub fn key(&mut self, byte: u8) -> Key {
        if !self.take() {
            if byte == ESCAPE {
                self.escaped = true;
                return Key::Nothing;
            }
            return Key::Guest(byte);
        }
        match byte {
            b'x' | b'X' => Key::Quit,
            ESCAPE | b'a' | b'A' => Key::Guest(ESCAPE),
            b'h' | b'H' | b'?' => Key::Help,
            other => Key::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(bytes: &[u8]) -> Vec<Key> {
        let mut keys = EscapeKeys::default();
        bytes.iter().map(|byte| keys.key(*byte)).filter(|key| *key != Key::Nothing).collect()
    }

    #[test]
    fn ordinary_bytes_go_to_the_guest() {
        assert_eq!(
            typed(b"x\x00\xff\x1b"),
            [b'x', 0, 0xff, 0x1b].map(Key::Guest),
            "all but the escape key"
        );
    }

    #[test]
    fn the_key_after_the_escape_key_is_a_command() {
        assert_eq!(typed(b"\x01x"), [Key::Quit]);
        assert_eq!(typed(b"\x01h\x01h"), [Key::Help, Key::Help]);
        assert_eq!(typed(b"\x01"), []);
    }

    #[test]
    fn the_escape_key_can_be_sent() {
        assert_eq!(typed(b"\x01\x01x"), [Key::Guest(1), Key::Guest(b'x')]);
        assert_eq!(typed(b"\x01ax"), [Key::Guest(1), Key::Guest(b'x')]);
    }

    #[test]
    fn an_unknown_key_after_the_escape_key_does_not_reach_the_guest() {
        assert_eq!(typed(b"\x01zx"), [Key::Other(b'z'), Key::Guest(b'x')]);
    }
}
