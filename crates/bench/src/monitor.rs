//! Reads the counters of a running machine by QMP.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::BenchError;

/// How long to wait for an answer, which a machine gives between two slices.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two tries to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// A connection to a machine of this program.
pub(super) struct Monitor {
    reader: BufReader<UnixStream>,
}

/// The useful part of the reply to `query-stats`.
#[derive(Deserialize)]
struct Provider {
    stats: Vec<Counter>,
}

#[derive(Deserialize)]
struct Counter {
    name: String,
    value: u64,
}

impl Monitor {
    /// Connects to the socket at `path`.
    pub(super) fn connect(path: &Path) -> Result<Monitor, BenchError> {
        let begin = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut monitor = Monitor { reader: BufReader::new(stream) };
            monitor.ask("{\"execute\": \"qmp_capabilities\"}")?;
            Ok(monitor)
        };
        begin().map_err(BenchError::Monitor)
    }

    /// Connects to the socket at `path` as soon as there is one.
    pub(super) fn await_at(path: &Path) -> Result<Monitor, BenchError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Monitor::connect(path) {
                Err(_) if Instant::now() < until => thread::sleep(PAUSE),
                connected => return connected,
            }
        }
    }

    /// Returns the machine's counters, by name.
    pub(super) fn counters(&mut self) -> Result<BTreeMap<String, u64>, BenchError> {
        let question = "{\"execute\": \"query-stats\", \"arguments\": {\"target\": \"vm\"}}";
        let answer = self.ask(question).map_err(BenchError::Monitor)?;
        let providers: Vec<Provider> = serde_json::from_value(answer)
            .map_err(|error| BenchError::Monitor(io::Error::other(error)))?;
        let counters = providers.into_iter().flat_map(|provider| provider.stats);
        Ok(counters.map(|counter| (counter.name, counter.value)).collect())
    }

    /// Returns how many instructions the machine has executed.
    pub(super) fn instructions(&mut self) -> Result<f64, BenchError> {
        Ok(number(self.counters()?.get("instructions").copied().unwrap_or_default()))
    }

    /// Returns the reply to a command. The greeting and events before the reply are skipped.
    pub(super) fn ask(&mut self, command: &str) -> io::Result<Value> {
        writeln!(self.reader.get_mut(), "{command}")?;
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut message: Value = serde_json::from_str(&line)?;
            if let Some(error) = message.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a machine counts far less than 2^52 of anything")]
pub(super) fn number(counter: u64) -> f64 {
    counter as f64
}
