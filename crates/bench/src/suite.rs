//! The benchmark suite (`guest/suite`): the list of its benchmarks, their execution and their output.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::BenchError;
use super::guest::{Bus, Guest};

/// The resource that a benchmark needs besides memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A disk with the contents of [`disk_image`].
    Disk,
    /// A console on the screen.
    Screen,
    /// The server outside (`ring3 bench server`).
    Server,
}

/// One benchmark, as the suite lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Benchmark {
    pub(super) name: String,
    pub(super) group: String,
    /// How often the benchmark does its work on a PC.
    pub(super) count: u32,
    pub(super) needs: Needs,
}

/// The results that a run has printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outcome {
    pub(super) checksum: u32,
    /// Processor time in seconds, as counted by the system in which the benchmark ran.
    pub(super) time: f64,
    /// The frequency in MHz of the time-stamp counter by the clock of that system, while the benchmark ran.
    pub(super) frequency: f64,
}

/// The suite on the host itself.
#[derive(Debug)]
pub(super) struct Native {
    program: PathBuf,
    disk: PathBuf,
}

impl Native {
    /// Makes the suite from its program and a file that serves as its disk.
    pub(super) fn new(program: &Path, disk: PathBuf) -> Result<Native, BenchError> {
        let native = |error: std::io::Error| BenchError::Native(error.to_string());
        Ok(Native { program: program.canonicalize().map_err(native)?, disk })
    }

    /// Returns all benchmarks in their order.
    pub(super) fn list(&self) -> Result<Vec<Benchmark>, BenchError> {
        let text = self.output(&[])?;
        text.lines()
            .map(|line| {
                parse_benchmark(line)
                    .ok_or_else(|| BenchError::Native(format!("the suite lists {line:?}")))
            })
            .collect()
    }

    /// Runs a benchmark. Returns None if the host lacks the resource that it needs: the host's screen is not
    /// ours to write to, and there is no server.
    pub(super) fn run(
        &self,
        benchmark: &Benchmark,
        count: u32,
    ) -> Result<Option<Outcome>, BenchError> {
        let count = count.to_string();
        let disk = self.disk.display().to_string();
        let arguments = match benchmark.needs {
            Needs::Nothing => vec![benchmark.name.as_str(), &count],
            Needs::Disk => vec![benchmark.name.as_str(), &count, &disk],
            Needs::Screen | Needs::Server => return Ok(None),
        };
        let text = self.output(&arguments)?;
        let outcome = outcome(&text, &benchmark.name)
            .ok_or_else(|| BenchError::NotRun(benchmark.name.clone(), "native", text))?;
        Ok(Some(outcome))
    }

    fn output(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let output = Command::new(&self.program)
            .args(arguments)
            .output()
            .map_err(|error| BenchError::Native(error.to_string()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(BenchError::Native(format!("{message} ({})", output.status)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Returns the command by which `guest`, with its disk by `bus`, runs `benchmark`.
pub(super) fn guest_command(guest: Guest, bus: Bus, benchmark: &Benchmark, count: u32) -> String {
    let path = guest.path(benchmark.needs, bus).unwrap_or_default();
    format!("suite {} {count} {path}", benchmark.name)
}

/// Returns the commands that prepare Linux for the suite: they keep the kernel's messages out of the output, and
/// load a driver for the disk.
pub(super) const fn preparation(bus: Bus) -> &'static str {
    match bus {
        Bus::Ide => "dmesg -n 1; modprobe ata_piix; modprobe sd_mod",
        Bus::Virtio => "dmesg -n 1; modprobe virtio_pci; modprobe virtio_blk",
    }
}

/// Returns the disk that the suite uses: 16 MiB in which each 32-bit word holds its own index
/// (`guest/suite/io.c`).
pub(super) fn disk_image() -> Vec<u8> {
    (0..16u32 << 18).flat_map(u32::to_le_bytes).collect()
}

/// Parses a line of the list: name, group, count and the resource needed.
fn parse_benchmark(line: &str) -> Option<Benchmark> {
    let [name, group, count, needs] =
        line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let needs = match needs {
        "-" => Needs::Nothing,
        "disk" => Needs::Disk,
        "screen" => Needs::Screen,
        "server" => Needs::Server,
        _ => return None,
    };
    Some(Benchmark { name: name.into(), group: group.into(), count: count.parse().ok()?, needs })
}

/// Finds the results of benchmark `name` in `text`: a line that begins with its name, its checksum, microseconds
/// of processor time, cycles of the time-stamp counter, and microseconds by the clock.
pub(super) fn outcome(text: &str, name: &str) -> Option<Outcome> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next()? != name {
            return None;
        }
        let checksum = u32::from_str_radix(words.next()?, 16).ok()?;
        let mut number = || words.next()?.parse::<f64>().ok();
        let (time, cycles, clock) = (number()? / 1e6, number()?, number()?);
        Some(Outcome { checksum, time, frequency: cycles / clock })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let read = parse_benchmark("io_disk_read_random io 1000 disk").unwrap();
        assert_eq!((read.name.as_str(), read.group.as_str()), ("io_disk_read_random", "io"));
        assert_eq!((read.count, read.needs), (1000, Needs::Disk));
        let command = guest_command(Guest::Linux, Bus::Ide, &read, 10);
        assert_eq!(command, "suite io_disk_read_random 10 /dev/sda");
        let command = guest_command(Guest::Tern, Bus::Ide, &read, 10);
        assert_eq!(command, "suite io_disk_read_random 10 /dev/hda");
        let command = guest_command(Guest::Linux, Bus::Virtio, &read, 10);
        assert_eq!(command, "suite io_disk_read_random 10 /dev/vda");
        assert_eq!(parse_benchmark("loop cpu many -"), None);
        assert_eq!(parse_benchmark("loop cpu 5"), None);
    }

    #[test]
    fn outcomes_are_found_among_other_things() {
        let text = "\u{1b}[6nsuite loop 5\r\nloop 0000beef 1500 3500000 1750\r\n";
        let found = Outcome { checksum: 0xbeef, time: 0.0015, frequency: 2000.0 };
        assert_eq!(outcome(text, "loop"), Some(found));
        assert_eq!(outcome("Illegal instruction\r\n", "loop"), None);
        assert_eq!(outcome(text, "hash"), None);
    }

    #[test]
    fn words_of_the_disk_are_their_numbers() {
        let image = disk_image();
        assert_eq!(image.len(), 16 << 20);
        assert_eq!(image[4 * 0x12345..][..4], 0x12345u32.to_le_bytes());
    }
}
