//! Measures how long Tern needs to compile itself (`make image`), and what the same compiler needs on the
//! host.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::data::Log;
use super::guest::{Bus, Guest};
use super::peer::{Kind, Peer};
use super::statistics::{Figure, Series, cell};
use super::{BenchError, RecompileArguments, show, work};

/// What is executed in Tern's sources. The compiler's warnings are not shown.
const REMOVE: &str = "rm -rf build";
const IMAGE: &str = "make -s image 2>/dev/null";
const CHECKSUMS: &str = "cksum build/tern*";
/// Where Tern's sources are on the disk (`tests/guests/tern-source`), and what makes them the current
/// directory.
const SOURCES: &str = "/src";
const ENTER: &str = "mount /dev/hda /usr && cd /usr/src";

/// Where Debian keeps programs of the administrator, which are not in the `PATH` of all users.
const SYSTEM_PROGRAMS: &str = "/usr/sbin:/sbin";

/// The columns of a name, of a time and of a ratio, the last two without their spreads.
const NAME: usize = 16;
const TIME: usize = 9;
const RATIO: usize = 9;
/// The quantity in the file of raw data, and the work.
const SECONDS: &str = "processor_seconds";
const WORK: &str = "make image";

/// A booted Tern whose shell is in the sources.
struct Worker {
    kind: Kind,
    peer: Peer,
    times: Series,
}

/// Measures the systems in turns, and shows the medians.
pub(super) fn measure(arguments: &RecompileArguments) -> Result<(), BenchError> {
    let settings = &arguments.settings;
    let sources = settings.guest("tern-source.img")?;
    // This is dropped after the systems, which have their files there.
    let directory = tempfile::tempdir().map_err(BenchError::Disk)?;
    let host = Host::new(&sources, &settings.guest("tern-tcc")?, directory.path())?;
    let mut kinds = Kind::installed();
    kinds.retain(|kind| *kind != Kind::Interpreter || arguments.all);
    if arguments.deterministic {
        kinds.insert(1, Kind::Deterministic);
    }
    let mut workers = Vec::new();
    for kind in kinds {
        let disk = directory.path().join(format!("{}.img", workers.len()));
        fs::copy(&sources, &disk).map_err(BenchError::Disk)?;
        let mut peer = Guest::Tern.boot(kind, settings, Bus::Ide, &disk, &[], directory.path())?;
        peer.work(ENTER)?;
        workers.push(Worker { kind, peer, times: Series::default() });
    }
    let mut native = Series::default();
    for turn in 0..settings.runs {
        let (time, wanted) = host.make_image()?;
        native.add(turn, time);
        for worker in &mut workers {
            worker.peer.work(REMOVE)?;
            let (time, shown) = worker.peer.work(&format!("{IMAGE} && {CHECKSUMS}"))?;
            let found = checksums(&shown);
            if found != wanted {
                let name = worker.kind.name();
                return Err(BenchError::NotRun(WORK.into(), name, last_line(&shown).into()));
            }
            worker.times.add(turn, time);
        }
    }
    show(
        "Processor time of `make image`, by which Tern compiles itself, in seconds, and its ratio to the",
    )?;
    show(
        "time of the same compiler on the host (medians; ± half the distance between the quartiles):",
    )?;
    let mut log = Log::begin(settings)?;
    log.add_series("host", WORK, SECONDS, &native)?;
    show(&line("host", &native, None))?;
    for Worker { kind, times, .. } in &workers {
        log.add_series(kind.name(), WORK, SECONDS, times)?;
        show(&line(kind.name(), times, times.ratio(&native)))?;
    }
    show(PAPER)
}

/// The benchmark `blended_compileminix` of van der Kouwe, "Porting the QEMU virtualization software to
/// MINIX 3" (2009), table 7: MINIX 3 compiles itself.
const PAPER: &str =
    "For comparison: MINIX 3 compiled itself in 7.8 s on a host and in 75.7 s in QEMU 0.8.2 on
Linux, which is 9.6 times as long (van der Kouwe 2009, table 7, blended_compileminix).";

fn line(name: &str, times: &Series, ratio: Option<Figure>) -> String {
    let ratio = ratio.map(|ratio| cell(Some(ratio), RATIO, 1, "x")).unwrap_or_default();
    let text = format!("{name:<NAME$}{}{ratio}", cell(times.figure(), TIME, 2, ""));
    text.trim_end().into()
}

/// Returns the checksums, and the numbers of bytes, that `cksum` has printed.
fn checksums(shown: &str) -> Vec<[u32; 2]> {
    let pair = |line: &str| {
        let mut words = line.split_whitespace();
        Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
    };
    shown.lines().filter_map(pair).collect()
}

fn last_line(shown: &str) -> &str {
    shown.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("")
}

/// The sources and the compiler on the host.
struct Host {
    sources: PathBuf,
    compiler: PathBuf,
}

impl Host {
    /// Copies the sources from the disk to `directory`.
    fn new(disk: &Path, compiler: &Path, directory: &Path) -> Result<Host, BenchError> {
        let path = env::var("PATH").unwrap_or_default();
        let output = Command::new("debugfs")
            .env("PATH", format!("{path}:{SYSTEM_PROGRAMS}"))
            .args(["-R", &format!("rdump {SOURCES} {}", directory.display())])
            .arg(disk)
            .output()
            .map_err(|error| native(&error))?;
        let sources = directory.join("src");
        if !sources.join("Makefile").exists() {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason = format!("{} has no sources of Tern: {}", disk.display(), last_line(&said));
            return Err(BenchError::Native(reason));
        }
        let compiler = compiler.canonicalize().map_err(|error| native(&error))?;
        Ok(Host { sources, compiler })
    }

    /// Compiles Tern, and returns the processor time in seconds and the checksums.
    fn make_image(&self) -> Result<(f64, Vec<[u32; 2]>), BenchError> {
        // The time of the shell's children is taken before those that compute checksums.
        let make = format!("{REMOVE}; {IMAGE} CC=\"$CC\" && times && {CHECKSUMS}");
        let output = Command::new("sh")
            .args(["-c", &make])
            .current_dir(&self.sources)
            .env("CC", &self.compiler)
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .output()
            .map_err(|error| native(&error))?;
        let shown = String::from_utf8_lossy(&output.stdout);
        // Of the shell, and of its children.
        let times: Vec<_> = shown.lines().take(2).collect();
        match (work::seconds(&times.join(" ")), checksums(&shown)) {
            (Some(time), sums) if sums.len() == 2 => Ok((time, sums)),
            _ => Err(BenchError::Native(format!("`{make}` failed: {}", last_line(&shown)))),
        }
    }
}

fn native(error: &io::Error) -> BenchError {
    BenchError::Native(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_found_among_other_lines() {
        let shown = "tcc -c x\r\n123 45 build/tern\r\n4000000000 7 build/tern.img\r\n";
        assert_eq!(checksums(shown), [[123, 45], [4_000_000_000, 7]]);
        assert!(checksums("make: *** [Makefile:1: x] Error 1").is_empty());
        assert_eq!(last_line("a\r\nb\r\n\r\n"), "b");
    }
}
