//! Draws a picture with the characters of a terminal.

use std::env;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::Span;
use ratatui_core::widgets::Widget;
use ring3_core::display::{Picture, Pixels, TextScreen};

use super::cp437;

/// The colours that the terminal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    /// All colours.
    True,
    /// The sixteen colours with names.
    Sixteen,
}

/// The default colours of a VGA in text modes, 0RGB, and their names in terminals.
const VGA: [(u32, Color); 16] = [
    (0x000000, Color::Black),
    (0x0000aa, Color::Blue),
    (0x00aa00, Color::Green),
    (0x00aaaa, Color::Cyan),
    (0xaa0000, Color::Red),
    (0xaa00aa, Color::Magenta),
    (0xaa5500, Color::Yellow),
    (0xaaaaaa, Color::Gray),
    (0x555555, Color::DarkGray),
    (0x5555ff, Color::LightBlue),
    (0x55ff55, Color::LightGreen),
    (0x55ffff, Color::LightCyan),
    (0xff5555, Color::LightRed),
    (0xff55ff, Color::LightMagenta),
    (0xffff55, Color::LightYellow),
    (0xffffff, Color::White),
];

impl Colours {
    /// Returns the colours of the terminal of this process, as far as its environment tells.
    pub(crate) fn of_terminal() -> Colours {
        match env::var("COLORTERM").as_deref() {
            Ok("truecolor" | "24bit") => Colours::True,
            _ => Colours::Sixteen,
        }
    }

    /// Returns the colour nearest to `colour`, 0RGB.
    fn nearest(self, colour: u32) -> Color {
        let [_, red, green, blue] = colour.to_be_bytes();
        if self == Colours::True {
            return Color::Rgb(red, green, blue);
        }
        let distance = |(other, _): &(u32, Color)| -> u32 {
            let pairs = colour.to_be_bytes().into_iter().zip(other.to_be_bytes()).skip(1);
            pairs.map(|(one, other)| u32::from(one.abs_diff(other)).pow(2)).sum()
        };
        VGA.iter().min_by_key(|entry| distance(entry)).map_or(Color::Reset, |(_, name)| *name)
    }
}

/// A message of ring3 itself, in the lower right corner over the guest's screen.
#[derive(Debug, Default)]
pub(crate) struct Note(Vec<String>);

impl Note {
    /// Makes a note of one line.
    pub(crate) fn line(text: &str) -> Note {
        Note(vec![format!(" {text} ")])
    }

    /// Returns whether the note is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes a note of several lines.
    pub(crate) fn lines(text: &str) -> Note {
        Note(text.lines().map(|line| format!("{line} ")).collect())
    }
}

/// A picture's kind and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PictureSize {
    /// Columns and rows of text.
    Text(usize, usize),
    /// Width and height in pixels.
    Pixels(usize, usize),
}

/// Returns the size of `picture`, or None if there is no picture.
pub(crate) fn size_of(picture: Option<&Picture>) -> Option<PictureSize> {
    Some(match picture? {
        Picture::Text(text) => PictureSize::Text(text.columns, text.rows),
        Picture::Pixels(pixels) => PictureSize::Pixels(pixels.width, pixels.height),
    })
}

/// The contents of the terminal.
#[derive(Debug)]
pub(crate) struct Screen<'a> {
    pub(crate) picture: Option<&'a Picture>,
    /// The column and row of text in the terminal's upper left corner.
    pub(crate) from: (usize, usize),
    pub(crate) colours: Colours,
    pub(crate) note: &'a Note,
}

impl Screen<'_> {
    /// Returns where the cursor is in a terminal with this many columns and rows, if it is visible.
    pub(crate) fn cursor(&self, (columns, rows): (usize, usize)) -> Option<(u16, u16)> {
        let Some(Picture::Text(TextScreen { cursor: Some(cursor), .. })) = self.picture else {
            return None;
        };
        let (x, y) = (cursor.0.checked_sub(self.from.0)?, cursor.1.checked_sub(self.from.1)?);
        (x < columns && y < rows).then_some((x as u16, y as u16))
    }

    fn text(&self, text: &TextScreen, area: Rect, buffer: &mut Buffer) {
        let rows = text.cells.chunks(text.columns.max(1)).take(text.rows).skip(self.from.1);
        for (row, y) in rows.zip(area.top()..area.bottom()) {
            for (cell, x) in row.iter().skip(self.from.0).zip(area.left()..area.right()) {
                let mut style = Style::new()
                    .fg(self.colours.nearest(cell.foreground))
                    .bg(self.colours.nearest(cell.background));
                if cell.blinks {
                    style = style.add_modifier(Modifier::SLOW_BLINK);
                }
                buffer[(x, y)].set_char(cp437::character(cell.character)).set_style(style);
            }
        }
    }

    /// Draws pixels as half blocks, two in a character, shrunk as far as necessary.
    fn graphics(&self, pixels: &Pixels, area: Rect, buffer: &mut Buffer) {
        let room = (usize::from(area.width), 2 * usize::from(area.height));
        let small = pixels.shrunk(room);
        for (pair, y) in small.colours.chunks(2 * small.width.max(1)).zip(area.top()..) {
            let (upper, lower) = pair.split_at(small.width.min(pair.len()));
            for (index, x) in (0..small.width).zip(area.left()..) {
                let lower = lower.get(index).copied().unwrap_or(0);
                let style = Style::new()
                    .fg(self.colours.nearest(upper[index]))
                    .bg(self.colours.nearest(lower));
                buffer[(x, y)].set_char('▀').set_style(style);
            }
        }
    }
}

