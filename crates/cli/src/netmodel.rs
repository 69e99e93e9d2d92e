//! `ring3 netmodel`: the costs of networks between machines, by the model of crate `netmodel`.

use std::fmt::Write;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ring3_bench::chart::{self, Chart, Point};
use ring3_bench::{calibrate, options};
use ring3_block::parse_size;
use ring3_netmodel::{DESIGNS, Design, Host, Network, Prediction};
use serde::Serialize;

use crate::output::Output;

/// The options of `ring3 netmodel`. Without options the host is the one that the model was made for: an Intel
/// Core i7-920 with the microhypervisor NOVA. `--calibrate` takes this host.
#[derive(Debug, Args)]
pub(crate) struct NetmodelArguments {
    /// The size of the data that is sent at once
    #[arg(long, value_name = "BYTES", default_value_t = 65535)]
    #[arg(value_parser = bytes)]
    bytes: u32,

    /// The number of machines that share a broadcast network, the sender included; without this option they
    /// are on a switch
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=65535))]
    broadcast: Option<u32>,

    #[command(flatten)]
    host: HostArguments,

    /// The form of the output
    #[arg(long, value_name = "FORM", default_value = "text")]
    output: Form,

    /// Write a plot of the bandwidth for each size of packets, an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A table, for people
    Text,
    /// An array of objects, for programs
    Json,
}

fn bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).and_then(|bytes| u32::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "give a number of bytes from 1 on, such as 1500 or 64k".to_owned())
}

/// Reads a number in `range`. `or` is the error for anything else.
fn number(text: &str, range: RangeInclusive<f64>, or: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| or.to_owned())
}

fn gigahertz(text: &str) -> Result<f64, String> {
    number(text, 0.001..=1000.0, "give GHz, from 0.001 to 1000, such as 3.2")
}

fn gigabytes(text: &str) -> Result<f64, String> {
    number(text, 0.001..=1e6, "give GB, from 0.001 to 1000000, such as 12.5")
}

fn cycles(text: &str) -> Result<f64, String> {
    number(text, 0.0..=1e12, "give cycles, from 0 to 1000000000000, such as 1500")
}

/// The costs of the host. Costs that the options leave out are those of the paper's host, or of this one.
#[derive(Debug, Args)]
struct HostArguments {
    /// Measure the costs of this host, and print the options that stand for them
    #[arg(long)]
    calibrate: bool,

    /// The processor's frequency
    #[arg(long, value_name = "GHZ", value_parser = gigahertz)]
    frequency: Option<f64>,

    /// The bandwidth of copying in memory, in GB a second
    #[arg(long, value_name = "GB", value_parser = gigabytes)]
    memory: Option<f64>,

    /// Cycles to leave a guest and return to it
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    exit: Option<f64>,

    /// Cycles for an interrupt
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    interrupt: Option<f64>,

    /// Cycles for a message to another process
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    message: Option<f64>,

    /// Cycles to wake up a thread
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    wake_up: Option<f64>,

    /// Cycles for an element of string port I/O
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    element: Option<f64>,

    /// Cycles to map a page at another address
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    remap: Option<f64>,
}

impl HostArguments {
    fn host(&self) -> io::Result<Host> {
        let known =
            if self.calibrate { calibrate().map_err(io::Error::other)? } else { Host::CORE_I7_920 };
        let scaled = |given: Option<f64>, known| given.map_or(known, |value| value * 1e9);
        Ok(Host {
            frequency: scaled(self.frequency, known.frequency),
            memory_bandwidth: scaled(self.memory, known.memory_bandwidth),
            exit: self.exit.unwrap_or(known.exit),
            interrupt: self.interrupt.unwrap_or(known.interrupt),
            message: self.message.unwrap_or(known.message),
            wake_up: self.wake_up.unwrap_or(known.wake_up),
            element: self.element.unwrap_or(known.element),
            remap: self.remap.unwrap_or(known.remap),
        })
    }
}

/// A line of the table.
#[derive(Debug, Serialize)]
struct Row {
    design: &'static str,
    /// In cycles.
    costs: f64,
    /// In seconds.
    latency: f64,
    /// In bytes a second.
    bandwidth: f64,
    /// In cycles, by purpose.
    terms: Vec<(&'static str, f64)>,
}

impl Row {
    fn new(design: &'static str, prediction: &Prediction) -> Row {
        let costs = prediction.costs();
        Row {
            design,
            costs: costs.total(),
            latency: prediction.latency(),
            bandwidth: prediction.bandwidth(),
            terms: costs.terms().into(),
        }
    }

