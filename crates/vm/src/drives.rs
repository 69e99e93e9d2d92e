//! What stands behind the drives of the machine.
//!
//! A [`Drive`] does what a device asks: [`RawFile`] with an image file, [`Overlay`] with one that
//! stays as it is while the guest writes, [`Empty`] without a medium.

mod overlay;
mod raw;

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::path::{Path, PathBuf};

use ring3_core::disk::{DiskError, DiskOperation, Medium};
use ring3_devices::floppy;
use ring3_devices::ide::{self, DriveKind};
use thiserror::Error;

pub use overlay::Overlay;
pub use raw::{Access, BlockSize, RawFile};

use crate::config::Config;
use crate::control::DriveInfo;

/// The host's side of a drive: a file, memory, or whatever holds sectors.
pub trait Drive: Debug + Send {
    /// Does `operation`; the bytes read, none for other operations.
    fn execute(&mut self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError>;

    /// What is in the drive.
    fn medium(&self) -> Option<Medium>;

    /// The file with its sectors, if there is one.
    fn file(&self) -> Option<&Path>;
}

/// A drive without a medium.
#[derive(Debug, Clone, Copy, Default)]
pub struct Empty;

impl Drive for Empty {
    fn execute(&mut self, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        match operation {
            DiskOperation::Eject => Ok(Vec::new()),
            _ => Err(DiskError::NoMedium),
        }
    }

    fn medium(&self) -> Option<Medium> {
        None
    }

    fn file(&self) -> Option<&Path> {
        None
    }
}

/// Why an image file cannot be a drive.
#[derive(Debug, Error)]
pub enum ImageError {
    /// It is not there.
    #[error("there is no image file {path}")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The user may not read it, or write it where that was asked.
    #[error("no permission to {what} {path}; {hint}")]
    Permission {
        /// The file.
        path: PathBuf,
        /// What was tried: to read, or to read and write.
        what: &'static str,
        /// What may help.
        hint: &'static str,
    },
    /// Something else went wrong.
    #[error("{path} cannot be opened as an image: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the host says.
        source: io::Error,
    },
    /// It is a directory, a pipe or the like.
    #[error("{path} is neither a file nor a block device")]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
    /// It is empty, or ends within a sector.
    #[error(
        "{path} has {len} bytes, which is no whole number of {block}-byte sectors: it is cut short or no raw image"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        len: u64,
        /// Bytes of a sector.
        block: u64,
    },
    /// Another drive, perhaps of another virtual machine, uses it.
    #[error(
        "{path} is in use by another drive or virtual machine; a second one may only read it, where neither writes"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// There is no room for what the guest writes.
    #[error(
        "no temporary file for writes to {path} in {directory}: {source}; TMPDIR names another directory"
    )]
    Temporary {
        /// The image.
        path: PathBuf,
        /// The directory for temporary files.
        directory: PathBuf,
        /// What the host says.
        source: io::Error,
    },
}

/// The drives of a machine, each by the name of its device and its number there.
#[derive(Default)]
pub(crate) struct Drives(Vec<(String, u8, Box<dyn Drive>)>);

impl Debug for Drives {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(device, unit, _)| (device, unit))).finish()
    }
}

impl Drives {
    /// Attaches `drive`, in the place of the one that was there.
    pub(crate) fn attach(&mut self, device: &str, unit: u8, drive: Box<dyn Drive>) {
        self.0.retain(|(of, number, _)| (of.as_str(), *number) != (device, unit));
        self.0.push((device.to_owned(), unit, drive));
    }

    /// The drive `unit` of device `device`.
    pub(crate) fn find(&mut self, device: &str, unit: u8) -> Option<&mut (dyn Drive + 'static)> {
        let found =
            self.0.iter_mut().find(|(of, number, _)| (of.as_str(), *number) == (device, unit));
        found.map(|(_, _, drive)| drive.as_mut())
    }

    /// What the drives of a machine of that shape are. Whether the guest holds their media, the board knows.
    pub(crate) fn describe(&self, config: &Config) -> Vec<DriveInfo> {
        let ide = config.ide.iter().zip(0..).filter_map(|(drive, unit)| {
            let removable = matches!(drive.as_ref()?.kind, DriveKind::CdRom(_));
            Some((ide::NAME, unit, removable))
        });
        let diskettes = config.diskettes.iter().zip(0..).filter_map(|(drive, unit)| {
            drive.as_ref()?;
            Some((floppy::NAME, unit, true))
        });
        let info = |(device, unit, removable): (&str, u8, bool)| {
            let place =
                |(of, number, _): &&(String, u8, _)| (of.as_str(), *number) == (device, unit);
            let drive = self.0.iter().find(place).map(|(_, _, drive)| drive);
            DriveInfo {
                device: device.to_owned(),
                unit,
                removable,
                locked: false,
                medium: drive.and_then(|drive| drive.medium()),
                file: drive.and_then(|drive| drive.file()).map(Path::to_owned),
            }
        };
        ide.chain(diskettes).map(info).collect()
    }
}
