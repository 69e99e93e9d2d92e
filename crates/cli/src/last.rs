//! `--record-last`: the last seconds of a run, and the file in which they are written.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ring3_block::storage::{HostFile, Storage};
use ring3_block::{Unfinished, remove_left};
use ring3_vm::control::KeepLastError;
use ring3_vm::recording::RecordingError;
use ring3_vm::{Archive, LastOptions, Occasion};
use thiserror::Error;

use crate::args::{MemorySize, bytes_of};
use crate::qemu::properties::Properties;
use crate::repetition::RepetitionError;

/// The value of `--record-last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastProperties {
    time: Duration,
    file: Option<PathBuf>,
    input_bytes: u64,
    read_bytes: u64,
}

/// Inputs for which there is room if the command line does not say otherwise, in bytes.
const INPUT_BYTES: u64 = 256 << 20;
/// What may be read from disks for a recording if the command line does not say otherwise, and the most that it may
/// say, in bytes.
const READ_BYTES: u64 = 4 << 30;
const MOST_READ_BYTES: u64 = 1 << 40;
/// The longest time that can be asked for: a day.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The reason why a `--record-last` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct BadLast(String);

impl FromStr for LastProperties {
    type Err = BadLast;

    fn from_str(text: &str) -> Result<LastProperties, BadLast> {
        let mut properties = Properties::parse(text, Some("time"));
        let time = properties.take("time").as_deref().and_then(duration);
        let file = properties.take("file");
        let inputs = properties.take("inputs");
        let reads = properties.take("reads");
        properties.finish("time, file, inputs and reads").map_err(BadLast)?;
        let time = time.filter(|time| (Duration::from_secs(1)..=LONGEST).contains(time));
        let time = time.ok_or_else(|| {
            BadLast("give a time from 1s to 24h, such as 30s, 2m or 1h".to_owned())
        })?;
        if file.as_ref().is_some_and(String::is_empty) {
            return Err(BadLast("file needs the name of a file".to_owned()));
        }
        let input_bytes = match inputs {
            None => INPUT_BYTES,
            Some(size) => match size.parse() {
                Ok(MemorySize { bytes }) => bytes,
                Err(_) => return Err(BadLast("inputs must be from 1M to 32G".to_owned())),
            },
        };
        let read_bytes = match reads {
            None => READ_BYTES,
            Some(size) => bytes_of(&size)
                .filter(|bytes| (1 << 20..=MOST_READ_BYTES).contains(bytes))
                .ok_or_else(|| BadLast("reads must be from 1M to 1T".to_owned()))?,
        };
        Ok(LastProperties { time, file: file.map(PathBuf::from), input_bytes, read_bytes })
    }
}

/// Reads a time in seconds, minutes or hours; a number alone is one of seconds.
fn duration(text: &str) -> Option<Duration> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = text.split_at(end);
    let seconds = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 60 * 60,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(seconds).map(Duration::from_secs)
}

impl LastProperties {
    /// Returns what is kept.
    pub(crate) fn options(&self) -> LastOptions {
        let LastProperties { time, input_bytes, read_bytes, .. } = *self;
        LastOptions { time, input_bytes, read_bytes }
    }

    /// Returns the path of the recordings.
    pub(crate) fn path(&self) -> PathBuf {
        let usual = || PathBuf::from(format!("ring3-{}.recording", std::process::id()));
        self.file.clone().unwrap_or_else(usual)
    }

    /// Returns the place for the recordings, after finding out that files can be written there.
    pub(crate) fn archive(&self) -> Result<LastFile, RepetitionError> {
        let path = self.path();
        remove_left(&path);
        let is_other = fs::metadata(&path).is_ok_and(|data| !data.is_file());
        let made = if is_other {
            Err(io::Error::other("it is not a file"))
        } else {
            Unfinished::make(&path).map(drop).map_err(plain)
        };
        made.map_err(|source| RepetitionError::Record { path: path.clone(), source })?;
        Ok(LastFile { path, written: None })
    }
}

/// Returns the host's own error, which does not name the file again.
fn plain(error: ring3_block::Error) -> io::Error {
    match error {
        ring3_block::Error::Create { fault: ring3_block::Fault::Io(error), .. } => error,
        error => io::Error::other(error),
    }
}

/// The file for the last seconds of a run.
#[derive(Debug)]
pub(crate) struct LastFile {
    path: PathBuf,
    /// The importance of what this run has written there.
    written: Option<u8>,
}

/// Returns how important a recording is. What is less important does not replace it, nor what the guest could do
/// again and again.
fn importance(occasion: &Occasion) -> u8 {
    match occasion {
        Occasion::TripleFault => 0,
        Occasion::Stopped | Occasion::Panic => 1,
        Occasion::Asked(_) => 2,
    }
}

