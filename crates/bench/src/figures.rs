//! Figures from the raw measurements of `ring3 bench cpu`, as those of van der Kouwe (2009): 14 (guests), 15
//! (slow-down), 17 (hosts) and 18 (deterministic runs).

use clap::ValueEnum;

use super::data::{Data, NATIVE_PLACE, Place};
use super::guest::Guest;
use super::peer::Kind;
use super::plot::Bars;
use super::statistics::{Figure, Series};
use super::table::CALIBRATION;
use super::{BenchError, PlotArguments, plot};

/// What a figure compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Which {
    /// Tern with Linux, as guests of each system (figure 14)
    Guests,
    /// Each system with the host itself (figure 15)
    Slowdown,
    /// Two hosts, each with a file of measurements (figure 17)
    Hosts,
    /// Deterministic runs with others (figure 18)
    Deterministic,
}

/// Draws the figure that was asked for.
pub(super) fn draw(arguments: &PlotArguments) -> Result<(), BenchError> {
    let PlotArguments { figure, data, other, output } = arguments;
    let first = Data::read(data)?;
    let wrong = |reason: &str| BenchError::Data(data.clone(), reason.into());
    let bars = match (figure, other) {
        (Which::Hosts, Some(other)) => hosts(&first, &Data::read(other)?),
        (Which::Hosts, None) => return Err(BenchError::OneHost),
        (_, Some(_)) => return Err(BenchError::TwoHosts),
        (Which::Guests, None) => guests(&first),
        (Which::Slowdown, None) => slowdown(&first),
        (Which::Deterministic, None) => deterministic(&first),
    };
    if bars.rows.is_empty() {
        return Err(wrong(match figure {
            Which::Guests => "it has no system with both guests (--guest both)",
            Which::Slowdown => "it has no benchmark with a time on the host itself",
            Which::Hosts => "the two files have no benchmark in common",
            Which::Deterministic => "it has no deterministic run (--deterministic)",
        }));
    }
    plot::write(output, &bars).map_err(|error| BenchError::Plot(output.clone(), error))
}

/// The times of a benchmark that are compared, and the name of the comparison.
type Comparison<'a> = (String, Box<dyn Fn(&str) -> Option<Figure> + 'a>);

/// Compares the times at `of` with those at `to`, in equal turns.
fn compare<'a>(data: &'a Data, name: String, of: Place<'a>, to: Place<'a>) -> Comparison<'a> {
    let series = move |place, benchmark: &str| -> Series { data.series(place, benchmark) };
    (name, Box::new(move |benchmark| series(of, benchmark).ratio(&series(to, benchmark))))
}

/// Makes the bars of all benchmarks that can be compared. The time of calibrations is fixed.
fn bars(data: &Data, title: &'static str, comparisons: Vec<Comparison<'_>>) -> Bars {
    let measured = data.benchmarks().into_iter().filter(|(_, group)| *group != CALIBRATION);
    // A file may have a time of 0 or anything else.
    let is_drawn = |ratio: &Figure| ratio.median.is_finite() && ratio.median > 0.0;
    let row = |(name, _): (&str, &str)| {
        let ratios: Vec<_> =
            comparisons.iter().map(|(_, ratio)| ratio(name).filter(is_drawn)).collect();
        ratios.iter().any(Option::is_some).then(|| (name.to_owned(), ratios))
    };
    let rows = measured.filter_map(row).collect();
    Bars { title, names: comparisons.into_iter().map(|(name, _)| name).collect(), rows }
}

/// Compares all systems with the host.
pub(super) fn slowdown(data: &Data) -> Bars {
    let places: Vec<_> = data.places().into_iter().filter(|place| *place != NATIVE_PLACE).collect();
    let comparisons = places
        .iter()
        .map(|place| compare(data, name(*place, &places), *place, NATIVE_PLACE))
        .collect();
    bars(data, "Processor time as a multiple of the host's own", comparisons)
}

/// Names a place among `all`: guests have names only if there are several.
fn name(place: Place<'_>, all: &[Place<'_>]) -> String {
    let Place { guest, system } = place;
    let is_only = all.iter().filter(|other| **other != NATIVE_PLACE).all(|o| o.guest == guest);
    if is_only || place == NATIVE_PLACE { system.into() } else { format!("{guest}, {system}") }
}

/// Compares the guests in each system that runs both.
fn guests(data: &Data) -> Bars {
    let places = data.places();
    let [linux, tern] = [Guest::Linux, Guest::Tern].map(Guest::name);
    let all = places.iter().filter(|place| place.guest == linux).filter_map(|place| {
        let other = places.iter().find(|o| o.guest == tern && o.system == place.system)?;
        Some(compare(data, place.system.into(), *other, *place))
    });
    let comparisons = all.collect();
    bars(data, "Processor time in Tern as a multiple of that in Linux", comparisons)
}

