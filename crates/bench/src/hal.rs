//! Measures what an access to ports costs a driver in a process, in each of the ways that Tern has: by
//! a message to the kernel's process for such calls, by a direct call, by IN and OUT that trap, by the
//! TSS's permission map, and, for comparison, in ring 0, where drivers ran in MINIX 2. The first two
//! are those of Pessolani, Cortes, Gonnet and Tinetti, who compared them under MINIX 3.
//!
//! * `accesses`: at ports without a device, so that nearly all of the time is the way's;
//! * `transfers`: by the drivers of a serial line, a disk and a network card;
//! * `masks`: what messages cost without the checks of their destinations.
//!
//! Times are measured in machines whose shell is told what to do; instructions are counted in one that is told nothing
//! (`counted`).

mod accesses;
mod counted;
mod masks;
mod transfers;

use std::io;
use std::path::Path;

use ring3_tern::with_line;

use super::guest::{Extras, Guest};
use super::monitor::Monitor;
use super::peer::{Kind, Peer};
use super::statistics::{SPREAD, Series, cell};
use super::{BenchError, HalArguments, Settings};

/// The names of the ways, as `service way` takes them.
const WAYS: [&str; 5] = ["message", "direct", "trap", "bitmap", "kernel"];
const MESSAGE: usize = 0;
const DIRECT: usize = 1;

/// A machine with Tern.
struct Machine {
    kind: Kind,
    peer: Peer,
    /// Only machines of this program have one.
    monitor: Option<Monitor>,
}

/// What a command took.
struct Work {
    /// Processor time on the host.
    seconds: f64,
    /// None if the machine does not count them.
    instructions: Option<f64>,
    shown: String,
}

/// Measures what the user has asked for.
pub(super) fn measure(arguments: &HalArguments) -> Result<(), BenchError> {
    // This is dropped last, because the running processes have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let (settings, path) = (&arguments.settings, directory.path());
    // Of these machines there are times; instructions are always counted.
    let kinds = if arguments.instructions { Vec::new() } else { Kind::installed() };
    if arguments.transfers {
        transfers::measure(&kinds, settings, path)
    } else if arguments.masks {
        masks::measure(&kinds, settings, path)
    } else {
        accesses::measure(&kinds, settings, path)
    }
}

/// Returns Tern's boot `archive`, in which the driver of disks uses no DMA.
fn without_dma(archive: &[u8]) -> Option<Vec<u8>> {
    with_line(archive, "service ata", "arguments dma=off")
}

/// Returns the shell's command that starts the driver `service` with the way `way`, and waits until `probe` succeeds.
fn choosing(service: &str, way: &str, probe: &str) -> String {
    format!(
        "service down {service}; service way {service} {way}; service up {service}; i=0; \
         until {probe} || [ $i = 100 ]; do sleep 0.1; i=$((i+1)); done 2>/dev/null"
    )
}

impl Machine {
    fn boot(
        kind: Kind,
        settings: &Settings,
        extras: &Extras<'_>,
        directory: &Path,
    ) -> Result<Machine, BenchError> {
        let (peer, monitor) = Guest::Tern.boot_with_monitor(kind, settings, extras, directory)?;
        Ok(Machine { kind, peer, monitor })
    }

    /// Starts the driver `service` with the way `way`, and waits until `probe` succeeds.
    fn choose(&mut self, service: &str, way: &str, probe: &str) -> Result<(), BenchError> {
        self.work(&choosing(service, way, probe)).map(|_| ())
    }

    fn work(&mut self, command: &str) -> Result<Work, BenchError> {
        self.work_after(|| Ok(()), command)
    }

    /// Executes `command` after `begin`, whose consequences count, too, and whose result lasts until the end.
    fn work_after<T>(
        &mut self,
        begin: impl FnOnce() -> io::Result<T>,
        command: &str,
    ) -> Result<Work, BenchError> {
        let before = self.executed()?;
        let _begun = begin().map_err(BenchError::Line)?;
        let (seconds, shown) = self.peer.work(command)?;
        let after = self.executed()?;
        let instructions = before.zip(after).map(|(before, after)| after - before);
        Ok(Work { seconds, instructions, shown })
    }

    fn executed(&mut self) -> Result<Option<f64>, BenchError> {
        self.monitor.as_mut().map(Monitor::instructions).transpose()
    }
}

const NAME: usize = 28;
const VALUE: usize = 9;
const SHARE: usize = 8;

/// Returns the line above a table with a column for each way.
fn header(unit: &str) -> String {
    let names: Vec<_> = WAYS.iter().map(|way| format!("{way:>VALUE$}{:SPREAD$}", "")).collect();
    format!("{unit:<NAME$}{}{:>SHARE$}", names.concat(), "share")
}

/// Returns a line of such a table, with so many digits behind the point.
fn row(name: &str, costs: &[&Series; WAYS.len()], digits: usize) -> String {
    let cells: Vec<_> = costs.iter().map(|cost| cell(cost.figure(), VALUE, digits, "")).collect();
    let share = share(costs[DIRECT], costs[MESSAGE]);
    format!("{name:<NAME$}{}{share}", cells.concat()).trim_end().to_owned()
}

/// Formats a direct call as a share of a message.
fn share(direct: &Series, message: &Series) -> String {
    let share = direct.ratio(message).map(|share| share.times(100.0));
    cell(share, SHARE, 0, " %")
}
