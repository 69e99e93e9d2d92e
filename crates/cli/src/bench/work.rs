//! How long programs take in a guest, and the same programs on the host.

use std::path::Path;
use std::process::Command;

use super::peer::{Kind, PROMPT, Peer};
use super::{BenchError, Settings, median, show};

/// Makes what the others work on: 10,000 lines of text.
const TEXT: &str = r#"i=1; while [ $i -le 10000 ]; do echo "line $i key$((i*7919%1000)) the quick brown fox $((i*i%977))"; i=$((i+1)); done > $D/text"#;

/// What is measured.
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

/// How often the host does it for one figure, for it is too quick for the host's clock.
const REPEATED: u32 = 20;
/// How often a guest does it; what typing the command takes is subtracted.
const REPEATED_IN_GUEST: u32 = 4;

/// Works by turns, and shows the medians.
pub(super) fn measure(settings: &Settings) -> Result<(), BenchError> {
    let kernel = settings.guest("linux-686/vmlinuz")?;
    let initrd = settings.guest("initramfs.cpio.gz")?;
    let host = Host::new(&settings.guest("busybox")?)?;
    let kinds = Kind::installed();
    let mut peers = Vec::new();
    for kind in &kinds {
        let mut peer = kind.boot_kernel(&kernel, &initrd, &[])?;
        peer.wait_for(PROMPT)?;
        peer.work("D=/tmp")?;
        peer.work(TEXT)?;
        peers.push(peer);
    }
    show("Milliseconds of processor's time, and how many times the host's own:")?;
    let names: Vec<_> = kinds.iter().map(|kind| format!("{:>20}", kind.name())).collect();
    show(&format!("{:<8}{:>9}{}", "", "host", names.concat()))?;
    let mut products = vec![1.0; kinds.len()];
    for (name, command) in WORK {
        let (native, times) = measure_one(settings.runs, &host, &mut peers, command)?;
        let mut line = vec![format!("{name:<8}{:9.2}", native * 1e3)];
        for (time, product) in times.iter().zip(&mut products) {
            *product *= time / native;
            line.push(format!("{:12.1} {:6.1}x", time * 1e3, time / native));
        }
        show(&line.concat())?;
    }
    let root = 1.0 / f64::from(WORK.len() as u32);
    let means: Vec<_> = products.iter().map(|p| format!("{:19.1}x", p.powf(root))).collect();
    show(&format!("{:<17}{}", "geometric mean", means.concat()))
}

/// The medians of one command: on the host, and in each peer.
fn measure_one(
    runs: u32,
    host: &Host,
    peers: &mut [Peer],
    command: &str,
) -> Result<(f64, Vec<f64>), BenchError> {
    let mut native = Vec::new();
    let mut times = vec![Vec::new(); peers.len()];
    for _ in 0..runs {
        native.push(host.time_of(command)?);
        for (peer, times) in peers.iter_mut().zip(&mut times) {
            let time = peer.work(&repeated(command, REPEATED_IN_GUEST))?.0;
            let nothing = peer.work(&repeated(command, 0))?.0;
            times.push((time - nothing) / f64::from(REPEATED_IN_GUEST));
        }
    }
    Ok((median(native), times.into_iter().map(median).collect()))
}

/// The guest's programs on the host, in a directory of their own.
struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    fn new(busybox: &Path) -> Result<Host, BenchError> {
        let native = |error: std::io::Error| BenchError::Native(error.to_string());
        let busybox = busybox.canonicalize().map_err(native)?;
        let directory = tempfile::tempdir().map_err(native)?;
        let installed = Command::new(&busybox)
            .args(["--install", "-s"])
            .arg(directory.path())
            .status()
            .map_err(native)?;
        if !installed.success() {
            return Err(BenchError::Native(format!("busybox --install: {installed}")));
        }
        let host = Host { directory };
        host.shell(TEXT)?;
        Ok(host)
    }

    /// What the shell prints that executes `script`.
    fn shell(&self, script: &str) -> Result<String, BenchError> {
        let directory = self.directory.path();
        let output = Command::new(directory.join("sh"))
            .args(["-c", script])
            .env("PATH", directory)
            .env("D", directory)
            .output()
            .map_err(|error| BenchError::Native(error.to_string()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(BenchError::Native(message));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The time that `command` takes the host's processors, in seconds.
    fn time_of(&self, command: &str) -> Result<f64, BenchError> {
        let printed = self.shell(&format!("{}; times", repeated(command, REPEATED)))?;
        let sum = seconds(&printed)
            .ok_or_else(|| BenchError::Native(format!("`times` printed {printed:?}")))?;
        Ok(sum / f64::from(REPEATED))
    }
}

/// The command of a shell that does `command` so many times.
fn repeated(command: &str, times: u32) -> String {
    format!("k=0; while [ $k -lt {times} ]; do k=$((k+1)); {command}; done")
}

/// The sum of what a shell's `times` prints (POSIX): user and system time, its own and its children's, such
/// as `0m1.250s`.
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
