//! Shows the results of `ring3 bench cpu` with Tern beside Linux as guest (figure 14 of van der Kouwe 2009).

use super::guest::Guest;
use super::peer::Kind;
use super::statistics::{Figure, SPREAD, Series};
use super::table::{Column, Layout, NAME, RATIO, Row, TIME, groups, mean, times};

/// The columns of a system: both times, and their ratio.
const SYSTEM: usize = 2 * TIME + RATIO + SPREAD;

/// The systems that run both guests.
#[derive(Debug)]
pub(super) struct Comparison {
    systems: Vec<Both>,
}

/// The columns of the two guests in a system.
#[derive(Debug)]
struct Both {
    kind: Kind,
    linux: usize,
    tern: usize,
}

impl Both {
    /// Returns Tern's time as a multiple of that of Linux.
    fn ratio(&self, row: &Row) -> Option<Figure> {
        row.times[self.tern].ratio(&row.times[self.linux])
    }
}

impl Comparison {
    pub(super) fn new(columns: &[Column]) -> Comparison {
        let place = |guest, kind| columns.iter().position(|c| *c == Column { guest, kind });
        let both = |column: &Column| {
            let kind = column.kind;
            let (linux, tern) = (place(Guest::Linux, kind)?, place(Guest::Tern, kind)?);
            (column.guest == Guest::Linux).then_some(Both { kind, linux, tern })
        };
        Comparison { systems: columns.iter().filter_map(both).collect() }
    }
}

impl Layout for Comparison {
    fn header(&self) -> Vec<String> {
        let names = self.systems.iter().map(|both| format!("{:>SYSTEM$}", both.kind.name()));
        let guests =
            format!("{:>TIME$}{:>TIME$}{:>RATIO$}{:SPREAD$}", "Linux", "Tern", "ratio", "");
        let guests = guests.repeat(self.systems.len());
        vec![
            format!("{:NAME$}{:>TIME$}{}", "", "", names.collect::<String>()),
            format!("{:NAME$}{:>TIME$}{guests}", "", "native"),
        ]
    }

    fn line(&self, row: &Row) -> String {
        let mut cells = vec![format!("{:<NAME$}{}", row.name, milliseconds(&row.native))];
        for both in &self.systems {
            cells.extend([both.linux, both.tern].map(|column| milliseconds(&row.times[column])));
            cells.push(times(both.ratio(row)));
        }
        cells.concat()
    }

    fn means(&self, rows: &[Row]) -> Vec<String> {
        const TITLE: usize = NAME + TIME;
        let line = |(title, members): (&str, Vec<&Row>)| {
            let ratios = self.systems.iter().map(|both| {
                let ratio = mean(members.iter().filter_map(|row| both.ratio(row)));
                format!("{:1$}{ratio}", "", 2 * TIME)
            });
            let title = format!("{title}, geometric mean");
            format!("{title:<TITLE$}{}", ratios.collect::<String>())
        };
        groups(rows).map(line).collect()
    }
}

/// Formats a time without its spread, for which there is no room. The ratio has one.
fn milliseconds(time: &Series) -> String {
    match time.figure() {
        Some(time) => format!("{:TIME$.2}", time.median * 1e3),
        None => format!("{:>TIME$}", "-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_compared_in_each_system_that_runs_both() {
        let column = |guest, kind| Column { guest, kind };
        let layout = Comparison::new(&[
            column(Guest::Linux, Kind::Translator),
            column(Guest::Linux, Kind::Bochs),
            column(Guest::Tern, Kind::Translator),
        ]);
        let series = |time: f64| Series::from_iter([(0, time)]);
        let row = Row {
            name: "fork".into(),
            group: "system".into(),
            native: Series::default(),
            times: [0.030, 9.0, 0.015].map(series).to_vec(),
        };
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&layout.line(&row)), ["fork", "-", "30.00", "15.00", "0.50x"]);
        let means = layout.means(std::slice::from_ref(&row));
        assert_eq!(words(&means[0]), ["system,", "geometric", "mean", "0.50x"]);
        for line in layout.header().iter().chain(&means) {
            assert_eq!(line.len(), layout.line(&row).len(), "{line:?}");
        }
    }
}
