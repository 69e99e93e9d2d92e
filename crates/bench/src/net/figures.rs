//! Four charts by size of packets, like figures 5.1 to 5.4 of Richter (2009).

use super::super::data::Log;
use super::super::statistics::Figure;
use super::super::{BenchError, Settings};
use super::measure_all;
use super::pair::Pair;
use super::traffic::{Kind, Traffic};
use crate::chart::{Chart, Point};

/// One of the charts.
struct ChartOf {
    kind: Kind,
    title: &'static str,
    /// The label of the vertical axis.
    unit: &'static str,
    /// The value for a time of so many seconds.
    value: fn(&Traffic, f64) -> f64,
    sizes: &'static [u32],
    /// How many packets of each size a quick card sends; [`BYTES`] is another limit.
    count: u32,
}

/// The most bytes that a quick card sends of one size.
const BYTES: u32 = 32 << 20;

/// Sizes of records in a stream, beyond a segment of any card.
const RECORDS: [u32; 7] = [64, 256, 1024, 1448, 4096, 16384, 65536];
/// Sizes of packets, up to the payload of IPv4 in a frame of 1500 bytes. Larger ones would be fragmented.
const PACKETS: [u32; 6] = [64, 128, 256, 512, 1024, 1480];

/// Returns the microseconds for a packet to go there and back.
fn microseconds(_: &Traffic, time: f64) -> f64 {
    time * 1e6
}

const CHARTS: [ChartOf; 4] = [
    ChartOf {
        kind: Kind::Stream,
        title: "TCP: bandwidth by size of records (figure 5.1)",
        unit: "MB/s",
        value: Traffic::rate,
        sizes: &RECORDS,
        count: 10_000,
    },
    ChartOf {
        kind: Kind::StreamEcho,
        title: "TCP: round-trip time by size (figure 5.2)",
        unit: "microseconds",
        value: microseconds,
        sizes: &PACKETS,
        count: 500,
    },
    ChartOf {
        kind: Kind::Ping,
        title: "Ping by size (figure 5.3)",
        unit: "microseconds",
        value: microseconds,
        sizes: &PACKETS,
        count: 500,
    },
    ChartOf {
        kind: Kind::Flood,
        title: "Flood ping: time for each echo by size (figure 5.4)",
        unit: "microseconds",
        value: microseconds,
        sizes: &PACKETS,
        count: 1000,
    },
];

/// Returns the charts without curves.
pub(super) fn empty() -> Vec<Chart> {
    let chart =
        |figure: &ChartOf| Chart { title: figure.title, unit: figure.unit, curves: Vec::new() };
    CHARTS.iter().map(chart).collect()
}

/// Measures the values that the charts show, and adds a curve for each pair to each of `charts`.
pub(super) fn measure(
    settings: &Settings,
    pairs: &mut [Pair],
    charts: &mut [Chart],
    log: &mut Log,
) -> Result<(), BenchError> {
    for (chart, figure) in charts.iter_mut().zip(&CHARTS) {
        let name = |pair: &Pair| format!("{}, {}", pair.way.name(), pair.card.name);
        let mut curves: Vec<_> = pairs.iter().map(|pair| (name(pair), Vec::new())).collect();
        for bytes in figure.sizes {
            let traffic = Traffic::new(figure.kind, *bytes, figure.count.min(BYTES / bytes));
            let all = measure_all(settings.runs, pairs, &traffic, log)?;
            for ((_, points), measured) in curves.iter_mut().zip(all) {
                let point = |Figure { median, spread }| Point {
                    x: f64::from(*bytes),
                    y: (figure.value)(&traffic, median),
                    spread,
                };
                points.extend(measured.time.figure().map(point));
            }
        }
        chart.curves.append(&mut curves);
    }
    Ok(())
}
