//! Disks that pass from one process to another.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use ring3_core::disk::{DiskOperation, DriveId, SECTOR_SIZE};
use ring3_vm::Vm;
use ring3_vm::control::{DRIVES_MAX, DriveInfo};
use ring3_vm::drives::{Drive, Empty, KeptDisk, Opener};

use super::MoveError;
use super::stream::{Frame, Kind, MovedDrive};
use crate::drives;
use crate::format::SavedDrive;

/// Bytes of sectors in a frame.
const PIECE: usize = 1 << 20;
/// How long to wait between two looks whether a disk is closed, or can be opened.
const BETWEEN: Duration = Duration::from_millis(1);

/// Disks that are open again, each with the drive that it belongs to.
pub(super) type OpenDrives = Vec<(DriveId, Arc<dyn Drive>)>;

/// A disk that cannot be opened again.
pub(super) struct NotOpen {
    pub(super) disk: String,
    pub(super) source: Box<dyn std::error::Error + Send + Sync>,
}

/// Disks that were taken from a machine.
#[derive(Default)]
pub(super) struct Handed {
    disks: Vec<HandedDisk>,
}

struct HandedDisk {
    at: DriveId,
    name: String,
    opener: Opener,
    /// Gone as soon as the disk is closed.
    drive: Weak<dyn Drive>,
}

/// Returns the name of a disk for people.
fn name(info: &DriveInfo) -> String {
    info.file.as_ref().map_or_else(|| info.device().to_owned(), |file| file.display().to_string())
}

/// Returns whether only one process at a time can use the disk.
fn is_exclusive(drive: &dyn Drive) -> bool {
    drives::writes_to_file(drive) || is_served(drive)
}

fn is_served(drive: &dyn Drive) -> bool {
    drive.file().is_some() && drive.format().is_none()
}

/// Checks that all disks of `vm` can be handed over.
pub(super) fn check(vm: &Vm) -> Result<(), MoveError> {
    for (info, drive) in vm.drives() {
        if is_exclusive(&*drive) && drive.opener().is_none() {
            let why = "it is encrypted, and the password is not known any more";
            return Err(MoveError::Held { disk: name(&info), why });
        }
    }
    Ok(())
}

/// Takes the disks from `vm`, which stands still, and writes what is under way. Sectors that are nowhere else go
/// into `frames`.
pub(super) fn take(
    vm: &mut Vm,
    handed: &mut Handed,
    frames: &mut Vec<Frame>,
) -> Result<Vec<MovedDrive>, MoveError> {
    let mut drives = Vec::new();
    for (number, (info, drive)) in (0_u32..).zip(vm.drives()) {
        let mut kept = KeptDisk::InFile;
        if drive.medium().is_none() {
            kept = KeptDisk::NoMedium;
        } else if drive.throws_away() {
            kept = drive.keep("", &mut |sector, bytes| {
                for (at, bytes) in (sector..).step_by(PIECE / SECTOR_SIZE).zip(bytes.chunks(PIECE))
                {
                    let mut frame = Frame::new(Kind::Sectors);
                    frame.bytes().extend(number.to_le_bytes());
                    frame.bytes().extend(at.to_le_bytes());
                    frame.bytes().extend(bytes);
                    frames.push(frame);
                }
                Ok(())
            })?;
        }
        let (writes, is_served) = (is_exclusive(&*drive), is_served(&*drive));
        let read_only = drive.medium().is_some_and(|medium| medium.read_only);
        drives.push(MovedDrive { saved: saved(&info, kept), writes, is_served, read_only });
        if writes {
            let held = |why| MoveError::Held { disk: name(&info), why };
            let opener = drive.opener().ok_or_else(|| held("it cannot be opened again"))?;
            if drive.medium().is_some_and(|medium| !medium.read_only) {
                let flushed = drive.execute(&DiskOperation::Flush);
                flushed.map_err(|_| held("what the guest has written cannot be flushed"))?;
            }
            vm.exchange_drive(info.drive, Arc::new(Empty));
            let (at, name) = (info.drive, name(&info));
            handed.disks.push(HandedDisk { at, name, opener, drive: Arc::downgrade(&drive) });
        }
    }
    Ok(drives)
}

fn saved(info: &DriveInfo, kept: KeptDisk) -> SavedDrive {
    let file = info.file.as_deref().map(|file| std::path::absolute(file).unwrap_or(file.into()));
    SavedDrive::of(info, file, kept, Vec::new())
}

impl Handed {
    /// Waits until all disks are closed, so that others can open them.
    pub(super) fn wait(&self) -> Result<(), MoveError> {
        let until = Instant::now() + DRIVES_MAX;
        for disk in &self.disks {
            while disk.drive.strong_count() > 0 {
                if Instant::now() > until {
                    let why = "something else in this process uses it";
                    return Err(MoveError::Held { disk: disk.name.clone(), why });
                }
                thread::sleep(BETWEEN);
            }
        }
        Ok(())
    }

    /// Opens the disks again. Each may take until `until`: the other end may not have closed it yet.
    pub(super) fn take_back(&self, until: Instant) -> Result<OpenDrives, NotOpen> {
        let open = |disk: &HandedDisk| loop {
            match disk.drive.upgrade().map_or_else(&disk.opener, Ok) {
                Ok(drive) => return Ok((disk.at, drive)),
                Err(_) if Instant::now() < until => thread::sleep(BETWEEN),
                Err(source) => return Err(NotOpen { disk: disk.name.clone(), source }),
            }
        };
        self.disks.iter().map(open).collect()
    }
}
