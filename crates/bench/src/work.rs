//! Measures programs in a guest, and the same programs on the host.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::peer::{Kind, PROMPT, Peer};
use super::statistics::median;
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
    let kernel = settings.guest("linux-686/vmlinuz")?;
    let initrd = settings.guest("initramfs.cpio.gz")?;
    let host = Host::new(&settings.guest("busybox")?)?;
    let mut workers = Vec::new();
    for kind in Kind::installed() {
        let peer = kind.boot_kernel(&kernel, &initrd, &[])?;
        workers.push(Worker::new(kind, peer, &host, "/tmp")?);
    }
    // This is dropped after the systems, which have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let host_of_uml;
    if arguments.all {
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
    show("Processor time in milliseconds, and its ratio to the same work's time on the host:")?;
    let names: Vec<_> =
        workers.iter().map(|worker| format!("{:>20}", worker.kind.name())).collect();
    show(&format!("{:<8}{:>9}{}", "", "host", names.concat()))?;
    let mut products = vec![1.0; workers.len()];
    for (name, command) in WORK {
        let (native, times) = measure_one(settings.runs, &host, &mut workers, command)?;
        let mut line = vec![format!("{name:<8}{:9.2}", native * 1e3)];
        for (time, product) in times.iter().zip(&mut products) {
            *product *= time.ratio;
            line.push(format!("{:12.1} {:6.1}x", time.seconds * 1e3, time.ratio));
        }
        show(&line.concat())?;
    }
    let root = 1.0 / f64::from(WORK.len() as u32);
    let means: Vec<_> = products.iter().map(|p| format!("{:19.1}x", p.powf(root))).collect();
    show(&format!("{:<17}{}", "geometric mean", means.concat()))
}

/// The cost of a command in a system.
struct Measured {
    seconds: f64,
    /// The cost as a multiple of the host's own.
    ratio: f64,
}

/// Returns the medians of one command: on the host, and in each system.
fn measure_one(
    runs: u32,
    host: &Host,
    workers: &mut [Worker<'_>],
    command: &str,
) -> Result<(f64, Vec<Measured>), BenchError> {
    let mut native = Vec::new();
    let mut times = vec![(Vec::new(), Vec::new()); workers.len()];
    for _ in 0..runs {
        let on_host = host.time_of(command)?;
        native.push(on_host);
        for (Worker { peer, native, .. }, (own, hosts)) in workers.iter_mut().zip(&mut times) {
            let time = peer.work(&repeated(command, REPEATED_IN_GUEST))?.0;
            let nothing = peer.work(&repeated(command, 0))?.0;
            own.push((time - nothing) / f64::from(REPEATED_IN_GUEST));
            let is_same = std::ptr::eq(*native, host);
            hosts.push(if is_same { on_host } else { native.time_of(command)? });
        }
    }
    let measured = times.into_iter().map(|(own, hosts)| {
        let seconds = median(own);
        Measured { seconds, ratio: seconds / median(hosts) }
    });
    Ok((median(native), measured.collect()))
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
fn seconds(printed: &str) -> Option<f64> {
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
