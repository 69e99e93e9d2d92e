//! The formats, how to recognize them, and the trait that each of them implements.

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

/// A format of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// The sectors of the disk in order, and nothing else.
    Raw,
    /// QEMU's format, versions 2 and 3.
    Qcow2,
    /// QEMU's format, version 1.
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
    /// An encrypted disk with its key, which a password decrypts.
    Luks,
}

impl Format {
    /// All formats, raw first.
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

    /// Returns the format's name in qemu-img.
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

    /// Fails if images of this format can only be read. The error says what they are called.
    pub(crate) fn check_writes(self) -> Result<()> {
        match self {
            Format::Vhdx => Err(Fault::OnlyRead("VHDX images")),
            Format::Parallels => Err(Fault::OnlyRead("images of Parallels")),
            Format::Luks => Err(Fault::OnlyRead("encrypted images")),
            _ => Ok(()),
        }
    }

    /// Returns the format of an image that begins with `head` ([`PROBE_SIZE`] bytes, or the whole image).
    ///
    /// An image that looks like no other format is raw. So a guest that owns a raw image can make it look
    /// like another format, with any file of the host as its backing file. If the format is known, it should
    /// be given ([`crate::OpenOptions::format`]). As in QEMU, an image that was found to be raw refuses
    /// writes to its first sector that would make it look like another format.
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

/// Number of bytes at the start of an image that are enough to recognize its format.
pub const PROBE_SIZE: usize = 512;

impl Display for Format {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No format has this name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("there is no image format \"{0}\"{hint}; choose from {list}", hint = self.hint(),
    list = Format::ALL.map(Format::name).join(", "))]
pub struct UnknownFormat(String);

impl UnknownFormat {
    /// Returns a hint if the word is a common name of a format that has another name here.
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

/// The contents of a range of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Data in the image's file.
    Data {
        /// Offset of the data in the file. None if they are compressed, or not in one piece.
        at: Option<u64>,
    },
    /// Zeros, which the image knows of.
    Zero {
        /// Offset of the room that the file has for them, if any.
        at: Option<u64>,
    },
    /// Nothing. The range reads as the backing image does, or as zeros.
    Absent,
}

/// The contents of the next `len` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The kind of contents.
    pub kind: Kind,
    /// Number of bytes, at least 1.
    pub len: u64,
}

/// A number that tells an image from all others, in formats that have one.
pub(crate) type Identity = [u8; 16];

/// The image below another one, which shows through where that one has nothing.
pub(crate) trait Below {
    /// Reads from the image below. Bytes after its end are zeros.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()>;

    /// Returns the size of the image below.
    fn size(&self) -> u64;
}

/// The image below images without a backing image: it reads as zeros.
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

/// The name of a backing image, as an image states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingName {
    /// The path, which may be relative to the image's directory.
    pub name: String,
    /// The format, if the image states it.
    pub format: Option<String>,
}

impl BackingName {
    /// Returns the path of the backing image, where `above` is the path of the image that names it.
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

    /// Returns the path and the format in the name, if it is JSON.
    fn object(&self) -> Result<Option<(PathBuf, Option<Format>)>> {
        let named = spec::named(&self.name).transpose();
        named.map_err(|error| {
            Fault::unsupported(format!("the name of its backing file is not valid: {error}"))
        })
    }

    /// Returns the format, if the image states it. Fails if this format is unknown.
    pub fn known_format(&self) -> Result<Option<Format>> {
        if let Some((_, Some(format))) = self.object()? {
            return Ok(Some(format));
        }
        match self.format.as_deref() {
            None => Ok(None),
            // QEMU's names for a file or device without a format.
            Some("file" | "host_device") => Ok(Some(Format::Raw)),
            Some(name) => name.parse().map(Some).map_err(|error| {
                Fault::unsupported(format!(
                    "the format of its backing file is not supported: {error}"
                ))
            }),
        }
    }
}

/// A state of the disk that is stored in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// An identifier that the image has given it.
    pub id: String,
    /// The snapshot's name.
    pub name: String,
    /// The time of the snapshot, in seconds since 1970-01-01 UTC.
    #[serde(rename = "date-sec")]
    pub date_seconds: u32,
    /// The nanoseconds of this time.
    #[serde(rename = "date-nsec")]
    pub date_nanoseconds: u32,
    /// The time that the guest had run, in nanoseconds.
    #[serde(rename = "vm-clock-nsec")]
    pub clock: u64,
    /// Number of bytes of the machine's state that are stored with it.
    #[serde(rename = "vm-state-size")]
    pub state_size: u64,
}

