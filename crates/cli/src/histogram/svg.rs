//! The histogram as a picture: bars for groups, for the most frequent forms and for the hottest blocks.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Counts, Report};

const WIDTH: u32 = 1000;
/// The height of a line with a bar.
const LINE: i32 = 18;
/// The places of the names, which end there, and of the bars, which begin there.
const NAMES_END: i32 = 330;
const BARS: i32 = 340;
/// The width of the longest bar.
const LONGEST: i32 = 480;
/// The most forms and blocks that are shown.
const SHOWN: usize = 30;

const SUPERVISOR: RGBColor = RGBColor(31, 119, 180);
const USER: RGBColor = RGBColor(255, 127, 14);

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A part of the picture: its title, and names with counts.
type Part<'a> = (&'static str, Vec<(String, Counts)>);

/// Draws `report`.
pub(super) fn draw(report: &Report) -> io::Result<String> {
    let groups = report.groups.iter().map(|row| (row.name.clone(), row.counts)).collect();
    let forms = report.forms.iter().take(SHOWN);
    let forms = forms.map(|row| (row.name.to_owned(), row.counts)).collect();
    let blocks = report.blocks.iter().take(SHOWN).map(|row| {
        let name = row.symbol.as_ref().map(|symbol| format!("{} {symbol}", row.address));
        (name.unwrap_or_else(|| row.address.clone()), row.counts)
    });
    let parts: [Part<'_>; 3] = [("groups", groups), ("forms", forms), ("blocks", blocks.collect())];
    let lines: usize = parts.iter().map(|(_, rows)| rows.len() + 2).sum();
    let height = (lines as i32 + 3) * LINE;
    let mut picture = String::new();
    draw_parts(&mut picture, height as u32, report, &parts)
        .map_err(|error| io::Error::other(error.to_string()))?;
    Ok(picture)
}

fn draw_parts(picture: &mut String, height: u32, report: &Report, parts: &[Part<'_>]) -> Drawn {
    let area = SVGBackend::with_string(picture, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{} instructions", report.instructions);
    write(&area, BARS, LINE, HPos::Left, 16, &title)?;
    for (at, color, name) in [(BARS + 250, SUPERVISOR, "supervisor"), (BARS + 370, USER, "user")] {
        bar(&area, at, LINE, 12, color)?;
        write(&area, at + 18, LINE, HPos::Left, 13, name)?;
    }
    let mut y = 2 * LINE;
    for (title, rows) in parts {
        y += LINE;
        write(&area, BARS, y, HPos::Left, 14, title)?;
        let longest = rows.iter().map(|(_, counts)| counts.total()).max().unwrap_or(1).max(1);
        let length = |count: u64| {
            let length = u128::from(count) * LONGEST as u128 / u128::from(longest);
            i32::try_from(length).unwrap_or(LONGEST)
        };
        for (name, counts) in rows {
            y += LINE;
            write(&area, NAMES_END, y, HPos::Right, 13, name)?;
            let (first, both) = (length(counts.supervisor), length(counts.total()));
            bar(&area, BARS, y, first, SUPERVISOR)?;
            bar(&area, BARS + first, y, both - first, USER)?;
            let permille =
                u128::from(counts.total()) * 1000 / u128::from(report.instructions.max(1));
            let share = format!("{} ({}.{} %)", counts.total(), permille / 10, permille % 10);
            write(&area, BARS + both + 6, y, HPos::Left, 12, &share)?;
        }
        y += LINE;
    }
    area.present()?;
    Ok(())
}

/// Writes `text`, in the middle of the line at `y`.
fn write(area: &Area<'_>, x: i32, y: i32, side: HPos, size: u32, text: &str) -> Drawn {
    let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
    area.draw_text(text, &style, (x, y + LINE / 2))?;
    Ok(())
}

fn bar(area: &Area<'_>, x: i32, y: i32, length: i32, color: RGBColor) -> Drawn {
    if length > 0 {
        let corners = [(x, y + 3), (x + length, y + LINE - 3)];
        area.draw(&Rectangle::new(corners, color.filled()))?;
    }
    Ok(())
}
