//! Several measurements of the same thing, and what is said of them.

use std::collections::BTreeMap;

/// The middle of several measurements, and how far apart they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figure {
    pub(super) median: f64,
    /// Half the distance between the quartiles, as a share of the median: about half of the measurements are
    /// within it. None if there are too few to say.
    pub(super) spread: Option<f64>,
}

/// The fewest measurements that have a spread: of two, nobody knows which is the odd one.
const FEWEST: usize = 3;

/// The columns that a spread takes up in a table.
pub(super) const SPREAD: usize = 7;

impl Figure {
    /// Returns None if there are no values.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Figure> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let median = quartile(&values, 2)?;
        let half = (quartile(&values, 3)? - quartile(&values, 1)?) / 2.0;
        let has_spread = values.len() >= FEWEST && median != 0.0;
        Some(Figure { median, spread: has_spread.then(|| half / median.abs()) })
    }

    /// Returns a figure that was not measured several times.
    pub(super) fn single(median: f64) -> Figure {
        Figure { median, spread: None }
    }

    /// Returns the figure in another unit, of which there are `factor` in the old one.
    pub(super) fn times(self, factor: f64) -> Figure {
        Figure { median: self.median * factor, ..self }
    }

    /// Formats the spread for a table, as `±2 %`.
    pub(super) fn spread_text(self) -> String {
        let spread = self.spread.map(|spread| format!("±{:.0} %", spread * 100.0));
        format!("{:>SPREAD$}", spread.unwrap_or_default())
    }
}

/// Formats a figure for a table: `digits` behind the point, then `unit`, in `width` columns; then the spread.
pub(super) fn cell(figure: Option<Figure>, width: usize, digits: usize, unit: &str) -> String {
    match figure {
        Some(figure) => {
            let value = format!("{:.digits$}{unit}", figure.median);
            format!("{value:>width$}{}", figure.spread_text())
        }
        None => format!("{:>width$}{:SPREAD$}", "-", ""),
    }
}

/// Returns the quartile number `number` (2 is the median) of the sorted `values`, between two of them if need
/// be (Hyndman and Fan 1996, definition 7).
fn quartile(values: &[f64], number: u32) -> Option<f64> {
    let quarters = values.len().checked_sub(1)? * number as usize;
    let (below, rest) = (values[quarters / 4], quarters % 4);
    let above = values[quarters.div_ceil(4)];
    Some(below + (above - below) * f64::from(rest as u32) / 4.0)
}

/// Returns the median, or 0 if there are no values.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Figure::of(values).map_or(0.0, |figure| figure.median)
}

