//! What a serial line or a log has said, as a terminal of its own shows it.
//!
//! The guest's control sequences go to a terminal emulator, and only the characters in its cells are drawn. So a guest
//! cannot reach the person's terminal: it changes no title and no clipboard, asks it nothing, and draws nowhere else.

use std::num::NonZero;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

/// The lines that have left the screen upwards and can be looked at.
const SCROLL_BACK: usize = 2000;

/// See the module.
pub(crate) struct Emulator {
    parser: vt100::Parser,
    /// Whether each end of a line is to begin a new one at the left.
    is_log: bool,
}

impl Emulator {
    /// Makes an empty one for a terminal of this size.
    pub(crate) fn new((columns, rows): (u16, u16), is_log: bool) -> Emulator {
        Emulator { parser: vt100::Parser::new(count(rows), count(columns), SCROLL_BACK), is_log }
    }

    /// Takes what was said.
    pub(crate) fn process(&mut self, bytes: &[u8]) {
        if !self.is_log {
            return self.parser.process(bytes);
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.parser.process(line);
            if line.ends_with(b"\n") {
                self.parser.process(b"\r");
            }
        }
    }

    /// Changes the size.
    pub(crate) fn resize(&mut self, (columns, rows): (u16, u16)) {
        if self.parser.screen().size() != (count(rows), count(columns)) {
            self.parser.set_size(count(rows), count(columns));
        }
    }

    /// Moves by `lines` towards older ones, or newer ones.
    pub(crate) fn scroll(&mut self, lines: isize) {
        let screen = self.parser.screen_mut();
        let to = screen.scrollback().saturating_add_signed(lines);
        // It goes no further than there are lines.
        screen.set_scrollback(to);
    }

    /// Returns how many lines it is away from the newest.
    pub(crate) fn scrolled(&self) -> usize {
        self.parser.screen().scrollback()
    }

    /// Returns whether the guest wants other sequences for cursor keys.
    pub(crate) fn application_cursor(&self) -> bool {
        self.parser.screen().application_cursor()
    }

    /// Returns what it shows.
    pub(crate) fn screen(&self) -> &vt100::Screen {
        self.parser.screen()
    }

    /// Draws into `area`. Returns where the cursor is, if it is visible.
    pub(crate) fn render(&self, area: Rect, buffer: &mut Buffer) -> Option<(u16, u16)> {
        let screen = self.parser.screen();
        for row in 0..area.height {
            for column in 0..area.width {
                let Some(cell) = screen.cell(row, column) else { continue };
                // The second half of a wide character is drawn with the first.
                if cell.is_wide_continuation() {
                    continue;
                }
                // One that does not fit would reach beyond the area.
                let fits = !cell.is_wide() || column + 1 < area.width;
                let contents = if fits { harmless(cell.contents()) } else { " " };
                buffer[(area.x + column, area.y + row)].set_symbol(contents).set_style(style(cell));
            }
        }
        let (row, column) = screen.cursor_position();
        let is_visible = !screen.hide_cursor() && screen.scrollback() == 0;
        (is_visible && row < area.height && column < area.width).then_some((column, row))
    }
}

fn count(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap_or(NonZero::<u16>::MIN)
}

/// Returns the contents of a cell, without characters that a terminal may obey or that change the places of others.
pub(crate) fn harmless(contents: &str) -> &str {
    let is_harmful = |character: char| {
        let is_direction = matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        character.is_control() || is_direction
    };
    match contents.split(is_harmful).next() {
        None | Some("") if contents.is_empty() => " ",
        None | Some("") => "\u{fffd}",
        Some(harmless) => harmless,
    }
}

fn style(cell: &vt100::Cell) -> Style {
    let colour = |colour| match colour {
        vt100::Color::Default => Color::Reset,
        vt100::Color::Idx(index) => Color::Indexed(index),
        vt100::Color::Rgb(red, green, blue) => Color::Rgb(red, green, blue),
    };
    let modifiers = [
        (cell.bold(), Modifier::BOLD),
        (cell.dim(), Modifier::DIM),
        (cell.italic(), Modifier::ITALIC),
        (cell.underline(), Modifier::UNDERLINED),
        (cell.inverse(), Modifier::REVERSED),
    ];
    let style = Style::new().fg(colour(cell.fgcolor())).bg(colour(cell.bgcolor()));
    modifiers
        .into_iter()
        .filter(|(is_on, _)| *is_on)
        .fold(style, |style, (_, modifier)| style.add_modifier(modifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(emulator: &Emulator, columns: u16, rows: u16) -> String {
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        emulator.render(buffer.area, &mut buffer);
        buffer.content.iter().map(ratatui_core::buffer::Cell::symbol).collect()
    }

    #[test]
    fn control_sequences_stay_in_the_emulator() {
        let mut emulator = Emulator::new((8, 2), false);
        emulator.process(b"\x1b]0;title\x07\x1b]52;c;eHg=\x07\x1b[6n\x1b[c\x1bP+q544e\x1b\\a\x1b[31mb\x9b\xc2\x9bc");
        emulator.process(b"\x1b[99;99Hend\x1b[?1049h\x1b[2;1Halt\xe2\x80\xae");
        let shown = drawn(&emulator, 8, 2);
        assert!(!shown.contains(|character: char| character.is_control()), "{shown:?}");
        assert!(shown.contains("alt") && !shown.contains('\u{202e}'), "{shown:?}");
    }

    #[test]
    fn lines_that_have_gone_can_be_looked_at() {
        let mut emulator = Emulator::new((4, 2), false);
        emulator.process(b"1\r\n2\r\n3\r\n4");
        assert_eq!(drawn(&emulator, 4, 2), "3   4   ");
        emulator.scroll(1);
        assert_eq!((drawn(&emulator, 4, 2), emulator.scrolled()), ("2   3   ".to_owned(), 1));
        emulator.scroll(100);
        assert_eq!(drawn(&emulator, 4, 2), "1   2   ");
        emulator.scroll(-100);
        assert_eq!(emulator.scrolled(), 0);
        emulator.resize((6, 1));
        assert_eq!(drawn(&emulator, 6, 1).len(), 6);
    }

    #[test]
    fn logs_have_lines_without_carriage_returns() {
        let mut emulator = Emulator::new((4, 2), true);
        emulator.process(b"ab\ncd");
        assert_eq!(drawn(&emulator, 4, 2), "ab  cd  ");
    }

    /// A wide character in the last column, or half of one, does not push others out of their places.
    #[test]
    fn wide_characters_stay_in_the_area() {
        let mut emulator = Emulator::new((3, 1), false);
        emulator.process("\u{ff21}\u{ff22}".as_bytes());
        let mut buffer = Buffer::empty(Rect::new(0, 0, 1, 1));
        emulator.render(buffer.area, &mut buffer);
        assert_eq!(buffer[(0, 0)].symbol(), " ");
    }
}
