//! Entries of L1 and L2 tables: specification, "Cluster mapping".

use super::header::Header;
use crate::error::{Fault, Result};

/// The cluster or table belongs to this entry alone (its refcount is 1), so it can be written in place.
pub(super) const COPIED: u64 = 1 << 63;
/// The cluster is compressed.
pub(super) const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros.
pub(super) const ZERO: u64 = 1;
/// Bits 9 to 55: the offset of the cluster or table.
pub(super) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Number of subclusters in a cluster with an extended L2 entry.
pub(super) const SUBCLUSTERS: u64 = 32;

/// The place of a cluster, according to its L2 entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    /// The cluster is not in the image.
    Absent,
    /// The cluster reads as zeros. It may have room in the file.
    Zero { at: Option<u64>, copied: bool },
    /// The cluster begins at this offset.
    Data { at: u64, copied: bool },
    /// The cluster is compressed to at most `len` bytes at this offset.
    Compressed { at: u64, len: u64 },
    /// The cluster has 32 subclusters, each with its own state: a bit for each one with data, and for each
    /// one of zeros.
    Parts { at: Option<u64>, data: u32, zero: u32 },
}

impl Cluster {
    /// Returns the meaning of `entry`, and of `parts`, the second half of an extended entry.
    pub(super) fn of(entry: u64, parts: u64, header: &Header) -> Result<Cluster> {
        if entry & COMPRESSED != 0 {
            // Offset and length share bits 0 to 61. The length is the number of sectors after the first one.
            let split = 62 - (header.cluster_bits - 8);
            let at = entry & ((1 << split) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> split;
            return Ok(Cluster::Compressed { at, len: (sectors + 1) * 512 - at % 512 });
        }
        let at = entry & OFFSET;
        if !at.is_multiple_of(header.cluster_size()) {
            return Err(Fault::damaged(format!(
                "a table has a cluster at {at:#x}, where no cluster begins"
            )));
        }
        let (room, copied) = ((at != 0).then_some(at), entry & COPIED != 0);
        if header.has_subclusters() {
            let (data, zero) = (parts as u32, (parts >> 32) as u32);
            return Ok(if data == 0 && zero == 0 {
                Cluster::Absent
            } else {
                Cluster::Parts { at: room, data, zero }
            });
        }
        Ok(match room {
            _ if header.version >= 3 && entry & ZERO != 0 => Cluster::Zero { at: room, copied },
            None => Cluster::Absent,
            Some(at) => Cluster::Data { at, copied },
        })
    }
}

/// Returns the entry for `len` compressed bytes at offset `at`, if clusters have 2 to the power of
/// `cluster_bits` bytes.
pub(super) fn compressed(at: u64, len: u64, cluster_bits: u32) -> u64 {
    let sectors = (at + len - 1) / 512 - at / 512;
    COMPRESSED | sectors << (62 - (cluster_bits - 8)) | at
}
