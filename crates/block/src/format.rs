//! Which formats there are, how they are told apart, and what each has to do.

use std::fmt::{self, Debug, Display, Formatter};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use crate::check::{Repair, Report};
use crate::encryption::luks;
use crate::error::{Fault, Result};
use crate::nbd::Nbd;
use crate::preallocation::Preallocation;
use crate::spec;
use crate::{bochs, cow, parallels, qcow, vdi, vhdx, vmdk, vpc};

/// A format of images, or a way to reach one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// The sectors one after the other.
    Raw,
    /// QEMU's format, versions 2 and 3.
    Qcow2,
    /// The same, version 1.
    Qcow,
    /// VirtualBox's format.
    Vdi,
    /// VMware's format.
    Vmdk,
    /// VHD, the format of Virtual PC and Hyper-V.
    Vpc,
    /// Growing images of Bochs.
    Bochs,
    /// The format of User Mode Linux, and of QEMU before version 2.2.
    Cow,
    /// The format of newer versions of Hyper-V.
    Vhdx,
    /// Expanding images of Parallels.
    Parallels,
    /// An encrypted disk with its key, for those who have a password.
    Luks,
}

impl Format {
    /// All of them, raw first.
    pub const ALL: [Format; 11] = [
        Format::Raw,
        Format::Qcow2,
        Format::Qcow,
        Format::Vdi,
        Format::Vmdk,
        Format::Vpc,
        Format::Bochs,
        Format::Cow,
        Format::Vhdx,
        Format::Parallels,
        Format::Luks,
    ];

    /// Its name as in qemu-img.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Vdi => "vdi",
            Format::Vmdk => "vmdk",
            Format::Vpc => "vpc",
            Format::Qcow => "qcow",
            Format::Bochs => "bochs",
            Format::Cow => "cow",
            Format::Vhdx => "vhdx",
            Format::Parallels => "parallels",
            Format::Luks => "luks",
        }
    }

    /// Images of this format are written too; if not, what they are called.
    pub(crate) fn check_writes(self) -> Result<()> {
        match self {
            Format::Vhdx => Err(Fault::OnlyRead("VHDX images")),
            Format::Parallels => Err(Fault::OnlyRead("images of Parallels")),
            Format::Luks => Err(Fault::OnlyRead("encrypted images")),
            _ => Ok(()),
        }
    }

    /// What an image is that begins with `head` ([`PROBE_SIZE`] bytes, or all that there are).
    ///
    /// What looks like nothing else is raw. So a guest that owns a raw image can make it look like another format,
    /// with any file of the host as its backing file: who knows the format should say it
    /// ([`crate::OpenOptions::format`]). As in QEMU, an image that was found to be raw refuses writes to its
    /// first sector that would make something else of it.
    pub fn probe(head: &[u8]) -> Format {
        match head.get(..8) {
            Some([b'Q', b'F', b'I', 0xfb, 0, 0, 0, 2 | 3]) => Format::Qcow2,
            _ if vdi::is_one(head) => Format::Vdi,
            _ if vmdk::is_one(head) => Format::Vmdk,
            _ if vpc::is_one(head) => Format::Vpc,
            _ if qcow::is_one(head) => Format::Qcow,
            _ if bochs::is_one(head) => Format::Bochs,
            _ if cow::is_one(head) => Format::Cow,
            _ if vhdx::is_one(head) => Format::Vhdx,
            _ if parallels::is_one(head) => Format::Parallels,
            _ if luks::is_one(head) => Format::Luks,
            _ => Format::Raw,
        }
    }
}

/// Bytes from the start of an image by which its format is told.
pub const PROBE_SIZE: usize = 512;

impl Display for Format {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no such format.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("there is no image format \"{0}\"{hint}; there are {list}", hint = self.hint(),
    list = Format::ALL.map(Format::name).join(", "))]
pub struct UnknownFormat(String);

