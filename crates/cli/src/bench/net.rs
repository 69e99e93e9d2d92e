//! Two guests with a cable between their network cards, or a switch.
//!
//! Both guests run on this program, or both in QEMU, with the same cards and the same kind of connection between the processes; with a switch there is
//! another process between them. What is measured is the time that passes for so many packets or bytes, less that of none, as seen from outside.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use super::peer::{Kind, PROMPT, Peer};
use super::{BenchError, NetArguments, Settings, median, show};
use crate::chart::{self, Chart};

/// What may be at both ends.
#[derive(Debug)]
struct Card {
    name: &'static str,
    /// The word of `-device`.
    device: &'static str,
    /// Linux's modules for it.
    modules: &'static str,
    /// How much of the work it does, in parts: slow cards do less of it.
    share: u32,
}

const CARDS: [Card; 1] = [Card {
    name: "virtio",
    device: "virtio-net-pci",
    modules: "virtio_pci virtio_net",
    share: 16,
}];
const SHARES: u32 = 16;

/// How two guests are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    kind: Kind,
    by_switch: bool,
}

const WAYS: [Way; 3] = [
    Way { kind: Kind::Translator, by_switch: false },
    Way { kind: Kind::Qemu, by_switch: false },
    Way { kind: Kind::Translator, by_switch: true },
];

impl Way {
    fn name(self) -> String {
        let by = if self.by_switch { ", switch" } else { "" };
        format!("{}{by}", self.kind.name())
    }
}

/// How long a switch may take until machines can connect.
const START: Duration = Duration::from_secs(10);

/// The guest that serves.
const SERVER: &str = "10.0.0.1";

/// Packets or records of one kind.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    /// What the guests' program calls it.
    kind: &'static str,
    bytes: u32,
    count: u32,
}

impl Traffic {
    const fn new(kind: &'static str, bytes: u32, count: u32) -> Traffic {
        Traffic { kind, bytes, count }
    }

    /// Bytes go one way, and it is their rate that counts.
    fn is_one_way(&self) -> bool {
        self.kind == "stream"
    }

    fn name(&self) -> String {
        let what = match self.kind {
            "stream" => "TCP, MB/s, by",
            "stream-echo" => "TCP, us there and back,",
            "datagram-echo" => "UDP, us there and back,",
            _ => "ping, us,",
        };
        format!("{what} {} bytes", self.bytes)
    }

    fn command(&self, count: u32) -> String {
        format!("suite --network {SERVER} {} {} {count}", self.kind, self.bytes)
    }
}

/// What the table has.
const TABLE: [Traffic; 6] = [
    Traffic::new("stream", 65536, 4000),
    Traffic::new("stream", 1448, 40000),
    Traffic::new("stream-echo", 1, 3000),
    Traffic::new("datagram-echo", 64, 3000),
    Traffic::new("ping", 64, 3000),
    Traffic::new("ping", 1400, 3000),
];

/// The sizes of the plot.
fn sizes() -> impl Iterator<Item = u32> {
    (6..=15).map(|power| 1 << power)
}

/// Two booted guests.
struct Pair {
    way: Way,
    card: &'static Card,
    client: Peer,
    /// What is there for as long as this one runs.
    _server: Peer,
    _switch: Option<Switch>,
}

/// A switch in a process of its own. It ends when this is dropped.
struct Switch(Child);