/// Compares deterministic runs with those of the translator, in each guest.
fn deterministic(data: &Data) -> Bars {
    let places = data.places();
    let [ours, deterministic] = [Kind::Translator, Kind::Deterministic].map(Kind::name);
    let all = places.iter().filter(|place| place.system == deterministic).filter_map(|place| {
        let other = places.iter().find(|o| o.guest == place.guest && o.system == ours)?;
        Some(compare(data, place.guest.into(), *place, *other))
    });
    let comparisons = all.collect();
    bars(data, "Processor time of deterministic runs as a multiple of that of others", comparisons)
}

/// Compares the second host with the first. Their turns have nothing to do with each other.
fn hosts(first: &Data, second: &Data) -> Bars {
    let (places, others) = (first.places(), second.places());
    let comparisons = places.iter().filter(|place| others.contains(place)).map(|place| {
        let time = |data: &Data, benchmark: &str| data.series(*place, benchmark).figure();
        let ratio = move |benchmark: &str| {
            let (first, second) = (time(first, benchmark)?, time(second, benchmark)?);
            Some(Figure::single(second.median / first.median))
        };
        let comparison: Comparison<'_> = (name(*place, &places), Box::new(ratio));
        comparison
    });
    let comparisons = comparisons.collect();
    bars(first, "Processor time on the second host as a multiple of that on the first", comparisons)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{HOST, Measurement, NATIVE, measured};

    fn data(measurements: &[(&str, &str, &str, [f64; 2])]) -> Data {
        let mut data = Data::default();
        for (system, guest, benchmark, times) in measurements {
            let turn = |(turn, time): (u32, &f64)| measured(system, guest, benchmark, turn, *time);
            data.extend((0..).zip(times).map(turn));
        }
        data
    }

    fn both() -> Data {
        data(&[
            (NATIVE, HOST, "loop", [1.0, 2.0]),
            ("ring3", "Linux", "loop", [2.0, 4.0]),
            ("deterministic", "Linux", "loop", [3.0, 6.0]),
            ("ring3", "Tern", "loop", [8.0, 16.0]),
            ("ring3", "Tern", "fork", [1.0, 1.0]),
        ])
    }

    type Row<'a> = (&'a str, Vec<Option<f64>>);

    /// Returns the names of the bars, and those of the rows with their ratios.
    fn shown(bars: &Bars) -> (Vec<&str>, Vec<Row<'_>>) {
        let ratios = |ratios: &[Option<Figure>]| {
            ratios.iter().map(|ratio| ratio.map(|ratio| ratio.median)).collect()
        };
        let names = bars.names.iter().map(String::as_str).collect();
        (names, bars.rows.iter().map(|(name, all)| (name.as_str(), ratios(all))).collect())
    }

    #[test]
    fn systems_are_compared_with_the_host() {
        let expected = vec![("loop", vec![Some(2.0), Some(3.0), Some(8.0)])];
        let names = vec!["Linux, ring3", "Linux, deterministic", "Tern, ring3"];
        assert_eq!(shown(&slowdown(&both())), (names, expected));
        let one = data(&[(NATIVE, HOST, "loop", [1.0; 2]), ("ring3", "Tern", "loop", [4.0; 2])]);
        assert_eq!(shown(&slowdown(&one)), (vec!["ring3"], vec![("loop", vec![Some(4.0)])]));
    }

    #[test]
    fn guests_and_deterministic_runs_are_compared_in_equal_turns() {
        assert_eq!(shown(&guests(&both())), (vec!["ring3"], vec![("loop", vec![Some(4.0)])]));
        let expected = (vec!["Linux"], vec![("loop", vec![Some(1.5)])]);
        assert_eq!(shown(&deterministic(&both())), expected);
    }

    #[test]
    fn hosts_are_compared_where_both_have_measured() {
        let other = data(&[
            (NATIVE, HOST, "loop", [3.0, 3.0]),
            ("ring3", "Tern", "fork", [0.5, 0.5]),
            ("QEMU (TCG)", "Tern", "fork", [9.0, 9.0]),
        ]);
        let bars = hosts(&both(), &other);
        let rows = vec![("loop", vec![Some(2.0), None]), ("fork", vec![None, Some(0.5)])];
        assert_eq!(shown(&bars), (vec!["native", "Tern, ring3"], rows));
    }

    #[test]
    fn calibrations_have_no_bars() {
        let mut all = both();
        let group = String::from(CALIBRATION);
        let calibration = |m: Measurement| Measurement { group: group.clone(), ..m };
        for system in ["ring3", "deterministic"] {
            all.extend([calibration(measured(system, "Linux", "calibrate_busy", 0, 1.0))]);
        }
        assert_eq!(deterministic(&all).rows.len(), 1);
    }
}