impl Widget for &Screen<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        match self.picture {
            Some(Picture::Text(text)) => self.text(text, area, buffer),
            Some(Picture::Pixels(pixels)) => self.graphics(pixels, area, buffer),
            None => {}
        }
        let lines = &self.note.0;
        let style = Style::new().fg(Color::Black).bg(Color::Gray);
        let width = lines.iter().map(String::len).max().unwrap_or(0).min(usize::from(area.width));
        let shown = lines.len().min(usize::from(area.height));
        let (left, top) = (area.right() - width as u16, area.bottom() - shown as u16);
        for (line, y) in lines.iter().take(shown).zip(top..) {
            buffer.set_span(left, y, &Span::styled(format!("{line:width$}"), style), width as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use ring3_core::display::Cell;

    use super::*;

    fn drawn(picture: &Picture, from: (usize, usize), size: (u16, u16)) -> Buffer {
        let area = Rect::new(0, 0, size.0, size.1);
        let mut buffer = Buffer::empty(area);
        let note = Note::default();
        let screen = Screen { picture: Some(picture), from, colours: Colours::True, note: &note };
        screen.render(area, &mut buffer);
        buffer
    }

    fn text(columns: usize, codes: &[u8]) -> Picture {
        let cell = |code: &u8| Cell {
            character: *code,
            foreground: 0x123456,
            background: 0x0000aa,
            blinks: *code == b'b',
        };
        Picture::Text(TextScreen {
            columns,
            rows: codes.len() / columns,
            cells: codes.iter().map(cell).collect(),
            cursor: Some((1, 1)),
            pixels: Pixels { width: 0, height: 0, colours: Vec::new() },
        })
    }

    fn characters(buffer: &Buffer) -> String {
        buffer.content.iter().map(ratatui_core::buffer::Cell::symbol).collect()
    }

    #[test]
    fn characters_have_their_colours() {
        let buffer = drawn(&text(3, b"ab\xdbcde"), (0, 0), (3, 2));
        assert_eq!(characters(&buffer), "ab█cde");
        assert_eq!(buffer[(0, 0)].fg, Color::Rgb(0x12, 0x34, 0x56));
        assert_eq!(buffer[(0, 0)].bg, Color::Rgb(0, 0, 0xaa));
        assert!(!buffer[(0, 0)].modifier.contains(Modifier::SLOW_BLINK));
        assert!(buffer[(1, 0)].modifier.contains(Modifier::SLOW_BLINK));
    }

    #[test]
    fn a_part_of_the_screen_is_shown_in_a_small_terminal() {
        let picture = text(3, b"abcdefghi");
        assert_eq!(characters(&drawn(&picture, (1, 1), (2, 2))), "efhi");
        assert_eq!(characters(&drawn(&picture, (0, 2), (4, 2))), "ghi     ");
        let note = Note::default();
        let screen = Screen {
            picture: Some(&picture),
            from: (1, 0),
            colours: Colours::Sixteen,
            note: &note,
        };
        assert_eq!(screen.cursor((2, 2)), Some((0, 1)));
        assert_eq!(screen.cursor((2, 1)), None);
        assert_eq!(Screen { from: (2, 0), ..screen }.cursor((2, 2)), None);
    }

    #[test]
    fn vga_colours_are_those_of_the_terminal() {
        for (colour, name) in VGA {
            assert_eq!(Colours::Sixteen.nearest(colour), name);
        }
        assert_eq!(Colours::Sixteen.nearest(0x0000b0), Color::Blue);
    }

    #[test]
    fn two_pixels_are_one_character() {
        let picture =
            Picture::Pixels(Pixels { width: 2, height: 3, colours: vec![1, 2, 3, 4, 5, 6] });
        let buffer = drawn(&picture, (0, 0), (2, 2));
        assert_eq!(characters(&buffer), "▀▀▀▀");
        assert_eq!(
            (buffer[(1, 0)].fg, buffer[(1, 0)].bg),
            (Color::Rgb(0, 0, 2), Color::Rgb(0, 0, 4))
        );
        assert_eq!(
            (buffer[(0, 1)].fg, buffer[(0, 1)].bg),
            (Color::Rgb(0, 0, 5), Color::Rgb(0, 0, 0))
        );
    }

    #[test]
    fn notes_cover_the_lower_right_corner() {
        let note = Note::lines("one\nthree");
        let area = Rect::new(0, 0, 8, 3);
        let mut buffer = Buffer::empty(area);
        let picture = text(8, &[b'.'; 24]);
        let screen = Screen {
            picture: Some(&picture),
            from: (0, 0),
            colours: Colours::Sixteen,
            note: &note,
        };
        screen.render(area, &mut buffer);
        assert_eq!(characters(&buffer), "..........one   ..three ");
        let tiny = Rect::new(0, 0, 2, 1);
        let mut buffer = Buffer::empty(tiny);
        screen.render(tiny, &mut buffer);
        assert_eq!(characters(&buffer), "on");
    }
}
