//! Runs that are repeated and compared: recordings and event logs.

use std::fs::File;
use std::io::{self, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};

use ring3_vm::recording::{Recording, RecordingError, RecordingWriter};
use ring3_vm::{Config, EventLog, Software};
use thiserror::Error;

use crate::args::RepetitionArguments;

/// The reasons why there is no recording or no event log.
#[derive(Debug, Error)]
pub(crate) enum RepetitionError {
    #[error("cannot record to {path}: {source}", path = .path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("cannot read the recording {path}: {source}", path = .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{path}: {source}", path = .path.display())]
    Recording { path: PathBuf, source: RecordingError },
    #[error("cannot write the event log to {path}: {source}", path = .path.display())]
    EventLog { path: PathBuf, source: io::Error },
}

impl RepetitionArguments {
    /// Returns the recorder of the run, if there is to be one.
    pub(crate) fn recorder(
        &self,
        config: &Config,
        software: &Software,
    ) -> Result<Option<RecordingWriter>, RepetitionError> {
        let Some(path) = &self.record else { return Ok(None) };
        let file = File::create(path)
            .map_err(|source| RepetitionError::Record { path: path.clone(), source })?;
        RecordingWriter::new(file, config, software)
            .map(Some)
            .map_err(|source| RepetitionError::Recording { path: path.clone(), source })
    }

    /// Returns the event log, if there is to be one.
    pub(crate) fn event_log(&self) -> Result<Option<EventLog>, RepetitionError> {
        let Some(path) = &self.event_log else { return Ok(None) };
        let file = File::create(path)
            .map_err(|source| RepetitionError::EventLog { path: path.clone(), source })?;
        Ok(Some(EventLog::new(file, NonZero::new(self.checkpoint))))
    }

    /// Returns instructions for finding the same difference between the engines again, with the events before
    /// it.
    pub(crate) fn how_to_see_again(&self) -> String {
        if let Some(path) = self.record.as_ref().or(self.replay.as_ref()) {
            let path = path.display();
            return format!(
                "to see it again: ring3 run --verify --replay {path}\n\
                with --event-log to see what happened before"
            );
        }
        "to see it again, run the same command once more, with --event-log to see what happened before, and with\n\
        --record FILE if there is input from outside: ring3 run --verify --replay FILE then repeats the run"
            .to_owned()
    }
}

/// Opens the recording at `path`.
pub(crate) fn open(path: &Path) -> Result<Recording, RepetitionError> {
    let file = File::open(path)
        .map_err(|source| RepetitionError::Open { path: path.to_owned(), source })?;
    Recording::read(BufReader::new(file))
        .map_err(|source| RepetitionError::Recording { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_again_with_the_given_recording() {
        let recording = || Some(PathBuf::from("a recording"));
        let recorded = RepetitionArguments { record: recording(), ..Default::default() };
        let replayed = RepetitionArguments { replay: recording(), ..Default::default() };
        for arguments in [recorded, replayed] {
            let said = arguments.how_to_see_again();
            assert!(said.contains("--verify --replay a recording\n"), "{said}");
        }
        let said = RepetitionArguments::default().how_to_see_again();
        assert!(said.contains("--record FILE"), "{said}");
    }
}
