//! The pictures that a display adapter shows.

/// A picture at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Picture {
    /// Characters in cells.
    Text(TextScreen),
    /// Pixels.
    Pixels(Pixels),
}

/// A screen of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextScreen {
    /// Cells in a row.
    pub columns: usize,
    /// Number of rows.
    pub rows: usize,
    /// The cells, row by row, `columns` times `rows` of them.
    pub cells: Vec<Cell>,
    /// Column and row of the cell with the cursor, if the cursor is visible.
    pub cursor: Option<(usize, usize)>,
    /// The same screen in pixels, drawn with the fonts that the guest has loaded.
    pub pixels: Pixels,
}

/// One character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Its code in the font, which is code page 437 unless the guest loads another font.
    pub character: u8,
    /// The colour of the character, 0RGB, 8 bits each.
    pub foreground: u32,
    /// The colour behind it.
    pub background: u32,
    /// Whether the character blinks.
    pub blinks: bool,
}

/// A screen of pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels in a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// The pixels, row by row from the top, `width` times `height` of them: 0RGB, 8 bits each.
    pub colours: Vec<u32>,
}

impl TextScreen {
    /// Returns the text on the screen as lines without spaces at their ends. Characters of code page 437
    /// outside ASCII become '?'.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for row in self.cells.chunks(self.columns.max(1)) {
            let line: String = row
                .iter()
                .map(|cell| match cell.character {
                    0 => ' ',
                    code @ 0x20..=0x7e => char::from(code),
                    _ => '?',
                })
                .collect();
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}
