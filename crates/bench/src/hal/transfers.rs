//! Transfers by the drivers of real devices, in each of their ways to ports: a file over a serial line,
//! blocks of a disk by programmed I/O, and packets of an NE2000.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use ring3_tern::{TERN, with_line};
use serde::Serialize;

use super::{Machine, WAYS, Work, header, kinds, row};
use crate::data::Log;
use crate::guest::Extras;
use crate::peer::Kind;
use crate::statistics::{Series, Turn};
use crate::{BenchError, Settings, show};

/// A transfer by a service.
struct Transfer {
    service: &'static str,
    title: &'static str,
    /// What succeeds when the service can serve.
    probe: &'static str,
    /// The command that transfers nothing, and the one that transfers `count` units more.
    commands: [&'static str; 2],
    count: u32,
    needs_network: bool,
}

/// The driver of serial lines keeps what it could not send yet, so its commands sleep as long as the
/// bytes take.
const TRANSFERS: [Transfer; 4] = [
    Transfer {
        service: "serial",
        title: "byte sent, 19200 bit/s",
        probe: "stty 19200 </dev/ttyS1",
        commands: [
            "dd if=/sbin/fs of=/dev/ttyS1 bs=1024 count=0",
            "dd if=/sbin/fs of=/dev/ttyS1 bs=1024 count=1; sleep 0.6",
        ],
        count: 1024,
        needs_network: false,
    },
    Transfer {
        service: "serial",
        title: "byte sent, 38400 bit/s",
        probe: "stty 38400 </dev/ttyS1",
        commands: [
            "dd if=/sbin/fs of=/dev/ttyS1 bs=1024 count=0",
            "dd if=/sbin/fs of=/dev/ttyS1 bs=1024 count=1; sleep 0.3",
        ],
        count: 1024,
        needs_network: false,
    },
    Transfer {
        service: "ata",
        title: "64 KiB of a disk, by PIO",
        probe: "dd if=/dev/hda of=/dev/null bs=512 count=1",
        commands: [
            "dd if=/dev/hda of=/dev/null bs=65536 count=0",
            "dd if=/dev/hda of=/dev/null bs=65536 count=128",
        ],
        count: 128,
        needs_network: false,
    },
    Transfer {
        service: "ne2000",
        title: "1000 bytes, there and back",
        probe: "ping -c 1 10.0.2.2",
        commands: ["ping -c 1 -i 0 -s 1000 10.0.2.2", "ping -c 201 -i 0 -s 1000 10.0.2.2"],
        count: 200,
        needs_network: true,
    },
];

/// The second serial line, whose bytes go nowhere.
const LINE: [&str; 2] = ["-serial", "null"];
/// A card at a network that answers.
const CARD: [&str; 4] = ["-netdev", "user,id=net", "-device", "ne2k_pci,netdev=net"];
/// The bytes of the disk that is read.
const DISK: usize = 8 << 20;

/// One transfer in the file of raw data, after one with nothing to do.
#[derive(Debug, Serialize)]
struct Measurement<'a> {
    system: &'a str,
    way: &'a str,
    transfer: &'a str,
    turn: Turn,
    count: u32,
    /// Processor time on the host, without that of the run with nothing to do.
    seconds: f64,
    /// The same of the instructions; null if the system does not count them.
    instructions: Option<f64>,
}

/// The costs of one unit of a transfer by one way, in all turns.
#[derive(Debug, Default)]
struct Costs {
    /// Of the host's processor time.
    microseconds: Series,
    instructions: Series,
}

/// A machine, and its figures for each transfer, for each way.
struct System {
    machine: Machine,
    costs: [[Costs; WAYS.len()]; TRANSFERS.len()],
}

