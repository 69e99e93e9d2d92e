//! What a device asks of the drive behind it, and what it is told.
//!
//! A device model knows the size of its medium and nothing of files. It sends a request as
//! an output, and the answer comes back as an input, as soon as the machine has it: in
//! between the guest runs on, and the device is busy.

use serde::{Deserialize, Serialize};

/// Bytes in a sector, the unit of requests and sizes (that of a CD is four of them).
pub const SECTOR_SIZE: usize = 512;

/// What a drive is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRequest {
    /// A number by which the device knows the answer again; one that is not in use.
    pub tag: u64,
    /// What is to be done.
    pub operation: DiskOperation,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskOperation {
    /// Read `count` sectors from `sector` on.
    Read {
        /// The first sector.
        sector: u64,
        /// How many; the device sees to it that this is no more than some MiB.
        count: u32,
    },
    /// Write whole sectors from `sector` on.
    Write {
        /// The first sector.
        sector: u64,
        /// What to write, a multiple of [`SECTOR_SIZE`].
        data: Vec<u8>,
    },
    /// Whatever was written is to survive a power cut before the answer comes.
    Flush,
    /// `count` sectors from `sector` on are not needed any more: from now on they read as zeros or as what was there.
    Discard {
        /// The first sector.
        sector: u64,
        /// How many.
        count: u32,
    },
    /// Make zeros of `count` sectors from `sector` on.
    WriteZeroes {
        /// The first sector.
        sector: u64,
        /// How many; the device sees to it that this is no more than some MiB.
        count: u32,
        /// The medium may give up the room of these sectors; if not, it keeps room to write them again.
        gives_up_room: bool,
    },
    /// The medium is to be taken out, if it can be.
    Eject,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAnswer {
    /// [`DiskRequest::tag`].
    pub tag: u64,
    /// The bytes read, none for other operations; or why it failed.
    pub result: Result<Vec<u8>, DiskError>,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskError {
    /// The sectors are not all there.
    OutOfRange,
    /// The medium cannot be written.
    ReadOnly,
    /// There is no medium.
    NoMedium,
    /// The host could not do it.
    Host,
    /// The host has no room for what is written.
    NoSpace,
}

/// What is in a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Medium {
    /// Its size in sectors of [`SECTOR_SIZE`] bytes.
    pub sectors: u64,
    /// It cannot be written.
    pub read_only: bool,
}