impl UnknownFormat {
    /// The name by which it is known here, where the word is a usual one.
    fn hint(&self) -> &'static str {
        match self.0.to_ascii_lowercase().as_str() {
            "vhd" => ": VHD images are vpc",
            "iso" | "img" | "ima" | "bin" | "dd" | "cdrom" | "floppy" => {
                ": discs and diskettes are raw"
            }
            "hdd" | "hds" => ": it is parallels",
            _ => "",
        }
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Format, UnknownFormat> {
        let known = Format::ALL.into_iter().find(|format| format.name() == text);
        known.ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}

/// What stands for a range of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes in its file, from `at` on where they stand there one after the other.
    Data {
        /// The place in the file, none for compressed data.
        at: Option<u64>,
    },
    /// Zeros of which the image knows; `allocated` where there is room for data all the same.
    Zero {
        /// The place in the file that is kept for them.
        at: Option<u64>,
    },
    /// Nothing: what the backing file has there, or zeros.
    Absent,
}

/// What stands for the next `len` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// What it is.
    pub kind: Kind,
    /// How long it goes on, at least 1.
    pub len: u64,
}

/// What tells an image from all others, where its format has such a number.
pub(crate) type Identity = [u8; 16];

/// What lies below an image: what it shows where it has nothing itself.
pub(crate) trait Below {
    /// Reads from there; zeros where it ends.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()>;

    /// Where it ends: what is behind is zeros.
    fn size(&self) -> u64;
}

/// Zeros, for images that stand on nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nothing;

impl Below for Nothing {
    fn read(&self, bytes: &mut [u8], _offset: u64) -> Result<()> {
        bytes.fill(0);
        Ok(())
    }

    fn size(&self) -> u64 {
        0
    }
}

/// The image on which another one stands, as its file names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingName {
    /// The file, which may be relative to the directory of the image.
    pub name: String,
    /// The format, if the image says it.
    pub format: Option<String>,
}

impl BackingName {
    /// Where that is for an image at `above`.
    pub fn path(&self, above: &Path) -> Result<PathBuf> {
        if let Some((path, _)) = self.object()? {
            return Ok(path);
        }
        if Nbd::is_address(Path::new(&self.name)) {
            return Ok(self.name.as_str().into());
        }
        let name = self.name.strip_prefix("file:").unwrap_or(&self.name);
        Ok(above.parent().unwrap_or(Path::new("")).join(name))
    }

    /// What the name is as JSON, if it is that: the file, and its format.
    fn object(&self) -> Result<Option<(PathBuf, Option<Format>)>> {
        let named = spec::named(&self.name).transpose();
        named.map_err(|error| Fault::unsupported(format!("the name of its backing file: {error}")))
    }

    /// The format, if the image says it, and it is known.
    pub fn known_format(&self) -> Result<Option<Format>> {
        if let Some((_, Some(format))) = self.object()? {
            return Ok(Some(format));
        }
        match self.format.as_deref() {
            None => Ok(None),
            // QEMU's names for "as it is".
            Some("file" | "host_device") => Ok(Some(Format::Raw)),
            Some(name) => name.parse().map(Some).map_err(|error| {
                Fault::unsupported(format!("the format of its backing file: {error}"))
            }),
        }
    }
}

/// A state of the disk that an image keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// A number that the image gave it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was made, in seconds since 1970-01-01 UTC.
    #[serde(rename = "date-sec")]
    pub date_seconds: u32,
    /// Nanoseconds of the same.
    #[serde(rename = "date-nsec")]
    pub date_nanoseconds: u32,
    /// Nanoseconds that the guest had run.
    #[serde(rename = "vm-clock-nsec")]
    pub clock: u64,
    /// Bytes of the machine's state that are kept with it.
    #[serde(rename = "vm-state-size")]
    pub state_size: u64,
}