/// Measures all machines in turns, and shows the medians.
pub(super) fn measure(settings: &Settings, directory: &Path) -> Result<(), BenchError> {
    // The machines' files are written where there are none yet: this archive has the driver of disks
    // use no DMA.
    let tern = TERN.ok_or(BenchError::NoTern)?;
    let archive = with_line(tern.archive, "ata", "arguments dma=off");
    let archive = archive.ok_or(BenchError::NoTern)?;
    fs::write(directory.join("tern.img"), archive).map_err(BenchError::Disk)?;
    let boot = |kind: Kind| {
        let card = if has_network(kind) { &CARD[..] } else { &[] };
        let options: Vec<_> = LINE.iter().chain(card).map(OsString::from).collect();
        let extras = Extras { disk_bytes: DISK, options: &options, ..Extras::default() };
        let machine = Machine::boot(kind, settings, &extras, directory)?;
        Ok(System { machine, costs: Default::default() })
    };
    let systems: Result<Vec<_>, BenchError> = kinds().into_iter().map(boot).collect();
    let mut systems = systems?;
    let mut log = Log::begin(settings)?;
    for turn in 0..settings.runs {
        for system in &mut systems {
            for (transfer, all) in TRANSFERS.iter().zip(&mut system.costs) {
                if transfer.needs_network && !has_network(system.machine.kind) {
                    continue;
                }
                for (way, costs) in WAYS.iter().zip(all) {
                    let measurement = one(&mut system.machine, turn, way, transfer, costs)?;
                    log.add(&[measurement])?;
                }
            }
        }
    }
    show(
        "A part of a transfer by a driver of Tern, in each of its ways to ports, and a direct call",
    )?;
    show("as a share of a message (medians; ± half the distance between the quartiles).")?;
    for system in systems.iter().filter(|system| system.machine.kind != Kind::Deterministic) {
        let line = |(transfer, costs): (&Transfer, &[Costs; WAYS.len()])| {
            row(transfer.title, &costs.each_ref().map(|costs| &costs.microseconds), 2)
        };
        let rows = TRANSFERS.iter().zip(&system.costs).map(line);
        let title = format!("{}: µs of the host's processor", system.machine.kind.name());
        for line in [String::new(), title, header("µs")].into_iter().chain(rows) {
            show(&line)?;
        }
    }
    for line in instructions(&systems) {
        show(&line)?;
    }
    Ok(())
}

/// Returns whether such a machine may have a network: its inputs would come at no instruction of their own.
fn has_network(kind: Kind) -> bool {
    kind != Kind::Deterministic
}

/// Returns the table of instructions: those of the last machine that has counted any for the transfer,
/// which is the deterministic one where there is no network.
fn instructions(systems: &[System]) -> Vec<String> {
    let title = "instructions, of a deterministic run where there is no network".to_owned();
    let mut lines = vec![String::new(), title, header("instructions")];
    for (number, transfer) in TRANSFERS.iter().enumerate() {
        let costs = systems.iter().rev().map(|system| &system.costs[number]);
        let counted = |costs: &&[Costs; WAYS.len()]| costs[0].instructions.turns().next().is_some();
        let counted = costs.into_iter().find(counted);
        lines.extend(counted.map(|costs| {
            row(transfer.title, &costs.each_ref().map(|costs| &costs.instructions), 0)
        }));
    }
    lines
}

/// Measures one transfer once, and adds its cost for each unit.
fn one(
    machine: &mut Machine,
    turn: Turn,
    way: &'static str,
    transfer: &Transfer,
    costs: &mut Costs,
) -> Result<Measurement<'static>, BenchError> {
    // The serial line of the console has the same driver, so as little as possible is typed between
    // the looks.
    for (name, command) in NAMES.iter().zip(transfer.commands) {
        machine
            .work(&format!("{name}() {{ {{ {command}; }} >/dev/null 2>&1 && echo {DONE}; }}"))?;
    }
    machine.choose(transfer.service, way, transfer.probe)?;
    let nothing = run(machine, NAMES[0], transfer.commands[0])?;
    let all = run(machine, NAMES[1], transfer.commands[1])?;
    let seconds = all.seconds - nothing.seconds;
    let executed = all.instructions.zip(nothing.instructions);
    let instructions = executed.map(|(all, nothing)| all - nothing);
    let each = |sum: f64| sum / f64::from(transfer.count);
    costs.microseconds.add(turn, each(seconds * 1e6));
    if let Some(instructions) = instructions {
        costs.instructions.add(turn, each(instructions));
    }
    let (system, count) = (machine.kind.name(), transfer.count);
    let transfer = transfer.title;
    Ok(Measurement { system, way, transfer, turn, count, seconds, instructions })
}

/// The names of the shell's functions for the two commands, and what they print if they succeed.
const NAMES: [&str; 2] = ["n", "a"];
const DONE: &str = "+";

/// Executes the function `name`, which must succeed.
fn run(machine: &mut Machine, name: &str, command: &str) -> Result<Work, BenchError> {
    let work = machine.work(name)?;
    if work.shown.trim() == DONE {
        return Ok(work);
    }
    Err(BenchError::NotRun(command.into(), machine.kind.name(), work.shown))
}
