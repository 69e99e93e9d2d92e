//! Draws the results of `ring3 bench cpu`: for each benchmark and each column a bar, whose length is the
//! logarithm of the ratio to the host's own time.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::table::{CALIBRATION, Row};

/// Sizes in the picture's units. Between the bars of two benchmarks there is space for one bar.
const WIDTH: u32 = 900;
const BAR: u32 = 8;
const MARGINS: u32 = 110;
const NAMES: u32 = 190;

/// Writes the ratios of `rows` to an SVG file, except for calibrations and rows without ratios. Errors are
/// texts for people.
pub(super) fn write(path: &Path, names: &[String], rows: &[Row]) -> Result<(), String> {
    let has_bars = |row: &&Row| {
        row.group != CALIBRATION && (0..names.len()).any(|column| row.ratio(column).is_some())
    };
    let shown: Vec<_> = rows.iter().filter(has_bars).cloned().collect();
    let picture = draw(names, &shown)?;
    std::fs::write(path, picture).map_err(|error| error.to_string())
}

fn draw(names: &[String], rows: &[Row]) -> Result<String, String> {
    let mut picture = String::new();
    let height = MARGINS + BAR * (rows.len() * (names.len() + 1)) as u32;
    {
        let root = SVGBackend::with_string(&mut picture, (WIDTH, height)).into_drawing_area();
        draw_bars(&root, names, rows).map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(picture)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawError = Box<dyn std::error::Error>;

fn draw_bars(root: &Area<'_>, names: &[String], rows: &[Row]) -> Result<(), DrawError> {
    root.fill(&WHITE)?;
    let (least, most) = range(rows);
    // The vertical axis counts bars upwards; the first benchmark is at the top.
    let bars_of_one = names.len() as i32 + 1;
    let top = rows.len() as i32 * bars_of_one;
    let top_of = |row: usize| top - row as i32 * bars_of_one;
    let mut chart = ChartBuilder::on(root)
        .caption("Processor time as a multiple of the host's own", ("sans-serif", 18))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(30)
        .y_label_area_size(NAMES)
        .build_cartesian_2d((least..most).log_scale(), 0..top)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|ratio| format!("{ratio}"))
        .draw()?;
    let name = TextStyle::from(("sans-serif", 13)).pos(Pos::new(HPos::Right, VPos::Center));
    for (at, row) in rows.iter().enumerate() {
        let place = EmptyElement::at((least, top_of(at) - bars_of_one / 2));
        chart.draw_series([place + Text::new(row.name.clone(), (-6, 0), name.clone())])?;
    }
    for (index, name) in names.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let bars = rows.iter().enumerate().filter_map(|(at, row)| {
            let ratio = row.ratio(index)?.median;
            let top = top_of(at) - index as i32;
            Some(Rectangle::new([(1.0, top), (ratio, top - 1)], colour.filled()))
        });
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled()));
    }
    chart.draw_series([PathElement::new([(1.0, 0), (1.0, top)], BLACK)])?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// Returns the powers of ten around all ratios and 1.
fn range(rows: &[Row]) -> (f64, f64) {
    let ratios =
        rows.iter().flat_map(|row| (0..row.times.len()).filter_map(|column| row.ratio(column)));
    let (least, most) = ratios.fold((1.0f64, 10.0f64), |(least, most), ratio| {
        (least.min(ratio.median), most.max(ratio.median))
    });
    (10f64.powf(least.log10().floor()), 10f64.powf(most.log10().ceil()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, times: [Option<f64>; 2]) -> Row {
        let series = |time: Option<f64>| time.map(|time| (0, time)).into_iter().collect();
        let times = times.map(series).to_vec();
        Row { name: name.into(), group: "cpu".into(), native: series(Some(0.01)), times }
    }

    #[test]
    fn the_axis_has_all_ratios() {
        let rows = [row("a", [Some(0.004), Some(0.5)]), row("b", [Some(1.2), None])];
        let (least, most) = range(&rows);
        assert!((least - 0.1).abs() < 1e-9 && (most - 1000.0).abs() < 1e-9, "{least} to {most}");
    }

    #[test]
    fn pictures_have_a_bar_for_each_ratio() {
        let names = ["ring3", "QEMU (TCG)"].map(String::from);
        let empty = draw(&names, &[row("alpha", [None, None])]).unwrap();
        let full = draw(&names, &[row("alpha", [Some(0.02), Some(0.4)])]).unwrap();
        let bars = |picture: &str| picture.matches("<rect").count();
        assert_eq!(bars(&full), bars(&empty) + 2);
        for word in ["alpha", "ring3", "QEMU (TCG)"] {
            assert!(full.contains(word), "{word}");
        }
    }
}
