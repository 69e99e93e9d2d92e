//! Draws overheads by ticks a second, with their lines (van der Kouwe 2009, figure 19).

use std::path::Path;

use plotters::prelude::*;

use super::fit::Line;

const SIZE: (u32, u32) = (900, 500);

/// The measurements of one system: its name, and points of ticks a second and per cent.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Writes the curves to an SVG file. Errors are texts for people.
pub(super) fn write(path: &Path, curves: &[Curve]) -> Result<(), String> {
    let picture = draw(curves).map_err(|error| error.to_string())?;
    std::fs::write(path, picture).map_err(|error| error.to_string())
}

fn draw(curves: &[Curve]) -> Result<String, Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(1e-3, f64::max);
    let least = points().map(|point| point.1).fold(0.0, f64::min);
    let (most_x, most_y) = (most(|point| point.0), most(|point| point.1));
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut context = ChartBuilder::on(&root)
            .caption("What ticks take of a processor", ("sans-serif", 18))
            .margin(10)
            .margin_right(30)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..most_x * 1.02, least * 1.05..most_y * 1.05)?;
        context
            .configure_mesh()
            .x_desc("ticks a second")
            .y_desc("per cent")
            .x_label_formatter(&|hz| format!("{hz:.0}"))
            .y_label_formatter(&|overhead| format!("{overhead:.0}"))
            .max_light_lines(0)
            .draw()?;
        for (number, curve) in curves.iter().enumerate() {
            let colour = Palette99::pick(number).to_rgba();
            let marks = curve.points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
            context
                .draw_series(marks)?
                .label(curve.name.as_str())
                .legend(move |(x, y)| Circle::new((x + 7, y), 3, colour.filled()));
            if let Some(line) = Line::through(&curve.points) {
                let end = curve.points.iter().map(|point| point.0).fold(0.0, f64::max);
                let at = |x: f64| (x, line.intercept + line.slope * x);
                context.draw_series(LineSeries::new([at(0.0), at(end)], colour))?;
            }
        }
        context
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_have_a_mark_for_each_point() {
        let curve =
            |name: &str, points: &[(f64, f64)]| Curve { name: name.into(), points: points.into() };
        let empty = draw(&[curve("one", &[])]).unwrap();
        let full = draw(&[curve("one", &[(20.0, -0.1), (100.0, 0.4), (10_000.0, 2.0)])]).unwrap();
        let marks = |picture: &str| picture.matches("<circle").count();
        assert_eq!(marks(&full), marks(&empty) + 3);
        assert!(full.contains("ticks a second") && full.contains("one"), "{full}");
    }
}
