//! Measures programs in a guest, and the same programs on the host.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::data::Log;
use super::guest::Linux;
use super::peer::{Kind, PROMPT, Peer};
use super::statistics::{Figure, SPREAD, Series, cell, geometric_mean};
use super::{BenchError, WorkArguments, bochs, show, uml, v86};

/// The command that makes the input of the others: 10,000 lines of text.
const TEXT: &str = r#"i=1; while [ $i -le 10000 ]; do echo "line $i key$((i*7919%1000)) the quick brown fox $((i*i%977))"; i=$((i+1)); done > $D/text"#;

/// The commands that are measured, and their names.
const WORK: [(&str, &str); 6] = [
    (
        "shell",
        "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); case $i in *7) x=a;; *) y=$i;; esac; done",
    ),
    ("sort", "sort -r -k2 $D/text > /dev/null"),
    (
        "awk",
        "awk '{n[$3]++; l+=length($2)} END{for(k in n) print k, n[k]; print l}' $D/text > /dev/null",
    ),
    ("gzip", "gzip -c $D/text > /dev/null"),
    (
        "text",
        "tr a-z A-Z < $D/text | sed 's/QUICK/slow/; s/KEY1*/&&/g' | grep -c '[05] .*FOX [1-4]' > /dev/null",
    ),
    ("spawn", "j=0; while [ $j -lt 25 ]; do j=$((j+1)); cat < /dev/null; done"),
];

/// The size in bytes of the hard disk that Bochs needs.
const DISK_OF_BOCHS: usize = 1 << 20;

/// How often the host repeats a command for one figure, since a single execution is too short for the host's
/// clock.
const REPEATED: u32 = 20;
/// How often a guest repeats a command. The cost of typing it is subtracted.
const REPEATED_IN_GUEST: u32 = 4;

/// A system that executes the commands, and the host's own programs of the same build.
struct Worker<'a> {
    kind: Kind,
    peer: Peer,
    native: &'a Host,
}

impl<'a> Worker<'a> {
    fn new(kind: Kind, mut peer: Peer, native: &'a Host, room: &str) -> Result<Self, BenchError> {
        peer.wait_for(PROMPT)?;
        peer.work(&format!("D={room}"))?;
        peer.work(TEXT)?;
        Ok(Worker { kind, peer, native })
    }
}

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &WorkArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    let [kernel, initrd, busybox] = arguments.guest.shell(settings)?;
    let host = Host::new(&busybox)?;
    let processor = arguments.guest.processor();
    let mut workers = Vec::new();
    for kind in Kind::installed_with(processor) {
        let peer = kind.boot_kernel_with(processor, "console=ttyS0", &kernel, &initrd, &[])?;
        workers.push(Worker::new(kind, peer, &host, "/tmp")?);
    }
    // This is dropped after the systems, which have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let host_of_uml;
    // The others have 32-bit systems.
    if arguments.all && arguments.guest == Linux::Bits32 {
        for (kind, missing) in [(Kind::V86, v86::missing()), (Kind::Uml, uml::missing())] {
            if let Some(how) = missing {
                return Err(BenchError::NotInstalled(kind.name(), how));
            }
        }
        let disk = directory.path().join("disk");
        fs::write(&disk, vec![0; DISK_OF_BOCHS]).map_err(BenchError::Disk)?;
        let bochs = bochs::boot(&settings.guest("grub.iso")?, &disk, directory.path())?;
        workers.push(Worker::new(Kind::Bochs, bochs, &host, "/tmp")?);
        workers.push(Worker::new(Kind::V86, v86::boot(&kernel, &initrd)?, &host, "/tmp")?);
        host_of_uml = Host::new(Path::new(uml::BUSYBOX))?;
        match Worker::new(Kind::Uml, uml::boot(host_of_uml.directory())?, &host_of_uml, "/mnt") {
            Ok(worker) => workers.push(worker),
            // Older UML kernels end at once if the host's processor has more registers than they know.
            Err(BenchError::Silent(..)) => {
                show("User Mode Linux does not start a shell on this host, so it is left out.")?;
            }
            Err(error) => return Err(error),
        }
    }
    show(
        "Processor time in milliseconds, and its ratio to the same work's time on the host (medians;",
    )?;
    show("± half the distance between the quartiles):")?;
    let wide = TIME + RATIO + 2 * SPREAD;
    let names: Vec<_> =
        workers.iter().map(|worker| format!("{:>wide$}", worker.kind.name())).collect();
    show(&format!("{:<NAME$}{:>TIME$}{:SPREAD$}{}", "", "host", "", names.concat()))?;
    let mut log = Log::begin(settings)?;
    let mut ratios = vec![Vec::new(); workers.len()];
    for (name, command) in WORK {
        let measured = measure_one(settings.runs, &host, &mut workers, command)?;
        let milliseconds =
            |time: &Series| cell(time.figure().map(|time| time.times(1e3)), TIME, 2, "");
        log.add_series("host", name, SECONDS, &measured.host)?;
        let mut line = vec![format!("{name:<NAME$}{}", milliseconds(&measured.host))];
        for ((worker, own), ratios) in workers.iter().zip(&measured.workers).zip(&mut ratios) {
            log.add_series(worker.kind.name(), name, SECONDS, &own.time)?;
            let ratio = own.time.ratio(own.host.as_ref().unwrap_or(&measured.host));
            ratios.extend(ratio.map(|ratio| ratio.median));
            line.extend([milliseconds(&own.time), cell(ratio, RATIO, 1, "x")]);
        }
        show(line.concat().trim_end())?;
    }
    let mean = |ratios: Vec<f64>| {
        let mean = geometric_mean(ratios.into_iter()).map(Figure::single);
        format!("{:1$}{2}", "", TIME + SPREAD, cell(mean, RATIO, 1, "x"))
    };
    let means: Vec<_> = ratios.into_iter().map(mean).collect();
    let title = NAME + TIME + SPREAD;
    show(format!("{:<title$}{}", "geometric mean", means.concat()).trim_end())
}

