//! The rows of a terminal, as a page draws them.
//!
//! A page gets characters and colours, and no control sequences: see [`crate::terminal`].

use serde::Serialize;

use crate::terminal::emulator::{Emulator, harmless};

/// Characters of a row that look alike: what they are, their colour and that behind them (0RGB, or -1 for the usual
/// one), and how they are written ([`BOLD`] and so on).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Run(String, i32, i32, u8);

const BOLD: u8 = 1;
const DIM: u8 = 2;
const ITALIC: u8 = 4;
const UNDERLINED: u8 = 8;
const REVERSED: u8 = 16;

/// The colours 0 to 15, as xterm has them.
const BASIC: [i32; 16] = [
    0x000000, 0xcd0000, 0x00cd00, 0xcdcd00, 0x1e90ff, 0xcd00cd, 0x00cdcd, 0xe5e5e5, 0x7f7f7f,
    0xff0000, 0x00ff00, 0xffff00, 0x5c5cff, 0xff00ff, 0x00ffff, 0xffffff,
];

/// What a page shows of a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shown {
    rows: Vec<Vec<Run>>,
    cursor: Option<(u16, u16)>,
    scrolled: usize,
}

/// What has changed for a page.
#[derive(Debug, Serialize)]
pub(super) struct Changes {
    is: &'static str,
    /// How many rows there are.
    count: usize,
    /// The numbers of rows that have changed, and what is in them.
    rows: Vec<(usize, Vec<Run>)>,
    /// Column and row of the cursor.
    cursor: Option<(u16, u16)>,
    /// How many lines the newest one is away.
    scrolled: usize,
}

impl Shown {
    /// Returns what `emulator` shows.
    pub(super) fn of(emulator: &Emulator) -> Shown {
        let screen = emulator.screen();
        let (rows, columns) = screen.size();
        let (rows, columns) = (rows.get(), columns.get());
        let (row, column) = screen.cursor_position();
        let scrolled = emulator.scrolled();
        let has_cursor = !screen.hide_cursor() && scrolled == 0;
        let row_of = |row| runs((0..columns).filter_map(move |column| screen.cell(row, column)));
        Shown {
            rows: (0..rows).map(row_of).collect(),
            cursor: has_cursor.then_some((column, row)),
            scrolled,
        }
    }

    /// Returns what a page that shows `self` has to change to show `new`. None if that is nothing.
    pub(super) fn changes(&self, new: &Shown) -> Option<Changes> {
        if self == new {
            return None;
        }
        let is_new = |(number, row): &(usize, &Vec<Run>)| self.rows.get(*number) != Some(row);
        let rows = new.rows.iter().enumerate().filter(is_new);
        Some(Changes {
            is: "rows",
            count: new.rows.len(),
            rows: rows.map(|(number, row)| (number, row.clone())).collect(),
            cursor: new.cursor,
            scrolled: new.scrolled,
        })
    }
}

fn runs<'a>(cells: impl Iterator<Item = &'a vt100::Cell>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // The second half of a wide character comes with the first.
    for cell in cells.filter(|cell| !cell.is_wide_continuation()) {
        let text = harmless(cell.contents());
        let ways = [
            (cell.bold(), BOLD),
            (cell.dim(), DIM),
            (cell.italic(), ITALIC),
            (cell.underline(), UNDERLINED),
            (cell.inverse(), REVERSED),
        ];
        let ways = ways.iter().filter(|(is_on, _)| *is_on).map(|(_, bit)| bit).sum();
        let (front, back) = (colour(cell.fgcolor()), colour(cell.bgcolor()));
        match runs.last_mut() {
            Some(last) if (last.1, last.2, last.3) == (front, back, ways) => last.0.push_str(text),
            _ => runs.push(Run(text.to_owned(), front, back, ways)),
        }
    }
    // Spaces at the end look like nothing.
    if let Some(last) = runs.last_mut()
        && (last.2, last.3) == (-1, 0)
    {
        last.0.truncate(last.0.trim_end_matches(' ').len());
        if last.0.is_empty() {
            runs.pop();
        }
    }
    runs
}

/// Returns a colour as 0RGB, or -1 for the usual one. Those from 16 on are a cube, and those from 232 on are grey (xterm,
/// `256colres.h`).
fn colour(colour: vt100::Color) -> i32 {
    let step = |level: u8| if level == 0 { 0 } else { i32::from(level) * 40 + 55 };
    let (red, green, blue) = match colour {
        vt100::Color::Default => return -1,
        vt100::Color::Rgb(red, green, blue) => (red.into(), green.into(), blue.into()),
        vt100::Color::Idx(index @ 0..=15) => return BASIC[usize::from(index)],
        vt100::Color::Idx(index @ 16..=231) => {
            let index = index - 16;
            (step(index / 36), step(index / 6 % 6), step(index % 6))
        }
        vt100::Color::Idx(index) => {
            let grey = i32::from(index - 232) * 10 + 8;
            (grey, grey, grey)
        }
    };
    red << 16 | green << 8 | blue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_have_changed_are_sent() {
        let mut emulator = Emulator::new((8, 3), false);
        emulator.process(b"one\r\n\x1b[1;31mt\x1b[0mwo");
        let first = Shown::of(&emulator);
        let changes = serde_json::to_value(Shown::default().changes(&first)).unwrap();
        let wanted = serde_json::json!({
            "is": "rows", "count": 3, "cursor": [3, 1], "scrolled": 0,
            "rows": [
                [0, [["one", -1, -1, 0]]],
                [1, [["t", 0xcd0000, -1, BOLD], ["wo", -1, -1, 0]]],
                [2, []],
            ],
        });
        assert_eq!(changes, wanted);
        assert!(first.changes(&first.clone()).is_none());
        emulator.process(b"!");
        let second = Shown::of(&emulator);
        let rows = first.changes(&second).unwrap().rows;
        assert_eq!(rows.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn colours_are_those_of_an_xterm() {
        assert_eq!(colour(vt100::Color::Idx(16)), 0);
        assert_eq!(colour(vt100::Color::Idx(231)), 0xffffff);
        assert_eq!(colour(vt100::Color::Idx(255)), 0xeeeeee);
        assert_eq!(colour(vt100::Color::Rgb(1, 2, 3)), 0x010203);
    }
}
