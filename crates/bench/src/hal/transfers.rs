//! Transfers by the drivers of real devices, in each of their ways to ports: files over a serial line, there
//! and back, blocks of a disk by programmed I/O, and packets of an NE2000.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ring3_tern::TERN;
use serde::Serialize;

use super::counted::{self, Orders};
use super::{Machine, WAYS, Work, header, row, without_dma};
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
    outside: Outside,
}

/// What comes to the machine from outside in a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    Nothing,
    /// The answers of a network.
    Packets,
    /// [`lines`] over the second serial line, at so many bits a second.
    Lines(u32),
}

/// The lines that are received, and the bytes of each with its end: a terminal gives a program a line at a time.
const LINES: u32 = 16;
const LINE_BYTES: u32 = 64;

/// Returns the bytes that are received.
fn lines() -> Vec<u8> {
    let line = |number| format!("{number:0width$}\n", width = LINE_BYTES as usize - 1);
    (0..LINES).map(line).collect::<String>().into_bytes()
}

/// The bytes that are sent at a time: those at which the driver has the 16550 interrupt.
const PIECE: usize = 8;
/// Bits of a byte on the line, with those around it.
const BITS: u32 = 10;

/// Sends [`lines`] to the socket at `path`, in a thread, at the rate at which a serial line would bring them. The
/// connection must last until they are received.
fn send_lines(path: &Path, speed: u32) -> io::Result<UnixStream> {
    let mut socket = UnixStream::connect(path)?;
    let connection = socket.try_clone()?;
    let pause = Duration::from_secs(1) * (PIECE as u32 * BITS) / speed;
    thread::spawn(move || {
        for piece in lines().chunks(PIECE) {
            // A machine that has ended does not need them.
            if socket.write_all(piece).is_err() {
                break;
            }
            thread::sleep(pause);
        }
    });
    Ok(connection)
}

/// The driver of serial lines keeps what it could not send yet, so its commands sleep as long as the
/// bytes take.
const TRANSFERS: [Transfer; 6] = [
    Transfer {
        service: "serial",
        title: "byte sent, 19200 bit/s",
        probe: "stty 19200 </dev/ttyS1",
        commands: [
            "dd if=/sbin/fs of=/dev/ttyS1 bs=1024 count=0",
            "dd if=/sbin/fs of=/dev/ttyS1 bs=1024 count=1; sleep 0.6",
        ],
        count: 1024,
        outside: Outside::Nothing,
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
        outside: Outside::Nothing,
    },
    Transfer {
        service: "serial",
        title: "byte received, 19200 bit/s",
        probe: "stty 19200 -echo </dev/ttyS1",
        commands: RECEPTIONS,
        count: LINES * LINE_BYTES,
        outside: Outside::Lines(19200),
    },
    Transfer {
        service: "serial",
        title: "byte received, 38400 bit/s",
        probe: "stty 38400 -echo </dev/ttyS1",
        commands: RECEPTIONS,
        count: LINES * LINE_BYTES,
        outside: Outside::Lines(38400),
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
        outside: Outside::Nothing,
    },
    Transfer {
        service: "ne2000",
        title: "1000 bytes, there and back",
        probe: "ping -c 1 10.0.2.2",
        commands: ["ping -c 1 -i 0 -s 1000 10.0.2.2", "ping -c 201 -i 0 -s 1000 10.0.2.2"],
        count: 200,
        outside: Outside::Packets,
    },
];

/// The commands that receive nothing, and all [`lines`], and compare them with what they should be.
const RECEPTIONS: [&str; 2] = [
    "head -n 0 </dev/ttyS1 >/tmp/received; cmp /tmp/received /dev/null",
    "head -n 16 </dev/ttyS1 >/tmp/received; cmp /tmp/received /tmp/lines",
];
/// The command that makes a file of [`lines`].
const MAKE_LINES: &str =
    "i=0; while [ $i != 16 ]; do printf '%063d\\n' $i; i=$((i+1)); done >/tmp/lines";

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
    /// Processor time on the host, without that of the run with nothing to do; null if only instructions are counted.
    seconds: Option<f64>,
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
    /// The socket at the other end of its second serial line.
    line: PathBuf,
    costs: [[Costs; WAYS.len()]; TRANSFERS.len()],
}

