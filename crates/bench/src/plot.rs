//! Draws ratios: for each benchmark and each comparison a bar, whose length is the logarithm of the ratio, and a
//! line from quartile to quartile.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::statistics::Figure;

/// Sizes in the picture's units. Between the bars of two benchmarks there is space for one bar.
const WIDTH: u32 = 1000;
const BAR: u32 = 8;
const MARGINS: u32 = 110;
const NAMES: u32 = 190;
const LEGEND: u32 = 180;
const LINE: u32 = 16;

/// What is drawn.
#[derive(Debug)]
pub(super) struct Bars {
    pub(super) title: &'static str,
    /// What is compared.
    pub(super) names: Vec<String>,
    /// The benchmarks, with a ratio for each comparison that there is.
    pub(super) rows: Vec<(String, Vec<Option<Figure>>)>,
}

/// Writes the bars to an SVG file. Errors are texts for people.
pub(super) fn write(path: &Path, bars: &Bars) -> Result<(), String> {
    let picture = draw(bars)?;
    std::fs::write(path, picture).map_err(|error| error.to_string())
}

fn draw(bars: &Bars) -> Result<String, String> {
    let mut picture = String::new();
    let (rows, names) = (bars.rows.len() as u32, bars.names.len() as u32);
    let height = MARGINS + (BAR * rows * (names + 1)).max(LINE * names);
    {
        let root = SVGBackend::with_string(&mut picture, (WIDTH, height)).into_drawing_area();
        draw_bars(&root, bars).map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(picture)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawError = Box<dyn std::error::Error>;

fn draw_bars(root: &Area<'_>, bars: &Bars) -> Result<(), DrawError> {
    let Bars { title, names, rows } = bars;
    root.fill(&WHITE)?;
    let (least, most) = range(rows);
    // The vertical axis counts bars upwards; the first benchmark is at the top.
    let bars_of_one = names.len() as u32 + 1;
    let top = f64::from(rows.len() as u32 * bars_of_one);
    let top_of = |row: usize| top - f64::from(row as u32 * bars_of_one);
    let axis = (least..most).log_scale().with_key_points(numbers(least, most));
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .margin_right(LEGEND)
        .x_label_area_size(30)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(axis, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|ratio| format!("{ratio}"))
        .draw()?;
    let name = TextStyle::from(("sans-serif", 13)).pos(Pos::new(HPos::Right, VPos::Center));
    for (at, (benchmark, _)) in rows.iter().enumerate() {
        let place = EmptyElement::at((least, top_of(at) - f64::from(bars_of_one - 1) / 2.0));
        chart.draw_series([place + Text::new(benchmark.clone(), (-6, 0), name.clone())])?;
    }
    for (index, name) in names.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let at = |row: usize| top_of(row) - f64::from(index as u32);
        let ratios =
            || rows.iter().enumerate().filter_map(|(row, all)| Some((at(row), all.1[index]?)));
        let bar = |(top, ratio): (f64, Figure)| {
            Rectangle::new([(1.0, top), (ratio.median, top - 1.0)], colour.filled())
        };
        chart.draw_series(ratios().map(bar))?;
        let spread = |(top, ratio): (f64, Figure)| {
            let half = ratio.median * ratio.spread.filter(|spread| *spread < 1.0)?;
            let ends = [(ratio.median - half, top - 0.5), (ratio.median + half, top - 0.5)];
            Some(PathElement::new(ends, BLACK))
        };
        chart.draw_series(ratios().filter_map(spread))?;
        let (x, y) = ((WIDTH - LEGEND + LINE) as i32, (40 + LINE * index as u32) as i32);
        root.draw(&Rectangle::new([(x, y), (x + 14, y + 8)], colour.filled()))?;
        root.draw(&Text::new(name.as_str(), (x + 20, y), ("sans-serif", 13)))?;
    }
    chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, top)], BLACK)])?;
    Ok(())
}

