//! What a guest is told of its disk (struct virtio_blk_config; virtio 1.2, 5.2.3 and 5.2.4).

use crate::device::SECTOR;
use crate::request::{RANGE_SECTORS, RANGES, SEGMENT_BYTES, SEGMENTS};

/// Feature bits of virtio-blk and of all devices (5.2.3 and 6), and that of vhost-user.
pub(super) mod feature {
    pub(in super::super) const SIZE_MAX: u64 = 1 << 1;
    pub(in super::super) const SEG_MAX: u64 = 1 << 2;
    pub(in super::super) const GEOMETRY: u64 = 1 << 4;
    pub(in super::super) const READ_ONLY: u64 = 1 << 5;
    pub(in super::super) const BLOCK_SIZE: u64 = 1 << 6;
    pub(in super::super) const FLUSH: u64 = 1 << 9;
    pub(in super::super) const TOPOLOGY: u64 = 1 << 10;
    pub(in super::super) const CONFIG_WCE: u64 = 1 << 11;
    pub(in super::super) const QUEUES: u64 = 1 << 12;
    pub(in super::super) const DISCARD: u64 = 1 << 13;
    pub(in super::super) const WRITE_ZEROES: u64 = 1 << 14;
    pub(in super::super) const INDIRECT: u64 = 1 << 28;
    pub(in super::super) const EVENT_INDEX: u64 = 1 << 29;
    pub(in super::super) const PROTOCOL: u64 = 1 << 30;
    pub(in super::super) const VERSION_1: u64 = 1 << 32;
}

/// What is offered of a disk.
pub(super) fn features(writes: bool) -> u64 {
    use feature::*;
    let all = SIZE_MAX | SEG_MAX | GEOMETRY | BLOCK_SIZE | FLUSH | TOPOLOGY | CONFIG_WCE | QUEUES;
    let rings = INDIRECT | EVENT_INDEX | PROTOCOL | VERSION_1;
    let rights = if writes { DISCARD | WRITE_ZEROES } else { READ_ONLY };
    all | rings | rights
}

/// Bytes of the configuration, of which those behind the fields that are here are zeros.
pub(super) const LEN: usize = 256;
/// Where the guest says whether there is a write cache.
pub(super) const WRITE_CACHE: u32 = 32;

/// The configuration of a disk of `size` bytes.
pub(super) fn configuration(size: u64, queues: u16, write_cache: bool) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let sectors = size / SECTOR;
    put(0, &sectors.to_le_bytes());
    put(8, &SEGMENT_BYTES.to_le_bytes());
    put(12, &SEGMENTS.to_le_bytes());
    // Cylinders, heads and sectors, as a BIOS has them for large disks.
    let cylinders = (sectors / (16 * 63)).min(16383) as u16;
    put(16, &cylinders.to_le_bytes());
    put(18, &[16, 63]);
    put(20, &(SECTOR as u32).to_le_bytes());
    // Blocks of 4 KiB: 2 to the power of 3 sectors, all aligned; the best request has 8 sectors or more.
    put(24, &[3, 0]);
    put(26, &8_u16.to_le_bytes());
    put(28, &0_u32.to_le_bytes());
    put(WRITE_CACHE as usize, &[u8::from(write_cache)]);
    put(34, &queues.to_le_bytes());
    for at in [36, 48] {
        put(at, &RANGE_SECTORS.to_le_bytes());
        put(at + 4, &RANGES.to_le_bytes());
    }
    put(44, &8_u32.to_le_bytes());
    put(56, &[1]);
    bytes
}