/// Measures all machines in turns, and shows the medians.
pub(super) fn measure(
    kinds: &[Kind],
    settings: &Settings,
    directory: &Path,
) -> Result<(), BenchError> {
    // The machines' files are written where there are none yet.
    let tern = TERN.ok_or(BenchError::NoTern)?;
    let archive = without_dma(tern.archive).ok_or(BenchError::NoTern)?;
    fs::write(directory.join("tern.img"), archive).map_err(BenchError::Disk)?;
    let boot = |&kind: &Kind| {
        let line = directory.join(format!("{kind:?}.line"));
        let mut socket = OsString::from("unix:");
        socket.push(&line);
        socket.push(",server=on,wait=off");
        let mut options = vec!["-serial".into(), socket];
        options.extend(CARD.map(OsString::from));
        let extras = Extras { disk_bytes: DISK, options: &options, ..Extras::default() };
        let mut machine = Machine::boot(kind, settings, &extras, directory)?;
        machine.work(MAKE_LINES)?;
        Ok(System { machine, line, costs: Default::default() })
    };
    let systems: Result<Vec<_>, BenchError> = kinds.iter().map(boot).collect();
    let mut systems = systems?;
    let mut log = Log::begin(settings)?;
    let exact = count(&mut log, directory)?;
    for turn in 0..settings.runs {
        for system in &mut systems {
            for (transfer, all) in TRANSFERS.iter().zip(&mut system.costs) {
                for (way, costs) in WAYS.iter().zip(all) {
                    let System { machine, line, .. } = system;
                    let measurement = one(machine, line, turn, way, transfer, costs)?;
                    log.add(&[measurement])?;
                }
            }
        }
    }
    show(
        "A part of a transfer by a driver of Tern, in each of its ways to ports, and a direct call",
    )?;
    show("as a share of a message (medians; ± half the distance between the quartiles).")?;
    for system in &systems {
        let line = |(transfer, costs): (&Transfer, &[Costs; WAYS.len()])| {
            row(transfer.title, &costs.each_ref().map(|costs| &costs.microseconds), 2)
        };
        let rows = TRANSFERS.iter().zip(&system.costs).map(line);
        let title = format!("{}: µs of the host's processor", system.machine.kind.name());
        for line in [String::new(), title, header("µs")].into_iter().chain(rows) {
            show(&line)?;
        }
    }
    for line in exact_table(&exact).into_iter().chain(other_table(&systems)) {
        show(&line)?;
    }
    Ok(())
}

/// The transfers in which nothing comes from outside.
fn inner_transfers() -> impl Iterator<Item = &'static Transfer> {
    TRANSFERS.iter().filter(|transfer| transfer.outside == Outside::Nothing)
}

/// Counts the instructions of one unit of each of the [`inner_transfers`], for each way.
fn count(log: &mut Log, directory: &Path) -> Result<Vec<[Series; WAYS.len()]>, BenchError> {
    let mut orders = Orders::new();
    for transfer in inner_transfers() {
        for way in WAYS {
            orders.choose(transfer.service, way, transfer.probe);
            orders.compare(transfer.commands);
        }
    }
    let extras = counted::Extras { disk_bytes: DISK, ..Default::default() };
    let counts = orders.execute(&extras, directory)?;
    let mut all = Vec::new();
    for (transfer, counts) in inner_transfers().zip(counts.chunks_exact(WAYS.len())) {
        let mut costs: [Series; WAYS.len()] = Default::default();
        for ((way, cost), instructions) in WAYS.into_iter().zip(&mut costs).zip(counts) {
            let (system, title, count) =
                (Kind::Deterministic.name(), transfer.title, transfer.count);
            cost.add(0, instructions / f64::from(count));
            let instructions = Some(*instructions);
            let (turn, seconds) = (0, None);
            log.add(&[Measurement {
                system,
                way,
                transfer: title,
                turn,
                count,
                seconds,
                instructions,
            }])?;
        }
        all.push(costs);
    }
    Ok(all)
}

/// Returns the table of the instructions of the [`inner_transfers`].
fn exact_table(counts: &[[Series; WAYS.len()]]) -> Vec<String> {
    let title =
        "instructions, where nothing comes from outside: each run has exactly these".to_owned();
    let rows = inner_transfers().zip(counts);
    let rows = rows.map(|(transfer, costs)| row(transfer.title, &costs.each_ref(), 0));
    [String::new(), title, header("instructions")].into_iter().chain(rows).collect()
}

/// Returns the table of the instructions of the other transfers, by the last machine that counts them. They depend on
/// when something comes.
fn other_table(systems: &[System]) -> Vec<String> {
    if systems.is_empty() {
        return Vec::new();
    }
    let title = "instructions, where something comes from outside".to_owned();
    let mut lines = vec![String::new(), title, header("instructions")];
    for (number, transfer) in TRANSFERS.iter().enumerate() {
        if transfer.outside == Outside::Nothing {
            continue;
        }
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
    line: &Path,
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
    let nothing = run(machine, NAMES[0], transfer.commands[0], || Ok(None))?;
    let all = run(machine, NAMES[1], transfer.commands[1], || match transfer.outside {
        Outside::Lines(speed) => send_lines(line, speed).map(Some),
        Outside::Nothing | Outside::Packets => Ok(None),
    })?;
    let seconds = all.seconds - nothing.seconds;
    let executed = all.instructions.zip(nothing.instructions);
    let instructions = executed.map(|(all, nothing)| all - nothing);
    let each = |sum: f64| sum / f64::from(transfer.count);
    costs.microseconds.add(turn, each(seconds * 1e6));
    if let Some(instructions) = instructions {
        costs.instructions.add(turn, each(instructions));
    }
    let (system, count) = (machine.kind.name(), transfer.count);
    let (transfer, seconds) = (transfer.title, Some(seconds));
    Ok(Measurement { system, way, transfer, turn, count, seconds, instructions })
}

/// The names of the shell's functions for the two commands, and what they print if they succeed.
const NAMES: [&str; 2] = ["n", "a"];
const DONE: &str = "+";

/// Executes the function `name`, which must succeed, after `begin`.
fn run(
    machine: &mut Machine,
    name: &str,
    command: &str,
    begin: impl FnOnce() -> io::Result<Option<UnixStream>>,
) -> Result<Work, BenchError> {
    let work = machine.work_after(begin, name)?;
    if work.shown.trim() == DONE {
        return Ok(work);
    }
    Err(BenchError::NotRun(command.into(), machine.kind.name(), work.shown))
}