/// Returns the ends of the axis around all ratios and 1: 1, 2 or 5 times a power of ten.
fn range(rows: &[(String, Vec<Option<Figure>>)]) -> (f64, f64) {
    let ratios = rows.iter().flat_map(|(_, ratios)| ratios.iter().flatten());
    let (least, most) = ratios.fold((1.0f64, 1.0f64), |(least, most), ratio| {
        (least.min(ratio.median), most.max(ratio.median))
    });
    let below = [5.0, 2.0].into_iter().map(|step| step * power_below(least));
    let above = [2.0, 5.0].into_iter().map(|step| step * power_below(most));
    let least_number = below.into_iter().find(|number| *number <= least);
    let most_number = above.into_iter().find(|number| *number > most);
    let least = least_number.unwrap_or(power_below(least));
    (least, most_number.unwrap_or(10.0 * power_below(most)))
}

/// Returns the numbers of an axis with these ends: 1, 2 and 5 times each power of ten, or only the powers themselves
/// if those are many.
fn numbers(least: f64, most: f64) -> Vec<f64> {
    let exponent = |end: f64| end.log10().floor() as i32;
    let steps: &[f64] =
        if exponent(most) - exponent(least) > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let of_power = |exponent| steps.iter().map(move |step| step * 10f64.powi(exponent));
    let all = (exponent(least)..=exponent(most)).flat_map(of_power);
    all.filter(|number| (least..=most).contains(number)).collect()
}

fn power_below(value: f64) -> f64 {
    10f64.powf(value.log10().floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ratios: [Option<f64>; 2]) -> (String, Vec<Option<Figure>>) {
        (name.into(), ratios.map(|ratio| ratio.map(Figure::single)).to_vec())
    }

    fn bars(rows: Vec<(String, Vec<Option<Figure>>)>) -> Bars {
        let names = ["ring3", "QEMU (TCG)"].map(String::from).to_vec();
        Bars { title: "Time", names, rows }
    }

    #[test]
    fn the_axis_has_all_ratios() {
        let near = |rows: &[_], least: f64, most: f64| {
            let found = range(rows);
            assert!((found.0 - least).abs() < 1e-9 && (found.1 - most).abs() < 1e-9, "{found:?}");
        };
        near(&[row("a", [Some(0.4), Some(50.0)]), row("b", [Some(120.0), None])], 0.2, 200.0);
        near(&[row("a", [Some(0.97), Some(1.3)])], 0.5, 2.0);
        near(&[row("a", [Some(1.2), Some(7.0)])], 1.0, 10.0);
        near(&[], 1.0, 2.0);
    }

    #[test]
    fn an_axis_has_numbers_that_can_be_told_apart() {
        let close = |found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len(), "{found:?}");
            assert!(
                found.iter().zip(expected).all(|(f, e)| (f / e - 1.0).abs() < 1e-9),
                "{found:?}"
            );
        };
        close(&numbers(0.5, 2.0), &[0.5, 1.0, 2.0]);
        close(&numbers(1.0, 10.0), &[1.0, 2.0, 5.0, 10.0]);
        close(&numbers(0.01, 5000.0), &[0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn pictures_have_a_bar_for_each_ratio_and_a_line_for_each_spread() {
        let empty = draw(&bars(vec![row("alpha", [None, None])])).unwrap();
        let mut full = bars(vec![row("alpha", [Some(2.0), Some(40.0)])]);
        let bare = draw(&full).unwrap();
        full.rows[0].1[0] = Some(Figure { median: 2.0, spread: Some(0.1) });
        let full = draw(&full).unwrap();
        let count = |picture: &str, element: &str| picture.matches(element).count();
        assert_eq!(count(&full, "<rect"), count(&empty, "<rect") + 2);
        assert_eq!(count(&full, "<polyline"), count(&bare, "<polyline") + 1);
        for word in ["alpha", "ring3", "QEMU (TCG)", "Time"] {
            assert!(full.contains(word), "{word}");
        }
    }
}
