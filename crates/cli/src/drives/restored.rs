//! The drives of a saved machine.

use std::path::Path;

use ring3_block::{Format, Image, OpenOptions, SnapshotAct};
use ring3_core::device::DeviceId;
use ring3_core::disk::DiskOperation;
use ring3_devices::ide::DriveKind;
use ring3_disk::{Access, BlockSize, ImageError, ImageFile, ImageOptions, Overlay};
use ring3_snapshot::{OpenError, SavedDrive, Snapshot};
use ring3_vm::drives::{Attachment, Drive, DriveNames, Empty, KeptDisk, LimitError};
use ring3_vm::{Config, Vm};
use thiserror::Error;

/// The reasons why the drives of a saved machine cannot be attached again.
#[derive(Debug, Error)]
pub(crate) enum RestoreDriveError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Snapshot(#[from] OpenError),
    #[error("{path} has another size than when the machine was saved")]
    Size { path: String },
    #[error(transparent)]
    Limits(#[from] LimitError),
}

/// Attaches the drives of the machine in `snapshot` to `vm`, with their disks as they were. With
/// `throws_away`, nothing changes in their files.
pub(crate) fn attach(
    snapshot: &Snapshot,
    throws_away: bool,
    vm: &mut Vm,
) -> Result<(), RestoreDriveError> {
    for saved in snapshot.drives() {
        let at = saved.drive();
        let drive = open(snapshot, saved, throws_away, is_disc(saved, vm.config()))?;
        if let (Some(file), Some(medium)) = (&saved.file, drive.medium())
            && medium_sectors(saved, vm.config()).is_some_and(|sectors| sectors != medium.sectors)
        {
            return Err(RestoreDriveError::Size { path: file.display().to_string() });
        }
        let mut attachment = Attachment::new(drive.into());
        if DeviceId::VIRTIO_BLK.contains(&at.device) {
            if let Some(id) = &saved.id {
                vm.name_card(at.device, id.clone());
            }
        } else {
            attachment.names = DriveNames { device: saved.id.clone(), ..DriveNames::default() };
        }
        vm.attach_drive(at, attachment)?;
    }
    Ok(())
}

/// Opens what does the work of a drive.
fn open(
    snapshot: &Snapshot,
    saved: &SavedDrive,
    throws_away: bool,
    is_disc: bool,
) -> Result<Box<dyn Drive>, RestoreDriveError> {
    let (Some(path), false) = (&saved.file, saved.kept == KeptDisk::NoMedium) else {
        return Ok(Box::new(Empty));
    };
    let options = ImageOptions {
        format: saved.format.as_deref().and_then(|name| name.parse().ok()),
        block: if is_disc { BlockSize::CdRom } else { BlockSize::Disk },
        cache: saved.cache,
        detect_zeroes: saved.detect_zeroes,
        discard: true,
        ..ImageOptions::default()
    };
    Ok(match &saved.kept {
        KeptDisk::NoMedium | KeptDisk::InFile => Box::new(ImageFile::open(path, options)?),
        KeptDisk::InSnapshot(name) if throws_away => {
            let shows = Some(name.clone());
            Box::new(Overlay::open(path, ImageOptions { shows, ..options })?)
        }
        KeptDisk::InSnapshot(name) => {
            go_back(path, options.format, name)?;
            let access = Access::ReadWrite;
            Box::new(ImageFile::open(path, ImageOptions { access, ..options })?)
        }
        KeptDisk::UnderWrites(shows) => {
            let shows = shows.clone();
            let overlay = Overlay::open(path, ImageOptions { shows, ..options })?;
            snapshot.written(saved, |sector, data| {
                let written = overlay.execute(&DiskOperation::Write { sector, data });
                written.map(drop).map_err(std::io::Error::other)
            })?;
            Box::new(overlay)
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
    } else {
        let index = DeviceId::VIRTIO_BLK.iter().position(|device| *device == saved.device)?;
        config.virtio_disks.get(index)?.as_ref()?.model.medium
    };
    Some(medium.sectors)
}
