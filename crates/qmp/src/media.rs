//! The commands that change discs and diskettes, and the sizes of disks.
//!
//! A guest that has locked the tray of its drive is asked for the disc, and the command fails; with `force` the guest finds
//! the disc changed.

use std::path::{Path, PathBuf};

use ring3_block::format::{Format, UnknownFormat};
use ring3_devices::floppy::{self, DriveKind};
use ring3_vm::control::{ChangeError, DriveInfo};
use ring3_vm::drives::{
    Access, BlockSize, Drive, Empty, ImageError, ImageFile, ImageOptions, ResizeError,
};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::{Machine, done};
use crate::protocol::{Arguments, Failure, read};

/// What a client calls `drive`: as query-block says.
pub(crate) fn name(device: &str, unit: u8) -> String {
    format!("{device}-{unit}")
}

/// What a diskette may be used for (QMP Reference Manual, `BlockdevChangeReadOnlyMode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ReadOnlyMode {
    /// What it was used for before.
    #[default]
    Retain,
    ReadOnly,
    ReadWrite,
}

/// Takes the medium out of a drive.
pub(crate) fn eject(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Eject {
        device: Option<String>,
        id: Option<String>,
        #[serde(default)]
        force: bool,
    }
    let Eject { device, id, force } = read(arguments)?;
    let drive = find_removable(machine, device.or(id))?;
    put(machine, &drive, Box::new(Empty), force)?;
    done()
}

/// Puts an image into a drive, in the place of what is in it.
pub(crate) fn change(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct ChangeMedium {
        device: Option<String>,
        id: Option<String>,
        filename: PathBuf,
        format: Option<String>,
        #[serde(default)]
        force: bool,
        #[serde(default)]
        read_only_mode: ReadOnlyMode,
    }
    let ChangeMedium { device, id, filename, format, force, read_only_mode } = read(arguments)?;
    insert(machine, device.or(id), &filename, format.as_deref(), read_only_mode, force)
}

/// The same in its older form.
pub(crate) fn change_by_target(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Change {
        device: String,
        target: PathBuf,
        /// The format of the image.
        arg: Option<String>,
    }
    let Change { device, target, arg } = read(arguments)?;
    insert(machine, Some(device), &target, arg.as_deref(), ReadOnlyMode::default(), false)
}

fn insert(
    machine: &Machine,
    device: Option<String>,
    path: &Path,
    format: Option<&str>,
    mode: ReadOnlyMode,
    force: bool,
) -> Result<Value, Failure> {
    let format = format.map(str::parse).transpose();
    let format = format.map_err(|error: UnknownFormat| Failure::generic(error.to_string()))?;
    let drive = find_removable(machine, device)?;
    let present = drive.file.as_deref().is_some_and(|present| is_same_file(present, path));
    // The file is locked as long as it is in use.
    if present {
        put(machine, &drive, Box::new(Empty), force)?;
    }
    let image =
        open(&drive, path, format, mode).map_err(|error| Failure::generic(error.to_string()))?;
    if drive.device == floppy::NAME
        && image.medium().is_none_or(|medium| DriveKind::for_image(medium.sectors).is_none())
    {
        let path = path.display();
        return Err(Failure::generic(format!("{path} has the size of no diskette")));
    }
    put(machine, &drive, Box::new(image), force)?;
    done()
}

/// Gives a disk another size.
pub(crate) fn resize(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Resize {
        device: Option<String>,
        node_name: Option<String>,
        size: u64,
    }
    let Resize { device, node_name, size } = read(arguments)?;
    let drive = find(machine, device.or(node_name))?;
    let resized = machine.control.resize_drive(&drive.device, drive.unit, size);
    resized.map_err(|error| match error {
        ResizeError::Ended(ended) => ended.into(),
        error => Failure::generic(error.to_string()),
    })?;
    done()
}

/// Makes `image` what is in `drive`.
fn put(
    machine: &Machine,
    drive: &DriveInfo,
    image: Box<dyn Drive>,
    force: bool,
) -> Result<(), Failure> {
    let changed = machine.control.change_medium(&drive.device, drive.unit, image, force);
    changed.map_err(|error| match error {
        ChangeError::Ended(ended) => ended.into(),
        ChangeError::Held(held) => Failure::generic(format!(
            "Device '{}': {held} and was asked to open it: try again when it has, or with 'force'",
            name(&drive.device, drive.unit)
        )),
    })
}

/// The image at `path` as the medium of `drive`.
fn open(
    drive: &DriveInfo,
    path: &Path,
    format: Option<Format>,
    mode: ReadOnlyMode,
) -> Result<ImageFile, ImageError> {
    // What becomes of writes stays as it is with the medium that is there.
    let DriveInfo { cache, detect_zeroes, .. } = *drive;
    let options = ImageOptions { format, cache, detect_zeroes, ..ImageOptions::default() };
    if drive.device != floppy::NAME {
        return ImageFile::open(path, ImageOptions { block: BlockSize::CdRom, ..options });
    }
    let access = match (mode, drive.medium) {
        (ReadOnlyMode::ReadOnly, _) => Access::ReadOnly,
        (ReadOnlyMode::Retain, Some(medium)) if medium.read_only => Access::ReadOnly,
        _ => Access::ReadWrite,
    };
    ImageFile::open(path, ImageOptions { access, ..options })
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The drive that a client asks for by its name, whose medium can be changed.
fn find_removable(machine: &Machine, asked_for: Option<String>) -> Result<DriveInfo, Failure> {
    let drive = find(machine, asked_for)?;
    if drive.removable {
        Ok(drive)
    } else {
        Err(Failure::generic(format!(
            "Device '{}' is not removable",
            name(&drive.device, drive.unit)
        )))
    }
}

/// The drive that a client asks for by its name.
pub(crate) fn find(machine: &Machine, asked_for: Option<String>) -> Result<DriveInfo, Failure> {
    let asked_for =
        asked_for.ok_or_else(|| Failure::generic("Need exactly one of 'device' and 'id'"))?;
    let drives = machine.control.drives()?;
    let drive = drives.into_iter().find(|drive| name(&drive.device, drive.unit) == asked_for);
    drive.ok_or_else(|| Failure::generic(format!("Device '{asked_for}' not found")))
}
