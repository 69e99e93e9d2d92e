//! Raw measurements in a file: a JSON object for each, one a line. Those of `ring3 bench cpu` can be read again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::statistics::{Run, Series, Turn};
use super::{BenchError, Settings};

/// The guest and the system of a run on the host itself.
pub(super) const HOST: &str = "host";
pub(super) const NATIVE: &str = "native";

/// One run of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measurement {
    /// What runs the guest, as the table names it, or [`NATIVE`].
    pub(super) system: String,
    /// The operating system in it, or [`HOST`].
    pub(super) guest: String,
    pub(super) benchmark: String,
    pub(super) group: String,
    /// How often the benchmark does its work when it does all of it.
    pub(super) work: u32,
    /// All systems are measured once in a turn; only runs of the same turn are compared.
    pub(super) turn: Turn,
    /// How often it did its work in this run; 0 shows what starting costs.
    pub(super) count: u32,
    /// Processor time.
    pub(super) seconds: f64,
}

/// All measurements of a file, or of a command that goes on.
#[derive(Debug, Default)]
pub(super) struct Data(Vec<Measurement>);

/// A guest in a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) guest: &'a str,
    pub(super) system: &'a str,
}

/// The host itself.
pub(super) const NATIVE_PLACE: Place<'_> = Place { guest: HOST, system: NATIVE };

impl Data {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Data, BenchError> {
        let wrong = |error: String| BenchError::Data(path.to_owned(), error);
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let parse = |(number, line): (usize, &str)| {
            serde_json::from_str(line).map_err(|error| wrong(format!("line {number}: {error}")))
        };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        Ok(Data(lines.map(parse).collect::<Result<_, _>>()?))
    }

    pub(super) fn extend(&mut self, measurements: impl IntoIterator<Item = Measurement>) {
        self.0.extend(measurements);
    }

    /// Returns all places in the order of their first measurements.
    pub(super) fn places(&self) -> Vec<Place<'_>> {
        let mut places = Vec::new();
        for Measurement { guest, system, .. } in &self.0 {
            let place = Place { guest, system };
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Returns the names and groups of all benchmarks in the order of their first measurements.
    pub(super) fn benchmarks(&self) -> Vec<(&str, &str)> {
        let mut benchmarks: Vec<(&str, &str)> = Vec::new();
        for Measurement { benchmark, group, .. } in &self.0 {
            if !benchmarks.iter().any(|(name, _)| name == benchmark) {
                benchmarks.push((benchmark, group));
            }
        }
        benchmarks
    }

    /// Returns the time of all of the benchmark's work in each turn.
    pub(super) fn series(&self, place: Place<'_>, benchmark: &str) -> Series {
        let is_wanted = |m: &&Measurement| {
            m.benchmark == benchmark && m.guest == place.guest && m.system == place.system
        };
        let all = || self.0.iter().filter(is_wanted);
        let run = |m: &Measurement| Run { turn: m.turn, count: m.count, seconds: m.seconds };
        let work = all().map(|m| m.work).next().unwrap_or_default();
        Series::of_work(&all().map(run).collect::<Vec<_>>(), work)
    }
}

/// One value that another command than `ring3 bench cpu` has measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Sample<'a> {
    /// What is measured, as the table names it.
    pub(super) system: &'a str,
    /// What it does.
    pub(super) work: &'a str,
    /// What the value is, with its unit.
    pub(super) quantity: &'a str,
    /// All systems are measured once in a turn.
    pub(super) turn: Turn,
    pub(super) value: f64,
}

/// The file to which measurements are added as they are made, so that none is lost if a later one fails. There is
/// none if the user wants none.
#[derive(Debug)]
pub(super) struct Log(Option<(PathBuf, File)>);

impl Log {
    /// Begins the file anew.
    pub(super) fn begin(settings: &Settings) -> Result<Log, BenchError> {
        let create = |path: &PathBuf| match File::create(path) {
            Ok(file) => Ok((path.clone(), file)),
            Err(error) => Err(BenchError::Plot(path.clone(), error.to_string())),
        };
        Ok(Log(settings.data.as_ref().map(create).transpose()?))
    }

