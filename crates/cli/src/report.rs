//! Reports about a run in files, in the formats that their names say.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// The formats of a kind of report.
pub(crate) trait Format: Copy + 'static {
    /// The report, for people.
    const REPORT: &'static str;
    /// The ends of the names of files.
    const ENDS: &'static str;

    /// Returns the format of files with this extension.
    fn of_extension(extension: &str) -> Option<Self>;
}

/// A file for a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target<F> {
    path: PathBuf,
    pub(crate) format: F,
}

/// The reason why a name of a file is refused.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("its name must end with {0}")]
pub(crate) struct BadTarget(&'static str);

impl<F: Format> FromStr for Target<F> {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Target<F>, BadTarget> {
        let path = PathBuf::from(text);
        let extension = path.extension().and_then(|extension| extension.to_str());
        let format = extension.and_then(F::of_extension).ok_or(BadTarget(F::ENDS))?;
        Ok(Target { path, format })
    }
}

/// The file cannot be written.
#[derive(Debug, Error)]
#[error("cannot write the {report} to {}: {source}", path.display())]
pub(crate) struct WriteError {
    report: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl WriteError {
    fn of<F: Format>(path: &Path, source: io::Error) -> WriteError {
        WriteError { report: F::REPORT, path: path.to_owned(), source }
    }
}

/// A file that is open before the run, so that a wrong name is found then.
#[derive(Debug)]
pub(crate) struct Output<F> {
    target: Target<F>,
    file: File,
}

impl<F: Format> Target<F> {
    /// Makes the file, or empties it.
    pub(crate) fn create(&self) -> Result<Output<F>, WriteError> {
        let file =
            File::create(&self.path).map_err(|source| WriteError::of::<F>(&self.path, source))?;
        Ok(Output { target: self.clone(), file })
    }
}

impl<F: Format> Output<F> {
    /// Writes what `make` returns for the format.
    pub(crate) fn write(
        mut self,
        make: impl FnOnce(F) -> io::Result<String>,
    ) -> Result<(), WriteError> {
        make(self.target.format)
            .and_then(|text| self.file.write_all(text.as_bytes()))
            .map_err(|source| WriteError::of::<F>(&self.target.path, source))
    }
}
