//! Measures what it costs to record a run, to keep its last seconds, to count its instructions, or to know what the
//! host's time goes to.
//!
//! The same work is done in machines that differ in nothing else. A checkpoint for the last two seconds is taken 15 times
//! as often as for the last 30, so its cost can be seen in work that takes seconds.
//!
//! What the time goes to is always known, so there is no machine without that. Its cost is too small to be seen beside
//! the differences between turns, so it is counted: the looks at the clock, and the pieces of work of which one in many
//! is timed, multiplied by what each takes on this host.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use ring3_host::samples::Samples;

use super::data::Log;
use super::monitor::{Monitor, number};
use super::peer::{Kind, MEMORY, PROMPT, Peer};
use super::statistics::{SPREAD, Series, cell};
use super::{BenchError, show};
use crate::arguments::RecordArguments;

/// A way to run a machine: its name, and its option, in which FILE stands for the name of a file.
const WAYS: [(&str, Option<&str>); 6] = [
    ("alone", None),
    ("last 2 s", Some("--record-last=2s,file=FILE")),
    ("last 30 s", Some("--record-last=30s,file=FILE")),
    ("all", Some("--record=FILE")),
    ("tools", Some("--guest-tools=histogram")),
    ("counted", Some("--histogram=FILE")),
];

/// The work: its name, and a command. Each takes some seconds.
const WORK: [(&str, &str); 4] = [
    ("compute", "awk 'BEGIN { for (i = 0; i < 12000000; i++) s += i * i % 7; print s }'"),
    (
        "shell",
        "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); case $i in *7) x=a;; *) y=$i;; esac; done",
    ),
    ("processes", "j=0; while [ $j -lt 1500 ]; do j=$((j+1)); cat < /dev/null; done"),
    (
        "disk",
        "j=0; while [ $j -lt 40 ]; do j=$((j+1)); echo 3 > /proc/sys/vm/drop_caches; \
         dd if=/dev/vda of=/dev/null bs=64k 2> /dev/null; done",
    ),
];

/// The size of the disk in bytes.
const DISK: usize = 64 << 20;

/// The columns of a name, and of a figure without its spread.
const NAME: usize = 12;
const WIDE: usize = 9;

/// What it costs to know what the host's time goes to, in seconds.
struct Costs {
    /// For a piece of work that is timed.
    timed: f64,
    /// For one of a kind of which one in many is timed.
    sampled: f64,
}

impl Costs {
    /// Measures them on this host.
    fn measure() -> Costs {
        const PIECES: u32 = 1_000_000;
        let each = |piece: &mut dyn FnMut()| {
            let began = Instant::now();
            (0..PIECES).for_each(|_| piece());
            began.elapsed().as_secs_f64() / f64::from(PIECES)
        };
        let mut samples = Samples::default();
        Costs {
            timed: each(&mut || {
                black_box(Instant::now().elapsed());
            }),
            sampled: each(&mut || {
                black_box(samples.begin().map(Samples::nanos_of_all));
            }),
        }
    }

    /// Returns the cost in a machine since its start.
    fn of(&self, monitor: &mut Monitor) -> Result<f64, BenchError> {
        let counters = monitor.counters()?;
        let count = |name: &str| number(counters.get(name).copied().unwrap_or_default());
        let sampled = count("device-calls") + count("engine-pieces-of-work-between");
        Ok(count("timed-pieces") * self.timed + sampled * self.sampled)
    }
}

/// Measures the machines in turns, and shows the medians.
pub(super) fn measure(arguments: &RecordArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    // This is dropped after the machines, which have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let disk = directory.path().join("disk");
    let noise = (0..DISK as u32 / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes());
    fs::write(&disk, noise.collect::<Vec<u8>>()).map_err(BenchError::Disk)?;
    let kernel = settings.guest("linux-686/vmlinuz")?;
    let initrd = settings.guest("suite.cpio.gz")?;
    let socket = directory.path().join("socket");
    let monitored = format!("--qmp=unix:{}", socket.display());
    let costs = Costs::measure();
    let mut peers = Vec::new();
    for (number, (_, option)) in WAYS.into_iter().enumerate() {
        let file = directory.path().join(format!("file{number}.csv"));
        let option = option.unwrap_or(&monitored).replace("FILE", &file.to_string_lossy());
        let mut peer = boot(&kernel, &initrd, &disk, &option)?;
        peer.wait_for(PROMPT)?;
        peer.work("dmesg -n 1; modprobe virtio_pci; modprobe virtio_blk")?;
        peers.push(peer);
    }
    show(
        "Processor time in seconds, and as a multiple of it what the same work takes in machines whose last",
    )?;
    show(
        "seconds are kept, whose run is recorded, whose guest may count instructions (tools) but does not,",
    )?;
    show(
        "and whose instructions are counted (medians; ± half the distance between the quartiles). The last",
    )?;
    show("column shows what it takes the first machine to know where its time goes, by counts.")?;
    let names = WAYS.map(|(name, _)| format!("{name:>WIDE$}{:SPREAD$}", ""));
    show(&format!("{:<NAME$}{}{:>WIDE$}", "", names.concat(), "times"))?;
    let mut monitor = Monitor::connect(&socket)?;
    let mut log = Log::begin(settings)?;
    for (name, command) in WORK {
        let mut times: Vec<Series> = peers.iter().map(|_| Series::default()).collect();
        let mut looks = Series::default();
        for turn in 0..settings.runs {
            let before = costs.of(&mut monitor)?;
            for (peer, times) in peers.iter_mut().zip(&mut times) {
                times.add(turn, peer.work(command)?.0);
            }
            looks.add(turn, costs.of(&mut monitor)? - before);
        }
        let alone = times[0].clone();
        let mut line = format!("{name:<NAME$}{}", cell(alone.figure(), WIDE, 2, ""));
        for ((way, _), times) in WAYS.iter().zip(&times) {
            log.add_series(way, name, "processor_seconds", times)?;
        }
        for times in &times[1..] {
            line.push_str(&cell(times.ratio(&alone), WIDE, 3, "x"));
        }
        let share = looks.with(&alone, |looks, alone| looks / alone * 100.0);
        log.add_series(WAYS[0].0, name, "times_per_cent", &share)?;
        line.push_str(&cell(share.figure(), WIDE, 3, " %"));
        show(line.trim_end())?;
    }
    Ok(())
}

/// Boots a machine with a disk, and one more option.
fn boot(kernel: &Path, initrd: &Path, disk: &Path, option: &str) -> Result<Peer, BenchError> {
    let program = env::current_exe().map_err(|error| BenchError::Start("ring3", error))?;
    let mut command = Command::new(program);
    command.args(["run", "--memory", MEMORY, "--vga", "none", "--append", "console=ttyS0"]);
    let mut drive = OsString::from("if=virtio,format=raw,snapshot=on,file=");
    drive.push(disk);
    command.arg("--drive").arg(drive).arg(option);
    command.arg("--kernel").arg(kernel).arg("--initrd").arg(initrd);
    Peer::start(Kind::Translator, command)
}