    pub(super) fn add(&mut self, measurements: &[impl Serialize]) -> Result<(), BenchError> {
        let Some((path, file)) = &mut self.0 else { return Ok(()) };
        let wrong = |error: std::io::Error| BenchError::Plot(path.clone(), error.to_string());
        let mut lines = Vec::new();
        for measurement in measurements {
            serde_json::to_writer(&mut lines, measurement).map_err(|error| wrong(error.into()))?;
            lines.push(b'\n');
        }
        file.write_all(&lines).map_err(wrong)
    }

    /// Adds all values of a series, in the order of their turns.
    pub(super) fn add_series(
        &mut self,
        system: &str,
        work: &str,
        quantity: &str,
        series: &Series,
    ) -> Result<(), BenchError> {
        let sample = |(turn, value)| Sample { system, work, quantity, turn, value };
        self.add(&series.turns().map(sample).collect::<Vec<_>>())
    }
}

/// Makes the measurement of a benchmark that took `time` seconds for all of its work in one turn.
#[cfg(test)]
pub(super) fn measured(
    system: &str,
    guest: &str,
    benchmark: &str,
    turn: Turn,
    time: f64,
) -> Measurement {
    Measurement {
        system: system.into(),
        guest: guest.into(),
        benchmark: benchmark.into(),
        group: "cpu".into(),
        work: 10,
        turn,
        count: 10,
        seconds: time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(data: Option<PathBuf>) -> Settings {
        Settings { guests: "guests".into(), runs: 5, data }
    }

    #[test]
    fn values_of_other_commands_are_written_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let series = Series::from_iter([(1, 0.5), (0, 0.25)]);
        let add = |settings: &Settings| {
            let mut log = Log::begin(settings).unwrap();
            log.add_series("ring3", "boot", "elapsed_seconds", &series).unwrap();
        };
        add(&settings(None));
        assert!(!path.exists());
        add(&settings(Some(path.clone())));
        let line = |turn: u32, value: f64| {
            format!(
                "{{\"system\":\"ring3\",\"work\":\"boot\",\"quantity\":\"elapsed_seconds\",\
                 \"turn\":{turn},\"value\":{value}}}\n"
            )
        };
        assert_eq!(fs::read_to_string(&path).unwrap(), line(0, 0.25) + &line(1, 0.5));
    }

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let tenth =
            Measurement { count: 1, seconds: 0.375, ..measured(NATIVE, HOST, "loop", 0, 0.0) };
        let start = Measurement { count: 0, seconds: 0.125, ..tenth.clone() };
        let other = measured("ring3", "Tern", "hash", 1, 3.0);
        let mut log = Log::begin(&settings(Some(path.clone()))).unwrap();
        log.add(&[tenth.clone(), start.clone()]).unwrap();
        log.add(std::slice::from_ref(&other)).unwrap();
        let data = Data::read(&path).unwrap();
        assert_eq!(data.0, [tenth, start, other]);
        assert_eq!(data.places(), [NATIVE_PLACE, Place { guest: "Tern", system: "ring3" }]);
        assert_eq!(data.benchmarks(), [("loop", "cpu"), ("hash", "cpu")]);
        let loops = data.series(NATIVE_PLACE, "loop").figure().unwrap();
        assert!((loops.median - 2.5).abs() < 1e-9, "{loops:?}");
        assert_eq!(data.series(NATIVE_PLACE, "hash").figure(), None);
    }

    #[test]
    fn other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        for (text, reason) in
            [("{}", "line 1: missing field"), ("\n[1]", "line 2: "), ("x", "line 1")]
        {
            fs::write(&path, text).unwrap();
            let error = Data::read(&path).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("bench cpu --data"), "{error}");
        }
        assert!(Data::read(&directory.path().join("none")).is_err());
    }
}
