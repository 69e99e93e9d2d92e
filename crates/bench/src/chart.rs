//! Draws curves of values by sizes, with both axes logarithmic.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

const WIDTH: u32 = 900;
/// The height of one chart.
const HEIGHT: u32 = 500;

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The place on the horizontal axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Half the distance between the quartiles of the measurements, as a share of the value, if there are some.
    pub spread: Option<f64>,
}

impl Point {
    /// Returns the quartiles. A spread as large as the value has no place on a logarithmic axis.
    fn quartiles(&self) -> Option<[f64; 2]> {
        let spread = self.spread.filter(|spread| *spread < 1.0)?;
        Some([1.0 - spread, 1.0 + spread].map(|share| self.y * share))
    }
}

/// A chart: names of curves, with their points.
#[derive(Debug)]
pub struct Chart {
    /// The title above the chart.
    pub title: &'static str,
    /// The label of the vertical axis.
    pub unit: &'static str,
    /// The names of the curves, with their points.
    pub curves: Vec<(String, Vec<Point>)>,
}

/// Writes the charts one below the other to an SVG file. `x` is the label of all horizontal axes. Errors are
/// texts for people.
pub fn write(path: &Path, x: &str, charts: &[Chart]) -> Result<(), String> {
    let picture = draw(x, charts).map_err(|error| error.to_string())?;
    std::fs::write(path, picture).map_err(|error| error.to_string())
}

fn draw(x: &str, charts: &[Chart]) -> Result<String, Box<dyn std::error::Error>> {
    let mut picture = String::new();
    {
        let size = (WIDTH, HEIGHT * charts.len() as u32);
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, chart) in root.split_evenly((charts.len(), 1)).iter().zip(charts) {
            draw_chart(area, x, chart)?;
        }
        root.present()?;
    }
    Ok(picture)
}

fn draw_chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    x: &str,
    chart: &Chart,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || chart.curves.iter().flat_map(|(_, points)| points);
    let (least_x, most_x) = range(points().map(|point| point.x));
    let values = points()
        .flat_map(|point| [point.y].into_iter().chain(point.quartiles().into_iter().flatten()));
    let (least_y, most_y) = powers_around(range(values));
    let mut context = ChartBuilder::on(area)
        .caption(chart.title, ("sans-serif", 18))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(
            (least_x..most_x).log_scale().base(2.0),
            (least_y..most_y).log_scale().base(2.0),
        )?;
    context
        .configure_mesh()
        .x_desc(x)
        .y_desc(chart.unit)
        .x_label_formatter(&|bytes| size(*bytes))
        .draw()?;
    for (number, (name, points)) in chart.curves.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        // A value without time is infinite, and has no place on the axis.
        let drawn = || points.iter().filter(|point| point.y.is_finite());
        let spread = |point: &Point| {
            let ends = point.quartiles()?.map(|end| (point.x, end));
            Some(PathElement::new(ends, colour))
        };
        context.draw_series(drawn().filter_map(spread))?;
        let line = drawn().map(|point| (point.x, point.y));
        context
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// Returns the least and the largest of the positive, finite values.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values
        .filter(|value| *value > 0.0 && value.is_finite())
        .fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), v| (least.min(v), most.max(v)));
    if least < most { (least, most) } else { (1.0, 10.0) }
}

/// Returns the powers of two around a range, at which an axis has its numbers.
fn powers_around((least, most): (f64, f64)) -> (f64, f64) {
    (least.log2().floor().exp2(), most.log2().ceil().exp2())
}

/// Formats a number of bytes for people.
fn size(bytes: f64) -> String {
    let bytes = bytes.round() as u64;
    match bytes {
        ..1024 => format!("{bytes}"),
        1024..0x10_0000 => format!("{} Ki", bytes >> 10),
        _ => format!("{} Mi", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, spread: None }
    }

    #[test]
    fn pictures_have_all_curves() {
        let at = |n: i32, factor: f64| point(f64::from(1 << n), f64::from(n) * factor);
        let curve =
            |name: &str, factor: f64| (name.to_owned(), (9..13).map(|n| at(n, factor)).collect());
        let curves = vec![curve("one", 1.0), curve("other", 3.0)];
        let picture = draw("bytes", &[Chart { title: "Reads", unit: "time", curves }]).unwrap();
        for word in ["one", "other", "Reads", "bytes", "time", "4 Ki"] {
            assert!(picture.contains(word), "{word}");
        }
        assert!(picture.matches("<polyline").count() >= 2);
    }

    #[test]
    fn axes_have_numbers_around_all_values() {
        let (least, most) = powers_around((300.0, 400.0));
        assert!(least.total_cmp(&256.0).is_eq() && most.total_cmp(&512.0).is_eq());
        let curves = vec![("one".to_owned(), vec![point(64.0, 300.0), point(128.0, 400.0)])];
        let picture = draw("bytes", &[Chart { title: "Pings", unit: "us", curves }]).unwrap();
        assert!(picture.contains("256.0") && picture.contains("512.0"), "{picture}");
    }

    #[test]
    fn quartiles_have_lines_on_the_axis() {
        let has_line = |spread| {
            let middle = Point { spread, ..point(128.0, 400.0) };
            let curves = vec![("one".to_owned(), vec![point(64.0, 300.0), middle])];
            let picture = draw("bytes", &[Chart { title: "Pings", unit: "us", curves }]).unwrap();
            // The curve itself is twice as wide.
            let is_line = picture.contains("stroke=\"#E6194B\" stroke-width=\"1\"");
            assert_eq!(picture.contains("1024.0"), is_line, "{picture}");
            is_line
        };
        assert!(has_line(Some(0.5)));
        assert!(!has_line(Some(1.5)) && !has_line(None));
    }

    #[test]
    fn nothing_measured_is_no_error() {
        let curves =
            vec![("one".to_owned(), vec![point(512.0, 0.0), point(1024.0, f64::INFINITY)])];
        draw("bytes", &[Chart { title: "Reads", unit: "time", curves }]).unwrap();
    }
}
