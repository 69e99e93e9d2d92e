//! Shows the results of `ring3 bench cpu` as a table.

use super::comparison::Comparison;
use super::guest::Guest;
use super::peer::Kind;
use super::statistics::{Figure, SPREAD, Series, cell, geometric_mean};

/// A guest in a system that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) guest: Guest,
    pub(super) kind: Kind,
}

/// The results of one benchmark, in seconds of processor time for all of its work. A series is empty if there
/// was nothing to run.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) native: Series,
    /// The times in the order of the columns.
    pub(super) times: Vec<Series>,
}

impl Row {
    /// Returns the time in a column as a multiple of the host's own.
    pub(super) fn ratio(&self, column: usize) -> Option<Figure> {
        self.times[column].ratio(&self.native)
    }
}

/// A way of showing the results.
pub(super) trait Layout {
    /// Returns the lines above the table.
    fn header(&self) -> Vec<String>;

    /// Returns the line for one benchmark.
    fn line(&self, row: &Row) -> String;

    /// Returns the lines below the table: geometric means of the ratios, one for each group that was measured,
    /// and others over all groups.
    fn means(&self, rows: &[Row]) -> Vec<String>;
}

/// Returns the layout for these columns: the times of one guest, or the comparison of two.
pub(super) fn layout(columns: &[Column]) -> Box<dyn Layout> {
    let kinds = |guest| {
        let of = columns.iter().filter(move |column| column.guest == guest);
        of.map(|column| column.kind).collect::<Vec<_>>()
    };
    let (linux, tern) = (kinds(Guest::Linux), kinds(Guest::Tern));
    if linux.is_empty() || tern.is_empty() {
        return Box::new(Table { kinds: columns.iter().map(|column| column.kind).collect() });
    }
    Box::new(Comparison::new(columns))
}

/// The group of benchmarks whose time is fixed by definition, so that a mean makes no sense.
pub(super) const CALIBRATION: &str = "calibration";

/// The groups of benchmarks that have a mean, and their titles.
const GROUPS: [(&str, &str); 6] = [
    ("cpu", "CPU-bound"),
    ("float", "floating point"),
    ("code", "generated code"),
    ("system", "system"),
    ("io", "input and output"),
    ("blended", "blended"),
];

/// Returns the groups that are measured, with their titles and rows.
pub(super) fn groups(rows: &[Row]) -> impl Iterator<Item = (&'static str, Vec<&Row>)> {
    let of = |(group, title)| (title, rows.iter().filter(|row| row.group == group).collect());
    GROUPS.into_iter().map(of).filter(|(_, members): &(_, Vec<_>)| !members.is_empty())
}

/// The times of one guest, beside the host's.
#[derive(Debug)]
struct Table {
    kinds: Vec<Kind>,
}

/// The columns of a name, of a time and of a ratio, the last two without their spreads.
pub(super) const NAME: usize = 25;
pub(super) const TIME: usize = 10;
pub(super) const RATIO: usize = 9;

impl Layout for Table {
    fn header(&self) -> Vec<String> {
        const WIDTH: usize = TIME + RATIO + 2 * SPREAD;
        const NATIVE: usize = TIME + SPREAD;
        const GAIN: usize = RATIO + SPREAD;
        let names: Vec<_> =
            self.kinds.iter().map(|kind| format!("{:>WIDTH$}", kind.name())).collect();
        let compared =
            if self.compares() { format!("{:>GAIN$}", "QEMU/ring3") } else { String::new() };
        vec![format!("{:NAME$}{:>NATIVE$}{}{compared}", "", "native", names.concat())]
    }

    fn line(&self, row: &Row) -> String {
        let mut cells = vec![format!("{:<NAME$}{}", row.name, milliseconds(&row.native))];
        for (column, time) in row.times.iter().enumerate() {
            cells.push(milliseconds(time));
            cells.push(times(row.ratio(column)));
        }
        if self.compares() {
            cells.push(times(self.times_ours(row, Kind::Qemu)));
        }
        cells.concat()
    }