/// The columns of a name, of a time and of a ratio, the last two without their spreads.
const NAME: usize = 8;
const TIME: usize = 9;
const RATIO: usize = 8;
/// The quantity in the file of raw data.
const SECONDS: &str = "processor_seconds";

/// The processor times of a command, in seconds.
struct Measured {
    host: Series,
    workers: Vec<OnWorker>,
}

/// The processor time of a command in one system.
#[derive(Default)]
struct OnWorker {
    time: Series,
    /// That of the system's own programs on the host, if they are others.
    host: Option<Series>,
}

/// Measures one command in turns: on the host, and in each system.
fn measure_one(
    runs: u32,
    host: &Host,
    workers: &mut [Worker<'_>],
    command: &str,
) -> Result<Measured, BenchError> {
    let mut native = Series::default();
    let mut all: Vec<OnWorker> = workers.iter().map(|_| OnWorker::default()).collect();
    for turn in 0..runs {
        native.add(turn, host.time_of(command)?);
        for (worker, own) in workers.iter_mut().zip(&mut all) {
            let time = worker.peer.work(&repeated(command, REPEATED_IN_GUEST))?.0;
            let nothing = worker.peer.work(&repeated(command, 0))?.0;
            own.time.add(turn, (time - nothing) / f64::from(REPEATED_IN_GUEST));
            if !std::ptr::eq(worker.native, host) {
                let time = worker.native.time_of(command)?;
                own.host.get_or_insert_default().add(turn, time);
            }
        }
    }
    Ok(Measured { host: native, workers: all })
}

/// The guest's programs, installed on the host in a directory of their own.
struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    fn new(busybox: &Path) -> Result<Host, BenchError> {
        let native = |error: std::io::Error| BenchError::Native(error.to_string());
        let busybox = busybox.canonicalize().map_err(native)?;
        let directory = tempfile::tempdir().map_err(native)?;
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).map_err(native)?;
        let installed =
            Command::new(&busybox).args(["--install", "-s"]).arg(bin).status().map_err(native)?;
        if !installed.success() {
            return Err(BenchError::Native(format!("busybox --install: {installed}")));
        }
        let host = Host { directory };
        host.shell(TEXT)?;
        Ok(host)
    }

    /// Returns the directory, whose folder `bin` holds the programs.
    fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the output of the shell when it executes `script`.
    fn shell(&self, script: &str) -> Result<String, BenchError> {
        let bin = self.directory().join("bin");
        let output = Command::new(bin.join("sh"))
            .args(["-c", script])
            .env("PATH", bin)
            .env("D", self.directory())
            .output()
            .map_err(|error| BenchError::Native(error.to_string()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(BenchError::Native(message));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the processor time of `command` on the host, in seconds.
    fn time_of(&self, command: &str) -> Result<f64, BenchError> {
        let printed = self.shell(&format!("{}; times", repeated(command, REPEATED)))?;
        let sum = seconds(&printed)
            .ok_or_else(|| BenchError::Native(format!("`times` printed {printed:?}")))?;
        Ok(sum / f64::from(REPEATED))
    }
}

/// Returns the shell command that executes `command` `times` times.
fn repeated(command: &str, times: u32) -> String {
    format!("k=0; while [ $k -lt {times} ]; do k=$((k+1)); {command}; done")
}

/// Returns the sum of the output of a shell's `times` (POSIX): user and system time of the shell and its
/// children, such as `0m1.250s`.
pub(super) fn seconds(printed: &str) -> Option<f64> {
    let mut sum = 0.0;
    for word in printed.split_whitespace() {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        sum += minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?;
    }
    Some(sum).filter(|sum| *sum > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_times() {
        let sum = seconds("0m0.250000s 1m0.500000s\n0m0.000000s 0m0.250000s\n").unwrap();
        assert!((sum - 61.0).abs() < 1e-9);
        assert_eq!(seconds("sh: times: not found"), None);
        assert_eq!(seconds(""), None);
    }
}
