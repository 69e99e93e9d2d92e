//! Reference counts: specification, "Host cluster management".

use std::collections::{BTreeSet, HashMap};

use super::header::{Header, REFCOUNT_TABLE_MAX};
use super::state::read_table;
use crate::error::{Fault, Result};
use crate::storage::Storage;

/// The bits of a refcount table entry that contain the offset of the block.
pub(super) const BLOCK_OFFSET: u64 = 0xffff_ffff_ffff_fe00;
/// Number of bytes of refcount blocks in memory at which the blocks that do not differ from the file are
/// dropped.
const BLOCKS_MAX: usize = 16 << 20;

/// A refcount block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    pub(super) dirty: bool,
}

/// The number of references to each cluster of the file.
#[derive(Debug, Default)]
pub(super) struct Refcounts {
    /// The refcount table, with the offset of each block.
    pub(super) table: Vec<u64>,
    /// The sectors of the table that differ from the file.
    pub(super) table_dirty: BTreeSet<usize>,
    /// Offset of the table in the file.
    pub(super) table_at: u64,
    /// The places of smaller tables: number of the first cluster, and number of clusters. The header still
    /// leads to the first one of them.
    pub(super) replaced: Vec<(u64, u64)>,
    /// The blocks in memory, by their index in the table.
    pub(super) blocks: HashMap<usize, Block>,
    /// The clusters that new blocks and tables have taken: number of the first one, and number of clusters.
    pub(super) new_metadata: Vec<(u64, u64)>,
    /// No cluster before this one is free.
    pub(super) first_free: u64,
    cluster_bits: u32,
    block_bits: u32,
    order: u32,
}

