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

impl Pixels {
    /// Returns the same in at most this many columns and rows, with the ratio of the sides. Each new pixel is the
    /// mean of those that it covers.
    #[must_use]
    pub fn shrunk(&self, (columns, rows): (usize, usize)) -> Pixels {
        let Pixels { width, height, ref colours } = *self;
        let possible = width != 0 && height != 0 && colours.len() == width * height;
        if !possible || columns == 0 || rows == 0 {
            return Pixels { width: 0, height: 0, colours: Vec::new() };
        }
        // The side that exceeds its limit more decides.
        let (new_width, new_height) = if width <= columns && height <= rows {
            (width, height)
        } else if width * rows > height * columns {
            (columns, (height * columns / width).max(1))
        } else {
            ((width * rows / height).max(1), rows)
        };
        let mean = |x: usize, y: usize| {
            let (left, right) = (x * width / new_width, (x + 1) * width / new_width);
            let (top, bottom) = (y * height / new_height, (y + 1) * height / new_height);
            let mut sums = [0u64; 4];
            for row in colours[top * width..bottom * width].chunks_exact(width) {
                for colour in &row[left..right] {
                    for (sum, byte) in sums.iter_mut().zip(colour.to_be_bytes()) {
                        *sum += u64::from(byte);
                    }
                }
            }
            let count = ((right - left) * (bottom - top)) as u64;
            u32::from_be_bytes(sums.map(|sum| (sum / count) as u8))
        };
        let places = (0..new_height).flat_map(|y| (0..new_width).map(move |x| (x, y)));
        let colours = places.map(|(x, y)| mean(x, y)).collect();
        Pixels { width: new_width, height: new_height, colours }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_graphics_are_scaled_down() {
        let pixels = Pixels { width: 4, height: 2, colours: vec![0, 2, 9, 9, 4, 6, 9, 9] };
        assert_eq!(pixels.shrunk((2, 9)), Pixels { width: 2, height: 1, colours: vec![3, 9] });
        assert_eq!(pixels.shrunk((9, 9)), pixels);
        let wide = Pixels { width: 1000, height: 1, colours: vec![7; 1000] };
        assert_eq!(wide.shrunk((3, 3)), Pixels { width: 3, height: 1, colours: vec![7; 3] });
        let high = Pixels { width: 1, height: 1000, colours: vec![7; 1000] };
        assert_eq!(high.shrunk((3, 3)), Pixels { width: 1, height: 3, colours: vec![7; 3] });
        let wrong = Pixels { width: 10, height: 10, colours: vec![7] };
        assert_eq!(wrong.shrunk((3, 3)).colours, []);
        assert_eq!(pixels.shrunk((0, 3)).colours, []);
    }
}
