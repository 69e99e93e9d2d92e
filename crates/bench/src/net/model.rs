//! Compares the model's prediction for a card with measurements and counts.
//!
//! The model multiplies the number of executions of each step of a transfer, by the card's design, by the
//! cost of the step on this host ([`calibration`](super::calibration)). Three of the steps are counted in a
//! real run ([`Counted`]): exits, interrupts and wake-ups. So the measured time is divided into four parts:
//! the cost of the counted steps, the cost of the other steps by the design, the remaining processor time of
//! the processes, and the rest. The third part is the guests' own work, which the model leaves out: drivers,
//! protocols and programs. The rest is negative if machines have worked at the same time, so that less time
//! has passed than all other parts take. A positive rest was spent waiting, perhaps for the host's
//! processors. The term with the largest difference is named, both among all terms and among the model's own.

use ring3_netmodel::{Design, Host, Prediction};

use super::super::{BenchError, show};
use super::counted::Counted;
use super::pair::{Pair, Way};
use super::traffic::{Kind, Traffic};

/// The traffic that is compared, for latency and for bandwidth.
const TRAFFIC: [Traffic; 2] =
    [Traffic::new(Kind::Ping, 64, 2000), Traffic::new(Kind::Stream, 65536, 2000)];

/// Bytes of the headers of IPv4 and Ethernet.
const HEADERS: u32 = 20 + 14;

/// Compares prediction and measurement, and shows the result.
pub(super) fn show_comparisons(host: &Host, runs: u32, pair: &mut Pair) -> Result<(), BenchError> {
    for traffic in &TRAFFIC {
        let counted = Counted::new(runs, pair, traffic)?;
        let title = format!("{}, {}: {}", pair.card.name, pair.way.name(), traffic.name());
        let comparison = Comparison::new(host, &design(pair, traffic), traffic, &counted);
        for line in comparison.lines(&title, traffic) {
            show(&line)?;
        }
    }
    Ok(())
}

/// Returns the card's design for this way of joining machines. With a switch, one more process passes packets
/// on, by one thread. Packets that come together cause one interrupt.
fn design(pair: &Pair, traffic: &Traffic) -> Design {
    let Way { by_switch, .. } = pair.way;
    let more = if by_switch { 1.0 } else { 0.0 };
    let design = pair.card.design;
    let together = design.crossing.min(traffic.bytes.into()) / design.packet;
    let coalesced = together.max(1.0);
    Design {
        coalesced,
        messages: design.messages + more,
        wake_ups: design.wake_ups + more,
        ..design
    }
}

/// A part of the time of one packet or record.
#[derive(Debug, Clone, PartialEq)]
struct Term {
    name: &'static str,
    /// For a step that is counted: its number by the design, and its real number.
    counts: Option<[f64; 2]>,
    /// Seconds: as predicted, and by the counts.
    times: [f64; 2],
}

impl Term {
    /// Returns how many seconds longer it takes than predicted.
    fn off(&self) -> f64 {
        self.times[1] - self.times[0]
    }
}

/// A prediction beside its measurement.
#[derive(Debug, Clone, PartialEq)]
struct Comparison {
    /// Seconds for each packet or record.
    predicted: f64,
    measured: f64,
    terms: Vec<Term>,
}

impl Comparison {
    fn new(host: &Host, design: &Design, traffic: &Traffic, counted: &Counted) -> Comparison {
        // An echo comes back. The acknowledgements of a stream are not counted.
        let (bytes, packets) = match traffic.kind {
            Kind::Stream => (traffic.bytes, 1.0),
            _ => (traffic.bytes + HEADERS, 2.0),
        };
        let prediction = Prediction::new(host, design, bytes.into());
        let mut terms = Vec::new();
        for (name, cycles) in prediction.costs().terms() {
            let known = match name {
                "exits" => Some((counted.exits, host.exit)),
                "interrupts" => Some((counted.interrupts, host.interrupt)),
                "wake-ups" => Some((counted.wake_ups, host.wake_up)),
                _ => None,
            };
            let predicted = cycles * packets / host.frequency;
            let one = known.map(|(count, cost)| (count, cost / host.frequency));
            terms.push(Term {
                name,
                counts: one.map(|(count, cost)| [ratio(predicted, cost), count]),
                times: [predicted, one.map_or(predicted, |(count, cost)| count * cost)],
            });
        }
        let sum = |terms: &[Term], at: usize| terms.iter().map(|term| term.times[at]).sum::<f64>();
        let predicted = sum(&terms, 0);
        // Waking a thread consists mostly of waiting.
        let steps = sum(&terms, 1) - counted.wake_ups * host.wake_up / host.frequency;
        let own = (counted.work - steps).max(0.0);
        terms.push(Term { name: OWN_WORK, counts: None, times: [0.0, own] });
        let left = counted.time - sum(&terms, 1);
        let name = if left < 0.0 { AT_ONCE } else { UNEXPLAINED };
        terms.push(Term { name, counts: None, times: [0.0, left] });
        Comparison { predicted, measured: counted.time, terms }
    }