impl Refcounts {
    /// Reads the refcount table of an image.
    pub(super) fn load(storage: &dyn Storage, header: &Header) -> Result<Refcounts> {
        let entries = u64::from(header.refcount_clusters) << (header.cluster_bits - 3);
        let table = read_table(storage, header.refcount_offset, entries)?;
        let size = storage.size()?;
        let mut places: Vec<u64> =
            table.iter().map(|entry| entry & BLOCK_OFFSET).filter(|at| *at != 0).collect();
        for at in &places {
            let inside = at.checked_add(header.cluster_size()).is_some_and(|end| end <= size);
            if !at.is_multiple_of(header.cluster_size()) || !inside {
                return Err(Fault::damaged(format!(
                    "the refcount block at {at:#x} is not in the file"
                )));
            }
        }
        places.sort_unstable();
        if let Some([at, _]) = places.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Fault::damaged(format!("the refcount block at {at:#x} is used twice")));
        }
        Ok(Refcounts { table, table_at: header.refcount_offset, ..Refcounts::empty(header) })
    }

    /// Returns the reference counts of an image without a table.
    pub(super) fn empty(header: &Header) -> Refcounts {
        Refcounts {
            cluster_bits: header.cluster_bits,
            block_bits: header.block_bits(),
            order: header.refcount_order,
            ..Refcounts::default()
        }
    }

    /// Returns the largest possible count.
    pub(super) fn max(&self) -> u64 {
        u64::MAX >> (64 - (1 << self.order))
    }

    /// Returns the index of the block with the count of `cluster`, and the index in this block.
    fn place(&self, cluster: u64) -> (usize, usize) {
        ((cluster >> self.block_bits) as usize, (cluster & ((1 << self.block_bits) - 1)) as usize)
    }

    /// Reads a block into memory. Returns false if there is none.
    fn load_block(&mut self, storage: &dyn Storage, index: usize) -> Result<bool> {
        if self.blocks.contains_key(&index) {
            return Ok(true);
        }
        let at = self.table.get(index).map_or(0, |entry| entry & BLOCK_OFFSET);
        if at == 0 {
            return Ok(false);
        }
        if self.blocks.len() << self.cluster_bits >= BLOCKS_MAX {
            self.blocks.retain(|_, block| block.dirty);
        }
        let mut bytes = vec![0; 1 << self.cluster_bits];
        storage.read_at(&mut bytes, at)?;
        self.blocks.insert(index, Block { bytes, dirty: false });
        Ok(true)
    }

    /// Returns the number of references to `cluster`.
    pub(super) fn get(&mut self, storage: &dyn Storage, cluster: u64) -> Result<u64> {
        let (block, index) = self.place(cluster);
        if !self.load_block(storage, block)? {
            return Ok(0);
        }
        Ok(get(&self.blocks[&block].bytes, index, self.order))
    }

    /// Sets the number of references to `cluster`.
    pub(super) fn set(&mut self, storage: &dyn Storage, cluster: u64, count: u64) -> Result<()> {
        if count > self.max() {
            return Err(Fault::refused(format!(
                "a cluster would have {count} references, but {} is the maximum",
                self.max()
            )));
        }
        let (index, inside) = self.place(cluster);
        if !self.load_block(storage, index)? {
            if count == 0 {
                return Ok(());
            }
            self.cover(cluster, 1)?;
        }
        self.put(index, inside, count);
        Ok(())
    }

    fn put(&mut self, index: usize, inside: usize, count: u64) {
        if let Some(block) = self.blocks.get_mut(&index) {
            put(&mut block.bytes, inside, self.order, count);
            block.dirty = true;
        }
    }

    /// Adds `change` to the number of references to `cluster`, and returns the result. A negative result is
    /// damage.
    pub(super) fn add(&mut self, storage: &dyn Storage, cluster: u64, change: i64) -> Result<u64> {
        let count = self.get(storage, cluster)?.checked_add_signed(change);
        let count = count.ok_or_else(|| {
            Fault::damaged(format!(
                "the refcount of cluster {cluster} is too low; run \"ring3 img check -r all\""
            ))
        })?;
        self.set(storage, cluster, count)?;
        if count == 0 {
            self.first_free = self.first_free.min(cluster);
        }
        Ok(count)
    }

    /// Makes sure that there are blocks for `count` clusters from `first` on. New blocks, and a larger table
    /// if it is needed, go after these clusters and after all that have counts.
    fn cover(&mut self, first: u64, count: u64) -> Result<()> {
        let is_missing =
            |index: u64| self.table.get(index as usize).is_none_or(|entry| *entry == 0);
        let last =
            self.table.iter().rposition(|entry| *entry != 0).map_or(0, |last| last as u64 + 1);
        let start = (first + count).max(last << self.block_bits);
        let wanted = first >> self.block_bits..=(first + count - 1) >> self.block_bits;
        let (mut clusters, mut missing) = (0, Vec::new());
        loop {
            // The new blocks and the table may need further blocks for their own counts.
            let end = start + missing.len() as u64 + clusters;
            let own = start >> self.block_bits
                ..end.div_ceil(1 << self.block_bits).max(start >> self.block_bits);
            let own = own.filter(|index| !wanted.contains(index));
            let needed: Vec<u64> =
                wanted.clone().chain(own).filter(|index| is_missing(*index)).collect();
            let entries = needed.last().map_or(0, |last| *last as usize + 1);
            let table = if entries <= self.table.len() {
                0
            } else {
                // The table gets room for half as many entries again, so that it seldom grows.
                (entries as u64 * 12).div_ceil(1 << self.cluster_bits)
            };
            if needed.len() == missing.len() && table <= clusters {
                break;
            }
            (clusters, missing) = (table.max(clusters), needed);
        }
        if missing.is_empty() {
            return Ok(());
        }
        if clusters << self.cluster_bits > REFCOUNT_TABLE_MAX {
            return Err(Fault::refused(
                "the file is as large as the format allows with clusters of this size",
            ));
        }
        let table = start + missing.len() as u64;
        if clusters > 0 {
            let old = self.table_at >> self.cluster_bits;
            self.replaced.push((old, (self.table.len() as u64 * 8) >> self.cluster_bits));
            self.table.resize((clusters << (self.cluster_bits - 3)) as usize, 0);
            self.table_at = table << self.cluster_bits;
            self.new_metadata.push((table, clusters));
        }
        for (index, cluster) in missing.into_iter().zip(start..) {
            self.add_block(index as usize, cluster);
        }
        for cluster in start..table + clusters {
            let (index, inside) = self.place(cluster);
            self.put(index, inside, 1);
        }
        Ok(())
    }

    fn add_block(&mut self, index: usize, cluster: u64) {
        self.table[index] = cluster << self.cluster_bits;
        self.table_dirty.insert(index / 64);
        self.blocks.insert(index, Block { bytes: vec![0; 1 << self.cluster_bits], dirty: true });
        self.new_metadata.push((cluster, 1));
    }

    /// Takes `count` consecutive free clusters at `from` or later. Returns the number of the first one.
    pub(super) fn take(&mut self, storage: &dyn Storage, from: u64, count: u64) -> Result<u64> {
        let first = self.find(storage, from, count)?;
        self.cover(first, count)?;
        for cluster in first..first + count {
            self.set(storage, cluster, 1)?;
        }
        Ok(first)
    }

    /// Takes the first free cluster at `from` or later, and the free ones that follow it, at most `max`.
    /// Returns the number of the first one, and how many were taken.
    pub(super) fn take_some(
        &mut self,
        storage: &dyn Storage,
        from: u64,
        max: u64,
    ) -> Result<(u64, u64)> {
        let first = self.find(storage, from, 1)?;
        let mut count = 1;
        while count < max && self.get(storage, first + count)? == 0 {
            count += 1;
        }
        self.cover(first, count)?;
        for cluster in first..first + count {
            self.set(storage, cluster, 1)?;
        }
        Ok((first, count))
    }

    /// Finds `count` consecutive free clusters at `from` or later.
    fn find(&mut self, storage: &dyn Storage, from: u64, count: u64) -> Result<u64> {
        let (mut first, mut len) = (from, 0);
        while len < count {
            let next = first + len;
            if next >= 1 << (56 - self.cluster_bits) {
                return Err(Fault::refused("the file is as large as the format allows"));
            }
            if self.get(storage, next)? == 0 {
                len += 1;
            } else {
                (first, len) = (next + 1, 0);
            }
        }
        Ok(first)
    }
}