impl Switch {
    fn start(socket: &Path) -> Result<Switch, BenchError> {
        let failed = |error| BenchError::Start("ring3 switch", error);
        let mut address = OsString::from("unix:");
        address.push(socket);
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        command.args(["switch", "--listen"]).arg(address).args(["--broadcasts", "0"]);
        let switch = Switch(command.spawn().map_err(failed)?);
        let until = Instant::now() + START;
        while !socket.exists() {
            if Instant::now() > until {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(switch)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Pair {
    /// Boots both; `socket` is where they meet.
    fn boot(
        settings: &Settings,
        way: Way,
        card: &'static Card,
        socket: &Path,
    ) -> Result<Pair, BenchError> {
        let switch = if way.by_switch { Some(Switch::start(socket)?) } else { None };
        let kernel = settings.guest("linux-686/vmlinuz")?;
        let initrd = settings.guest("suite.cpio.gz")?;
        let boot = |number: u32| {
            let is_server = if number == 1 && !way.by_switch { "on" } else { "off" };
            let mut netdev = OsString::from(format!(
                "stream,id=network,server={is_server},addr.type=unix,addr.path="
            ));
            netdev.push(socket);
            let device = format!("{},netdev=network,mac=52:54:00:12:34:0{number}", card.device);
            let options = ["-netdev".into(), netdev, "-device".into(), device.into()];
            let mut peer = way.kind.boot_kernel(&kernel, &initrd, &options)?;
            peer.wait_for(PROMPT)?;
            let modules = card.modules;
            peer.work(&format!(
                "dmesg -n 1; modprobe -a {modules}; ip addr add 10.0.0.{number}/24 dev eth0; ip link set eth0 up"
            ))?;
            Ok::<_, BenchError>(peer)
        };
        let mut server = boot(1)?;
        server.work("suite --network serve > /tmp/served &")?;
        let mut client = boot(2)?;
        // Both find each other, and drivers have settled.
        client.work(&format!("ping -c 3 {SERVER}"))?;
        Ok(Pair { way, card, client, _server: server, _switch: switch })
    }

    /// Seconds that one packet or record of `traffic` takes.
    fn measure(&mut self, traffic: &Traffic) -> Result<f64, BenchError> {
        let count = (traffic.count * self.card.share / SHARES).max(1);
        let mut of = |count| {
            let (time, text) = self.client.wait_for_work(&traffic.command(count))?;
            if text.contains(&format!("network {count} ")) {
                Ok(time)
            } else {
                Err(BenchError::NotRun(traffic.name(), self.way.kind.name(), text))
            }
        };
        let none = of(0)?;
        Ok((of(count)? - none).max(0.0) / f64::from(count))
    }
}

/// Measures by turns, and shows the medians.
pub(super) fn measure(arguments: &NetArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    // Dropped last: what runs has its sockets there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let installed = Kind::installed();
    let ways: Vec<_> = WAYS.into_iter().filter(|way| installed.contains(&way.kind)).collect();
    show(
        "Two guests, joined by a socket or a switch; medians. What is said of others is relative to the first column.",
    )?;
    let names: Vec<_> = ways.iter().map(|way| format!("{:>22}", way.name())).collect();
    show(&format!("{:<36}{:<8}{}", "", "", names.concat()))?;
    let mut charts =
        [Chart { title: "TCP", curves: Vec::new() }, Chart { title: "ping", curves: Vec::new() }];
    for card in &CARDS {
        let mut pairs = Vec::new();
        for (number, way) in ways.iter().enumerate() {
            let socket = directory.path().join(format!("{}{number}", card.name));
            pairs.push(Pair::boot(settings, *way, card, &socket)?);
        }
        for traffic in &TABLE {
            let times = measure_all(settings.runs, &mut pairs, traffic)?;
            show(&line(traffic, card.name, &times))?;
        }
        if arguments.plot.is_some() {
            for (chart, kind) in charts.iter_mut().zip(["stream", "ping"]) {
                let mut curves: Vec<_> = pairs
                    .iter()
                    .map(|pair| (format!("{}, {}", pair.way.name(), card.name), Vec::new()))
                    .collect();
                for bytes in sizes() {
                    let count = if kind == "stream" { 4000 } else { 500 };
                    let traffic = Traffic::new(kind, bytes, count);
                    let times = measure_all(settings.runs, &mut pairs, &traffic)?;
                    for ((_, points), time) in curves.iter_mut().zip(times) {
                        points.push((f64::from(bytes), value(&traffic, time)));
                    }
                }
                chart.curves.append(&mut curves);
            }
        }
    }
    let Some(path) = &arguments.plot else { return Ok(()) };
    chart::write(path, "bytes", "MB/s, or microseconds", &charts)
        .map_err(|error| BenchError::Plot(path.clone(), error))
}

/// The medians of all pairs.
fn measure_all(runs: u32, pairs: &mut [Pair], traffic: &Traffic) -> Result<Vec<f64>, BenchError> {
    let mut times = vec![Vec::new(); pairs.len()];
    for _ in 0..runs {
        for (pair, times) in pairs.iter_mut().zip(&mut times) {
            times.push(pair.measure(traffic)?);
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// MB/s of what goes one way, and the microseconds of what comes back.
fn value(traffic: &Traffic, time: f64) -> f64 {
    if traffic.is_one_way() { f64::from(traffic.bytes) / time / 1e6 } else { time * 1e6 }
}

fn line(traffic: &Traffic, card: &str, times: &[f64]) -> String {
    let cell = |(index, time): (usize, &f64)| {
        let value = value(traffic, *time);
        match index {
            0 => format!("{value:>22.1}"),
            _ => format!("{value:>13.1}{:>8.2}x", time / times[0]),
        }
    };
    let cells: Vec<_> = times.iter().enumerate().map(cell).collect();
    format!("{:<36}{card:<8}{}", traffic.name(), cells.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_rates_or_times() {
        let text = line(&TABLE[0], "virtio", &[65.536e-6, 655.36e-6]);
        assert!(text.ends_with("1000.0        100.0   10.00x"), "{text}");
        let text = line(&TABLE[2], "virtio", &[50e-6, 100e-6]);
        assert!(text.ends_with("50.0        100.0    2.00x"), "{text}");
        assert_eq!(TABLE[2].command(7), "suite --network 10.0.0.1 stream-echo 1 7");
    }
}
