//! Virtio-blk over vhost-user (virtio 1.2, 5.2 and 6): the constants that a server and its client share.

use std::time::Duration;

/// The longest time for which either side polls for a message of the other one before it sleeps.
pub const LOOKS_FOR: Duration = Duration::from_micros(200);

/// Number of bytes in a sector.
pub const SECTOR: u64 = 512;

/// Types of requests, VIRTIO_BLK_T_… (5.2.6).
pub mod kind {
    /// Reads sectors.
    pub const IN: u32 = 0;
    /// Writes sectors.
    pub const OUT: u32 = 1;
    /// Makes the written data survive a failure of the host.
    pub const FLUSH: u32 = 4;
    /// Reads the disk's name.
    pub const GET_ID: u32 = 8;
    /// Names sectors whose contents are no longer needed.
    pub const DISCARD: u32 = 11;
    /// Fills sectors with zeros.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Flag of a range in a request that writes zeros: the disk may give up the range's room.
pub const UNMAP: u32 = 1;

/// Feature bits, VIRTIO_BLK_F_… (5.2.3), and [those of all devices](crate::queue::feature).
pub mod feature {
    pub use crate::queue::feature::*;

    /// The size of a buffer has an upper bound.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// The number of buffers in a request has an upper bound.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk has cylinders, heads and sectors.
    pub const GEOMETRY: u64 = 1 << 4;
    /// The disk cannot be written.
    pub const READ_ONLY: u64 = 1 << 5;
    /// The disk has a block size.
    pub const BLOCK_SIZE: u64 = 1 << 6;
    /// The disk executes [`kind::FLUSH`](super::kind::FLUSH).
    pub const FLUSH: u64 = 1 << 9;
    /// The disk has an optimal alignment.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver may change the cache's mode.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// There may be several queues.
    pub const QUEUES: u64 = 1 << 12;
    /// The disk executes [`kind::DISCARD`](super::kind::DISCARD).
    pub const DISCARD: u64 = 1 << 13;
    /// The disk executes [`kind::WRITE_ZEROES`](super::kind::WRITE_ZEROES).
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Offsets of fields in the configuration (struct virtio_blk_config, 5.2.4), in bytes.
pub mod config {
    /// Size of the disk in sectors.
    pub const CAPACITY: usize = 0;
    /// Upper bound of the bytes in a buffer.
    pub const SIZE_MAX: usize = 8;
    /// Upper bound of the buffers in a request.
    pub const SEG_MAX: usize = 12;
    /// Numbers of cylinders, heads and sectors.
    pub const GEOMETRY: usize = 16;
    /// Number of bytes in a block.
    pub const BLOCK_SIZE: usize = 20;
    /// The optimal alignment.
    pub const TOPOLOGY: usize = 24;
    /// The cache's mode.
    pub const WRITE_CACHE: usize = 32;
    /// The number of queues.
    pub const QUEUES: usize = 34;
    /// Upper bounds of the sectors and of the ranges in a request that discards.
    pub const DISCARD: usize = 36;
    /// The alignment of ranges to be discarded, in sectors.
    pub const DISCARD_ALIGNMENT: usize = 44;
    /// Upper bounds of the sectors and of the ranges in a request that writes zeros.
    pub const WRITE_ZEROES: usize = 48;
    /// Whether a request that writes zeros may give up the room of its ranges.
    pub const WRITE_ZEROES_UNMAP: usize = 56;
    /// Offset of the end of these fields.
    pub const END: usize = 60;
}
