//! The drives of a saved machine.

use std::path::Path;
use std::sync::Arc;

use ring3_block::{Format, Image, OpenOptions, SnapshotAct};
use ring3_core::device::DeviceId;
use ring3_core::disk::{DiskError, DiskOperation};
use ring3_devices::ide::DriveKind;
use ring3_disk::{Access, BlockSize, ImageError, ImageFile, ImageOptions, Overlay};
use ring3_vm::drives::{Attachment, Drive, Empty, KeptDisk, LimitError};
use ring3_vm::{Config, Vm};
use thiserror::Error;

use crate::error::OpenError;
use crate::format::SavedDrive;
use crate::reader::Snapshot;

/// The reasons why the drives of a saved machine cannot be attached again.
#[derive(Debug, Error)]
pub enum RestoreDriveError {
    /// An image cannot be opened.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The file of the saved machine cannot be read.
    #[error(transparent)]
    Snapshot(#[from] OpenError),
    /// An image has another size.
    #[error("{path} has another size than when the machine was saved")]
    Size {
        /// The image.
        path: String,
    },
    /// The flash memory cannot be written to its file.
    #[error("cannot write the machine's flash memory to its file: {0}")]
    Flash(#[from] DiskError),
    /// The drive gets no limits.
    #[error(transparent)]
    Limits(#[from] LimitError),
}

/// Returns whether what the guest writes to `drive` goes to the file of the disk.
pub(crate) fn writes_to_file(drive: &dyn Drive) -> bool {
    !drive.throws_away() && drive.medium().is_some_and(|medium| !medium.read_only)
}

/// Attaches the drives of the machine in `snapshot` to `vm`, with their disks as they were. With
/// `throws_away`, nothing changes in their files.
pub fn attach_drives(
    snapshot: &Snapshot,
    throws_away: bool,
    vm: &mut Vm,
) -> Result<(), RestoreDriveError> {
    let flash: Vec<_> = vm.config().flash.iter().map(|chip| chip.read_only).collect();
    attach(snapshot.drives(), vm, |saved, options| match (&saved.kept, &saved.file) {
        (KeptDisk::InFile, Some(path)) if saved.device == DeviceId::FLASH => {
            let read_only = flash.get(usize::from(saved.unit)).is_none_or(|read_only| *read_only);
            let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
            let options = ImageOptions { access, ..options };
            Ok(if throws_away {
                Arc::new(Overlay::open(path, options)?)
            } else {
                Arc::new(ImageFile::open(path, options)?)
            })
        }
        (KeptDisk::InSnapshot(name), Some(path)) if !throws_away => {
            go_back(path, options.format, name)?;
            let access = Access::ReadWrite;
            Ok(Arc::new(ImageFile::open(path, ImageOptions { access, ..options })?))
        }
        _ => open(snapshot, saved, options),
    })?;
    Ok(vm.write_flash()?)
}

/// Attaches `drives` to `vm`. What does the work of each is opened by `open`.
pub(crate) fn attach<E: From<RestoreDriveError>>(
    drives: &[SavedDrive],
    vm: &mut Vm,
    mut open: impl FnMut(&SavedDrive, ImageOptions) -> Result<Arc<dyn Drive>, E>,
) -> Result<(), E> {
    for saved in drives {
        let at = saved.drive();
        let is_disc = is_disc(saved, vm.config());
        let drive = open(saved, options(saved, is_disc))?;
        if let (Some(file), Some(medium)) = (&saved.file, drive.medium())
            && medium_sectors(saved, vm.config()).is_some_and(|sectors| sectors != medium.sectors)
        {
            return Err(RestoreDriveError::Size { path: file.display().to_string() }.into());
        }
        let mut names = saved.names.clone();
        if DeviceId::VIRTIO_BLK.contains(&at.device) {
            if let Some(id) = &saved.id {
                vm.name_card(at.device, id.clone());
            }
        } else {
            names.device.clone_from(&saved.id);
        }
        let (limits, errors) = (saved.limits, saved.errors);
        vm.attach_drive(at, Attachment { drive, names, limits, errors })
            .map_err(RestoreDriveError::from)?;
    }
    Ok(())
}

fn options(saved: &SavedDrive, is_disc: bool) -> ImageOptions {
    ImageOptions {
        format: saved.format.as_deref().and_then(|name| name.parse().ok()),
        block: if is_disc { BlockSize::CdRom } else { BlockSize::Disk },
        cache: saved.cache,
        detect_zeroes: saved.detect_zeroes,
        discard: true,
        ..ImageOptions::default()
    }
}

/// Opens what does the work of a drive, so that nothing changes in its file.
pub(crate) fn open(
    snapshot: &Snapshot,
    saved: &SavedDrive,
    options: ImageOptions,
) -> Result<Arc<dyn Drive>, RestoreDriveError> {
    let Some(path) = &saved.file else { return Ok(Arc::new(Empty)) };
    Ok(match &saved.kept {
        KeptDisk::NoMedium => Arc::new(Empty),
        KeptDisk::InFile => Arc::new(ImageFile::open(path, options)?),
        KeptDisk::InSnapshot(name) => {
            let shows = Some(name.clone());
            Arc::new(Overlay::open(path, ImageOptions { shows, ..options })?)
        }
        KeptDisk::UnderWrites(shows) => {
            let shows = shows.clone();
            let overlay = Overlay::open(path, ImageOptions { shows, ..options })?;
            snapshot.written(saved, |sector, data| {
                let written = overlay.execute(&DiskOperation::Write { sector, data });
                written.map(drop).map_err(std::io::Error::other)
            })?;
            Arc::new(overlay)
        }
    })
}

/// Returns the disk in the image at `path` to the state in snapshot `name`.
fn go_back(path: &Path, format: Option<Format>, name: &str) -> Result<(), ImageError> {
    let options = OpenOptions { format, writes: true, ..OpenOptions::default() };
    let image = Image::open(path, &options)?;
    image.snapshot(&SnapshotAct::Apply(name.to_owned()))?;
    image.close()?;
    Ok(())
}

/// Returns whether the drive takes discs.
fn is_disc(saved: &SavedDrive, config: &Config) -> bool {
    let ide = config.ide.get(usize::from(saved.unit)).and_then(Option::as_ref);
    saved.device == DeviceId::IDE && ide.is_some_and(|ide| matches!(ide.kind, DriveKind::CdRom(_)))
}

/// Returns the size of the disk that the configuration gives the drive, if its medium cannot be changed.
fn medium_sectors(saved: &SavedDrive, config: &Config) -> Option<u64> {
    let unit = usize::from(saved.unit);
    let medium = if saved.device == DeviceId::IDE {
        match config.ide.get(unit)?.as_ref()?.kind {
            DriveKind::Disk(medium) => medium,
            DriveKind::CdRom(_) => return None,
        }
    } else if saved.device == DeviceId::FLASH {
        *config.flash.get(unit)?
    } else {
        let index = DeviceId::VIRTIO_BLK.iter().position(|device| *device == saved.device)?;
        config.virtio_disks.get(index)?.as_ref()?.model.medium
    };
    Some(medium.sectors)
}