/// Returns count `index` of a block whose counts have 2 to the power of `order` bits.
pub(super) fn get(bytes: &[u8], index: usize, order: u32) -> u64 {
    // Counts of less than a byte begin at the lowest bits.
    if order < 3 {
        let per_byte = 8 >> order;
        let shift = (index % per_byte) << order;
        u64::from(bytes[index / per_byte] >> shift) & ((1 << (1 << order)) - 1)
    } else {
        let len = 1 << (order - 3);
        bytes[index * len..][..len].iter().fold(0, |count, byte| (count << 8) | u64::from(*byte))
    }
}

/// Sets count `index` of a block whose counts have 2 to the power of `order` bits.
pub(super) fn put(bytes: &mut [u8], index: usize, order: u32, count: u64) {
    if order < 3 {
        let per_byte = 8 >> order;
        let shift = (index % per_byte) << order;
        let mask = ((1_u32 << (1 << order)) - 1) as u8;
        let byte = &mut bytes[index / per_byte];
        *byte = *byte & !(mask << shift) | (count as u8 & mask) << shift;
    } else {
        let len = 1 << (order - 3);
        bytes[index * len..][..len].copy_from_slice(&count.to_be_bytes()[8 - len..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_widths_are_kept_apart() {
        for order in 0..=6 {
            let max = u64::MAX >> (64 - (1 << order));
            let mut bytes = vec![0; 512];
            let entries = (512 * 8) >> order;
            for index in (0..entries).step_by(3) {
                put(&mut bytes, index, order, max);
            }
            for index in 0..entries {
                let expected = if index % 3 == 0 { max } else { 0 };
                assert_eq!(get(&bytes, index, order), expected, "{order} {index}");
            }
        }
    }
}
