//! Measures how long a guest stands still when it moves to another process on this host.
//!
//! The times are those that each program states itself (`query-migrate`). Each machine moves on from where it has come
//! to, and must still answer there.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::data::Log;
use super::monitor::Monitor;
use super::peer::{Kind, Peer, Processor, QEMU, is_installed};
use super::statistics::{SPREAD, Series, cell};
use super::{BenchError, show};
use crate::arguments::MoveArguments;

/// What the guest does meanwhile, and the command that begins it. The busy guest copies a file in its memory again and
/// again.
const WORK: [(&str, &str); 2] = [
    ("idle", "dmesg -n 1"),
    (
        "busy",
        "dd if=/dev/urandom of=a bs=1M count=16 2> /dev/null; (while cp a b; do true; done) &",
    ),
];

/// How long a guest works before it moves, so that it is busy or idle at all.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a move may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time between two looks at it.
const LOOK: Duration = Duration::from_millis(20);

/// The same for all programs: how long memory that is left over may take, in milliseconds, and how many bytes a second
/// may be sent, which is no limit here.
const PARAMETERS: &str = r#"{"execute": "migrate-set-parameters", "arguments":
    {"downtime-limit": 50, "max-bandwidth": 100000000000}}"#;

/// The ways to go, and what is measured of each.
const WAYS: [&str; 2] = ["Unix socket", "TCP"];
const QUANTITIES: [&str; 3] = ["still", "whole", "sent"];
const WIDE: usize = 8;

/// The useful part of the reply to `query-migrate`.
#[derive(Deserialize)]
struct State {
    status: Option<String>,
    #[serde(rename = "error-desc")]
    error: Option<String>,
    /// Milliseconds.
    downtime: Option<u32>,
    #[serde(rename = "total-time")]
    total: Option<u32>,
    ram: Option<Ram>,
}

#[derive(Deserialize)]
struct Ram {
    transferred: u64,
}

/// A guest, and the socket by which its machine is told what to do.
struct Machine {
    peer: Peer,
    monitor: Monitor,
}

/// How to start machines.
struct Starter<'a> {
    kind: Kind,
    options: &'a MoveArguments,
    directory: &'a Path,
    started: u32,
}

/// Lets the machines move in turns, and shows the medians.
pub(super) fn measure(arguments: &MoveArguments) -> Result<(), BenchError> {
    let MoveArguments { settings, memory } = arguments;
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    show(&format!(
        "Moves of a guest of {memory} MiB to another process: the milliseconds for which it stands still, those"
    ))?;
    show("of the whole move, and the MiB that are sent (medians).")?;
    let ways = WAYS.map(|way| format!("  {way:<width$}", width = 3 * (WIDE + SPREAD) - 2));
    show(format!("{:20}{}", "", ways.concat()).trim_end())?;
    let names = QUANTITIES.map(|name| format!("{name:>WIDE$}{:SPREAD$}", "")).concat();
    show(format!("{:20}{names}{names}", "").trim_end())?;
    let mut log = Log::begin(settings)?;
    let kinds = [Kind::Translator, Kind::Qemu];
    for kind in kinds.into_iter().filter(|kind| *kind != Kind::Qemu || is_installed(QEMU)) {
        let mut starter =
            Starter { kind, options: arguments, directory: directory.path(), started: 0 };
        let mut machine = starter.start(None)?;
        machine.peer.wait_for(super::peer::PROMPT)?;
        for (work, command) in WORK {
            machine.peer.work(command)?;
            thread::sleep(SETTLE);
            let mut all: [[Series; 3]; 2] = Default::default();
            for turn in 0..settings.runs {
                for (way, series) in all.iter_mut().enumerate() {
                    let (next, values) = starter.move_on(machine, way)?;
                    machine = next;
                    for (series, value) in series.iter_mut().zip(values) {
                        series.add(turn, value);
                    }
                }
            }
            let name = kind.name();
            let mut line = format!("{name:<11} {work:<8}");
            for (way, series) in WAYS.into_iter().zip(&all) {
                let work = format!("{work}, {way}");
                let units = ["downtime_milliseconds", "elapsed_milliseconds", "sent_mib"];
                for (unit, series) in units.into_iter().zip(series) {
                    log.add_series(name, &work, unit, series)?;
                    let figure = super::statistics::Figure::of(series.values());
                    line.push_str(&cell(figure, WIDE, 0, ""));
                }
            }
            show(line.trim_end())?;
        }
    }
    Ok(())
}

impl Starter<'_> {
    /// Starts a machine that boots, or one that waits for another to come from `incoming`.
    fn start(&mut self, incoming: Option<&str>) -> Result<Machine, BenchError> {
        self.started += 1;
        let MoveArguments { settings, memory } = self.options;
        let socket = self.directory.join(format!("monitor{}", self.started));
        let (kernel, initrd) =
            (settings.guest("linux-686/vmlinuz")?, settings.guest("initramfs.cpio.gz")?);
        let mut options: Vec<OsString> = vec!["-m".into(), memory.to_string().into()];
        options.extend([
            "-qmp".into(),
            format!("unix:{},server=on,wait=off", socket.display()).into(),
        ]);
        options.extend(incoming.into_iter().flat_map(|place| ["-incoming".into(), place.into()]));
        let words = "console=ttyS0 quiet";
        let peer =
            self.kind.boot_kernel_with(Processor::Bits32, words, &kernel, &initrd, &options)?;
        Ok(Machine { peer, monitor: Monitor::await_at(&socket)? })
    }

    /// Lets `machine` move to another process by way `way` of [`WAYS`]. Returns it there, and its quantities.
    fn move_on(
        &mut self,
        mut machine: Machine,
        way: usize,
    ) -> Result<(Machine, [f64; 3]), BenchError> {
        let place = if way == 0 {
            format!("unix:{}", self.directory.join(format!("move{}", self.started)).display())
        } else {
            format!("tcp:127.0.0.1:{}", free_port().map_err(BenchError::Disk)?)
        };
        let mut next = self.start(Some(&place))?;
        let values =
            machine.moves(&place).map_err(|why| BenchError::Move(self.kind.name(), why))?;
        drop(machine);
        // The guest is there.
        next.peer.type_text("\n")?;
        next.peer.work("true")?;
        Ok((next, values))
    }
}

impl Machine {
    fn moves(&mut self, place: &str) -> Result<[f64; 3], String> {
        let monitor = &mut self.monitor;
        let mut ask = |command: &str| monitor.ask(command).map_err(|error| error.to_string());
        ask(&PARAMETERS.replace('\n', " "))?;
        let migrate = r#"{"execute": "migrate", "arguments": {"uri": "PLACE"}}"#;
        ask(&migrate.replace("PLACE", place))?;
        let began = Instant::now();
        loop {
            let state = ask(r#"{"execute": "query-migrate"}"#)?;
            let state: State = serde_json::from_value(state).map_err(|error| error.to_string())?;
            match state.status.as_deref() {
                Some("completed") => {
                    let sent = state.ram.map_or(0, |ram| ram.transferred >> 20) as u32;
                    let values = [state.downtime, state.total, Some(sent)];
                    return Ok(values.map(|value| f64::from(value.unwrap_or_default())));
                }
                Some("failed") => return Err(state.error.unwrap_or_default()),
                _ if began.elapsed() > PATIENCE => return Err("it takes too long".to_owned()),
                _ => thread::sleep(LOOK),
            }
        }
    }
}

/// Returns a port of this host that nobody uses.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