/// What a format tells of an image beside its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Bytes of the pieces in which it takes room.
    pub cluster_size: Option<u64>,
    /// Names and values of what only this format has, in the words of qemu-img.
    pub specific: Vec<(&'static str, String)>,
    /// The snapshots in it.
    pub snapshots: Vec<Snapshot>,
    /// It was not closed as it should have been.
    pub dirty: bool,
    /// What is in it is encrypted.
    pub is_encrypted: bool,
    /// Names and values that tell how, in a format that can be without.
    pub encryption: Vec<(&'static str, String)>,
}

/// What a format does. Who calls has checked that ranges are inside of the image, and not empty.
pub(crate) trait Driver: Debug + Send + Sync {
    /// Bytes of the disk.
    fn size(&self) -> u64;

    /// What stands for the bytes from `offset` on, `max` at most.
    fn extent(&self, offset: u64, max: u64) -> Result<Extent>;

    /// Reads all of `bytes`.
    fn read(&self, bytes: &mut [u8], offset: u64, below: &dyn Below) -> Result<()>;

    /// Writes all of `bytes`. They are kept for certain after the next [`Driver::flush`].
    fn write(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()>;

    /// Reads all of `bytes`, if that needs no waiting for the host. False if it did not; `bytes` then are anything.
    fn read_at_once(&self, _bytes: &mut [u8], _offset: u64) -> bool {
        false
    }

    /// Writes all of `bytes`, if that needs no waiting for the host. False if it did not, but perhaps a part of it.
    fn write_at_once(&self, _bytes: &[u8], _offset: u64) -> bool {
        false
    }

    /// Makes zeros of a range, without room for them where the format can.
    fn write_zeroes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()>;

    /// Makes zeros of a range. A format that has the disk's bytes as they are in its storage keeps the room for them; in others
    /// there is room for them again as long as there is for anything.
    fn write_zeroes_in_place(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        self.write_zeroes(offset, len, below)
    }

    /// A hint that a range is not needed. What is read there afterwards is zeros or what was there.
    fn discard(&self, _offset: u64, _len: u64, _below: &dyn Below) -> Result<()> {
        Ok(())
    }

    /// Comes back when all that was written before is kept.
    fn flush(&self) -> Result<()>;

    /// What was written is lost, if this process ends now: tables that lead to it are in memory alone.
    fn is_behind(&self) -> bool {
        false
    }

    /// The file in which the disk stands byte by byte from its beginning on.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes room for the disk from `offset` on, where nothing is yet, and all reads as zeros. That of the tables at least.
    fn preallocate(&self, _offset: u64, mode: Preallocation) -> Result<()> {
        Err(Fault::unsupported(format!(
            "images of this format take no room before it is needed: preallocation={mode}"
        )))
    }

    /// Gives the disk another size.
    fn resize(&self, _size: u64) -> Result<()> {
        Err(Fault::unsupported("the size of images of this format cannot be changed"))
    }

    /// Looks for damage, and repairs what `repair` says.
    fn check(&self, _repair: Repair) -> Result<Report> {
        Err(Fault::unsupported("this format has nothing that could be checked"))
    }

    /// Writes one whole cluster compressed, or the last part of the disk. It must have been empty.
    fn write_compressed(&self, _bytes: &[u8], _offset: u64) -> Result<()> {
        Err(Fault::unsupported("this format cannot be written compressed"))
    }

    /// What it says of itself.
    fn details(&self) -> Details;

    /// The image on which it stands.
    fn backing(&self) -> Option<BackingName> {
        None
    }

    /// Its own identity.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// What the identity of the image on which it was made may be, where it is known: on another one its data make no sense.
    fn stands_on(&self) -> Vec<Identity> {
        Vec::new()
    }

    /// Names another image on which it stands.
    fn set_backing(&self, _backing: Option<&BackingName>) -> Result<()> {
        Err(Fault::unsupported("images of this format cannot change their backing file"))
    }

    /// Forgets all data, so that the backing file shows everywhere.
    fn make_empty(&self) -> Result<()> {
        Err(Fault::unsupported("images of this format cannot be emptied"))
    }

    /// Does something with the image's own snapshots.
    fn snapshot(&self, _act: &SnapshotAct) -> Result<()> {
        Err(Fault::unsupported("images of this format keep no snapshots"))
    }

    /// Shows the disk as it was in one of its snapshots, which a name or an id names. It is open for reading only.
    fn show_snapshot(&self, _which: &str) -> Result<()> {
        Err(Fault::unsupported("images of this format keep no snapshots"))
    }

    /// Bytes that its file takes on the host.
    fn allocated(&self) -> Option<u64>;
}

/// What can be done with snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotAct {
    /// Keep the present state of the disk.
    Create {
        /// Its name.
        name: String,
        /// Seconds and nanoseconds since 1970-01-01 UTC.
        date: (u32, u32),
    },
    /// Make this state the present one; a name or an id.
    Apply(String),
    /// Forget it; a name or an id.
    Delete(String),
}
