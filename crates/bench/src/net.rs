//! Measures two guests that are connected by a cable between their network cards or by a switch.
//!
//! Both guests run in this program, or both in QEMU, with the same cards and the same kind of connection
//! between the processes; with a switch there is another process between them. A measurement is the time that
//! passes for a number of packets or bytes, less that for none, as seen from outside.

pub(crate) mod calibration;
mod card;
mod counted;
mod figures;
mod model;
mod pair;
mod traffic;

use super::data::Log;
use super::peer::Kind;
use super::{BenchError, NetArguments, Settings, show};
use crate::chart;
use card::CARDS;
pub(super) use card::{Card, named};
use pair::{Pair, WAYS, Way};
use traffic::{BY_SIZE, FIRST, Measured, OTHERS, TABLE, Traffic};

/// Measures the pairs in turns, and shows the medians.
pub(super) fn measure(arguments: &NetArguments) -> Result<(), BenchError> {
    if arguments.model {
        return compare(arguments);
    }
    let settings = &arguments.settings;
    // This is dropped last, because the running processes have their sockets there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let installed = Kind::installed();
    let ways: Vec<_> = WAYS.into_iter().filter(|way| installed.contains(&way.kind)).collect();
    show(
        "Two guests, joined by a socket or by a switch (medians; ± half the distance between the",
    )?;
    show(
        "quartiles). A factor is the time in its column, divided by the time in the first column.",
    )?;
    let name = |(index, way): (usize, &Way)| {
        let width = if index == 0 { FIRST } else { OTHERS };
        format!("{:>width$}", way.name())
    };
    let names = ways.iter().enumerate().map(name).collect::<String>();
    show(&format!("{:<36}{:<14}{names}", "", ""))?;
    let mut log = Log::begin(settings)?;
    let mut charts = figures::empty();
    for card in CARDS.iter().filter(|card| arguments.measures(card)) {
        let mut pairs = Vec::new();
        for (number, way) in ways.iter().enumerate() {
            let socket = directory.path().join(format!("{}{number}", card.name));
            pairs.push(Pair::boot(settings, *way, card, &socket)?);
        }
        for traffic in &TABLE {
            let measured = measure_all(settings.runs, &mut pairs, traffic, &mut log)?;
            show(traffic.line(card.name, &measured).trim_end())?;
            if let Some(losses) = traffic.losses(card.name, &measured) {
                show(losses.trim_end())?;
            }
        }
        measure_sizes(settings, card, &mut pairs, &mut log)?;
        if arguments.plot.is_some() {
            figures::measure(settings, &mut pairs, &mut charts, &mut log)?;
        }
    }
    let Some(path) = &arguments.plot else { return Ok(()) };
    chart::write(path, "bytes", &charts).map_err(|error| BenchError::Plot(path.clone(), error))
}

/// Measures packets of each size that `card` can be set to, if there are several, and restores the size of an
/// ordinary frame.
fn measure_sizes(
    settings: &Settings,
    card: &Card,
    pairs: &mut [Pair],
    log: &mut Log,
) -> Result<(), BenchError> {
    for bytes in card.sizes {
        set_packet_size(pairs, *bytes)?;
        for traffic in &BY_SIZE {
            let measured = measure_all(settings.runs, pairs, traffic, log)?;
            show(traffic.line(&format!("{}/{bytes}", card.name), &measured).trim_end())?;
        }
    }
    card.sizes.first().map_or(Ok(()), |ordinary| set_packet_size(pairs, *ordinary))
}

fn set_packet_size(pairs: &mut [Pair], bytes: u32) -> Result<(), BenchError> {
    pairs.iter_mut().try_for_each(|pair| pair.set_packet_size(bytes))
}

/// Shows the model's prediction for this program's own machines, beside their measurements.
fn compare(arguments: &NetArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let host = calibration::calibrate()?;
    show(&format!("This host: ring3 netmodel {}", calibration::options(&host)))?;
    for card in CARDS.iter().filter(|card| arguments.measures(card)) {
        for (number, way) in WAYS.iter().enumerate() {
            if way.kind == Kind::Translator {
                let socket = directory.path().join(format!("{}{number}", card.name));
                let mut pair = Pair::boot(settings, *way, card, &socket)?;
                model::show_comparisons(&host, settings.runs, &mut pair)?;
            }
        }
    }
    Ok(())
}

impl NetArguments {
    /// Returns whether the user wants `card` to be measured.
    fn measures(&self, card: &Card) -> bool {
        self.cards.is_empty() || self.cards.iter().any(|wanted| wanted.name == card.name)
    }
}

/// Measures all pairs in turns.
fn measure_all(
    runs: u32,
    pairs: &mut [Pair],
    traffic: &Traffic,
    log: &mut Log,
) -> Result<Vec<Measured>, BenchError> {
    let mut all = vec![Measured::default(); pairs.len()];
    for turn in 0..runs {
        for (pair, measured) in pairs.iter_mut().zip(&mut all) {
            let (time, lost) = pair.measure(traffic)?;
            measured.add(turn, time, lost);
        }
    }
    for (pair, Measured { time, lost }) in pairs.iter().zip(&all) {
        let work = format!("{} {}, {}", traffic.kind.word(), traffic.bytes, pair.card_name);
        log.add_series(&pair.way.name(), &work, "elapsed_seconds", time)?;
        if traffic.may_lose() {
            log.add_series(&pair.way.name(), &work, "lost_share", lost)?;
        }
    }
    Ok(all)
}