/// Returns the geometric mean, or None if there are no values.
pub(super) fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) =
        values.fold((0.0, 0u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// A turn: all systems do the same work, one after the other. Any other load of the machine slows all of them
/// down, so that only results of the same turn are compared.
pub(super) type Turn = u32;

/// One run of a benchmark in a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    pub(super) turn: Turn,
    /// How often the work is done; 0 if the run shows what starting costs.
    pub(super) count: u32,
    pub(super) seconds: f64,
}

/// The time, or another quantity, of the same work in each turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Series(BTreeMap<Turn, f64>);

impl FromIterator<(Turn, f64)> for Series {
    fn from_iter<I: IntoIterator<Item = (Turn, f64)>>(times: I) -> Series {
        Series(times.into_iter().collect())
    }
}

impl Series {
    /// Makes the series of the time for `count` times the work from `runs`, each of which may have done more or
    /// less. The median of the runs with nothing to do is subtracted.
    pub(super) fn of_work(runs: &[Run], count: u32) -> Series {
        let (none, some): (Vec<Run>, Vec<Run>) = runs.iter().partition(|run| run.count == 0);
        let start = median(none.iter().map(|run| run.seconds));
        let of = |run: &Run| (run.seconds - start) * f64::from(count) / f64::from(run.count);
        some.iter().map(|run| (run.turn, of(run))).collect()
    }

    /// Makes the series of the runs with nothing to do.
    pub(super) fn of_starts(runs: &[Run]) -> Series {
        let none = runs.iter().filter(|run| run.count == 0);
        none.map(|run| (run.turn, run.seconds)).collect()
    }

    /// Returns the time in each turn.
    pub(super) fn turns(&self) -> impl Iterator<Item = (Turn, f64)> {
        self.0.iter().map(|(turn, time)| (*turn, *time))
    }

    /// Returns the times without their turns.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.values().copied()
    }

    /// Adds the time in a turn.
    pub(super) fn add(&mut self, turn: Turn, time: f64) {
        self.0.insert(turn, time);
    }

    /// Returns what `of` makes of the time of each turn.
    pub(super) fn map(&self, of: impl Fn(f64) -> f64) -> Series {
        self.turns().map(|(turn, time)| (turn, of(time))).collect()
    }

    /// Returns what `of` makes of the times of each turn that both series have.
    pub(super) fn with(&self, other: &Series, of: impl Fn(f64, f64) -> f64) -> Series {
        let both =
            self.0.iter().filter_map(|(turn, time)| Some((*turn, *time, *other.0.get(turn)?)));
        both.map(|(turn, time, theirs)| (turn, of(time, theirs))).collect()
    }

    /// Returns the time, or None if it does not stand out from that of starting.
    pub(super) fn figure(&self) -> Option<Figure> {
        Figure::of(self.values()).filter(|figure| figure.median > 0.0)
    }

    /// Returns the time as a multiple of that of `other` in the same turns.
    pub(super) fn ratio(&self, other: &Series) -> Option<Figure> {
        self.with(other, |time, theirs| time / theirs).figure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: Option<f64>, right: f64) -> bool {
        left.is_some_and(|left| (left - right).abs() < 1e-9)
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(Figure::of([]), None);
        assert_eq!(Figure::of([3.0, 1.0]), Some(Figure { median: 2.0, spread: None }));
        // The quartiles of 1, 2, 3, 4, 100 are 2 and 4.
        let figure = Figure::of([100.0, 3.0, 1.0, 4.0, 2.0]).unwrap();
        assert!(close(Some(figure.median), 3.0) && close(figure.spread, 1.0 / 3.0), "{figure:?}");
        // Those of 1, 2, 3, 4 are 1.75 and 3.25.
        let figure = Figure::of([4.0, 3.0, 2.0, 1.0]).unwrap();
        assert!(close(Some(figure.median), 2.5) && close(figure.spread, 0.3), "{figure:?}");
        assert_eq!(Figure::of([0.0; 3]), Some(Figure { median: 0.0, spread: None }));
        assert!(median([]).total_cmp(&0.0).is_eq());
    }

    #[test]
    fn cells_have_medians_and_spreads() {
        let figure = Figure { median: 1.049, spread: Some(0.021) };
        assert_eq!(cell(Some(figure), 7, 2, "x"), "  1.05x   ±2 %");
        assert_eq!(cell(Some(Figure::single(2.0)), 4, 0, ""), "   2       ");
        assert_eq!(cell(None, 4, 0, "").len(), 4 + SPREAD);
    }

    #[test]
    fn means() {
        assert!(close(geometric_mean([2.0, 8.0].into_iter()), 4.0));
        assert_eq!(geometric_mean([].into_iter()), None);
    }

    fn runs(times: &[(Turn, u32, f64)]) -> Vec<Run> {
        times.iter().map(|&(turn, count, seconds)| Run { turn, count, seconds }).collect()
    }

    #[test]
    fn starting_is_subtracted_and_less_work_multiplied() {
        let tenth = runs(&[(0, 10, 1.5), (0, 0, 0.5), (1, 10, 2.5), (1, 0, 0.5)]);
        let series = Series::of_work(&tenth, 100);
        assert!(close(series.figure().map(|figure| figure.median), 15.0), "{series:?}");
        let start = Series::of_starts(&tenth).figure();
        assert!(close(start.map(|figure| figure.median), 0.5), "{start:?}");
        let nothing = runs(&[(0, 10, 0.5), (0, 0, 0.5)]);
        assert_eq!(Series::of_work(&nothing, 10).figure(), None);
    }

    #[test]
    fn only_equal_turns_are_compared() {
        let ours = Series::of_work(&runs(&[(0, 1, 2.0), (1, 1, 30.0), (2, 1, 9.0)]), 1);
        let theirs = Series::of_work(&runs(&[(0, 1, 1.0), (2, 1, 3.0)]), 1);
        assert!(close(ours.ratio(&theirs).map(|ratio| ratio.median), 2.5));
        assert_eq!(ours.ratio(&Series::default()), None);
    }
}