    /// Returns the term with the largest difference, among those that are counted or among all.
    fn most(&self, of_counted: bool) -> &Term {
        let terms = self.terms.iter().filter(|term| term.counts.is_some() || !of_counted);
        let most = terms.max_by(|one, other| one.off().abs().total_cmp(&other.off().abs()));
        most.expect("there are terms of both kinds")
    }

    fn lines(&self, title: &str, traffic: &Traffic) -> Vec<String> {
        let us = |seconds: f64| seconds * 1e6;
        let mut lines = vec![
            format!("{title:<72}{:>10}{:>12}", "predicted", "measured"),
            line("time, us", None, [us(self.predicted), us(self.measured)]),
        ];
        if traffic.kind == Kind::Stream {
            let rates = [self.predicted, self.measured].map(|time| traffic.rate(time));
            lines.push(line("bandwidth, MB/s", None, rates));
        }
        let is_there = |term: &&Term| term.times.iter().any(|time| time.abs() > 0.0);
        for term in self.terms.iter().filter(is_there) {
            let counts = term
                .counts
                .map(|[design, counted]| format!("{design:.1} by design, {counted:.1} counted"));
            lines.push(line(term.name, counts, term.times.map(us)));
        }
        let off = |of_counted| {
            let most = self.most(of_counted);
            format!("{}, {:+.1} us", most.name, us(most.off()))
        };
        lines.push(format!(
            "    largest difference: {}; among the counted steps: {}",
            off(false),
            off(true)
        ));
        lines
    }
}

const OWN_WORK: &str = "work outside the model";
const UNEXPLAINED: &str = "unexplained";
const AT_ONCE: &str = "work at the same time";

fn line(name: &str, counts: Option<String>, values: [f64; 2]) -> String {
    let counts = counts.unwrap_or_default();
    format!("    {name:<28}{counts:<40}{:>10.1}{:>12.1}", values[0], values[1])
}

/// Returns `part` of `whole`, or 0 if the whole is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::card::named;
    use super::*;

    /// On this host a cycle takes a microsecond.
    const HOST: Host = Host {
        frequency: 1e6,
        memory_bandwidth: 1e12,
        exit: 2.0,
        interrupt: 10.0,
        message: 5.0,
        wake_up: 20.0,
        element: 0.0,
        remap: 0.0,
    };

    fn comparison(counted: Counted) -> Comparison {
        Comparison::new(&HOST, &named("virtio").unwrap().design, &TRAFFIC[0], &counted)
    }

    /// Counts that match the design: for each of two packets an exit, two interrupts, a message and two
    /// wake-ups.
    const AS_DESIGNED: Counted =
        Counted { time: 134e-6, exits: 2.0, interrupts: 4.0, wake_ups: 4.0, work: 54e-6 };

    #[test]
    fn a_measurement_as_predicted_has_no_differences() {
        let comparison = comparison(AS_DESIGNED);
        assert!((comparison.predicted - 134e-6).abs() < 1e-8, "{comparison:?}");
        let most = comparison.most(false);
        assert!(most.off().abs() < 1e-8, "{most:?}");
    }

    #[test]
    fn the_term_that_is_off_is_named() {
        let more_exits = Counted { exits: 52.0, time: 234e-6, work: 154e-6, ..AS_DESIGNED };
        let found = comparison(more_exits);
        assert_eq!(found.most(false).name, "exits");
        let text = found.lines("ping", &TRAFFIC[0]).join("\n");
        assert!(text.contains("2.0 by design, 52.0 counted"), "{text}");
        assert!(text.contains("largest difference: exits, +100.0 us"), "{text}");
        let own_work = Counted { time: 434e-6, work: 354e-6, ..AS_DESIGNED };
        assert_eq!(comparison(own_work).most(false).name, OWN_WORK);
        let slow_wake_ups = Counted { time: 434e-6, ..AS_DESIGNED };
        assert_eq!(comparison(slow_wake_ups).most(false).name, UNEXPLAINED);
        let more_wake_ups = Counted { wake_ups: 6.0, ..slow_wake_ups };
        assert_eq!(comparison(more_wake_ups).most(true).name, "wake-ups");
        let parallel = Counted { time: 34e-6, ..AS_DESIGNED };
        assert_eq!(comparison(parallel).most(false).name, AT_ONCE);
    }
}
