//! Virtio-blk over vhost-user (virtio 1.2, 5.2 and 6): the numbers that a server and its client share.

use std::time::Duration;

/// The longest time for which either side looks for what the other one sends before it sleeps.
pub const LOOKS_FOR: Duration = Duration::from_micros(200);

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// Types of requests, VIRTIO_BLK_T_… (5.2.6).
pub mod kind {
    /// Reads sectors.
    pub const IN: u32 = 0;
    /// Writes sectors.
    pub const OUT: u32 = 1;
    /// Keeps what was written, whatever happens to the host.
    pub const FLUSH: u32 = 4;
    /// Reads the disk's name.
    pub const GET_ID: u32 = 8;
    /// Says which sectors are not needed.
    pub const DISCARD: u32 = 11;
    /// Makes zeros of sectors.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Flag of a range in a request that writes zeros: its room may be given back.
pub const UNMAP: u32 = 1;

/// Feature bits, VIRTIO_BLK_F_… (5.2.3), and [those of all devices](crate::queue::feature).
pub mod feature {
    pub use crate::queue::feature::*;

    /// There is a largest buffer.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// There is a largest number of buffers.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk has cylinders, heads and sectors.
    pub const GEOMETRY: u64 = 1 << 4;
    /// The disk cannot be written.
    pub const READ_ONLY: u64 = 1 << 5;
    /// The disk has a block size.
    pub const BLOCK_SIZE: u64 = 1 << 6;
    /// There is [`kind::FLUSH`](super::kind::FLUSH).
    pub const FLUSH: u64 = 1 << 9;
    /// The disk has an optimal alignment.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver may change the cache's mode.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// There may be several queues.
    pub const QUEUES: u64 = 1 << 12;
    /// There is [`kind::DISCARD`](super::kind::DISCARD).
    pub const DISCARD: u64 = 1 << 13;
    /// There is [`kind::WRITE_ZEROES`](super::kind::WRITE_ZEROES).
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// The places of fields in the configuration (struct virtio_blk_config, 5.2.4), in bytes.
pub mod config {
    /// Sectors of the disk.
    pub const CAPACITY: usize = 0;
    /// The most bytes of a buffer.
    pub const SIZE_MAX: usize = 8;
    /// The most buffers of a request.
    pub const SEG_MAX: usize = 12;
    /// Cylinders, heads and sectors.
    pub const GEOMETRY: usize = 16;
    /// Bytes of a block.
    pub const BLOCK_SIZE: usize = 20;
    /// The optimal alignment.
    pub const TOPOLOGY: usize = 24;
    /// The cache's mode.
    pub const WRITE_CACHE: usize = 32;
    /// The number of queues.
    pub const QUEUES: usize = 34;
    /// Sectors, and ranges, of a request that discards; and how its ranges are to be aligned.
    pub const DISCARD: usize = 36;
    /// See [`DISCARD`].
    pub const DISCARD_ALIGNMENT: usize = 44;
    /// Sectors, and ranges, of a request that writes zeros; and whether it may give up their room.
    pub const WRITE_ZEROES: usize = 48;
    /// See [`WRITE_ZEROES`].
    pub const WRITE_ZEROES_UNMAP: usize = 56;
    /// Where all these end.
    pub const END: usize = 60;
}
