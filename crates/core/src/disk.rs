//! The messages between a device and the drive behind it.
//!
//! A device model knows the size of its medium and nothing of files. It sends a request as an output, and
//! receives the answer as an input as soon as the machine has it. Meanwhile the guest runs on, and the device
//! is busy.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::DeviceId;

/// Bytes in a sector, the unit of requests and sizes. A sector of a CD is four of these.
pub const SECTOR_SIZE: usize = 512;

/// Identifies a drive of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriveId {
    /// The device to which the drive is attached.
    pub device: DeviceId,
    /// The drive's number at the device, from 0.
    pub unit: u8,
}

impl DriveId {
    /// Returns the id of drive `unit` of `device`.
    pub const fn new(device: DeviceId, unit: u8) -> DriveId {
        DriveId { device, unit }
    }
}

/// A request to a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRequest {
    /// A number by which the device recognises the answer; no other request in progress has it.
    pub tag: u64,
    /// The operation to perform.
    pub operation: DiskOperation,
}

/// The operation that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskOperation {
    /// Read `count` sectors from `sector` on.
    Read {
        /// The first sector.
        sector: u64,
        /// How many sectors; the device limits this to a few MiB.
        count: u32,
    },
    /// Write whole sectors from `sector` on.
    Write {
        /// The first sector.
        sector: u64,
        /// The bytes to write, a multiple of [`SECTOR_SIZE`].
        data: Vec<u8>,
    },
    /// Make everything written so far durable, so that it survives a power cut after the answer.
    Flush,
    /// Discard `count` sectors from `sector` on: they are no longer needed, and read from now on as zeros or
    /// as their old contents.
    Discard {
        /// The first sector.
        sector: u64,
        /// How many sectors.
        count: u32,
    },
    /// Fill `count` sectors from `sector` on with zeros.
    WriteZeroes {
        /// The first sector.
        sector: u64,
        /// How many sectors; the device limits this to a few MiB.
        count: u32,
        /// Whether the medium may free the space of these sectors. If not, it keeps the space so that they
        /// can be written again.
        gives_up_room: bool,
    },
    /// Eject the medium, if possible.
    Eject,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAnswer {
    /// The [`DiskRequest::tag`] of the request.
    pub tag: u64,
    /// The bytes read (none for other operations), or why the operation failed.
    #[serde(with = "result")]
    pub result: Result<Vec<u8>, DiskError>,
}

/// A result with bytes, rather than with a list of numbers as recordings of versions 1 and 2 have it.
mod result {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    use super::DiskError;

    pub(super) fn serialize<S: Serializer>(
        result: &Result<Vec<u8>, DiskError>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        result.as_ref().map(|bytes| Bytes::new(bytes)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Result<Vec<u8>, DiskError>, D::Error> {
        let result = Result::<ByteBuf, DiskError>::deserialize(deserializer)?;
        Ok(result.map(ByteBuf::into_vec))
    }
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum DiskError {
    /// Not all of the sectors exist.
    #[error("not all of the sectors exist")]
    OutOfRange,
    /// The medium is write-protected.
    #[error("the medium is write-protected")]
    ReadOnly,
    /// The drive is empty.
    #[error("the drive is empty")]
    NoMedium,
    /// The host failed to perform the operation.
    #[error("the host failed to perform the operation")]
    Host,
    /// The host has no space for the data.
    #[error("the host has no space for the data")]
    NoSpace,
}

/// The medium in a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Medium {
    /// Its size in sectors of [`SECTOR_SIZE`] bytes.
    pub sectors: u64,
    /// Whether the medium is write-protected.
    pub read_only: bool,
}
