//! Writing the tables, in an order in which a crash loses nothing:
//!
//! 1. Reference counts of new clusters. All data are written already.
//! 2. The refcount table, which leads to new blocks of reference counts, and the header if the table moves.
//! 3. L2 tables. New ones are in clusters to which no table leads yet.
//! 4. The L1 table, which leads to new L2 tables.
//! 5. Reference counts of clusters that became free. They are lowered only now.
//!
//! The storage is flushed after each step that has written anything, except for the last one.

use super::refcounts::BLOCK_OFFSET;
use super::state::{State, table_bytes};
use crate::error::Result;
use crate::storage::Storage;

impl State {
    /// Returns whether the tables in memory do not differ from those in the file.
    pub(super) fn is_clean(&self) -> bool {
        self.l1_dirty.is_empty()
            && self.freed.is_empty()
            && self.refcounts.table_dirty.is_empty()
            && self.refcounts.replaced.is_empty()
            && !self.refcounts.blocks.values().any(|block| block.dirty)
            && self.dirty_tables() == 0
    }

    /// Writes all tables. Returns once they would survive a power cut.
    ///
    /// After an error the next commit writes all of them again.
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
        // Now the tables are in the file.
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

    /// Writes the changed part of the refcount table, or all of it if it has a new place. Returns whether
    /// there was anything to write.
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
        // The header is in one sector, so after a crash it leads to the old table or to the new one.
        for (first, count) in std::mem::take(&mut self.refcounts.replaced) {
            self.free_metadata(first << bits, count);
        }
        Ok(true)
    }

    /// Writes the numbers in the header.
    pub(super) fn write_header(&self, storage: &dyn Storage) -> Result<()> {
        Ok(storage.write_at(&self.header.encode_numbers(), 0)?)
    }

    /// Lowers the reference counts of clusters that became free. No flush is needed: after a crash they only
    /// count as used.
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
                // A later table in this cluster must not be mistaken for the old one, so that one is dropped
                // from memory.
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

    /// Lets the host have the room of these clusters.
    fn discard(&self, storage: &dyn Storage, mut clusters: Vec<u64>) -> Result<()> {
        clusters.sort_unstable();
        let bits = self.header.cluster_bits;
        for run in clusters.chunk_by(|first, second| first + 1 == *second) {
            storage.discard(run[0] << bits, (run.len() as u64) << bits)?;
        }
        Ok(())
    }
}
