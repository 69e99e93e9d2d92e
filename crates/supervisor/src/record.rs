//! The record of all parts, which the next supervisor reads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::definition::{Definition, Name};

/// What users want of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wanted {
    /// It does not run.
    Ended,
    /// Its process is there, and its guest waits. Servers do not wait.
    Paused,
    /// It runs.
    Running,
}

/// A part in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) definition: Definition,
    /// The definition in the file of the user, from which commands may have changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) in_file: Option<Definition>,
    pub(crate) wanted: Wanted,
    /// How often its process was started again.
    pub(crate) restarts: u64,
}

impl Entry {
    /// Makes the entry of a part that has just been defined.
    pub(crate) fn new(definition: Definition, wanted: Wanted) -> Entry {
        Entry { definition, in_file: None, wanted, restarts: 0 }
    }
}

/// All parts, by name.
pub(crate) type Record = BTreeMap<Name, Entry>;

/// Reads the record at `path`. Without one there are no parts.
pub(crate) fn read(path: &Path) -> io::Result<Record> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Record::default()),
        Err(error) => Err(error),
    }
}

/// Replaces the record at `path`. It is whole whenever the supervisor is killed.
pub(crate) fn write(path: &Path, record: &Record) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec_pretty(record)?)?;
    fs::rename(&new, path)
}
