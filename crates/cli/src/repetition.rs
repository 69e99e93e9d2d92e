//! Runs that are repeated and compared: recordings and event logs.

use std::fs::File;
use std::io::{self, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};

use ring3_vm::recording::{Recording, RecordingError, RecordingWriter};
use ring3_vm::{Config, EventLog, Software};
use thiserror::Error;

use crate::args::RepetitionArguments;

/// Why there is no recording or no event log.
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
    /// What the run is recorded by, if it is to be.
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

    /// The event log, if there is to be one.
    pub(crate) fn event_log(&self) -> Result<Option<EventLog>, RepetitionError> {
        let Some(path) = &self.event_log else { return Ok(None) };
        let file = File::create(path)
            .map_err(|source| RepetitionError::EventLog { path: path.clone(), source })?;
        Ok(Some(EventLog::new(file, NonZero::new(self.checkpoint))))
    }
}

/// Opens the recording at `path`.
pub(crate) fn open(path: &Path) -> Result<Recording, RepetitionError> {
    let file = File::open(path)
        .map_err(|source| RepetitionError::Open { path: path.to_owned(), source })?;
    Recording::read(BufReader::new(file))
        .map_err(|source| RepetitionError::Recording { path: path.to_owned(), source })
}
