//! The numbers of virtio-blk (virtio 1.2, 5.2 and 6), for both sides.

/// Bytes of a sector.
pub(crate) const SECTOR: u64 = 512;

/// Types of requests, VIRTIO_BLK_T_… (5.2.6).
pub(crate) mod kind {
    pub(crate) const IN: u32 = 0;
    pub(crate) const OUT: u32 = 1;
    pub(crate) const FLUSH: u32 = 4;
    pub(crate) const GET_ID: u32 = 8;
    pub(crate) const DISCARD: u32 = 11;
    pub(crate) const WRITE_ZEROES: u32 = 13;
}

/// Flag of a range in a request that writes zeros: its room may be given back.
pub(crate) const UNMAP: u32 = 1;

/// Feature bits of virtio-blk (5.2.3), and those of all devices.
pub(crate) mod feature {
    pub(crate) use ring3_vhost::queue::feature::*;

    pub(crate) const SIZE_MAX: u64 = 1 << 1;
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const GEOMETRY: u64 = 1 << 4;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLOCK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const QUEUES: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Where the fields of the configuration are (struct virtio_blk_config, 5.2.4).
pub(crate) mod config {
    pub(crate) const CAPACITY: usize = 0;
    pub(crate) const SIZE_MAX: usize = 8;
    pub(crate) const SEG_MAX: usize = 12;
    pub(crate) const GEOMETRY: usize = 16;
    pub(crate) const BLOCK_SIZE: usize = 20;
    pub(crate) const TOPOLOGY: usize = 24;
    pub(crate) const WRITE_CACHE: usize = 32;
    pub(crate) const QUEUES: usize = 34;
    /// Sectors, and ranges, of a request that discards; and how its ranges are to be aligned.
    pub(crate) const DISCARD: usize = 36;
    pub(crate) const DISCARD_ALIGNMENT: usize = 44;
    /// Sectors, and ranges, of a request that writes zeros; and whether it may give up their room.
    pub(crate) const WRITE_ZEROES: usize = 48;
    pub(crate) const WRITE_ZEROES_UNMAP: usize = 56;
    /// Where all these end.
    pub(crate) const END: usize = 60;
}
