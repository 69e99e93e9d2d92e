//! The layout of the file of a saved machine.
//!
//! | offset | contents |
//! | --- | --- |
//! | 0 | the header, of [`HEADER_LEN`] bytes |
//! | [`MEMORY_AT`] | the contents of memory, each byte at this offset plus its place in memory, with holes for zeros; nothing if the file is compressed |
//! | behind | other parts, and last the index |
//!
//! All numbers of the header are little-endian:
//!
//! | offset | length | contents |
//! | --- | --- | --- |
//! | 0 | 16 | [`MAGIC`] |
//! | 16 | 4 | [`VERSION`] |
//! | 20 | 4 | CRC-32 of the bytes from 24 to 52 |
//! | 24 | 8 | length of the file |
//! | 32 | 8 | offset of the index |
//! | 40 | 8 | length of the index |
//! | 48 | 4 | CRC-32 of the index |
//!
//! The index ([`Index`]) is CBOR (RFC 8949). It names all [`Part`]s.
//!
//! # Versions
//!
//! * 1: the index contains the kernel and its files. Such files are still read.
//! * 2: kernel and files are parts of their own, since only a reset of the machine needs them.

use std::path::PathBuf;

use ring3_core::device::DeviceId;
use ring3_core::disk::DriveId;
use ring3_vm::control::DriveInfo;
use ring3_vm::drives::{Cache, DetectZeroes, DriveNames, ErrorPolicy, KeptDisk, Limits};
use serde::{Deserialize, Serialize};

/// The first bytes of the file. A transfer that changes ends of lines is noticed by them.
pub const MAGIC: &[u8; 16] = b"ring3 snapshot\r\n";
/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 2;
/// The first version that has kernel and files as parts of their own.
pub(crate) const WITH_FILES: u32 = 2;
/// Length of the header in bytes; the rest of it is zero.
pub const HEADER_LEN: usize = 4096;
/// Offset of the contents of memory, a multiple of a page of the host.
pub const MEMORY_AT: u64 = HEADER_LEN as u64;
/// Upper bound of the bytes of a part.
pub const PART_MAX: usize = 1 << 20;
/// Upper bound of the bytes of the index, which contains the kernel and its RAM disk in version 1.
pub const INDEX_MAX: u64 = 1 << 30;
/// Upper bound of the bytes of the kernel, and of each file for it.
pub const FILE_MAX: u64 = 1 << 30;

/// The numbers of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) file_len: u64,
    pub(crate) index_at: u64,
    pub(crate) index_len: u64,
    pub(crate) index_crc: u32,
}

/// The part of the header that its own checksum covers.
const CHECKED: std::ops::Range<usize> = 24..52;

impl Header {
    pub(crate) fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..20].copy_from_slice(&self.version.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file_len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.index_at.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.index_len.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.index_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[CHECKED]);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the header in `bytes`, and whether its checksum is right, or None if these are the bytes of
    /// something else.
    pub(crate) fn of(bytes: &[u8; HEADER_LEN]) -> Option<(Header, bool)> {
        if &bytes[..16] != MAGIC {
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let header = Header {
            version: u32_at(16),
            file_len: u64_at(24),
            index_at: u64_at(32),
            index_len: u64_at(40),
            index_crc: u32_at(48),
        };
        Some((header, crc32fast::hash(&bytes[CHECKED]) == u32_at(20)))
    }
}

/// The index, with the machine by value or by reference.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index<M> {
    /// The machine, without the contents of memory, and without the kernel and its files if these are in
    /// `files`.
    pub(crate) machine: M,
    /// The kernel and its files, each in parts that follow each other from offset 0 on. Empty in version 1.
    #[serde(default)]
    pub(crate) files: Vec<Vec<Part>>,
    /// The time at which it was saved, in seconds since 1970-01-01 UTC.
    pub(crate) saved_at: u64,
    /// Size of memory in bytes: RAM, the display's memory and ROMs.
    pub(crate) memory_len: u64,
    /// The contents of memory that are not all zero, by places.
    pub(crate) memory: Vec<Part>,
    pub(crate) drives: Vec<SavedDrive>,
}

/// Consecutive bytes of memory, of a disk or of a file for the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The offset of the first byte in memory, on the disk or in the file.
    pub(crate) to: u64,
    /// The number of bytes, at most [`PART_MAX`].
    pub(crate) len: u32,
    /// The offset in the file.
    pub(crate) at: u64,
    /// The number of bytes in the file: fewer than `len` if they are compressed (DEFLATE, RFC 1951).
    pub(crate) stored: u32,
    /// CRC-32 of the bytes in the file.
    pub(crate) crc: u32,
}

/// A drive of a saved machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedDrive {
    /// The device to which it is attached.
    pub device: DeviceId,
    /// The drive's number at the device.
    pub unit: u8,
    /// The id by which people know the device.
    pub id: Option<String>,
    /// The file with its sectors, with its whole path.
    pub file: Option<PathBuf>,
    /// The format of that file.
    pub format: Option<String>,
    /// How writes are cached.
    pub cache: Cache,
    /// How writes of zeros are treated.
    pub detect_zeroes: DetectZeroes,
    /// Where the contents of the disk are.
    pub kept: KeptDisk,
    /// The sectors that the guest has written over the file, with offsets in bytes.
    pub(crate) written: Vec<Part>,
    /// The names by which people know the parts of the drive.
    #[serde(default)]
    pub names: DriveNames,
    /// The limits of its rate.
    #[serde(default)]
    pub limits: Limits,
    /// The policy for errors of the host.
    #[serde(default)]
    pub errors: ErrorPolicy,
}

impl SavedDrive {
    /// Describes the drive of `info`, whose disk is in `file`.
    pub(crate) fn of(
        info: &DriveInfo,
        file: Option<PathBuf>,
        kept: KeptDisk,
        written: Vec<Part>,
    ) -> SavedDrive {
        SavedDrive {
            device: info.drive.device,
            unit: info.drive.unit,
            id: info.id.clone(),
            file,
            format: info.format.map(str::to_owned),
            cache: info.cache,
            detect_zeroes: info.detect_zeroes,
            kept,
            written,
            names: info.names.clone(),
            limits: info.limits,
            errors: info.errors,
        }
    }

    /// Returns the number of bytes that the guest has written over the file.
    pub fn written_bytes(&self) -> u64 {
        self.written.iter().map(|part| u64::from(part.len)).sum()
    }

    /// Returns the drive's place in the machine.
    pub fn drive(&self) -> DriveId {
        DriveId::new(self.device, self.unit)
    }
}
