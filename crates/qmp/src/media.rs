//! The commands that change discs and diskettes, and the sizes of disks.
//!
//! If a guest has locked the tray of its drive, it is asked for the disc, and the command fails. With `force`
//! the disc is changed at once.

use std::path::{Path, PathBuf};

use ring3_block::format::{Format, UnknownFormat};
use ring3_core::device::DeviceId;
use ring3_core::disk::DriveId;
use ring3_devices::floppy::DriveKind;
use ring3_disk::{Access, BlockSize, ImageError, ImageFile, ImageOptions};
use ring3_vm::control::{ChangeError, DriveInfo};
use ring3_vm::drives::{Drive, Empty, ResizeError};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::{Machine, done};
use crate::protocol::{Arguments, Failure, read};

/// Returns the name of a drive, whatever is in it, as in query-block.
pub(crate) fn name(drive: &DriveInfo) -> String {
    drive.name()
}

/// Returns the name of a drive to which nobody has given one.
pub(crate) fn place(DriveId { device, unit }: DriveId) -> String {
    format!("{device}-{unit}")
}

/// Returns QEMU's name of a drive at this place, such as `ide1-cd0`, which people and scripts know.
fn qemu_name(drive: &DriveInfo) -> String {
    let DriveId { device, unit } = drive.drive;
    match device {
        DeviceId::IDE => {
            let kind = if drive.removable { "cd" } else { "hd" };
            format!("ide{}-{kind}{}", unit / 2, unit % 2)
        }
        DeviceId::FLOPPY => format!("floppy{unit}"),
        DeviceId::FLASH => format!("pflash{unit}"),
        device => device.name().replace("virtio-blk", "virtio"),
    }
}

/// Returns the name of the node in a drive. A name that nobody has given begins with a character that given
/// names cannot begin with.
pub(crate) fn node_name(drive: &DriveInfo) -> String {
    drive.names.node.clone().unwrap_or_else(|| format!("#{}", place(drive.drive)))
}

/// The permitted use of a diskette (QMP Reference Manual, `BlockdevChangeReadOnlyMode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ReadOnlyMode {
    /// The same as that of the diskette before.
    #[default]
    Retain,
    ReadOnly,
    ReadWrite,
}

/// Removes the medium from a drive.
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
    let drive = find_removable(machine, &Asked { device, id, ..Asked::default() })?;
    put(machine, &drive, Box::new(Empty), force)?;
    done()
}

/// Puts an image into a drive and removes the present medium.
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
    let asked = Asked { device, id, ..Asked::default() };
    insert(machine, &asked, &filename, format.as_deref(), read_only_mode, force)
}

/// Executes the older form of the same command.
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
    let asked = Asked { device: Some(device), ..Asked::default() };
    insert(machine, &asked, &target, arg.as_deref(), ReadOnlyMode::default(), false)
}

fn insert(
    machine: &Machine,
    asked: &Asked,
    path: &Path,
    format: Option<&str>,
    mode: ReadOnlyMode,
    force: bool,
) -> Result<Value, Failure> {
    let format = format.map(str::parse).transpose();
    let format = format.map_err(|error: UnknownFormat| Failure::generic(error.to_string()))?;
    let drive = find_removable(machine, asked)?;
    let present = drive.file.as_deref().is_some_and(|present| is_same_file(present, path));
    // The file is locked as long as it is in use.
    if present {
        put(machine, &drive, Box::new(Empty), force)?;
    }
    let image =
        open(&drive, path, format, mode).map_err(|error| Failure::generic(error.to_string()))?;
    if drive.drive.device == DeviceId::FLOPPY
        && image.medium().is_none_or(|medium| DriveKind::for_image(medium.sectors).is_none())
    {
        let path = path.display();
        return Err(Failure::generic(format!("{path} has the size of no diskette")));
    }
    put(machine, &drive, Box::new(image), force)?;
    done()
}

/// Changes the size of a disk.
pub(crate) fn resize(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Resize {
        device: Option<String>,
        node_name: Option<String>,
        size: u64,
    }
    let Resize { device, node_name, size } = read(arguments)?;
    let drive = find(machine, &Asked { device, node_name, ..Asked::default() })?;
    let resized = machine.control.resize_drive(drive.drive, size);
    resized.map_err(|error| match error {
        ResizeError::Ended(ended) => ended.into(),
        error => Failure::generic(error.to_string()),
    })?;
    done()
}

/// Puts `image` into `drive`.
fn put(
    machine: &Machine,
    drive: &DriveInfo,
    image: Box<dyn Drive>,
    force: bool,
) -> Result<(), Failure> {
    let changed = machine.control.change_medium(drive.drive, image, force);
    changed.map_err(|error| match error {
        ChangeError::Ended(ended) => ended.into(),
        ChangeError::Held(held) => Failure::generic(format!(
            "Device '{}': {held} and was asked to open it: try again when it has, or with 'force'",
            name(drive)
        )),
    })
}

/// Opens the image at `path` as the medium of `drive`.
fn open(
    drive: &DriveInfo,
    path: &Path,
    format: Option<Format>,
    mode: ReadOnlyMode,
) -> Result<ImageFile, ImageError> {
    // The options for writes stay those of the present medium.
    let DriveInfo { cache, detect_zeroes, .. } = *drive;
    let options = ImageOptions { format, cache, detect_zeroes, ..ImageOptions::default() };
    if drive.drive.device != DeviceId::FLOPPY {
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

/// The name by which a client asks for a drive: one of these.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The name of the drive.
    pub(crate) device: Option<String>,
    /// The name of the device to which the drive is attached.
    pub(crate) id: Option<String>,
    /// The name of the node in the drive.
    pub(crate) node_name: Option<String>,
}

impl Asked {
    fn means(&self, drive: &DriveInfo) -> bool {
        // If a device was not given a name, its drive has the name of its place as any of them.
        let place = place(drive.drive);
        if let Some(device) = &self.device {
            *device == name(drive) || *device == place || *device == qemu_name(drive)
        } else if let Some(id) = &self.id {
            *id == *drive.id.as_ref().unwrap_or(&place)
        } else {
            self.node_name.as_ref() == Some(&node_name(drive))
        }
    }
}

/// Returns the drive that a client asks for, if its medium can be changed.
fn find_removable(machine: &Machine, asked: &Asked) -> Result<DriveInfo, Failure> {
    let drive = find(machine, asked)?;
    if drive.removable {
        Ok(drive)
    } else {
        Err(Failure::generic(format!("Device '{}' is not removable", name(&drive))))
    }
}

/// Returns the drive that a client asks for.
pub(crate) fn find(machine: &Machine, asked: &Asked) -> Result<DriveInfo, Failure> {
    let Asked { device, id, node_name } = asked;
    let by = [("device", device), ("id", id), ("node-name", node_name)];
    let mut given = by.iter().filter_map(|(kind, name)| Some((*kind, name.as_ref()?)));
    let (Some((kind, asked_for)), None) = (given.next(), given.next()) else {
        return Err(Failure::generic("Need exactly one of 'device' and 'id'"));
    };
    let drives = machine.control.drives()?;
    let drive = drives.into_iter().find(|drive| asked.means(drive));
    drive.ok_or_else(|| match kind {
        "node-name" => {
            Failure::generic(format!("Cannot find device='' nor node-name='{asked_for}'"))
        }
        _ => Failure::device_not_found(format!("Device '{asked_for}' not found")),
    })
}