/// The properties of an image beside its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Number of bytes in a cluster, the unit in which the image takes room.
    pub cluster_size: Option<u64>,
    /// Names and values of properties that only this format has, in the words of qemu-img.
    pub specific: Vec<(&'static str, String)>,
    /// The snapshots in the image.
    pub snapshots: Vec<Snapshot>,
    /// Whether the image was not closed properly.
    pub dirty: bool,
    /// Whether the contents are encrypted.
    pub is_encrypted: bool,
    /// Names and values of properties of the encryption, for a format that can be without.
    pub encryption: Vec<(&'static str, String)>,
}

/// The operations of a format. The caller has checked that ranges are within the disk and not empty.
pub(crate) trait Driver: Debug + Send + Sync {
    /// Returns the size of the disk in bytes.
    fn size(&self) -> u64;

    /// Returns the contents of the bytes from `offset` on, at most `max` of them.
    fn extent(&self, offset: u64, max: u64) -> Result<Extent>;

    /// Reads all of `bytes`.
    fn read(&self, bytes: &mut [u8], offset: u64, below: &dyn Below) -> Result<()>;

    /// Writes all of `bytes`. They survive a power cut after the next [`Driver::flush`].
    fn write(&self, bytes: &[u8], offset: u64, below: &dyn Below) -> Result<()>;

    /// Reads all of `bytes`, if this needs no waiting for the host. Otherwise returns false, and `bytes` may
    /// contain anything.
    fn read_at_once(&self, _bytes: &mut [u8], _offset: u64) -> bool {
        false
    }

    /// Writes all of `bytes`, if this needs no waiting for the host. Otherwise returns false, and a part may
    /// have been written.
    fn write_at_once(&self, _bytes: &[u8], _offset: u64) -> bool {
        false
    }

    /// Fills a range with zeros, which take no room if the format allows that.
    fn write_zeroes(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()>;

    /// Fills a range with zeros. If the storage contains the disk's bytes unchanged, the range keeps its
    /// room. In other formats the range gets room again when it is written, as long as there is any.
    fn write_zeroes_in_place(&self, offset: u64, len: u64, below: &dyn Below) -> Result<()> {
        self.write_zeroes(offset, len, below)
    }

    /// Tells the format that a range is not needed. It reads as zeros or as before afterwards.
    fn discard(&self, _offset: u64, _len: u64, _below: &dyn Below) -> Result<()> {
        Ok(())
    }

    /// Returns once all that was written before would survive a power cut.
    fn flush(&self) -> Result<()>;

    /// Returns whether written data would be lost if this process ended now, since tables that lead to them
    /// are only in memory.
    fn is_behind(&self) -> bool {
        false
    }

    /// Returns the file that contains the disk's bytes unchanged from its beginning on.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes room for the disk from `offset` on, where it has none yet and reads as zeros: at least room for
    /// the tables.
    fn preallocate(&self, _offset: u64, mode: Preallocation) -> Result<()> {
        Err(Fault::unsupported(format!(
            "images of this format cannot be preallocated; leave out preallocation={mode}"
        )))
    }

    /// Changes the size of the disk.
    fn resize(&self, _size: u64) -> Result<()> {
        Err(Fault::unsupported("the size of images of this format cannot be changed"))
    }

    /// Looks for damage, and repairs it as far as `repair` allows.
    fn check(&self, _repair: Repair) -> Result<Report> {
        Err(Fault::unsupported("images of this format cannot be checked"))
    }

    /// Writes a whole cluster, or the last part of the disk, in compressed form. Nothing may have been
    /// written there before.
    fn write_compressed(&self, _bytes: &[u8], _offset: u64) -> Result<()> {
        Err(Fault::unsupported("images of this format cannot be compressed"))
    }

    /// Returns the image's properties.
    fn details(&self) -> Details;

    /// Returns the name of the backing image.
    fn backing(&self) -> Option<BackingName> {
        None
    }

    /// Returns the image's own identity.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Returns the identities that the backing image may have, if they are known. With another backing image
    /// the data would make no sense.
    fn stands_on(&self) -> Vec<Identity> {
        Vec::new()
    }

    /// Changes the name of the backing image.
    fn set_backing(&self, _backing: Option<&BackingName>) -> Result<()> {
        Err(Fault::unsupported("images of this format cannot change their backing file"))
    }

    /// Drops all data, so that the backing image shows everywhere.
    fn make_empty(&self) -> Result<()> {
        Err(Fault::unsupported("images of this format cannot be emptied"))
    }

    /// Makes, applies or deletes a snapshot in the image.
    fn snapshot(&self, _act: &SnapshotAct) -> Result<()> {
        Err(Fault::unsupported("images of this format cannot have snapshots"))
    }

    /// Shows the disk as it was in the snapshot with the name or id `which`. The image is open for reading
    /// only.
    fn show_snapshot(&self, _which: &str) -> Result<()> {
        Err(Fault::unsupported("images of this format cannot have snapshots"))
    }

    /// Returns the number of bytes that the image's file takes on the host.
    fn allocated(&self) -> Option<u64>;
}

/// The operations on snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotAct {
    /// Stores the present state of the disk.
    Create {
        /// The snapshot's name.
        name: String,
        /// Seconds and nanoseconds since 1970-01-01 UTC.
        date: (u32, u32),
    },
    /// Returns the disk to the state in the snapshot with this name or id.
    Apply(String),
    /// Deletes the snapshot with this name or id.
    Delete(String),
}
