//! The measurements in the output of scripts, and the files for both.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::plan::Plan;
use super::protocol::Sink;

/// Upper bound of the bytes of a line that can be a measurement.
const MOST_LINE: usize = 256;
/// Upper bound of the measurements of a round.
const MOST_MEASUREMENTS: usize = 100_000;

/// The directory of the results, and the file of all measurements in it.
pub(super) struct Results {
    directory: PathBuf,
    measurements: File,
}

impl Results {
    /// Makes the directory, if it is not there, and begins all files of `plan` anew.
    pub(super) fn begin(plan: &Plan, pairs: &[String]) -> io::Result<Results> {
        fs::create_dir_all(&plan.results)?;
        for pair in pairs {
            for kind in ["out", "err", "console"] {
                match fs::remove_file(plan.results.join(format!("{pair}.{kind}"))) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        let mut measurements = File::create(plan.results.join("measurements.csv"))?;
        writeln!(
            measurements,
            "configuration,guest,benchmark,round,sequence,cycles,microseconds,\
             processor_microseconds,host_microseconds"
        )?;
        Ok(Results { directory: plan.results.clone(), measurements })
    }

    /// Returns the path of a file of `pair`.
    pub(super) fn path(&self, pair: &str, kind: &str) -> PathBuf {
        self.directory.join(format!("{pair}.{kind}"))
    }

    pub(super) fn open(&self, pair: &str, kind: &str) -> io::Result<File> {
        append(&self.path(pair, kind))
    }

    /// Stores one round.
    pub(super) fn store(&mut self, round: &Round) -> io::Result<()> {
        let Round { configuration, guest, number, .. } = round;
        let mut lines = Vec::new();
        let mut sequences = HashMap::new();
        for Measurement { benchmark, cycles, microseconds, processor, host } in &round.measurements
        {
            let sequence = sequences.entry(benchmark).and_modify(|last| *last += 1).or_insert(1);
            writeln!(
                lines,
                "{configuration},{guest},{benchmark},{number},{sequence},{cycles},{microseconds},\
                 {processor},{host}"
            )?;
        }
        self.measurements.write_all(&lines)
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// What a line of the suite says, and how long the host has waited for that line.
#[derive(Debug, PartialEq, Eq)]
struct Measurement {
    benchmark: String,
    cycles: u64,
    microseconds: u64,
    processor: u64,
    host: u128,
}

/// One execution of the script.
pub(super) struct Round {
    configuration: String,
    guest: String,
    number: u32,
    output: File,
    errors: File,
    /// The beginning of a line that has not ended.
    line: Vec<u8>,
    /// When the last line ended.
    since: Instant,
    measurements: Vec<Measurement>,
}

impl Round {
    /// Begins a round with the files for the script's output.
    pub(super) fn begin(
        configuration: &str,
        guest: &str,
        number: u32,
        output: File,
        errors: File,
    ) -> Round {
        Round {
            configuration: configuration.into(),
            guest: guest.into(),
            number,
            output,
            errors,
            line: Vec::new(),
            since: Instant::now(),
            measurements: Vec::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.measurements.len()
    }

    /// Starts the clock of the first line.
    pub(super) fn start(&mut self) {
        self.since = Instant::now();
    }
}

impl Sink for Round {
    fn output(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)?;
        let now = Instant::now();
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < MOST_LINE {
                    self.line.push(*byte);
                }
                continue;
            }
            let host = now.duration_since(self.since).as_micros();
            self.measurements.extend(measurement(&self.line, host));
            self.line.clear();
            self.since = now;
        }
        if self.measurements.len() > MOST_MEASUREMENTS {
            return Err(io::Error::other("the guest prints too many measurements"));
        }
        Ok(())
    }

    fn errors(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.errors.write_all(bytes)
    }
}

/// Reads a line of the suite: the benchmark, its checksum, microseconds of processor time, and the cycles and
/// microseconds that have passed.
fn measurement(line: &[u8], host: u128) -> Option<Measurement> {
    let words = str::from_utf8(line).ok()?.split_whitespace().collect::<Vec<_>>();
    let [benchmark, checksum, processor, cycles, microseconds] = words.try_into().ok()?;
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    if !benchmark.chars().all(is_name) || u32::from_str_radix(checksum, 16).is_err() {
        return None;
    }
    Some(Measurement {
        benchmark: benchmark.into(),
        cycles: cycles.parse().ok()?,
        microseconds: microseconds.parse().ok()?,
        processor: processor.parse().ok()?,
        host,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_suite_are_found_in_pieces() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str| append(&directory.path().join(name)).unwrap();
        let mut round = Round::begin("native", "host", 2, open("out"), open("err"));
        for piece in ["hello\nloop 0000", "beef 10 30000 12\r\nhash 1 2 4 ", "3\nloop 0 1 3 2\nx"] {
            round.output(piece.as_bytes()).unwrap();
        }
        round.output(&[b'x'; 1000]).unwrap();
        round.output(b"\n").unwrap();
        round.errors(b"complaint\n").unwrap();
        assert_eq!(round.count(), 3);
        for measurement in &mut round.measurements {
            measurement.host = 40;
        }
        let measurements = open("measurements.csv");
        let mut results = Results { directory: directory.path().to_owned(), measurements };
        results.store(&round).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(
            read("measurements.csv"),
            "native,host,loop,2,1,30000,12,10,40\n\
             native,host,hash,2,1,4,3,2,40\n\
             native,host,loop,2,2,3,2,1,40\n"
        );
        assert_eq!(read("err"), "complaint\n");
        let many = b"loop 0 1 2 3\n".repeat(MOST_MEASUREMENTS);
        assert!(round.output(&many).unwrap_err().to_string().contains("too many measurements"));
        assert!(read("out").starts_with("hello\nloop 0000beef 10 30000 12\r\n"));
    }

    #[test]
    fn other_lines_are_no_measurements() {
        for line in ["", "loop 0000beef 10", "loop x 1 2 3", "a,b 0 1 2 3", "loop 0 1 2 -3"] {
            assert_eq!(measurement(line.as_bytes(), 0), None, "{line}");
        }
        assert_eq!(measurement(b"loop \xff 1 2 3", 0), None);
    }
}