    /// Returns the terms that are at least a hundredth of the costs, the largest first.
    fn shares(&self) -> String {
        let mut shares: Vec<_> =
            self.terms.iter().map(|(name, cycles)| (name, 100.0 * cycles / self.costs)).collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shown = shares.iter().filter(|(_, share)| *share >= 1.0);
        shown.map(|(name, share)| format!("{name} {share:.0} %")).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the designs, with the network that the user has chosen.
fn designs(arguments: &NetmodelArguments) -> impl Iterator<Item = (&'static str, Design)> {
    let network =
        arguments.broadcast.map_or(Network::Switched, |machines| Network::Broadcast { machines });
    DESIGNS.into_iter().map(move |(name, design)| (name, Design { network, ..design }))
}

/// Computes the predictions, and prints them.
pub(crate) fn run(arguments: &NetmodelArguments) -> io::Result<()> {
    let host = arguments.host.host()?;
    let rows: Vec<_> = designs(arguments)
        .map(|(name, design)| {
            Row::new(name, &Prediction::new(&host, &design, arguments.bytes.into()))
        })
        .collect();
    let text = match arguments.output {
        Form::Text if arguments.host.calibrate => format!("{}\n{}", options(&host), table(&rows)),
        Form::Text => table(&rows),
        Form::Json => serde_json::to_string_pretty(&rows)? + "\n",
    };
    Output::stdout()?.write(text.as_bytes())?;
    let Some(path) = &arguments.plot else { return Ok(()) };
    chart::write(path, "bytes of a packet", &[plot(arguments, &host)])
        .map_err(|error| io::Error::other(format!("{} cannot be written: {error}", path.display())))
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<14}{:>12}{:>12}{:>10}  of which\n", "", "cycles", "us", "MB/s");
    for row in rows {
        let Row { design, costs, latency, bandwidth, .. } = row;
        let (latency, bandwidth) = (latency * 1e6, bandwidth / 1e6);
        let shares = row.shares();
        writeln!(text, "{design:<14}{costs:>12.0}{latency:>12.2}{bandwidth:>10.1}  {shares}")
            .expect("a string takes all");
    }
    text
}

/// Plots the bandwidth for each size of packets, sent one at a time: figure 6.1 for all sizes.
fn plot(arguments: &NetmodelArguments, host: &Host) -> Chart {
    let sizes = || (6..16).map(|power| f64::from(1 << power)).chain([1500.0, 9000.0, 65535.0]);
    let curves = designs(arguments)
        .filter(|(_, design)| design.packet.total_cmp(&1500.0).is_eq())
        .filter(|(_, design)| design.buffer.total_cmp(&design.packet).is_eq())
        .map(|(name, design)| {
            let mut points: Vec<_> = sizes()
                .map(|packet| {
                    let design = Design { packet, buffer: packet, crossing: packet, ..design };
                    let y = Prediction::new(host, &design, packet).bandwidth() / 1e6;
                    Point { x: packet, y, spread: None }
                })
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            (name.to_owned(), points)
        })
        .collect();
    Chart { title: "Bandwidth by size of packets", unit: "MB/s", curves }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: NetmodelArguments,
    }

    fn arguments(words: &[&str]) -> NetmodelArguments {
        Line::try_parse_from([&["netmodel"], words].concat()).unwrap().arguments
    }

    #[test]
    fn the_table_has_the_numbers_of_the_paper() {
        let arguments = arguments(&["--bytes", "1500"]);
        let host = arguments.host.host().unwrap();
        let (name, design) = designs(&arguments).next().unwrap();
        let row = Row::new(name, &Prediction::new(&host, &design, 1500.0));
        let text = table(&[row]);
        assert!(text.contains("ports               158386       59.32      25.3"), "{text}");
        assert!(text.contains("emulation 95 %"), "{text}");
    }

    #[test]
    fn the_plot_has_all_designs() {
        let arguments = arguments(&["--remap", "500"]);
        let chart = plot(&arguments, &arguments.host.host().unwrap());
        let names: Vec<_> = chart.curves.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ports", "dma", "coalesced", "remap"]);
        assert!(chart.curves.iter().all(|(_, points)| points.len() == 13));
    }

    #[test]
    fn impossible_costs_are_refused() {
        for words in [["--exit", "-1"], ["--exit", "nan"], ["--memory", "0"], ["--broadcast", "1"]]
        {
            Line::try_parse_from([&["netmodel"], &words[..]].concat()).unwrap_err();
        }
    }
}
