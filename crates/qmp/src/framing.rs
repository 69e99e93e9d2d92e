//! Splits a stream of bytes into messages.
//!
//! A message is a JSON object. Most tools end it with a line feed, but some do not, so a message ends with
//! its last brace. An invalid message (garbage, a string that continues over the end of a line, more braces
//! closed than opened) ends as soon as the error is recognised, and the next byte begins a new one. As in
//! QEMU a byte FFh, which occurs in no text, ends any message.

use thiserror::Error;

/// The most bytes of a message. The longest useful message types a thousand keys.
pub(crate) const LONGEST_MESSAGE: usize = 64 << 10;

/// The error for a message longer than [`LONGEST_MESSAGE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a message is longer than {LONGEST_MESSAGE} bytes")]
pub(crate) struct TooLong;

/// Collects the bytes of a message.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    message: Vec<u8>,
    /// Number of open braces and brackets.
    depth: usize,
    in_string: bool,
    /// Whether the last byte was a backslash in a string.
    escaped: bool,
}

impl Framer {
    /// Takes the next byte. Returns the message that it completes, or the error that ends it.
    pub(crate) fn push(&mut self, byte: u8) -> Option<Result<Vec<u8>, TooLong>> {
        if self.message.is_empty() && byte.is_ascii_whitespace() {
            return None;
        }
        if self.message.len() >= LONGEST_MESSAGE {
            *self = Framer::default();
            return Some(Err(TooLong));
        }
        self.message.push(byte);
        let over = self.is_over_with(byte);
        over.then(|| Ok(std::mem::take(self).message))
    }

    fn is_over_with(&mut self, byte: u8) -> bool {
        if byte == 0xff {
            return true;
        }
        if self.in_string {
            let escaped = std::mem::take(&mut self.escaped);
            match byte {
                b'\n' => return true,
                b'\\' => self.escaped = !escaped,
                b'"' => self.in_string = escaped,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            b'\n' => return self.depth == 0,
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages(bytes: &[u8]) -> Vec<String> {
        let mut framer = Framer::default();
        let messages = bytes.iter().filter_map(|byte| framer.push(*byte));
        messages.map(|message| String::from_utf8_lossy(&message.unwrap()).into_owned()).collect()
    }

    #[test]
    fn a_message_ends_with_its_last_brace() {
        assert_eq!(messages(b"{\"a\": {}}{}\r\n [1]"), ["{\"a\": {}}", "{}", "[1]"]);
        assert_eq!(messages(b"{\n\"a\":\n1}\n"), ["{\n\"a\":\n1}"]);
        assert_eq!(messages(br#"{"}\"}\\": "{"}{"a"#), [r#"{"}\"}\\": "{"}"#]);
    }

    #[test]
    fn an_invalid_message_ends_early() {
        assert_eq!(messages(b"hello\n{}"), ["hello\n", "{}"]);
        assert_eq!(messages(b"}}{}"), ["}", "}", "{}"]);
        assert_eq!(messages(b"{\"a\n{}"), ["{\"a\n", "{}"]);
        assert_eq!(messages(b"{{{[\xff{}"), ["{{{[\u{fffd}", "{}"]);
    }

    #[test]
    fn a_message_has_a_limit() {
        let mut framer = Framer::default();
        assert_eq!(framer.push(b'{'), None);
        let end = std::iter::repeat_n(b'x', LONGEST_MESSAGE).find_map(|byte| framer.push(byte));
        assert_eq!(end, Some(Err(TooLong)));
        assert_eq!(framer.push(b'{'), None);
        assert_eq!(framer.push(b'}'), Some(Ok(b"{}".to_vec())));
    }

    proptest! {
        #[test]
        fn a_resynchronised_framer_is_as_good_as_new(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut framer = Framer::default();
            for byte in bytes.into_iter().chain([b'x', 0xff]) {
                framer.push(byte);
            }
            prop_assert_eq!(framer.push(b'{'), None);
            prop_assert_eq!(framer.push(b'}'), Some(Ok(b"{}".to_vec())));
        }
    }
}
