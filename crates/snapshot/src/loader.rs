//! Lets a machine that runs go on as the one in a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_disk::ImageOptions;
use ring3_vm::control::{Ended, LoadError, Running};
use ring3_vm::drives::{Drive, KeepDiskError, KeptDisk};
use ring3_vm::{Control, Vm, VmError};
use thiserror::Error;

use crate::drives::{self, RestoreDriveError};
use crate::error::OpenError;
use crate::format::SavedDrive;
use crate::reader::Snapshot;

/// The reasons why a machine does not go on as the one in a file. It goes on as it was, apart from
/// [`LoadFileError::HalfBack`].
#[derive(Debug, Error)]
pub enum LoadFileError {
    /// The file cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No other machine, or not this one, can take the place of the one that runs.
    #[error(transparent)]
    Machine(#[from] LoadError),
    /// The machine cannot be made.
    #[error("cannot continue the machine in {path}: {source}", path = .path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: VmError,
    },
    /// A disk cannot be opened.
    #[error(transparent)]
    Drive(#[from] RestoreDriveError),
    /// The machine that runs does not have the disk.
    #[error(
        "{path} is a disk of the saved machine, but not of the one that runs: continue the saved one with \
         ring3 run --restore", path = .0.display()
    )]
    NoDrive(PathBuf),
    /// The snapshot in the image of the disk is gone.
    #[error("{path} has no snapshot {name} any more", path = .path.display())]
    NoSnapshot {
        /// The image.
        path: PathBuf,
        /// The snapshot.
        name: String,
    },
    /// The machine that runs writes to an image that must not change.
    #[error(
        "the machine that runs writes to {path}, to which the saved one did not: end it, and use \
         ring3 run --restore", path = .0.display()
    )]
    Writes(PathBuf),
    /// A disk did not go back, though others may have: the machine stands still.
    #[error(
        "{path} cannot go back: {source}; the machine stands still, since its disks may be of different moments: \
         try it again, or end it", path = .path.display()
    )]
    HalfBack {
        /// The image.
        path: PathBuf,
        /// The reason.
        source: KeepDiskError,
    },
}

/// Lets the machine behind `control` go on as the one in the file at `path`, with its disks. Everyone who is
/// connected to it stays connected.
pub fn load(control: &Control, path: &Path) -> Result<(), LoadFileError> {
    let snapshot = Snapshot::open(path)?;
    let ended = |ended: Ended| LoadError::from(ended);
    control.hold().map_err(ended)?;
    let path = path.to_owned();
    let loaded = control.load(move |running| make(&snapshot, path, &running));
    if matches!(loaded, Err(LoadFileError::HalfBack { .. })) {
        control.pause().map_err(ended)?;
    }
    control.release().map_err(ended)?;
    loaded
}

/// Makes the machine in `snapshot`. The disks of the one that runs go back only when nothing else can fail.
fn make(snapshot: &Snapshot, path: PathBuf, running: &Running<'_>) -> Result<Vm, LoadFileError> {
    running.check(snapshot.machine())?;
    let made = Vm::restore(snapshot.machine(), running.engine());
    let mut vm = made.map_err(|source| LoadFileError::Restore { path, source })?;
    snapshot.give_memory(&mut vm)?;
    let mut back = Vec::new();
    drives::attach(snapshot.drives(), &mut vm, |saved, options| {
        open(snapshot, saved, options, running, &mut back)
    })?;
    vm.write_flash().map_err(RestoreDriveError::from)?;
    for Back { path, drive, name } in back {
        drive.go_back(&name).map_err(|source| LoadFileError::HalfBack { path, source })?;
    }
    Ok(vm)
}

/// A disk that is to go back to what it has kept by `name`.
struct Back {
    path: PathBuf,
    drive: Arc<dyn Drive>,
    name: String,
}

/// Opens what does the work of a drive. A disk that the machine writes to itself stays open, and is put into
/// `back`.
fn open(
    snapshot: &Snapshot,
    saved: &SavedDrive,
    options: ImageOptions,
    running: &Running<'_>,
    back: &mut Vec<Back>,
) -> Result<Arc<dyn Drive>, LoadFileError> {
    let Some(path) = saved.file.as_ref().filter(|_| saved.kept != KeptDisk::NoMedium) else {
        return Ok(drives::open(snapshot, saved, options)?);
    };
    let has_file = |file: &Path| std::path::absolute(file).is_ok_and(|file| file == *path);
    let present = running.drives.iter().map(|(_, drive)| drive);
    let present = present.filter(|drive| drive.file().is_some_and(has_file));
    let writer = present.clone().find(|drive| drives::writes_to_file(drive.as_ref()));
    match (&saved.kept, writer) {
        (KeptDisk::InSnapshot(name), Some(drive)) => {
            if !drive.has_kept(name) {
                let (path, name) = (path.clone(), name.clone());
                return Err(LoadFileError::NoSnapshot { path, name });
            }
            let (path, name, drive) = (path.clone(), name.clone(), Arc::clone(drive));
            back.push(Back { path, drive: Arc::clone(&drive), name });
            Ok(drive)
        }
        (KeptDisk::InFile, Some(drive)) if saved.device == DeviceId::FLASH => Ok(Arc::clone(drive)),
        (_, Some(_)) => Err(LoadFileError::Writes(path.clone())),
        (KeptDisk::InSnapshot(_), None) if present.count() == 0 => {
            Err(LoadFileError::NoDrive(path.clone()))
        }
        (_, None) => Ok(drives::open(snapshot, saved, options)?),
    }
}
