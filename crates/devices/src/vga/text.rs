//! Text modes: characters in plane 0, their attributes in plane 1, fonts in plane 2.
//!
//! (FreeVGA, "VGA Text Mode Operation"; the Reference, "Alphanumeric Modes" and "RAM Loadable Character Generator".)

use ring3_core::display::{Cell, Pixels, TextScreen};

use super::registers::Registers;
use super::render::{put_line, size};
use super::scan::{self, Line, Planes};

/// Bytes of a character in a font, one for each row scan.
const GLYPH_LEN: u32 = 32;
/// The characters that join to the next one, where the attribute controller says so.
const LINE_GRAPHICS: std::ops::RangeInclusive<u8> = 0xc0..=0xdf;
/// The foreground of underlined characters, in the low three bits of the attribute.
const UNDERLINED: u8 = 1;
/// A picture does not know the phase of blinking: what blinks is shown and marked.
const BLINKS: u8 = 0x80;

/// A character on the screen.
#[derive(Debug, Clone, Copy)]
struct Character {
    code: u8,
    attribute: u8,
    has_cursor: bool,
}

impl Character {
    fn at(registers: &Registers, planes: Planes<'_>, line: Line, column: usize) -> Character {
        let counter = line.start.wrapping_add(column as u16);
        let offset = scan::plane_offset(registers, counter, line.row_scan);
        let [code, attribute, ..] = planes.at(offset.into());
        Character { code, attribute, has_cursor: counter == registers.cursor_location() }
    }

    fn foreground(self, palette: &[u32; 16]) -> u32 {
        palette[usize::from(self.attribute & 15)]
    }

    fn background(self, registers: &Registers, palette: &[u32; 16]) -> u32 {
        let bits = if registers.blinks() { self.attribute & !BLINKS } else { self.attribute };
        palette[usize::from(bits >> 4)]
    }

    fn cell(self, registers: &Registers, palette: &[u32; 16]) -> Cell {
        Cell {
            character: self.code,
            foreground: self.foreground(palette),
            background: self.background(registers, palette),
            blinks: registers.blinks() && self.attribute & BLINKS != 0,
        }
    }

    /// The dots of the character in a line with row scan `row_scan`: bit 8 is the leftmost, bit 0 the
    /// ninth one.
    fn dots(self, registers: &Registers, planes: Planes<'_>, row_scan: u8) -> u16 {
        let cursor = registers.cursor_rows().is_some_and(|rows| rows.contains(&row_scan));
        let underline = self.attribute & 7 == UNDERLINED && row_scan == registers.underline_row();
        if underline || self.has_cursor && cursor {
            return 0x1ff;
        }
        let font = registers.character_map(self.attribute & 8 != 0);
        let offset = font + u32::from(self.code) * GLYPH_LEN + u32::from(row_scan);
        let [_, _, glyph, _] = planes.at(offset);
        let joins = registers.extends_line_graphics() && LINE_GRAPHICS.contains(&self.code);
        u16::from(glyph) << 1 | u16::from(joins && glyph & 1 != 0)
    }
}

/// The screen in a text mode.
pub(super) fn picture(registers: &Registers, planes: Planes<'_>) -> TextScreen {
    let palette = registers.palette_16();
    let (width, height) = size(registers);
    let (columns, dots) = (registers.columns(), registers.dots());
    let mut cells = Vec::new();
    let mut cursor = None;
    let mut pixels = Vec::with_capacity(width * height);
    // One character more than there are columns: panning brings a part of it in.
    let mut row: Vec<Character> = Vec::with_capacity(columns + 1);
    let mut line_dots = Vec::with_capacity((columns + 1) * dots);
    let mut drawn = None;
    for line in scan::lines(registers, dots) {
        if line.begins_row
            || registers.row_scan_0_is_address_13()
            || registers.row_scan_1_is_address_14()
        {
            row.clear();
            row.extend((0..=columns).map(|column| Character::at(registers, planes, line, column)));
        }
        if line.begins_row {
            let with_cursor = row[..columns].iter().position(|character| character.has_cursor);
            if let Some(column) = with_cursor.filter(|_| registers.cursor_rows().is_some()) {
                cursor = Some((column, cells.len() / columns));
            }
            let visible = row[..columns].iter();
            cells.extend(visible.map(|character| character.cell(registers, &palette)));
        }
        if drawn != Some((line.start, line.row_scan)) {
            drawn = Some((line.start, line.row_scan));
            line_dots.clear();
            for character in &row {
                let bits = character.dots(registers, planes, line.row_scan);
                let foreground = character.foreground(&palette);
                let background = character.background(registers, &palette);
                let dot = |bit: usize| {
                    if bits >> (8 - bit) & 1 != 0 { foreground } else { background }
                };
                line_dots.extend((0..dots).map(dot));
            }
        }
        put_line(registers, &line_dots, line.panning, &mut pixels, width);
    }
    let rows = cells.len() / columns;
    TextScreen { columns, rows, cells, cursor, pixels: Pixels { width, height, colours: pixels } }
}
