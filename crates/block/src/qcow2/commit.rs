//! Writing the tables, in an order in which a crash loses nothing.
//!
//! 1. Reference counts of clusters that were taken, and all data, which are written already.
//! 2. What leads to new blocks of reference counts.
//! 3. L2 tables. Those that are new are in clusters that nothing leads to.
//! 4. What leads to new L2 tables.
//! 5. Only now clusters that became free lose their references.
//!
//! Between two steps the storage is flushed, if the first of them wrote anything.

use super::refcounts::BLOCK_OFFSET;
use super::state::{State, table_bytes};
use crate::error::Result;
use crate::storage::Storage;

impl State {
    /// The tables in memory are those in the file.
    pub(super) fn is_clean(&self) -> bool {
        self.l1_dirty.is_empty()
            && self.freed.is_empty()
            && self.refcounts.table_dirty.is_empty()
            && self.refcounts.replaced.is_empty()
            && !self.refcounts.blocks.values().any(|block| block.dirty)
            && self.dirty_tables() == 0
    }

    /// Writes all tables, and comes back when all is kept.
    ///
    /// After an error all of it is tried again by the next one.
    pub(super) fn commit(&mut self, storage: &dyn Storage) -> Result<()> {
        self.write_counts(storage)?;
        storage.flush()?;
        if self.write_refcount_table(storage)? {
            storage.flush()?;
        }
        for at in &self.dirty {
            if let Some(table) = self.tables.get(at) {
                storage.write_at(&table_bytes(&table.entries), *at)?;
            }
        }
        if !self.dirty.is_empty() {
            storage.flush()?;
        }
        if !self.l1_dirty.is_empty() {
            let bytes = table_bytes(&self.l1);
            for sector in &self.l1_dirty {
                let start = sector * 512;
                let end = (start + 512).min(bytes.len());
                storage.write_at(&bytes[start..end], self.header.l1_offset + start as u64)?;
            }
            storage.flush()?;
        }
        // All is kept.
        for block in self.refcounts.blocks.values_mut() {
            block.dirty = false;
        }
        self.dirty.clear();
        self.l1_dirty.clear();
        self.refcounts.table_dirty.clear();
        self.release(storage)
    }

    fn write_counts(&mut self, storage: &dyn Storage) -> Result<()> {
        for (index, block) in self.refcounts.blocks.iter().filter(|(_, block)| block.dirty) {
            storage.write_at(&block.bytes, self.refcounts.table[*index] & BLOCK_OFFSET)?;
        }
        Ok(())
    }

    /// Writes what of the refcount table has changed, or all of it to where it is now; whether there was anything.
    fn write_refcount_table(&mut self, storage: &dyn Storage) -> Result<bool> {
        let bits = self.header.cluster_bits;
        if self.refcounts.replaced.is_empty() {
            let bytes = table_bytes(&self.refcounts.table);
            for sector in &self.refcounts.table_dirty {
                let start = sector * 512;
                storage
                    .write_at(&bytes[start..start + 512], self.refcounts.table_at + start as u64)?;
            }
            return Ok(!self.refcounts.table_dirty.is_empty());
        }
        storage.write_at(&table_bytes(&self.refcounts.table), self.refcounts.table_at)?;
        storage.flush()?;
        self.header.refcount_offset = self.refcounts.table_at;
        self.header.refcount_clusters = ((self.refcounts.table.len() * 8) >> bits) as u32;
        self.write_header(storage)?;
        // The header is in one sector, and whoever reads it finds either table.
        for (first, count) in std::mem::take(&mut self.refcounts.replaced) {
            self.free_metadata(first << bits, count);
        }
        Ok(true)
    }

    /// Writes the numbers of the header.
    pub(super) fn write_header(&self, storage: &dyn Storage) -> Result<()> {
        Ok(storage.write_at(&self.header.encode_numbers(), 0)?)
    }

    /// Takes the references from what became free. That this is kept is not needed: a crash leaves them
    /// counted for nothing.
    fn release(&mut self, storage: &dyn Storage) -> Result<()> {
        if self.freed.is_empty() {
            return Ok(());
        }
        let mut unused = Vec::new();
        for (first, count, is_data) in std::mem::take(&mut self.freed) {
            for cluster in first..first + count {
                if self.refcounts.add(storage, cluster, -1)? > 0 {
                    continue;
                }
                // Tables that nobody uses must not be found in memory when their place is used again.
                self.tables.remove(&(cluster << self.header.cluster_bits));
                self.metadata.remove(&cluster);
                if is_data {
                    unused.push(cluster);
                }
            }
        }
        self.note_growth();
        self.discard(storage, unused)?;
        self.write_counts(storage)
    }

    /// Tells the host that it can have the room of these clusters.
    fn discard(&self, storage: &dyn Storage, mut clusters: Vec<u64>) -> Result<()> {
        clusters.sort_unstable();
        let bits = self.header.cluster_bits;
        for run in clusters.chunk_by(|first, second| first + 1 == *second) {
            storage.discard(run[0] << bits, (run.len() as u64) << bits)?;
        }
        Ok(())
    }
}