impl Archive for LastFile {
    fn put(
        &mut self,
        occasion: &Occasion,
        write: &mut dyn FnMut(Box<dyn Write>) -> Result<(), RecordingError>,
    ) -> Result<Option<PathBuf>, KeepLastError> {
        if let Occasion::Asked(Some(path)) = occasion {
            write_file(path, write)?;
            return Ok(Some(path.clone()));
        }
        let importance = importance(occasion);
        let is_asked = matches!(occasion, Occasion::Asked(_));
        let stays = self.written.is_some_and(|written| written >= importance);
        if stays && !is_asked && self.path.exists() {
            return Ok(None);
        }
        write_file(&self.path, write)?;
        self.written = Some(importance);
        Ok(Some(self.path.clone()))
    }
}

/// Writes the file at `path`, which replaces one of that name when it is complete.
fn write_file(
    path: &Path,
    write: &mut dyn FnMut(Box<dyn Write>) -> Result<(), RecordingError>,
) -> Result<(), KeepLastError> {
    let fails = |source| KeepLastError::Write { path: path.to_owned(), source };
    let unfinished = Unfinished::make(path).map_err(|error| fails(plain(error)))?;
    let out = Appended { file: Arc::clone(unfinished.file()), end: 0 };
    write(Box::new(out)).map_err(|error| match error {
        RecordingError::Write(source) => fails(source),
        error => fails(io::Error::other(error)),
    })?;
    unfinished.finish(path).map_err(|error| fails(plain(error)))
}

/// A file that is written from its beginning on.
struct Appended {
    file: Arc<HostFile>,
    end: u64,
}

impl Write for Appended {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<LastProperties, String> {
        text.parse().map_err(|error: BadLast| error.to_string())
    }

    #[test]
    fn times_and_sizes_are_read() {
        let last = |seconds, file: Option<&str>, megabytes: u64| {
            let (time, file) = (Duration::from_secs(seconds), file.map(PathBuf::from));
            let (input_bytes, read_bytes) = (megabytes << 20, 4 << 30);
            Ok(LastProperties { time, file, input_bytes, read_bytes })
        };
        assert_eq!(read("30s"), last(30, None, 256));
        assert_eq!(read("5"), last(5, None, 256));
        assert_eq!(read("2m,file=a,,b"), last(120, Some("a,b"), 256));
        assert_eq!(read("time=1h,inputs=64M"), last(3600, None, 64));
        assert_eq!(read("1m,inputs=1"), last(60, None, 1), "a number alone is one of MiB");
        for wrong in ["", "0s", "25h", "1d", "-3s", "s", "file=a", "18446744073709551615h"] {
            assert_eq!(
                read(wrong),
                Err("give a time from 1s to 24h, such as 30s, 2m or 1h".to_owned()),
                "{wrong}"
            );
        }
        let reads = |text| read(text).map(|last| last.read_bytes);
        assert_eq!(reads("1s,reads=64G"), Ok(64 << 30));
        for wrong in
            ["1s,file=", "1s,inputs=0", "1s,inputs=33G", "1s,reads=1k", "1s,reads=2T", "1s,size=3"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// What the guest could do again and again does not replace what was written before.
    #[test]
    fn a_recording_stays_unless_a_more_important_one_comes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("last");
        let properties = format!("1s,file={}", path.display());
        let mut file = read(&properties).unwrap().archive().unwrap();
        assert!(!path.exists());
        let mut put = |occasion: Occasion, text: &'static str| {
            let put = file.put(&occasion, &mut |mut out: Box<dyn Write>| {
                out.write_all(text.as_bytes()).map_err(RecordingError::Write)
            });
            (put.unwrap(), fs::read_to_string(&path).unwrap())
        };
        let there = Some(path.clone());
        let of = |file: &Option<PathBuf>, text: &str| (file.clone(), text.to_owned());
        assert_eq!(put(Occasion::TripleFault, "fault"), of(&there, "fault"));
        assert_eq!(put(Occasion::TripleFault, "next"), of(&None, "fault"));
        assert_eq!(put(Occasion::Panic, "panic"), of(&there, "panic"));
        assert_eq!(put(Occasion::Panic, "again"), of(&None, "panic"));
        assert_eq!(put(Occasion::Asked(None), "asked"), of(&there, "asked"));
        assert_eq!(put(Occasion::Stopped, "end"), of(&None, "asked"));
        let other = directory.path().join("other");
        assert_eq!(put(Occasion::Asked(Some(other.clone())), "here"), of(&Some(other), "asked"));
        assert_eq!(put(Occasion::Asked(None), "more"), of(&there, "more"));
        fs::remove_file(&path).unwrap();
        assert_eq!(put(Occasion::TripleFault, "last"), of(&there, "last"));
    }
}
