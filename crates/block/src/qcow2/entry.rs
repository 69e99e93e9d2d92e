//! Entries of L1 and L2 tables: specification, "Cluster mapping".

use super::header::Header;
use crate::error::{Fault, Result};

/// The cluster or table belongs to this entry alone (its refcount is 1), so it can be written in place.
pub(super) const COPIED: u64 = 1 << 63;
/// The cluster is compressed.
pub(super) const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros.
pub(super) const ZERO: u64 = 1;
/// Bits 9 to 55: where the cluster or table is.
pub(super) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Subclusters of a cluster, with extended L2 entries.
pub(super) const SUBCLUSTERS: u64 = 32;

/// What an L2 entry says of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Nothing.
    Absent,
    /// It reads as zeros; there may be room for it.
    Zero { at: Option<u64>, copied: bool },
    /// Its bytes begin there.
    Data { at: u64, copied: bool },
    /// It is compressed in `len` bytes there or less.
    Compressed { at: u64, len: u64 },
    /// Each of its 32 parts is for itself: a bit for each that has data, and for each that is zeros.
    Parts { at: Option<u64>, data: u32, zero: u32 },
}

impl Cluster {
    /// What `entry` says, and `parts`, the second half of an extended one.
    pub(super) fn of(entry: u64, parts: u64, header: &Header) -> Result<Cluster> {
        if entry & COMPRESSED != 0 {
            // Offset and length share the bits below 62; the length is in sectors beside the one where it begins.
            let split = 62 - (header.cluster_bits - 8);
            let at = entry & ((1 << split) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> split;
            return Ok(Cluster::Compressed { at, len: (sectors + 1) * 512 - at % 512 });
        }
        let at = entry & OFFSET;
        if !at.is_multiple_of(header.cluster_size()) {
            return Err(Fault::damaged(format!("a cluster at {at:#x}, where none begins")));
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

/// The entry for `len` compressed bytes at `at`, in clusters of 2 to the power of `cluster_bits` bytes.
pub(super) fn compressed(at: u64, len: u64, cluster_bits: u32) -> u64 {
    let sectors = (at + len - 1) / 512 - at / 512;
    COMPRESSED | sectors << (62 - (cluster_bits - 8)) | at
}
