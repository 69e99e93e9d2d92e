//! `-pidfile`: a file with the number of the process, by which others can end it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, ftruncate};
use rustix::io::Errno;
use thiserror::Error;

/// The file, which is locked while the process exists, and is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    _file: File,
}

/// The reasons why there is no such file.
#[derive(Debug, Error)]
pub(crate) enum PidFileError {
    #[error("cannot write the process ID to {path}: {source}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("a running machine uses {path}: give each machine its own -pidfile", path = .0.display())]
    InUse(PathBuf),
}

impl PidFile {
    /// Creates the file at `path`, or takes over the file of a process that is gone.
    pub(crate) fn create(path: &Path) -> Result<PidFile, PidFileError> {
        let failed = |source: io::Error| PidFileError::Write { path: path.to_owned(), source };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH);
        let mut file = File::from(file.map_err(|error| failed(error.into()))?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(PidFileError::InUse(path.to_owned())),
            Err(error) => return Err(failed(error.into())),
        }
        ftruncate(&file, 0).map_err(|error| failed(error.into()))?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(PidFile { path: path.to_owned(), _file: file })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // It may have been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_the_file() {
        let path = std::env::temp_dir().join(format!("ring3-pid-{}", std::process::id()));
        fs::write(&path, "123456789 was another one").unwrap();
        let file = PidFile::create(&path).unwrap();
        let number = fs::read_to_string(&path).unwrap();
        assert_eq!(number, format!("{}\n", std::process::id()));
        assert!(matches!(PidFile::create(&path), Err(PidFileError::InUse(_))));
        drop(file);
        assert!(!path.exists());
        assert!(matches!(
            PidFile::create("/no/such/file".as_ref()),
            Err(PidFileError::Write { .. })
        ));
    }
}
