//! `ring3 diff-log`: the first line in which two event logs differ.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;

use clap::Args;
use thiserror::Error;

use crate::status::Status;

/// The options of `ring3 diff-log`. The lines of both files are compared one by one; of the files, only the lines
/// that are shown are kept in memory.
#[derive(Debug, Args)]
pub(crate) struct DiffLogArguments {
    /// A log that `--event-log` has written
    first: PathBuf,

    /// The log of another run of the same machine
    second: PathBuf,

    /// The number of lines to show before the difference, and after it
    #[arg(long, value_name = "LINES", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    context: u16,
}

/// The longest line that is compared, in bytes: several times the longest one of an event log.
const LONGEST_LINE: u64 = 65_536;

/// A reason why the logs could not be compared.
#[derive(Debug, Error)]
pub(crate) enum DiffLogError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error(
        "line {line} of {} has more than {LONGEST_LINE} bytes: give a log that --event-log has written",
        path.display()
    )]
    NoLog { path: PathBuf, line: u64 },
    #[error("cannot write the result: {0}")]
    Write(io::Error),
}

/// A log that is read line by line.
struct Log {
    path: PathBuf,
    reader: BufReader<File>,
    /// The number of lines that were read.
    lines: u64,
}

impl Log {
    fn open(path: &Path) -> Result<Log, DiffLogError> {
        let file = File::open(path)
            .map_err(|error| DiffLogError::Read { path: path.to_owned(), error })?;
        Ok(Log { path: path.to_owned(), reader: BufReader::new(file), lines: 0 })
    }

    /// Reads the next line, without its end. Returns None at the end of the file.
    fn next(&mut self) -> Result<Option<Vec<u8>>, DiffLogError> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(LONGEST_LINE + 1).read_until(b'\n', &mut line);
        read.map_err(|error| DiffLogError::Read { path: self.path.clone(), error })?;
        if line.is_empty() {
            return Ok(None);
        }
        self.lines += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 > LONGEST_LINE {
            return Err(DiffLogError::NoLog { path: self.path.clone(), line: self.lines });
        }
        Ok(Some(line))
    }
}

/// Compares the logs, and prints the first difference. The status is [`Status::Different`] if there is one.
pub(crate) fn run(arguments: &DiffLogArguments) -> Result<Status, DiffLogError> {
    let logs = [Log::open(&arguments.first)?, Log::open(&arguments.second)?];
    let mut text = Vec::new();
    let status = compare(logs, arguments.context.into(), &mut text)?;
    io::stdout().write_all(&text).map_err(DiffLogError::Write)?;
    Ok(status)
}

/// See [`run`]. Writes what is to be printed to `text`.
fn compare(
    [mut first, mut second]: [Log; 2],
    context: usize,
    text: &mut Vec<u8>,
) -> Result<Status, DiffLogError> {
    let mut common = VecDeque::new();
    let mut checkpoint = None;
    let lines = loop {
        match (first.next()?, second.next()?) {
            (None, None) => {
                put(text, &format!("the logs are equal: {} lines", first.lines));
                return Ok(Status::Ended);
            }
            (Some(line), Some(other)) if line == other => {
                if let Some(Event { instructions, kind: CHECKPOINT, .. }) = Event::of(&line) {
                    checkpoint = Some((first.lines, instructions.to_owned()));
                }
                common.push_back(line);
                if common.len() > context {
                    common.pop_front();
                }
            }
            lines => break lines,
        }
    };
    // A log that has ended has one line less.
    let at = first.lines.max(second.lines);
    put(text, &format!("the logs differ from line {at} on{}", explanation(&lines)));
    if let Some((line, instructions)) = checkpoint {
        put(
            text,
            &format!("the machines were equal after {instructions} instructions (line {line})"),
        );
    }
    for line in common {
        put(text, &format!("  {}", shown(&line)));
    }
    for (sign, log, line) in [("-", &mut first, lines.0), ("+", &mut second, lines.1)] {
        let Some(line) = line else {
            put(text, &format!("{sign} (the end of {})", log.path.display()));
            continue;
        };
        put(text, &format!("{sign} {}", shown(&line)));
        for _ in 0..context {
            let Some(line) = log.next()? else { break };
            put(text, &format!("{sign} {}", shown(&line)));
        }
    }
    Ok(Status::Different)
}

fn put(text: &mut Vec<u8>, line: &str) {
    text.extend(line.as_bytes());
    text.push(b'\n');
}

/// Returns a line as text that changes no terminal.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The columns of a line.
struct Event<'a> {
    instructions: &'a str,
    time: &'a str,
    kind: &'a str,
    rest: SplitAsciiWhitespace<'a>,
}

/// The kind of the events with hashes of the machine.
const CHECKPOINT: &str = "checkpoint";

