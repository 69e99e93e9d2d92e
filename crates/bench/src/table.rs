//! Shows the results of `ring3 bench cpu` as a table.

use super::peer::Kind;

/// The results of one benchmark, in seconds of processor time for all of its work. A result is None if there
/// was nothing to run, or if nothing was left after the cost of starting was subtracted.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) native: Option<f64>,
    /// The times in the order of the kinds.
    pub(super) times: Vec<Option<f64>>,
    /// Each time as a multiple of the host's own.
    pub(super) ratios: Vec<Option<f64>>,
}

impl Row {
    /// Makes a row whose ratios follow from its times.
    pub(super) fn of_times(
        name: &str,
        group: &str,
        native: Option<f64>,
        times: Vec<Option<f64>>,
    ) -> Row {
        let ratios = times.iter().map(|time| Some((*time)? / native?)).collect();
        Row { name: name.into(), group: group.into(), native, times, ratios }
    }
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

/// The table's columns.
#[derive(Debug)]
pub(super) struct Table {
    kinds: Vec<Kind>,
}

impl Table {
    pub(super) fn new(kinds: &[Kind]) -> Table {
        Table { kinds: kinds.to_vec() }
    }

    pub(super) fn header(&self) -> String {
        let names: Vec<_> = self.kinds.iter().map(|kind| format!("{:>20}", kind.name())).collect();
        let compared = if self.compares() { "   QEMU/ring3" } else { "" };
        format!("{:<25}{:>9}{}{compared}", "", "native", names.concat())
    }

    pub(super) fn line(&self, row: &Row) -> String {
        let mut cells = vec![format!("{:<25}{}", row.name, milliseconds(row.native, 9))];
        for (time, ratio) in row.times.iter().zip(&row.ratios) {
            cells.push(format!("{}{}", milliseconds(*time, 11), times(*ratio, 9)));
        }
        if self.compares() {
            cells.push(times(self.gain(row), 13));
        }
        cells.concat()
    }

    /// Returns the geometric means of the ratios, a line for each group that was measured, and one for the
    /// cost of a deterministic run in relation to the normal one, over all groups.
    pub(super) fn means(&self, rows: &[Row]) -> Vec<String> {
        let mut lines = Vec::new();
        for (group, title) in GROUPS {
            let members: Vec<_> = rows.iter().filter(|row| row.group == group).collect();
            if members.is_empty() {
                continue;
            }
            let mut cells = vec![format!("{:<34}", format!("{title}, geometric mean"))];
            for kind in 0..self.kinds.len() {
                let ratios = members.iter().filter_map(|row| row.ratios[kind]);
                cells.push(times(geometric_mean(ratios), 20));
            }
            if self.compares() {
                let gains = members.iter().filter_map(|row| self.gain(row));
                cells.push(times(geometric_mean(gains), 13));
            }
            lines.push(cells.concat());
        }
        if self.kinds.contains(&Kind::Deterministic) {
            let measured = rows.iter().filter(|row| row.group != CALIBRATION);
            let prices = measured.filter_map(|row| self.times_ours(row, Kind::Deterministic));
            let title = "deterministic/ring3, geometric mean";
            lines.push(format!("{title:<34}{}", times(geometric_mean(prices), 19)));
        }
        lines
    }

    /// Returns whether QEMU was measured too.
    fn compares(&self) -> bool {
        self.kinds.contains(&Kind::Qemu)
    }

    /// Returns QEMU's time as a multiple of the translator's.
    fn gain(&self, row: &Row) -> Option<f64> {
        self.times_ours(row, Kind::Qemu)
    }

    /// Returns the time of `kind` as a multiple of the translator's.
    fn times_ours(&self, row: &Row, kind: Kind) -> Option<f64> {
        let of = |kind| row.times[self.kinds.iter().position(|other| *other == kind)?];
        Some(of(kind)? / of(Kind::Translator)?)
    }
}

fn milliseconds(time: Option<f64>, width: usize) -> String {
    match time {
        Some(time) => format!("{:width$.2}", time * 1e3),
        None => format!("{:>width$}", "-"),
    }
}

fn times(ratio: Option<f64>, width: usize) -> String {
    let text = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"));
    format!("{text:>width$}")
}

/// Returns the geometric mean, or None if there are no values.
fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) =
        values.fold((0.0, 0u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, native: Option<f64>, times: [f64; 2]) -> Row {
        Row::of_times(name, "cpu", native, times.map(Some).to_vec())
    }

    #[test]
    fn lines_and_means() {
        let table = Table::new(&[Kind::Translator, Kind::Qemu]);
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
        assert_eq!(table.header().len(), table.line(&rows[0]).len());
        assert_eq!(table.header().len(), means[0].len());
    }

    #[test]
    fn the_ratio_of_a_deterministic_run_covers_all_groups() {
        let table = Table::new(&[Kind::Translator, Kind::Deterministic]);
        let other = Row { group: "io".into(), ..row("b", None, [0.010, 0.020]) };
        let means = table.means(&[row("a", Some(0.010), [0.020, 0.010]), other]);
        assert_eq!(means.len(), 3);
        assert!(means[2].ends_with(" 1.00x"), "{}", means[2]);
    }

    #[test]
    fn a_row_without_a_native_time_has_no_ratio_to_it() {
        let table = Table::new(&[Kind::Translator, Kind::Qemu]);
        let row = row("a", None, [0.020, 0.1]);
        let line = table.line(&row);
        assert_eq!(line.split_whitespace().filter(|word| *word == "-").count(), 3);
        assert!(line.ends_with("5.00x"));
    }
}
