//! The features and the configuration of a disk (struct virtio_blk_config; virtio 1.2, 5.2.3 and 5.2.4).

use ring3_vhost::block::{SECTOR, config, feature};

use crate::request::{RANGE_SECTORS, RANGES, SEGMENT_BYTES, SEGMENTS};

/// Returns the feature bits of a disk.
pub(super) fn features(writes: bool) -> u64 {
    use feature::*;
    let all = SIZE_MAX | SEG_MAX | GEOMETRY | BLOCK_SIZE | FLUSH | TOPOLOGY | CONFIG_WCE | QUEUES;
    let rings = INDIRECT | EVENT_INDEX | PROTOCOL | VERSION_1;
    let rights = if writes { DISCARD | WRITE_ZEROES } else { READ_ONLY };
    all | rings | rights
}

/// Number of bytes in the configuration. Those that follow the known fields are zeros.
pub(super) const LEN: usize = 256;

/// Returns the configuration of a disk of `size` bytes.
pub(super) fn configuration(size: u64, queues: u16, write_cache: bool) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let sectors = size / SECTOR;
    put(config::CAPACITY, &sectors.to_le_bytes());
    put(config::SIZE_MAX, &SEGMENT_BYTES.to_le_bytes());
    put(config::SEG_MAX, &SEGMENTS.to_le_bytes());
    // Cylinders, heads and sectors, as a BIOS reports them for large disks.
    let cylinders = (sectors / (16 * 63)).min(16383) as u16;
    put(config::GEOMETRY, &cylinders.to_le_bytes());
    put(config::GEOMETRY + 2, &[16, 63]);
    put(config::BLOCK_SIZE, &(SECTOR as u32).to_le_bytes());
    // Blocks have 4 KiB: 2 to the power of 3 sectors, all aligned. Requests should have at least 8 sectors.
    put(config::TOPOLOGY, &[3, 0]);
    put(config::TOPOLOGY + 2, &8_u16.to_le_bytes());
    put(config::TOPOLOGY + 4, &0_u32.to_le_bytes());
    put(config::WRITE_CACHE, &[u8::from(write_cache)]);
    put(config::QUEUES, &queues.to_le_bytes());
    for at in [config::DISCARD, config::WRITE_ZEROES] {
        put(at, &RANGE_SECTORS.to_le_bytes());
        put(at + 4, &RANGES.to_le_bytes());
    }
    put(config::DISCARD_ALIGNMENT, &8_u32.to_le_bytes());
    put(config::WRITE_ZEROES_UNMAP, &[1]);
    bytes
}