impl Event<'_> {
    fn of(line: &[u8]) -> Option<Event<'_>> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (instructions, time, kind) = (words.next()?, words.next()?, words.next()?);
        Some(Event { instructions, time, kind, rest: words })
    }
}

/// Tells what differs in two lines, after a colon, if it can be said in a few words.
fn explanation(lines: &(Option<Vec<u8>>, Option<Vec<u8>>)) -> String {
    let (first, second) = match lines {
        (None, _) => return ": the first one ends".into(),
        (_, None) => return ": the second one ends".into(),
        (Some(first), Some(second)) => (Event::of(first), Event::of(second)),
    };
    let Some((first, second)) = first.zip(second) else { return String::new() };
    let is_same_event = first.kind == second.kind && first.rest.clone().eq(second.rest.clone());
    if is_same_event && first.instructions != second.instructions {
        ": the same event comes after another number of instructions".into()
    } else if is_same_event && first.time != second.time {
        ": the same event comes at another time".into()
    } else if (first.instructions, first.kind) == (second.instructions, second.kind)
        && first.kind == CHECKPOINT
    {
        // "memory HASH state HASH"
        let differs = |word: usize| first.rest.clone().nth(word) != second.rest.clone().nth(word);
        match (differs(1), differs(3)) {
            (true, true) => ": memory and the remaining state differ",
            (true, false) => ": memory differs",
            (false, true) => ": processor, devices or time differ",
            (false, false) => "",
        }
        .into()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: &str = "\
        \x20       10      0.000000010 interrupt 0x20\n\
        \x20     1000      0.000001000 checkpoint memory 6f2b state 0d9e\n\
        \x20     1010      0.000001010 interrupt 0x30\n";

    /// Compares logs that begin with [`COMMON`].
    fn compared(first: &str, second: &str, context: usize) -> (Status, String) {
        let directory = tempfile::tempdir().unwrap();
        let logs = [("first", first), ("second", second)].map(|(name, rest)| {
            let path = directory.path().join(name);
            std::fs::write(&path, COMMON.to_owned() + rest).unwrap();
            Log::open(&path).unwrap()
        });
        let mut text = Vec::new();
        let status = compare(logs, context, &mut text).unwrap();
        (status, String::from_utf8(text).unwrap())
    }

    #[test]
    fn equal_logs_are_equal() {
        let (status, text) = compared("", "", 5);
        assert_eq!((status, text.as_str()), (Status::Ended, "the logs are equal: 3 lines\n"));
    }

    #[test]
    fn the_first_difference_is_shown_with_its_surroundings() {
        let (first, second) = (
            "      1020      0.000001020 interrupt 0x31\n1 2 a\n1 2 b\n",
            "      1030      0.000001030 interrupt 0x31\n",
        );
        let (status, text) = compared(first, second, 1);
        assert_eq!(status, Status::Different);
        let expected = "\
            the logs differ from line 4 on: the same event comes after another number of instructions\n\
            the machines were equal after 1000 instructions (line 2)\n\
            \x20       1010      0.000001010 interrupt 0x30\n\
            -       1020      0.000001020 interrupt 0x31\n\
            - 1 2 a\n\
            +       1030      0.000001030 interrupt 0x31\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn differences_are_explained() {
        let checkpoint = "2000 0.000002000 checkpoint memory 11 state 22\n";
        for (second, explanation) in [
            ("", ": the second one ends"),
            ("2000 0.000002000 checkpoint memory 12 state 22\n", ": memory differs"),
            (
                "2000 0.000002000 checkpoint memory 11 state 23\n",
                ": processor, devices or time differ",
            ),
            (
                "2000 0.000002000 checkpoint memory 12 state 23\n",
                ": memory and the remaining state differ",
            ),
            (
                "2000 0.000003000 checkpoint memory 11 state 22\n",
                ": the same event comes at another time",
            ),
            ("2000 0.000002000 interrupt 0x40\n", ""),
            ("\n", ""),
        ] {
            let (status, text) = compared(checkpoint, second, 0);
            assert_eq!(status, Status::Different);
            let first = text.lines().next().unwrap();
            assert_eq!(first, format!("the logs differ from line 4 on{explanation}"), "{second}");
        }
    }

    #[test]
    fn other_files_are_refused_or_shown_harmlessly() {
        let (_, text) = compared("\x1b[2J\n", "", 0);
        assert!(text.contains("- \u{fffd}[2J\n"), "{text:?}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zeros");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let logs = [Log::open(&path).unwrap(), Log::open(&path).unwrap()];
        let error = compare(logs, 5, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, DiffLogError::NoLog { line: 1, .. }), "{error}");
        let error = Log::open(&directory.path().join("none")).err().unwrap().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("No such file"), "{error}");
    }
}