    fn means(&self, rows: &[Row]) -> Vec<String> {
        const TITLE: usize = NAME + TIME + SPREAD;
        const SPACE: usize = TIME + SPREAD;
        let mut lines = Vec::new();
        for (title, members) in groups(rows) {
            let mut cells = vec![format!("{:<TITLE$}", format!("{title}, geometric mean"))];
            for kind in 0..self.kinds.len() {
                let ratios = members.iter().filter_map(|row| row.ratio(kind));
                cells.push(format!("{:SPACE$}{}", "", mean(ratios)));
            }
            if self.compares() {
                cells.push(mean(members.iter().filter_map(|row| self.times_ours(row, Kind::Qemu))));
            }
            lines.push(cells.concat());
        }
        if self.kinds.contains(&Kind::Deterministic) {
            let measured = rows.iter().filter(|row| row.group != CALIBRATION);
            let prices = measured.filter_map(|row| self.times_ours(row, Kind::Deterministic));
            let title = "deterministic/ring3, geometric mean";
            lines.push(format!("{title:<TITLE$}{:SPACE$}{}", "", mean(prices)));
        }
        lines
    }
}

impl Table {
    /// Returns whether QEMU was measured too.
    fn compares(&self) -> bool {
        self.kinds.contains(&Kind::Qemu)
    }

    /// Returns the time of `kind` as a multiple of the translator's.
    fn times_ours(&self, row: &Row, kind: Kind) -> Option<Figure> {
        let of = |kind| Some(&row.times[self.kinds.iter().position(|other| *other == kind)?]);
        of(kind)?.ratio(of(Kind::Translator)?)
    }
}

fn milliseconds(time: &Series) -> String {
    cell(time.figure().map(|time| time.times(1e3)), TIME, 2, "")
}

/// Formats a ratio.
pub(super) fn times(ratio: Option<Figure>) -> String {
    cell(ratio, RATIO, 2, "x")
}

/// Formats the geometric mean of ratios.
pub(super) fn mean(ratios: impl Iterator<Item = Figure>) -> String {
    times(geometric_mean(ratios.map(|ratio| ratio.median)).map(Figure::single))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, native: Option<f64>, times: [f64; 2]) -> Row {
        let series = |time: f64| Series::from_iter([(0, time)]);
        Row {
            name: name.into(),
            group: "cpu".into(),
            native: native.map(series).unwrap_or_default(),
            times: times.map(series).to_vec(),
        }
    }

    fn table(kinds: [Kind; 2]) -> Box<dyn Layout> {
        layout(&kinds.map(|kind| Column { guest: Guest::Linux, kind }))
    }

    #[test]
    fn lines_and_means() {
        let table = table([Kind::Translator, Kind::Qemu]);
        let rows = [row("a", Some(0.010), [0.020, 0.1]), row("b", Some(0.010), [0.080, 0.9])];
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        let expected = ["a", "10.00", "20.00", "2.00x", "100.00", "10.00x", "5.00x"];
        assert_eq!(words(&table.line(&rows[0])), expected);
        let means = table.means(&rows);
        assert_eq!(means.len(), 1);
        assert_eq!(
            words(&means[0]),
            ["CPU-bound,", "geometric", "mean", "4.00x", "30.00x", "7.50x"]
        );
        let header = &table.header()[0];
        assert_eq!(header.len(), table.line(&rows[0]).len());
        assert_eq!(header.len(), means[0].len());
    }

    #[test]
    fn the_ratio_of_a_deterministic_run_covers_all_groups() {
        let table = table([Kind::Translator, Kind::Deterministic]);
        let other = Row { group: "io".into(), ..row("b", None, [0.010, 0.020]) };
        let means = table.means(&[row("a", Some(0.010), [0.020, 0.010]), other]);
        assert_eq!(means.len(), 3);
        assert!(means[2].trim_end().ends_with(" 1.00x"), "{}", means[2]);
    }

    #[test]
    fn a_row_without_a_native_time_has_no_ratio_to_it() {
        let table = table([Kind::Translator, Kind::Qemu]);
        let row = row("a", None, [0.020, 0.1]);
        let line = table.line(&row);
        assert_eq!(line.split_whitespace().filter(|word| *word == "-").count(), 3);
        assert!(line.trim_end().ends_with("5.00x"));
    }
}
