//! Edits a line that a person types at a terminal without echo, with backspace and similar keys, and with
//! earlier lines by the arrow keys.

/// The most bytes in a line.
const LINE_MAX: usize = 4096;
/// The most earlier lines that are kept.
const HISTORY_MAX: usize = 64;

/// The part of a key's code in which the terminal is (ECMA-48, 5.4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    Control,
}

/// The line that is being typed.
#[derive(Debug, Default)]
pub(crate) struct Editor {
    line: Vec<u8>,
    history: Vec<Vec<u8>>,
    /// The line of the history that is shown, counted back from the last one.
    back: usize,
    state: State,
    /// Whether the last byte was a carriage return, after which a line feed is ignored.
    after_return: bool,
}

impl Editor {
    /// Takes the next byte. Returns the bytes that the terminal must show, and the line that this byte ends.
    pub(crate) fn take(&mut self, byte: u8) -> (Vec<u8>, Option<String>) {
        let after_return = std::mem::take(&mut self.after_return);
        match self.state {
            State::Escape => {
                self.state =
                    if byte == b'[' || byte == b'O' { State::Control } else { State::Text };
                return (Vec::new(), None);
            }
            State::Control => {
                if (0x40..=0x7e).contains(&byte) {
                    self.state = State::Text;
                }
                return (self.key(byte), None);
            }
            State::Text => {}
        }
        let echo = match byte {
            b'\n' if after_return => Vec::new(),
            b'\r' | b'\n' => {
                self.after_return = byte == b'\r';
                return (b"\r\n".to_vec(), Some(self.finish()));
            }
            0x08 | 0x7f => match self.line.pop() {
                Some(_) => b"\x08 \x08".to_vec(),
                None => Vec::new(),
            },
            // Ctrl-U clears the line, and Ctrl-W deletes the last word.
            0x15 => self.replace(Vec::new()),
            0x17 => {
                let line = self.line.trim_ascii_end();
                let end = line.iter().rposition(|byte| *byte == b' ').map_or(0, |space| space + 1);
                self.replace(line[..end].to_vec())
            }
            // Ctrl-P and Ctrl-N are the arrow keys up and down.
            0x10 => self.key(b'A'),
            0x0e => self.key(b'B'),
            0x1b => {
                self.state = State::Escape;
                Vec::new()
            }
            0x20..=0xff if self.line.len() < LINE_MAX => {
                self.line.push(byte);
                vec![byte]
            }
            _ => Vec::new(),
        };
        (echo, None)
    }

    /// Handles an arrow key: up or down.
    fn key(&mut self, byte: u8) -> Vec<u8> {
        let back = match byte {
            b'A' => (self.back + 1).min(self.history.len()),
            b'B' => self.back.saturating_sub(1),
            _ => return Vec::new(),
        };
        self.back = back;
        let line = self.history.len().checked_sub(back).and_then(|n| self.history.get(n)).cloned();
        self.replace(line.unwrap_or_default())
    }

    /// Shows another line instead of this one.
    fn replace(&mut self, line: Vec<u8>) -> Vec<u8> {
        let mut echo = b"\x08 \x08".repeat(self.line.len());
        echo.extend(&line);
        self.line = line;
        echo
    }

    fn finish(&mut self) -> String {
        let line = std::mem::take(&mut self.line);
        self.back = 0;
        if !line.is_empty() && self.history.last() != Some(&line) {
            if self.history.len() >= HISTORY_MAX {
                self.history.remove(0);
            }
            self.history.push(line.clone());
        }
        String::from_utf8_lossy(&line).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(editor: &mut Editor, bytes: &[u8]) -> Vec<String> {
        bytes.iter().filter_map(|byte| editor.take(*byte).1).collect()
    }

    #[test]
    fn lines_are_edited() {
        let mut editor = Editor::default();
        assert_eq!(lines(&mut editor, b"info x\x7fstatus\r\n"), ["info status"]);
        assert_eq!(lines(&mut editor, b"quit\x15stop now\x17\r"), ["stop "]);
        assert_eq!(lines(&mut editor, b"\x1b[A\x1b[A\r"), ["info status"]);
        assert_eq!(lines(&mut editor, b"\x1b[A\x1b[B\n\n"), ["", ""]);
        assert_eq!(lines(&mut editor, b"\x08\x08\x1b[3~a\n"), ["a"]);
    }

    #[test]
    fn a_typed_line_is_bounded() {
        let mut editor = Editor::default();
        for _ in 0..10 * LINE_MAX {
            editor.take(b'x');
        }
        assert_eq!(editor.line.len(), LINE_MAX);
        for number in 0..10 * HISTORY_MAX {
            lines(&mut editor, format!("{number}\n").as_bytes());
        }
        assert_eq!(editor.history.len(), HISTORY_MAX);
    }
}
