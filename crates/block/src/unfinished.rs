//! The files of images that are not complete yet: their names, and their removal.
//!
//! A new image is made in a hidden file beside its place, `.NAME.PID.N.new`, and gets its name when it is
//! complete. Its maker keeps the file locked, so a file with such a name and no lock was left behind by a
//! process that was killed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::error::{Error, Fault};
use crate::storage::HostFile;

/// The files that this process is making. Threads hold this lock while they make, rename or remove one.
static PRESENT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Upper bound of the bytes that a file's name takes from the image's name, since file systems limit names to
/// 255 bytes.
const NAME_MAX: usize = 200;

/// Number of names that are tried.
const ATTEMPTS: usize = 100;

fn present() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    PRESENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the directory that contains `path`.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the first bytes of the names of files for an image at `target`.
fn prefix(target: &Path) -> Option<Vec<u8>> {
    let name = target.file_name()?.as_bytes();
    let name = &name[..name.len().min(NAME_MAX)];
    Some([b".", name, b"."].concat())
}

/// Removes the files of all images that this process has not finished.
///
/// This is for a process that is about to end: threads that make or finish an image afterwards wait for ever.
pub fn abandon_unfinished() {
    let present = present();
    for path in &*present {
        // An error does not matter any more.
        let _ = fs::remove_file(path);
    }
    std::mem::forget(present);
}

/// Removes the files of images at `target` that killed processes have left behind. Those of running processes
/// stay, and on a file system without locks all of them.
pub fn remove_left(target: &Path) {
    let real = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    let (Some(prefix), Ok(entries)) = (prefix(&real), fs::read_dir(parent(&real))) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.as_bytes().strip_prefix(prefix.as_slice());
        let number = number.and_then(|rest| rest.strip_suffix(b".new"));
        let is_ours = number.is_some_and(|number| {
            !number.is_empty() && number.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
        });
        if is_ours && is_left(&entry.path()) {
            match fs::remove_file(entry.path()) {
                Ok(()) => tracing::info!(
                    "removed {}, which an earlier run left behind",
                    entry.path().display()
                ),
                Err(error) => tracing::debug!("{}: {error}", entry.path().display()),
            }
        }
    }
}

/// Returns whether nobody has locked the file at `path`.
fn is_left(path: &Path) -> bool {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) else {
        return false;
    };
    file.metadata().is_ok_and(|data| data.is_file())
        && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && is_at(&file, path)
}

/// Returns whether `path` leads to `file`.
fn is_at(file: &File, path: &Path) -> bool {
    let of = |data: fs::Metadata| (data.dev(), data.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(one), Ok(other)) => of(one) == of(other),
        _ => false,
    }
}

/// A file that is removed when this is dropped, if it was not finished.
#[derive(Debug)]
pub struct Unfinished {
    file: Arc<HostFile>,
    path: PathBuf,
    is_finished: bool,
}

impl Unfinished {
    /// Makes a file for an image at `target`.
    pub fn make(target: &Path) -> Result<Unfinished, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let not_an_image = || Error::NotAnImage { path: target.to_owned() };
        let prefix = prefix(target).ok_or_else(not_an_image)?;
        let mut present = present();
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let mut name = prefix.clone();
            name.extend(format!("{}.{number}.new", std::process::id()).as_bytes());
            let path = parent(target).join(OsString::from_vec(name));
            match HostFile::create(&path) {
                // Another process may have removed the file before it was locked.
                Ok(file) if file.is_at(&path) => {
                    present.insert(path.clone());
                    return Ok(Unfinished { file: Arc::new(file), path, is_finished: false });
                }
                Ok(_) => {}
                Err(error @ Error::InUse { .. }) => last = Some(error),
                Err(Error::Create { fault: Fault::Io(error), .. })
                    if error.kind() == std::io::ErrorKind::AlreadyExists =>
                {
                    last = Some(Error::Create { path, fault: error.into() });
                }
                // The error must name the file that the user knows.
                Err(Error::Create { fault, .. }) => {
                    return Err(Error::Create { path: target.to_owned(), fault });
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(not_an_image))
    }

    /// Returns the file, which is open and locked.
    pub fn file(&self) -> &Arc<HostFile> {
        &self.file
    }

    /// Gives the file the name `target`, which replaces a file of that name. Returns once this would survive
    /// a power cut.
    pub fn finish(mut self, target: &Path) -> Result<(), Error> {
        let fails =
            |error: std::io::Error| Error::Create { path: target.to_owned(), fault: error.into() };
        {
            let mut present = present();
            fs::rename(&self.path, target).map_err(fails)?;
            present.remove(&self.path);
            self.is_finished = true;
        }
        let synced = File::open(parent(target)).and_then(|directory| directory.sync_all());
        synced.map_err(fails)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished {
            let mut present = present();
            // An error does not matter any more.
            let _ = fs::remove_file(&self.path);
            present.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_left_behind_are_removed_and_those_in_use_stay() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("disk");
        let others = [".disk.new", ".disk.1x.new", ".disk2.1.0.new", ".disk.1.0.old"];
        for name in others.into_iter().chain([".disk.1.0.new", ".disk.77.new"]) {
            fs::write(directory.path().join(name), "left").unwrap();
        }
        let unfinished = Unfinished::make(&target).unwrap();
        remove_left(&target);
        let mut expected: Vec<String> = others.map(str::to_owned).to_vec();
        expected.push(unfinished.path.file_name().unwrap().to_str().unwrap().to_owned());
        expected.sort();
        assert_eq!(names(directory.path()), expected);
        drop(unfinished);
        assert_eq!(names(directory.path()).len(), others.len());
    }

    #[test]
    fn a_long_name_has_room() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("x".repeat(255));
        Unfinished::make(&target).unwrap().finish(&target).unwrap();
        assert_eq!(names(directory.path()), ["x".repeat(255)]);
    }
}
