//! The straight line through measurements that has the least squares of distances.

/// A line, and how well it fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    /// The value at 0.
    pub(super) intercept: f64,
    /// How much the value grows from one to the next.
    pub(super) slope: f64,
    /// The standard error of the slope; 0 if there are only two points.
    pub(super) error: f64,
    /// The share of the values' variance that the line explains: 1 if all points are on it.
    pub(super) determination: f64,
}

impl Line {
    /// Returns the line through points of `x` and `y`, or None if there are no two different `x`.
    pub(super) fn through(points: &[(f64, f64)]) -> Option<Line> {
        let count: f64 = points.iter().map(|_| 1.0).sum();
        let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum()
        };
        let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
        if xx.is_nan() || xx <= 0.0 {
            return None;
        }
        let slope = xy / xx;
        let determination = if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 };
        let rest = (yy - slope * xy).max(0.0);
        let error = if points.len() > 2 { (rest / (count - 2.0) / xx).sqrt() } else { 0.0 };
        Some(Line { intercept: mean_y - slope * mean_x, slope, error, determination })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hz::PAPER;

    #[test]
    fn points_on_a_line() {
        let line = Line::through(&[(1.0, 5.0), (3.0, 9.0), (10.0, 23.0)]).unwrap();
        assert!((line.slope - 2.0).abs() < 1e-12 && (line.intercept - 3.0).abs() < 1e-12);
        assert!((line.determination - 1.0).abs() < 1e-12 && line.error < 1e-6, "{line:?}");
    }

    /// Anscombe's first set (The American Statistician 27, 1973): y = 3 + 0.5 x, with the standard error 0.1179 of
    /// the slope, and R² 0.667.
    #[test]
    fn points_beside_a_line() {
        let ys = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68];
        let xs = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
        let points: Vec<_> = xs.into_iter().zip(ys).collect();
        let line = Line::through(&points).unwrap();
        assert!((line.slope - 0.5001).abs() < 1e-3 && (line.intercept - 3.0001).abs() < 1e-3);
        assert!((line.error - 0.1179).abs() < 1e-4, "{line:?}");
        assert!((line.determination - 0.667).abs() < 1e-3, "{line:?}");
    }

    #[test]
    fn a_line_needs_two_points() {
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(1.0, 5.0), (1.0, 6.0)]), None);
        let flat = Line::through(&[(1.0, 5.0), (2.0, 5.0)]).unwrap();
        assert!(flat.slope.abs() < 1e-12 && (flat.determination - 1.0).abs() < 1e-12);
    }

    /// The paper's own conclusion: 7.29 microseconds a tick, and 0.124 % besides.
    #[test]
    fn the_paper_s_measurements() {
        let points = PAPER.map(|(hz, overhead)| (f64::from(hz), overhead));
        let line = Line::through(&points).unwrap();
        assert!((line.slope * 1e4 - 7.29).abs() < 0.01, "{line:?}");
        assert!((line.intercept - 0.124).abs() < 0.001, "{line:?}");
        assert!(line.determination > 0.999, "{line:?}");
    }
}
